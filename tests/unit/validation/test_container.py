"""A container with GPUs, on engines that are made up: what they answer decides, nothing is left."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.executables import executable
from tests.unit.validation.samples import is_running, node
from tests.waiting import wait_until
from validation.checks import container
from validation.checks.container import GpuContainer
from validation.model.contract import State, TestResult
from validation.processes.pool import ROOT

pytestmark = pytest.mark.component


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def engine(programs: Path, name: str, images: str, run: str, containers: str = "true") -> None:
    """A container engine with these images and containers; it answers `run` so, and notes all questions."""
    executable(
        programs / name,
        f'echo "$@" >> {programs}/asked\n'
        f'case "$1" in\nimage) {images} ;;\nrun) {run} ;;\nps) {containers} ;;\nesac',
    )


def result() -> TestResult:
    return GpuContainer().run(node())


TWO_GPUS = "echo 'GPU 0: NVIDIA H100'; echo 'GPU 1: NVIDIA H100'"


@pytest.mark.parametrize(
    ("name", "gpus"), [("docker", "--gpus all"), ("podman", "--device nvidia.com/gpu=all")]
)
def test_a_container_that_sees_every_gpu_passes_and_is_removed(name: str, gpus: str, programs: Path) -> None:
    engine(programs, name, "echo 0123abcd", TWO_GPUS)
    found = result()
    assert (found.state, found.findings) == (State.PASS, ())
    asked = (programs / "asked").read_text()
    assert gpus in asked
    assert "--network none" in asked
    assert "pull" not in asked
    assert asked.splitlines()[-1].startswith("rm --force temper-validation-")


def test_a_container_that_sees_fewer_gpus_is_a_failure(programs: Path) -> None:
    engine(programs, "docker", "echo 0123abcd", "echo 'GPU 0: NVIDIA H100'")
    (finding,) = result().findings
    assert (finding.code, finding.state) == ("container-gpu-count", State.FAIL)
    assert finding.text == "a container of docker sees 1 GPUs, the node has 2"


def test_an_engine_without_a_program_to_start_a_container_with_is_named(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "containerd.sock"
    monkeypatch.setattr(container, "SERVED", {str(path): "RKE2 or K3s"})
    assert container.find_engine(1.0)[1] == "no container engine is installed"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        assert "RKE2 or K3s runs here" in container.find_engine(1.0)[1]


def test_an_engine_that_cannot_give_gpus_says_why(programs: Path) -> None:
    engine(programs, "docker", "echo 0123abcd", "echo 'could not select device driver' >&2; exit 125")
    (finding,) = result().findings
    assert (finding.code, finding.state) == ("container-no-gpu", State.FAIL)
    assert "could not select device driver" in finding.text


NO_LIBRARY = "echo 'exec /usr/bin/nvidia-smi: no such file or directory' >&2; exit 127"


def test_an_image_in_which_nothing_runs_is_passed_over(programs: Path) -> None:
    only_one = f'case "$*" in *pause*) {NO_LIBRARY} ;; *) {TWO_GPUS} ;; esac'
    engine(programs, "docker", "echo pause ubuntu", only_one)
    found = result()
    assert (found.state, found.details["image"]) == (State.PASS, "ubuntu")


def test_images_in_which_nothing_runs_are_no_fault_of_the_node(programs: Path) -> None:
    engine(programs, "docker", "echo pause pause", NO_LIBRARY)
    found = result()
    assert found.state is State.NOT_RUN
    assert found.reason.startswith("no image that docker has can run a program of the node; it says: exec")
    assert (programs / "asked").read_text().count("--rm") == 1


def test_a_toolkit_that_brings_nothing_is_a_failure(programs: Path) -> None:
    engine(programs, "docker", "echo ubuntu", "echo 'exec: \"nvidia-smi\": not found in $PATH' >&2; exit 127")
    (finding,) = result().findings
    assert finding.code == "container-no-gpu"


def test_a_container_that_hangs_is_a_failure_and_is_removed(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "TIMEOUT_S", 1.0)
    engine(programs, "docker", "echo 0123abcd", "exec /bin/sleep 60")
    (finding,) = result().findings
    assert "no answer within 1 s" in finding.text
    assert "rm --force" in (programs / "asked").read_text()


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (None, "no container engine is installed"),
        ("true", "docker has no image, and none is pulled for a test"),
        (
            "echo 'Cannot connect to the Docker daemon' >&2; exit 1",
            "docker: Cannot connect to the Docker daemon",
        ),
    ],
)
def test_without_engine_daemon_or_image_it_is_not_run(
    images: str | None, reason: str, programs: Path
) -> None:
    if images is not None:
        engine(programs, "docker", images, "true")
    found = result()
    assert (found.state, found.reason) == (State.NOT_RUN, reason)


def test_an_engine_that_this_user_may_not_run_is_passed_over(programs: Path) -> None:
    (programs / "docker").write_text("#!/bin/sh\n")
    assert container.find_engine(10.0) == (None, "docker: Permission denied")
    engine(programs, "podman", "echo 0123abcd", TWO_GPUS)
    assert result().details["engine"] == "podman"


def test_an_engine_with_an_image_is_taken_before_one_without(programs: Path) -> None:
    engine(programs, "docker", "true", "true")
    engine(programs, "podman", "echo 0123abcd", TWO_GPUS)
    assert result().details["engine"] == "podman"


def test_without_a_driver_no_container_is_started(programs: Path) -> None:
    engine(programs, "docker", "echo 0123abcd", TWO_GPUS)
    assert GpuContainer().run(node(loaded_driver=None)).state is State.NOT_RUN
    assert not (programs / "asked").exists()


def test_what_a_killed_run_left_is_removed_and_nothing_else(programs: Path) -> None:
    with subprocess.Popen(["/bin/true"]) as gone:
        pass
    names = f"temper-validation-{gone.pid} temper-validation-{os.getpid()} temper-validation-db web"
    engine(programs, "docker", "echo 0123abcd", TWO_GPUS, f"echo {names}")
    assert result().state is State.PASS
    removed = [line for line in (programs / "asked").read_text().splitlines() if line.startswith("rm ")]
    assert removed[0] == f"rm --force temper-validation-{gone.pid}"
    assert len(removed) == 2  # and its own


def test_an_engine_is_ended_with_a_run_that_is_killed(programs: Path) -> None:
    note = programs / "pid"
    hang = f"echo $$ > {note}.new; /bin/mv {note}.new {note}; exec /bin/sleep 600"
    engine(programs, "docker", hang, "true")
    run = [
        sys.executable,
        "-c",
        "from tests.unit.validation.samples import node; "
        "from validation.checks.container import GpuContainer; GpuContainer().run(node())",
    ]
    with subprocess.Popen(run, cwd=ROOT) as process:
        wait_until(note.exists, "docker was asked")
        process.kill()
    wait_until(lambda: not is_running(int(note.read_text())), "docker ends with the run")
