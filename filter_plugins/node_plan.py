"""Gives the plan (package planning/) to Ansible."""

from __future__ import annotations

import hashlib
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning import preview
from planning.facts import NodeFacts
from planning.model import Plan, Target
from planning.plan import node_plan, unreachable
from planning.tables import load_tables
from planning.variables import Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

DATA = Path(ROOT) / "data"


def preflight_plan(
    result: Mapping[str, Any], variables: Mapping[str, Any], target: Mapping[str, str]
) -> dict[str, Any]:
    """The plan from what preflight collected, with every problem of the node in one list.

    `result` is what the task with module node_facts returned, `variables` what filter role_variables
    returned (values and problems), `target` what class Target has.
    """
    known = Target.from_dict(target)
    problems = list(variables["problems"])
    if result.get("unreachable"):
        problems.append(unreachable(str(result.get("msg", "")), known))
        return {"problems": problems, "text": "", "driver": None}
    node = NodeFacts.from_dict(result["ansible_facts"]["temper"])
    plan = node_plan(node, load_tables(DATA), Variables.from_values(variables["values"]), known).as_dict()
    problems += [known.problem] if known.problem else []
    return plan | {"problems": problems + plan["problems"]}


def with_preview(plan: dict[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with what module package_preview returned."""
    simulated = preview.Preview.from_dict(result)
    transaction = {"transaction": result.get("transaction") or {}, "resolved": simulated.resolved}
    return plan | transaction | preview.with_preview(Plan.from_dict(plan), simulated).as_dict()


def with_engines(plan: dict[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with what module container_engine returned in check mode: a refusal refuses the node."""
    message = preview.one_line(str(result.get("msg") or ""))
    return plan | {"problems": [*plan["problems"], *([message] if message else [])]}


def mok_certificate(path: str) -> dict[str, str]:
    """What preflight has to know of the operator's certificate for Secure Boot, a file of the controller.

    `mok_sha256` is the SHA-256 of its DER form, as enrolled keys are told by, and `mok_pem` its text; or
    `problem`, where the file is none. No path, nothing to know.
    """
    if not path:
        return {}
    try:
        data = Path(path).expanduser().read_bytes()
        if b"-----BEGIN" in data:
            data = ssl.PEM_cert_to_DER_cert(data[data.index(b"-----BEGIN CERTIFICATE") :].decode().strip())
    except (OSError, ValueError) as error:
        return {
            "problem": "nvidia_stack_mok_certificate: expected an X.509 certificate (PEM or DER) on this "
            f"machine at {path}: {error}"
        }
    return {"mok_sha256": hashlib.sha256(data).hexdigest(), "mok_pem": ssl.DER_cert_to_PEM_cert(data)}


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {
            "preflight_plan": preflight_plan,
            "with_preview": with_preview,
            "with_engines": with_engines,
            "mok_certificate": mok_certificate,
        }
