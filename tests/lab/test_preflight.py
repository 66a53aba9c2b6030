"""Preflight on bare nodes: the simulated transaction, what it refuses, and the file with all plans.

One lab of two bare nodes for the whole file; no test changes them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.repository_faults import Repositories
from tests.lab.settings import Lab, Node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

LAB = Lab(name="preflight")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
DRIVER = "580.178.04"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        yield


@pytest.fixture(scope="module")
def own_repositories(lab: None) -> Iterator[Repositories]:
    repositories = Repositories(LAB)
    yield repositories
    repositories.close()


@pytest.fixture
def repositories(own_repositories: Repositories) -> Iterator[Repositories]:
    yield own_repositories
    own_repositories.restore()


def preflight(path: Path, node: Node | None = None, **variables: object) -> tuple[Run, dict[str, Any]]:
    """Run it; the plan file's content comes with it."""
    run = FLEET.playbook("preflight", node, preflight_plan_file=str(path), **variables)
    return run, json.loads(path.read_text())


def state(node: Node) -> str:
    """What preflight must leave alone."""
    folders = "/etc/apt /var/lib/apt /var/lib/dpkg /var/cache/apt"
    return on_node(node, f"find {folders} -type f -exec sha256sum {{}} + | sort; dpkg-query -W")


def test_the_plan_has_the_exact_transaction_and_the_node_stays_as_it_was(tmp_path: Path) -> None:
    before = [state(node) for node in (BOOKWORM, TRIXIE)]
    run, document = preflight(tmp_path / "plan.json")
    assert run.status == 0, run.output
    assert "2 nodes planned, 0 refused" in run.said
    for node in (BOOKWORM, TRIXIE):
        plan = document["nodes"][node.name]
        new = {change["name"]: change["version"] for change in plan["transaction"]["install"]}
        assert plan["packages"].items() <= new.items()
        assert not plan["transaction"]["remove"]
    assert [state(node) for node in (BOOKWORM, TRIXIE)] == before


def test_a_version_that_does_not_exist_refuses_that_node_alone(
    tmp_path: Path, repositories: Repositories
) -> None:
    repositories.withdraw(TRIXIE, f"{DRIVER}-1")
    run, document = preflight(tmp_path / "plan.json")
    assert run.status != 0
    assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 0, TRIXIE.name: 1}
    assert f"{DRIVER}-1" in "".join(document["nodes"][TRIXIE.name]["problems"])
    assert "2 nodes planned, 1 refused: gpu02" in run.said


def test_the_plans_are_kept_where_every_node_is_refused(tmp_path: Path) -> None:
    run, document = preflight(tmp_path / "new/plan.json", nvidia_stack_name="r999")
    assert run.status != 0
    assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 1, TRIXIE.name: 1}
    for plan in document["nodes"].values():
        assert plan["problems"][0].startswith("nvidia_stack_name: no stack is named r999")


@pytest.mark.parametrize(
    ("os_release", "said"),
    [
        ("ID=ubuntu\nVERSION_ID=24.04\nPRETTY_NAME=Ubuntu", "/ubuntu2404/x86_64"),
        ("ID=rocky\nVERSION_ID=9.6\nPRETTY_NAME=Rocky", ""),
    ],
    ids=["ubuntu", "rocky"],
)
def test_a_system_that_is_not_what_it_says_is_refused_before_it_is_touched(
    tmp_path: Path, os_release: str, said: str
) -> None:
    """A Debian that calls itself Ubuntu or Rocky: the plan is theirs, the simulation cannot carry it out."""
    before = state(TRIXIE)
    on_node(TRIXIE, f"printf '{os_release}\n' >/run/os-release; mount --bind /run/os-release /etc/os-release")
    try:
        run, document = preflight(tmp_path / "plan.json", TRIXIE)
    finally:
        on_node(TRIXIE, "umount /etc/os-release")
    plan = document["nodes"][TRIXIE.name]
    assert run.status != 0
    assert plan["system"] == ("ubuntu-24.04" if said else "rhel-9")
    assert plan["problems"]
    assert said in " ".join(plan["problems"])
    assert state(TRIXIE) == before
