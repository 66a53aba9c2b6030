"""What the roles' plans are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from temper.plan.facts import NodeFacts
from temper.plan.jump_hosts import JumpHost
from temper.plan.node_plan import NodePlan, WaivedControl
from temper.plan.os_controls import CONDITIONS, Hardening, hardening
from temper.plan.programs import Programs
from temper.plan.slurm import SlurmGpu, slurm_gpus
from temper.plan.variables import Variables

PYTHON = "/usr/bin/python3"
OLDEST_PYTHON = (3, 9)


def programs_python(versions: Sequence[str]) -> str:
    """Return what runs our programs on a node with these Pythons in /usr/bin, that of python3 first.

    It is python3, but where that is too old, as on Enterprise Linux 8, and a newer one is beside it.
    """
    usable = [text for text in versions if tuple(map(int, text.split("."))) >= OLDEST_PYTHON]
    return f"/usr/bin/python{usable[0]}" if usable and usable[0] != versions[0] else PYTHON


@dataclass(frozen=True)
class Fleet:
    """Addresses of all nodes of the inventory, and nodes without a known address (action fleet_ways)."""

    addresses: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """One node, what it is to become, and what the controller knows.

    `plan` has everything but the roles. `controls` are those of data/os_controls by id, `models` is the
    content of data/gpu_models.yml. `mok_certificate` is the operator's certificate as PEM, empty without one.
    `programs` has the text of each program that the node runs by itself, by its path in the folder of its
    role. `name` is the node's in the inventory, `jump` says which others are reached through it, and `given`
    has the names of the variables that the inventory sets. `profiles` are its groups that are profiles, which
    is one at most. `programs_said` is what its own programs say of the plan.
    """

    plan: NodePlan
    variables: Variables
    node: NodeFacts
    controls: Mapping[str, Any]
    models: Mapping[str, Any]
    fleet: Fleet = field(default_factory=Fleet)
    mok_certificate: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    jump: JumpHost | None = None
    given: frozenset[str] = frozenset()
    profiles: tuple[str, ...] = ()
    programs_said: Programs = field(default_factory=Programs)

    @property
    def system(self) -> str:
        """What it runs, such as debian-13. A rebuild is planned as what it is built from."""
        return self.plan.system or self.node.os.name

    @property
    def python(self) -> str:
        """What runs `programs`."""
        return programs_python(self.node.pythons)

    @cached_property
    def gpus(self) -> tuple[SlurmGpu, ...]:
        """Its GPUs for jobs."""
        rows = self.models["models"].values()
        names = {device_id: row["name"] for row in rows for device_id in row["pci_ids"]}
        return slurm_gpus(self.node, names, self.plan.undriven_gpus)

    @cached_property
    def hardening(self) -> Hardening:
        """The settings of the controls, and what is waived."""
        ssh = self.variables.ssh_hardening
        options = {
            "ssh_hardening_banner": ssh.banner,
            "ssh_hardening_access": [*ssh.allow_users, *ssh.allow_groups],
            **{name: getattr(self.node, name) for name in CONDITIONS.values()},
            "system": self.system,
        }
        return hardening(self.controls, self.variables.os_hardening, options)

    @property
    def waived(self) -> tuple[WaivedControl, ...]:
        """What is waived, and what the node's programs do not know."""
        waived = self.hardening.waived
        names = {one.id for one in waived}
        asked = {
            name
            for item in self.hardening.settings
            if item.key.startswith("/etc/sudoers.d/")
            for name in item.controls
        }
        unknown = self.programs_said.waived(self.controls, self.system, asked)
        return (*waived, *(one for one in unknown if one.id not in names))

    def waiver(self, control: str) -> str | None:
        """Return why a control is relaxed, None where it is not."""
        return next((waived.reason for waived in self.hardening.waived if waived.id == control), None)
