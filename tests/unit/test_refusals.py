"""The catalogue of reasons to refuse a node, and what rules, plans and documents make of it."""

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from temper.plan.fleet import FleetPlan
from temper.plan.node_plan import NodePlan, refused
from temper.plan.refusals import CatalogueError, Refusal, advice, facts_of, refusal, sentences
from tests.unit.each import each
from tests.unit.planning_nodes import node, plan
from tests.unit.tables import ROOT
from validation.model.contract import ContractError

SECTIONS = {"refusal": "refusals", "advice": "remedies"}


def sources() -> Iterator[ast.Module]:
    """The programs that may refuse a node."""
    for folder in ("temper", "plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            yield ast.parse(path.read_text(encoding="utf-8"))


SOURCES = list(sources())


def calls() -> Iterator[tuple[str, str, set[str], bool]]:
    """Each call that names a code: the section, the code, its facts, and whether it gives others besides."""
    for source in SOURCES:
        for one in ast.walk(source):
            if not isinstance(one, ast.Call) or not isinstance(one.func, ast.Name) or not one.args:
                continue
            code = one.args[0]
            if one.func.id in SECTIONS and isinstance(code, ast.Constant):
                facts = {keyword.arg for keyword in one.keywords}
                names = {name for name in facts if name and name != "remedy"}
                yield SECTIONS[one.func.id], str(code.value), names, None in facts


def test_every_caller_gives_the_facts_of_its_code() -> None:
    found = list(calls())
    assert len(found) > 100
    for section, code, facts, more in found:
        expected = facts_of(sentences(section)[code])
        assert facts <= expected if more else facts == expected, code


@each(*SECTIONS.values())
def test_every_code_is_used(section: str) -> None:
    words = {one.value for source in SOURCES for one in ast.walk(source) if isinstance(one, ast.Constant)}
    assert sentences(section).keys() - words == set()


@each(
    ("monitoring-system", {}, "facts are missing"),
    ("monitoring-system", {"system": "debian-12", "packages": "x"}, "packages"),
    ("gpu-green", {}, "no code gpu-green"),
)
def test_a_refusal_of_no_code_or_with_other_facts_is_none(
    code: str, facts: dict[str, str], words: str
) -> None:
    with pytest.raises(CatalogueError, match=words):
        refusal(code, **facts)


@each(
    (refusal("architecture-unsupported", architecture="s390x", known=["a", "b"]), "expected one of: a, b"),
    (refusal("network-absent", networks=["a", "b"], found="none"), "in a or b, found none"),
    (refusal("distro-packages-absent", variables=["a", "b"], or_nvidia=False), "set a: false, b: false"),
    (refusal("distro-packages-absent", variables=["a"], or_nvidia=True), "false, or set nvidia_"),
    (refusal("disk-full", path="/usr", free_gib=1.26, needed_gib=10), "/usr has 1.3 GiB free"),
    (refusal("gpu-absent", advice("did-you-mean", name="x")), "firmware; did you mean x?"),
    (refusal("node-name", reason="{not} a fact"), "{not} a fact"),
)
def test_a_sentence_has_its_facts(made: Refusal, text: str) -> None:
    assert text in made.text


def test_a_plan_has_code_and_facts_beside_the_sentence() -> None:
    found = plan(node(pci=[]))
    assert found["refusals"] == [{"code": "gpu-absent", "facts": {}, "remedy": None}]
    assert found["problems"] == [refusal("gpu-absent").text]
    assert NodePlan.from_dict(found).refusals == (refusal("gpu-absent"),)


def test_a_remedy_that_depends_on_the_node_has_a_code() -> None:
    v100 = [{"address": "0000:01:00.0", "device_id": "1db6", "class_id": "0302", "driver": "", "name": ""}]
    (found,) = plan(node(pci=v100), nvidia_stack_name="r595-cuda13.2")["refusals"][:1]
    assert found["code"] == "gpu-needs-older-branch"
    assert found["facts"]["stack"] == "r595-cuda13.2"
    assert found["remedy"]["code"] == "use-stack"


def test_sentences_alone_are_refusals_too() -> None:
    """Those of a node without a plan, or of a document from before there were codes."""
    found = NodePlan.from_dict({"problems": ["the node is silent"]})
    assert found.refusals == (Refusal("other", {"reason": "the node is silent"}),)
    assert found.problems == ("the node is silent",)


@each({"code": "gpu-green"}, {"code": "gpu-absent", "facts": {"x": 1}}, {"code": "disk-full"})
def test_a_document_with_another_refusal_cannot_be_read(one: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="refusals"):
        NodePlan.from_dict({"refusals": [{"facts": {}, **one}]})


def test_a_fact_takes_more_refusals() -> None:
    fact = refused(plan(), refusal("variable-in-play", variable="firewall_rules"))
    assert fact["problems"] == list(NodePlan.from_dict(fact).problems)
    assert [one["code"] for one in fact["refusals"]] == ["variable-in-play"]


def test_a_node_without_a_plan_has_a_code() -> None:
    (one,) = FleetPlan.from_dict({"gpu01": None}).documents["gpu01"]["refusals"]
    assert one["code"] == "plan-missing"
