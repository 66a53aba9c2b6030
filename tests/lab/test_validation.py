"""Validation on real nodes: every simulated fault is found, every node judged, nothing left running.

One lab of two provisioned nodes for the whole file.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import on_node
from tests.lab.gpu_simulator.faults import FAULTS
from tests.lab.settings import CHECKOUT, Lab
from tests.waiting import wait_until
from validation.cli import archive
from validation.model.contract import State, node_result

pytestmark = pytest.mark.lab

LAB = Lab(name="measure")
FIRST, SECOND = LAB.nodes(2)  # eight H100 with NVSwitches, one L4
ENVIRONMENT = {**os.environ, "LAB_NAME": LAB.name, "LAB_NODES": "2", "ANSIBLE_NOCOLOR": "1"}
RUN_TIMEOUT_S = 900
PAYLOAD_PYTHON = "/opt/temper/venv/bin/python3"

#: What health says of each fault of the simulator.
CODES = {
    "no-driver": "driver-no-driver",
    "gpu-lost": "driver-lost",
    "ecc-errors": "ecc-uncorrected",
    "row-remap-failure": "row-remap-failure",
    "throttling": "hw-thermal-slowdown",
    "pcie-gen1": "pcie-link-down-trained",
    "fabric-not-ready": "fabric-not-ready",
    "compute-process": "gpu-busy",
}


def lab_command(*arguments: str, given: bytes | None = None) -> str:
    """Run one of the lab's own commands; the nodes' machines must not be children of this process."""
    command = [sys.executable, "-m", "tests.lab", *arguments]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=ENVIRONMENT, input=given, stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


def playbook(name: str, *arguments: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run a playbook on the lab with extra variables."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), name, *arguments]
    command += ["--extra-vars", json.dumps(variables)]
    return subprocess.run(
        command, cwd=CHECKOUT, env=ENVIRONMENT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )


def validate(reports: Path, *arguments: str, **variables: object) -> tuple[int, str, dict[str, Any]]:
    """Run validate.yml; its exit status, its output in one line, and the summary that it wrote."""
    done = playbook(
        "playbooks/validate.yml", *arguments, gpu_validation_reports_directory=str(reports), **variables
    )
    summary = reports / "latest" / "summary.json"
    assert summary.exists(), done.stdout + done.stderr
    return done.returncode, " ".join(done.stdout.split()), json.loads(summary.read_text())


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two nodes with a driver, and nothing left of them afterwards."""
    lab_command("down")
    lab_command("up")
    try:
        done = playbook("site.yml", "--tags", "provision,tune")
        assert done.returncode == 0, done.stdout + done.stderr
        yield
    finally:
        lab_command("down")


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any], Path]:
    """The first validation, with what the lab requires, on more nodes than Ansible talks to at once."""
    reports = tmp_path_factory.mktemp("reports")
    between = {"gpu_validation_fabric": True, "gpu_validation_fabric_library": "gloo"}
    return *validate(reports, "--forks=1", **between), reports


def test_stages_that_have_nothing_to_do_share_one_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the one that reads the node. What has drifted in a later stage is seen, and costs one more."""
    calls = tmp_path / "calls"
    monkeypatch.setitem(ENVIRONMENT, "ANSIBLE_SSH_EXECUTABLE", str(CHECKOUT / "tests/bench/counting_ssh"))
    monkeypatch.setitem(ENVIRONMENT, "TEMPER_SSH_CALLS", str(calls))

    def again() -> tuple[int, int]:
        calls.write_bytes(b"")
        done = playbook("site.yml", "--skip-tags", "harden,validate")
        assert done.returncode == 0, done.stdout + done.stderr
        changed = re.findall(r"changed=(\d+)", done.stdout)
        return len(calls.read_bytes()), sum(map(int, changed))

    assert again() == (4, 0)
    on_node(SECOND, "rm /etc/sysctl.d/95-temper-tuning.conf")
    assert again() == (5, 1)


@pytest.mark.smoke
def test_nodes_that_did_what_is_required_pass_and_the_rest_is_said_not_to_have_run(
    first_run: tuple[int, str, dict[str, Any], Path],
) -> None:
    status, output, summary, _ = first_run
    assert status == 0, output
    assert summary["state"] == "pass"
    for node in summary["nodes"]:
        states = {test["id"]: test["state"] for test in node["tests"]}
        assert states == dict.fromkeys(
            ["health", "platform", "cpu_matmul", "cpu_copy", "cpu_all_reduce", "health_after", "fabric"],
            "pass",
        ) | dict.fromkeys(
            ["torch", "gpu_container", "gpu_matmul", "gpu_memory", "gpu_transfer", "gpu_all_reduce"],
            "not-run",
        )
    assert (
        "Not run on any node: torch, gpu_container, gpu_matmul, gpu_memory, gpu_transfer, gpu_all_reduce."
        in output
    )
    assert "is built without CUDA" in output


def test_the_report_holds_each_nodes_own_result(first_run: tuple[int, str, dict[str, Any], Path]) -> None:
    _, _, _, reports = first_run
    for node, gpus in ((FIRST, 8), (SECOND, 1)):
        result = node_result(json.loads((reports / "latest" / "results" / f"{node.name}.json").read_text()))
        assert (result.node, len(result.gpus)) == (node.name, gpus)


def test_a_required_test_that_cannot_run_fails_its_node_and_measuring_changes_nothing(
    first_run: tuple[int, str, dict[str, Any], Path], tmp_path: Path
) -> None:
    assert first_run[0] == 0
    required = ["health", "gpu_matmul"]
    status, output, summary = validate(
        tmp_path, "--limit", SECOND.name, gpu_validation_required_tests=required
    )
    assert status != 0
    assert "gpu_matmul is required and was not run: torch 2." in output
    assert {node["node"]: node["state"] for node in summary["nodes"]} == {SECOND.name: "fail"}
    assert summary["exit_status"] == 2
    assert "changed=0" in output.partition("PLAY RECAP")[2]


def test_a_node_that_cannot_be_reached_is_in_the_report_with_the_reason(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.yml"
    # An address of the lab's network that no node has.
    address = SECOND.address.rpartition(".")[0] + ".250"
    stranger.write_text(json.dumps({"gpu_nodes": {"hosts": {"gpu99": {"ansible_host": address}}}}))
    arguments = ["-i", "inventory/lab", "-i", str(stranger), "--limit", f"{SECOND.name},gpu99"]
    status, output, summary = validate(tmp_path, *arguments)
    assert status != 0
    assert {node["node"]: node["state"] for node in summary["nodes"]} == {
        SECOND.name: "pass",
        "gpu99": "not-run",
    }
    assert "gpu99" in summary["sentence"]
    assert "cannot be reached" in output


# Ansible's wrapper ends the run, or else, where its kill has missed, the run ends by itself.
@pytest.mark.parametrize("limit", ["gpu_validation_timeout_s", "__gpu_validation_end_s"])
def test_a_run_that_takes_too_long_is_given_up_and_leaves_no_process(limit: str, tmp_path: Path) -> None:
    status, _, summary = validate(tmp_path, "--limit", SECOND.name, **{limit: 3})
    assert status != 0
    (node,) = summary["nodes"]
    assert node["state"] == "not-run"
    assert "ended after gpu_validation_timeout_s" in node["reasons"][0]
    running = "ps -eo args | grep -c '[v]alidation'; true"
    wait_until(
        lambda: not int(lab_command("shell", SECOND.name, "sh", "-c", running)),
        "the payload's processes are gone",
        150,
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("shell", SECOND.name, "systemctl", "poweroff", "--force", "--force"), "the connection broke"),
        (("reboot", SECOND.name), "the node booted while it was measured"),
    ],
)
def test_a_node_that_goes_down_while_it_is_measured_is_named_soon(
    command: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    running = "ps -eo args | grep -c '[v]alidation.pyz run'; true"
    done: list[tuple[int, str, dict[str, Any]]] = []
    arguments = {"gpu_validation_plan": "standard", "__gpu_validation_grace_s": 20}
    run = threading.Thread(
        target=lambda: done.append(validate(tmp_path, "--limit", SECOND.name, **arguments))
    )
    run.start()
    try:
        wait_until(
            lambda: int(lab_command("shell", SECOND.name, "sh", "-c", running)), "the payload starts", 120
        )
        lab_command(*command)
        # Far less than the hour that a run may take.
        run.join(240)
        assert not run.is_alive()
    finally:
        lab_command("up")
        run.join()
    ((status, _, summary),) = done
    assert status != 0
    (node,) = summary["nodes"]
    assert node["state"] == "not-run"
    assert reason in node["reasons"][0]


def test_the_only_node_that_goes_down_before_it_is_measured_has_a_report(tmp_path: Path) -> None:
    deadly = b"#!/bin/sh\nsystemctl poweroff --force --force\nsleep 60\n"
    write = "cat > /run/python3; chmod +x /run/python3"
    lab_command("shell", SECOND.name, "sh", "-c", write, given=deadly)
    try:
        status, _, summary = validate(
            tmp_path, "--limit", SECOND.name, gpu_validation_python="/run/python3", __gpu_validation_grace_s=5
        )
    finally:
        lab_command("up")
    assert status != 0
    (node,) = summary["nodes"]
    assert node["state"] == "not-run"
    assert "the connection broke" in node["reasons"][0]


def test_check_mode_says_what_would_be_measured_and_measures_nothing(tmp_path: Path) -> None:
    done = playbook(
        "playbooks/validate.yml",
        "--check",
        "--diff",
        gpu_validation_reports_directory=str(tmp_path / "reports"),
    )
    assert done.returncode == 0, done.stdout
    assert f"{FIRST.name} would run plan quick" in " ".join(done.stdout.split())
    assert not (tmp_path / "reports").exists()


def test_every_fault_of_the_simulator_has_a_code() -> None:
    # A module that does not build is the installation's to find: there is no driver to be ill then.
    assert CODES.keys() == FAULTS.keys() - {"module-build-fails"}


@pytest.fixture(scope="module")
def expectation(first_run: tuple[int, str, dict[str, Any], Path]) -> bytes:
    """What the controller expects of the first node, without required tests."""
    expectations = json.loads((first_run[3] / "latest" / "expectations.json").read_text())
    return json.dumps(expectations["nodes"][FIRST.name] | {"required_tests": []}).encode()


@pytest.fixture(scope="module")
def payload() -> str:
    """The payload on the first node."""
    path = "/run/temper-validation.pyz"
    lab_command("shell", FIRST.name, "sh", "-c", f"cat > {path}", given=archive.build())
    return path


SMOKE = {"ecc-errors": pytest.mark.smoke}


@pytest.mark.parametrize("fault", [pytest.param(code, marks=SMOKE.get(code, ())) for code in sorted(CODES)])
def test_health_finds_a_fault_and_only_that(fault: str, expectation: bytes, payload: str) -> None:
    command = f"{PAYLOAD_PYTHON} {payload} run --test=health --expect=- --output=- || test $? -eq 1"
    lab_command("fault", FIRST.name, fault, "on")
    try:
        output = lab_command("shell", FIRST.name, "sh", "-c", command, given=expectation)
    finally:
        lab_command("fault", FIRST.name, fault, "off")
    (test,) = node_result(json.loads(output)).tests
    assert {finding.code for finding in test.findings} == {CODES[fault]}
    # Nobody sees the port above a card here, as in a virtual machine: a slow link may be by design.
    degraded = fault in ("compute-process", "pcie-gen1")
    assert test.state is (State.DEGRADED if degraded else State.FAIL)
