"""From what preflight collects to the fact `preflight_plan`: the border between Ansible and this package."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from temper.base import DATA, ROOT
from temper.base.options import told
from temper.plan.contradictions import profiles_of
from temper.plan.convert import plain
from temper.plan.facts import NodeFacts
from temper.plan.identity import machine_of
from temper.plan.image import as_image
from temper.plan.jump_hosts import problems as jump_problems
from temper.plan.jump_hosts import read
from temper.plan.model import Target
from temper.plan.node_plan import NodePlan, Stage
from temper.plan.origin import place
from temper.plan.os_controls import load_controls
from temper.plan.plan import node_plan
from temper.plan.preview import Preview, with_preview
from temper.plan.programs import Programs
from temper.plan.reboot import reboot_reason, reboot_refusals
from temper.plan.refusals import Refusal, of_an_installation, refusal
from temper.plan.role_variables import argument_specs, role_variables, typed_variables
from temper.plan.roles import complete
from temper.plan.roles.context import Context, Fleet
from temper.plan.roles.os_hardening import system_refusals, system_warnings
from temper.plan.tables import load_models, load_tables
from temper.plan.unreadable import unreadable
from validation.model.contract import ContractError
from validation.model.expectations import file_name

MODULE_UTILS = ROOT / "module_utils" / "temper"
CDI_NCCL = MODULE_UTILS / "engines" / "cdi_nccl.py"
PULL = ROOT / "pull"
#: The variables by which every role takes itself back.
TAKEN_BACK: Mapping[str, object] = {
    **{
        f"{role}_state": "absent"
        for role in (
            "nvidia_stack",
            "container_engines",
            "gpu_settings",
            "compute_environment",
            "os_tuning",
            "admin_accounts",
            "firewall",
            "ssh_hardening",
            "os_hardening",
        )
    },
    **dict.fromkeys(("profiling_tools_install", "monitoring_enabled", "pull_enabled"), False),
    "gpu_settings_mig": None,
}
#: Refusals about one variable that planning finds: it has the values alone, and not where they stand.
ABOUT = {"stack-name": "nvidia_stack_name"}


def preview_arguments(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what module package_preview is asked about a plan, as `preflight_plan` returns it."""
    same = ("packages", "present", "repositories", "pins", "module_streams")
    return {
        **{name: plan[name] for name in same},
        "hold_versions": [plan["driver"]["package_version"]],
        "engines": plan["roles"]["container_engines"],
    }


def located(one: Refusal, host_variables: Mapping[str, Any]) -> Refusal:
    """Return a refusal with the place of the variable that it is about, where it is about one."""
    name = ABOUT.get(one.code, "")
    return replace(one, facts=one.facts | {"where": place(host_variables.get(name))}) if name else one


def name_problems(name: str) -> list[Refusal]:
    """Return why reports could not have files with the name of a node; nothing where they can."""
    try:
        file_name(name or "none")
    except ContractError as error:
        return [refusal("node-name", reason=str(error))]
    return []


@cache
def programs() -> dict[str, str]:
    """Return the programs that a node runs alone, and what they import, by their paths in their folders."""
    names = ("gpu_settings", "holders", "mig", "smi")
    driver = [MODULE_UTILS / "driver" / f"{name}.py" for name in names]
    paths = (*driver, MODULE_UTILS / "process.py", MODULE_UTILS / "rank.py", CDI_NCCL)
    shared = (MODULE_UTILS / "files.py", MODULE_UTILS / "lease.py", MODULE_UTILS / "records.py")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (*paths, *shared)}
    return texts | {f"pull/{path.name}": path.read_text(encoding="utf-8") for path in PULL.glob("*.py")}


def with_the_driver_that_is_there(plan: NodePlan) -> NodePlan:
    """Turn what forbids only an installation into warnings: this run installs nothing."""
    others = tuple(one for one in plan.refusals if one.code not in of_an_installation())
    left_out = (one for one in plan.refusals if one.code in of_an_installation())
    warnings = (
        f"this run leaves the driver as it is; site.yml would refuse this node: {one.text}"
        for one in left_out
    )
    return replace(plan, refusals=others, warnings=(*plan.warnings, *warnings))


def _unread(problems: list[Refusal], warnings: list[str]) -> NodePlan:
    """Return the plan of a node that could not be read: only its inventory is known."""
    text = "\n".join(f"warning: {one}" for one in warnings)
    return NodePlan(refusals=tuple(problems), warnings=tuple(warnings), text=text)


def preflight_plan(
    result: Mapping[str, Any],
    host_variables: Mapping[str, Any],
    known: Mapping[str, Any],
    preview: Mapping[str, Any] | None = None,
    programs_said: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the fact `preflight_plan` of a node.

    Every setting of every role, or every reason to refuse the node.

    `result` is what the task with module node_facts returned, `host_variables` the node's variables. `known`
    is what the controller knows: the node's `address`, `user` and `port` in the inventory, its `host_keys`
    (ssh_client.host_keys), `today` ("2026-11-21"), the `fleet` and the `jump_hosts` as action fleet_ways
    returns them, and whether this run `installs` the stack, `hardens` the system, or `takes_back` all that
    Temper has made. `preview` is what module package_preview returned, `programs_said` what node_programs
    did, where they have been asked.
    """
    checked = role_variables(host_variables, argument_specs())
    variables = typed_variables(checked["values"] | (TAKEN_BACK if known.get("takes_back") else {}))
    certificate = Certificate()
    problems = [refusal("variable-value", reason=one) for one in checked["problems"]]
    name = str(host_variables.get("inventory_hostname", ""))
    problems += name_problems(name)
    if jump := read(known).get(name):
        unsafe = jump_problems(jump, variables.ssh_hardening, host_variables)
        problems += [refusal("jump-host-settings", reason=one) for one in unsafe]
    try:
        certificate = read_certificate(variables.nvidia_stack.mok_certificate)
    except ValueError as error:
        problems.append(refusal("secure-boot-certificate", reason=str(error)))
    target = Target.from_dict(known, certificate.sha256)
    facts = result.get("ansible_facts", {}).get("temper")
    if facts is None:
        reached = not result.get("unreachable", False)
        problem = unreadable(str(result.get("msg", "")), target, name, reached=reached)
        return _unread([*problems, problem], checked["warnings"]).as_fact()
    try:
        node = NodeFacts.from_dict(facts)
    except (ValueError, TypeError, AttributeError) as error:
        problem = refusal("node-facts", reason=str(error))
        return _unread([*problems, problem], checked["warnings"]).as_fact()
    if variables.preflight.image:
        node, of_tree = as_image(node, variables.preflight, load_tables(DATA), certificate.sha256)
        problems += of_tree
    plan = node_plan(node, load_tables(DATA), variables, target)
    plan = replace(plan, refusals=tuple(located(one, host_variables) for one in plan.refusals))
    if preview is not None:
        said = Preview.from_dict(preview)
        plan = with_preview(plan, said)
        plan = replace(plan, transaction=plain(preview["transaction"]) if said.transaction else {})
    plan = replace(plan, reboot=reboot_reason(plan, node), warnings=(*checked["warnings"], *plan.warnings))
    if known.get("installs"):
        problems += reboot_refusals(plan, node, variables.nvidia_stack, name)
    elif known.get("leaves_driver"):
        plan = with_the_driver_that_is_there(plan)
    if known.get("hardens"):
        hardened = plan.system or node.os.name, variables.os_hardening
        problems += system_refusals(*hardened)
        plan = replace(plan, warnings=(*plan.warnings, *system_warnings(*hardened)))
    said_of_it = Programs.from_dict(programs_said or {})
    problems += said_of_it.refusals()
    fleet = known.get("fleet") or {}
    context = Context(
        # The tree of an image has the ids of the machine that makes it.
        replace(
            plan,
            refusals=(*problems, *plan.refusals),
            machine=() if plan.image else machine_of(node),
            host_keys=tuple(known.get("host_keys", ())),
            jump_level=jump.level if jump else 0,
        ),
        variables,
        node,
        controls=load_controls(DATA / "os_controls"),
        models=load_models(DATA),
        fleet=Fleet(tuple(fleet.get("addresses", ())), tuple(fleet.get("unknown", ()))),
        mok_certificate=certificate.pem,
        programs=programs(),
        name=name,
        jump=jump,
        given=frozenset(host_variables),
        profiles=profiles_of(host_variables.get("group_names") or ()),
        programs_said=said_of_it,
    )
    made = complete(context)
    if known.get("takes_back"):
        machine = made.text.partition("\n")[0]
        made = replace(made, text=f"{machine}\nwhat Temper has made here is taken back", warnings=())
    return made.as_fact()


#: Roles that preflight refuses a run for, with the stages whose tags select them.
STAGES = {
    "nvidia_stack": Stage.PROVISION,
    **dict.fromkeys(("admin_accounts", "firewall", "ssh_hardening", "os_hardening"), Stage.HARDEN),
}


def reaches(role: str, run_tags: Collection[str], skipped_tags: Collection[str]) -> bool:
    """Return whether a run with these tags carries out a role; `all` and `tagged` are Ansible's."""
    own = {STAGES[role], role, "all", "tagged"}
    return bool(own & {*run_tags}) and not own & {*skipped_tags}


@dataclass(frozen=True)
class Certificate:
    """A certificate as PEM, and the SHA-256 of its DER form, by which firmware names the keys it knows."""

    pem: str = ""
    sha256: str = ""


def read_certificate(path: str) -> Certificate:
    """Return the certificate in a file, an empty one where there is no path.

    Raises ValueError: it is none.
    """
    if not path:
        return Certificate()
    try:
        data = Path(path).expanduser().read_bytes()
        if b"-----BEGIN" in data:
            data = ssl.PEM_cert_to_DER_cert(data[data.index(b"-----BEGIN CERTIFICATE") :].decode().strip())
    except (OSError, ValueError) as error:
        raise ValueError(
            "nvidia_stack_mok_certificate: expected an X.509 certificate (PEM or DER) on this machine at "
            f"{path}: {told(error)}"
        ) from error
    return Certificate(ssl.DER_cert_to_PEM_cert(data), hashlib.sha256(data).hexdigest())
