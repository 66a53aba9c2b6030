"""Docker: its file is merged, checked by dockerd and given back."""

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.engines import base, docker
from ansible.module_utils.temper.settings.base import SettingError

from tests.unit.engines.stand_ins import Node
from tests.unit.tables import specs

Run = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


def test_docker_is_configured_once(node: Node, apply: Run) -> None:
    node.has_docker()
    first, second = apply(), apply()
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["engines"] == {"docker": {"version": "26.1.5", "cdi": True}}
    assert list(json.loads(node.daemon_json.read_text())) == [
        "runtimes",
        "features",
        "default-shm-size",
        "default-ulimits",
    ]


def test_check_mode_shows_the_difference_and_writes_nothing(node: Node, apply: Run) -> None:
    node.has_docker()
    before = node.files()
    result = apply(check_mode=True)
    assert result["changed"] is True
    assert '"default-shm-size": "1G"' in result["diff"][0]["after"]
    assert node.files() == before


def test_an_old_docker_gets_the_runtime_and_a_warning(
    node: Node, apply: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # Ansible keeps warnings for the whole process, and drops one that it has had before.
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: said.append(text))
    node.has_docker("20.10.24")
    apply()
    assert ["Docker 20.10.24 does not read CDI" in text for text in said] == [True]
    assert "features" not in json.loads(node.daemon_json.read_text())


def test_absent_leaves_no_trace(node: Node, apply: Run) -> None:
    node.has_docker()
    node.has_containerd()
    node.write(node.config, "version = 2\n# theirs\n")
    everything = ["docker", "containerd"]
    before = node.files()
    apply(engines=everything)
    assert apply(engines=everything, state="absent")["changed"] is True
    assert apply(engines=everything, state="absent")["changed"] is False
    after = node.files()
    after.pop(str(node.path / "log"), None)
    assert after == before


def test_absent_leaves_a_file_that_somebody_has_extended(node: Node, apply: Run) -> None:
    node.has_docker()
    apply()
    document = json.loads(node.daemon_json.read_text())
    node.daemon_json.write_text(json.dumps({**document, "debug": True}))
    apply(state="absent")
    assert json.loads(node.daemon_json.read_text()) == {"debug": True}


def test_what_dockerd_does_not_accept_is_refused(node: Node, apply: Run) -> None:
    node.has_docker()
    node.program(
        "dockerd",
        "#!/bin/sh\n[ $1 = --version ] && echo Docker version 26.1.5 && exit\n"
        'echo "the following directives don\'t match any configuration option: bogus" >&2; exit 1\n',
    )
    node.write(node.daemon_json, '{"bogus": 1}')
    assert "dockerd does not accept" in apply()["msg"]
    assert node.daemon_json.read_text() == '{"bogus": 1}'


@pytest.mark.parametrize("options", ["--default-shm-size=2G", "--default-shm-size 2G -H fd://"])
def test_an_option_in_the_unit_is_refused(node: Node, apply: Run, options: str) -> None:
    node.has_docker()
    node.options.write_text(options)
    message = apply()["msg"]
    assert "docker.service starts dockerd with --default-shm-size=2G" in message
    assert not node.daemon_json.exists()
    assert apply(shm_size="")["changed"] is True


def test_a_link_is_refused(node: Node, apply: Run) -> None:
    node.has_docker()
    node.write(node.path / "theirs.json", "{}")
    node.daemon_json.parent.mkdir()
    node.daemon_json.symlink_to(node.path / "theirs.json")
    assert "is a link to" in apply()["msg"]


def test_docker_may_read_another_file(node: Node, apply: Run) -> None:
    node.has_docker()
    other = node.path / "other.json"
    node.options.write_text(f"--config-file={other}")
    apply()
    assert "runtimes" in other.read_text()


@pytest.fixture
def snap(node: Node) -> Node:
    """Docker as snapd installs it: a mounted revision, a link to it, and no dockerd on PATH."""
    revision = node.path / "snap/docker/2976"
    node.write(revision / "bin/dockerd", "#!/bin/sh\n")
    (revision.parent / "current").symlink_to(revision.name)
    return node


def test_docker_from_snap_is_refused_with_what_to_do(snap: Node, apply: Run) -> None:
    message = apply()["msg"]
    assert "reads /var/snap/docker/current/config/daemon.json instead of" in message
    assert "snap remove docker" in message
    options = specs()["container_engines"]["argument_specs"]["main"]["options"]
    named = re.findall(r"container_engines_install: \[(.*?)\]", message)
    assert named
    assert set(named) <= set(options["container_engines_install"]["choices"])
    assert not snap.daemon_json.exists()


@pytest.mark.parametrize("wish", [{"exclude": ["docker"]}, {"engines": ["containerd"]}, {"state": "absent"}])
def test_docker_from_snap_that_nobody_asks_for_is_left_alone(
    snap: Node, apply: Run, wish: dict[str, Any]
) -> None:
    snap.has_containerd()
    assert "msg" not in apply(**wish)


def test_a_docker_that_does_not_answer_is_named() -> None:
    unit = base.Unit("docker.service", exists=True, active=True, command=("dockerd", "-H", "unix:///nowhere"))
    with pytest.raises(SettingError, match="does not answer at /nowhere"):
        docker.ask(unit, "/info")
