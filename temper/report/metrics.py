"""The fleet's numbers by metric: how they are distributed, and what each stands beside."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from temper.report.inputs import Metric, metric_of
from temper.report.words import is_number, quantity
from validation.model.contract import GpuIdentity, Measurement, NodeResult, TestResult
from validation.model.expectations import References
from validation.model.quantities import of_gpus
from validation.verdict.references import Standards, standards_of

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


#: What numbers are pooled by.
Key = tuple[Kind, Metric]


@dataclass
class Pool:
    """All numbers of a metric on one kind of hardware."""

    conditions: dict[str, int | str]
    standards: Standards
    values: array[float]
    least: float
    lowest: Place

    def add(self, value: float, node: str, gpu: int | None) -> None:
        """Add one number."""
        self.values.append(value)
        if value < self.least:
            self.least, self.lowest = value, Place(node, gpu)


class Hardware:
    """What numbers are of, and what is published of that."""

    def __init__(self, references: Mapping[str, References]) -> None:
        self._references = references
        self._kinds: dict[tuple[str, int | None], Kind] = {}

    def distributions(self, results: Mapping[str, NodeResult]) -> dict[Key, Distribution]:
        """Return the numbers of a fleet by metric and kind of hardware."""
        found: dict[Key, Pool] = {}
        for node, result in results.items():
            for test, measurement, key in self._numbers_of(result):
                value = measurement.value
                if not is_number(value):
                    continue
                if key in found:
                    found[key].add(value, node, measurement.device)
                    continue
                conditions = measurement.conditions
                found[key] = Pool(
                    {name: said for name, said in conditions.items() if name != OF_PAIRS},
                    self.standards(test, measurement, result),
                    array("d", [value]),
                    value,
                    Place(node, measurement.device),
                )
        return {
            (kind, metric): Distribution(
                metric, kind, pool.conditions, tuple(sorted(pool.values)), pool.lowest, pool.standards
            )
            for (kind, metric), pool in found.items()
        }

    def _numbers_of(self, result: NodeResult) -> Iterator[tuple[TestResult, Measurement, Key]]:
        kinds: dict[tuple[bool, int | None], Kind] = {}
        for test in result.tests:
            gpus = of_gpus(test)
            for measurement in test.measurements:
                of = gpus, measurement.device
                if of not in kinds:
                    kinds[of] = self.kind(test, measurement, result)
                yield test, measurement, (kinds[of], pooled(test, measurement))

    def kind(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Kind:
        """Return the hardware that a number is of."""
        if not of_gpus(test):
            return Kind(result.machine.cpu_model, "")
        place = result.node, measurement.device
        if place not in self._kinds:
            gpus = result.gpus_of(measurement.device)
            names = " and ".join(sorted({self._model(gpu, result) for gpu in gpus}))
            self._kinds[place] = Kind(names or "GPUs that nobody named", _link(gpus))
        return self._kinds[place]

    def _model(self, gpu: GpuIdentity, result: NodeResult) -> str:
        """Return a GPU's name in the table of models, or its own."""
        model = self._references_of(result).model_of(gpu.pci_id)
        return str(model["name"]) if model else gpu.name

    def _references_of(self, result: NodeResult) -> References:
        """Return the published numbers that a node was held against."""
        return self._references.get(result.node) or References()

    def standards(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Standards:
        """Return what is published of a number's hardware."""
        return standards_of(test, measurement, result, self._references_of(result))


class FleetNumbers:
    """What the numbers of nodes stand beside.

    What the table of GPU models says of a model is the same for all nodes of one report, so it is looked up
    once for each metric and kind.
    """

    def __init__(self, hardware: Hardware, fleet: Mapping[Key, Distribution]) -> None:
        self._hardware = hardware
        self._fleet = fleet
        self._beside: dict[tuple[Kind, int, Metric], Beside] = {}

    def beside(self, test: TestResult, measurement: Measurement, result: NodeResult) -> Beside:
        """Return what a number stands beside: its floor, what is published, and the fleet's numbers."""
        kind, metric = self._hardware.kind(test, measurement, result), pooled(test, measurement)
        key = kind, len(result.gpus), metric
        if key not in self._beside:
            standards = self._hardware.standards(test, measurement, result)
            equals = self._fleet.get((kind, metric))
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
    """Return the metric of a number; that of a pair of GPUs has the metric of all pairs."""
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
