"""What passes between the plan, the payload on the nodes and the report: expectations out, results back.

Pure functions. They pass things on and name reasons; validation/verdict/judge.py says what a result means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from validation.checks.registry import asked_for
from validation.model.run_options import RunOptions

SCHEMA_VERSION = 3
NO_TRACE = (
    "an earlier step failed on this node or its connection broke; the error stands further up in this run"
)

#: What Ansible's wrapper of tasks with a time limit says when it has ended one.
TIMED_OUT = "Timeout exceeded"
#: What it says of one that it knows nothing of.
JOB_LOST = "could not find job"

Values = Mapping[str, Any]


def validation_expectation(plan: Values, required_tests: list[str], models: Values) -> dict[str, Any]:
    """What is expected of a node, in the form that `validation run --expect` reads.

    `plan` is the plan of preflight, `models` the content of data/gpu_models.yml.
    """
    keys = [gpu["model"] for gpu in plan["gpus"]]
    names = {models["models"][key]["architecture"] for key in keys}
    return {
        "schema_version": SCHEMA_VERSION,
        "required_tests": required_tests,
        # A GPU that no table knows can only be counted.
        "gpus": [{key: gpu[key] for key in ("model", "name", "count")} for gpu in plan["gpus"]]
        + [{"model": "unknown", "name": f"10de:{pci_id}", "count": 1} for pci_id in plan["unknown_gpus"]],
        "driver_version": plan["driver"]["version"],
        "nvswitch": plan["fabric"] != "none",
        "references": {
            "models": {key: models["models"][key] for key in keys},
            "pcie_x16": {str(generation): row for generation, row in models["pcie_x16"].items()},
            "architectures": {
                name: {"matmul": models["architectures"][name]["matmul"]} for name in sorted(names)
            },
        },
    }


def validation_required(required_tests: list[str], storage_paths: list[str]) -> list[str]:
    """What must have run: a path that was named and could not be measured is no path that passed."""
    by_options = asked_for(RunOptions(tuple(map(Path, storage_paths))), required=True)
    return list(dict.fromkeys([*required_tests, *by_options]))


def validation_outcome(run: Values) -> dict[str, Any]:
    """A node's result from what the task that ran the payload returned, or why there is none."""
    if run.get("unreachable"):
        return {"problem": f"the connection broke while it was measured: {_one_line(run.get('msg', ''))}"}
    try:
        result = json.loads(run.get("stdout") or "")
    except json.JSONDecodeError:
        return {"problem": _why_no_result(run)}
    return {"result": result}


def _why_no_result(run: Values) -> str:
    if str(run.get("msg")) == TIMED_OUT:
        return (
            "it was ended when the time was over that gpu_validation_timeout_s gives a node; see what it "
            "waits for (validation run on the node shows it), or give it more"
        )
    if str(run.get("msg")) == JOB_LOST:
        return "the node booted while it was measured, or its run was removed; see journalctl -b -1 there"
    words = [line for line in str(run.get("stderr") or "").splitlines() if line.strip()]
    said = words[-1].strip() if words else _one_line(run.get("msg") or "nothing")
    status = f"exit status {run['rc']}" if run.get("rc") is not None else "no exit status"
    return f"the payload brought no result ({status}); it said last: {said}"


def validation_fleet(hostvars: Values, nodes: Iterable[str], fabric: Values | None = None) -> dict[str, Any]:
    """Expectations and results of all `nodes`, in the form that `validation report --fleet` reads.

    A node without a result is there too, with the reason: refused, unreachable, or failed in an earlier step.
    `fabric` is what was measured between nodes, None where that was not asked for.
    """
    expectations: dict[str, Any] = {}
    results: dict[str, Any] = {}
    for node in nodes:
        variables = hostvars[node]
        plan = variables.get("preflight_plan") or {}
        outcome = variables.get("__gpu_validation_outcome") or {"problem": _why_not_measured(plan)}
        expectations[node] = dict(outcome.get("expectation") or _bare_expectation(plan))
        if "result" in outcome:
            results[node] = outcome["result"]
        else:
            expectations[node]["not_run"] = outcome["problem"]
    return {
        "expectations": {"schema_version": SCHEMA_VERSION, "nodes": expectations},
        "results": results,
        "fabric": fabric or None,
    }


def validation_fabric(hostvars: Values, nodes: Iterable[str], settings: Values) -> dict[str, Any]:
    """The nodes that were measured, and the rounds between them so far, as `validation groups` reads it.

    Only those that are to be measured with others (`gpu_validation_fabric`); empty where none is. `settings`
    are those of its fields that the operator chooses.
    """
    nodes = [node for node in nodes if boolean(hostvars[node].get("gpu_validation_fabric", False))]
    if not nodes:
        return {}
    members: list[dict[str, Any]] = []
    rounds: list[dict[str, Any]] = []
    for node in nodes:
        variables = hostvars[node]
        if "result" not in (variables.get("__gpu_validation_outcome") or {}):
            continue
        plan = variables["preflight_plan"]
        count = sum(gpu["count"] for gpu in plan["gpus"]) + len(plan.get("unknown_gpus", []))
        members.append(
            {
                "name": node,
                "address": variables.get("ansible_host") or node,
                "ranks": count if settings["library"] == "nccl" else 1,
            }
        )
        for number, attempt in enumerate(variables.get("__gpu_validation_rounds") or []):
            while len(rounds) <= number:
                rounds.append({})
            if attempt:
                rounds[number][node] = attempt
    return {
        "schema_version": SCHEMA_VERSION,
        **settings,
        "nodes": members,
        "rounds": [attempts for attempts in rounds if attempts],
    }


def validation_order(groups: Iterable[Values], node: str) -> dict[str, Any]:
    """What a node is asked to do in a round, of which `validation groups` says the groups; empty: nothing.

    Each order names its whole group: those of all nodes of a large fleet would be too much to pass on.
    """
    for group in groups:
        if any(member["name"] == node for member in group["group"]):
            return {**group, "node": node}
    return {}


def validation_attempt(run: Values, order: Values) -> dict[str, Any]:
    """What came of a node's part in a round, from what its task returned; nothing where it had no order."""
    if not order:
        return {}
    outcome = validation_outcome(run)
    return {
        "group": [member["name"] for member in order["group"]],
        "part": outcome.get("result"),
        "problem": outcome.get("problem", ""),
    }


def _why_not_measured(plan: Values) -> str:
    if problems := plan.get("problems"):
        return f"refused before anything was changed: {'; '.join(_one_line(problem) for problem in problems)}"
    return NO_TRACE


def _bare_expectation(plan: Values) -> dict[str, Any]:
    gpus = [{key: gpu[key] for key in ("model", "name", "count")} for gpu in plan.get("gpus", [])]
    return {"schema_version": SCHEMA_VERSION, "gpus": gpus or None}


def _one_line(text: Any) -> str:
    return " ".join(str(text).split()).rstrip(".")


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by the names that playbooks use."""
        return {
            "validation_attempt": validation_attempt,
            "validation_expectation": validation_expectation,
            "validation_fabric": validation_fabric,
            "validation_fleet": validation_fleet,
            "validation_order": validation_order,
            "validation_outcome": validation_outcome,
            "validation_required": validation_required,
        }
