"""From what a run knows of all nodes to the report in its folder. Reads and writes files of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temper.base.nodes import utc
from temper.base.store import HISTORY
from temper.base.version import version
from temper.compliance import answers, evidence, metrics, waivers
from temper.compliance.answers import brief, label
from temper.compliance.history import History
from temper.compliance.model import Statement
from temper.compliance.statement import CLOCKS, CheckedNode, LastValidation, Rules, statement
from temper.compliance.waivers import Waiver
from temper.plan.identity import Node, Twins, twins
from temper.plan.os_controls import load_controls
from temper.plan.tables import load_tables
from temper.report import origin
from temper.report import statement as report
from temper.report.origin import typed
from validation.model.contract import ContractError, Machine, decode, loads, parse
from validation.processes.files import own
from validation.report.fleet_report import point_latest_to
from validation.verdict.verdicts import FleetVerdict

#: A report's folder: when it was made, in UTC.
FOLDER = "%Y-%m-%dT%H-%M-%SZ"
#: The group of all nodes.
NODES = "gpu_nodes"
#: The role's variables that the report is made with.
CHOSEN = ("directory", "validations", "validation_max_age_days", "key", "metrics")


@dataclass(frozen=True)
class Settings:
    """Where reports go, what is read beside the nodes, and how a repair names the inventory.

    `directory` holds the reports of compliance, `validations` those of validation and the history, `data` the
    tables, `inventory` its files and folders, and `inventories` what one types to name it.
    Where they are given, `key` signs, and `metrics` gets a file for each node.
    """

    directory: Path
    validations: Path
    data: Path
    inventory: tuple[Path, ...]
    validation_max_age: timedelta
    inventories: tuple[str, ...] = ()
    key: str = ""
    metrics: Path | None = None


class WaiverError(ValueError):
    """Waivers are wrong; the message has all sentences. Nothing was written."""


def settings_of(chosen: Mapping[str, Any], sources: Iterable[str], root: Path) -> Settings:
    """Return settings from the role's variables (`CHOSEN`); a relative path is below `root`, the checkout."""

    def path(text: str) -> Path:
        return root / Path(text).expanduser()

    given = list(sources)
    return Settings(
        directory=path(chosen["directory"]),
        validations=path(chosen["validations"]),
        data=root / "data",
        inventory=tuple(Path(source) for source in given if Path(source).exists()),
        validation_max_age=timedelta(days=chosen["validation_max_age_days"]),
        inventories=tuple(typed(source, root) for source in given),
        key=str(chosen["key"] or ""),
        metrics=path(chosen["metrics"]) if chosen["metrics"] else None,
    )


def checked_nodes(asked: Iterable[Mapping[str, Any]], known: Collection[str]) -> list[CheckedNode]:
    """Nodes from what the action has of each: name, groups, answer, waivers. `known`: all groups and nodes.

    One machine under two names is none of them. Raises WaiverError before anything is written.
    """
    nodes, wrong, names, given = [], [], set(known), list(asked)
    same = named(given).refused
    for one in given:
        found, problems = waivers.read(one["waivers"], names)
        said = {"problem": same[one["name"]].text} if one["name"] in same else one["answer"]
        nodes.append(checked_node(one["name"], one["groups"], said, found))
        wrong += problems
    if wrong:
        raise WaiverError(". ".join([*dict.fromkeys(wrong), "Nothing was written"]) + ".")
    return nodes


def named(asked: Iterable[Mapping[str, Any]]) -> Twins:
    """Return which nodes are one machine by their answers, and which only say so."""
    return twins({one["name"]: Node.from_dict(one["answer"]) for one in asked})


def checked_node(
    name: str, groups: Iterable[str], answer: Mapping[str, Any], waivers: Iterable[Waiver]
) -> CheckedNode:
    """Return a node from what the action compliance_check returned.

    An answer of another form is its problem.
    """
    found = CheckedNode(name, tuple(groups), waivers=tuple(waivers))
    if "answer" not in answer:
        words = answer.get("problem") or answer.get("msg") or "it was not asked: the run ended before"
        return replace(found, problem=brief(str(words)))
    try:
        said = answers.read(answer["answer"])
    # Whatever its words raise: they are this node's, and all others have their statement.
    except Exception as error:  # noqa: BLE001
        return replace(found, problem=brief(f"its answer has another form than expected: {error}"))
    return replace(
        found, plan=said.plan, observations=said.observations, driver=said.driver, versions=said.versions
    )


def validations(directory: Path, wanted: set[str], now: datetime | None = None) -> dict[str, LastValidation]:
    """Return the newest validation of each node, as far as there is one, by the clock of this machine.

    That clock has named the folders. What it wrote while it was ahead comes last: a node has it where it has
    nothing else. What cannot be read is passed over.
    """
    latest = (now or datetime.now(UTC)) + CLOCKS
    folders = [(when, folder) for folder in directory.glob("*-*T*Z") if (when := made_at(folder.name))]
    found: dict[str, LastValidation] = {}
    for when, folder in sorted(folders, key=lambda one: (one[0] <= latest, one[0]), reverse=True):
        if wanted <= found.keys():
            break
        # A node that was never measured is looked for in every report: not in the verdicts of a whole fleet.
        results = folder / "results"
        there = {path.stem for path in results.iterdir()} if results.is_dir() else set()
        if there.isdisjoint(wanted - found.keys()):
            continue
        try:
            verdict = loads(FleetVerdict, (folder / "summary.json").read_bytes())
        except (OSError, ContractError):
            continue
        for node in verdict.nodes:
            path = folder / "results" / f"{node.node}.json"
            if node.node not in wanted or node.node in found or not path.is_file():
                continue
            try:
                # Its numbers were judged when the summary was written; who decodes them takes far longer.
                driver = decode(Machine, parse(path.read_bytes())["machine"]).driver
            except (OSError, ContractError, KeyError, TypeError):
                continue
            found[node.node] = LastValidation(when, node.state, driver and label(driver), folder.name)
    return found


def made_at(folder: str) -> datetime | None:
    """Return when the report in a folder of this name was made; None for another name."""
    try:
        return datetime.strptime(folder, FOLDER).replace(tzinfo=UTC)
    except ValueError:
        return None


def elsewhere(groups: Mapping[str, Iterable[str]], checked: Collection[str]) -> dict[str, list[str]]:
    """Return the nodes that are not `checked`, each with its groups; `groups` are those of the inventory."""
    found: dict[str, list[str]] = {name: [] for name in groups.get(NODES, ()) if name not in checked}
    for group, members in groups.items() if found else ():
        for name in members:
            if name in found:
                found[name].append(group)
    return found


def check(
    nodes: Iterable[CheckedNode],
    settings: Settings,
    now: datetime,
    others: Mapping[str, Collection[str]] | None = None,
) -> tuple[Statement, Path]:
    """Judge all nodes, and write the report; returns both. `others` are the nodes `elsewhere`.

    Raises OSError, HistoryError, EvidenceError. The history is written last: a report that could not be
    written whole does not count.
    """
    history = History(settings.validations / HISTORY)
    history.take_over(settings.directory / HISTORY)
    before = history.states()
    known = list(nodes)
    measured = validations(settings.validations, {node.name for node in known}, now)
    comes_from = origin.origin(settings.inventories, utc(now), {node.name: node.groups for node in known})
    rules = Rules(
        now,
        settings.validation_max_age,
        load_controls(settings.data / "os_controls"),
        comes_from.options,
        load_tables(settings.data).security,
    )
    made = replace(
        statement(
            [replace(node, validation=measured.get(node.name)) for node in known], rules, before, others
        ),
        tool=f"Temper {version()}",
        inventory_sha256=evidence.digest_of_tree(list(settings.inventory)),
    )
    head = history.head()
    manifest = evidence.Manifest(
        made.made_at,
        made.tool,
        evidence.digest_of_tree([settings.data]),
        made.inventory_sha256,
        head.report,
        head.sha256,
        number=head.number + 1,
    )
    folder = settings.directory / now.astimezone(UTC).strftime(FOLDER)
    own(folder.parent)
    folder.mkdir()
    try:
        report.write(folder, made, comes_from)
        sealed = evidence.seal(folder, manifest, settings.key)
        history.record(made, folder.name, sealed, head.report)
    except BaseException:
        # Half a report, or one that the history does not know, would be taken for a forged one.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    point_latest_to(folder)
    if settings.metrics:
        metrics.write(settings.metrics, made, whole=not others, head=history.head())
    return made, folder
