"""Which torch and which Python a node's payload gets, why there may be none, and that advice leads on."""

import re
from typing import Any

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


CUDA_12_9, CUDA_13_2 = ({"nvidia_stack_name": name} for name in ("r580-cuda12.9", "r595-cuda13.2"))
INDEX = {"gpu_validation_pip_args": "--index-url https://mirror.example/whl/cu126"}


def wish(torch: str) -> dict[str, str]:
    return {"gpu_validation_torch_version": torch}


@each(
    (node(), {}, "2.11.0"),
    (node(pci=gpus(V100)), {}, "2.7.1"),
    (arm(GH200), {}, "2.11.0"),
    (arm(GB10), {}, "2.11.0"),
    (system("ubuntu", "22.04"), {}, "2.11.0"),
    (system("debian", "13"), {}, "2.15.0"),
    # 2.15 begins with Python 3.11.
    (system("ubuntu", "22.04"), CUDA_13_2, "2.14.1"),
    # The last torch that has both this GPU and this Python.
    (node(pci=gpus(V100), pythons=["3.14"]), {}, "2.10.0"),
    # None of before there was CUDA for aarch64, or of before the GPU.
    (arm(GH200), CUDA_12_9, "2.14.1"),
    (node(pci=gpus(B200)), CUDA_12_9, "2.14.1"),
    (node(pci=gpus(P100), pythons=["3.14"]), INDEX, "2.14.1"),
    # What an earlier run put there, when nobody looked at the machine, is replaced.
    (arm(GH200, **there("3.12", "2.7.1")), CUDA_12_9, "2.14.1"),
    # What the operator names and a golden image has is taken as it is.
    (arm(T4, **there("3.12", "2.11.0")), wish("2.11.0"), "2.11.0"),
    (node(pci=gpus(V100), **there("3.9", "2.13.0", environment=False)), wish("2.13.0"), "2.13.0"),
    (node(pci=gpus(V100), **there("3.9", "2.13.0+cpu", environment=False)), wish("2.13.0"), "2.13.0"),
    # The files of a Python say nothing: the role looks.
    (node(**there("", "", environment=False)), {}, "2.11.0"),
)
def test_a_node_gets_a_torch_that_fits_its_stack_python_and_gpus(
    facts: dict[str, Any], values: dict[str, str], torch: str
) -> None:
    assert payload(facts, **values)["torch"] == torch


def test_a_torch_that_no_table_has_is_taken_with_a_warning() -> None:
    found = plan(gpu_validation_torch_version="2.99.0")
    assert (found["problems"], found["payload"]["torch"]) == ([], "2.99.0")
    assert any("torch 2.99.0 is in no table" in warning for warning in found["warnings"])


# ---------------------------------------------------------------- which Python


@each(
    (node(), "/usr/bin/python3.11", ["python3.11-venv"]),
    (node(pythons=["3.9", "3.12"]), "/usr/bin/python3.12", ["python3.12-venv"]),
    (node(**there("3.12", "2.5.1")), "", []),
    (node(**there("3.12", "")), "", []),
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


# ---------------------------------------------------------------- refusals


DISTRO = {"nvidia_stack_source": "distro", **wish("2.11.0")}


@each(
    (arm(T4), {}, ("aarch64", "Tesla T4", "7.5", "gpu_validation_python", "required_tests: [health]")),
    (arm(GH200), wish("2.10.0"), ("torch 2.10.0", "without CUDA", "aarch64", "2.11.0")),
    (node(apt_sources=BOOKWORM), DISTRO, ("CUDA 13.0", "580.65.06", "535.309.01", "2.7.1")),
    (
        node(pci=gpus(P100), pythons=["3.14"]),
        {},
        ("2.14.1+cu126", "--index-url with PyTorch's index for cu126"),
    ),
    (node(pythons=["3.9"]), {}, ("3.10 or newer", "has 3.9", "install Python")),
    (node(**there("3.8", "2.0.1")), {}, ("3.8", "remove the environment of /opt/temper/venv/bin/python3")),
    (
        node(**there("3.11", "2.9.1", environment=False)),
        {},
        ("2.9.1", "2.11.0", "gpu_validation_torch_version: 2.9.1"),
    ),
)
def test_where_no_torch_fits_the_refusal_says_why_and_what_to_do(
    facts: dict[str, Any], values: dict[str, str], says: tuple[str, ...]
) -> None:
    assert_says(problem(facts, **values), *says)


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


@each(
    ("8.0", "8.6", True),
    ("8.6", "8.9", True),
    ("12.0", "12.1", True),
    ("8.6", "8.0", False),
    ("9.0", "10.0", False),
    ("6.0", "6.1", True),
)
def test_kernels_run_on_later_gpus_of_their_major_version(own: str, gpu: str, runs: bool) -> None:
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
