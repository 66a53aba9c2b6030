"""The policy of a roll-out: how many nodes at a time, in which order, when, and how many may fail.

Read from YAML. What is wrong with a file is said all at once, before anything is done.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, datetime, time
from functools import cached_property
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from temper.base import options
from temper.base.options import OptionsError, Wrong, items, read_entry, read_fields, text, whole, word
from temper.plan.convert import plain
from temper.rollout.windows import DAYS, Calendar, Exclusion, Window
from validation.model.contract import StringEnum

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
CLOCK = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")


#: The kernel that the node's own packages would bring next.
NEWEST = "newest"
#: Debian's policy, 5.6.12.
PACKAGE_VERSION = re.compile(r"[0-9][A-Za-z0-9.+:~-]*")
#: What the operator's own commands must be able to do.
COMMANDS = ("look", "drain", "empty", "give_back")
#: What `kubectl drain` evicts only when it is told to: pods that lose what is in their emptyDir volumes, and
#: pods without a controller, which do not come back.
DRAIN_OPTIONS = ("delete-emptydir-data", "force")
SNAPSHOT_COMMANDS = ("take", "check", "remove")


class PolicyError(OptionsError):
    """A policy that cannot be used."""


def aim(stack: str, kernel: str) -> str:
    """Return what a roll-out brings nodes to, for people."""
    wanted = "the newest kernel" if kernel == NEWEST else f"kernel {kernel}" if kernel else ""
    return " with ".join(filter(None, (stack, wanted)))


class Drain(StringEnum):
    """Who takes nodes out of service."""

    NONE = "none"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    COMMANDS = "commands"


class Snapshot(StringEnum):
    """What is taken of a node before it is changed, and by whom."""

    NONE = "none"
    BTRFS = "btrfs"
    LVM = "lvm"
    ZFS = "zfs"
    COMMANDS = "commands"


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a part of all in percent."""

    value: float
    percent: bool = False

    def of(self, total: int, least: int = 0) -> int:
        """Return how many of `total` that is, rounded down, and `least` or more."""
        return max(math.floor(total * self.value / 100 + 1e-9) if self.percent else int(self.value), least)

    def __str__(self) -> str:
        return f"{self.value:g}{' %' * self.percent}"

    @property
    def written(self) -> str | int:
        """As a policy has it."""
        return str(self) if self.percent else int(self.value)


@dataclass(frozen=True)
class Policy:
    """What an operator decides once for a roll-out. Times are minutes.

    `waves` are shares of the nodes that are no canaries, each with those before it; the last takes all.
    `max_unavailable` counts whoever is out of service, by us or by others. More rolled-back and failed nodes
    than `failure_budget` stop the roll-out, more nodes left out than `refusal_budget` hold it.
    `group_limits`: at most so many unavailable in each group whose name matches (`rack*: 1`).
    A node takes up to the sum of stage (download), drain, work (baseline to return) and way back, and starts
    where all of it fits. `measure_minutes` is the part of the work that one measurement takes, of
    `measure_runs` runs of the payload. Of tests whose names match `gate_numbers` the numbers decide;
    `gate_accepted` are codes of findings that a node may have had before.
    `kernel`: empty to leave it, `newest`, or the version of the package of a kernel's image.
    `drain_commands`: the words of commands `look`, `drain`, `empty` and `give_back`, with {node} and {reason}
    (temper/rollout/drain/commands.py says how they must end).
    `drain_options`: of `kubectl drain`, without the dashes.
    `snapshot`: what a node must have before it is changed, with `snapshot_gib` for what changes after it.
    `snapshot_max_age_minutes`: how old it may be then, 0 for any age. `snapshot_commands`: the words of
    `check`, `take` and `remove`, with {node} and {name} (temper/rollout/snapshots.py says how they must end);
    without `take`, the platform takes snapshots by itself.
    """

    canaries: int = 1
    soak_minutes: int = 60
    waves: tuple[Share, ...] = (Share(10, True), Share(40, True), Share(100, True))
    wave_soak_minutes: int = 0
    max_unavailable: Share = Share(5, True)
    failure_budget: Share = Share(0)
    refusal_budget: Share = Share(10, True)
    group_limits: Mapping[str, int] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    drain: Drain = Drain.NONE
    drain_commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drain_options: tuple[str, ...] = ()
    stage_minutes: int = 15
    drain_minutes: int = 30
    work_minutes: int = 60
    way_back_minutes: int = 45
    measure_minutes: int = 15
    measure_runs: int = 5
    gate_numbers: tuple[str, ...] = ("*",)
    gate_accepted: tuple[str, ...] = ()
    snapshot: Snapshot = Snapshot.NONE
    snapshot_commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    snapshot_gib: int = 20
    snapshot_max_age_minutes: int = 0
    kernel: str = ""

    @cached_property
    def calendar(self) -> Calendar:
        """Its windows and exclusions."""
        return Calendar(self.windows, self.exclusions)


def load(path: Path) -> Policy:
    """Return the policy of a file. Raises PolicyError."""
    try:
        content = options.load(path, "a policy")
    except OptionsError as error:
        raise PolicyError(error.problems) from error
    try:
        return read(content)
    except PolicyError as error:
        raise PolicyError([f"{path}: {problem}" for problem in error.problems]) from None


def read(content: Any) -> Policy:
    """Return a policy from what YAML or JSON has; nothing at all means the defaults. Raises PolicyError."""
    problems: list[str] = []
    found = read_fields(content or {}, READERS, "policy:", problems)
    if problems:
        raise PolicyError(problems)
    policy = Policy(**found)
    if problems := list(_contradictions(policy)):
        raise PolicyError(problems)
    return policy


def _contradictions(policy: Policy) -> list[str]:
    """Return what is right by itself, and cannot be right together."""
    shares = [share.value for share in policy.waves]
    problems = []
    if len({share.percent for share in policy.waves}) == 1 and shares != sorted(set(shares)):
        problems.append(
            f"waves: expected shares that grow, because each has those before it, found "
            f"{', '.join(map(str, policy.waves))}"
        )
    if (policy.drain is Drain.COMMANDS) != bool(policy.drain_commands):
        problems.append(
            "drain_commands: expected with drain: commands, and only there, found drain: "
            f"{policy.drain} and {len(policy.drain_commands)} commands"
        )
    if policy.drain_options and policy.drain is not Drain.KUBERNETES:
        problems.append(f"drain_options: expected only with drain: kubernetes, found drain: {policy.drain}")
    problems += _snapshot_contradictions(policy)
    if 2 * policy.measure_minutes > policy.work_minutes:
        problems.append(
            "work_minutes: a node is measured twice, each for up to measure_minutes "
            f"({policy.measure_minutes}), and all work may take {policy.work_minutes}; "
            "raise that, or lower the other"
        )
    return problems


def _snapshot_contradictions(policy: Policy) -> list[str]:
    given = policy.snapshot_commands
    if (policy.snapshot is Snapshot.COMMANDS) != bool(given):
        return [
            "snapshot_commands: expected with snapshot: commands, and only there, found snapshot: "
            f"{policy.snapshot} and {len(given)} commands"
        ]
    if not given or "take" in given:
        return []
    problems = []
    if not policy.snapshot_max_age_minutes:
        problems.append(
            "snapshot_max_age_minutes: expected where snapshot_commands has no `take`, because any snapshot "
            "of the platform's would do, found none"
        )
    if "remove" in given:
        problems.append(
            "snapshot_commands: expected `remove` with `take` only, because nothing is removed that was not "
            "taken here, found it alone"
        )
    return problems


def _share(least: float) -> Callable[[Any], Share]:
    def read_it(value: Any) -> Share:
        expected = Wrong(f"a number of nodes from {least:g}, or a part such as 10 %")
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return Share(value)
        part = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", value) if isinstance(value, str) else None
        if not part or not (0 < float(part[1]) <= 100 or least == float(part[1]) == 0):
            raise expected
        return Share(float(part[1]), percent=True)

    return read_it


def _clock(value: Any) -> time:
    """Hours and minutes. YAML reads an unquoted 22:00 as 22 * 60."""
    if isinstance(value, int) and not isinstance(value, bool) and 60 <= value <= 24 * 60:
        value = f"{value // 60}:{value % 60:02}"
    found = CLOCK.fullmatch(value) if isinstance(value, str) else None
    if not found or (found[1] == "24" and found[2] != "00"):
        raise Wrong('a time of day such as "22:00"')
    return time(int(found[1]) % 24, int(found[2]))


def _zone(value: Any) -> str:
    if isinstance(value, str) and value in available_timezones():
        return str(ZoneInfo(value))
    close = difflib.get_close_matches(str(value), available_timezones(), n=1)
    raise Wrong(f"a time zone such as Europe/Berlin{f' (did you mean {close[0]}?)' if close else ''}")


def _kernel(value: Any) -> str:
    if isinstance(value, str) and (value in ("", NEWEST) or PACKAGE_VERSION.fullmatch(value)):
        return value
    raise Wrong("newest, or the version of a kernel's package such as 6.1.140-1")


def _days(value: Any) -> frozenset[int]:
    """Weekdays by three or more letters of their English names; `mon-fri` is a range."""
    expected = Wrong(f"a list of days out of {', '.join(DAYS)}, or ranges such as mon-fri")
    found: set[int] = set()
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            raise expected
        names = [name.strip().lower() for name in item.split("-")]
        days = [day for name in names for day, whole in enumerate(WEEKDAYS) if whole.startswith(name)]
        if len(names) > 2 or len(days) != len(names) or min(map(len, names)) < 3:
            raise expected
        first, last = days[0], days[-1]
        found |= {(first + offset) % 7 for offset in range((last - first) % 7 + 1)}
    if not found:
        raise expected
    return frozenset(found)


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise Wrong("a date such as 2026-12-24") from None


def _names(value: Any) -> frozenset[str]:
    return frozenset(items("names of groups", text)(value))


def _limits(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise Wrong("a mapping from patterns of groups to numbers, such as {rack*: 1}")
    count = whole(1, "a number of nodes")
    return {key: count(number) for key, number in value.items()}


def _drain_option(value: Any) -> str:
    if value not in DRAIN_OPTIONS:
        raise Wrong(f"some of {', '.join(DRAIN_OPTIONS)}")
    return str(value)


def _commands(
    where: str, names: tuple[str, ...], required: tuple[str, ...]
) -> Callable[[Any], dict[str, tuple[str, ...]]]:
    readers = dict.fromkeys(names, items("words of a command", text, some=True))
    return lambda value: read_entry(value, readers, where, required) if value else {}


def _window(value: Any) -> Window:
    readers: dict[str, Callable[[Any], Any]] = {
        "days": _days, "start": _clock, "end": _clock, "zone": _zone, "groups": _names,
    }  # fmt: skip
    window = Window(**read_entry(value, readers, "windows", ("days", "start", "end", "zone")))
    if window.start == window.end and window.start != time(0):
        raise PolicyError(
            ["windows: a window that ends when it starts is never open; 00:00 to 24:00 is a day"]
        )
    return window


def _exclusion(value: Any) -> Exclusion:
    readers: dict[str, Callable[[Any], Any]] = {"from": _date, "to": _date, "zone": _zone, "reason": text}
    found = read_entry(value, readers, "exclusions", ("from", "to", "zone"))
    if found["to"] < found["from"]:
        raise PolicyError([f"exclusions: it ends ({found['to']}) before it begins ({found['from']})"])
    return Exclusion(found["from"], found["to"], found["zone"], found.get("reason", ""))


_MINUTES = whole(1, "minutes")
READERS: Mapping[str, Callable[[Any], Any]] = {
    "canaries": whole(0, "a number of nodes of each cohort"),
    "soak_minutes": whole(0, "minutes"),
    "waves": items("shares that grow, such as [10 %, 100 %]", _share(1), some=True),
    "wave_soak_minutes": whole(0, "minutes"),
    "max_unavailable": _share(1),
    "failure_budget": _share(0),
    "refusal_budget": _share(0),
    "group_limits": _limits,
    "windows": items("windows", _window),
    "exclusions": items("exclusions", _exclusion),
    "drain": word(Drain),
    "drain_commands": _commands("drain_commands", COMMANDS, COMMANDS),
    "drain_options": items(f"some of {', '.join(DRAIN_OPTIONS)}", _drain_option),
    "stage_minutes": whole(0, "minutes"),
    "drain_minutes": whole(0, "minutes"),
    "work_minutes": _MINUTES,
    "way_back_minutes": whole(0, "minutes"),
    "measure_minutes": _MINUTES,
    "measure_runs": whole(2, "runs on either side"),
    "gate_numbers": items("names of tests, such as gpu_*", text),
    "gate_accepted": items("codes of findings", text),
    "snapshot": word(Snapshot),
    "snapshot_commands": _commands("snapshot_commands", SNAPSHOT_COMMANDS, ("check",)),
    "snapshot_gib": whole(1, "GiB"),
    "snapshot_max_age_minutes": whole(0, "minutes"),
    "kernel": _kernel,
}
assert set(READERS) == {option.name for option in fields(Policy)}


def as_document(policy: Policy) -> dict[str, Any]:
    """Return the policy as `read` takes it, in plain values: what the store keeps."""
    found: dict[str, Any] = plain(policy)
    found["waves"] = [share.written for share in policy.waves]
    for name in ("max_unavailable", "failure_budget", "refusal_budget"):
        found[name] = getattr(policy, name).written
    found["windows"] = [
        {
            "days": [DAYS[day] for day in sorted(window.days)],
            "start": window.start.isoformat("minutes"),
            "end": window.end.isoformat("minutes"),
            "zone": window.zone,
            "groups": sorted(window.groups),
        }
        for window in policy.windows
    ]
    found["exclusions"] = [
        {
            "from": exclusion.first.isoformat(),
            "to": exclusion.last.isoformat(),
            "zone": exclusion.zone,
            "reason": exclusion.reason,
        }
        for exclusion in policy.exclusions
    ]
    return found
