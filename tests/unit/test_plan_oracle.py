"""Plans of nodes of all kinds, judged by rules from outside; and refusals, followed by their advice."""

from __future__ import annotations

import copy
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from temper.base import DATA
from temper.plan.tables import load_tables
from tests.unit.each import each
from tests.unit.plan_nodes_wide import (
    FABRICS,
    HARDWARE,
    HEADERS,
    SECURE_BOOT,
    SYSTEMS,
    UNPACKAGED,
    System,
    wide_node,
)
from tests.unit.plan_oracle import ANY, chip, violations
from tests.unit.planning_nodes import DEFAULTS, TABLES, plan

MIRROR = "http://mirror.example/cuda"
ADDRESSES = (TABLES["nvidia_repository"]["url"], MIRROR)
KEY = "A" * 40
MOK = "b" * 64


class Case(NamedTuple):
    """A node, and what the operator asks for."""

    facts: dict[str, Any]
    values: dict[str, Any]
    mok_sha256: str = ""

    def plan(self) -> dict[str, Any]:
        """Its plan."""
        return plan(self.facts, mok_sha256=self.mok_sha256, **self.values)

    def wrong(self, found: dict[str, Any]) -> list[str]:
        """What is wrong with an accepted plan."""
        return list(violations(self.facts, DEFAULTS | self.values, found))

    def ask(self, **values: Any) -> Case:
        """With other variables."""
        return self._replace(values=self.values | values)

    def have(self, **facts: Any) -> Case:
        """With another state of the node."""
        return self._replace(facts=self.facts | facts)


OPTIONS = tuple(
    {"nvidia_stack_source": source, "nvidia_stack_name": stack, "nvidia_stack_kernel_modules": modules}
    for source, stack, modules in itertools.product(
        ("nvidia", "distro"), ("", *TABLES["nvidia_stacks"]), ("auto", "open", "proprietary")
    )
)
# A bare node as it comes, and one on which everything is allowed, so that the rest shows.
ALLOWED: tuple[dict[str, Any], ...] = (
    {},
    {
        "gpu_validation_required_tests": ["health"],
        "preflight_secure_boot_ok": True,
        "preflight_unknown_gpu_ok": True,
        "nvidia_stack_cuda_key_fingerprints": [KEY],
    },
)


def cases(name: str, count: int) -> Iterator[Case]:
    """So many nodes and wishes of a system, drawn from all that there are; the same ones in every run."""
    draw = random.Random(name).choice
    for _ in range(count):
        facts = wide_node(
            draw(systems_of(name)),
            draw(HARDWARE),
            secure_boot=draw(SECURE_BOOT),
            fabric=draw(FABRICS),
            headers=draw(HEADERS),
            unpackaged=draw(UNPACKAGED),
        )
        address = {"nvidia_stack_cuda_repository_url": draw(ADDRESSES)}
        imex = {"nvidia_stack_imex": draw((False, True))}
        yield Case(facts, {**address, **imex, **draw(OPTIONS), **draw(ALLOWED)})


NAMES = sorted({system.name for system in SYSTEMS})


def systems_of(name: str) -> tuple[System, ...]:
    return tuple(system for system in SYSTEMS if system.name == name)


@each(*NAMES)
def test_no_accepted_plan_is_wrong(name: str) -> None:
    accepted = 0
    for case in cases(name, 300):
        before = copy.deepcopy(case.facts)
        found = case.plan()
        assert case.facts == before
        if not found["problems"]:
            accepted += 1
            assert case.wrong(found) == [], case
    assert accepted or name == "fedora-43"


@each("nvidia", "distro")
def test_each_gpu_that_a_table_knows_is_planned_as_its_chip_needs(source: str) -> None:
    """Whatever the system, a GPU's rules are the same: one system is asked about all of them."""
    for device_id in load_tables(DATA).models_by_id:
        case = Case(wide_node(SYSTEMS[0], (device_id,)), {"nvidia_stack_source": source})
        found, known = case.plan(), chip(device_id)
        if not found["problems"]:
            assert case.wrong(found) == [], device_id
        # A GPU that newer branches have dropped is not refused.
        assert known and (known[0].last_branch == ANY or source == "distro" or not found["problems"])


# ---------------------------------------------------------------- advice


def own_kernel(case: Case, _: re.Match[str]) -> Case:
    """The release's own kernel, and no other."""
    facts = case.facts
    name = f"{facts['os']['id']}-{facts['os']['version_id']}"
    plain = next(one for one in systems_of(name) if one.machine == facts["architecture"])
    bare = wide_node(plain, ())
    return case.have(kernel=bare["kernel"] | {"headers_present": True}, kernels=bare["kernels"])


def without_gpu(case: Case, match: re.Match[str]) -> Case:
    """The GPU of the sentence is somewhere else."""
    old = match.groupdict().get("id")
    gone = {old} if old else {"1db5"}  # the only GPU of the nodes above that cannot share one
    return case.have(pci=[device for device in case.facts["pci"] if device["device_id"] not in gone])


def enrolled(case: Case, _: re.Match[str]) -> Case:
    """A key pair of the fleet, whose certificate the firmware knows."""
    pair = {"nvidia_stack_mok_certificate": "/mok.pem", "nvidia_stack_mok_private_key": "/mok.key"}
    return case.ask(**pair).have(mok_enrolled=[MOK])._replace(mok_sha256=MOK)


def with_index(case: Case, match: re.Match[str]) -> Case:
    """A build of PyTorch's index."""
    index = f"--index-url https://download.pytorch.org/whl/{match['variant']}"
    return case.ask(gpu_validation_torch_version=match["torch"], gpu_validation_pip_args=index)


def with_environment(case: Case, _: re.Match[str]) -> Case:
    """An environment that the operator has made."""
    torch = "2.14.1+local"
    there = {"version": "3.12", "torch": torch, "environment": True}
    return case.ask(gpu_validation_torch_version=torch).have(payload_python=there)


# What a sentence advises, and how it is done.
ADVICE: tuple[tuple[str, Callable[[Case, re.Match[str]], Case]], ...] = (
    (r"set nvidia_stack_imex: false", lambda case, _: case.ask(nvidia_stack_imex=False)),
    (
        r"set nvidia_stack_name: (?P<name>[\w.-]*\w)",
        lambda case, match: case.ask(nvidia_stack_name=match["name"]),
    ),
    (
        r"(?:set |; )nvidia_stack_source: (?P<source>nvidia|distro)",
        lambda case, match: case.ask(nvidia_stack_source=match["source"]),
    ),
    (
        r"set nvidia_stack_kernel_modules: auto",
        lambda case, _: case.ask(nvidia_stack_kernel_modules="auto"),
    ),
    (
        r"^nvidia_stack_name has no effect .*leave it empty",
        lambda case, _: case.ask(nvidia_stack_name=""),
    ),
    (
        r"a mirror with such packages \(nvidia_stack_cuda_repository_url\)",
        lambda case, _: case.ask(nvidia_stack_cuda_repository_url=MIRROR),
    ),
    (
        r"set nvidia_stack_cuda_key_fingerprints: \[",
        lambda case, _: case.ask(nvidia_stack_cuda_key_fingerprints=[KEY]),
    ),
    (
        r"set preflight_unknown_gpu_ok: true",
        lambda case, _: case.ask(preflight_unknown_gpu_ok=True),
    ),
    (
        r"set preflight_secure_boot_ok: true",
        lambda case, _: case.ask(preflight_secure_boot_ok=True),
    ),
    (r"set nvidia_stack_mok_certificate and nvidia_stack_mok_private_key", enrolled),
    (r"disable Secure Boot in the firmware", lambda case, _: case.have(secure_boot="disabled")),
    (
        r"set gpu_validation_torch_version: (?P<torch>[\d.]+\+cu\d+), and in gpu_validation_pip_args "
        r"--index-url with PyTorch's index for (?P<variant>cu\d+)",
        with_index,
    ),
    (
        r"install Python (?P<python>[\d.]+\d) on the node",
        lambda case, match: case.have(pythons=[*case.facts["pythons"], match["python"]]),
    ),
    (r"bring an environment with a torch|the Python of an environment that has torch", with_environment),
    (
        r"gpu_validation_required_tests: \[health\]",
        lambda case, _: case.ask(gpu_validation_required_tests=["health"]),
    ),
    (
        r"boot the release's own kernel and remove that one|boot a kernel of Ubuntu's and remove"
        r"|boot a kernel of the distribution's",
        own_kernel,
    ),
    (
        r"install its headers from where it came",
        lambda case, _: case.have(kernel=case.facts["kernel"] | {"headers_present": True}),
    ),
    (
        r"boot a kernel that the distribution still offers",
        lambda case, _: case.have(kernel=case.facts["kernel"] | {"headers_installable": True}),
    ),
    (
        r"run `nvidia-uninstall` there",
        lambda case, _: case.have(nvidia=case.facts["nvidia"] | {"userspace_version": None}),
    ),
    (r"move one of them to another node", without_gpu),
    (r"10de:(?P<id>\w{4}) .*take the GPU out", without_gpu),
)
# What ends the matter: no node of the group, or another system.
GIVEN_UP = re.compile(r"out of the group gpu_nodes")
STEPS = 12


def followed(case: Case, text: str) -> list[Case]:
    """What a sentence advises, each of its ways done."""
    found = ((do, re.search(pattern, text)) for pattern, do in ADVICE)
    return [do(case, match) for do, match in found if match]


@each(*NAMES)
def test_each_refusals_advice_works_and_ends_in_no_wrong_plan(name: str) -> None:
    for start in cases(name, 40):
        problems = start.plan()["problems"]
        assert start.plan()["problems"] == problems
        for text in problems:
            assert len(text) > 30 and "None" not in text
            ways = followed(start, text)
            assert ways or GIVEN_UP.search(text), text
            for way in ways:
                found = way.plan()
                assert text not in found["problems"], (start, way.values)
                if not found["problems"]:
                    assert way.wrong(found) == [], way


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [True, False], ids=["first way", "last way"])
def test_advice_that_is_followed_to_the_end_gives_a_plan_or_says_that_there_is_none(
    name: str, *, first: bool
) -> None:
    for start in cases(name, 30):
        case = start
        for _ in range(STEPS):
            found = case.plan()
            if not found["problems"] or any(map(GIVEN_UP.search, found["problems"])):
                break
            ways = [way for text in found["problems"] for way in followed(case, text)]
            case = ways[0 if first else -1]
        assert not found["problems"] or any(map(GIVEN_UP.search, found["problems"])), (start, case.values)
        if not found["problems"]:
            assert case.wrong(found) == [], (start, case.values)
