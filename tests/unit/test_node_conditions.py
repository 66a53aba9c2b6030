"""Conditions of a node: a reboot that is due, updates of security, who may become root."""

import grp
import os
import pwd
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.module_utils.temper import node_conditions as conditions
from ansible.module_utils.temper.process import CommandError

from temper.compliance.repairs import command_of
from tests.unit.each import each

# What apt-get prints on Debian 12 and on Ubuntu 22.04.
SIMULATED = """\
Reading package lists...
Inst openssl [3.0.15-1~deb12u1] (3.0.17-1~deb12u2 Debian-Security:12/oldstable-security [amd64])
Inst tzdata [2024a-0+deb12u1] (2025b-0+deb12u1 Debian:12.11/stable [all])
Inst libc6 [2.35-0ubuntu3.8] (2.35-0ubuntu3.10 Ubuntu:22.04/jammy, Ubuntu:22.04/jammy-security [amd64])
Conf openssl (3.0.17-1~deb12u2 Debian-Security:12/oldstable-security [amd64])
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(conditions, "REBOOT_REQUIRED", tmp_path / "reboot-required")
    monkeypatch.setattr(conditions, "BOOT", tmp_path / "boot")
    monkeypatch.setattr(conditions, "APT_LISTS", tmp_path / "lists")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.1.0-9-amd64"))
    (tmp_path / "boot").mkdir()
    return tmp_path


def test_a_node_that_runs_what_is_installed_needs_no_reboot(node: Path) -> None:
    for name in (
        "vmlinuz-6.1.0-9-amd64",
        "vmlinuz-6.1.0-7-amd64",
        "vmlinuz-6.12.0-1-rt-amd64x",
        "initrd.img-7",
    ):
        (node / "boot" / name).touch()
    assert conditions.reboot()["state"] == "pass"


def test_a_newer_kernel_of_the_same_flavour_waits_for_a_reboot(node: Path) -> None:
    (node / "boot" / "vmlinuz-6.1.0-37-amd64").touch()
    found = conditions.reboot()
    assert found["state"] == "fail"
    assert "6.1.0-37-amd64" in found["reason"]


def test_what_else_waits_for_a_reboot_is_said(node: Path) -> None:
    found = conditions.reboot(["GPU 0 (L4): ECC mode is Enabled until the next reboot, then Disabled"])
    assert (found["state"], "GPU 0 (L4): ECC mode" in found["reason"]) == ("fail", True)


@pytest.mark.parametrize(
    ("running", "installed", "state"),
    [
        ("5.14.0-503.11.1.el9_5.x86_64", "5.14.0-611.el9_7.x86_64", "fail"),
        ("5.14.0-611.el9_7.x86_64", "5.14.0-503.11.1.el9_5.x86_64", "pass"),
        ("5.14.0-503.el9_5.aarch64", "5.14.0-611.el9_7.aarch64+64k", "pass"),
        ("5.14.0-503.el9_5.x86_64", "0-rescue-1f2e3d4c5b6a", "pass"),
        ("6.12.9+deb13-amd64", "6.12.48+deb13-amd64", "fail"),
        ("6.1.0-9-amd64", "6.1.0-37-cloud-amd64", "pass"),
    ],
)
def test_kernels_of_other_distributions_are_told_apart_as_well(
    node: Path, monkeypatch: pytest.MonkeyPatch, running: str, installed: str, state: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=running))
    (node / "boot" / f"vmlinuz-{installed}").touch()
    assert conditions.reboot()["state"] == state


def test_what_the_distribution_asks_a_reboot_for_is_named(node: Path) -> None:
    (node / "reboot-required").write_text("*** System restart required ***\n")
    (node / "reboot-required.pkgs").write_text("libc6\ndbus\nlibc6\n")
    found = conditions.reboot()
    assert (found["state"], found["reason"].rpartition(" for ")[2]) == ("fail", "dbus, libc6")


@pytest.fixture
def apt(node: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with apt whose lists are of today."""
    monkeypatch.setattr(conditions, "which", lambda name: name == "apt-get" or None)
    monkeypatch.setattr(conditions, "run", lambda _: SIMULATED)
    (node / "lists").mkdir()
    (node / "lists" / "mirror_InRelease").touch()
    return node / "lists"


def test_updates_of_security_are_told_from_others(apt: Path) -> None:
    found = conditions.security_updates()
    assert (found["state"], found["reason"]) == ("fail", "2 security updates wait: libc6, openssl")
    repair = command_of(found["repair"][0])
    assert repair
    assert shlex.split(repair)[2:5] == ["apt-get", "--yes", "--only-upgrade"]
    assert shlex.split(repair)[-3:] == ["install", "libc6", "openssl"]


def test_no_update_is_a_pass(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "run", lambda _: "Reading package lists...\n")
    assert conditions.security_updates()["state"] == "pass"


@each(
    (-30, -30, "30 days"),
    (3650, -30, "30 days"),  # a mirror's clock that is ahead gives a list such a time
    (30, 30, "clock"),
)
def test_old_lists_and_those_without_an_age_prove_nothing(
    list_days: int, folder_days: int, reason: str, apt: Path
) -> None:
    now = time.time()
    for path, days in ((apt / "mirror_InRelease", list_days), (apt, folder_days)):
        os.utime(path, (now, now + days * 86400))
    found = conditions.security_updates()
    assert (found["state"], list(map(command_of, found["repair"]))) == ("not-checked", ["apt-get update"])
    assert [word for word in ("30 days", "clock") if word in found["reason"]] == [reason]


def test_a_node_without_lists_was_not_checked(apt: Path) -> None:
    (apt / "mirror_InRelease").unlink()
    assert conditions.security_updates()["state"] == "not-checked"


def test_a_package_manager_that_fails_was_not_asked(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_command: list[str]) -> str:
        raise CommandError("apt-get failed with status 100: dpkg was interrupted")

    monkeypatch.setattr(conditions, "run", fail)
    found = conditions.security_updates()
    assert (found["state"], "dpkg was interrupted" in found["reason"]) == ("not-checked", True)


def test_dnf_lists_its_advisories(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "which", lambda name: name == "dnf" or None)
    listed = "RHSA-2026:1 Important/Sec. openssl-3.0.7-27.el9.x86_64\n\n"
    monkeypatch.setattr(conditions, "run", lambda _: listed)
    assert "openssl-3.0.7-27.el9.x86_64" in conditions.security_updates()["reason"]


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, a second root, members of sudo by their list and by their own group, and a user."""

    def account(name: str, number: int, group: int) -> SimpleNamespace:
        return SimpleNamespace(pw_name=name, pw_uid=number, pw_gid=group)

    listed = [account("root", 0, 0), account("toor", 0, 0), account("ada", 1000, 1000)]
    listed += [account("bob", 1001, 27), account("user", 1002, 1002)]
    groups = [
        SimpleNamespace(gr_name="sudo", gr_gid=27, gr_mem=["ada"]),
        SimpleNamespace(gr_name="users", gr_gid=100, gr_mem=["user"]),
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: listed)
    monkeypatch.setattr(grp, "getgrall", lambda: groups)


def test_who_can_become_root_must_be_listed(accounts: None) -> None:
    found = conditions.unlisted_administrators(["ada"])
    assert found["state"] == "fail"
    assert found["reason"].endswith(": bob, toor")
    assert list(map(command_of, found["repair"])) == ["gpasswd --delete bob sudo"]
    assert conditions.unlisted_administrators(["ada", "bob", "toor"])["state"] == "pass"


def test_where_nobody_lists_administrators_nothing_is_said_of_them(accounts: None) -> None:
    assert conditions.unlisted_administrators(None)["state"] == "not-applicable"


def test_an_sshd_that_is_not_hardened_fails() -> None:
    def breaks() -> list[str]:
        raise CommandError("no /proc")

    found = conditions.ssh_servers(lambda: ["process 7 on port 2222 reads '/x'"])
    assert found["state"] == "fail"
    assert "process 7" in found["reason"]
    assert conditions.ssh_servers(list)["state"] == "pass"
    assert conditions.ssh_servers(breaks)["state"] == "not-checked"
