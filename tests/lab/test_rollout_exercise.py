"""The exercise of docs/operate/upgrading.md on three nodes, with the commands as they stand there.

Nothing is made up: the payload measures, and the nodes have to withstand whatever else this machine does.
"""

import shlex
from pathlib import Path

import pytest

from tests.lab import rollouts
from tests.lab.fleet import Fleet, Run, loaded_driver
from tests.lab.rollouts import DRIVERS, NEW, OLD
from tests.lab.settings import CHECKOUT, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="exercise")
FLEET = Fleet(LAB, size=3)
PAGE = CHECKOUT / "docs/operate/upgrading.md"


def documented() -> dict[str, list[str]]:
    """The exercise's commands of `temper rollout` by their name, in the order of the page."""
    exercise = PAGE.read_text(encoding="utf-8").partition("\n## An exercise in the lab\n")[2]
    found = [shlex.split(line, comments=True) for line in exercise.split("```")[1].splitlines()]
    return {words[2]: words for words in found if words[:2] == ["temper", "rollout"]}


def test_three_nodes_get_the_new_stack_and_go_back(tmp_path: Path) -> None:
    said: dict[str, Run] = {}
    with rollouts.booted(FLEET):
        for stage in ("provision", "tune"):
            run = FLEET.playbook(stage)
            assert run.status == 0, run.output
        nodes = LAB.nodes(3)
        for name, words in documented().items():
            # A person types yes.
            answer = ["--yes"] if name in ("run", "rollback") else []
            said[name] = FLEET.run([*words, "--folder", str(tmp_path), *answer])
            assert said[name].status == 0, said[name].output
            if name == "run":
                assert [loaded_driver(node) for node in nodes] == [DRIVERS[NEW]] * 3
        assert [loaded_driver(node) for node in nodes] == [DRIVERS[OLD]] * 3
    assert list(said) == ["plan", "run", "status", "report", "rollback"]
    # What the page says that one sees.
    for line in ("canaries: 2 nodes: gpu01, gpu02;", "wave 1: gpu03;"):
        assert line in said["plan"].said
    assert "done: 3 returned" in said["run"].said
    assert f"nvidia_stack_name: {NEW}" in said["status"].said
    assert f"nvidia_stack_name: {OLD}" in said["rollback"].said
