"""Waivers: controls that an operator accepts not to have, for a time, with somebody's approval.

A waived control is still measured. No waiver is without an end, and an end is an instant: a date alone ends
at another hour in every zone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any

from temper.base.nodes import utc
from temper.compliance.model import WaiverFault, WaiverFinding, canonical

#: How long before its end a waiver is spoken of.
NOTICE = timedelta(days=30)
EXAMPLE = "2027-03-31T00:00:00Z"
OPTIONAL = ("valid_from", "nodes", "compensating")


class WaiverError(Exception):
    """An entry is no waiver; the message says what was expected and found."""


@dataclass(frozen=True)
class Waiver:
    """One entry of `compliance_waivers`. Without `nodes` it holds wherever the inventory defines it."""

    control: str
    reason: str
    owner: str
    approver: str
    ticket: str
    expires: datetime
    valid_from: datetime | None = None
    nodes: tuple[str, ...] = ()
    compensating: str = ""

    def covers(self, node: str, groups: Collection[str]) -> bool:
        """Return whether it is for this node, by its name or that of one of its groups."""
        return not self.nodes or bool({node, *groups} & set(self.nodes))

    def holds(self, now: datetime) -> bool:
        """Return whether it is valid at this instant."""
        return (self.valid_from is None or self.valid_from <= now) and now < self.expires

    @property
    def text(self) -> str:
        """It in a sentence, for reports."""
        until = utc(self.expires)
        measures = f"; instead: {self.compensating}" if self.compensating else ""
        people = f"owner {self.owner}, approved by {self.approver}"
        return f"{self.reason} ({self.ticket}; {people}, until {until}{measures})"


def instant(value: Any) -> datetime:
    """Return an instant in UTC. Raises WaiverError, also for a date alone, which says no hour."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise WaiverError(f"expected an instant with a zone such as {EXAMPLE}, found {value!r}") from None
    if not isinstance(value, datetime):
        what = f"the date {value.isoformat()}" if isinstance(value, date) else repr(value)
        raise WaiverError(f"expected an instant with a zone such as {EXAMPLE}, found {what}")
    if value.tzinfo is None:
        raise WaiverError(
            f"expected an instant with a zone such as {EXAMPLE}, found {value.isoformat()} without one"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise WaiverError(
            f"expected an instant of the years 1 to 9999 in UTC, such as {EXAMPLE}, found {value.isoformat()}"
        ) from None


def read(entries: Any, known_nodes: Collection[str]) -> tuple[list[Waiver], list[str]]:
    """Waivers from an inventory, and a sentence for each entry that is none.

    `known_nodes` are the names of all nodes and groups of the inventory.
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable) or hasattr(entries, "items"):
        return [], [f"compliance_waivers: expected a list of waivers, found {entries!r}"]
    waivers, problems = [], []
    for number, entry in enumerate(entries, 1):
        try:
            waivers.append(one(entry, known_nodes))
        except WaiverError as error:
            name = entry.get("control") if hasattr(entry, "get") else None
            problems.append(f"compliance_waivers, entry {number}{f' ({name})' if name else ''}: {error}")
    return waivers, problems


def one(entry: Mapping[str, Any], known_nodes: Collection[str]) -> Waiver:
    """Return one waiver. Raises WaiverError with all that is wrong with it."""
    names = [field.name for field in fields(Waiver)]
    if not hasattr(entry, "items"):
        raise WaiverError(f"expected a mapping with {', '.join(names)}, found {entry!r}")
    wrong = []
    if unknown := sorted(map(str, set(entry) - set(names))):
        wrong.append(f"expected {', '.join(names)}, found {', '.join(unknown)}")
    if missing := [name for name in names if name not in OPTIONAL and not entry.get(name)]:
        wrong.append(f"expected {', '.join(missing)}, found none")
    texts = {
        name: entry.get(name, "")
        for name in ("control", "reason", "owner", "approver", "ticket", "compensating")
    }
    wrong += [
        f"{name}: expected a text, found {text!r}"
        for name, text in texts.items()
        if text and not isinstance(text, str)
    ]
    nodes = entry.get("nodes") or ()
    if not isinstance(nodes, list | tuple) or not all(isinstance(name, str) for name in nodes):
        wrong.append(f"nodes: expected a list of names of nodes or groups, found {nodes!r}")
    elif strange := [name for name in nodes if name not in known_nodes]:
        wrong.append(f"nodes: the inventory has neither node nor group {', '.join(strange)}")
    moments: dict[str, datetime] = {}
    for name in ("valid_from", "expires"):
        if entry.get(name):
            try:
                moments[name] = instant(entry[name])
            except WaiverError as error:
                wrong.append(f"{name}: {error}")
    start, end = moments.get("valid_from"), moments.get("expires")
    if start and end and start >= end:
        wrong.append(f"it ends ({utc(end)}) before it begins ({utc(start)})")
    if wrong or not end:
        raise WaiverError("; ".join(wrong))
    plain = {name: str(text) for name, text in texts.items()}
    plain["control"] = canonical(plain["control"])
    return Waiver(**plain, nodes=tuple(map(str, nodes)), valid_from=start, expires=end)


class Use(Enum):
    """What the checked nodes say of a waiver."""

    NEEDED = "its control fails somewhere"
    UNNEEDED = "its control passes everywhere"
    UNMATCHED = "no node has such a control"
    UNKNOWN = "not all of its nodes were checked"


def faults(
    used: Mapping[Waiver, Use], now: datetime, controls: Collection[str] = ()
) -> Iterator[WaiverFinding]:
    """Waivers that somebody has to look at. `controls` are all that there are, to guess what a typo meant."""
    for waiver, use in used.items():
        for code, text in said_of(waiver, use, now):
            close = nearest(waiver.control, controls) if code is WaiverFault.UNMATCHED else ""
            end = f"; did you mean {close}?" if close else "."
            yield WaiverFinding(
                code,
                waiver.control,
                waiver.ticket,
                f"The waiver of {waiver.control} ({waiver.ticket}) {text}{end}",
            )


def nearest(name: str, controls: Collection[str]) -> str:
    """Return the control that a name may mean, or empty: one with the same name, or with a similar one."""
    short = name.rpartition("/")[2]
    same = [one for one in controls if one.rpartition("/")[2] == short]
    by_short = {one.rpartition("/")[2]: one for one in controls}
    alike = [by_short[one] for one in get_close_matches(short, by_short, n=1)]
    found = get_close_matches(name, same, n=1, cutoff=0) or get_close_matches(name, controls, n=1) or alike
    return found[0] if found else ""


def said_of(waiver: Waiver, use: Use, now: datetime) -> Iterator[tuple[WaiverFault, str]]:
    """Yield each fault of a waiver, with the rest of its sentence."""
    if now >= waiver.expires:
        yield WaiverFault.EXPIRED, f"expired at {utc(waiver.expires)}: renew it or repair the control"
    elif waiver.valid_from and now < waiver.valid_from:
        yield WaiverFault.NOT_YET_VALID, f"is valid from {utc(waiver.valid_from)} on"
    elif now + NOTICE >= waiver.expires:
        yield WaiverFault.ENDING, f"ends at {utc(waiver.expires)}"
    if use is Use.UNMATCHED:
        yield WaiverFault.UNMATCHED, "names no control of its nodes: correct or remove it"
    elif use is Use.UNNEEDED and waiver.holds(now):
        yield WaiverFault.UNNEEDED, "is not needed: the control does not fail"
