"""The setting: made from a plan's items, read, made and taken back without the rest of its role."""

import json
import os
from typing import Any

import pytest
from ansible.module_utils.temper.engines.engine_settings import ContainerEngines

from tests.unit.engines.stand_ins import Node

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]

ITEMS: dict[str, Any] = {"shm_size": "1G", "ulimits": {"memlock": -1}, "engines": ["docker", "containerd"]}


def engines(**items: Any) -> ContainerEngines:
    return ContainerEngines.from_items({**ITEMS, **items}, {"busy_ok": False, "absent": False})


def files(node: Node) -> dict[str, str]:
    log = str(node.path / "log")
    return {path: text for path, text in node.files().items() if path != log}


@pytest.fixture
def two_engines(node: Node) -> Node:
    node.has_docker()
    node.has_containerd()
    node.write(node.daemon_json, '{"debug": true}')
    node.write(node.config, "version = 2\n# theirs\n")
    return node


def test_it_is_made_from_a_plans_items(two_engines: Node) -> None:
    setting = engines()
    assert (setting.obstacle(), setting.settled()) == (None, False)
    setting.apply()
    assert engines().settled()
    assert setting.result()["changed_files"] == sorted(
        map(str, (two_engines.daemon_json, two_engines.config, two_engines.drop_in, two_engines.limits))
    )


def test_restoring_what_was_there_before_leaves_no_trace(two_engines: Node) -> None:
    before = files(two_engines)
    setting = engines()
    state = json.loads(json.dumps(setting.read()))
    setting.apply()
    ContainerEngines(setting.spec).restore(state)
    assert files(two_engines) == before


def test_restoring_keeps_what_others_have_added_since(two_engines: Node) -> None:
    setting = engines()
    state = setting.read()
    setting.apply()
    document = json.loads(two_engines.daemon_json.read_text())
    two_engines.daemon_json.write_text(json.dumps({**document, "log-driver": "local"}))
    setting.restore(state)
    assert json.loads(two_engines.daemon_json.read_text()) == {"debug": True, "log-driver": "local"}


def test_restoring_an_earlier_wish_gives_its_files_back(two_engines: Node) -> None:
    engines().apply()
    before = files(two_engines)
    other = engines(shm_size="2G", default_runtime=True)
    state = other.read()
    other.apply()
    assert files(two_engines) != before
    other.restore(state)
    assert files(two_engines) == before
    assert engines().settled()


def test_before_the_toolkit_is_installed_a_check_finds_the_conflicts_of_others(two_engines: Node) -> None:
    two_engines.runtime.unlink()
    (two_engines.bin / "nvidia-ctk").unlink()
    before = files(two_engines)
    check = ContainerEngines(ITEMS, check_mode=True)
    assert (check.obstacle(), check.settled()) == (None, False)
    assert str(two_engines.drop_in) in check.result()["changed_files"]
    two_engines.write(two_engines.drop_in, "version = 2\n")
    obstacle = ContainerEngines(ITEMS, check_mode=True).obstacle()
    assert obstacle
    assert f"{two_engines.drop_in} was written by somebody else" in obstacle
    two_engines.drop_in.unlink()
    assert files(two_engines) == before


def test_a_toolkit_that_cannot_make_a_drop_in_is_refused(two_engines: Node) -> None:
    two_engines.program(
        "nvidia-ctk", "#!/bin/sh\necho 'flag provided but not defined: -drop-in-config' >&2; exit 1\n"
    )
    before = files(two_engines)
    obstacle = engines().obstacle()
    assert obstacle
    assert "not defined: -drop-in-config. Expected the container toolkit 1.18 or newer" in obstacle
    assert files(two_engines) == before


def test_an_engine_that_uses_the_units_of_another_is_recorded(node: Node) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    node.has_docker()
    node.refresh.write_text("UnitFileState=disabled\n\nUnitFileState=enabled\n")
    engines(engines=["docker"]).apply()
    node.refresh.write_text("UnitFileState=enabled\n\nUnitFileState=enabled\n")
    podman = engines(engines=["podman"])
    assert not podman.settled()
    podman.apply()
    assert engines(engines=["podman"]).settled()
    engines(engines=["docker"], state="absent").apply()
    assert "disable" not in (node.path / "log").read_text()
