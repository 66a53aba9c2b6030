"""Everything is taken back from nodes that site.yml has made; what stays is listed with its reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lab import cutoff, node_state
from tests.lab.fleet import Fleet, Run, assert_refused, installed, loaded_driver, on_node
from tests.lab.node_state import PURGED, REMOVED, VOLATILE, Exemption
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.settings import Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="uni"))
BOOKWORM, TRIXIE = NODES = FLEET.lab.nodes(FLEET.size)
#: The inventory goes on to ask for all of it.
WISHES = {"monitoring_enabled": True, "profiling_tools_install": True}
UNINSTALL = ("ansible-playbook", "playbooks/uninstall.yml", "--extra-vars", json.dumps(WISHES))
EXEMPTIONS = (
    *VOLATILE,
    *PURGED,
    Exemption(r"file /home/ops/\.ansible(/.*)?", "Ansible's own, of each account that it comes by"),
    Exemption(r"file /var/lib/gpu-simulator(/.*)?", "the lab's"),
    *REMOVED,
    Exemption(
        r"active unit (ldconfig|systemd-(journal-catalog-update|sysusers|update-done|firstboot))\.service",
        "only the first boot starts it",
    ),
)
#: While the node is monitored.
METRICS = Exemption(r"file /var/lib/prometheus/node-exporter/temper\.prom", "its timer writes it anew")


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two bare nodes, and nothing left of them afterwards."""
    with FLEET.booted():
        yield


def uninstall(*words: str) -> Run:
    return FLEET.run([*UNINSTALL, *words])


def differences(before: dict[Node, node_state.State], exemptions: tuple[Exemption, ...]) -> list[str]:
    return [
        f"{node.name}: {difference}"
        for node, after in node_state.capture_all([*before]).items()
        for difference in node_state.compare(before[node], after, exemptions)
    ]


def unchanged(run: Run) -> bool:
    assert run.status == 0, run.output
    return all(run.changed(node) == 0 for node in NODES)


def removes_packages() -> bool:
    """Whether a package manager is at work on a node."""
    names = [name for node in NODES for name in cutoff.session_processes(node).values()]
    return "dpkg" in names


def test_everything_is_taken_back_also_by_a_run_that_completes_another_one(tmp_path: Path) -> None:
    bare = node_state.capture_all(NODES)
    assert unchanged(uninstall()), "of a node that Temper has never touched there is nothing to take back"

    site = FLEET.run(["ansible-playbook", "site.yml", "--skip-tags", "validate", *UNINSTALL[2:]])
    assert site.status == 0, site.output
    converged = node_state.capture_all(NODES)

    FLEET.command("fault", BOOKWORM.name, "compute-process", "on")
    assert_refused(uninstall("--limit", BOOKWORM.name), "a GPU is in use", "nvidia_stack_busy_ok")
    FLEET.command("fault", BOOKWORM.name, "compute-process", "off")

    shown = uninstall("--check", "--diff")
    assert shown.status == 0, shown.output
    assert "nvidia-persistenced" in shown.output
    found = differences(converged, (*EXEMPTIONS, METRICS))
    assert not found, "after a refusal and in check mode: " + "\n".join(found)

    first = cutoff.Controller(FLEET, tmp_path / "cut.log", UNINSTALL)
    cutoff.wait_until(removes_packages, "packages are removed", 600)
    first.kill()
    cutoff.kill_sessions(NODES)

    second = uninstall()
    assert second.status == 0, second.output
    assert "reboot required" in second.said
    assert unchanged(uninstall())
    for node in NODES:
        assert loaded_driver(node)
        FLEET.command("reboot", node.name)
    found = differences(bare, EXEMPTIONS)
    assert not found, "\n".join(found)


def test_what_is_kept_stays_as_it_is() -> None:
    """The driver on one node: what Temper has around it goes, and the GPUs still answer."""
    node = TRIXIE
    limit = ("--limit", node.name)
    site = FLEET.run(["ansible-playbook", "site.yml", "--skip-tags", "validate", *limit])
    assert site.status == 0, site.output
    run = uninstall(*limit, "--skip-tags", "nvidia_stack")
    assert run.status == 0, run.output
    assert "nvidia-driver-cuda" in installed(node)
    assert on_node(node, "nvidia-smi --query-gpu=name --format=csv,noheader").strip()
    assert on_node(node, "ls /var/lib/temper/settings").split() == ["nvidia_stack.json"]
    # It is still Temper's, and can still be taken back.
    rest = uninstall(*limit)
    assert rest.status == 0, rest.output
    assert "nvidia-driver-cuda" not in installed(node)
