"""Environments and machines for the tests on the stand-in, and what stands at the end of `make cuda-test`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cuda.environment import VERSIONS, Environment, prepare
from tests.lab.cuda.machine import Machine
from tests.lab.settings import Lab

#: Tests of the payload that do not run here as they are, and why.
CANNOT = {
    "gpu_amp, gpu_step_memory, gpu_batch, gpu_convolution, gpu_parallel_training": "their models take up to "
    "13 GB of a GPU, and minutes of a host for each step; their code runs on small ones",
    "gpu_sharded_training": "its model is as large; its code has run on CPUs only",
    "gpu_profile": "no kernel runs, so that CUPTI has nothing to record: a finding, on the small model",
    "gpu_all_reduce_nvls": "NCCL's algorithms are not stood in for",
    "gpu_container": "the container engine's GPUs are not those of this machine",
    "a fabric of real machines": "two nodes of this machine meet over TCP, and compute in a file they share",
}
PROVES = (
    "Nothing here proves a kernel, a time, a rate or a transport: operators are computed by torch's kernels "
    "for the CPU, products and collectives by the stand-in; times come from a model. That waits for a GPU."
)


@pytest.fixture(scope="session", params=VERSIONS)
def environment(request: pytest.FixtureRequest) -> Environment:
    """Each torch, one after the other."""
    return prepare(Lab.from_environment(), request.param)


@pytest.fixture(scope="session")
def newest() -> Environment:
    """The newest torch: for what does not depend on it."""
    return prepare(Lab.from_environment(), VERSIONS[-1])


@pytest.fixture(scope="session")
def oldest() -> Environment:
    """The oldest torch: it makes no context when a device is set."""
    return prepare(Lab.from_environment(), VERSIONS[0])


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    """Make a machine, once in a test."""

    def make(environment: Environment, gpus: int = 1, **settings: str | float) -> Machine:
        return Machine(tmp_path / "machine", environment, gpus, settings)

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what ran, what passed, and what cannot run here."""
    say = terminalreporter.write_line
    reports = [
        report for kind in ("passed", "failed", "error") for report in terminalreporter.stats.get(kind, ())
    ]
    ran = [report for report in reports if "/cuda/" in report.nodeid]
    if not ran:
        return
    terminalreporter.section("The payload on a stand-in for CUDA")
    say(f"torch {' and '.join(VERSIONS)}, CUDA builds; {len(ran)} tests ran, of which passed:")
    for report in ran:
        if report.passed:
            say(f"  {report.nodeid.partition('::')[2]}")
    say("Cannot run here:")
    for test, reason in CANNOT.items():
        say(f"  {test}: {reason}")
    say(PROVES)
