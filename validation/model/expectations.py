"""What the controller knows a node must be and do: required tests, its GPUs, and the numbers they must reach.

The reference numbers are entries of data/gpu_models.yml, passed on as JSON, so that the payload needs no YAML
and no file but itself. Nothing here is required: without expectations a run still measures, and says that
nothing was compared.
"""

from __future__ import annotations

import marshal
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from validation.model.bounds import MOST_KEY
from validation.model.contract import EXPECTATIONS_VERSION, ContractError, decode, loads

#: The version of the module marshal in which equal values of JSON have equal bytes.
WITHOUT_REFERENCES = 2
#: The name of a model where only the number of GPUs is expected.
ANY_MODEL = "GPU"

#: Of a node's name: file systems take names of 255 bytes, and a file's has more than the node's in it.
MOST_NAME_BYTES = 200


@dataclass(frozen=True)
class ExpectedGpus:
    """`count` GPUs of one model (a key of data/gpu_models.yml)."""

    model: str
    name: str
    count: int


@dataclass(frozen=True)
class References:
    """The entries of data/gpu_models.yml that concern a node.

    `models` by key, `pcie_x16` by generation, `architectures` by name.
    """

    models: dict[str, Any] = field(default_factory=dict)
    pcie_x16: dict[str, Any] = field(default_factory=dict)
    architectures: dict[str, Any] = field(default_factory=dict)

    def model_of(self, pci_id: str) -> dict[str, Any] | None:
        """Return the model with this PCI device id (4 hexadecimal digits, lower case)."""
        return next((model for model in self.models.values() if pci_id in model["pci_ids"]), None)

    @cached_property
    def looked_up(self) -> dict[Hashable, Any]:
        """What was found here of numbers that are alike, by whoever looks: a fleet has few of a kind."""
        return {}

    def form_factor(self, pci_id: str) -> str | None:
        """`pcie`, `sxm` or `superchip`; None where no table knows the model."""
        return (self.model_of(pci_id) or {}).get("form_factor")

    def is_superchip(self, pci_id: str) -> bool:
        """Return whether this GPU has NVLink-C2C to its CPU, far faster than the PCIe link it has, too."""
        return self.form_factor(pci_id) == "superchip"


@dataclass(frozen=True)
class Expectation:
    """What is expected of one node. None: nothing is known, so nothing is compared."""

    schema_version: int = EXPECTATIONS_VERSION
    required_tests: tuple[str, ...] = ()
    gpus: tuple[ExpectedGpus, ...] | None = None
    #: PCI device ids of GPUs that only have a monitor, which the driver is to leave alone.
    undriven_gpus: tuple[str, ...] = ()
    #: PCI addresses of GPUs that another driver than NVIDIA's has, for a virtual machine.
    given_gpus: tuple[str, ...] = ()
    driver_version: str | None = None
    nvswitch: bool | None = None
    power_limit_w: float | None = None
    #: The same in percent of each GPU's default.
    power_limit_percent: float | None = None
    #: Where graphics clocks are locked: what they must not exceed under load.
    graphics_clock_mhz: float | None = None
    #: Whether the inventory may want less clock than a GPU has by itself.
    lower_clocks: bool = False
    references: References = field(default_factory=References)
    #: Why the node was not measured at all: unreachable, refused by preflight, ...
    not_run: str | None = None

    @property
    def gpu_count(self) -> int | None:
        """How many GPUs the node must have."""
        return None if self.gpus is None else sum(gpus.count for gpus in self.gpus)


@dataclass(frozen=True)
class FleetExpectations:
    """What is expected of each node of a fleet, by its name."""

    schema_version: int
    nodes: dict[str, Expectation]


def parse_expectation(text: str | bytes, known_tests: tuple[str, ...]) -> Expectation:
    """Return the expectation of one node from JSON. Raises ContractError."""
    return _checked(loads(Expectation, text), known_tests, "expectation")


def fleet_from(
    value: Any, known_tests: tuple[str, ...], known: dict[bytes, Expectation] | None = None
) -> FleetExpectations:
    """Return the expectations of a fleet from what the json module gives. Raises ContractError.

    The same is expected of most nodes: they have the same object, which is decoded and checked once. `known`
    are those of earlier calls, and gets the new ones. A node whose name nobody can print, which preflight has
    refused, has it escaped here: it costs the others no report.
    """
    nodes = value.get("nodes") if isinstance(value, dict) else None
    if not isinstance(nodes, dict):
        return decode(FleetExpectations, value, "expectations")
    fleet = decode(FleetExpectations, {**value, "nodes": {}}, "expectations")
    known = {} if known is None else known
    for given, expected in nodes.items():
        name = given if given.isprintable() else given.encode("unicode_escape").decode()
        while name != given and name in nodes:
            name += "'"
        file_name(name.replace("/", "_").replace(".", "_"), MOST_KEY)  # what reports have of it is no path
        # Its bytes and not the value: to Python, true is 1. Nothing makes bytes of values as fast.
        content = marshal.dumps(expected, WITHOUT_REFERENCES)
        if content not in known:
            decoded = decode(Expectation, expected, f"expectations.nodes.{name}")
            known[content] = _checked(decoded, known_tests, name)
        fleet.nodes[name] = known[content]
    return fleet


def file_name(node: str, most_bytes: int = MOST_NAME_BYTES) -> str:
    """Return the name of a node, which names files, too. Raises ContractError where it cannot.

    Reports shorten the names of files by themselves: there a long name costs nobody anything.
    """
    size = len(node.encode(errors="replace"))
    if not 0 < size <= most_bytes or node.startswith(".") or "/" in node or not node.isprintable():
        raise ContractError(
            f"{node[:60]!r} cannot be a node's name, because reports have files of this name: expected 1 to "
            f"{most_bytes} bytes without a slash, a dot at the beginning or control characters, found "
            f"{size} bytes. Rename it in the inventory"
        )
    return node


def _checked(expectation: Expectation, known_tests: tuple[str, ...], where: str) -> Expectation:
    if expectation.schema_version != EXPECTATIONS_VERSION:
        raise ContractError(
            f"{where}: expectations of schema version {expectation.schema_version}; this program reads "
            f"version {EXPECTATIONS_VERSION}"
        )
    _check_references(expectation.references, where)
    counts = [gpus.count for gpus in expectation.gpus or ()]
    limits = [
        expectation.power_limit_w,
        expectation.power_limit_percent,
        expectation.graphics_clock_mhz,
    ]
    if any(count < 0 for count in counts) or any(limit is not None and limit <= 0 for limit in limits):
        raise ContractError(
            f"{where}: expected no negative count of GPUs, and a power limit and a clock above 0"
        )
    if unknown := [test for test in expectation.required_tests if test not in known_tests]:
        raise ContractError(
            f"{where}: required test {unknown[0]} is unknown; known are {', '.join(known_tests)}"
        )
    return expectation


def _check_references(references: References, where: str) -> None:
    """Check the form of models and links (data/gpu_models.yml), as far as a verdict rests on it."""
    for key, model in references.models.items():
        place = f"{where}: references.models.{key}"
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            raise ContractError(f"{place}: expected an object with a name")
        if not isinstance(model.get("pci_ids"), list):
            raise ContractError(f"{place}.pci_ids: expected a list")
        _check_numbers(model, place)
    for key, link in references.pcie_x16.items():
        place = f"{where}: references.pcie_x16.{key}"
        if not isinstance(link, dict):
            raise ContractError(f"{place}: expected an object")
        _check_numbers(link, place)


def _check_numbers(of: dict[str, Any], place: str) -> None:
    for kind in ("peak", "floor"):
        numbers = of.get(kind, {})
        if not isinstance(numbers, dict):
            raise ContractError(f"{place}.{kind}: expected an object")
        for name, found in numbers.items():
            for entry in found if isinstance(found, list) else [found]:
                number = entry.get("value") if isinstance(entry, dict) else None
                if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
                    raise ContractError(f"{place}.{kind}.{name}: expected an object with a value above 0")
                if isinstance(found, list) and not {"gpus", "size_bytes"} <= entry.keys():
                    raise ContractError(
                        f"{place}.{kind}.{name}: expected gpus and size_bytes beside the value"
                    )
