"""A statement as OSCAL assessment results (https://pages.nist.gov/OSCAL/), for tools that collect them.

An observation is of all nodes on which a control came out alike, so that a fleet of thousands is no file of
gigabytes; what fails is a finding of each node, too. What nobody could check is an observation by no known
method, and no finding. What is accepted is a risk whose deviation was approved, with the waiver's end as
deadline. UUIDs are made of what was found, and of the node, so that the results of two runs compare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from temper.compliance.alike import Once, uuid_of
from temper.compliance.document import file_name
from temper.compliance.model import Change, ControlResult, NodeStatement, State, Statement, former
from validation.model.contract import Encoded, encoded, json_text

#: The version of NIST's model, and of the schema that a test holds this to.
OSCAL_VERSION = "1.2.3"
#: Of the properties that are Temper's own.
NAMESPACE = "https://temper.invalid/ns/oscal"
#: Of a node that could not be read: it has no controls.
ANSWERS = "node/answers"
#: What is so although somebody accepts that it is not: no risk.
GOOD = (State.PASS, State.NOT_APPLICABLE)
#: Where the nodes of an observation come to stand: no text of it has such quotes.
SUBJECTS = '"subjects": []'
NO_TOKEN = re.compile(r"[^A-Za-z0-9._-]")


def document(statement: Statement) -> Iterator[str]:
    """Yield the JSON of a statement, in pieces."""
    yield from json_text({"assessment-results": assessment_results(statement)}, lists=2)


def assessment_results(statement: Statement) -> dict[str, Any]:
    """Return all results of one run."""
    plan = {
        "uuid": uuid("plan"),
        "title": "The inventory of the fleet",
        "description": "What is assessed is what the inventory asks of each node. Its digest (SHA-256) is "
        f"{statement.inventory_sha256 or 'unknown'}.",
        "rlinks": [{"href": "manifest.json", "media-type": "application/json"}],
    }
    return {
        "uuid": uuid("results", statement.made_at, statement.inventory_sha256),
        "metadata": {
            "title": "Temper: compliance of the fleet",
            "last-modified": statement.made_at,
            "version": statement.made_at,
            "oscal-version": OSCAL_VERSION,
        },
        "import-ap": {"href": f"#{plan['uuid']}"},
        "results": [result(statement)],
        "back-matter": {"resources": [plan]},
    }


def result(statement: Statement) -> dict[str, Any]:
    """Return the one result of a run. Lists that would be empty are left out, as the schema asks."""
    reviewed = sorted({control.id for node in statement.nodes for control in controls(node)})
    local = {
        "components": [tool(statement)],
        "inventory-items": [inventory_item(node) for node in statement.nodes],
    }
    lists: dict[str, Sequence[dict[str, Any] | Encoded]] = {
        "observations": list(observations(statement)),
        "risks": list(risks(statement)),
        "findings": [
            finding(node, control)
            for node in statement.nodes
            for control in node.shown
            if control.state is State.FAIL
        ],
    }
    selection = {"include-controls": [{"control-id": token(name)} for name in reviewed]}
    said = "\n".join(one.text for one in statement.waivers)
    return {
        "uuid": uuid("result", statement.made_at, statement.inventory_sha256),
        "title": "What each node is, and would be after a reboot, compared with the inventory",
        "description": statement.sentence,
        "start": statement.made_at,
        "props": [own("verdict", str(statement.verdict))],
        "local-definitions": {name: items for name, items in local.items() if items},
        "reviewed-controls": {"control-selections": [selection if reviewed else {"include-all": {}}]},
        **{name: items for name, items in lists.items() if items},
        **({"remarks": said} if said else {}),
    }


def controls(node: NodeStatement) -> Iterator[ControlResult]:
    """Yield those of a node; of one that could not be read, that it could not."""
    yield from node.controls
    if not node.controls:
        yield ControlResult(ANSWERS, "The node can be read", State.NOT_CHECKED, node.reason)


class ControlOutcome(NamedTuple):
    """How a control came out, whatever the node: nodes that have this in common share an observation."""

    control: str
    title: str
    state: State
    measured: State | None
    reason: str
    waiver: str
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, control: ControlResult) -> ControlOutcome:
        """Return that of a control on a node."""
        return cls(control.id, *(getattr(control, name) for name in cls._fields[1:]))

    @property
    def description(self) -> str:
        """It in words."""
        words = [self.reason, self.waiver]
        words += [change.text for change in self.changes]
        return "\n".join([self.title, *filter(None, words)])


@cache
def place(outcome: ControlOutcome) -> str:
    """Return the UUID of an observation, the same in every run."""
    measured = str(outcome.measured or "")
    return uuid("observation", former(outcome.control), str(outcome.state), measured, outcome.description)


def observations(statement: Statement) -> Iterator[Encoded]:
    """Yield each way in which a control came out, with all nodes on which it did."""
    alike: dict[ControlOutcome, list[str]] = {}
    # Since when it passes is in the statement; here it would be most of the file.
    told_of = Once[ControlResult, tuple[list[str], str]](
        lambda control: (
            alike.setdefault(ControlOutcome.of(control), []),
            control.since if control.state not in GOOD else "",
        )
    )
    for node in statement.nodes:
        plain = {"subject-uuid": uuid("node", node.node), "type": "inventory-item", "title": line(node.node)}
        said: dict[str, str] = {}
        for control in controls(node):
            subjects, since = told_of(control)
            if since not in said:
                said[since] = encoded(subject(plain, since))
            subjects.append(said[since])
    for outcome, subjects in alike.items():
        # One text of all nodes, many times: the encoder would go through each of them again.
        before, after = encoded(observation(outcome, subjects, statement)).split(SUBJECTS)
        yield Encoded(f'{before}"subjects": [{", ".join(subjects)}]{after}')


def subject(plain: dict[str, Any], since: str) -> dict[str, Any]:
    """Return a node in an observation."""
    return plain | {"props": [own("since", since)]} if since else plain


def observation(outcome: ControlOutcome, subjects: list[str], statement: Statement) -> dict[str, Any]:
    """Return a control as it was found on `subjects`, which are left out: `SUBJECTS` holds their place."""
    checked = State.NOT_CHECKED not in (outcome.state, outcome.measured)
    where = json.loads(subjects[0])["title"] if len(subjects) == 1 else f"{len(subjects)} nodes"
    return {
        "uuid": place(outcome),
        "title": line(f"{outcome.control} on {where}"),
        "description": outcome.description,
        "props": [
            own("control", outcome.control),
            own("state", str(outcome.state)),
            *([own("measured", str(outcome.measured))] if outcome.measured else []),
        ],
        "methods": ["TEST" if checked else "UNKNOWN"],
        "types": ["control-objective"],
        "origins": [{"actors": [{"type": "tool", "actor-uuid": uuid("tool")}]}],
        "subjects": [],
        "relevant-evidence": [
            {"href": file_name(statement), "description": "All that was found, for programs."}
        ],
        "collected": statement.made_at,
    }


def finding(node: NodeStatement, control: ControlResult) -> dict[str, Any]:
    """Return a control that is not satisfied on a node."""
    return {
        "uuid": uuid("finding", node.node, former(control.id)),
        "title": line(f"{control.title} ({node.node})"),
        "description": control.why or control.title,
        "target": {
            "type": "objective-id",
            "target-id": token(control.id),
            "status": {"state": "not-satisfied", "reason": "fail"},
        },
        "related-observations": [{"observation-uuid": place(ControlOutcome.of(control))}],
        **({"remarks": f"Repair: {control.remedy}"} if control.remedy else {}),
    }


def risks(statement: Statement) -> Iterator[dict[str, Any]]:
    """Yield each accepted deviation once, with the observations of all nodes that it is accepted on."""
    accepted: dict[tuple[str, str], dict[str, None]] = {}
    place_of = Once[ControlResult, str](lambda control: place(ControlOutcome.of(control)))
    examples: dict[tuple[str, str], ControlResult] = {}
    for node in statement.nodes:
        for control in node.shown:
            if control.state is State.WAIVED and control.measured not in GOOD:
                key = (control.id, control.waiver)
                accepted.setdefault(key, {})[place_of(control)] = None
                examples.setdefault(key, control)
    for (name, waiver), places in accepted.items():
        first = examples[name, waiver]
        yield {
            "uuid": uuid("risk", former(name), waiver),
            "title": line(f"Accepted: {first.title}"),
            "description": f"{name} is not as the benchmark or the inventory asks, and that is accepted.",
            "statement": waiver or "No reason was given.",
            "props": [own("control", name)],
            "status": "deviation-approved",
            **({"deadline": first.waived_until} if first.waived_until else {}),
            "related-observations": [{"observation-uuid": one} for one in places],
        }


def tool(statement: Statement) -> dict[str, Any]:
    """Return what has looked."""
    return {
        "uuid": uuid("tool"),
        "type": "software",
        "title": line(statement.tool) or "Temper",
        "description": "Compares nodes with their plans, and changes nothing on them.",
        "status": {"state": "operational"},
    }


def inventory_item(node: NodeStatement) -> dict[str, Any]:
    """Return a node, which observations are about."""
    known = {"system": node.system, "gpus": node.gpus, "driver": node.driver, "verdict": str(node.verdict)}
    return {
        "uuid": uuid("node", node.node),
        "description": node.node,
        "props": [own(name, value) for name, value in known.items() if line(value)],
    }


def own(name: str, value: str) -> dict[str, str]:
    """Return a property of Temper's own."""
    return {"name": name, "ns": NAMESPACE, "value": line(value)}


def uuid(*of: str) -> str:
    """Return the same for the same."""
    return uuid_of("temper:oscal:" + "\0".join(of))


def line(text: str) -> str:
    """Text on one line, without blanks around it."""
    return " ".join(text.split())


def token(name: str) -> str:
    """Return a control's id as OSCAL's tokens allow it: two ids never become one."""
    plain = NO_TOKEN.sub("_", name)
    return plain if plain == name else f"{plain}.{uuid('control', name)[:8]}"
