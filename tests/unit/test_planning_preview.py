"""What the simulated transaction adds to a plan, and the filters around it."""

import hashlib
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from temper.plan.node_plan import NodePlan
from temper.plan.preflight import Certificate, preflight_plan, read_certificate
from temper.plan.preview import Preview, with_preview
from tests.unit.each import each
from tests.unit.planning_nodes import assert_says, node, plan, system

PLAN = NodePlan.from_dict(plan() | {"text": "the plan"})
KNOWN = {"address": "192.0.2.7", "user": "ops", "today": ""}
TRANSACTION = {
    "install": [{"name": f"libnvidia-{number}", "version": "1"} for number in range(12)],
    "upgrade": [{"name": "libc6", "from": "2.36-9", "to": "2.36-10"}],
    "downgrade": [],
    "remove": [],
    "download_bytes": 3 * 2**30,
    "disk_bytes": 700 * 2**20,
}


def result(problems: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """What module package_preview returns."""
    resolved = {"nvlsm": "2025.10.11-1"}
    return {"transaction": TRANSACTION | changes, "resolved": resolved, "problems": problems or []}


def previewed(problems: list[str] | None = None, **changes: Any) -> NodePlan:
    return with_preview(PLAN, Preview.from_dict(result(problems, **changes)))


def fact(variables: dict[str, Any] | None = None, **said: dict[str, Any]) -> dict[str, Any]:
    """The fact `preflight_plan` of a node with one L4."""
    return preflight_plan({"ansible_facts": {"temper": node()}}, variables or {}, KNOWN, **said)


def test_the_transaction_is_part_of_the_plan_and_of_its_text() -> None:
    found = fact(preview=result())
    assert found["problems"] == []
    assert found["transaction"] == TRANSACTION
    assert found["resolved"] == {"nvlsm": "2025.10.11-1"}
    own = [
        "transaction: 12 to install, 1 to upgrade; 3.0 GiB to download, 700 MiB on disk",
        "  upgrades: libc6 2.36-9 -> 2.36-10",
    ]
    lines = found["text"].splitlines()
    assert lines[lines.index(own[0]) :][:2] == own
    assert [line for line in lines if line not in own] == fact()["text"].splitlines()


def test_what_goes_away_or_back_is_named() -> None:
    found = previewed(
        downgrade=[{"name": "libcuda1", "from": "595.91.07-1", "to": "580.178.04-1"}],
        remove=[{"name": f"nvidia-kernel-{number}", "version": "1"} for number in range(8)],
    ).text.splitlines()
    assert "  downgrades: libcuda1 595.91.07-1 -> 580.178.04-1" in found
    assert found[-1].endswith("nvidia-kernel-5 and 2 more")


def test_problems_of_the_simulation_refuse_the_node() -> None:
    found = previewed(["nvidia-driver-cuda 580.178.04-1 is not in the repositories"])
    assert found.problems == ("nvidia-driver-cuda 580.178.04-1 is not in the repositories",)


def test_a_mirror_without_the_stack_gets_a_hint_where_no_transaction_is_found() -> None:
    facts = system("debian", "13")
    wanted: dict[str, Any] = {
        "nvidia_stack_name": "r580-cuda13.0",
        "nvidia_stack_cuda_repository_url": "http://mirror/cuda",
    }
    mirror = NodePlan.from_dict(plan(facts, **wanted))
    there = Preview.from_dict({"transaction": TRANSACTION, "problems": []})
    found = {"transaction": {}, "problems": ["nvidia-driver-cuda 580.178.04-1"]}
    missing = Preview.from_dict(found | {"unresolved": True})
    assert "debian-13 begins with driver branch 590" in with_preview(mirror, missing).problems[1]
    assert with_preview(mirror, there).problems == ()
    # Too little room, a key, a rule of the node's owner: the stack is not what the mirror lacks.
    assert with_preview(mirror, Preview.from_dict(found)).problems == missing.problems
    assert with_preview(PLAN, missing).problems == missing.problems


@each("linux-image-6.12.117+deb13-amd64", "kernel-core", "kernel-64k-core")
def test_a_kernel_that_comes_along_is_shown_with_the_way_out(name: str) -> None:
    found = previewed(["it would install another kernel"], install=[{"name": name, "version": "6.12.117-1"}])
    assert found.text.splitlines()[-1] == f"  brings a kernel: {name}"
    assert "nvidia_stack_follow_kernels: false" in found.problems[1]


@each(
    (node(), "linux-headers-6.1.0-28-cloud-amd64", "", "apt-get dist-upgrade"),
    (system("rocky", "9.7"), "kernel-64k-devel", "5.14.0-427.el9", "dnf upgrade"),
)
def test_headers_that_are_offered_no_more_are_a_kernel_to_upgrade(
    facts: dict[str, Any], name: str, version: str, command: str
) -> None:
    """What fresh images of clouds run into: their kernel is older than today's repositories."""
    of_node = NodePlan.from_dict(plan(facts))

    def problems(**lacking: str) -> tuple[str, ...]:
        said = result(["It is not offered."]) | {"not_offered": [lacking]}
        return with_preview(of_node, Preview.from_dict(said)).problems

    assert_says(
        problems(name=name, version=version)[1],
        "a kernel that the distribution still offers",
        f"({command}, then reboot)",
    )
    assert len(problems(name="x", version="")) == 1


def test_a_simulation_that_broke_refuses_the_node_in_its_words() -> None:
    found = fact(preview={"failed": True, "msg": "No space left on device."})
    assert found["problems"] == [
        "the transaction cannot be simulated: No space left on device. Correct it and run again"
    ]


def test_a_transaction_that_does_nothing_needs_no_words() -> None:
    empty: dict[str, Any] = {kind: [] for kind in ("install", "upgrade", "downgrade", "remove")}
    assert previewed(**empty).text == "the plan"


# ---------------------------------------------------------------- the certificate for Secure Boot


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("mok") / "mok.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=temper"]
    command += ["-keyout", str(path.with_name("key.pem")), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def der(certificate: Path) -> bytes:
    command = ["openssl", "x509", "-in", str(certificate), "-outform", "DER"]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.mark.component
def test_a_certificate_is_told_by_its_der_form_in_either_form(certificate: Path) -> None:
    expected = hashlib.sha256(der(certificate)).hexdigest()
    known = read_certificate(str(certificate))
    assert known.sha256 == expected
    assert ssl.PEM_cert_to_DER_cert(known.pem) == der(certificate)
    binary = certificate.with_suffix(".der")
    binary.write_bytes(der(certificate))
    assert read_certificate(str(binary)) == known


def test_no_certificate_is_nothing_to_know() -> None:
    assert read_certificate("") == Certificate()


def test_a_certificate_that_is_missing_refuses_the_node() -> None:
    (problem,) = fact({"nvidia_stack_mok_certificate": "/does/not/exist.pem"})["problems"]
    assert problem.startswith("nvidia_stack_mok_certificate: expected an X.509 certificate")
    assert "Errno" not in problem


# ---------------------------------------------------------------- container engines


def test_what_an_engine_refuses_is_a_problem_of_the_node() -> None:
    refused = {**result(), "refused": ["/etc/docker/daemon.json is not valid JSON;\n correct it."]}
    assert fact(preview=refused)["problems"] == ["/etc/docker/daemon.json is not valid JSON; correct it"]
