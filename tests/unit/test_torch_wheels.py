"""Which torch and which Python a node's payload gets, why there may be none, and that advice leads on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from temper.plan.tables import load_tables
from temper.plan.torch_wheels import has_kernels
from temper.plan.versions import minor, version
from tests.unit.each import each
from tests.unit.planning_nodes import (
    B200,
    H100,
    L4,
    P100,
    TABLES,
    V100,
    assert_says,
    gpus,
    node,
    plan,
    problem,
    system,
)
from tests.unit.tables import ROOT
from tools.bare_node import PYTHONS

KNOWN = load_tables(ROOT / "data")
T4, M40, A100, GH200, GB200, GB10 = "1eb8", "17fd", "20b0", "2342", "2941", "2e12"
# One GPU of each compute capability that a server has.
SERVERS = (M40, P100, V100, T4, A100, L4, H100, B200, "2bb5")
MIRROR: dict[str, Any] = {
    "nvidia_stack_cuda_repository_url": "http://mirror/cuda",
    "nvidia_stack_cuda_key_fingerprints": ["A" * 40],
}
BOOKWORM = [
    {"uri": "http://mirror/debian/", "suite": suite, "components": ["main"], "signed_by": "/k.gpg"}
    for suite in ("bookworm", "bookworm-security")
]


def arm(*device_ids: str, **changes: Any) -> dict[str, Any]:
    return system("ubuntu", "24.04", pci=gpus(*device_ids), architecture="aarch64", **changes)


def payload(facts: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The payload of an accepted node."""
    found = plan(facts, **values)
    assert found["problems"] == []
    return dict(found["payload"])


def there(version: str = "3.11", torch: str = "", *, environment: bool = True) -> dict[str, Any]:
    """A Python for the payload that the node has already."""
    return {"payload_python": {"version": version, "torch": torch, "environment": environment}}


# ---------------------------------------------------------------- what is chosen


@each(
    (node(), "2.11.0"),
    (node(pci=gpus(V100)), "2.7.1"),
    (arm(GH200), "2.11.0"),
    (arm(GB10), "2.11.0"),
    (system("ubuntu", "22.04"), "2.11.0"),
    (system("debian", "13"), "2.15.0"),
)
def test_a_node_gets_the_torch_of_its_stack(facts: dict[str, Any], torch: str) -> None:
    assert payload(facts)["torch"] == torch


def test_a_python_that_the_stacks_torch_has_no_wheel_for_gets_another_torch() -> None:
    """2.15 begins with Python 3.11."""
    facts = system("ubuntu", "22.04")
    found = payload(facts, nvidia_stack_name="r595-cuda13.2")
    assert (found["torch"], found["python"]) == ("2.14.1", "3.10")


def test_volta_with_a_newer_python_gets_the_last_torch_that_has_both() -> None:
    facts = node(pci=gpus(V100), pythons=["3.14"])
    assert payload(facts)["torch"] == "2.10.0"


def test_a_superchip_gets_no_torch_of_before_there_was_cuda_for_aarch64() -> None:
    assert payload(arm(GH200), nvidia_stack_name="r580-cuda12.9")["torch"] == "2.14.1"


def test_blackwell_gets_no_torch_of_before_blackwell() -> None:
    assert payload(node(pci=gpus(B200)), nvidia_stack_name="r580-cuda12.9")["torch"] == "2.14.1"


def test_an_index_of_pytorchs_is_judged_by_its_cuda() -> None:
    index = {"gpu_validation_pip_args": "--index-url https://mirror.example/whl/cu126"}
    assert payload(node(pci=gpus(P100), pythons=["3.14"]), **index)["torch"] == "2.14.1"


def test_a_torch_that_no_table_has_is_taken_with_a_warning() -> None:
    found = plan(gpu_validation_torch_version="2.99.0")
    assert (found["problems"], found["payload"]["torch"]) == ([], "2.99.0")
    assert any("torch 2.99.0 is in no table" in warning for warning in found["warnings"])


# ---------------------------------------------------------------- which Python


@each(
    (node(), "/usr/bin/python3.11", ["python3-venv"]),
    (node(pythons=["3.9", "3.12"]), "/usr/bin/python3.12", ["python3.12-venv"]),
    (system("rocky", "9.4"), "/usr/bin/python3.11", ["python3.11"]),
    (system("rhel", "8"), "/usr/bin/python3.11", ["python3.11"]),
    (system("rhel", "9", pythons=["3.9", "3.12"]), "/usr/bin/python3.12", ["python3.12"]),
)
def test_the_environment_is_made_with(facts: dict[str, Any], interpreter: str, packages: list[str]) -> None:
    found = payload(facts)
    assert (found["interpreter"], found["packages"]) == (interpreter, packages)


def test_an_environment_keeps_its_python() -> None:
    found = payload(node(pythons=["3.12"], **there("3.10", "2.9.1")), nvidia_stack_name="r595-cuda13.2")
    assert (found["torch"], found["python"], found["packages"]) == ("2.14.1", "3.10", [])


def test_an_environments_torch_that_cannot_use_the_gpus_is_replaced() -> None:
    """An earlier run put it there, when nobody looked at the machine."""
    facts = arm(GH200, **there("3.12", "2.7.1"))
    assert payload(facts, nvidia_stack_name="r580-cuda12.9")["torch"] == "2.14.1"


def test_a_torch_that_the_operator_names_and_has_is_taken_as_it_is() -> None:
    facts = arm(T4, **there("3.12", "2.11.0"))
    assert payload(facts, gpu_validation_torch_version="2.11.0")["torch"] == "2.11.0"


@each("2.13.0", "2.13.0+cpu")
def test_what_a_golden_image_has_is_taken_as_it_is(torch: str) -> None:
    facts = node(pci=gpus(V100), **there("3.9", torch, environment=False))
    assert payload(facts, gpu_validation_torch_version="2.13.0")["torch"] == "2.13.0"


def test_a_python_of_which_the_files_say_nothing_is_left_to_the_role() -> None:
    assert payload(node(**there("", "", environment=False)))["torch"] == "2.11.0"


# ---------------------------------------------------------------- refusals


def test_aarch64_has_no_kernels_for_turing() -> None:
    text = problem(arm(T4))
    assert_says(text, "aarch64", "Tesla T4", "7.5", "gpu_validation_python", "required_tests: [health]")


def test_a_torch_without_cuda_for_the_machine_is_refused() -> None:
    text = problem(arm(GH200), gpu_validation_torch_version="2.10.0")
    assert_says(text, "torch 2.10.0", "without CUDA", "aarch64", "2.11.0")


def test_the_driver_has_to_start_torchs_cuda() -> None:
    distro: dict[str, Any] = {
        "nvidia_stack_source": "distro",
        "gpu_validation_torch_version": "2.11.0",
    }
    text = problem(node(apt_sources=BOOKWORM), **distro)
    assert_says(text, "CUDA 13.0", "580.65.06", "535.309.01", "2.7.1")


def test_pascal_with_a_new_python_is_led_to_pytorchs_index() -> None:
    text = problem(node(pci=gpus(P100), pythons=["3.14"]))
    assert_says(text, "2.14.1+cu126", "--index-url with PyTorch's index for cu126")


def test_a_python_that_is_too_old_is_refused_with_what_was_found() -> None:
    assert_says(problem(node(pythons=["3.9"])), "3.10 or newer", "has 3.9", "install Python")


def test_an_old_environment_that_no_torch_fits_is_to_be_removed() -> None:
    text = problem(node(**there("3.8", "2.0.1")))
    assert_says(text, "3.8", "remove the environment of /opt/temper/venv/bin/python3")


def test_a_python_that_is_no_environment_gets_no_other_torch() -> None:
    text = problem(node(**there("3.11", "2.9.1", environment=False)))
    assert_says(text, "2.9.1", "2.11.0", "gpu_validation_torch_version: 2.9.1")


def test_where_no_test_on_gpus_is_required_a_torch_without_kernels_is_a_warning() -> None:
    found = plan(arm(T4), gpu_validation_required_tests=["health", "cpu_matmul"])
    assert found["problems"] == []
    assert any("no kernels for Tesla T4" in warning for warning in found["warnings"])


# ---------------------------------------------------------------- whatever the node

ADVICE = re.compile(
    r"(?P<name>gpu_validation_(?:torch_version|pip_args|required_tests)): "
    r"(?P<value>--index-url \S+|\[health\]|[\d.]+(?:\+\w+)?)"
)
INSTALL = re.compile(r"install Python (\d\.\d+)")


def cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Systems, machines, GPUs, Pythons, torches that an operator names, and tests that must run."""
    found = []
    for name, machine, device in (
        (name, machine, device)
        for name in ("debian-12", "ubuntu-22.04", "ubuntu-26.04", "rhel-9")
        for machine in ("x86_64", "aarch64")
        for device in SERVERS
    ):
        distribution, _, release = name.rpartition("-")
        for python in (PYTHONS[name], "3.8", "3.15"):
            for torch in ("", "2.4.1", "2.10.0"):
                facts = system(
                    distribution, release, pci=gpus(device), architecture=machine, pythons=[python]
                )
                found.append((facts, {**MIRROR, "gpu_validation_torch_version": torch}))
    return found


def assert_torch_fits(facts: dict[str, Any], found: dict[str, Any], values: dict[str, Any]) -> None:
    """An accepted plan's torch, judged by the tables without the planner."""
    torch, python = found["payload"]["torch"], found["payload"]["python"]
    release = TABLES["nvidia_torch_releases"][minor(torch.partition("+")[0])]
    assert version(release["first_python"]) <= version(python) <= version(release["last_python"])
    assert python in facts["pythons"] or "rhel" in found["system"]
    variant = torch.partition("+")[2] or release["pypi"].get(facts["architecture"], "")
    if "gpu_validation_required_tests" in values:
        return
    rows = TABLES["nvidia_torch_builds"][facts["architecture"]][variant]
    (build,) = [
        row
        for first, row in rows.items()
        if version(first) <= version(minor(torch.partition("+")[0])) <= version(row["last"])
    ]
    for gpu in found["gpus"]:
        capability = TABLES["models"].get(gpu["model"], {}).get("compute_capability")
        own = KNOWN.models[gpu["model"]].compute_capability
        assert capability in (None, own)
        assert has_kernels(build["capabilities"], own), (torch, variant, gpu["name"])
    assert found["driver"]["branch"] >= (580 if variant.startswith("cu13") else 525)


def followed(
    text: str, facts: dict[str, Any], values: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a sentence advises, done."""
    if "leave gpu_validation_torch_version empty" in text:
        return facts, {**values, "gpu_validation_torch_version": ""}
    if match := INSTALL.search(text):
        return facts | {"pythons": [*facts["pythons"], match[1]]}, values
    advised = {match["name"]: match["value"] for match in ADVICE.finditer(text)}
    assert advised, text
    if "gpu_validation_required_tests" in advised:
        return facts, {**values, "gpu_validation_required_tests": ["health"]}
    return facts, {**values, **advised}


def test_every_torch_of_a_plan_fits_and_advice_leads_to_a_plan() -> None:
    refused = 0
    for facts, values in cases():
        found = plan(facts, **values)
        torch_problems = [text for text in found["problems"] if "torch" in text or "Python" in text]
        if len(torch_problems) < len(found["problems"]):
            continue
        steps = 0
        while torch_problems:
            refused += 1
            steps += 1
            assert steps < 4, torch_problems
            facts, values = followed(torch_problems[0], facts, values)  # noqa: PLW2901 - step by step
            found = plan(facts, **values)
            torch_problems = found["problems"]
        assert_torch_fits(facts, found, values)
    assert refused > 50


@pytest.mark.parametrize(
    ("own", "gpu", "runs"),
    [
        ("8.0", "8.6", True),
        ("8.6", "8.9", True),
        ("12.0", "12.1", True),
        ("8.6", "8.0", False),
        ("9.0", "10.0", False),
        ("6.0", "6.1", True),
    ],
)
def test_kernels_run_on_later_gpus_of_their_major_version(own: str, gpu: str, *, runs: bool) -> None:
    assert has_kernels([own], gpu) is runs


# ---------------------------------------------------------------- with which hashes


def test_a_torch_of_the_tables_has_its_hashes() -> None:
    found = plan()
    assert found["payload"]["requirements"] == "requirements/torch/2.11.0.txt"
    assert not any("without hashes" in warning for warning in found["warnings"])


@each(
    {"gpu_validation_torch_version": "2.99.0"},
    {"gpu_validation_torch_version": "2.14.1+cu126"},
    {"gpu_validation_pip_args": "--index-url https://mirror.example/whl/cu126"},
)
def test_a_torch_whose_hashes_nobody_knows_is_installed_with_a_warning(variables: dict[str, Any]) -> None:
    found = plan(**variables)
    assert found["payload"]["requirements"] == ""
    assert any("without hashes" in warning for warning in found["warnings"])
    own = plan(**variables, gpu_validation_torch_requirements="mine.txt")
    assert own["payload"]["requirements"] == "mine.txt"
    assert not any("without hashes" in warning for warning in own["warnings"])
