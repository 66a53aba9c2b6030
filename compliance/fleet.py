"""From what a run knows of all nodes to the report in its folder. Reads and writes files of this machine."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compliance import evidence, metrics, report, waivers
from compliance.history import History
from compliance.model import Observation
from compliance.statement import CheckedNode, LastValidation, Rules, statement
from compliance.waivers import utc
from planning.node_plan import NodePlan
from planning.os_controls import load_controls
from validation.model.contract import ContractError, Machine, decode, loads
from validation.processes.files import own
from validation.report.fleet_report import point_latest_to
from validation.verdict.verdicts import FleetVerdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from compliance.model import Statement
    from compliance.waivers import Waiver

#: In the folder of validation's reports, which that of compliance is in unless somebody says otherwise.
HISTORY = "history.sqlite"
#: The group of all nodes.
NODES = "gpu_nodes"
#: The role's variables that the report is made with.
CHOSEN = ("directory", "validations", "validation_max_age_days", "key", "metrics")


@dataclass(frozen=True)
class Settings:
    """Where reports go, what is read beside the nodes, and how a repair names the inventory.

    `directory` holds the reports of compliance, `validations` those of validation and the history, `data` the
    tables, `inventory` its files and folders, and `options` the words that name it on a command line.
    Where they are given, `key` signs, and `metrics` gets a file for each node.
    """

    directory: Path
    validations: Path
    data: Path
    inventory: tuple[Path, ...]
    validation_max_age: timedelta
    options: str
    key: str = ""
    metrics: Path | None = None


class WaiverError(ValueError):
    """Waivers are wrong; the message has all sentences. Nothing was written."""


def settings_of(chosen: Mapping[str, Any], sources: Iterable[str], root: Path) -> Settings:
    """Settings from the role's variables (`CHOSEN`); a relative path is below `root`, the checkout."""

    def path(text: str) -> Path:
        return root / Path(text).expanduser()

    def short(source: str) -> str:
        """An inventory as one types it in the checkout."""
        return str(Path(source).relative_to(root)) if Path(source).is_relative_to(root) else source

    given = list(sources)
    return Settings(
        directory=path(chosen["directory"]),
        validations=path(chosen["validations"]),
        data=root / "data",
        inventory=tuple(Path(source) for source in given if Path(source).exists()),
        validation_max_age=timedelta(days=chosen["validation_max_age_days"]),
        options="".join(f" -i {short(source)}" for source in given),
        key=str(chosen["key"] or ""),
        metrics=path(chosen["metrics"]) if chosen["metrics"] else None,
    )


def checked_nodes(asked: Iterable[Mapping[str, Any]], known: Collection[str]) -> list[CheckedNode]:
    """Nodes from what the action has of each: name, groups, answer, waivers. `known`: all groups and nodes.

    Raises WaiverError before anything is written.
    """
    nodes, wrong, names = [], [], set(known)
    for one in asked:
        found, problems = waivers.read(one["waivers"], names)
        nodes.append(checked_node(one["name"], one["groups"], one["answer"], found))
        wrong += problems
    if wrong:
        raise WaiverError(". ".join([*dict.fromkeys(wrong), "Nothing was written"]) + ".")
    return nodes


def checked_node(
    name: str, groups: Iterable[str], answer: Mapping[str, Any], waivers: Iterable[Waiver]
) -> CheckedNode:
    """A node from what the action compliance_check returned. An answer of another form is a problem."""
    found = CheckedNode(name, tuple(groups), waivers=tuple(waivers))
    if "answer" not in answer:
        words = answer.get("problem") or answer.get("msg") or "it was not asked: the run ended before"
        return replace(found, problem=str(words))
    try:
        plan, observations, driver = _answered(answer["answer"])
    except (ContractError, ValueError, KeyError) as error:
        return replace(found, problem=f"its answer has another form than expected: {error}")
    return replace(found, plan=plan, observations=observations, driver=driver)


@lru_cache(maxsize=256)
def _answered(text: str) -> tuple[NodePlan, Mapping[str, Sequence[Observation]], str | None]:
    """What an answer says: the same objects for all nodes that said the same."""
    said = json.loads(text)
    observations = {role: _observations(found) for role, found in said["observations"].items()}
    return NodePlan.from_fact(said["plan"]), observations, said["driver"]


@lru_cache(maxsize=1 << 12)
def _observations(text: str) -> tuple[Observation, ...]:
    """Those of a role; where a node differs in one role only, the others are the same objects still."""
    return tuple(_observation(json.dumps(one)) for one in json.loads(text))


@lru_cache(maxsize=1 << 14)
def _observation(text: str) -> Observation:
    """One of them, likewise. Raises ContractError."""
    return decode(Observation, json.loads(text))


def answer(plan: Mapping[str, Any], observations: Mapping[str, Any], driver: str | None) -> str:
    """What is passed on of a node that was compared, as `checked_node` takes it: JSON.

    Of the plan (its fact) only what a statement needs. What settings are to be is most of it, with the whole
    fleet's addresses and programs in it, and that of all nodes would not fit into the controller's memory.
    """
    needed = {name: plan[name] for name in ("schema_version", "problems", "system", "gpus", "waived")}
    roles = {name: json.loads(text) for name, text in plan["roles"].items()}
    short = {
        name: json.dumps(
            role | {"settings": [one | {"wanted": None} for one in role["settings"]], "reactions": []}
        )
        for name, role in roles.items()
    }
    found = {role: json.dumps(of_role) for role, of_role in observations.items()}
    return json.dumps({"plan": needed | {"roles": short}, "observations": found, "driver": driver})


def packed(asked: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `checked_nodes` takes, as a document with each answer once: those of alike nodes are the same."""
    places: dict[str, int] = {}
    nodes = []
    for one in asked:
        said = one["answer"]
        if "answer" in said:
            said = {**said, "answer": places.setdefault(said["answer"], len(places))}
        nodes.append({**one, "answer": said})
    return {"answers": list(places), "nodes": nodes}


def unpacked(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was packed. Raises KeyError, IndexError for what was not."""
    answers = document["answers"]
    return [
        one | {"answer": one["answer"] | {"answer": answers[one["answer"]["answer"]]}}
        if "answer" in one["answer"]
        else one
        for one in document["nodes"]
    ]


def validations(directory: Path, wanted: set[str]) -> dict[str, LastValidation]:
    """The newest validation of each node, as far as there is one. What cannot be read is passed over."""
    found: dict[str, LastValidation] = {}
    for folder in sorted(directory.glob("*-*T*Z"), reverse=True):
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
                result = json.loads(path.read_bytes())
                driver = decode(Machine, result["machine"]).driver
                started = datetime.fromisoformat(result["started_at"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
            found[node.node] = LastValidation(started, node.state, driver, folder.name)
    return found


def elsewhere(groups: Mapping[str, Iterable[str]], checked: Collection[str]) -> dict[str, list[str]]:
    """The nodes that are not `checked`, each with its groups; `groups` are those of the inventory."""
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
    before, reports = history.states(), history.reports()
    known = list(nodes)
    measured = validations(settings.validations, {node.name for node in known})
    rules = Rules(
        now, settings.validation_max_age, load_controls(settings.data / "os_controls"), settings.options
    )
    made = replace(
        statement(
            [replace(node, validation=measured.get(node.name)) for node in known], rules, before, others
        ),
        tool=f"Temper {version(settings.data)}",
        inventory_sha256=evidence.digest_of_tree(list(settings.inventory)),
    )
    previous, previous_sha256 = next(reversed(reports.items()), ("", ""))
    manifest = evidence.Manifest(
        made.made_at,
        made.tool,
        evidence.digest_of_tree([settings.data]),
        made.inventory_sha256,
        previous,
        previous_sha256,
    )
    folder = settings.directory / utc(now).replace(":", "-")
    own(folder.parent)
    folder.mkdir()
    try:
        report.write(folder, made)
        history.record(made, folder.name, evidence.seal(folder, manifest, settings.key), previous)
    except BaseException:
        # Half a report, or one that the history does not know, would be taken for a forged one.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    point_latest_to(folder)
    if settings.metrics:
        metrics.write(settings.metrics, made, whole=not others)
    return made, folder


def version(data: Path) -> str:
    """Temper's version, from its own project file: it runs from its checkout and is never installed."""
    text = (data.parent / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])
