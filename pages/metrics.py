"""The fleet's numbers by metric: how they are distributed, and what each stands beside."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pages.inputs import Metric, metric_of
from pages.words import is_number, quantity
from validation.model.expectations import References
from validation.model.quantities import of_gpus
from validation.verdict.references import Standards, standards_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from validation.model.contract import GpuIdentity, Measurement, NodeResult, TestResult

#: What one number of a pair of GPUs has besides: pairs are of one distribution.
OF_PAIRS = "to"


class Kind(NamedTuple):
    """What numbers are taken of: a GPU model with its PCIe link, or a CPU."""

    name: str
    link: str


@dataclass(frozen=True)
class Place:
    """Where a number was taken."""

    node: str
    gpu: int | None

    def __str__(self) -> str:
        return self.node if self.gpu is None else f"{self.node} GPU {self.gpu}"


@dataclass(frozen=True)
class Distribution:
    """All numbers of a metric on one kind of hardware, in the metric's unit, lowest first."""

    metric: Metric
    kind: Kind
    conditions: dict[str, int | str]
    values: tuple[float, ...]
    lowest: Place
    standards: Standards

    @cached_property
    def median(self) -> float:
        """The middle of the fleet's numbers."""
        return statistics.median(self.values)


@dataclass(frozen=True)
class Beside:
    """What numbers of one metric on one kind of hardware stand beside, also in words.

    `median` is that of the fleet, None where it has no other number.
    """

    standards: Standards
    median: float | None
    words: str


class FleetNumbers:
    """The numbers of all nodes of a report.

    What the table of GPU models says of a model is the same for all nodes of one report, so it is looked up
    once for each metric and kind.
    """

    def __init__(self, results: Mapping[str, NodeResult], references: Mapping[str, References]) -> None:
        self._references = references
        self._beside: dict[tuple[Kind, int, Metric], Beside] = {}
        self._kinds: dict[tuple[str, int | None], Kind] = {}
        values: dict[tuple[Kind, Metric], list[float]] = {}
        lowest: dict[tuple[Kind, Metric], tuple[float, Place]] = {}
        first: dict[tuple[Kind, Metric], tuple[TestResult, Measurement, NodeResult]] = {}
        for node, result in results.items():
            for test, measurement, key in self._numbers_of(result):
                if not is_number(measurement.value):
                    continue
                if key not in values:
                    values[key], first[key] = [], (test, measurement, result)
                values[key].append(measurement.value)
                if key not in lowest or measurement.value < lowest[key][0]:
                    lowest[key] = measurement.value, Place(node, measurement.device)
        self.distributions = {
            key: Distribution(
                key[1],
                key[0],
                {name: value for name, value in first[key][1].conditions.items() if name != OF_PAIRS},
                tuple(sorted(found)),
                lowest[key][1],
                self._standards(*first[key]),
            )
            for key, found in values.items()
        }
        #: A model with several links is named with them.
        self.links = Counter(name for name, _ in {key[0] for key in values})

    def _numbers_of(
        self, result: NodeResult
    ) -> Iterator[tuple[TestResult, Measurement, tuple[Kind, Metric]]]:
        kinds: dict[tuple[bool, int | None], Kind] = {}
        for test in result.tests:
            gpus = of_gpus(test)
            for measurement in test.measurements:
                of = gpus, measurement.device
                if of not in kinds:
                    kinds[of] = self.kind(test, measurement, result)
                yield test, measurement, (kinds[of], pooled(test, measurement))

    def kind(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Kind:
        """The hardware that a number is of."""
        if not of_gpus(test):
            return Kind(result.machine.cpu_model, "")
        place = result.node, measurement.device
        if place not in self._kinds:
            gpus = result.gpus_of(measurement.device)
            names = " and ".join(sorted({self.model(gpu, result) for gpu in gpus}))
            self._kinds[place] = Kind(names or "GPUs that nobody named", _link(gpus))
        return self._kinds[place]

    def model(self, gpu: GpuIdentity, result: NodeResult) -> str:
        """A GPU's name in the table of models, or its own."""
        model = self.references_of(result).model_of(gpu.pci_id)
        return str(model["name"]) if model else gpu.name

    def references_of(self, result: NodeResult) -> References:
        """The published numbers that a node was held against."""
        return self._references.get(result.node) or References()

    def _standards(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Standards:
        return standards_of(test, measurement, result, self.references_of(result))

    def beside(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Beside:
        """What a number stands beside: its floor, what is published, and the fleet's numbers."""
        kind, metric = self.kind(test, measurement, result), pooled(test, measurement)
        key = kind, len(result.gpus), metric
        if key not in self._beside:
            standards = self._standards(test, measurement, result)
            equals = self.distributions.get((kind, metric))
            median = equals.median if equals and len(equals.values) > 1 else None
            shared = (
                ("floor", standards.floor),
                ("published", standards.published),
                ("fleet median", median),
            )
            said = [f"{name} {quantity(one, metric.name)}" for name, one in shared if one is not None]
            said += [f"of {len(equals.values)} equal numbers"] if equals and median is not None else []
            self._beside[key] = Beside(standards, median, ", ".join(said))
        return self._beside[key]


def pooled(test: TestResult, measurement: Measurement) -> Metric:
    """The metric of a number; that of a pair of GPUs has the metric of all pairs."""
    metric = metric_of(test, measurement)
    if OF_PAIRS not in measurement.conditions:
        return metric
    left = tuple(condition for condition in metric.conditions if condition[0] != OF_PAIRS)
    return metric._replace(conditions=left)


def _link(gpus: tuple[GpuIdentity, ...]) -> str:
    links = sorted(
        {
            f"PCIe {gpu.pcie_generation_max} x{gpu.pcie_width_max}"
            for gpu in gpus
            if gpu.pcie_generation_max and gpu.pcie_width_max
        }
    )
    return " and ".join(links)
