"""What the steps of a roll-out come to where it brings a kernel: with a stack, or alone."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temper.rollout.model import Course, Outcome, Step, StepResult
from temper.rollout.playbooks import Played
from temper.rollout.policy import Policy
from tests.unit.rollout.test_executor import NEW, OLD, World, played, ticket, usual

NEWEST = Policy(kernel="newest")
RELEASE = "6.1.0-41-amd64"
STAGED = {"kernel": {"release": RELEASE}, "source": "nvidia", "system": "debian-12"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return usual(tmp_path, stage=played(**STAGED))


def step(world: World, step: Step, **given: Any) -> StepResult:
    """A step of a roll-out that brings the newest kernel alone, where nothing else is given."""
    return world.step(step, **{"stack": "", "policy": NEWEST, "kernel": RELEASE, **given})


def test_staging_a_kernel_alone_leaves_the_stack(world: World) -> None:
    result = step(world, Step.STAGE, kernel="")
    assert (result.outcome, result.facts) == (Outcome.DONE, {"former_stack": "", "kernel": RELEASE})
    variables = world.ansible.asked[-1][1]
    # The inventory's; a distribution's own driver has no name that could be given.
    assert "nvidia_stack_name" not in variables
    assert (variables["upgrade_kernel"], variables["upgrade_kernel_wish"]) == (True, "newest")


def test_a_stack_that_an_earlier_roll_out_has_brought_stays(world: World) -> None:
    world.executor.known_stacks = (NEW,)
    world.ansible.answers["look"] = [played(stack=OLD, settled=False), played(stack=NEW, settled=True)]
    assert step(world, Step.STAGE, kernel="").facts["former_stack"] == NEW
    assert world.ansible.asked[-1][1]["nvidia_stack_name"] == NEW


def test_a_node_with_the_kernel_is_left_out(world: World) -> None:
    has = "it has the newest kernel already: 6.1.0-41-amd64 (6.1.160-1)"
    world.ansible.answers["stage"] = played(**STAGED | {"kernel": {"settled": has}})
    result = step(world, Step.STAGE, kernel="")
    assert (result.outcome, result.reason) == (Outcome.REFUSED, has)


def test_a_node_with_the_kernel_gets_the_stack_alone(world: World) -> None:
    world.ansible.answers["stage"] = played(**STAGED | {"kernel": {"settled": "it has"}})
    result = step(world, Step.STAGE, stack=NEW, kernel="")
    assert (result.outcome, result.facts) == (Outcome.DONE, {"former_stack": OLD, "kernel": ""})
    step(world, Step.INSTALL, stack=NEW, kernel="")
    assert world.ansible.asked[-1][1]["upgrade_kernel"] is False


def test_a_node_with_the_stack_gets_the_kernel_alone(world: World) -> None:
    world.ansible.answers["look"] = played(stack=NEW, settled=True)
    result = step(world, Step.STAGE, stack=NEW, kernel="")
    assert (result.outcome, result.facts) == (Outcome.DONE, {"former_stack": NEW, "kernel": RELEASE})


def test_a_kernel_that_the_distributions_driver_is_not_known_for_is_refused(world: World) -> None:
    newer = {"kernel": {"release": "6.16.3+deb12-amd64"}, "source": "distro", "system": "debian-12"}
    world.ansible.answers["stage"] = played(**newer)
    result = step(world, Step.STAGE, kernel="")
    assert result.outcome is Outcome.REFUSED
    assert "known to build for kernels up to 6.12, and kernel 6.16.3+deb12-amd64 is newer" in result.reason
    # What was noted on the node is forgotten when it is released.
    assert result.facts["kernel"] == "6.16.3+deb12-amd64"


def test_why_a_kernel_is_refused_is_said(world: World) -> None:
    world.ansible.answers["stage"] = Played(ok=False, said="no GRUB", refused=True)
    result = step(world, Step.STAGE, kernel="")
    assert (result.outcome, result.reason) == (Outcome.REFUSED, "no GRUB")


@pytest.mark.parametrize("one", [Step.INSTALL, Step.LOAD])
def test_the_steps_know_of_the_kernel_and_keep_the_stack(world: World, one: Step, tmp_path: Path) -> None:
    (tmp_path / "gpu01").mkdir()
    (tmp_path / "gpu01/settings.json").write_text("{}")
    assert step(world, one).outcome is Outcome.DONE
    variables = next(variables for name, variables in world.ansible.asked if name == str(one))
    assert variables["upgrade_kernel"] is True
    assert variables["upgrade_course"] == "forward"
    assert variables["nvidia_stack_name"] == OLD


def test_the_inventorys_stack_is_measured_without_a_name(world: World) -> None:
    step(world, Step.BASELINE, former_stack="")
    measured = next(variables for name, variables in world.ansible.asked if name == "validate")
    assert "nvidia_stack_name" not in measured


def test_another_kernel_after_the_reboot_leads_back(world: World) -> None:
    said = f"Expected kernel {RELEASE}, found 6.1.0-40-amd64 running"
    world.ansible.answers["load"] = Played(ok=False, said=said)
    result = step(world, Step.LOAD)
    assert (result.outcome, result.reason) == (Outcome.FAILED, said)


def test_the_way_back_leaves_the_kernel_before_the_driver_changes(world: World) -> None:
    assert step(world, Step.UNDO, course=Course.BACK).outcome is Outcome.DONE
    assert world.ansible.steps == ["leave", "install"]
    assert [variables["upgrade_course"] for _, variables in world.ansible.asked] == ["back", "back"]


def test_a_kernel_that_cannot_be_left_is_tried_again(world: World) -> None:
    world.ansible.answers["leave"] = Played(ok=False, said="it does not answer", unreachable=True)
    result = step(world, Step.UNDO, course=Course.BACK)
    assert (result.outcome, result.reason) == (Outcome.AGAIN, "it does not answer")
    assert world.ansible.steps == ["leave"]


def test_a_kernel_that_was_kept_is_left_by_a_person(world: World) -> None:
    after_its_soak = ticket(Step.UNDO, course=Course.BACK, kernel=RELEASE)
    record = replace(after_its_soak.record, watched=False)
    result = asyncio.run(world.executor.perform(replace(after_its_soak, record=record)))
    assert result.outcome is Outcome.FAILED
    assert "boot the former one" in result.reason
    assert world.ansible.steps == []


@pytest.mark.parametrize(("stack", "steps"), [("", []), (NEW, ["boot"])])
def test_back_from_a_kernel_alone_it_has_booted_already(world: World, stack: str, steps: list[str]) -> None:
    assert step(world, Step.REBOOT, stack=stack, course=Course.BACK).outcome is Outcome.DONE
    assert world.ansible.steps == steps


def test_what_stays_on_the_node_is_said(world: World) -> None:
    world.ansible.answers["clean"] = played(said="GRUB's own options would boot another kernel")
    assert "GRUB's own options" in step(world, Step.RETURN).reason


def test_a_roll_out_without_a_kernel_asks_for_none(world: World) -> None:
    step(world, Step.STAGE, stack=NEW, policy=Policy(), kernel="")
    step(world, Step.UNDO, stack=NEW, policy=Policy(), kernel="", course=Course.BACK)
    assert all(not variables["upgrade_kernel"] for _, variables in world.ansible.asked)
    assert "leave" not in world.ansible.steps


def test_the_scheduler_is_told_what_comes(world: World) -> None:
    step(world, Step.DRAIN)
    assert world.scheduler.asked == ["drain: upgrade to the newest kernel"]
