"""The result of a run of the program: one JSON file of the node, for its operator and for the controller."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA_VERSION = 1
#: No result is larger: what is more is counted, and stands in the node's journal.
MOST_CONTROLS = 200
LONGEST_TEXT = 400
CHECKED, REFUSED, HELD, FAILED = "checked", "refused", "held", "failed"
#: The code of a run that was `checked` against the last accepted commit, because nothing newer was to be had.
NOT_FETCHED = "not-fetched"


@dataclass(frozen=True)
class Control:
    """A control that is not as it should be: `state` is fail or not-checked."""

    id: str
    state: str
    reason: str


@dataclass(frozen=True)
class Result:
    """`state` is the outcome of the run.

    `checked`: the node was compared with `commit`. `refused`: what the repository offered was not applied,
    `code` and `reason` say why. `held`: somebody else works on the node, so nothing was done. `failed`: the
    program could not do its work. With the code `not-fetched`, `checked` means that the repository could not
    be reached, or offered nothing, and the last accepted commit was taken again; `reason` says why. A
    `reason` beside `checked` without a code is a remark.

    `verdict` is that of the compliance check (compliant, not-compliant, not-checked; empty where none was
    made), `commit_time` when the commit was made, as its author says. `repaired` has the ids of controls that
    failed before a repair and pass since, `left` those that still differ, `left_count` their number. Times
    are UTC. `delivery_problem` is of the run before.
    """

    node: str
    state: str
    started_at: str
    finished_at: str = ""
    interval_s: int = 0
    commit: str = ""
    commit_time: str = ""
    ref: str = ""
    signer: str = ""
    code: str = ""
    reason: str = ""
    verdict: str = ""
    repaired: tuple[str, ...] = ()
    repair_problem: str = ""
    left: tuple[Control, ...] = ()
    left_count: int = 0
    delivery_problem: str = ""
    schema_version: int = SCHEMA_VERSION

    def text(self) -> str:
        """Return the result as JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @property
    def sentence(self) -> str:
        """Return the outcome of the run, for the journal."""
        where = f"commit {self.commit[:12]} ({self.ref}, signed by {self.signer})" if self.signer else ""
        if self.state != CHECKED:
            return f"{self.state}: {self.reason}"
        counts = f"{len(self.repaired)} repaired, {self.left_count} left"
        said = [f"{where}: {self.verdict}; {counts}.", self.reason, self.repair_problem]
        return " ".join(one for one in said if one)


def short(text: str) -> str:
    """Return a text in one line and of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def from_statement(statement: Any, node: str) -> tuple[tuple[Control, ...], str]:
    """Return the controls of a node that are not as they should be, and why it has none, if so.

    Its last validation is left out: the controller has it, and judges it.

    Raises:
        ValueError: the statement is not one that has this node.
    """
    try:
        (found,) = (one for one in statement["nodes"] if one["node"] == node)
        controls = [
            Control(str(one["id"]), str(one["state"]), short(str(one.get("reason", ""))))
            for one in found["controls"]
            if one["state"] in ("fail", "not-checked") and not str(one["id"]).startswith("validation/")
        ]
        return tuple(controls), "" if found["controls"] else str(found.get("reason", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the statement has another form than expected ({error!r})") from error


def verdict(controls: tuple[Control, ...], unread: str) -> str:
    """Return the verdict of these controls, as the compliance check would give it."""
    if any(one.state == "fail" for one in controls):
        return "not-compliant"
    return "not-checked" if controls or unread else "compliant"
