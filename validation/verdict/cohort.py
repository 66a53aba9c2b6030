"""The second judge: the rest of the fleet, or of a node's own GPUs, each number among its equals.

Equal are numbers of one metric, taken by the same method in the same plan under the same conditions, on GPUs
of one model with the same link, power limit, driver branch and torch; CPU numbers compare between nodes with
the same CPU.
The rule is one-sided (a fast GPU is no fault) and robust: median and median absolute deviation, which up to
half of the fleet may be broken without bending. Fewer than four equals are not compared, and that is said.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from validation.model.contract import Measurement, NodeResult, TestResult
from validation.model.grouping import by_key
from validation.model.quantities import is_rate, of_gpus
from validation.verdict.baseline import Baseline, BaselineJudge, Comparison, Sensitivity

LEAST_MEMBERS = 4
#: Of one node so many GPUs have a vote, which are all that most servers have: one that was taken over may
#: claim more than all others have together.
MOST_VOTES = 16
#: GPUs of one model differ by up to 5 % (ml-engineering, compute/accelerator), which the scatter of the fleet
#: itself allows for; gpu-fryer calls 10 % a broken GPU. CPUs have other work to do: a low number is noted.
JUDGE = BaselineJudge("below-fleet", Sensitivity(degraded=0.03, fail=0.10))


class _Member(NamedTuple):
    test: TestResult
    measurement: Measurement
    noun: str  # what the equals are: "GPUs", "nodes"


def compare(results: Mapping[str, NodeResult]) -> dict[str, dict[str, Comparison]]:
    """Compare the nodes of a fleet; return what is said of each test that measured something, by node."""
    fleet: dict[str, dict[Hashable, list[_Member]]] = {}
    values: dict[Hashable, array[float]] = {}
    for name, result in results.items():
        of_node = fleet[name] = by_key(_members(result))
        for key, members in of_node.items():
            values.setdefault(key, array("d")).extend(_votes([one.measurement.value for one in members]))
    baselines = {key: Baseline.of(found) for key, found in values.items()}
    said: dict[str, dict[str, list[Comparison]]] = {name: {} for name in results}
    for name, of_node in fleet.items():
        for key, members in of_node.items():
            whose = f"the median of {baselines[key].count} equal {members[0].noun}"
            for member in members:
                said[name].setdefault(member.test.id, []).append(_judge(member, baselines[key], whose))
    return {
        name: {test: Comparison.of(parts) for test, parts in of_tests.items()}
        for name, of_tests in said.items()
    }


def among_its_own(result: NodeResult) -> dict[str, Comparison]:
    """Compare the GPUs of one node with each other, where no fleet is at hand.

    Of numbers that have too few equals for that nothing is said: on one node most have.
    """
    (said,) = compare({result.node: result}).values()
    return {test: Comparison(comparison.findings) for test, comparison in said.items()}


def _votes(values: list[float]) -> list[float]:
    """Return the numbers of a node that count in the median: of many, some from all of their range."""
    if len(values) <= MOST_VOTES:
        return values
    ordered = sorted(values)
    return [ordered[place * len(ordered) // MOST_VOTES] for place in range(MOST_VOTES)]


def _members(result: NodeResult) -> Iterator[tuple[Hashable, _Member]]:
    """Yield each number that compares, with what makes it equal to others."""
    torch, driver = result.machine.torch, (result.machine.driver or "").partition(".")[0]
    limits = _power_limits(result)
    alike: dict[int | None, Hashable] = {}
    cpu = (result.machine.cpu_model, result.machine.cpus, torch)
    for test in result.tests:
        for measurement in filter(is_rate, test.measurements):
            device = measurement.device
            if not of_gpus(test):
                kind: Hashable = cpu
            elif device in alike:
                kind = alike[device]
            else:
                gpus = sorted(
                    (g.pci_id, g.pcie_generation_max or 0, g.pcie_width_max or 0, limits.get(g.index, 0.0))
                    for g in result.gpus
                    if device in {None, g.index}
                )
                kind = alike[device] = (tuple(gpus), torch, driver)
            conditions = measurement.taken
            noun = "GPUs" if of_gpus(test) and device is not None else "nodes"
            key = (test.id, test.method, result.plan, measurement.name, conditions, kind)
            yield key, _Member(test, measurement, noun)


def _power_limits(result: NodeResult) -> dict[int, float]:
    """Return the power limit of each GPU in W, as health found it: a lower one is a slower GPU, by choice."""
    return {gpu.device: gpu.power_limit_w or 0.0 for test in result.tests for gpu in test.power_limits}


def _judge(member: _Member, baseline: Baseline, whose: str) -> Comparison:
    if baseline.count < LEAST_MEMBERS:
        note = f"not compared with the fleet: fewer than {LEAST_MEMBERS} {member.noun} of the same kind"
        return Comparison(notes=(note,))
    return JUDGE.judge(member.test, member.measurement, baseline, whose)
