"""What the checks that measure in child processes share: from their outcomes to one result."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from validation.checks.check import Check
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, GpuIdentity, Measurement, State, TestResult, worst
from validation.model.cuda_errors import finding_of
from validation.probes import counters, gpu_samples, machine, nvidia_smi
from validation.probes.topology import port_of
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

#: GPUs are numbered as nvidia-smi numbers them.
CUDA_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

#: Reasons that hold clocks down through a fault of cooling or power supply.
SLOWDOWNS = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
#: The hardware's own slowdown, whose cause is one of these two, or is not said.
HW_SLOWDOWN, HW_CAUSES = "hw_slowdown", ("hw_thermal_slowdown", "hw_power_brake_slowdown")

#: Clocks have steps of 15 MHz, and a locked one settles on the next.
CLOCK_STEP_MHZ = 30.0
#: Of how many samples, and in which part of them, a slowdown counts; of so few only if all show it.
LEAST_SAMPLES, SLOWDOWN_SHARE = 5, 0.1
FEW_SAMPLES = 3

_CODES = {
    Ending.DIED: "process-died",
    Ending.HUNG: "process-hung",
    Ending.SLOW: "process-slow",
    Ending.UNREADABLE: "result-unreadable",
    Ending.UNKILLABLE: "process-unkillable",
}


def each_gpu(
    node: Node,
    function: str,
    parameters: dict[str, Any],
    own: Callable[[GpuIdentity], dict[str, Any]] = lambda _: {},
    *,
    reuse: bool = True,
) -> list[Request]:
    """Return one request for each GPU of the node, which is to stay near it, and its `own`."""
    return [
        Request(
            f"GPU {gpu.index}",
            function,
            "cuda",
            device=gpu.index,
            parameters=parameters | own(gpu) | {"near": gpu.pci_address},
            environment=CUDA_ENVIRONMENT,
            reuse=reuse,
        )
        for gpu in node.gpus
    ]


def stay_near(request: Request) -> None:
    """In a child, before anything is allocated: pinned memory on the wrong socket halves the rate."""
    address = request.parameters.get("near")
    if address and (near := machine.cpus_near(address)):
        os.sched_setaffinity(0, set(near) & os.sched_getaffinity(0) or os.sched_getaffinity(0))


def failures(outcomes: Iterable[ProcessOutcome]) -> list[Finding]:
    """Return a finding for each process that brought no result, unless it was stopped because of another."""
    found = []
    for outcome in outcomes:
        if outcome.ending not in _CODES:
            continue
        on_gpu = outcome.request.backend == "cuda"
        died = outcome.ending is Ending.DIED
        cuda = finding_of(outcome.problem) if on_gpu and died else None
        gpu = outcome.request.device if on_gpu else None
        found.append(
            finding(cuda, "fail", gpu=gpu, problem=outcome.problem)
            if cuda
            else finding(_CODES[outcome.ending], gpu=gpu, problem=outcome.problem)
        )
    return found


def left_out(outcomes: Sequence[ProcessOutcome]) -> Iterator[Finding]:
    """Yield a finding for each GPU that could not be measured while others were, or that CUDA calls taken."""
    for outcome in outcomes:
        name, gpu, why = outcome.request.name, outcome.request.device, outcome.measured.not_run
        if outcome.request.backend != "cuda" or not why:
            continue
        problem = why if why.startswith(name) else f"{name}: {why}"
        if cuda := finding_of(why):
            yield finding(cuda, "not-run", gpu=gpu, problem=problem)
        elif name == f"GPU {gpu}" and not all(other.measured.not_run for other in outcomes):
            yield finding("gpu-left-out", gpu=gpu, problem=problem)


def result(
    check: Check,
    outcomes: Iterable[ProcessOutcome] = (),
    *,
    measurements: Iterable[Measurement] | None = None,
    findings: Iterable[Finding] | None = None,
    details: dict[str, Any] | None = None,
    telemetry: Telemetry | None = None,
) -> TestResult:
    """Return one result from the outcomes of a test's processes and what was seen of the GPUs meanwhile.

    `measurements` and `findings` replace what would be gathered from them.
    """
    outcomes = list(outcomes)
    found = [*(failures(outcomes) if findings is None else findings), *left_out(outcomes)]
    if telemetry:
        telemetry.close()
    found += telemetry.findings() if telemetry else []
    found += [finding for outcome in outcomes for finding in outcome.measured.findings]
    gathered = [one for outcome in outcomes for one in outcome.measured.measurements]
    missing = {
        outcome.request.name: outcome.measured.not_run for outcome in outcomes if outcome.measured.not_run
    }
    state, reason = worst(finding.state for finding in found), ""
    if state is not State.FAIL and missing:
        # A test that left one GPU out has not passed.
        state = State.NOT_RUN
        reasons = set(missing.values())
        reason = (
            str(reasons.pop())
            if len(missing) == len(outcomes) and len(reasons) == 1
            else "; ".join(f"{name}: {why}" for name, why in missing.items())
        )
    notes = {
        outcome.request.name: outcome.measured.details for outcome in outcomes if outcome.measured.details
    }
    return TestResult(
        id=check.id,
        state=state,
        method=check.method,
        duration_s=0.0,  # Check.run knows
        reason=reason,
        measurements=tuple(gathered if measurements is None else measurements),
        findings=tuple(found),
        details=notes | (details or {}) | (telemetry.details() if telemetry else {}),
        digests=tuple(digest for outcome in outcomes for digest in outcome.measured.digests),
    )


def watch(node: Node) -> Telemetry:
    """Look at the GPUs of this node while a test runs; at the PCIe link only of those that copy over it."""
    reported = node.smi.gpus if isinstance(node.smi, nvidia_smi.Report) else ()
    c2c = {gpu.index for gpu in reported if node.copies_over_c2c(gpu)}
    gpus = [
        dataclasses.replace(gpu, pcie_generation_max=None, pcie_width_max=None) if gpu.index in c2c else gpu
        for gpu in node.gpus
    ]
    unseen = {gpu.index for gpu in reported if port_of(gpu, node.facts.pcie_ports) is None}
    return Telemetry(gpus, node.probe.sample, node.probe.counts, node.expectation.graphics_clock_mhz, unseen)


class Telemetry:
    """What nvidia-smi says of clocks, power, temperature and links while a test runs."""

    def __init__(
        self,
        gpus: Iterable[GpuIdentity],
        sample: Callable[[], tuple[gpu_samples.Sample, ...]],
        count: Callable[[], counters.Counts],
        locked_mhz: float | None = None,
        unseen: Container[int] = (),
    ) -> None:
        """`unseen` are GPUs whose port nobody sees: as a rule it is that of the host of this machine."""
        self._locked_mhz = locked_mhz
        self._unseen = unseen
        self._gpus = {gpu.index: gpu for gpu in gpus}
        self._sample = sample
        self._rounds: list[tuple[gpu_samples.Sample, ...]] = []
        self._moments_s: list[float] = []
        self._broken: nvidia_smi.NvidiaSmiError | None = None
        self._slowest_s = 0.0
        self._count = count
        self._before: counters.Counts | None = None
        self._grown: counters.Counts = {}
        self._uncounted = False

    def tick(self) -> None:
        """Take a sample.

        After one failure no more are tried: a nvidia-smi that hangs must not hold up the test.
        """
        if self._broken:
            return
        if self._before is None:
            self._before = self._count()  # while the processes start
        started = time.monotonic()
        try:
            self._rounds.append(self._sample())
        except nvidia_smi.NvidiaSmiError as error:
            self._broken = error
        else:
            self._moments_s.append(started)
            self._slowest_s = max(self._slowest_s, time.monotonic() - started)

    def close(self) -> None:
        """Look a last time: at what came between the last sample and the end, and what counters grew by."""
        self.tick()
        if self._before and not self._broken:
            after = self._count()
            self._grown = counters.growth(self._before, after)
            self._uncounted = not after

    def details(self) -> dict[str, Any]:
        """For TestResult.details."""
        grown = {f"GPU {index}": counts for index, counts in self._grown.items()}
        unread = self._uncounted or (self._before == {} and not self._broken)
        slow_s = self._slowest_s if self._slowest_s > nvidia_smi.SLOW_SAMPLE_S else 0.0
        seen = [
            one | ({"slow_link": words} if gpu and (words := _slow_link(one, gpu)) else {})
            for one in gpu_samples.summary(self._rounds)
            for gpu in [self._gpus.get(one["device"])]
        ]
        course = gpu_samples.series(self._moments_s, self._rounds)
        return (
            {"telemetry": seen}
            | ({"telemetry_series": course} if course else {})
            | ({"counters": grown} if grown else {})
            | ({"telemetry_problem": str(self._broken)} if self._broken else {})
            | ({"telemetry_slow": f"nvidia-smi took {slow_s:.0f} s; see persistence mode"} if slow_s else {})
            | ({"counters_problem": "nvidia-smi does not say them"} if unread else {})
        )

    def findings(self) -> list[Finding]:
        """Return what only shows under load.

        Links and memory that err, a link that stays slow, a GPU that goes.
        """
        found = counters.findings(self._grown) + list(self._lost())
        for seen in gpu_samples.summary(self._rounds):
            gpu = self._gpus.get(seen["device"])
            if gpu is None:
                continue
            if _slow_link(seen, gpu):
                found.append(
                    finding(
                        "pcie-link-slow-under-load",
                        gpu=gpu.index,
                        state=State.DEGRADED if gpu.index in self._unseen else State.FAIL,
                        generation=seen["pcie_generation_max"] or 0,
                        width=seen["pcie_width_max"] or 0,
                        generation_max=gpu.pcie_generation_max,
                        width_max=gpu.pcie_width_max,
                    )
                )
            if seen["ecc_uncorrected_new"]:
                found.append(finding("ecc-under-load", gpu=gpu.index, count=seen["ecc_uncorrected_new"]))
            found += _slowdowns(seen)
            clock = seen["sm_clock_mhz_median"]
            if self._locked_mhz and clock and clock > self._locked_mhz + CLOCK_STEP_MHZ:
                found.append(
                    finding("clocks-not-locked", gpu=gpu.index, clock_mhz=clock, locked_mhz=self._locked_mhz)
                )
        return found

    def _lost(self) -> Iterator[Finding]:
        # A driver that does not know a field says so at the first sample: nothing is wrong with the node.
        if self._broken and (self._rounds or self._broken.kind not in {"other", "missing"}):
            yield finding(
                "telemetry-lost",
                "lost" if self._broken.kind in {"lost", "no-devices", "no-driver"} else "silent",
                reason=self._broken,
            )
        if self._rounds:
            still_there = {one.index for one in self._rounds[-1]}
            for index in sorted({one.index for one in self._rounds[0]} - still_there):
                yield finding("gpu-vanished", gpu=index)


def _slow_link(seen: dict[str, Any], gpu: GpuIdentity) -> str:
    """`PCIe link generation 3 of 5`: what the link was below what it can do, even while its GPU worked."""
    parts = [
        f"{what}{found:.0f} of {sign}{possible}"
        for what, sign, found, possible in (
            ("generation ", "", seen["pcie_generation_max"], gpu.pcie_generation_max),
            ("x", "x", seen["pcie_width_max"], gpu.pcie_width_max),
        )
        if found and possible and found < possible
    ]
    return f"PCIe link {', '.join(parts)}" if parts else ""


def _slowdowns(seen: dict[str, Any]) -> Iterator[Finding]:
    """Faults of cooling and power supply that hold a GPU down while it works: a moment of it is none."""
    samples, shares = seen["samples"], seen["event_reason_shares"]
    for reason in SLOWDOWNS:
        if _lasts(share := shares.get(reason, 0.0), samples):
            yield finding(reason.replace("_", "-"), "load", gpu=seen["device"], share=share)
    share = shares.get(HW_SLOWDOWN, 0.0) - sum(shares.get(cause, 0.0) for cause in HW_CAUSES)
    # It also shows for a moment when clocks change (nvml.h), so one sample is not enough, nor are two.
    if _lasts(share, samples) and round(share * samples) >= FEW_SAMPLES:
        yield finding("hw-slowdown", "load", gpu=seen["device"], share=share)


def _lasts(share: float, samples: int) -> bool:
    """Return whether what showed in this part of the samples is more than a moment."""
    return samples >= FEW_SAMPLES and share > (SLOWDOWN_SHARE if samples >= LEAST_SAMPLES else 0.99)
