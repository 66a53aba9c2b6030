"""The part of an inventory that a slice gets says of its nodes what the whole one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.inventory import InventoryError, read

INVENTORY = """
all:
  vars: {site: north}
  children:
    gpu_nodes:
      vars: {os_tuning_nofile: 1024, secret: "{{ site }}-x"}
      hosts:
        gpu01: {ansible_host: 192.0.2.1}
        gpu02: {}
      children:
        big:
          vars: {os_tuning_nofile: 4096}
          hosts: {gpu03: {ansible_host: 192.0.2.3}}
    rack_a:
      hosts: {gpu01: {}, gpu03: {}}
      vars: {rack: a}
    login:
      hosts: {login01: {}}
"""


def listing(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(path), "--list"],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yml"
    path.write_text(INVENTORY)
    return path


def test_a_slice_has_the_groups_and_variables_of_its_nodes_and_no_others(
    source: Path, tmp_path: Path
) -> None:
    whole = read([str(source)])
    assert sorted(whole.nodes) == ["gpu01", "gpu02", "gpu03"]
    part = tmp_path / "slice.json"
    part.write_text(json.dumps(whole.slice(["gpu01", "gpu03"])))
    before, after = listing(source), listing(part)
    for node in ("gpu01", "gpu03"):
        assert after["_meta"]["hostvars"][node] == before["_meta"]["hostvars"][node]
    assert set(after["_meta"]["hostvars"]) == {"gpu01", "gpu03"}
    assert after["rack_a"]["hosts"] == ["gpu01", "gpu03"]
    assert after["big"]["hosts"] == ["gpu03"]
    assert "login" not in after
    assert set(after["gpu_nodes"]["children"]) == {"big"}


def test_every_node_has_its_address_in_every_slice(source: Path) -> None:
    assert sorted(read([str(source)]).addresses()) == [
        ("gpu01", "192.0.2.1"),
        ("gpu02", ""),
        ("gpu03", "192.0.2.3"),
    ]


def test_a_limit_chooses_nodes(source: Path) -> None:
    assert read([str(source)], "rack_a").nodes == ["gpu01", "gpu03"]
    with pytest.raises(InventoryError, match="that --limit login chooses, found none"):
        read([str(source)], "login")


def test_an_inventory_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="expected an inventory of Ansible"):
        read([str(tmp_path / "absent.yml")])
