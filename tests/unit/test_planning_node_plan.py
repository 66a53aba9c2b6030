"""The typed plan: real plans fit it, it survives JSON, and nothing else is read."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from temper.plan.node_plan import NodePlan, PlannedSetting, RolePlan, Stage
from temper.plan.wanted import FileWanted, Kind, UnitWanted
from tests.unit.each import each
from tests.unit.planning_nodes import H100, L4, NVSWITCH, SWITCH, gpus, node, plan, system
from tools.bare_node import pci
from tools.schemas import PLAN
from validation.model.contract import ContractError

SCHEMA = json.loads(PLAN.read_text())
PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "debian-12": plan,
    "hgx": lambda: plan(node(pci=gpus(*[H100] * 8) + pci((SWITCH, NVSWITCH)))),
    "distro": lambda: plan(nvidia_stack_source="distro"),
    "rhel-9": lambda: plan(system("rhel", "9.6")),
    "ubuntu-24": lambda: plan(system("ubuntu", "24.04")),
    "unknown system": lambda: plan(system("plan9", "4")),
    "no gpu": lambda: plan(node(pci=[])),
}


@each(*PLANS)
def test_a_real_plan_fits_the_types_and_the_schema(name: str) -> None:
    of_dict = PLANS[name]()
    typed = NodePlan.from_dict(of_dict)
    document = json.loads(json.dumps(typed.as_dict()))
    jsonschema.validate(document, SCHEMA)
    assert {key: document[key] for key in of_dict} == of_dict
    assert NodePlan.from_dict(document) == typed


def test_a_node_that_could_not_be_read_has_a_plan_too() -> None:
    plan = NodePlan.from_dict({"problems": ["unreachable"], "text": "", "driver": None})
    assert (plan.architecture, plan.gpus) == (None, ())
    jsonschema.validate(plan.as_dict(), SCHEMA)


def test_settings_survive_json() -> None:
    setting = PlannedSetting(Kind.SYSCTL, "kernel.numa_balancing", "It moves memory.", ("numa",), wanted="0")
    whole = NodePlan(roles=(RolePlan("os_tuning", Stage.TUNE, (setting,)),))
    document = json.loads(json.dumps(whole.as_dict()))
    jsonschema.validate(document, SCHEMA)
    assert document["roles"][0]["settings"][0]["kind"] == "sysctl"
    assert type(whole.as_dict()["roles"][0]["stage"]) is str
    assert NodePlan.from_dict(document).role("os_tuning").settings == (setting,)


@each(
    ("sysctl", "kernel.numa_balancing", 0),
    ("file", "/etc/x", {"content": "x", "mod": "0644"}),
    ("unit", "x.service", {"on": "yes"}),
    ("package", "x", {"version": "1"}),
    ("firewall", "ssh_ports", ["22"]),
    ("firewall", "rules", [{"name": "x", "sources": [], "protocol": "smtp"}]),
    ("sshd_algorithm", "Ciphers", "aes256-ctr"),
    ("gpu", "locked_clocks", {"graphics": True}),
)
def test_what_is_not_of_its_kinds_type_is_no_setting(kind: str, key: str, wanted: Any) -> None:
    setting = {"kind": kind, "key": key, "why": "", "wanted": wanted}
    document = {"roles": [{"role": "os_tuning", "stage": "tune", "settings": [setting]}]}
    with pytest.raises(ContractError, match=f"{kind}:{key}"):
        NodePlan.from_dict(document)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(NodePlan().as_dict() | document, SCHEMA)


def test_a_parameter_that_there_is_not_is_no_setting() -> None:
    setting = {"kind": "firewall", "key": "shields", "why": "", "wanted": True}
    with pytest.raises(ContractError, match="firewall:shields: no such parameter"):
        NodePlan.from_dict({"roles": [{"role": "firewall", "stage": "harden", "settings": [setting]}]})


@each((Kind.UNIT, FileWanted("x")), (Kind.SYSCTL, UnitWanted(on=True)), (Kind.GPU, "x"))
def test_a_setting_is_made_of_its_kinds_type_alone(kind: Kind, wanted: Any) -> None:
    with pytest.raises(TypeError, match=f"{kind}:x"):
        PlannedSetting(kind, "x", "", wanted=wanted)


@each(
    ({"schema_version": 99}, "schema version 99"),
    ({"surprise": 1}, "surprise: no such field"),
    ({"packages": ["a"]}, "packages: expected an object"),
    ({"roles": [{"role": "os_tuning", "stage": "later"}]}, "expected one of provision, tune, harden"),
)
def test_what_is_no_plan_is_refused_with_the_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        NodePlan.from_dict(NodePlan().as_dict() | change)


def test_the_models_of_tests_are_in_the_plan() -> None:
    found = NodePlan.from_dict(plan(node(pci=gpus(L4))))
    assert [(gpu.count, gpu.architecture) for gpu in found.gpus or ()] == [(1, "ada")]


@each(5, "x", {}, None, [5], [{"id": 5}])
def test_waivers_of_another_form_are_refused_in_a_sentence(waived: object) -> None:
    with pytest.raises(ContractError, match="waived"):
        NodePlan.from_fact(NodePlan().as_fact() | {"waived": waived})
