"""data/stacks.yml and data/nvidia_compatibility.yml agree with themselves and with data/gpu_models.yml."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

import pytest
from variables import role_variables

from planning.machine import GIB
from planning.plan import node_plan
from planning.versions import branch, version
from tests.unit.tables import ROOT, specs, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = tables()
STACKS: dict[str, dict[str, Any]] = TABLES["nvidia_stacks"]
DEFAULTS = role_variables({}, specs())["values"]
# CUDA of the torch builds on PyPI, from the metadata of the wheels, 2026-11-20. A stack's torch must be here.
TORCH_CUDA = {"2.7.1": "12.6", "2.11.0": "13.0", "2.15.0": "13.2"}

each_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)


def entries(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping that holds no other mapping, with its path: the rows of the tables."""
    if not isinstance(value, dict):
        return
    if not any(isinstance(child, dict) for child in value.values()):
        yield path, value
    for key, child in value.items():
        yield from entries(child, f"{path}.{key}")


def rows(file: str) -> dict[str, dict[str, Any]]:
    keys = re.findall(r"^(nvidia_\w+):", (ROOT / "data" / file).read_text(), re.MULTILINE)
    return dict(entries({key: TABLES[key] for key in keys}))


@pytest.mark.parametrize("file", ["stacks.yml", "nvidia_compatibility.yml"])
def test_every_row_has_a_source_and_a_date(file: str) -> None:
    listed = re.findall(r"^#   (\S+) {2,}", (ROOT / "data" / file).read_text(), re.MULTILINE)
    found = rows(file)
    assert found
    for path, row in found.items():
        assert row.get("source") in listed, path
        assert datetime.date.fromisoformat(row["date"]), path


def test_the_default_stack_is_one() -> None:
    assert TABLES["nvidia_default_stack"] in STACKS


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_named_after_its_branch_and_cuda(name: str) -> None:
    assert name == f"r{branch(STACKS[name]['driver'])}-cuda{STACKS[name]['cuda']}"


@each_stack
def test_a_stack_has_all_fields(stack: dict[str, Any]) -> None:
    assert stack.keys() == {
        "summary",
        "driver",
        "driver_package",
        "cuda",
        "cuda_package",
        "cudnn_package",
        "nccl_package",
        "container_toolkit_package",
        "torch",
        "source",
        "date",
    }


@each_stack
def test_versions_are_text(stack: dict[str, Any]) -> None:
    """YAML reads 12.9 and 580.10 as numbers, and 580.10 loses its zero."""
    assert all(isinstance(value, str) for value in stack.values())


@each_stack
def test_packages_are_those_of_the_versions(stack: dict[str, Any]) -> None:
    assert stack["driver_package"] == f"{stack['driver']}-1"
    assert re.fullmatch(rf"{re.escape(stack['cuda'])}\.\d+-\d+", stack["cuda_package"])
    assert re.fullmatch(rf"[\d.]+-\d+\+cuda{re.escape(stack['cuda'])}", stack["nccl_package"])
    assert re.fullmatch(r"9(\.\d+){3}-\d+", stack["cudnn_package"])
    assert re.fullmatch(r"\d+\.\d+\.\d+-\d+", stack["container_toolkit_package"])


@each_stack
def test_the_driver_is_new_enough_for_its_cuda(stack: dict[str, Any]) -> None:
    assert version(stack["driver"]) >= version(TABLES["nvidia_cuda_drivers"][stack["cuda"]]["driver"])


@each_stack
def test_torch_is_known_and_its_cuda_runs_on_the_stack(stack: dict[str, Any]) -> None:
    cuda = version(TORCH_CUDA[stack["torch"]])
    assert cuda <= version(stack["cuda"])
    assert cuda[0] == version(stack["cuda"])[0]


@each_stack
def test_the_driver_exists_and_its_branch_is_supported(stack: dict[str, Any]) -> None:
    row = TABLES["nvidia_driver_branches"][str(branch(stack["driver"]))]
    assert version(stack["driver"]) <= version(row["last"])
    assert row["end_of_life"] > stack["date"][:7]


@each_stack
def test_open_modules_of_the_driver_compile(stack: dict[str, Any]) -> None:
    minimum = TABLES["nvidia_kernel_modules"]["open_minimum_driver"]["driver"]
    assert version(stack["driver"]) >= version(minimum)


def test_the_last_driver_of_a_branch_belongs_to_it() -> None:
    for name, row in TABLES["nvidia_driver_branches"].items():
        assert branch(row["last"]) == int(name)
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", row["end_of_life"]), name


def test_the_driver_of_a_cuda_starts_its_runtime() -> None:
    for cuda, row in TABLES["nvidia_cuda_drivers"].items():
        minimum = TABLES["nvidia_cuda_minimum_drivers"][cuda.split(".")[0]]["driver"]
        assert version(row["driver"]) >= version(minimum), cuda


def test_a_newer_cuda_has_a_newer_driver() -> None:
    for table in ("nvidia_cuda_drivers", "nvidia_cuda_minimum_drivers"):
        ordered = sorted(TABLES[table], key=version)
        drivers = [version(TABLES[table][cuda]["driver"]) for cuda in ordered]
        assert drivers == sorted(drivers)


def test_every_architecture_has_a_rule() -> None:
    used = {model["architecture"] for model in TABLES["models"].values()}
    assert used <= TABLES["nvidia_architectures"].keys()
    assert TABLES["nvidia_architectures"].keys() == TABLES["architectures"].keys()


def test_a_rule_is_complete_and_its_words_are_known() -> None:
    for name, rule in TABLES["nvidia_architectures"].items():
        assert rule["open_modules"] in {"required", "recommended", "supported", "impossible"}, name
        assert rule["first_branch"] is None or isinstance(rule["first_branch"], int), name
        assert rule["last_branch"] is None or isinstance(rule["last_branch"], int), name
        assert rule["last_cuda"] is None or rule["last_cuda"] in TABLES["nvidia_cuda_drivers"], name


def test_an_architecture_without_open_modules_ends_before_proprietary_ones_do() -> None:
    last = TABLES["nvidia_kernel_modules"]["proprietary_last_branch"]["branch"]
    for name, rule in TABLES["nvidia_architectures"].items():
        if rule["open_modules"] == "impossible":
            assert rule["last_branch"] <= last, name


def test_fingerprints_are_whole_and_fit_the_key_files() -> None:
    tables = [*TABLES["nvidia_distributions"].values(), TABLES["nvidia_container_toolkit_repository"]]
    for table in tables:
        for fingerprint in table["key_fingerprints"]:
            assert re.fullmatch(r"[0-9A-F]{40}", fingerprint)
    for table in TABLES["nvidia_distributions"].values():
        key_id = table["key_file"].removesuffix(".pub").upper()
        assert any(fingerprint.endswith(key_id) for fingerprint in table["key_fingerprints"])


def facts(distribution: str, *device_ids: str) -> dict[str, Any]:
    name, _, release = distribution.rpartition("-")
    return {
        "os": {"id": name, "version_id": release, "pretty_name": distribution},
        "architecture": "x86_64",
        "kernel": {"release": "6", "headers_present": True},
        "secure_boot": "disabled",
        "cpu": {"physical": 1},
        "disks": [{"path": "/", "free_bytes": 100 * GIB}],
        "pci": [{"device_id": device_id, "class_id": "0302"} for device_id in device_ids],
        "interfaces": [],
        "packages": {},
        "nvidia": {"compute_processes": []},
    }


@pytest.mark.parametrize("distribution", TABLES["nvidia_distributions"])
@pytest.mark.parametrize("model", TABLES["models"])
def test_every_gpu_has_a_stack(model: str, distribution: str) -> None:
    node = facts(distribution, *TABLES["models"][model]["pci_ids"])
    plans = [node_plan(node, TABLES, DEFAULTS | {"nvidia_stack_name": name}) for name in STACKS]
    assert any(not plan["problems"] for plan in plans), plans[0]["problems"]


@pytest.mark.parametrize("distribution", TABLES["nvidia_distributions"])
@pytest.mark.parametrize("name", STACKS)
def test_every_stack_drives_the_newest_known_gpus(name: str, distribution: str) -> None:
    plan = node_plan(facts(distribution, "2330"), TABLES, DEFAULTS | {"nvidia_stack_name": name})
    assert plan["problems"] == []
