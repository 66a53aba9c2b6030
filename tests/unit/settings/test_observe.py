"""Each setting is compared by itself: what cannot be read costs that one, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_compliance
import pytest
from ansible.module_utils.temper import node_conditions
from ansible.module_utils.temper.settings import kinds, observe, record, system

from temper.compliance.repairs import command_of
from tests.unit.settings.role_plans import item, role_plan

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's /proc/sys, /etc/sysctl.d, records and loaded modules."""
    sys = tmp_path / "proc-sys"
    (sys / "net").mkdir(parents=True)
    (sys / "net" / "one").write_text("1\n")
    (tmp_path / "sysctl.d").mkdir()
    (tmp_path / "records").mkdir()
    (tmp_path / "modules").write_text("cramfs 1 0 - Live 0x0\n")
    monkeypatch.setattr(system, "PROC_SYS", sys)
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", (str(tmp_path / "sysctl.d"),))
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(record, "FORMER", {})
    monkeypatch.setattr(observe, "MODULES", tmp_path / "modules")
    return tmp_path


def seen(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {found["key"]: found for found in observe.observe(plan)}


def state(plan: dict[str, Any], key: str) -> str:
    return str(seen(plan)[key]["state"])


def sysctl(value: str = "1", **options: Any) -> dict[str, Any]:
    return role_plan("os_tuning", [item("sysctl", "net.one", value)], **options)


def test_a_parameter_is_compared_with_what_is_in_force(node: Path) -> None:
    assert state(sysctl("1"), "sysctl:net.one") == "pass"
    found = seen(sysctl("0"))["sysctl:net.one"]
    assert found["state"] == "fail"
    assert [(change["before"], change["after"]) for change in found["changes"]] == [("1", "0")]


def test_a_parameter_that_this_kernel_lacks_is_not_applicable(node: Path) -> None:
    plan = role_plan("os_tuning", [item("sysctl", "net.two", "1")])
    assert state(plan, "sysctl:net.two") == "not-applicable"


def test_a_file_that_sets_it_after_ours_is_found_before_the_boot_that_shows_it(node: Path) -> None:
    theirs = node / "sysctl.d" / "99-local.conf"
    theirs.write_text("# net.one = 7\nnet/one = 2\n-net.one=3\n")
    found = seen(sysctl("1", sysctl_file="90-temper.conf"))["sysctl:net.one"]
    assert found["state"] == "fail"
    assert f"{theirs} comes later and sets 3" in found["reason"]
    (command,) = found["repair"]
    assert str(theirs) in command
    theirs.write_text("net.one = 1\n")
    assert state(sysctl("1", sysctl_file="90-temper.conf"), "sysctl:net.one") == "pass"
    (node / "proc-sys" / "net" / "one").write_text("0\n")
    assert state(sysctl("1", sysctl_file="90-temper.conf"), "sysctl:net.one") == "fail"


@pytest.mark.component
def test_the_printed_command_takes_only_that_line_out(node: Path) -> None:
    import subprocess

    theirs = node / "sysctl.d" / "99-local.conf"
    theirs.write_text("net.one = 2\nnet.one.more = 2\n- net/one=3\n# net.one = 4\nnet.only = 5\n")
    ((name, pattern, file),) = seen(sysctl("1", sysctl_file="90-temper.conf"))["sysctl:net.one"]["repair"]
    assert file == str(theirs)
    command = command_of([name, pattern, "/etc/sysctl.d/99-local.conf"])
    assert command
    subprocess.run(["sh", "-c", command.replace("/etc/sysctl.d/99-local.conf", file)], check=True)
    assert theirs.read_text() == "net.one.more = 2\n# net.one = 4\nnet.only = 5\n"


def test_a_file_is_compared_line_by_line(node: Path) -> None:
    file = node / "limits"
    file.write_text("a\nb\nc\n")
    plan = role_plan("os_tuning", [item("file", str(file), {"content": "a\nB\nc\n"})])
    (change,) = seen(plan)[f"file:{file}"]["changes"]
    assert change["diff"].splitlines()[-2:] == ["-b", "+B"]
    assert file.read_text() == "a\nb\nc\n"


def test_of_a_long_difference_a_part_is_shown(node: Path) -> None:
    file = node / "limits"
    file.write_text("x\n" * 500)
    plan = role_plan("os_tuning", [item("file", str(file), {"content": "y" * 5000 + "\nz\n"})])
    lines = seen(plan)[f"file:{file}"]["changes"][0]["diff"].splitlines()
    assert len(lines) == observe.MOST_LINES + 1
    assert max(map(len, lines)) <= observe.MOST_CHARACTERS


def test_a_file_that_is_to_be_absent_and_is_passes_whatever_folder_it_is_in(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "MODPROBE", f"{node}/")
    path = node / "temper-profiling.conf"
    plan = role_plan("profiling_tools", [item("file", str(path), None)])
    found = seen(plan)[f"file:{path}"]
    assert (found["state"], found["reason"]) == ("pass", "")
    path.write_text("options nvidia NVreg_RestrictProfilingToAdminUsers=0\n")
    assert state(plan, f"file:{path}") == "fail"


def test_a_forbidden_module_that_is_loaded_is_found(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = node / "temper.conf"
    content = "blacklist cramfs\ninstall cramfs /bin/false\nblacklist usb-storage\n"
    plan = role_plan("os_hardening", [item("file", str(file), {"content": content}, "unused-filesystems")])
    file.write_text(content)
    file.chmod(0o644)
    monkeypatch.setattr(observe, "MODPROBE", f"{node}/")
    found = seen(plan)[f"file:{file}"]
    assert (found["state"], found["controls"]) == ("fail", ["unused-filesystems"])
    assert "cramfs" in found["reason"]
    (node / "modules").unlink()
    assert state(plan, f"file:{file}") == "pass"


def test_a_secret_is_neither_asked_for_nor_compared(node: Path) -> None:
    secret = {"content": None, "secret": True, "source": "/vault/key"}
    plan = role_plan("nvidia_stack", [item("file", "/etc/key", secret), item("sysctl", "net.one", "1")])
    assert list(seen(plan)) == ["sysctl:net.one"]


@pytest.mark.parametrize("where", ["from_items", "settled"])
def test_what_cannot_be_read_costs_itself_alone(
    node: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Broken(system.Sysctl):
        first = False

        @classmethod
        def from_items(cls, items: Any, options: Any) -> Broken:
            if where == "from_items":
                raise OSError(5, "Input/output error", "/var/lib/dpkg/status")
            return cls("net.one", "1")

        def settled(self) -> bool:
            raise OSError(5, "Input/output error", "/var/lib/dpkg/status")

    monkeypatch.setattr(kinds, "folded_class", lambda _: Broken)
    plan = role_plan("nvidia_stack", [item("package", "driver", {}), item("sysctl", "net.one", "1")])
    found = observe.observe(plan)
    assert sorted(one["state"] for one in found) == ["not-checked", "pass"]
    assert any("/var/lib/dpkg/status" in one["reason"] for one in found)


def test_a_run_that_was_cut_off_and_what_it_left_are_found(node: Path) -> None:
    original = {"spec": {"path": "/x", "content": "", "directories": []}, "state": None}
    gone = {"spec": {"name": "net.gone", "value": "1"}, "state": "0"}
    kept = {"originals": {"file:/x": original, "sysctl:net.gone": gone}, "pending": ["file:/x"]}
    (node / "records" / "os_tuning.json").write_text(json.dumps(kept))
    found = seen(sysctl())
    assert {key: one["state"] for key, one in found.items()} == {
        "sysctl:net.one": "pass",
        "interrupted": "fail",
        "file:/x": "fail",
    }


def test_packages_that_a_role_has_no_use_for_are_left_behind_only_once_it_is_taken_back(node: Path) -> None:
    brought = {"package:set": {"spec": {}, "state": {"atop": None}}}
    text = json.dumps({"originals": brought, "pending": []})
    (node / "records/os_tuning.json").write_text(text)
    assert "package:set" not in seen(role_plan("os_tuning", []))
    assert state(role_plan("os_tuning", [], absent=True), "package:set") == "fail"


def test_damaged_record_is_not_checked_and_costs_no_setting(node: Path) -> None:
    (node / "records" / "os_tuning.json").write_text("{")
    found = seen(sysctl())
    assert {key: one["state"] for key, one in found.items()} == {
        "sysctl:net.one": "pass",
        "record": "not-checked",
    }


def test_a_kind_that_nobody_knows_is_not_checked(node: Path) -> None:
    assert state(role_plan("os_tuning", [item("nonsense", "x", {})]), "nonsense:x") == "not-checked"


@pytest.mark.component
def test_the_module_returns_every_role_and_the_nodes_own_conditions(
    node: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        node_conditions, "conditions", lambda names, *_: [node_conditions.condition("x", "pass", str(names))]
    )
    result = run_module(node_compliance.main, roles=json.dumps([sysctl()]), administrators=["ada"])
    assert result["changed"] is False
    assert [one["state"] for one in result["observations"]["os_tuning"]] == ["pass"]
    assert result["observations"]["node"][0]["reason"] == "['ada']"
