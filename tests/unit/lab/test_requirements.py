"""Each thing that a machine may lack for the lab is one sentence that says what to do."""

import importlib.util
import os
import platform
import shutil
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab import host_apt, network, requirements, settings
from tests.lab.process import LabError
from tests.lab.settings import Lab

DiskUsage = namedtuple("DiskUsage", "total used free")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine that has everything; tests take something away."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    for module in (requirements, settings):
        monkeypatch.setattr(module, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(requirements, "run", lambda *_, **__: "")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(0, 0, 100 * 2**30))
    source = host_apt.Source("http://mirror.test/debian/", "", ("main",), host_apt.KEYRING)
    monkeypatch.setattr(host_apt, "read", lambda: host_apt.HostApt((source,), (), ()))
    monkeypatch.setattr(network, "_ip", lambda *_: [{"dst": "default", "dev": "eth0"}])
    monkeypatch.setattr(network, "name_servers", lambda: "nameserver 192.0.2.1\n")
    return monkeypatch


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(cache=tmp_path / "cache")


def refuse(*_: object, **__: object) -> str:
    raise LabError("it was refused")


@pytest.mark.usefixtures("machine")
def test_machine_with_everything_has_no_problem(lab: Lab) -> None:
    assert requirements.problems(lab, 2) == []


@pytest.mark.parametrize(
    ("owner", "name", "value", "sentence"),
    [
        (os, "geteuid", lambda: 1000, "needs root"),
        (platform, "system", lambda: "Darwin", "needs a Linux machine; this is Darwin"),
        (importlib.util, "find_spec", lambda _: None, "apt-get install python3-venv"),
        (requirements, "run", refuse, "need overlayfs"),
        (shutil, "disk_usage", lambda _: DiskUsage(0, 0, 2**30), "needs 4.4 GiB of free disk in"),
        (host_apt, "read", refuse, "it was refused"),
        (network, "name_servers", refuse, "it was refused"),
    ],
)
def test_a_lack_is_one_sentence(
    machine: pytest.MonkeyPatch, lab: Lab, owner: object, name: str, value: object, sentence: str
) -> None:
    machine.setattr(owner, name, value)

    problems = requirements.problems(lab, 2)

    assert len(problems) == 1
    assert sentence in problems[0]


@pytest.mark.parametrize(("tool", "package"), requirements.TOOLS.items())
def test_missing_tool_is_named_with_its_package(
    machine: pytest.MonkeyPatch, lab: Lab, tool: str, package: str
) -> None:
    machine.setattr(shutil, "which", lambda name: None if name == tool else f"/usr/bin/{name}")

    assert requirements.problems(lab, 2) == [
        f"The lab needs {tool}, which is not installed: apt-get install {package}"
    ]


def test_what_is_cached_needs_no_disk_again(machine: pytest.MonkeyPatch, lab: Lab) -> None:
    machine.setattr(shutil, "disk_usage", lambda _: DiskUsage(0, 0, 2**30))
    for name in ("rootfs-bookworm-1", "rootfs-trixie-1", "payload-1"):
        (lab.cache / name).mkdir(parents=True)

    assert requirements.problems(lab, 2) == []


@pytest.mark.parametrize(
    ("routes", "refused"),
    [
        ([{"dst": "10.213.0.0/16", "dev": "wg0"}], True),
        ([{"dst": "10.213.0.7", "dev": "wg0"}], True),
        ([{"dst": "10.213.1.0/24", "dev": "br-other"}], False),
        ([{"dst": "10.213.0.0/24", "dev": "br-temper"}], False),
    ],
)
def test_network_in_use_is_refused(
    machine: pytest.MonkeyPatch, lab: Lab, routes: Sequence[dict[str, str]], refused: bool
) -> None:
    machine.setattr(network, "_ip", lambda *_: routes)

    problems = requirements.problems(lab, 2)

    assert [("10.213.0.0/24 is in use" in problem) for problem in problems] == ([True] if refused else [])
