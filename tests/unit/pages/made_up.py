"""A made-up fleet of H100 nodes for tests, benchmark and screenshots: no number here was measured.

The same seed gives the same fleet. Faults are those that the report is for: a slow GPU, one that throttles, a
bad link between two GPUs, a node that was refused, one without a result.
"""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from typing import TYPE_CHECKING, Any

from temper.compliance.model import (
    SCHEMA_VERSION,
    Change,
    Changed,
    ControlResult,
    NodeStatement,
    Statement,
    Verdict,
    WaivedBy,
)
from temper.compliance.model import State as Compliance
from temper.judge import cohort
from temper.report.inputs import Metric, PastValue, Report, Validation, metric_of
from temper.report.origin import Origin
from validation.checks.registry import CHECKS, HEADLINES
from validation.findings.catalogue import finding
from validation.model import gpu_models
from validation.model.contract import (
    RESULT_VERSION,
    GpuIdentity,
    Machine,
    Measurement,
    NodeResult,
    State,
    TestResult,
    encode,
)
from validation.model.expectations import Expectation, ExpectedGpus, References
from validation.verdict.judge import judge_fleet, judge_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temper.report.inputs import Past
    from validation.verdict.verdicts import FleetVerdict

LABEL = "made-up fleet: no number was measured"
MIB = 1 << 20
GPUS = 8
PEAK_GB_S = 480.0
SLOW, THROTTLING, BAD_LINK, REFUSED, SILENT = "gpu-003", "gpu-007", "gpu-011", "gpu-016", "gpu-020"
CONTROLS = (
    ("ssh_hardening/sshd", "sshd has its settings in force"),
    ("firewall/firewall", "The firewall is in force, and at every boot"),
    ("nvidia_stack/package:set", "Packages are installed at their versions, and held"),
    ("nvidia_stack/driver:nvidia", "The driver is loaded, in every kernel, and proven"),
    ("gpu_settings/gpu", "Clocks, power limit and persistence of the GPUs"),
    ("os_tuning/sysctl:vm.swappiness", "The kernel swaps late"),
    ("kernel-modules-unused", "File systems that nobody uses cannot be mounted"),
    ("accounts-umask", "New files are not for everybody"),
    ("node/reboot", "The node runs what is installed"),
    ("validation/last", "Validated within 30 days, with the driver that is loaded"),
)


@cache
def references() -> References:
    """What the table of GPU models has of these, as a plan sends it."""
    return gpu_models.references(encode(gpu_models.available()), ["h100_sxm_80gb", "a100_sxm_80gb"])


def names(count: int) -> list[str]:
    """Names of nodes."""
    return [f"gpu-{number:03}" for number in range(1, count + 1)]


class Node:
    """Makes the result of one node."""

    def __init__(self, name: str, *, plan: str = "standard") -> None:
        self.name, self.plan, self._random = name, plan, random.Random(name)
        self.gpus = tuple(
            GpuIdentity(
                index,
                "NVIDIA H100 80GB HBM3",
                f"GPU-{self._random.getrandbits(32):08x}-{name}-{index}",
                f"0000:{0x1B + 0x11 * index:02x}:00.0",
                "2330",
                5,
                16,
            )
            for index in range(GPUS)
        )

    def number(
        self, name: str, value: float, device: int | None = None, scatter: float = 0.008, **conditions: Any
    ) -> Measurement:
        """A number around a value."""
        found = value * (1 + self._random.gauss(0, scatter))
        spread = abs(self._random.gauss(0.01, 0.006))
        return Measurement(name, round(found, 4), 20, round(spread, 4), device, conditions)

    def each_gpu(self, name: str, value: float, **conditions: Any) -> Iterator[Measurement]:
        """A number of every GPU."""
        for gpu in self.gpus:
            slow = 0.86 if (self.name, gpu.index) == (SLOW, 5) and name.endswith("tflops") else 1.0
            yield self.number(name, value * slow, gpu.index, **conditions)

    def telemetry(self, seconds: int) -> dict[str, Any]:
        """What nvidia-smi would say during a test."""
        series, seen = [], []
        for gpu in self.gpus:
            hot = (self.name, gpu.index) == (THROTTLING, 2)
            ramp = [min(1.0, 0.3 + step / 8) for step in range(seconds)]
            held = [hot and step > seconds // 2 for step in range(seconds)]
            clocks = [1410.0 if held[step] else 1755.0 - 15 * (gpu.index % 2) for step in range(seconds)]
            power = [round(110 + 580 * ramp[step] - (150 if held[step] else 0), 1) for step in range(seconds)]
            heat = [round(34 + (52 if hot else 33) * ramp[step] + gpu.index % 3) for step in range(seconds)]
            reasons = [
                ["sw_power_cap"] * (step > 9) + ["hw_slowdown", "hw_thermal_slowdown"] * held[step]
                for step in range(seconds)
            ]
            series.append(
                {
                    "device": gpu.index,
                    "seconds": [float(step) for step in range(seconds)],
                    "sm_clock_mhz": clocks,
                    "power_w": power,
                    "temperature_c": heat,
                    "event_reasons": reasons,
                }
            )
            shares = {"sw_power_cap": 0.7} | (
                {"hw_slowdown": 0.47, "hw_thermal_slowdown": 0.47} if hot else {}
            )
            seen.append(
                {
                    "device": gpu.index,
                    "samples": seconds,
                    "sm_clock_mhz_median": sorted(clocks)[seconds // 2],
                    "power_w_max": max(power),
                    "temperature_c_max": max(heat),
                    "pcie_generation_max": 5,
                    "pcie_width_max": 16,
                    "ecc_uncorrected_new": 0,
                    "event_reason_shares": shares,
                }
            )
        return {"telemetry": seen, "telemetry_series": series}

    def result(self) -> NodeResult:
        """All of it."""
        return NodeResult(
            RESULT_VERSION,
            self.name,
            self.plan,
            "2026-11-22T09:14:00+00:00",
            1187.0 if self.plan == "standard" else 51.0,
            Machine(
                self.name,
                "Debian GNU/Linux 12 (bookworm)",
                "6.1.0-41-amd64",
                "Intel Xeon Platinum 8480+",
                224,
                2 << 40,
                "3.11.2",
                "2.13.0+cu130",
                "580.95.05",
            ),
            self.gpus,
            tuple(self._tests()),
        )

    def _tests(self) -> Iterator[TestResult]:
        square = {"m": 8192, "n": 8192, "k": 8192}
        matmul = [
            one
            for dtype, rate in (
                ("fp32", 51.0),
                ("tf32", 372.0),
                ("fp16", 726.0),
                ("bf16", 728.0),
                ("fp8", 1288.0),
            )
            for one in self.each_gpu(f"{dtype}_tflops", rate, **square, dtype=dtype)
        ]
        throttles = self.name == THROTTLING
        hot = (finding("hw-thermal-slowdown", "load", gpu=2, share=0.47),) if throttles else ()
        yield self.test("health")
        yield self.test("platform")
        yield self.test("torch")
        yield TestResult(
            "gpu_container",
            State.NOT_RUN,
            1,
            0.0,
            "neither Docker, Podman nor nerdctl has an image of its own",
        )
        yield self.test(
            "cpu_matmul",
            self.number("fp32_gflops", 5200, m=4096, n=4096, k=4096, dtype="fp32"),
        )
        yield self.test("cpu_copy", self.number("copy_gb_s", 310, size_bytes=256 * MIB))
        yield self.test("gpu_matmul", *matmul, findings=hot, details=self.telemetry(24))
        yield self.test(
            "gpu_memory",
            *self.each_gpu("memory_copy_gb_s", 2905, size_bytes=512 * MIB),
            *self.each_gpu("memory_triad_gb_s", 2968, size_bytes=512 * MIB),
            details={f"GPU {gpu.index}": {"pattern_bytes": 76 << 30} for gpu in self.gpus},
        )
        yield self.test(
            "gpu_transfer",
            *self.each_gpu("h2d_pinned_gb_s", 55.2, size_bytes=512 * MIB),
            *self.each_gpu("d2h_pinned_gb_s", 54.9, size_bytes=512 * MIB),
        )
        if self.plan == "standard":
            yield from self._more()

    def _more(self) -> Iterator[TestResult]:
        bad = {(3, 6), (6, 3)} if self.name == BAD_LINK else set()
        yield self.test(
            "gpu_peers",
            *(
                self.number(
                    "peer_gb_s",
                    24.0 if (one.index, two.index) in bad else 372.0,
                    one.index,
                    size_bytes=256 * MIB,
                    to=two.index,
                )
                for one in self.gpus
                for two in self.gpus
                if one is not two
            ),
        )
        sizes = [64 * MIB << step for step in (0, 4, 6, 7, 8)]
        yield self.test(
            "gpu_all_reduce",
            *(
                self.number(name, peak * size / (size + 90 * MIB), size_bytes=size, ranks=GPUS)
                for name, peak in (
                    ("busbw_gb_s", PEAK_GB_S),
                    ("all_gather_busbw_gb_s", 362.0),
                    ("reduce_scatter_busbw_gb_s", 358.0),
                    ("all_to_all_busbw_gb_s", 331.0),
                )
                for size in sizes
            ),
        )
        workers = (0, 1, 2, 4, 8, 16, 32)
        loading = [
            self.number(
                "loading_samples_s",
                (1 + pinned * 0.06) * min(11800, 410 * max(1, count)),
                scatter=0.004,
                workers=count,
                pin_memory=pinned,
            )
            for pinned in (0, 1)
            for count in workers
        ]
        best = max(loading, key=lambda one: one.value)
        advice = f"num_workers=32, pin_memory=True is enough here: {best.value:.0f} samples/s"
        yield self.test(
            "data_loading",
            *loading,
            dataclasses.replace(best, name="best_loading_samples_s", conditions={}),
            details={"the loader": {"advice": {"DataLoader": [advice]}}},
        )
        every = [f"GPU {gpu.index}" for gpu in self.gpus]
        yield self.test(
            "gpu_amp",
            *(
                one
                for way, rate in (("fp32", 21.0), ("tf32", 96.0), ("bf16", 171.0))
                for one in self.each_gpu(f"{way}_training_samples_s", rate, batch=8)
            ),
            details={who: {"bf16_gain_over": {"fp32": 8.14, "tf32": 1.78}} for who in every},
        )
        yield self.test(
            "gpu_step_memory",
            *(
                one
                for way, size in (("plain", 14.2), ("accumulated", 5.1), ("checkpointed", 4.4))
                for one in self.each_gpu(f"{way}_step_gb", size, scatter=0.0, batch=8)
            ),
            details={
                who: {
                    "memory_over_plain": {"accumulated": 0.359, "checkpointed": 0.31},
                    "speed_over_plain": {"accumulated": 0.93, "checkpointed": 0.76},
                }
                for who in every
            },
        )
        yield self.test("gpu_batch", *self.each_gpu("largest_batch_samples", 212, scatter=0.0))
        yield self.test(
            "gpu_profile",
            *(
                one
                for share, part in (("computing", 0.914), ("loading", 0.042), ("idle", 0.061))
                for one in self.each_gpu(f"{share}_share", part, scatter=0.0)
            ),
        )

    def test(self, name: str, *measurements: Measurement, **changes: Any) -> TestResult:
        """A test that ran."""
        found = changes.get("findings", ())
        state = max((one.state for one in found), key=lambda one: one.severity, default=State.PASS)
        return TestResult(
            name,
            state,
            CHECKS[name].method,
            round(self._random.uniform(5, 60), 1),
            measurements=measurements,
            **changes,
        )


def result(name: str, plan: str = "standard") -> NodeResult:
    """The result of a node."""
    return Node(name, plan=plan).result()


def expectation(**changes: Any) -> Expectation:
    """Eight H100."""
    return Expectation(
        required_tests=("health", "gpu_matmul"),
        gpus=(ExpectedGpus("h100_sxm_80gb", "H100 SXM 80 GB", GPUS),),
        references=references(),
        **changes,
    )


def judged(results: dict[str, NodeResult], nodes: list[str]) -> FleetVerdict:
    """The verdict on them. Nodes without a result were refused, or are silent."""
    among = cohort.compare(results)
    refused = "refused by preflight: the driver 580 does not know this kernel (6.18)"
    return judge_fleet(
        judge_node(
            name,
            results.get(name),
            expectation(not_run=refused if name == REFUSED else None),
            HEADLINES,
            comparisons=among.get(name),
        )
        for name in nodes
    )


def past(result: NodeResult) -> Past:
    """Eight earlier runs of a node, a little faster each year ago."""
    chance = random.Random(f"past {result.node}")
    found: dict[tuple[Metric, str], list[PastValue]] = {}
    uuids: dict[int | None, str] = {gpu.index: gpu.uuid for gpu in result.gpus}
    for test in result.tests:
        for one in test.measurements:
            usual = one.value / (
                0.86 if (result.node, one.device) == (SLOW, 5) and one.name.endswith("tflops") else 1.0
            )
            values = [
                PastValue(
                    f"2026-{month:02}-20T09:00:00+00:00", round(usual * (1 + chance.gauss(0, 0.004)), 4)
                )
                for month in range(3, 11)
            ]
            found[metric_of(test, one), uuids.get(one.device, "")] = values
    return found


def validation(count: int = 24, plan: str = "standard") -> Validation:
    """A validation of so many nodes, and the one before it, in which the slow GPU was not slow."""
    nodes = names(count)
    results = {name: result(name, plan) for name in nodes if name not in (REFUSED, SILENT)}
    verdict = judged(results, nodes)
    good = {name: one for name, one in results.items() if name not in (SLOW, THROTTLING)}
    before = judged(
        good
        | {name: one for name in (SLOW, THROTTLING) if name in results for one in [healthy(results[name])]},
        nodes[:-1],
    )
    return Validation(
        verdict, results, dict.fromkeys(results, references()), past, before, "the report of 2026-11-15"
    )


def healthy(found: NodeResult) -> NodeResult:
    """The same node in another name's health."""
    other = Node("a healthy node", plan=found.plan).result()
    return dataclasses.replace(found, tests=other.tests)


def statement(count: int = 24) -> Statement:
    """A statement on so many nodes: two fail, one is waived, one was not checked."""
    nodes = tuple(_stated(name) for name in names(count))
    changed = (
        Changed("gpu-002", "ssh_hardening/sshd", Compliance.PASS, Compliance.FAIL),
        Changed("gpu-005", "node/reboot", Compliance.FAIL, Compliance.PASS),
    )
    counted = sum(node.verdict is Verdict.COMPLIANT for node in nodes)
    return Statement(
        SCHEMA_VERSION,
        "2026-11-22T10:00:00Z",
        Verdict.NOT_COMPLIANT,
        f"Verdict: not-compliant. {counted} of {count} nodes are compliant.",
        nodes,
        changed=changed,
        tool="Temper 0.9.0",
    )


def _stated(name: str) -> NodeStatement:
    if name == SILENT:
        return NodeStatement(name, Verdict.NOT_CHECKED, "unreachable: connection timed out after 20 s")
    repair = f"ansible-playbook -i inventory/mine playbooks/harden.yml --limit {name}"
    drifted = ControlResult(
        *CONTROLS[0],
        Compliance.FAIL,
        "sshd answers with another value than wanted",
        references="CIS Debian 12 5.1.20",
        changes=(Change("PermitRootLogin", "yes", "prohibit-password"),),
        remedy=repair,
        since="2026-11-21T22:00:00Z",
    )
    swapping = ControlResult(
        *CONTROLS[5],
        Compliance.FAIL,
        changes=(Change("vm.swappiness", "60", "1"),),
        remedy=repair,
        since="2026-11-20T04:00:00Z",
    )
    waived = ControlResult(
        *CONTROLS[8],
        Compliance.WAIVED,
        measured=Compliance.FAIL,
        waiver="OPS-1234: a long job runs (ada, until 2026-12-01)",
        waived_by=WaivedBy.OPERATOR,
    )
    relaxed = ControlResult(
        "os_hardening/ip-forwarding",
        "No packets are forwarded",
        Compliance.WAIVED,
        measured=Compliance.FAIL,
        waiver="containers reach their network through the node (by the profile gpu)",
        waived_by=WaivedBy.PROFILE,
    )
    other = {"gpu-002": (drifted, swapping), "gpu-009": (swapping,), "gpu-004": (waived,)}.get(name, ())
    ids = {one.id for one in other}
    controls = [
        *other,
        relaxed,
        *(ControlResult(key, title, Compliance.PASS) for key, title in CONTROLS if key not in ids),
    ]
    failing = any(one.state is Compliance.FAIL for one in other)
    verdict = Verdict.NOT_COMPLIANT if failing else Verdict.COMPLIANT
    return NodeStatement(
        name, verdict, "", "Debian 12", f"{GPUS}x H100 SXM 80 GB", "580.95.05", tuple(controls)
    )


def report(count: int = 24, plan: str = "standard") -> Report:
    """Both, of so many nodes."""
    return Report(validation(count, plan), statement(count), LABEL, origin(count))


def origin(count: int = 24) -> Origin:
    """A fleet in racks of eight nodes, a part of which is for debugging."""
    groups: dict[str, tuple[str, ...]] = {
        name: (f"rack{1 + place // 8}", "debug" if place % 8 == 7 else "train")
        for place, name in enumerate(names(count))
    }
    return Origin("deploy01", ("inventory/mine",), "2026-11-22T10:00:00Z", groups)


#: What it would do, if it were taken for more than words.
HARM = "<script>window.harmed = 1</script>"
#: Names that nodes should not have, and may.
HOSTILE = (
    HARM,
    '"><img src=x onerror="window.harmed = 2">',
    "עברית-gpu-\u202e01",
    "n" * 1000,
    "../../etc/passwd",
    "{{ 7 * 7 }}",
)


def hostile() -> Report:
    """Nodes with such names, and such words wherever words can be; one has no number that is a number."""
    found = {name: dataclasses.replace(result("gpu-001", "quick"), node=name) for name in HOSTILE}
    name = HOSTILE[0]
    broken = found[name]
    damaged = tuple(
        dataclasses.replace(
            test,
            reason=HARM,
            measurements=tuple(
                dataclasses.replace(one, value=float("nan"), name=f"{HARM}_gb_s") for one in test.measurements
            ),
            details={HARM: {"advice": HARM}, "telemetry": [{"device": None}], "telemetry_series": [{}]},
        )
        for test in broken.tests
    )
    found[name] = dataclasses.replace(broken, tests=damaged)
    verdict = judged({key: one for key, one in found.items() if key != name}, list(HOSTILE))
    nodes = tuple(dataclasses.replace(one, reasons=(HARM,)) for one in verdict.nodes)
    words = ControlResult(
        *(HARM, HARM, Compliance.FAIL, HARM),
        waiver=HARM,
        references=HARM,
        changes=(Change(HARM, HARM, HARM, HARM),),
        remedy=HARM,
        since=HARM,
    )
    stated = tuple(
        NodeStatement(key, Verdict.NOT_COMPLIANT, HARM, HARM, HARM, HARM, (words,)) for key in HOSTILE
    )
    made = dataclasses.replace(statement(3), nodes=stated, sentence=HARM, tool=HARM)
    checked = Validation(dataclasses.replace(verdict, nodes=nodes, sentence=HARM), found, {}, before=verdict)
    return Report(
        checked, made, HARM, Origin(HARM, (HARM,), HARM, dict.fromkeys(HOSTILE, (HARM, f"rack{HARM}")))
    )
