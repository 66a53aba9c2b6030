"""The second judge: the rest of the fleet, each number among its equals.

Equal are numbers of one metric, taken by the same method under the same conditions, on GPUs of one model with
the same link, driver branch and torch; CPU numbers compare between nodes with the same CPU. The rule is
one-sided (a fast GPU is no fault) and robust: median and median absolute deviation, which up to half of the
fleet may be broken without bending. Fewer than four equals are not compared, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.comparison import (
    Comparison,
    Crowd,
    Sensitivity,
    conditions_key,
    held_back,
    is_rate,
    label,
    number,
    on_gpu,
    quantity,
    unit,
)
from validation.contract import Finding, State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from validation.contract import Measurement, NodeResult, TestResult

LEAST_MEMBERS = 4
#: GPUs of one model differ by up to 5 % (ml-engineering, compute/accelerator), which the scatter of the fleet
#: itself allows for; gpu-fryer calls 10 % a broken GPU. CPUs have other work to do: a low number is noted.
GPU = Sensitivity(degraded=0.03, fail=0.10)
CPU = Sensitivity(degraded=0.20, fail=None)  # noted only


@dataclass(frozen=True)
class _Member:
    node: str
    test: TestResult
    measurement: Measurement
    kind: Hashable
    noun: str  # what the equals are: "GPUs", "nodes"


def compare(results: Mapping[str, NodeResult]) -> dict[tuple[str, str], Comparison]:
    """What the fleet says of each test (node, test id) that measured something."""
    cohorts: dict[Hashable, list[_Member]] = {}
    for name, result in results.items():
        for member in _members(name, result):
            measurement = member.measurement
            key = (
                member.test.id,
                member.test.method,
                measurement.name,
                conditions_key(measurement.conditions),
                member.kind,
            )
            cohorts.setdefault(key, []).append(member)
    said: dict[tuple[str, str], Comparison] = {}
    for members in cohorts.values():
        crowd = Crowd.of([member.measurement.value for member in members])
        for member in members:
            place = (member.node, member.test.id)
            said[place] = said.get(place, Comparison()) + _judge(member, crowd)
    return said


def _members(node: str, result: NodeResult) -> Iterator[_Member]:
    torch, driver = result.machine.torch, (result.machine.driver or "").partition(".")[0]
    for test in result.tests:
        for measurement in filter(is_rate, test.measurements):
            if not test.id.startswith("gpu_"):
                kind: Hashable = (result.machine.cpu_model, result.machine.cpus, torch)
                yield _Member(node, test, measurement, kind, "nodes")
                continue
            gpus = [gpu for gpu in result.gpus if measurement.device in {None, gpu.index}]
            links = tuple(sorted((g.pci_id, g.pcie_generation_max or 0, g.pcie_width_max or 0) for g in gpus))
            noun = "nodes" if measurement.device is None else "GPUs"
            yield _Member(node, test, measurement, (links, torch, driver), noun)


def _judge(member: _Member, crowd: Crowd) -> Comparison:
    if len(crowd.values) < LEAST_MEMBERS:
        note = f"not compared with the fleet: fewer than {LEAST_MEMBERS} {member.noun} of the same kind"
        return Comparison(notes=(note,))
    measurement, on_cpu = member.measurement, not member.test.id.startswith("gpu_")
    state = crowd.state_of(measurement, CPU if on_cpu else GPU)
    if state is State.PASS:
        return Comparison()
    text = (
        f"{label(measurement.name)} {quantity(measurement)}{on_gpu(measurement.device)}, "
        f"{crowd.deficit(measurement.value):.0%} below the median of {len(crowd.values)} equal {member.noun} "
        f"({number(crowd.median)} {unit(measurement.name)}){held_back(member.test, measurement.device)}"
    )
    if on_cpu:
        return Comparison(notes=(text,))
    return Comparison(
        (
            Finding(
                "below-fleet",
                state,
                text,
                "compare clocks, power limit, temperature, link and firmware with a node that is not slow",
                measurement.device,
            ),
        )
    )
