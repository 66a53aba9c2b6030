"""Layers with the result of site.yml: which one fits, what is in it, and which ones stay in the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab import converged, settings
from tests.lab import node as machine
from tests.lab.process import LabError
from tests.lab.settings import Lab, Node

BELOW = machine.Layers(Path("/c/rootfs-1"), Path("/c/layer-1/upper"), Path("/c/payload-1"))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout."""
    root = tmp_path / "checkout"
    for name in ("roles/firewall", "inventory/lab", "docs/explain"):
        (root / name).mkdir(parents=True)
    for name in (*converged._FILES, "roles/firewall/main.yml", "docs/explain/lab.md"):
        (root / name).write_text("first")
    monkeypatch.setattr(converged, "CHECKOUT", root)
    return root


@pytest.fixture
def node(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that has been switched off, with something stored."""
    for module in (converged, settings):
        monkeypatch.setattr(module, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(machine, "stop", lambda node: None)
    monkeypatch.setattr(machine, "layers", lambda node: replace(BELOW, result=converged.layer(node, BELOW)))
    node = Lab("keeping", tmp_path / "cache").node(1)
    (node.state / "upper" / "etc").mkdir(parents=True)
    (node.state / "upper" / "etc" / "nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    return node


def test_what_decides_on_the_result_decides_on_the_layer(checkout: Path, node: Node) -> None:
    before = converged.layer(node, BELOW)
    assert converged.layer(Lab("other", node.lab.cache).node(1), BELOW) == before
    assert converged.layer(node.lab.node(2), BELOW) != before
    assert converged.layer(node, machine.Layers(Path("/c/rootfs-2"), BELOW.lab, BELOW.payload)) != before
    (checkout / "docs/explain/lab.md").write_text("second")
    assert converged.layer(node, BELOW) == before
    for name in ("roles/firewall/main.yml", "site.yml"):
        (checkout / name).write_text("second")
        assert converged.layer(node, BELOW) != before, name
        (checkout / name).write_text("first")


@pytest.mark.component
def test_what_a_node_has_stored_is_kept_once(node: Node) -> None:
    converged.keep(node)
    stored = node.state / "upper" / "etc" / "nccl.conf"
    stored.write_text("changed since\n")
    converged.keep(node)
    assert (converged.layer(node, BELOW) / "etc" / "nccl.conf").read_text() == "NCCL_DEBUG=INFO\n"


def test_what_another_checkout_made_is_not_kept(
    checkout: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = replace(BELOW, result=converged.layer(node, BELOW))
    monkeypatch.setattr(machine, "layers", lambda node: below)
    (checkout / "site.yml").write_text("changed while it ran")
    with pytest.raises(LabError, match="another checkout"):
        converged.keep(node)
    below = replace(BELOW, result=converged.layer(node, BELOW), converged=Path("/c/converged-gpu01-1"))
    with pytest.raises(LabError, match="an earlier result"):
        converged.keep(node)


@pytest.mark.component
def test_the_newest_stay_and_those_that_nodes_run_on(checkout: Path, node: Node) -> None:
    made = []
    for number in range(converged._KEPT + 3):
        (checkout / "site.yml").write_text(str(number))
        converged.keep(node)
        made.append(converged.layer(node, BELOW))
        if number == 0:
            (node.state / "node.json").write_text(json.dumps({"converged": str(made[0])}))
    assert [path.exists() for path in made] == [True, False, False, *[True] * converged._KEPT]
