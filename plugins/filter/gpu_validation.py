"""What passes between the plan, the payload on the nodes and the report: the results, and why there is none.

Pure functions. They pass things on and name reasons; validation/verdict/judge.py says what a result means.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])

#: What preflight gives all nodes of a batch before it reads the first.
STARTED = "__preflight_ways"
NO_TRACE = (
    "an earlier step failed on this node or its connection broke; the error stands further up in this run"
)

#: What Ansible's wrapper of tasks with a time limit says when it has ended one.
TIMED_OUT = "Timeout exceeded"
#: The exit status of coreutils' timeout, which ends what Ansible's wrapper has missed.
TIMED_OUT_STATUS = 124
#: What it says of one that it knows nothing of.
JOB_LOST = "could not find job"
#: pip 23 to 25, of each try (urllib3's Retry).
NOT_REACHED = "after connection broken by"

#: Characters of what a node says why it has no result.
MOST_WORDS = 2000

Values = Mapping[str, Any]


def pip_configuration(arguments: str) -> str:
    """See temper/plan/pip_options.py. Imported late, as below."""
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    text: str = importlib.import_module("temper.plan.pip_options").configuration(arguments)
    return text


def contract() -> Any:
    """Return the payload's documents, imported late: Ansible loads this file for each task of each node."""
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    return importlib.import_module("validation.model.contract")


def validation_outcome(run: Values) -> dict[str, Any]:
    """Return a node's result from what the task that ran the payload returned, or why there is none."""
    if run.get("unreachable"):
        return {"problem": f"the connection broke while it was measured: {_one_line(run.get('msg', ''))}"}
    said = contract()
    try:
        return {"result": said.bounded(said.parse(str(run.get("stdout") or ""), said.MOST_RESULT_BYTES))}
    except said.ContractError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return {"problem": _why_no_result(run)}
        return {"problem": f"its result cannot be read: {error}"}


def _why_no_result(run: Values) -> str:
    if str(run.get("msg")) == TIMED_OUT or run.get("rc") == TIMED_OUT_STATUS:
        return (
            "it was ended after gpu_validation_timeout_s; see what it waits for (validation run on the node "
            "shows it), or set the time higher"
        )
    if str(run.get("msg")) == JOB_LOST:
        return "the node booted while it was measured, or its run was removed; see journalctl -b -1 there"
    words = [line for line in str(run.get("stderr") or "").splitlines() if line.strip()]
    said = words[-1].strip() if words else _one_line(run.get("msg") or "nothing")
    status = f"exit status {run['rc']}" if run.get("rc") is not None else "no exit status"
    return f"the payload gave no result ({status}); its last line was: {said}"


def why_failed(result: Values) -> str:
    """Return why a task has failed, in one line; of a program, what it printed last.

    Of one whose output is kept out of logs, only the facts: an address of pip's has a password, or a token.
    """
    printed = str(result.get("stderr") or result.get("stdout") or "")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if result.get("rc") is None or not lines:
        return _short(result.get("msg") or "it failed")
    secret = bool(result.get("_ansible_no_log"))
    said = f"exit status {result['rc']}; " + (
        "its output may have passwords: run it on the node" if secret else f"its last line was: {lines[-1]}"
    )
    # pip goes on, and ends with a version that it has not found.
    if broken := next((line for line in lines if NOT_REACHED in line), ""):
        shown = "" if secret else f" ({broken})"
        said += f". The index was not reached{shown}: see gpu_validation_pip_args (--index-url, --proxy)"
    return _short(said)


def validation_fleet(hostvars: Values, nodes: Iterable[str], fabric: Values | None = None) -> dict[str, Any]:
    """Return expectations, results and groups of all `nodes`, in the form that `temper report --fleet` reads.

    A node without a result is there too, with the reason: refused, unreachable, or failed in an earlier step.
    One that preflight has not come to is not: under `serial` its batch is yet to come. `fabric` is what was
    measured between nodes, None where that was not asked for.
    """
    expectations: dict[str, Any] = {}
    results: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    with_rack = importlib.import_module("temper.base.nodes").with_rack
    for node in nodes:
        variables = hostvars[node]
        if STARTED not in variables:
            continue
        plan = variables.get("preflight_plan") or {}
        outcome = variables.get("__gpu_validation_outcome") or {"problem": _why_not_measured(plan)}
        groups[node] = with_rack(variables.get("group_names") or (), variables)
        expectations[node] = dict(outcome.get("expectation") or _bare_expectation(plan))
        if "result" in outcome:
            results[node] = outcome["result"]
        else:
            expectations[node]["not_run"] = _short(outcome["problem"])
    return {
        "expectations": {"schema_version": contract().EXPECTATIONS_VERSION, "nodes": expectations},
        "results": results,
        "groups": groups,
        "fabric": fabric or None,
    }


def validation_fabric(
    hostvars: Values, nodes: Iterable[str], batch: Iterable[str], settings: Values
) -> dict[str, Any]:
    """Return the nodes that were measured, and the rounds between them so far, as `temper groups` reads it.

    Only those that are to be measured with others (`gpu_validation_fabric`); empty where none is. `batch`
    has hosts of the play's batch that are still there: under `serial` each batch measures among itself.
    `settings` are those of its fields that the operator chooses.
    """
    nodes = [node for node in nodes if boolean(hostvars[node].get("gpu_validation_fabric", False))]
    if not nodes:
        return {}
    batches = {_outcome(hostvars, node).get("batch") for node in batch}
    members: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    for node in nodes:
        variables, outcome = hostvars[node], _outcome(hostvars, node)
        if "result" not in outcome or outcome.get("batch") not in batches:
            continue
        member = _member(variables, node, settings["library"])
        # By its own word. All ranks together have a limit, beyond which nobody is measured.
        if member["ranks"] > contract().MOST_GPUS:
            continue
        members.append(member)
        for number, attempt in enumerate(variables.get("__gpu_validation_rounds") or []):
            while len(rounds) <= number:
                rounds.append({})
            if attempt:
                rounds[number][node] = attempt
    return {
        "schema_version": contract().FABRIC_VERSION,
        **settings,
        "nodes": members,
        "rounds": [attempts for attempts in rounds if attempts],
    }


def _member(variables: Values, node: str, library: str) -> dict[str, Any]:
    plan = variables["preflight_plan"]
    count = sum(gpu["count"] for gpu in plan["gpus"]) + len(plan.get("unknown_gpus", []))
    return {
        "name": node,
        "address": variables.get("ansible_host") or node,
        "ranks": count if library == "nccl" else 1,
    }


def autotune_order(hostvars: Values, nodes: Iterable[str], node: str, settings: Values) -> dict[str, Any]:
    """Return what `validation autotune --order` reads on a node that is tuned together with others.

    `settings`: the fields of the order that are the same for all of them.
    """
    group = [_member(hostvars[one], one, settings["library"]) for one in nodes]
    return {
        "schema_version": contract().FABRIC_VERSION,
        "node": node,
        "group": group,
        "nodes_in_round": len(group),
        "plan": "quick",
        **settings,
    }


def validation_order(groups: Iterable[Values], node: str) -> dict[str, Any]:
    """Return a node's order for a round whose groups `temper groups` has named; empty: it has nothing to do.

    Each order names its whole group: those of all nodes of a large fleet would be too much to pass on.
    """
    for group in groups:
        if any(member["name"] == node for member in group["group"]):
            return {**group, "node": node}
    return {}


def validation_attempt(run: Values, order: Values) -> dict[str, Any]:
    """Return the result of a node's part in a round, from its task's; nothing where it had no order."""
    if not order:
        return {}
    outcome = validation_outcome(run)
    return {
        "group": [member["name"] for member in order["group"]],
        "part": outcome.get("result"),
        "problem": _short(outcome.get("problem", "")),
    }


def _outcome(hostvars: Values, node: str) -> Values:
    found: Values = hostvars[node].get("__gpu_validation_outcome") or {}
    return found


def _why_not_measured(plan: Values) -> str:
    if problems := plan.get("problems"):
        return f"refused before anything was changed: {'; '.join(_one_line(problem) for problem in problems)}"
    return NO_TRACE


def _bare_expectation(plan: Values) -> dict[str, Any]:
    gpus = [{key: gpu[key] for key in ("model", "name", "count")} for gpu in plan.get("gpus") or []]
    return {"schema_version": contract().EXPECTATIONS_VERSION, "gpus": gpus or None}


def _one_line(text: Any) -> str:
    return " ".join(str(text).split()).rstrip(".")


def _short(text: Any) -> str:
    """Return a node's words, which may be any."""
    words: str = importlib.import_module("validation.model.printable").one_line(str(text)[:MOST_WORDS])
    return words


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by the names that playbooks use."""
        return {
            "pip_configuration": pip_configuration,
            "autotune_order": autotune_order,
            "validation_attempt": validation_attempt,
            "validation_fabric": validation_fabric,
            "validation_fleet": validation_fleet,
            "validation_order": validation_order,
            "validation_outcome": validation_outcome,
            "why_failed": why_failed,
        }
