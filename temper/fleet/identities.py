"""Asks all nodes which machine they are, before the first slice changes one.

A slice knows its own nodes alone. A machine that two of them have under two names would be changed twice, and
a jump host rebooted while other slices reach their nodes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.fleet.collected import CollectedError, documents
from temper.fleet.journal import Job, Journal, NodeRecord
from temper.plan.convert import build

if TYPE_CHECKING:
    from temper.fleet.run import FleetRun

PLAYBOOK = "temper/fleet/identify.yml"
NAME = "identity"


@dataclass(frozen=True)
class Named:
    """What a node is (temper/plan/identity.py), and its turn among jump hosts, 0 for none."""

    machine: tuple[str, ...]
    level: int
    host_keys: tuple[str, ...] = ()


class Asked(Journal):
    """In the place of the journal: what is asked is no part of a run, and asked again where it goes on."""

    def __init__(self) -> None:
        self.folders: set[str] = set()

    def start(self, run: str, nodes: Iterable[str], attempt: int, place: str) -> None:
        """Begin a slice."""

    def end(self, run: str, records: Iterable[NodeRecord]) -> None:  # noqa: ARG002 - as the journal has it
        """Keep where a slice has handed over what it heard."""
        self.folders |= {one.folder for one in records}


def asking(job: Job) -> Job:
    """Return the job that asks the nodes of another one; of its options it has the number of forks alone."""
    options = list(job.options)
    at = options.index("--forks") if "--forks" in options else len(options)
    return replace(job, playbook=PLAYBOOK, options=tuple(options[at : at + 2]))


def ask(prepared: Callable[[Asked], FleetRun]) -> dict[str, Named]:
    """Return what nodes are by their names; those that did not answer are left out.

    `prepared` returns the run that asks, with what it records things with. Raises CollectedError.
    """
    asked = Asked()
    run = prepared(asked)
    run.carry_out()
    return read([run.folder / one for one in sorted(asked.folders)])


def read(folders: Sequence[Path]) -> dict[str, Named]:
    """Read what slices have handed over. Raises CollectedError."""
    found: dict[str, Named] = {}
    for part in documents(folders, NAME):
        try:
            given: Mapping[str, Any] = part["nodes"]
            found |= {str(name): build(Named, one, str(name)) for name, one in given.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CollectedError(
                f"expected which machines nodes are, as a slice hands it over: {error}"
            ) from error
    return found


def unnamed(nodes: Iterable[str], named: Mapping[str, Named]) -> list[str]:
    """Return the nodes that cannot be compared: they did not answer, or have nothing that is only theirs."""
    return [node for node in nodes if node not in named or not named[node].machine]
