"""Write docs/reference/plan_matrix.md: the stack of each GPU on each system, or why it is refused.

    python3 -m tools.plan_matrix    write the page and name it if it changed

The plans are those of the roles' defaults on a bare node. tests/unit/test_plan_matrix.py fails when the page
is not what this would write, and compares the plans with rules of its own.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from temper.plan.facts import NodeFacts
from temper.plan.model import Target
from temper.plan.node_plan import NodePlan
from temper.plan.plan import node_plan
from temper.plan.role_variables import argument_specs, role_variables, typed_variables
from temper.plan.tables import load_tables
from tools.bare_node import PYTHONS, bare_node, pci
from tools.documents import ROOT, write

PAGE = ROOT / "docs/reference/plan_matrix.md"
TABLES = load_tables(ROOT / "data")

GPU, NVSWITCH = "0302", "0680"


@dataclass(frozen=True)
class Hardware:
    """A row: GPUs by their PCI ids; NVSwitches on the node's own bus, or NVLink switches behind a device.

    `grace`: on one board with a CPU for aarch64.
    """

    name: str
    ids: tuple[str, ...]
    nvswitch: bool = False
    nvlink_switch: bool = False
    grace: bool = False

    @property
    def devices(self) -> list[tuple[str, str]]:
        """The PCI devices: id and class."""
        return [(device, GPU) for device in self.ids] + [("22a3", NVSWITCH)] * self.nvswitch


HARDWARE = (
    Hardware("Tesla M60 (Maxwell)", ("13f2",)),
    Hardware("P100 (Pascal)", ("15f8",)),
    Hardware("V100 (Volta)", ("1db5",)),
    Hardware("T4 (Turing)", ("1eb8",)),
    Hardware("A10 (Ampere)", ("2236",)),
    Hardware("A100 SXM (Ampere) with NVSwitch", ("20b2",), nvswitch=True),
    Hardware("L40S (Ada)", ("26b9",)),
    Hardware("H100 PCIe (Hopper)", ("2331",)),
    Hardware("H100 SXM (Hopper) with NVSwitch", ("2330",), nvswitch=True),
    Hardware("GH200 (Hopper)", ("2342",), grace=True),
    Hardware("B200 (Blackwell) with NVLink switches", ("2901",), nvlink_switch=True),
    Hardware("GB200 (Blackwell)", ("2941",), grace=True),
    Hardware("RTX PRO 6000 (Blackwell)", ("2bb1",)),
    Hardware("V100 beside L40S", ("1db5", "26b9")),
    Hardware("V100 beside B200", ("1db5", "2901")),
)
# The kernel of each system: its release, and on Ubuntu the packages that bring it.
KERNELS = {
    "debian-12": "6.1.0-37-amd64",
    "debian-13": "6.12.48+deb13-amd64",
    "ubuntu-22.04": "5.15.0-157-generic",
    "ubuntu-24.04": "6.8.0-85-generic",
    "ubuntu-26.04": "7.0.0-10-generic",
    "rhel-8": "4.18.0-553.el8_10.x86_64",
    "rhel-9": "5.14.0-611.el9_7.x86_64",
    "rhel-10": "6.12.0-124.el10_1.x86_64",
}
# The suites that a Debian server reads, for its own driver.
CODENAMES = {"debian-12": "bookworm", "debian-13": "trixie"}


HEAD = """\
# Which stack a GPU gets

*For operators: see which stack a GPU gets on a system, or why it is refused.*

<!-- Made by `make docs` from the code and tables of every plan: change those. -->

This is the plan of a bare node, all variables at their defaults,
Secure Boot disabled. A cell names the stack, the kernel modules and the payload's torch, or the numbers of
the reasons below why the node is refused. [nvidia_stack.md](../operate/nvidia_stack.md) says how a stack is
chosen, and what other variables change.
"""


@dataclass(frozen=True)
class Section:
    """A table: nodes of one architecture, with the variables that differ from the defaults."""

    title: str
    architecture: str
    variables: Mapping[str, str] = field(default_factory=dict)


DISTRO = {"nvidia_stack_source": "distro"}
SECTIONS = (
    Section("NVIDIA's repository, x86_64", "x86_64"),
    Section("NVIDIA's repository, aarch64", "aarch64"),
    Section("The distribution's own driver (`nvidia_stack_source: distro`), x86_64", "x86_64", DISTRO),
)


@dataclass(frozen=True)
class Case:
    """A cell: hardware on a system, with its plan."""

    section: Section
    hardware: Hardware
    system: str
    plan: NodePlan


@cache
def defaults() -> Mapping[str, Any]:
    """Return all variables of all roles, with their defaults."""
    values: Mapping[str, Any] = role_variables({}, argument_specs())["values"]
    return values


def node_facts(system: str, architecture: str, hardware: Hardware) -> NodeFacts:
    """Return what node_facts reports of a server that has only its system."""
    name, _, version = system.partition("-")
    release = KERNELS[system]
    if architecture == "aarch64":
        release = release.replace("x86_64", "aarch64").replace("amd64", "arm64")
    codename = CODENAMES.get(system, "")
    images = {f"linux-image-{release}": "1", "linux-image-generic": "1"} if name == "ubuntu" else {}
    suites = {"debian": codename, "debian-security": f"{codename}-security"} if codename else {}
    node = bare_node(
        os={"id": name, "version_id": version, "codename": codename, "pretty_name": system},
        architecture=architecture,
        pci=pci(*hardware.devices),
        nvlink_switch_managed=hardware.nvlink_switch,
        apt_sources=[
            {"uri": f"https://mirror.example/{path}", "suite": suite, "components": ["main"], "signed_by": ""}
            for path, suite in suites.items()
        ],
        pythons=[PYTHONS[system]],
    )
    node["kernel"] |= {"release": release, "image_packages": images}
    return NodeFacts.from_dict(node)


@cache
def cases() -> tuple[Case, ...]:
    """Return the plans of all hardware on all systems, section by section."""
    found = []
    for section, hardware, system in itertools.product(SECTIONS, HARDWARE, TABLES.distributions):
        if section.variables == DISTRO and system not in TABLES.distro_drivers:
            continue
        if hardware.grace and section.architecture != "aarch64":
            continue
        node = node_facts(system, section.architecture, hardware)
        variables = typed_variables({**defaults(), **section.variables})
        found.append(Case(section, hardware, system, node_plan(node, TABLES, variables, Target())))
    return tuple(found)


def cell(plan: NodePlan, reasons: dict[str, int]) -> str:
    """Return what stands in the table; `reasons` numbers the refusals in the order in which they come."""
    if plan.problems:
        numbers = [reasons.setdefault(problem, len(reasons) + 1) for problem in plan.problems]
        return f"no: {', '.join(map(str, numbers))}"
    assert plan.driver
    torch = f", torch {plan.payload.torch}" if plan.payload else ""
    return f"{plan.stack}, {plan.driver.modules}{torch}"


def tables(reasons: dict[str, int]) -> Iterator[str]:
    """Yield each section's heading and table."""
    for section in SECTIONS:
        of_section = [case for case in cases() if case.section == section]
        systems = list(dict.fromkeys(case.system for case in of_section))
        yield f"## {section.title}\n\n| GPU | {' | '.join(systems)} |\n|---|{'---|' * len(systems)}"
        for hardware in HARDWARE:
            cells = [cell(case.plan, reasons) for case in of_section if case.hardware == hardware]
            if cells:
                yield f"| {hardware.name} | {' | '.join(cells)} |"
        yield ""


def stacks() -> Iterator[str]:
    """Yield the stacks that the tables name."""
    yield "| Stack | Driver | CUDA |\n|---|---|---|"
    planned = {case.plan.stack: case.plan for case in cases() if not case.plan.problems}
    for name, plan in sorted(planned.items()):
        assert plan.driver
        yield f"| {name} | {plan.driver.version} | {plan.cuda or 'none'} |"


def page() -> str:
    """Return the whole page."""
    reasons: dict[str, int] = {}
    body = list(tables(reasons))
    return "\n".join(
        [
            HEAD,
            *body,
            "## Stacks",
            "",
            *stacks(),
            "",
            "## Reasons",
            "",
            *(f"{number}. {reason[0].upper()}{reason[1:]}." for reason, number in reasons.items()),
            "",
        ]
    )


def documents() -> dict[Path, str]:
    """Return the content of the page."""
    return {PAGE: page()}


if __name__ == "__main__":
    sys.exit(write(documents()))
