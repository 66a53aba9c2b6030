"""How a check ended, from the report that it wrote, and what people have to hear of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.base import ROOT
from temper.base.nodes import counted, ranges
from temper.base.options import told
from temper.base.outcome import BAD
from temper.report import origin
from temper.report.origin import CHECK
from validation.model.contract import ContractError, StringEnum, loads
from validation.model.grouping import by_key
from validation.model.printable import one_line

REPORTS = ROOT / "reports"
#: How much of a report's sentence a message has.
MOST_SENTENCE = 2000


class CheckState(StringEnum):
    """How a check ended. Where nothing is known of what it asks for, that is not good."""

    GOOD = "good"
    BAD = "bad"
    NOT_CHECKED = "not checked"
    NOT_CARRIED_OUT = "not carried out"


#: By the exit status of a verdict.
OF_STATUS = {0: CheckState.GOOD, 1: CheckState.BAD, 2: CheckState.NOT_CHECKED}


@dataclass(frozen=True)
class CheckOutcome:
    """How a check ended: `nodes` are those that are not good, each with its state."""

    state: CheckState
    sentence: str
    nodes: Mapping[str, str] = field(default_factory=dict)
    report: str = ""

    @property
    def exit_status(self) -> int:
        """0 good, 1 bad, 2 where it is not known."""
        return {CheckState.GOOD: 0, CheckState.BAD: 1}.get(self.state, 2)

    def remembered(self, told: str | None) -> str:
        """Return what makes two outcomes the same, as the history keeps it; `told` is what people heard last.

        A check that was not carried out says nothing of nodes: those that people heard of stay.
        """
        nodes = dict(sorted(self.nodes.items()))
        if told and self.state is CheckState.NOT_CARRIED_OUT:
            nodes = json.loads(told)["nodes"]
        return json.dumps({"state": self.state.value, "nodes": nodes})


def of_compliance(folder: Path) -> CheckOutcome:
    """Read a report of compliance. Raises ContractError, OSError."""
    from temper.compliance import document

    statement = document.of_report(folder)
    states = {node.node: node.verdict.outcome for node in statement.nodes}
    return _outcome(statement.verdict.exit_status, statement.sentence, states, folder)


def of_validation(folder: Path) -> CheckOutcome:
    """Read a report of validation. Raises ContractError, OSError."""
    from temper.judge.outcomes import state_of
    from validation.verdict.verdicts import FleetVerdict

    fleet = loads(FleetVerdict, (folder / "summary.json").read_bytes())
    states = {node.node: state_of(node) for node in fleet.nodes}
    return _outcome(fleet.exit_status, fleet.sentence, states, folder)


def _outcome(status: int, sentence: str, states: Mapping[str, str], folder: Path) -> CheckOutcome:
    bad = {node: state for node, state in states.items() if state in BAD}
    return CheckOutcome(OF_STATUS.get(status, CheckState.BAD), sentence, bad, str(folder / "report.html"))


#: Each check with the folder of its reports, where no other is named, and their reader.
CHECKS: Mapping[str, tuple[Path, Callable[[Path], CheckOutcome]]] = {
    "compliance": (REPORTS / "compliance", of_compliance),
    "validation": (REPORTS, of_validation),
}


def names(reports: Path) -> set[str]:
    """Return the names of the folders in that of reports."""
    return {one.name for one in reports.iterdir() if one.is_dir()} if reports.is_dir() else set()


def outcome(
    check: str, reports: Path, before: Collection[str], token: str, status: int, ended: str
) -> CheckOutcome:
    """Return how a check ended: with its report, which is none of `before` and has its token, or not at all.

    `status` is that of its command, `ended` says for people how it ended.
    """
    made = names(reports) - {*before, "latest"}
    name = max((one for one in made if _token(reports / one) == token), default="")
    if not name:
        others = f", but other checks wrote {', '.join(sorted(made))}" if made else ""
        return CheckOutcome(
            CheckState.NOT_CARRIED_OUT,
            f"{ended} and wrote no report into {reports}{others} (--reports names another folder; the report "
            f"has the value of {CHECK}, which its command finds in the environment)",
        )
    try:
        found = CHECKS[check][1](reports / name)
    except (OSError, ContractError) as error:
        return CheckOutcome(
            CheckState.NOT_CARRIED_OUT, f"{ended}, and its report cannot be read: {one_line(told(error))}"
        )
    if status and found.state is CheckState.GOOD:
        # Of a command that broke off after its report, nobody knows what else it should have done.
        return CheckOutcome(
            CheckState.NOT_CARRIED_OUT, f"{ended}, although its report is good", report=found.report
        )
    return found


def _token(folder: Path) -> str:
    """Return what the check that wrote a report calls itself; empty where there is nothing to read."""
    try:
        return origin.read(folder).check
    except (OSError, ContractError):
        return ""


@dataclass(frozen=True)
class Message:
    """One message: a subject, a text, and a document for programs."""

    subject: str
    text: str
    document: Mapping[str, Any]


def is_news(now: CheckOutcome, told: str | None) -> bool:
    """Return whether people have to hear of an outcome.

    `told` is what they heard last, None for nothing yet.
    """
    return now.remembered(told) != told if told is not None else now.state is not CheckState.GOOD


def message(check: str, fleet: str, controller: str, at: str, now: CheckOutcome, told: str | None) -> Message:
    """Return what is said of an outcome: its state, what differs from what was told, and where to look."""
    before: dict[str, Any] = json.loads(told) if told else {"state": "", "nodes": {}}
    was = f" (was {before['state']})" if before["state"] not in ("", now.state) else ""
    said = {
        "new": now.nodes.keys() - before["nodes"].keys(),
        "good again": set(before["nodes"]) - {*now.nodes},
    }
    if now.state is CheckState.NOT_CARRIED_OUT:
        said.clear()  # nothing is known of any node
    subject = one_line(f"Temper: {check} of {fleet} is {now.state}{was}")
    by_state = by_key((state, node) for node, state in now.nodes.items())
    lines = [
        subject,
        one_line(now.sentence)[:MOST_SENTENCE],
        *(f"{state}: {counted(nodes)}" for state, nodes in by_state.items()),
        *(f"{word}: {ranges(nodes)}" for word, nodes in said.items() if nodes and told),
        f"Controller: {controller}; report: {now.report or 'none'}",
    ]
    return Message(
        subject,
        "\n".join(map(one_line, lines)),
        {
            "schema_version": 1,
            "check": check,
            "fleet": fleet,
            "controller": controller,
            "at": at,
            "state": now.state.value,
            "before": before["state"],
            "sentence": now.sentence,
            "nodes": dict(now.nodes),
            "report": now.report,
        },
    )
