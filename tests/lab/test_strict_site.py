"""A site that is stricter than the hardening stays so: after a run, after a reboot, and in compliance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

FLEET = Fleet(Lab(name="strict"), size=2)
NODES = FLEET.lab.nodes(2)  # Debian 12 and 13
# Before and after our file; a mount point from fstab; a keyword; a unit that is off.
SITE = """
echo kernel.kptr_restrict = 2 >/etc/sysctl.d/10-site.conf
printf 'kernel.yama.ptrace_scope = 2\\nkernel.sysrq = 16\\n' >/etc/sysctl.d/99-site.conf
sed -i 's/^UMASK.*/UMASK 077/' /etc/login.defs
echo 'tmpfs /tmp tmpfs noexec,size=64m 0 0' >>/etc/fstab
systemctl disable --quiet --now cron.service
"""
LOOK = """
sysctl -n kernel.kptr_restrict kernel.yama.ptrace_scope kernel.sysrq fs.protected_regular
awk '$1 == "UMASK" {print $2}' /etc/login.defs
systemctl is-enabled cron.service || :
findmnt --noheadings --output VFS-OPTIONS --mountpoint /tmp | tr , '\\n' | grep '^no' | sort
"""
BEFORE = ["2", "2", "16", "0", "077", "disabled", "noexec"]
AFTER = ["2", "2", "16", "2", "077", "disabled", "nodev", "noexec", "nosuid"]
KEPT = ("kernel-pointers", "ptrace-scope", "sysrq", "umask", "tmp-options", "cron", "protected-links")
WEAKEN = """
sysctl --quiet --write kernel.kptr_restrict=1
sed -i 's/^UMASK.*/UMASK 022/' /etc/login.defs
mount --options remount,bind,dev,nosuid none /tmp
"""


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[None]:
    with FLEET.booted():
        for node in NODES:
            on_node(node, SITE)
            FLEET.command("reboot", node.name)
            assert seen(node) == BEFORE
        yield


def seen(node: Any) -> list[str]:
    return on_node(node, LOOK).replace("nosymfollow", "").split()


def harden(*arguments: str) -> Any:
    return FLEET.run(["ansible-playbook", "playbooks/harden.yml", "--tags=os_hardening", *arguments])


def states(reports: Path) -> list[dict[str, str]]:
    """What compliance says of the controls that the site is stricter in, node by node."""
    FLEET.playbook("compliance", compliance_reports_directory=str(reports))
    told = json.loads((reports / "latest" / "statement.json").read_text())["nodes"]
    return [{one["id"]: one["state"] for one in node["controls"] if one["id"] in KEPT} for node in told]


def test_what_is_stricter_stays_now_and_after_a_reboot_and_fails_once_it_is_weaker(tmp_path: Path) -> None:
    checked = harden("--check")
    assert "kept: " in checked.said
    assert [seen(node) for node in NODES] == [BEFORE] * 2
    first = harden()
    assert first.status == 0, first.output
    for word in (
        "kernel.kptr_restrict 2 (/etc/sysctl.d/10-site.conf)",
        "UMASK in /etc/login.defs 077",
        "noexec of /tmp",
    ):
        assert word in first.said
    assert [seen(node) for node in NODES] == [AFTER] * 2
    assert [harden().changed(node) for node in NODES] == [0, 0]
    for node in NODES:
        FLEET.command("reboot", node.name)
    assert [seen(node) for node in NODES] == [AFTER] * 2
    assert [harden().changed(node) for node in NODES] == [0, 0]
    passed = states(tmp_path / "reports")
    assert all("fail" not in of_node.values() for of_node in passed), passed
    for node in NODES:
        on_node(node, WEAKEN)
    failed = states(tmp_path / "reports")
    assert all(
        {of_node[name] for name in ("kernel-pointers", "umask", "tmp-options")} == {"fail"}
        for of_node in failed
    ), failed
    taken_back = harden("--extra-vars", json.dumps({"os_hardening_state": "absent"}))
    assert taken_back.status == 0, taken_back.output
    for node in NODES:
        FLEET.command("reboot", node.name)
    assert [seen(node)[:4] for node in NODES] == [BEFORE[:4]] * 2
