"""A look ahead: Debian testing, with sudo-rs and uutils in the place of sudo and GNU's coreutils.

It is refused before anything is changed. With the rows of Debian 13, in a copy of this tree, it is hardened.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state
from tests.lab.fleet import BIN, Fleet, Run, assert_refused, on_node
from tests.lab.hardening import SUDO_RS
from tests.lab.settings import CHECKOUT, Lab
from tests.lab.test_lock_out_trials import becomes_root
from tests.lab.test_take_back import ABSENT, EXEMPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="testing", testing=True), size=1)
NODE = FLEET.lab.node(1)
LEFT_OUT = (".git", ".venv", "reports", "__pycache__", ".*_cache")
STRICT = {"os_hardening_profile": "cis-level2"}
UUTILS = "for program in /usr/lib/cargo/bin/coreutils/*; do ln -sf $program /usr/bin; done"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        packages = "apt-get -qqy install --no-install-recommends sudo-rs rust-coreutils >/dev/null"
        on_node(NODE, f"apt-get -qq update; {packages}; {SUDO_RS}; {UUTILS}", 1800)
        FLEET.command("reboot", NODE.name)
        yield


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with rows for the system, which has no number yet: those of Debian 13."""
    copy = tmp_path_factory.mktemp("ahead") / "checkout"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    (copy / "data/os_systems/debian-.yml").write_text("like: debian-13\n")
    table = copy / "data/nvidia_compatibility.yml"
    before, name, rows = table.read_text().partition("  debian-13:\n")
    row = rows[: rows.index("\n  ubuntu")]
    table.write_text(f"{before}  debian-:\n{row}\n{name}{rows}")
    return copy


def harden(checkout: Path, **variables: object) -> Run:
    command = [str(BIN / "ansible-playbook"), "--inventory", str(CHECKOUT / "inventory/lab")]
    wanted = json.dumps({"preflight_plan_file": "", **variables})
    done = subprocess.run(
        [*command, "playbooks/harden.yml", "--extra-vars", wanted],
        cwd=checkout,
        env=FLEET.environment | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=FLEET.timeout_s,
        check=False,
    )
    return Run(done.returncode, done.stdout + done.stderr)


def test_what_a_system_without_rows_is_told_comes_before_any_change() -> None:
    run = harden(CHECKOUT, **STRICT)
    assert_refused(run, "is not supported", "os_hardening has controls for")
    assert run.changed(NODE) == 0


def test_with_the_rows_of_its_predecessor_it_is_hardened_stays_so_and_is_given_back(ahead: Path) -> None:
    before = node_state.capture_all([NODE])[NODE]
    first = harden(ahead, **STRICT)
    assert first.status == 0, first.output
    assert "sudo-log" in first.said, first.output
    assert becomes_root(NODE)
    FLEET.command("reboot", NODE.name)
    assert becomes_root(NODE)
    again = harden(ahead, **STRICT)
    assert (again.status, again.changed(NODE)) == (0, 0), again.output
    gone = harden(ahead, **ABSENT)
    assert gone.status == 0, gone.output
    assert becomes_root(NODE)
    assert harden(ahead, **ABSENT).changed(NODE) == 0
    after = node_state.capture_all([NODE])[NODE]
    assert list(node_state.compare(before, after, (*EXEMPTIONS, *node_state.REMOVED))) == []
