"""Packages that no role takes back: the repositories of others end no run."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_packages
import pytest
from ansible.module_utils.temper.packaging import repositories

from tests.unit.apt_machine import Machine
from tests.unit.needs import root_and

Run = Callable[..., dict[str, Any]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install(run_module: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")

    def run(*names: str, **parameters: Any) -> dict[str, Any]:
        return run_module(node_packages.main, names=list(names), **parameters)

    return run


@pytest.mark.component
@root_and("apt-get", "dpkg-deb")
def test_a_dead_repository_of_somebody_else_is_a_warning(install: Run, machine: Machine) -> None:
    path = machine.root / "etc/apt/sources.list"
    path.write_text(path.read_text() + "deb [trusted=yes] copy:/nowhere ./\n")
    result = install("desktop")
    assert (result["changed"], result["installed"]) == (True, {"desktop": "1"})
    assert "/nowhere" in str(result["warnings"])
    assert machine.versions() == {"desktop": "1"}
    assert machine.held() == []
    assert install("desktop") == {"changed": False, "invocation": {"module_args": {"names": ["desktop"]}}}


@pytest.mark.component
@root_and("apt-get", "dpkg-deb")
def test_check_mode_changes_nothing(install: Run, machine: Machine) -> None:
    before = machine.snapshot()
    assert install("desktop", check_mode=True)["changed"]
    assert machine.snapshot() == before


@pytest.mark.component
@root_and("apt-get", "dpkg-deb")
def test_a_package_that_nobody_offers_is_named(install: Run, machine: Machine) -> None:
    result = install("vanished")
    assert result["failed"]
    assert "vanished" in result["msg"]


def test_no_role_and_no_playbook_leaves_packages_to_ansibles_own_modules() -> None:
    """They end where one repository cannot be read, and wait a minute for dpkg's lock."""
    own = re.compile(r"ansible\.builtin\.(apt|dnf|dnf5|package|pip|yum)\b")
    for folder in ("roles", "playbooks"):
        for path in (ROOT / folder).rglob("*.yml"):
            assert not own.search(path.read_text(encoding="utf-8")), path
