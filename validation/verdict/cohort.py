"""The second judge: the rest of the fleet, each number among its equals.

Equal are numbers of one metric, taken by the same method in the same plan under the same conditions, on GPUs
of one model with the same link, power limit, driver branch and torch; CPU numbers compare between nodes with
the same CPU.
The rule is one-sided (a fast GPU is no fault) and robust: median and median absolute deviation, which up to
half of the fleet may be broken without bending. Fewer than four equals are not compared, and that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.model.quantities import conditions_key, is_rate, of_gpus
from validation.verdict import fleet_checksums
from validation.verdict.baseline import Baseline, BaselineJudge, Comparison, Sensitivity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from validation.model.contract import Measurement, NodeResult, TestResult

LEAST_MEMBERS = 4
#: GPUs of one model differ by up to 5 % (ml-engineering, compute/accelerator), which the scatter of the fleet
#: itself allows for; gpu-fryer calls 10 % a broken GPU. CPUs have other work to do: a low number is noted.
JUDGE = BaselineJudge("below-fleet", Sensitivity(degraded=0.03, fail=0.10))


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
                result.plan,
                measurement.name,
                conditions_key(measurement.conditions),
                member.kind,
            )
            cohorts.setdefault(key, []).append(member)
    said: dict[tuple[str, str], list[Comparison]] = {}
    for members in cohorts.values():
        baseline = Baseline.of([member.measurement.value for member in members])
        whose = f"the median of {len(members)} equal {members[0].noun}"
        for member in members:
            said.setdefault((member.node, member.test.id), []).append(_judge(member, baseline, whose))
    for place, comparison in fleet_checksums.among_nodes(results).items():
        said.setdefault(place, []).append(comparison)
    return {place: Comparison.of(parts) for place, parts in said.items()}


def _members(node: str, result: NodeResult) -> Iterator[_Member]:
    torch, driver = result.machine.torch, (result.machine.driver or "").partition(".")[0]
    limits = _power_limits(result)
    alike: dict[int | None, Hashable] = {}
    for test in result.tests:
        for measurement in filter(is_rate, test.measurements):
            if not of_gpus(test):
                kind: Hashable = (result.machine.cpu_model, result.machine.cpus, torch)
                yield _Member(node, test, measurement, kind, "nodes")
                continue
            device = measurement.device
            if device not in alike:
                gpus = sorted(
                    (g.pci_id, g.pcie_generation_max or 0, g.pcie_width_max or 0, limits.get(g.index, 0.0))
                    for g in result.gpus
                    if device in {None, g.index}
                )
                alike[device] = (tuple(gpus), torch, driver)
            noun = "nodes" if device is None else "GPUs"
            yield _Member(node, test, measurement, alike[device], noun)


def _power_limits(result: NodeResult) -> dict[int, float]:
    """The power limit of each GPU in W, as health found it: a lower one is a slower GPU, by choice."""
    return {
        gpu["device"]: gpu.get("power_limit_w") or 0.0
        for test in result.tests
        if test.id == "health"
        for gpu in test.details.get("gpus", [])
    }


def _judge(member: _Member, baseline: Baseline, whose: str) -> Comparison:
    if len(baseline.values) < LEAST_MEMBERS:
        note = f"not compared with the fleet: fewer than {LEAST_MEMBERS} {member.noun} of the same kind"
        return Comparison(notes=(note,))
    return JUDGE.judge(member.test, member.measurement, baseline, whose)
