"""A statement for people and programs: text, HTML, JSON, JUnit, SARIF and OSCAL (oscal.py).

What was not checked is a pass in none of them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from xml.sax import saxutils

from temper.base.nodes import number_of, ranges
from temper.base.selection import limit_to
from temper.compliance import document, oscal
from temper.compliance.alike import Once, uuid_of
from temper.compliance.model import ControlResult, NodeStatement, State, Statement, Verdict, WaivedBy, former
from temper.report import origin
from temper.report import write as pages
from temper.report.inputs import Report
from temper.report.origin import Origin
from validation.model.contract import Encoded, dumps, encoded, json_text
from validation.model.grouping import by_key
from validation.model.printable import aligned, first_of, printable
from validation.processes.files import write_atomically

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_CHANGES = 20
#: Failures that a terminal shows, and lines of each; report.txt has all.
MOST_FAILURES = 10
MOST_FOUND = 6
#: Commands for one failure, and nodes whose repairs in their order are shown; nodes that one command is for.
MOST_REMEDIES = 3
MOST_LIMIT = 8
#: A command of a playbook for one node, with nothing beside it.
FOR_ONE_NODE = re.compile(r"(ansible-playbook [^&|;]* --limit )(\S+)((?: --tags \S+)?)")
#: What no document of XML 1.0 may have.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: What an attribute of XML cannot hold as it is: blanks but spaces would be read back as those.
QUOTED = {'"': "&quot;", "\n": "&#10;", "\r": "&#13;", "\t": "&#09;"}
#: How a control that a profile relaxes would come out by the benchmark.
WOULD = {
    State.FAIL: "would fail",
    State.PASS: "would pass",
    State.NOT_APPLICABLE: "are not applicable",
    State.NOT_CHECKED: "cannot be measured",
}


def write(directory: Path, statement: Statement, comes_from: Origin) -> None:
    """Write the report in all its forms. Raises OSError."""
    origin.write(directory, comes_from)
    write_atomically(directory / "report.txt", text(statement))
    pages.write(directory, Report(compliance=statement, origin=comes_from))
    write_atomically(directory / "junit.xml", junit(statement))
    write_atomically(directory / "sarif.json", sarif(statement))
    write_atomically(directory / "oscal.json", oscal.document(statement))
    write_atomically(directory / document.SUMMARY, dumps(replace(statement, nodes=(), changed=())))
    document.write(directory, statement)


# ------------------------------------------------------------------------ text


def text(statement: Statement, *, short: bool = False) -> str:
    """Return what changed, what fails and how to repair it, waivers, counts, and last the verdict.

    A `short` one is for a terminal. It shows the beginning of what was found, and the first failures.
    """
    failures = list(failing_lines(statement, MOST_FOUND if short else None))
    if more := max(len(failures) - MOST_FAILURES, 0) if short else 0:
        failures[MOST_FAILURES:] = [f"{number_of(more, 'more failure')}: report.txt has all."]
    blocks = [
        *changed_lines(statement),
        *failures,
        *repair_lines(statement),
        *unread_lines(statement),
        *waiver_lines(statement),
        table(statement.nodes),
        statement.sentence,
    ]
    return printable("\n\n".join(blocks)) + "\n"


def changed_lines(statement: Statement) -> Iterator[str]:
    """Yield what is another than in the check before."""
    if not statement.changed:
        return
    lines = [f"  {one.node}: {one.control}: {one.before} -> {one.now}" for one in statement.changed]
    more = len(lines) - MOST_CHANGES
    yield "\n".join(
        [
            "Changed since the check before:",
            *lines[:MOST_CHANGES],
            *([f"  and {more} more, see {document.file_name(statement)}"] if more > 0 else []),
        ]
    )


def disruptive(statement: Statement) -> set[str]:
    """Return the commands that are to run on one node at a time."""
    return {control.remedy for node in statement.nodes for control in node.shown if control.disruptive}


def failing_lines(statement: Statement, most: int | None) -> Iterator[str]:
    """Yield each failure once, with all nodes that have it, and the commands that repair it.

    Of what was found and wanted, `most` lines at most.
    """
    alike: dict[tuple[str, str, str], list[tuple[str, ControlResult]]] = {}
    alone = disruptive(statement)
    for node in statement.nodes:
        for control in node.shown:
            if control.state is State.FAIL:
                found = found_and_wanted(control)
                alike.setdefault((control.id, control.title, found), []).append((node.node, control))
    for (name, title, found), members in alike.items():
        since = min(control.since for _, control in members)
        lines = [f"FAIL {name} on {first_of([node for node, _ in members])}"]
        said = found.splitlines()
        lines += [f"  {line}" for line in said[:most]]
        lines += ["  ... report.txt beside the report shows the rest"] if len(said[:most]) < len(said) else []
        lines.append(f"  goal: {title}")
        lines += [f"  since {since}"] if since else []
        own = {node: (control.remedy,) for node, control in members if control.remedy}
        remedies = together(own, alone)
        lines += [f"  repair: {remedy}" for _, (remedy,) in remedies[:MOST_REMEDIES]]
        if more := sum(len(nodes) for nodes, _ in remedies[MOST_REMEDIES:]):
            lines.append(f"  repair: likewise on {more} more nodes")
        yield "\n".join(lines)


def repair_lines(statement: Statement) -> Iterator[str]:
    """Yield the commands of each node that needs several, in their order."""
    alone = disruptive(statement)
    repairs = {node.node: node.repairs for node in statement.nodes if len(node.repairs) > 1}
    several = together(repairs, alone)
    for nodes, commands in several[:MOST_REMEDIES]:
        yield "\n".join(
            [
                f"To repair {ranges(nodes)}, in this order:",
                *(f"  {place}. {command}" for place, command in enumerate(commands, 1)),
            ]
        )
    if more := sum(len(nodes) for nodes, _ in several[MOST_REMEDIES:]):
        yield f"The page of each node has the repairs of {more} more nodes in their order."


def together(
    commands: Mapping[str, Sequence[str]], alone: Collection[str] = ()
) -> list[tuple[list[str], list[str]]]:
    """Group nodes that the same commands repair, some at a time, and return each group with its commands.

    A playbook takes several nodes in place of one. Other commands, and those that are to run `alone`, are
    those of one node.
    """
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for node, own in commands.items():
        parts = [None if command in alone else FOR_ONE_NODE.fullmatch(command) for command in own]
        key: tuple[tuple[str, ...], ...] = tuple(
            (part[1], part[3]) if part and part[2] == shlex.quote(limit_to([node])) else (command,)
            for command, part in zip(own, parts, strict=True)
        )
        alike.setdefault(key, []).append(node)
    found = []
    for key, nodes in alike.items():
        for start in range(0, len(nodes), MOST_LIMIT):
            some = nodes[start : start + MOST_LIMIT]
            found.append((some, [shlex.quote(limit_to(some)).join(parts) for parts in key]))
    return found


def found_and_wanted(control: ControlResult) -> str:
    """Return the reason, and in short lines what was found and what is wanted."""
    lines = [control.reason] if control.reason else []
    lines += [change.diff or change.text for change in control.changes]
    return "\n".join(lines)


def unread_lines(statement: Statement) -> Iterator[str]:
    """Yield what nobody knows, and why."""
    unread: list[tuple[str, str]] = []
    for node in statement.nodes:
        if node.verdict is Verdict.NOT_CHECKED and not node.controls:
            unread.append((f"the node: {oscal.line(node.reason)}", node.node))
        unread += [
            (f"{control.id}: {oscal.line(control.reason)}", node.node)
            for control in node.shown
            if control.state is State.NOT_CHECKED
        ]
    yield from on_nodes("Not checked, and not counted as passed:", unread)


def on_nodes(heading: str, found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield what is the same on nodes once, with their names; nothing where nothing is found."""
    if alike := by_key(found):
        yield "\n".join([heading, *(f"  {what} (on {first_of(nodes)})" for what, nodes in alike.items())])


def waiver_lines(statement: Statement) -> Iterator[str]:
    """Waivers that somebody has to look at, and controls that one waives although they fail."""
    if statement.waivers:
        yield "\n".join(["Waivers:", *(f"  {finding.text}" for finding in statement.waivers)])
    waived = (
        (f"{control.id}: {control.waiver}", node.node)
        for node in statement.nodes
        for control in node.shown
        if control.waived_by is WaivedBy.OPERATOR
    )
    yield from on_nodes("Waived, and would fail:", waived)
    yield from relaxed_lines(statement)


def relaxed_lines(statement: Statement) -> Iterator[str]:
    """Yield how many controls Temper's own reasons relax, and how those would come out."""
    counts = Counter(
        control.measured
        for node in statement.nodes
        for control in node.shown
        if control.waived_by is WaivedBy.PROFILE
    )
    if counts:
        parts = [f"{counts[state]} {words}" for state, words in WOULD.items() if counts[state]]
        yield (
            f"Relaxed by Temper, in {counts.total()} places: {', '.join(parts)} "
            "(docs/reference/os_hardening.md and data/nvidia_security.yml have the reasons, "
            f"{document.file_name(statement)} each place)."
        )


def table(nodes: Iterable[NodeStatement]) -> str:
    """Return a line for each node."""
    rows = [["Node", "Verdict", "Driver", *State, "relaxed"]]
    for node in nodes:
        relaxed = node.waived(WaivedBy.PROFILE)
        counts = {state: node.count(state) for state in State}
        # What the operator accepts, and apart from it what the profile does.
        counts[State.WAIVED] -= relaxed
        numbers = [str(count) for count in [*counts.values(), relaxed]]
        rows.append([node.node, node.verdict, node.driver or "-", *numbers])
    return "\n".join(aligned(rows))


# -------------------------------------------------------------------- programs


def junit(statement: Statement) -> Iterator[str]:
    """Yield a suite for each node, a case for each control.

    Not checked is an error, what is waived is skipped.

    It comes in pieces, as all files do that have a part for each control of each node.
    """
    case_of = Once[ControlResult, str](case)
    yield "<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"Temper compliance\">"
    for node in statement.nodes:
        name = attribute(node.node)
        skipped = node.count(State.WAIVED) + node.count(State.NOT_APPLICABLE)
        counts = f'tests="{len(node.controls) or 1}" failures="{node.count(State.FAIL)}"'
        counts += f' errors="{node.count(State.NOT_CHECKED) + (not node.controls)}" skipped="{skipped}"'
        yield f"<testsuite name={name} timestamp={attribute(statement.made_at)} {counts}>"
        # Of one of several nodes that are alike only its name is its own.
        cases = [case_of(control) for control in node.controls]
        unread = f' name="the node"><error message={attribute(node.reason)} /></testcase>'
        start = f"<testcase classname={name}"
        yield f"{start}{start.join(cases or [unread])}</testsuite>"
    yield "</testsuites>\n"


def case(control: ControlResult) -> str:
    """Return the case of a control, from behind the name of its node on."""
    start = f" name={attribute(control.id)}"
    if control.state is State.FAIL:
        said = clean("\n".join(filter(None, [control.title, found_and_wanted(control), control.remedy])))
        why = attribute(control.why or control.title)
        inside = f"<failure message={why}>{saxutils.escape(said)}</failure>"
    elif control.state is State.NOT_CHECKED:
        inside = f"<error message={attribute(control.reason)} />"
    elif control.state is not State.PASS:
        inside = f"<skipped message={attribute(f'{control.state}: {control.waiver or control.reason}')} />"
    else:
        return f"{start} />"
    return f"{start}>{inside}</testcase>"


def attribute(words: str) -> str:
    """Return the value of an attribute, in its quotes."""
    return f'"{saxutils.escape(clean(words), QUOTED)}"'


def clean(words: str) -> str:
    """Return the words without what XML cannot hold."""
    return words if words.isprintable() else NOT_IN_XML.sub("", words)


def sarif(statement: Statement) -> Iterator[str]:
    """SARIF 2.1.0: what fails, what is waived (suppressed), and what is open: nobody could check it.

    In pieces.
    """
    rules = {control.id: control.title for node in statement.nodes for control in node.shown}
    driver = {
        "name": "Temper",
        "version": statement.tool or "unknown",
        "rules": [{"id": name, "shortDescription": {"text": title}} for name, title in rules.items()],
    }
    parts_of = Once[ControlResult, tuple[str, str, str]](parts)
    results = chain(
        (one for node in statement.nodes for one in results_of(node, parts_of)),
        (unchecked(node) for node in statement.nodes if not node.controls),
    )
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    yield from json_text(log, lists=2)


def results_of(
    node: NodeStatement, parts_of: Callable[[ControlResult], tuple[str, str, str]]
) -> Iterator[Encoded]:
    """Yield the results of a node.

    A fingerprint is that of the same control on the same node in every run.
    """
    name = encoded(node.node)
    for control in node.shown:
        before, between, after = parts_of(control)
        yield Encoded(f'{before}{name}{between}"{fingerprint(node.node, control.id)}"{after}')


def parts(control: ControlResult) -> tuple[str, str, str]:
    """Return a control's result, without node and fingerprint, which stand between the parts."""
    failing = State.FAIL in (control.state, control.measured)
    message = found_and_wanted(control) or control.waiver or control.title
    what = {
        "ruleId": control.id,
        "kind": "fail" if failing else "open" if control.state is State.NOT_CHECKED else "review",
        "level": "error" if failing else "none",
        "message": {"text": message},
    }
    suppression = {"kind": "external", "status": "accepted", "justification": control.waiver}
    suppressed = f', "suppressions": {encoded([suppression])}' if control.state is State.WAIVED else ""
    return (
        f'{encoded(what)[:-1]}, "locations": [{{"logicalLocations": [{{"name": ',
        ', "kind": "resource"}]}], "partialFingerprints": {"temper/v1": ',
        f"}}{suppressed}}}",
    )


def unchecked(node: NodeStatement) -> dict[str, Any]:
    """Return a node of which nothing is known."""
    return {
        "ruleId": "node/answers",
        "kind": "open",
        "level": "none",
        "message": {"text": node.reason},
        "locations": [{"logicalLocations": [{"name": node.node, "kind": "resource"}]}],
        "partialFingerprints": {"temper/v1": fingerprint(node.node, "node/answers")},
    }


def fingerprint(node: str, control: str) -> str:
    """Return names a control on a node, the same in every run."""
    return uuid_of(f"temper:{node}:{former(control)}")
