"""What is known of each finding: its sentence, severity and remedy, what it means and what usually causes it.

All of it is data: data/findings/*.yml. `python3 -m tools.finding_docs` makes catalogue.json of it, because a
node's Python seldom reads YAML. A check names a code and gives the facts; it words nothing itself. Codes are
stable.
"""

from __future__ import annotations

import difflib
import json
import pkgutil
import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from validation.model.contract import Finding, MachineAction, State, decode
from validation.model.grouping import by_key

CARRIED = "catalogue.json"
#: What to do about a finding that only a newer payload knows.
UNKNOWN = "look at the node: this version of Temper does not know the finding"
XIDS = "xids.json"


@dataclass(frozen=True)
class Nvlink5Unit:
    """Which error status of a unit of NVLink 5 asks for a reset, for nothing, or a reset where promoted."""

    reset: tuple[int, ...] = ()
    nothing: tuple[int, ...] = ()
    promoted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Xids:
    """`silent` are those that the catalogue explains and that say nothing about a node."""

    silent: tuple[int, ...] = ()
    nvlink5: dict[str, Nvlink5Unit] = field(default_factory=dict)


@lru_cache(maxsize=1)
def xids() -> Xids:
    """Return what NVIDIA's catalogue of Xid errors says that decides what is found: data/xids.yml."""
    return decode(Xids, json.loads(pkgutil.get_data(__package__, XIDS) or b""))


class CatalogueError(ValueError):
    """A finding that is not as the catalogue describes it: a fault of this program."""


@dataclass(frozen=True)
class Case:
    """One way in which a finding shows. `severity` has two states where the measurement decides.

    `when` tells it from the other cases of its entry, where these have other remedies.
    """

    severity: tuple[State, ...]
    sentence: str
    remedy: tuple[str, ...]
    machine_action: MachineAction
    when: str = ""

    @property
    def facts(self) -> set[str]:
        """The names of the facts in the sentence."""
        return {name for _, name, _, _ in string.Formatter().parse(self.sentence) if name}


@dataclass(frozen=True)
class Entry:
    """One code. The only case of most has no name."""

    title: str
    meaning: str
    causes: tuple[str, ...]
    source: str
    cases: dict[str, Case]

    @property
    def remedy(self) -> tuple[str, ...]:
        """What to do: step by step where all cases have one remedy, else case by case."""
        whens = by_key((case.remedy, case.when) for case in self.cases.values())
        if len(whens) == 1:
            return next(iter(whens))
        return tuple(f"if {' or '.join(when)}: {', then '.join(steps)}" for steps, when in whens.items())


@dataclass(frozen=True)
class Catalogue:
    """All findings by their code."""

    findings: dict[str, Entry]


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, Entry]:
    """Return all findings that this program can report, by their code."""
    return decode(Catalogue, json.loads(pkgutil.get_data(__package__, CARRIED) or b"")).findings


def finding(
    code: str, case: str = "", /, *, gpu: int | None = None, state: State | None = None, **facts: Any
) -> Finding:
    """Return a finding from its facts, on a GPU by its index or on the node.

    `state` is given where the catalogue allows two. Raises CatalogueError for what the catalogue does not
    know, and for a fact that is missing or of no use; a test looks at every caller.
    """
    entry = _case(code, case)
    if (state is None) != (len(entry.severity) == 1) or (state and state not in entry.severity):
        raise CatalogueError(f"{code}: expected a state out of {', '.join(entry.severity)}, found {state}")
    text = sentence(code, case, gpu=gpu, **facts)
    return Finding(code, state or entry.severity[0], text, "; ".join(entry.remedy), gpu, entry.machine_action)


@lru_cache(maxsize=1 << 12)
def advised(found: Finding) -> Finding:
    """Return a finding of another machine with what this program advises to do about it.

    People type what a remedy says, and programs do what the machine action says: neither is a node's to word.
    """
    entry = catalogue().get(found.code)
    cases = tuple(entry.cases.values()) if entry else ()
    actions = [case.machine_action for case in cases if "; ".join(case.remedy) == found.action]
    # A result of an earlier schema has no machine action.
    if actions and found.machine_action in (None, *actions):
        return found
    return replace(
        found,
        action="; ".join(entry.remedy) if entry else UNKNOWN,
        machine_action=cases[0].machine_action if len(cases) == 1 else MachineAction.NONE,
    )


def sentence(code: str, case: str = "", /, *, gpu: int | None = None, **facts: Any) -> str:
    """Return what a finding says. Raises CatalogueError."""
    entry = _case(code, case)
    given = facts | ({} if gpu is None else {"gpu": gpu})
    # A GPU may be known without being in the sentence.
    if wrong := (entry.facts - given.keys()) | (facts.keys() - entry.facts):
        raise CatalogueError(f"{code}: facts are missing or of no use: {', '.join(sorted(wrong))}")
    return entry.sentence.format(**given)


def _case(code: str, case: str) -> Case:
    try:
        return catalogue()[code].cases[case]
    except KeyError as error:
        raise CatalogueError(f"no finding {code} {case or 'without a case'} is in the catalogue") from error


def xid_code(number: int) -> str | None:
    """Return the code of an Xid error.

    None where NVIDIA's catalogue explains it and it says nothing of the node.
    """
    if (code := f"xid-{number}") in catalogue():
        return code
    return None if number in xids().silent else "xid-unknown"


def explain(code: str) -> str:
    """Return all that is known of a code, for people. Raises KeyError."""
    found = catalogue()[code]
    lines = [f"{code}: {found.title}.", "", f"{found.meaning}."]
    for heading, items in (("Usual causes:", found.causes), ("What to do:", found.remedy)):
        lines += ["", heading, *(f"  - {item}" for item in items)]
    lines += ["", f"Severity: {severities(found)}. For programs: {machine_actions(found)}."]
    return "\n".join([*lines, f"Source: {found.source}"]) + "\n"


def severities(entry: Entry) -> str:
    """`degraded or fail`: how bad a finding can be."""
    states = {state for case in entry.cases.values() for state in case.severity}
    return " or ".join(state for state in State if state in states)


def machine_actions(entry: Entry) -> str:
    """`reset-gpu or reboot`: what a program can do about a finding."""
    return " or ".join(dict.fromkeys(case.machine_action for case in entry.cases.values()))


def overview() -> str:
    """Return all codes with their titles."""
    width = max(map(len, catalogue()))
    return "\n".join(f"{code:<{width}}  {found.title}" for code, found in catalogue().items()) + "\n"


def closest(code: str) -> str | None:
    """Return the code that somebody may have meant."""
    return next(iter(difflib.get_close_matches(code, catalogue(), n=1)), None)
