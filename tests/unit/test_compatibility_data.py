"""data/stacks.yml and data/nvidia_compatibility.yml agree with themselves and with data/gpu_models.yml."""

import datetime
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from temper.plan.rules import own_problems
from temper.plan.tables import Tables
from temper.plan.versions import branch, minor, parts, version
from tests.unit.each import each
from tests.unit.planning_nodes import gpus, plan, system
from tests.unit.tables import ROOT, tables

TABLES = tables()
STACKS: dict[str, dict[str, Any]] = TABLES["nvidia_stacks"]

each_stack = each(*STACKS.values())


def entries(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of the tables with their paths: mappings with a source, or that hold no other mapping."""
    if not isinstance(value, dict):
        return
    if "source" in value or not any(isinstance(child, dict) for child in value.values()):
        yield path, value
        return
    for key, child in value.items():
        yield from entries(child, f"{path}.{key}")


def rows(file: str) -> dict[str, dict[str, Any]]:
    keys = re.findall(r"^((?:nvidia|distro)_\w+):", (ROOT / "data" / file).read_text(), re.MULTILINE)
    return dict(entries({key: TABLES[key] for key in keys}))


@each("stacks.yml", "nvidia_compatibility.yml", "distro_drivers.yml")
def test_every_row_has_a_source_and_a_date(file: str) -> None:
    listed = re.findall(r"^#   (\S+) {2,}", (ROOT / "data" / file).read_text(), re.MULTILINE)
    found = rows(file)
    assert found
    for path, row in found.items():
        assert row.get("source") in listed, path
        assert datetime.date.fromisoformat(row["date"]), path


def test_the_default_stacks_are_stacks() -> None:
    assert TABLES["nvidia_default_stacks"]
    assert set(TABLES["nvidia_default_stacks"]) <= STACKS.keys()


@each(*STACKS)
def test_a_stack_is_named_after_its_branch_and_cuda(name: str) -> None:
    assert name == f"r{branch(STACKS[name]['driver'])}-cuda{STACKS[name]['cuda']}"


@each_stack
def test_versions_are_text(stack: dict[str, Any]) -> None:
    """YAML reads 12.9 and 580.10 as numbers, and 580.10 loses its zero."""
    assert all(
        isinstance(value, str)
        for key, value in stack.items()
        if key not in ("driver_package", "seen", "nccl_doubtful")
    )
    assert all(isinstance(value, str) for value in stack["driver_package"].values())


@each_stack
def test_every_family_has_a_version_of_the_driver(stack: dict[str, Any]) -> None:
    families = {row["family"] for row in TABLES["nvidia_distributions"].values()}
    assert stack["driver_package"].keys() == families
    assert {*stack["seen"], *stack.get("nccl_doubtful", ())} <= TABLES["nvidia_distributions"].keys()


@each_stack
def test_a_driver_is_seen_only_where_the_repository_has_its_branch(stack: dict[str, Any]) -> None:
    for name in stack["seen"]:
        assert branch(stack["driver"]) >= (TABLES["nvidia_distributions"][name]["first_branch"] or 0), name


@each_stack
def test_packages_are_those_of_the_versions(stack: dict[str, Any]) -> None:
    for version_of_family in stack["driver_package"].values():
        assert re.fullmatch(rf"{re.escape(stack['driver'])}-\d(ubuntu1)?", version_of_family)
    assert re.fullmatch(rf"{re.escape(stack['cuda'])}\.\d+-\d+", stack["cuda_package"])
    assert re.fullmatch(rf"[\d.]+-\d+\+cuda{re.escape(stack['cuda'])}", stack["nccl_package"])
    assert re.fullmatch(r"9(\.\d+){3}-\d+", stack["cudnn_package"])
    assert re.fullmatch(r"\d+\.\d+\.\d+-\d+", stack["container_toolkit_package"])


@each_stack
def test_the_driver_is_new_enough_for_its_cuda_or_the_plan_says_what_does_not_work(
    stack: dict[str, Any],
) -> None:
    row = TABLES["nvidia_cuda_drivers"][stack["cuda"]]
    (name,) = (name for name, other in STACKS.items() if other is stack)
    mirror: dict[str, Any] = {"nvidia_stack_cuda_repository_url": "http://mirror/cuda"}
    warnings = plan(facts("ubuntu-24.04", "2330"), nvidia_stack_name=name, **mirror)["warnings"]
    old = version(stack["driver"]) < version(row["driver"])
    assert any(f"came with driver {row['driver']}" in text for text in warnings) is old
    # Of a major version, every CUDA runs on the driver of the first.
    first = TABLES["nvidia_cuda_minimum_drivers"][stack["cuda"].split(".")[0]]["driver"]
    assert version(stack["driver"]) >= version(first)


@each_stack
def test_torch_is_known_and_its_cuda_runs_on_the_stack(stack: dict[str, Any]) -> None:
    release = TABLES["nvidia_torch_releases"][minor(stack["torch"])]
    assert version(stack["torch"]) <= version(release["last"])
    cuda = version(cuda_of(release["pypi"]["x86_64"]))
    assert cuda <= version(stack["cuda"])
    assert cuda[0] == version(stack["cuda"])[0]


@each_stack
def test_the_driver_exists_and_its_branch_is_supported(stack: dict[str, Any]) -> None:
    row = TABLES["nvidia_driver_branches"][str(branch(stack["driver"]))]
    assert version(stack["driver"]) <= version(row["last"])
    # Of a branch of new features NVIDIA names no end: the plan takes one of a longer life where any fits.
    assert row["end_of_life"] > stack["date"][:7] if row["end_of_life"] else row["type"] == "NFB"


@each_stack
def test_cudnn_and_nccl_were_built_for_the_cuda(stack: dict[str, Any]) -> None:
    row = TABLES["nvidia_cudnn_cuda"][stack["cuda"].split(".")[0]]
    found = parts(stack["cudnn_package"], 3)
    assert version(row["first"]) <= found
    assert not row["last"] or found <= version(row["last"])
    nccl, _, cuda = stack["nccl_package"].partition("-1+cuda")
    assert cuda in TABLES["nvidia_nccl_builds"][nccl]["cuda"]


@each(*STACKS)
def test_a_stack_breaks_no_rule_of_its_own(name: str) -> None:
    typed = Tables.from_dict(TABLES)
    assert list(own_problems(typed.stacks[name], typed)) == []


@each_stack
def test_torchs_own_libraries_are_no_newer_than_the_stacks_major(stack: dict[str, Any]) -> None:
    build = TABLES["nvidia_torch_releases"][minor(stack["torch"])]
    assert parts(build["cudnn"], 1) == parts(stack["cudnn_package"], 1)
    assert parts(build["nccl"], 1) == parts(stack["nccl_package"], 1)


def cuda_of(variant: str) -> str:
    """12.6 of cu126."""
    return f"{variant[2:-1]}.{variant[-1]}"


def test_a_torch_release_has_builds_on_pypi_that_the_tables_know() -> None:
    for name, row in TABLES["nvidia_torch_releases"].items():
        assert minor(row["last"]) == name
        assert version(row["first_python"]) < version(row["last_python"]), name
        for machine, variant in row["pypi"].items():
            rows = TABLES["nvidia_torch_builds"][machine][variant]
            found = [
                first
                for first, build in rows.items()
                if version(first) <= version(name) <= version(build["last"])
            ]
            assert len(found) == 1, (name, machine)


def test_a_torch_build_runs_on_a_known_cuda_and_its_releases_are_known() -> None:
    releases = TABLES["nvidia_torch_releases"]
    for machine, variants in TABLES["nvidia_torch_builds"].items():
        for variant, rows in variants.items():
            assert cuda_of(variant) in TABLES["nvidia_cuda_drivers"], variant
            ranges = [(version(first), version(row["last"])) for first, row in rows.items()]
            assert ranges == sorted(ranges), (machine, variant)
            assert all(last < first for (_, last), (first, _) in pairwise(ranges)), (machine, variant)
            for first, row in rows.items():
                assert {first, row["last"]} <= releases.keys(), (machine, variant)
                assert row["capabilities"] == sorted(row["capabilities"], key=version)


def test_every_measured_gpu_has_a_torch_with_kernels_in_the_stack_that_fits() -> None:
    for key, model in TABLES["models"].items():
        found = plan(facts("debian-12", *model["pci_ids"][:1]))
        assert found["payload"]["torch"] == STACKS[found["stack"]]["torch"], key


@each_stack
def test_open_modules_of_the_driver_compile(stack: dict[str, Any]) -> None:
    minimum = TABLES["nvidia_kernel_modules"]["open_minimum_driver"]["driver"]
    assert version(stack["driver"]) >= version(minimum)


def test_the_last_driver_of_a_branch_belongs_to_it() -> None:
    for name, row in TABLES["nvidia_driver_branches"].items():
        assert branch(row["last"]) == int(name)
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", row["end_of_life"] or "2099-12"), name


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
        for key in ("first_cuda", "last_cuda"):
            assert rule[key] is None or rule[key] in TABLES["nvidia_cuda_drivers"], name
        assert str(rule["last_branch"] or 580) in TABLES["nvidia_driver_branches"], name


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
        assert all(fingerprint.endswith(key_id) for fingerprint in table["key_fingerprints"])


def facts(distribution: str, *device_ids: str) -> dict[str, Any]:
    name, _, release = distribution.rpartition("-")
    return system(name, release, pci=gpus(*device_ids))


# What no test can make up: where NVIDIA's key is unknown, the operator pins it.
PINNED: dict[str, Any] = {"nvidia_stack_cuda_key_fingerprints": ["A" * 40]}


@each(*TABLES["nvidia_distributions"])
@each(*STACKS)
def test_every_stack_drives_an_h100_where_the_repository_has_it(name: str, distribution: str) -> None:
    mirror: dict[str, Any] = {
        "nvidia_stack_cuda_repository_url": "http://mirror/cuda",
        "nvidia_stack_name": name,
    }
    assert plan(facts(distribution, "2330"), **PINNED, **mirror)["problems"] == []
