"""One report from what slices have handed over: the same code judges, that judges a single run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from temper.base import ROOT as ROOT
from temper.base.options import told
from temper.base.store import HistoryError
from temper.compliance.answers import unpacked
from temper.compliance.evidence import EvidenceError
from temper.compliance.model import Verdict
from temper.judge.outcomes import states_in
from temper.plan.convert import checked
from temper.plan.fleet import FleetPlan, digest
from temper.plan.identity import twins
from temper.plan.inventory import Inventory
from temper.plan.node_plan import NodePlan, refused
from temper.plan.refusals import refusal, texts
from validation.model.contract import EXPECTATIONS_VERSION
from validation.processes.files import own, write_atomically

PLANS = "reports/plan.json"


#: What a report on compliance is made with (roles/compliance/tasks/main.yml), by the role's variables.
STATEMENT = {
    "directory": "compliance_reports_directory",
    "validations": "gpu_validation_reports_directory",
    "validation_max_age_days": "compliance_validation_max_age_days",
    "key": "compliance_signing_key",
    "metrics": "compliance_metrics_directory",
}
#: All variables that say how reports are made: on this machine, whatever slices say of them.
CHOSEN = (
    *STATEMENT.values(),
    "gpu_validation_fail_on_degraded",
    "gpu_validation_metrics_directory",
)
#: What Ansible takes for true.
TRUE = ("true", "yes", "on", "y", "t", "1", "1.0")


UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)


class CollectedError(Exception):
    """What a slice has handed over cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class Said:
    """A report: what it says to the operator, whether all is well, and what it makes of nodes.

    Status 2: it could not be made.
    """

    text: str
    status: int
    states: Mapping[str, str] = field(default_factory=dict)


def defaults() -> dict[str, Any]:
    """Return the roles' own values of `CHOSEN`."""
    found: dict[str, Any] = {}
    for role in ("compliance", "gpu_validation"):
        found |= yaml.safe_load((ROOT / "roles" / role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    return {name: found[name] for name in CHOSEN}


def documents(folders: Sequence[Path], name: str) -> list[Any]:
    """Return what slices have handed over under a name. One that has nothing of it has none here.

    Raises CollectedError.
    """
    found = []
    for path in (folder / f"{name}.json" for folder in folders):
        try:
            if path.is_file():
                found.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise CollectedError(
                f"{path}: expected what a slice has handed over: {error}. Begin a new run."
            ) from error
    return found


def plans(folders: Sequence[Path], silent: Mapping[str, str]) -> Said | None:
    """Write the plans of all nodes into one file, and say where they differ. `silent` nodes have no plan."""
    parts = documents(folders, "plan")
    if not parts:
        return None
    known = {name for part in parts for name in part["nodes"]}
    absent = {name: without_plan(reason) for name, reason in silent.items() if name not in known}
    fleet = FleetPlan.merged([{"nodes": absent, "settings": {}, "waived": {}}, *map(readable, parts)])
    same = twins(fleet.plans).refused
    path = ROOT / PLANS
    own(path.parent)
    write_atomically(path, json.dumps(fleet.as_dict(), indent=1) + "\n", 0o600)
    said = "\n".join([fleet.text(), *texts(same.values()), f"Plans: {path}"])
    return Said(said, 1 if same else 0, dict.fromkeys(same, "refused"))


def without_plan(reason: str) -> dict[str, Any]:
    """Return what is kept of a node that has no plan."""
    return refused({}, refusal("other", reason=reason))


def report_folder(chosen: Mapping[str, Any], now: datetime) -> str:
    """Return the folder of a report on validation that is made now."""
    return f"{chosen['gpu_validation_reports_directory']}/{now:%Y-%m-%dT%H-%M-%SZ}"


def report_command(chosen: Mapping[str, Any], sources: Sequence[str], now: datetime) -> list[str]:
    """Return what judges validation on this machine, as roles/gpu_validation/vars/main.yml starts it."""
    strict = str(chosen["gpu_validation_fail_on_degraded"]).lower() in TRUE
    metrics = chosen["gpu_validation_metrics_directory"]
    return [
        *("-m", "temper", "report", "--fleet", "--latest"),
        f"--history={chosen['gpu_validation_reports_directory']}/history.sqlite",
        f"--output={report_folder(chosen, now)}",
        *(f"--inventory={source}" for source in sources),
        *(["--fail-on-degraded"] if strict else []),
        *([f"--metrics={metrics}"] if metrics else []),
    ]


def readable(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Plans of a slice; where one is of another form, the nodes are refused with that as their reason."""
    try:
        # Nodes of other slices may have the same digest.
        for key, value in (*part["settings"].items(), *part["waived"].items()):
            if key != digest(json.dumps(value)):
                raise ValueError(f"expected the digest of what it stands for, found {key!r:.40}")
        FleetPlan.merged([part])
        for fact in part["nodes"].values():
            " ".join(fact["problems"])  # texts, and nothing else
            NodePlan.from_dict({"refusals": fact.get("refusals", [])})
    except UNREADABLE as error:
        why = without_plan(f"its plan, as a slice handed it over, cannot be read: {error}")
        return {"nodes": dict.fromkeys(part["nodes"], why), "settings": {}, "waived": {}}
    return part


def answers(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what nodes of a slice answered.

    Where that is of another form, they have that as their problem.
    """
    try:
        asked = unpacked(part)
        for one in asked:
            checked(tuple[str, ...], one["groups"], "groups")
            if not isinstance(one["answer"], dict):
                raise TypeError("its answer is no object")
    except UNREADABLE as error:
        why = {"problem": f"its answer, as a slice handed it over, cannot be read: {error!r}"}
        return [{"name": node["name"], "groups": [], "answer": why, "waivers": []} for node in part["nodes"]]
    return asked


def validation(
    folders: Sequence[Path], silent: Mapping[str, str], sources: Sequence[str], chosen: Mapping[str, Any]
) -> Said | None:
    """Judge all results together. `silent` nodes are named with their reasons; `sources`: the inventories."""
    paths = [path for folder in folders if (path := folder / "validation.json").is_file()]
    if not paths:
        return None
    bare = {
        name: {"schema_version": EXPECTATIONS_VERSION, "gpus": None, "not_run": reason}
        for name, reason in silent.items()
    }
    expectations = {"schema_version": EXPECTATIONS_VERSION, "nodes": bare}
    # What slices say holds before what is known without them.
    given = {
        "document": {"expectations": expectations, "results": {}},
        "slices": [str(path.absolute()) for path in paths],
    }
    now = datetime.now(UTC)
    done = subprocess.run(  # noqa: S603 - from this machine's inventory alone
        [sys.executable, *report_command(chosen, sources, now)],
        cwd=ROOT, input=json.dumps(given).encode(), capture_output=True, check=False,
    )  # fmt: skip
    # One that was killed has no status of its own, and is no success.
    status = done.returncode if done.returncode >= 0 else 2
    said = (done.stdout or done.stderr).decode(errors="replace").strip()
    states = states_in(ROOT / report_folder(chosen, now))
    return Said(said or f"The report of validation ended with status {done.returncode}.", status, states)


def compliance(
    folders: Sequence[Path],
    silent: Mapping[str, str],
    sources: Sequence[str],
    known: Inventory,
    chosen: Mapping[str, Any],
) -> Said | None:
    """State the compliance of all nodes. `sources` are the inventories, `known` is what they say."""
    # Late: the pages of reports take longer to import than all else of `temper fleet`.
    from temper.report import statement as report
    from temper.report.compliance import check, checked_nodes, elsewhere, named, settings_of

    parts = documents(folders, "compliance")
    if not parts:
        return None
    asked = [node for part in parts for node in answers(part)]
    heard = {node["name"] for node in asked}
    asked += [
        {"name": name, "groups": [], "answer": {"problem": reason}, "waivers": []}
        for name, reason in silent.items()
        if name not in heard
    ]
    warned = "".join(f"warning: {one}\n" for one in named(asked).warnings)
    try:
        nodes = checked_nodes(asked, known.names)
        wanted = {word: chosen[name] for word, name in STATEMENT.items()}
        wanted["validation_max_age_days"] = int(chosen["compliance_validation_max_age_days"])
        settings = settings_of(wanted, sources, ROOT)
        # Of silent nodes neither groups nor waivers were heard: they are not checked, too.
        statement, folder = check(nodes, settings, datetime.now(UTC), elsewhere(known.members, heard))
    except (ValueError, OSError, HistoryError, EvidenceError) as error:
        return Said(f"The report of compliance could not be written: {told(error)}", 2)
    text = f"{report.text(statement, short=True)}{warned}Report: {folder}/report.html"
    states = {node.node: node.verdict.outcome for node in statement.nodes}
    return Said(text, 0 if statement.verdict is Verdict.COMPLIANT else 1, states)
