"""Settings of a node are made, proven and taken back: files, permissions, parameters, mounts, units, PAM."""

import contextlib
import json
import os
import platform
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process, units
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.engines import busy
from ansible.module_utils.temper.packaging.packages import PackageError
from ansible.module_utils.temper.settings import engine, files, in_place, pam_lines, record, system
from ansible.module_utils.temper.settings.base import SettingError

from tests.unit.settings.nodes import SYSTEMCTL, StandInNode
from tests.unit.settings.role_plans import carried_out, item, role_plan, with_packages

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")

# Puts a line into a stack for a profile that is enabled, as pam-auth-update does.
PAM_AUTH_UPDATE = """\
#!/bin/sh
stack="{stacks}/common-auth"
[ ! -e "{stacks}/by-hand" ] || exit 0
case $2 in
    --enable) echo "auth required pam_faillock.so preauth" >> "$stack" ;;
    --remove) sed -i /pam_faillock/d "$stack" ;;
esac
"""


class Node(StandInNode):
    """It has files of sysctl and PAM's stacks, too."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path, monkeypatch)
        self.sysctl_d = path / "sysctl.d"
        self.stacks = path / "pam.d"
        self.record = path / "records" / "os_hardening.json"
        self.sysctl_d.mkdir()
        self.file("pam.d/common-auth", "auth required pam_unix.so\n")
        self.program("pam-auth-update", PAM_AUTH_UPDATE.format(stacks=self.stacks))

    def file(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def snapshot(self) -> dict[str, tuple[str, int]]:
        files = [path for path in self.path.rglob("*") if path.is_file() and path.name != "log"]
        return {str(path): (path.read_text(), stat.S_IMODE(path.stat().st_mode)) for path in files}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path, monkeypatch)
    monkeypatch.setattr(record, "FORMER", {})
    monkeypatch.setattr(engine, "ssh_login", lambda: None)
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", (str(node.sysctl_d),))
    monkeypatch.setattr(pam_lines, "STACKS", node.stacks)
    monkeypatch.setattr(pam_lines, "VENDOR", node.stacks)
    return node


def as_item(kind: str, spec: dict[str, Any], control: str) -> dict[str, Any]:
    """A setting of a control, as the plan has it."""
    details = dict(spec)
    if kind == "keyword":
        return item(kind, f"{details['path']}:{details['keyword']}", details["value"], control)
    if kind == "sysctl":
        return item(kind, details["name"], details["value"], control)
    return item(kind, details.pop("path", details.pop("name", "")), details, control)


@pytest.fixture
def harden(run_module: Run) -> Run:
    def run(
        *settings: tuple[str, dict[str, Any]],
        check_mode: bool = False,
        packages: Iterable[Any] = (),
        on_change: Iterable[dict[str, Any]] = (),
        busy_ok: bool = False,
    ) -> dict[str, Any]:
        items = [as_item(kind, spec, f"c{n}") for n, (kind, spec) in enumerate(settings)]
        for choice in packages:
            names = [choice] if isinstance(choice, str) else choice
            items.append(item("package_choice", names[0], {"any": names}))
        plan = role_plan(
            "os_hardening",
            items,
            on_change,
            atomic=True,
            busy_ok=busy_ok,
            sysctl_file="90-temper-hardening.conf",
        )
        return carried_out(run_module, plan, check_mode=check_mode)

    return run


def everything(node: Node) -> list[tuple[str, dict[str, Any]]]:
    """One setting of each kind (but for mounts, which the lab tests), none of them made yet."""
    node.file("etc/login.defs", "# how\nUMASK\t\t022\nMAIL_DIR /var/mail\n")
    node.file("etc/crontab", "x\n", mode=0o664)
    node.parameter("kernel.sysrq", "438\n")
    node.parameter("net.ipv4.conf.all.send_redirects", "1\n")
    node.parameter("net.ipv4.conf.eth0.send_redirects", "1\n")
    node.unit("avahi.service", "enabled", "active")
    node.unit("chrony.service", "disabled", "inactive")
    return [
        ("file", {"path": f"{node.path}/etc/new", "content": "new\n", "mode": "0440"}),
        ("keyword", {"path": f"{node.path}/etc/login.defs", "keyword": "UMASK", "value": "027"}),
        (
            "keyword",
            {"path": f"{node.path}/etc/login.defs", "keyword": "ENCRYPT_METHOD", "value": "YESCRYPT"},
        ),
        ("access", {"path": f"{node.path}/etc/crontab", "mode": "0600"}),
        ("sysctl", {"name": "kernel.sysrq", "value": "176"}),
        ("sysctl", {"name": "net.ipv4.conf.*.send_redirects", "value": "0"}),
        ("pam", {"name": "temper-faillock", "stack": "common-auth", "words": ["pam_faillock.so", "preauth"]}),
        ("unit", {"name": "avahi.service", "on": False}),
        ("unit", {"name": "chrony.service", "on": True}),
    ]


# ---------------------------------------------------------------- made, and taken back


@pytest.mark.component
def test_all_kinds_are_made(harden: Run, node: Node) -> None:
    result = harden(*everything(node))
    assert result["changed"]
    assert (node.path / "etc/new").read_text() == "new\n"
    login_defs = (node.path / "etc/login.defs").read_text()
    assert login_defs == "# how\nUMASK 027\nMAIL_DIR /var/mail\nENCRYPT_METHOD YESCRYPT\n"
    assert stat.S_IMODE((node.path / "etc/crontab").stat().st_mode) == 0o600
    assert (node.sysctl / "kernel/sysrq").read_text() == "176"
    assert (node.sysctl / "net/ipv4/conf/eth0/send_redirects").read_text() == "0"
    assert "pam_faillock.so preauth" in (node.stacks / "common-auth").read_text()
    assert (node.units / "avahi.service").read_text() == "disabled inactive yes\n"
    assert (node.units / "chrony.service").read_text() == "enabled active yes\n"


@pytest.mark.component
def test_the_second_run_changes_nothing(harden: Run, node: Node) -> None:
    settings = everything(node)
    harden(*settings)
    before = node.snapshot()
    calls = node.systemctl_calls
    result = harden(*settings)
    assert (result["changed"], result["actions"], result["diff"]) == (False, [], [])
    assert (node.snapshot(), node.systemctl_calls) == (before, calls)


@pytest.mark.component
def test_what_is_in_place_is_noted_and_in_check_mode_nothing_is(
    carry_out: Callable[..., Any], tmp_path: Path
) -> None:
    items = [item("file", str(tmp_path / "new"), {"content": "new\n"})]
    carry_out("os_hardening", items, check_mode=True)
    assert in_place.noted() == {}
    carry_out("os_hardening", items)
    assert in_place.noted() == {"os_hardening": in_place.digest(role_plan("os_hardening", items))}
    in_place.PATH.write_text("{")
    assert in_place.noted() == {}
    carry_out("os_hardening", items)
    assert in_place.noted().keys() == {"os_hardening"}
    carry_out("os_hardening", [], absent=True)
    assert in_place.noted() == {}


@pytest.mark.component
def test_systemd_is_asked_once_where_all_is_settled(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = everything(node)
    harden(*settings)
    asked: list[Any] = []

    def ask(command: list[str]) -> str:
        asked.append(command)
        return process.run(command)

    monkeypatch.setattr(units, "run", ask)
    assert not harden(*settings)["changed"]
    assert len(asked) == 1


@pytest.mark.component
def test_an_empty_list_restores_the_node_byte_for_byte(harden: Run, node: Node) -> None:
    settings = everything(node)
    before = node.snapshot()
    harden(*settings)
    assert harden()["changed"]
    after = node.snapshot()
    live = str(node.sysctl)  # a real parameter ends with a line feed whatever was written
    assert {k: v for k, v in after.items() if live not in k} == {
        k: v for k, v in before.items() if live not in k
    }
    assert {k: v[0].strip() for k, v in after.items()} == {k: v[0].strip() for k, v in before.items()}
    assert not node.record.exists()
    assert not harden()["changed"]


@pytest.mark.component
def test_what_an_upgrade_of_a_package_has_brought_since_stays(harden: Run, node: Node) -> None:
    """Each file as the newer package has it, which has other values and modes, or the same as before."""
    replaced = "# newer\nUMASK\t\t077\nPASS_MIN_LEN\t8\n"
    merged = ("# newer\nUMASK 027\nMAIL_DIR /\n", "# newer\nUMASK\t\t022\nMAIL_DIR /\n")
    newer = {
        "replaced": (replaced, replaced, "found 077"),
        "without the keyword": ("# newer\n", "# newer\n", "found none"),
        "another beside ours": ("UMASK 027\nUMASK 002\n", "UMASK 027\nUMASK 002\n", "found 027, 002"),
        "as it was": ("# how\nUMASK\t\t022\n", "# how\nUMASK\t\t022\n", ""),
        "merged around ours": (*merged, ""),
        "gone": (None, None, "no longer there"),
    }
    wanted = (
        ("keyword", {"path": f"{node.path}/etc/login.defs", "keyword": "UMASK", "value": "027"}),
        ("access", {"path": f"{node.path}/etc/login.defs", "mode": "0600"}),
    )
    for name, (brought, expected, found) in newer.items():
        path = node.file("etc/login.defs", "# how\nUMASK\t\t022\n", mode=0o644)
        harden(*wanted)
        path.unlink()
        if brought:
            node.file("etc/login.defs", brought, mode=0o644)
        foretold, done = harden(check_mode=True), harden()
        assert (path.read_text() if brought else None) == expected, name
        assert not brought or stat.S_IMODE(path.stat().st_mode) == 0o644, name
        for result in (foretold, done):
            assert ("left alone" in str(result["warnings"])) == bool(found), name
            assert not found or f"{path}:UMASK" in str(result["warnings"]), name
            assert found in str(result["warnings"]), name
        assert ("access" in str(done["warnings"])) == (brought is None), name
        restored = [f"keyword:{path}:UMASK: restored"] if name.startswith("merged") else []
        assert foretold["actions"] == done["actions"] == restored, name
        assert not harden()["changed"], name


@pytest.mark.skipif(os.geteuid() != 0, reason="the file gets another owner")
def test_what_the_site_has_set_since_is_left_alone_with_what_was_expected(harden: Run, node: Node) -> None:
    """Stricter, weaker, and the last choice of several; what a run before this one has made goes back."""
    table: tuple[tuple[str, str | None, str], ...] = (
        ("sysctl", None, ""),
        ("sysctl", "2", "expected 176, found 2"),
        ("sysctl", "511", "expected 176, found 511"),
        ("access", None, ""),
        ("access", "0600 0 0", "expected 0640 root:root, found 0600 root:root"),
        ("access", "0666 0 0", "expected 0640 root:root, found 0666 root:root"),
        ("access", "0640 0 12345", "expected 0640 root:root, found 0640 root:12345"),
        ("access", "0640 12345 0", "expected 0640 root:root, found 0640 12345:root"),
    )

    def access(path: Path) -> str:
        status = path.stat()
        return f"{stat.S_IMODE(status.st_mode):04o} {status.st_uid} {status.st_gid}"

    def put(path: Path, kind: str, value: str) -> None:
        if kind == "sysctl":
            path.write_text(value)
            return
        mode, uid, gid = value.split()
        os.chown(path, int(uid), int(gid))
        path.chmod(int(mode, 8))

    for kind, since, said in table:
        for again in (False, True):
            if kind == "sysctl":
                path, before = node.parameter("kernel.sysrq", "438"), "438"
                spec = {"name": "kernel.sysrq", "value": "176"}
            else:
                path, before = node.file("etc/crontab", "x\n", mode=0o664), "0664 0 0"
                os.chown(path, 0, 0)
                spec = {"path": str(path), "mode": "0640"}
            harden((kind, spec))
            if since:
                put(path, kind, since)
            if again:  # what is weaker becomes ours once more, and returns
                harden((kind, spec))
            foretold, done = harden(check_mode=True), harden()
            found = path.read_text() if kind == "sysctl" else access(path)
            name = (kind, since, again)
            assert found == (since or before), name
            assert foretold["actions"] == done["actions"], name
            left = bool(said) and (not again or (kind, since) == ("access", "0600 0 0"))
            assert ("left alone" in str(done["warnings"])) == left, name
            assert not left or said in str(done["warnings"]), name
            assert not harden()["changed"], name


def test_a_record_of_permissions_without_a_group_is_taken_back(harden: Run, node: Node) -> None:
    """As earlier versions have written it: any permissions count as ours."""
    path = node.file("etc/crontab", "x\n", mode=0o664)
    harden(("access", {"path": str(path), "mode": "0640"}))
    data = json.loads(node.record.read_text())
    del data["originals"][f"access:{path}"]["spec"]["groups"]
    node.record.write_text(json.dumps(data))
    path.chmod(0o600)
    assert harden()["actions"] == [f"access:{path}: restored"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_damaged_state_is_refused_by_its_name_before_anything_changes(harden: Run, node: Node) -> None:
    path = node.file("etc/crontab", "x\n", mode=0o664)
    spec = {"path": str(path), "mode": "0640"}
    harden(("access", dict(spec)))
    data = json.loads(node.record.read_text())
    data["originals"][f"access:{path}"]["state"]["gid"] = 2**40
    node.record.write_text(json.dumps(data))
    path.chmod(0o666)
    said = harden(("access", dict(spec)))
    assert f"the state of access:{path}" in str(said)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_what_the_kernel_makes_of_a_value_is_not_the_sites(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins 1,2,3 to 1-3, and may have fewer huge pages than are asked for: both go back."""
    kernel = {"1,2,3": "1-3", "1024": "700"}
    write = system.Sysctl._write

    def take(setting: system.Sysctl, value: str) -> None:
        write(setting, kernel.get(value, value))

    monkeypatch.setattr(system.Sysctl, "_write", take)
    for name, value in (("net.ipv4.ip_local_reserved_ports", "1,2,3"), ("vm.nr_hugepages", "1024")):
        for runs in (1, 2, 3):
            parameter = node.parameter(name, "9")
            for _ in range(runs):
                harden(("sysctl", {"name": name, "value": value}))
            assert parameter.read_text() == kernel[value]
            assert harden()["actions"] == [f"sysctl:{name}: restored"], (name, runs)
            assert parameter.read_text() == "9", (name, runs)
            assert not harden()["changed"]


class Killed(BaseException):
    """The run ends there and then."""


@pytest.mark.parametrize("found", ["700", "53211"], ids=["all that it takes", "part of it"])
def test_a_value_returns_after_a_run_that_was_killed_while_the_kernel_was_given_another(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """It may need seconds to find huge pages, and stops at what it has: on the way there, and back."""
    name, write = "vm.nr_hugepages", system.Sysctl._write

    def killed(setting: system.Sysctl, _: str) -> None:
        write(setting, found)
        raise Killed

    def takes(setting: system.Sysctl, value: str) -> None:
        write(setting, "700" if value == "1024" else value)

    def run(*settings: tuple[str, dict[str, Any]], kill: bool = False) -> None:
        with monkeypatch.context() as patch, pytest.raises(Killed) if kill else contextlib.nullcontext():
            patch.setattr(system.Sysctl, "_write", killed if kill else takes)
            harden(*settings)

    wanted = ("sysctl", {"name": name, "value": "1024"})
    for runs in (0, 1, 2):
        parameter = node.parameter(name, "9")
        run(wanted, kill=True)
        for _ in range(runs):
            run(wanted)
        run()
        assert parameter.read_text() == "9", runs
        run(wanted)
        run(kill=True)
        run()
        assert parameter.read_text() == "9"
        assert not node.record.exists()


def test_what_a_site_sets_after_a_run_that_was_killed_elsewhere_is_what_returns(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter = node.parameter("vm.nr_hugepages", "9")

    def killed(_: object) -> None:
        raise Killed

    wanted = ("sysctl", {"name": "vm.nr_hugepages", "value": "1024"})
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files.WholeFile, "apply", killed)
        harden(wanted, ("file", {"path": f"{node.path}/etc/new", "content": "x\n"}))
    parameter.write_text("50")
    harden(wanted)
    assert parameter.read_text() == "1024"
    harden()
    assert parameter.read_text() == "50"


def test_a_setting_that_cannot_be_read_after_a_failure_does_not_take_the_place_of_its_error(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameter = node.parameter("kernel.kptr_restrict", "0")

    def fail(_: object) -> None:
        parameter.unlink()
        parameter.mkdir()
        raise SettingError("It does not fit.")

    monkeypatch.setattr(files.WholeFile, "apply", fail)
    new = ("file", {"path": f"{node.path}/etc/new", "content": "x\n"})
    message = harden(("sysctl", {"name": "kernel.kptr_restrict", "value": "2"}), new)["msg"]
    assert message.startswith("c1: It does not fit.")


def test_a_value_that_was_empty_returns(harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the kernel, a file that is opened and closed is no new value."""
    name = "net.ipv4.ip_local_reserved_ports"
    parameter, write = node.parameter(name, "\n"), Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda to, text, **how: text and write(to, text, **how))
    harden(("sysctl", {"name": name, "value": "2"}))
    assert parameter.read_text() == "2"
    harden()
    assert parameter.read_text() == "\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="the file gets another owner")
def test_permissions_return_after_a_run_that_was_cut_off_between_owner_and_mode(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, and with another run in between."""
    path = node.file("etc/crontab", "x\n", mode=0o664)

    def access() -> tuple[str, int, int]:
        status = path.stat()
        return f"{stat.S_IMODE(status.st_mode):04o}", status.st_uid, status.st_gid

    def cut_off(*settings: tuple[str, dict[str, Any]]) -> None:
        chown = os.chown

        def and_no_further(place: Path, *words: Any, **more: Any) -> None:
            chown(place, *words, **more)
            if place == path:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, "chown", and_no_further)
            harden(*settings)

    for again in (False, True):
        os.chown(path, 1234, 1234)
        before = access()
        cut_off(("access", {"path": str(path), "mode": "0640"}))
        assert access() == ("0664", 0, 0)
        if again:
            harden(("access", {"path": str(path), "mode": "0640"}))
            assert access() == ("0640", 0, 0)
            cut_off()
            assert access() == ("0640", 1234, 1234)
        assert harden()["actions"] == [f"access:{path}: restored"], again
        assert access() == before, again
        assert not harden()["changed"], again


def test_a_file_that_the_same_run_takes_away_needs_nothing_else(harden: Run, node: Node) -> None:
    path = node.path / "etc/rules.d/a.rules"
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("access", {"path": f"{path.parent}/*.rules", "mode": "0600"}),
        ("keyword", {"path": str(path), "keyword": "x", "value": "1"}),
    ]
    for setting in wanted:
        harden(("file", {"path": str(path), "content": "y\n"}))
        assert "msg" not in harden(setting)
        assert not path.exists()
        assert harden(setting)["actions"] == []


@pytest.mark.parametrize("end", ["undone", "not begun", "cut off"])
def test_permissions_that_a_site_makes_stricter_after_a_run_that_did_not_end_stay(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    path, other = (node.file(f"etc/{name}", "x\n", mode=0o664) for name in ("crontab", "other"))
    earlier = ("access", {"path": str(path), "mode": "0640"})
    settings = [("access", {"path": str(one), "mode": "0600"}) for one in (path, other)]
    apply = files.Access.apply

    def ends(setting: files.Access) -> None:
        if end == "cut off":
            raise KeyboardInterrupt
        if setting.path == other:
            raise OSError(30, "Read-only file system")
        apply(setting)

    harden(earlier)
    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(files.Access, "apply", ends)
        assert "undone" in harden(*(reversed(settings) if end == "not begun" else settings))["msg"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    site = 0o400 if end == "cut off" else 0o600
    path.chmod(site)
    harden(earlier)
    assert "left alone" in str(harden()["warnings"])
    assert stat.S_IMODE(path.stat().st_mode) == site


def test_permissions_that_a_site_sets_after_a_run_that_could_take_nothing_back_stay(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are just those that the run was to make."""
    path, other = (node.file(f"etc/{name}", "x\n", mode=0o664) for name in ("crontab", "other"))

    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    harden(("access", {"path": str(other), "mode": "0600"}))
    with monkeypatch.context() as patched:
        patched.setattr(files.Access, "restore", fails)
        assert "Read-only" in harden(("access", {"path": str(path), "mode": "0600"}))["msg"]
    path.chmod(0o600)
    harden()
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, other)] == [0o600, 0o664]


@pytest.mark.parametrize("again", [False, True])
def test_permissions_that_a_site_sets_after_a_run_was_cut_off_are_given_back(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """At once, and after another run."""
    path = node.file("etc/crontab", "x\n", mode=0o664)
    settings = [("access", {"path": str(path), "mode": mode}) for mode in ("0640", "0400")]

    def ends(*_: object, **_more: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "chown", ends)
        harden(settings[0])
    path.chmod(0o600)
    if again:
        harden(settings[1])
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
    harden()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_value_that_the_kernel_keeps_is_not_said_to_be_restored(harden: Run, node: Node) -> None:
    parameter = node.parameter("kernel.yama.ptrace_scope", "1")
    harden(("sysctl", {"name": "kernel.yama.ptrace_scope", "value": "3"}))
    result = harden()
    assert parameter.read_text() == "3"
    assert result["actions"] == []
    assert "ptrace_scope (the kernel keeps 3 until the next boot)" in str(result["warnings"])


@pytest.mark.parametrize("cut_off", [False, True])
def test_directories_that_a_file_brought_go_with_it_whichever_run_made_them(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    """Also where the first run made only them, and where somebody has removed one in between."""

    def killed(setting: files.WholeFile) -> None:
        setting.path.parent.mkdir(parents=True)
        raise KeyboardInterrupt

    path = node.path / "new" / "deep" / "a.conf"
    with monkeypatch.context() as patch:
        if cut_off:
            patch.setattr(files.WholeFile, "apply", killed)
        with pytest.raises(KeyboardInterrupt) if cut_off else contextlib.nullcontext():
            harden(("file", {"path": str(path), "content": "1\n"}))
    harden(("file", {"path": str(path), "content": "2\n"}))
    shutil.rmtree(path.parent)
    harden(("file", {"path": str(path), "content": "3\n"}))
    assert path.read_text() == "3\n"
    harden()
    assert not (node.path / "new").exists()
    assert not harden()["changed"]


@pytest.mark.component
def test_a_directory_that_several_files_share_goes_with_the_last_of_them(harden: Run, node: Node) -> None:
    first, second = (
        ("file", {"path": f"{node.path}/new/{name}", "content": "1\n"}) for name in ("deep/a.conf", "b.conf")
    )
    for runs in ([[first], [second]], [[first], [first, second], [second]]):
        for settings in runs:
            harden(*settings)
        assert not (node.path / "new/deep").exists()
        harden()
        assert not (node.path / "new").exists(), runs


@pytest.mark.component
def test_a_setting_that_nobody_wants_any_more_returns_to_what_it_was(harden: Run, node: Node) -> None:
    first, *others = everything(node)
    harden(first, *others)
    result = harden(*others)
    assert result["actions"] == [f"{node.path}/etc/new: restored"]
    assert not (node.path / "etc/new").exists()
    assert (node.sysctl / "kernel/sysrq").read_text() == "176"


@pytest.mark.component
def test_what_is_as_it_was_already_is_not_said_to_be_restored(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that was never there, and a file that a run brought back which failed after that."""
    with_packages(monkeypatch)
    unit = ("unit", {"name": "cups.service", "on": False})
    banner = ("file", {"path": f"{node.path}/etc/banner", "content": "mine\n"})
    harden(unit, banner, packages=["auditd"])
    assert "unit:cups.service" in json.loads(node.record.read_text())["originals"]
    node.program("check", "#!/bin/sh\nexit 1\n")
    bad = ("file", {"path": f"{node.path}/etc/bad", "content": "x\n", "validate": ["check", "%s"]})
    assert "was undone" in harden(bad)["msg"]
    assert not (node.path / "etc/banner").exists()
    result = harden()
    assert not any("restored" in action for action in result["actions"])
    assert not harden()["changed"]


def test_the_first_state_is_the_one_to_return_to(harden: Run, node: Node) -> None:
    parameter = node.parameter("kernel.sysrq", "438\n")
    harden(("sysctl", {"name": "kernel.sysrq", "value": "176"}))
    harden(("sysctl", {"name": "kernel.sysrq", "value": "0"}))
    harden()
    assert parameter.read_text() == "438"


@pytest.mark.component
def test_check_mode_names_everything_and_changes_nothing(harden: Run, node: Node) -> None:
    settings = everything(node)
    before = node.snapshot()
    result = harden(*settings, check_mode=True)
    assert result["changed"]
    assert f"keyword:{node.path}/etc/login.defs:UMASK: UMASK\t\t022 -> UMASK 027" in result["actions"]
    assert "unit:avahi.service: enabled, running -> disabled, not running" in result["actions"]
    shown = [(change["before"], change["after"]) for change in result["diff"]]
    assert ("438\n", "176\n") in shown
    assert (node.snapshot(), node.systemctl_calls) == (before, [])


# ---------------------------------------------------------------- runs that fail or are cut off


@pytest.mark.component
def test_a_program_that_refuses_a_file_keeps_it_out_and_all_else_as_it_was(harden: Run, node: Node) -> None:
    node.program("check", '#!/bin/sh\ngrep -q good "$1" || { echo "line 1: what?" >&2; exit 1; }\n')
    crontab = node.file("etc/crontab", "x\n", mode=0o664)
    result = harden(
        ("file", {"path": f"{node.path}/etc/first", "content": "first\n"}),
        ("file", {"path": f"{node.path}/etc/sudoers.d/x", "content": "bad\n", "validate": ["check", "%s"]}),
        ("access", {"path": str(crontab), "mode": "0600"}),
    )
    assert "failed with status 1: line 1: what?" in result["msg"]
    assert not (node.path / "etc/sudoers.d/x").exists()
    assert not (node.path / "etc/first").exists()
    assert stat.S_IMODE(crontab.stat().st_mode) == 0o664


def long_name(node: Node) -> str:
    """A name that is possible, while that of the temporary file, which is longer, is not."""
    return f"{node.path}/etc/{'x' * 250}"


@pytest.mark.parametrize("existing", [True, False])
def test_a_file_that_the_system_does_not_let_us_write_is_a_sentence_and_all_else_as_it_was(
    harden: Run, node: Node, existing: bool
) -> None:
    name = long_name(node)
    crontab = node.file("etc/crontab", "x\n", mode=0o664)
    first = ("file", {"path": f"{node.path}/etc/first", "content": "first\n"})
    # Settings of a kind are made in their order, and those of another kind after them.
    bad = ("file", {"path": name, "content": "bad\n"})
    if existing:
        node.file(f"etc/{'x' * 250}", "KEY 1\n")
        bad = ("keyword", {"path": name, "keyword": "KEY", "value": "2"})
    message = harden(first, bad, ("access", {"path": str(crontab), "mode": "0600"}))["msg"]
    assert message.startswith(f"c1: {bad[0]}:{name}")
    assert "File name too long" in message
    assert "was undone: mend it, or waive the control." in message
    assert "could not be undone" not in message
    assert not (node.path / "etc/first").exists()
    assert stat.S_IMODE(crontab.stat().st_mode) == 0o664


@pytest.mark.component
def test_a_file_that_the_system_does_not_let_us_restore_keeps_nothing_else_from_it(
    harden: Run, node: Node
) -> None:
    """The second one's check puts a file in the place of the first one's directory."""
    node.program("check", f"#!/bin/sh\nrm -r {node.path}/etc/a; touch {node.path}/etc/a; exit 1\n")
    node.file("etc/a/second", "mine\n")
    message = harden(
        ("file", {"path": f"{node.path}/etc/first", "content": "first\n"}),
        ("file", {"path": f"{node.path}/etc/a/second", "content": "second\n"}),
        ("file", {"path": f"{node.path}/etc/third", "content": "third\n", "validate": ["check", "%s"]}),
    )["msg"]
    assert message.startswith("c2: `check ")
    assert f"file:{node.path}/etc/a/second could not be undone: " in message
    assert not (node.path / "etc/first").exists()


def test_a_file_that_the_system_does_not_let_us_read_is_a_sentence(harden: Run, node: Node) -> None:
    node.file("etc/a", "")
    message = harden(("file", {"path": f"{node.path}/etc/a/b", "content": "x\n"}))["msg"]
    assert message.startswith("A file of this node could not be read or written; mend that and run again: ")
    assert "etc/a/b" in message


@pytest.fixture
def through_ops(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that the run has come to through the account ops."""
    monkeypatch.setattr(engine, "ssh_login", lambda: Login("ops", "10.0.0.1", 50000, "10.0.0.2", 22))
    return node


@pytest.mark.component
def test_what_takes_sudo_from_our_account_is_undone(harden: Run, through_ops: Node) -> None:
    """The first setting is one that makes sudo fail."""
    node = through_ops
    node.program("runuser", f"#!/bin/sh\n[ ! -e {node.path}/etc/new ]\n")
    settings = everything(node)
    before = node.snapshot()
    result = harden(*settings)
    assert result["msg"].startswith(
        "After these changes ops could no longer become root, so they were undone."
    )
    after = {path: text[0].strip() for path, text in node.snapshot().items() if path != str(node.record)}
    assert after == {path: text[0].strip() for path, text in before.items()}


@pytest.mark.component
def test_an_account_that_needs_a_password_for_sudo_proves_nothing(harden: Run, through_ops: Node) -> None:
    through_ops.program("runuser", "#!/bin/sh\nexit 1\n")
    assert "msg" not in harden(*everything(through_ops))


@pytest.mark.component
def test_what_a_cut_off_run_left_undone_is_done_by_the_next(harden: Run, node: Node) -> None:
    node.unit("systemd-journald.service", "static", "active")
    node.program("restart-it", f"#!/bin/sh\n[ -e {node.path}/works ] || exit 1\ntouch {node.path}/done\n")
    setting = ("file", {"path": f"{node.path}/etc/journald", "content": "x\n"})
    rule = {
        "paths": [f"{node.path}/etc/journald"],
        "unit": "systemd-journald.service",
        "command": ["restart-it"],
    }
    assert "failed with status 1" in harden(setting, on_change=[rule])["msg"]
    (node.path / "works").touch()
    assert harden(setting, on_change=[rule])["actions"] == ["restart-it"]
    assert (node.path / "done").exists()
    assert not harden(setting, on_change=[rule])["changed"]


def test_a_service_that_does_not_run_is_not_told(harden: Run, node: Node) -> None:
    node.unit("auditd.service", "enabled", "inactive")
    rule = {"paths": [f"{node.path}/etc/"], "unit": "auditd.service", "command": ["not-installed"]}
    assert "msg" not in harden(("file", {"path": f"{node.path}/etc/x", "content": "x\n"}), on_change=[rule])


@pytest.mark.component
def test_a_condition_of_the_site_in_the_place_of_ours_returns(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch)
    drop_in = node.file("etc/systemd/auditd.service.d/a.conf", "# of the site\n")
    harden(("file", {"path": str(drop_in), "content": "[Unit]\n"}), packages=["auditd"])
    assert drop_in.read_text() == "[Unit]\n"
    harden()
    assert drop_in.read_text() == "# of the site\n"


def test_a_kind_that_does_not_exist_is_a_sentence(harden: Run, node: Node) -> None:
    assert "found 'fiel'" in harden(("fiel", {}))["msg"]


@pytest.mark.component
def test_what_cannot_be_undone_keeps_nothing_else_from_it_and_is_named(harden: Run, node: Node) -> None:
    node.program(
        "pam-auth-update",
        PAM_AUTH_UPDATE.format(stacks=node.stacks).replace("--remove)", "--remove) exit 7;"),
    )
    settings = everything(node)
    node.unit("broken.service", "disabled", "inactive")
    node.program(
        "systemctl",
        SYSTEMCTL.format(state=node.units).replace(
            "start)", 'start) [ "$last" != broken.service ] || exit 1;'
        ),
    )
    message = harden(*settings, ("unit", {"name": "broken.service", "on": True}))["msg"]
    assert message.startswith("c9: `systemctl start broken.service` failed with status 1")
    assert "waive the control" in message
    assert "pam:temper-faillock could not be undone: `pam-auth-update" in message
    assert not (node.path / "etc/new").exists()


@pytest.mark.component
def test_systemd_forgets_the_unit_files_of_a_run_that_was_undone(harden: Run, node: Node) -> None:
    node.unit("x.service", "disabled", "inactive")
    node.program("systemctl", SYSTEMCTL.format(state=node.units).replace("start)", "start) exit 1;"))
    file = ("file", {"path": f"{node.path}/etc/systemd/x.service", "content": "x\n"})
    assert "failed" in harden(file, ("unit", {"name": "x.service", "on": True}))["msg"]
    assert node.systemctl_calls[-1] == "daemon-reload"


@pytest.mark.component
def test_a_unit_that_the_site_masked_since_stays_so(harden: Run, node: Node) -> None:
    """A systemctl refuses to enable it, at each run."""
    unit = node.unit("cups.service", "enabled", "active")
    harden(("unit", {"name": "cups.service", "on": False}))
    unit.write_text("masked inactive yes\n")
    assert "unit:cups.service (it was masked since)" in str(harden()["warnings"])
    assert unit.read_text() == "masked inactive yes\n"
    assert not harden()["changed"]


@pytest.mark.component
@pytest.mark.parametrize("check_mode", [True, False])
def test_a_masked_unit_is_refused_before_anything_changes(harden: Run, node: Node, check_mode: bool) -> None:
    settings = everything(node)
    node.unit("apt-daily.timer", "masked", "inactive")
    before = node.snapshot()
    result = harden(*settings, ("unit", {"name": "apt-daily.timer", "on": True}), check_mode=check_mode)
    assert result["msg"] == (
        "Nothing was changed: apt-daily.timer is masked: `systemctl unmask apt-daily.timer`, or waive the "
        "control c9 (os_hardening_waivers)."
    )
    assert result["refused"]
    assert node.snapshot() == before


@pytest.mark.component
def test_systemd_is_not_reloaded_under_a_container_with_a_gpu(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "gpu_processes", lambda: [busy.GpuProcess(10, "python3")])
    settings = everything(node)
    before = node.snapshot()
    message = harden(*settings)["msg"]
    assert message.startswith("Containers with a GPU are running (python3 (process 10)), and systemd has to")
    assert message.endswith("Nothing was changed. Drain the node, or set os_hardening_busy_ok: true.")
    assert node.snapshot() == before
    warnings = str(harden(*settings, check_mode=True)["warnings"])
    assert "A run would be refused: containers with a GPU are running" in warnings
    assert harden(*settings, busy_ok=True)["changed"]
    # What needs no reload asks nobody.
    assert not harden(*settings)["changed"]


def test_a_change_without_units_is_made_under_a_container_with_a_gpu(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "gpu_processes", lambda: [busy.GpuProcess(10, "python3")])
    assert harden(("file", {"path": f"{node.path}/etc/new", "content": "new\n"}))["changed"]


# ---------------------------------------------------------------- packages


@pytest.mark.component
def test_missing_packages_are_installed_before_anything_else_is_made(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch, "apparmor")
    settings = everything(node)
    manager.brings = lambda: seen.append((node.path / "etc/new").exists())
    seen: list[bool] = []
    wanted = ["apparmor", "auditd", ["chrony", "systemd-timesyncd"]]
    result = harden(*settings, packages=wanted)
    assert (manager.calls, seen) == ([{"auditd": "", "chrony": ""}], [False])
    assert set(result["installed"]) == {"auditd", "chrony"}
    assert (node.path / "etc/new").exists()
    assert not harden(*settings, packages=wanted)["changed"]


@pytest.mark.component
def test_check_mode_names_missing_packages_and_installs_none(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch, "apparmor")
    settings = everything(node)
    before = node.snapshot()
    result = harden(*settings, packages=["apparmor", "auditd"], check_mode=True)
    assert result["changed"]
    assert "packages: auditd" in result["actions"]
    assert (node.snapshot(), manager.calls) == (before, [])


def test_one_of_several_packages_is_enough(harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = with_packages(monkeypatch, "systemd-timesyncd")
    assert not harden(packages=[["chrony", "systemd-timesyncd"]])["changed"]
    assert manager.queries == 1


@pytest.mark.component
def test_what_a_package_brings_is_off_when_the_hardening_goes(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch)
    manager.brings = lambda: node.unit("auditd.service", "enabled", "active")
    setting = ("unit", {"name": "auditd.service", "on": True})
    harden(setting, packages=["auditd"])
    assert not harden(setting, packages=["auditd"])["changed"]
    harden()
    assert (node.units / "auditd.service").read_text() == "disabled inactive yes\n"


@pytest.mark.component
def test_what_a_package_brings_is_brought_to_the_wanted_state(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch)
    manager.brings = lambda: node.unit("auditd.service", "disabled", "inactive")
    result = harden(("unit", {"name": "auditd.service", "on": True}), packages=["auditd"])
    assert "unit:auditd.service: disabled, not running -> enabled, running" in result["actions"]
    assert (node.units / "auditd.service").read_text() == "enabled active yes\n"


@pytest.mark.component
def test_conditions_of_units_are_there_before_their_package(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop_in = node.path / "etc/systemd/auditd.service.d/90.conf"
    seen: list[bool] = []
    with_packages(monkeypatch).brings = lambda: seen.append(drop_in.exists())
    harden(("file", {"path": str(drop_in), "content": "[Unit]\n"}), packages=["auditd"])
    assert seen == [True]
    assert not harden(("file", {"path": str(drop_in), "content": "[Unit]\n"}), packages=["auditd"])["changed"]


@pytest.mark.component
def test_a_package_that_cannot_be_installed_keeps_the_settings_from_being_made(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch)

    def refuse(_: dict[str, str]) -> None:
        raise PackageError("no such package")

    monkeypatch.setattr(manager, "install", refuse)
    settings = everything(node)
    before = node.snapshot()
    assert harden(*settings, packages=["auditd"])["msg"] == "no such package"
    assert {**node.snapshot(), str(node.record): None} == {**before, str(node.record): None}


# ---------------------------------------------------------------- kernel parameters


def test_a_file_that_sorts_later_wins(harden: Run, node: Node) -> None:
    parameter = node.parameter("kernel.perf_event_paranoid", "3\n")
    tuning = node.file("sysctl.d/95-temper-tuning.conf", "# x\nkernel.perf_event_paranoid = -1\n")
    result = harden(("sysctl", {"name": "kernel.perf_event_paranoid", "value": "2"}))
    assert (result["changed"], result["overruled"]) == (False, {"kernel.perf_event_paranoid": str(tuning)})
    assert parameter.read_text() == "3\n"


def test_a_file_of_the_roles_own_takes_the_place_of_the_distributions(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor = node.file("vendor/99-links.conf", "fs.protected_fifos = 1\n")
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", (str(node.sysctl_d), str(vendor.parent)))
    parameter = node.parameter("fs.protected_fifos", "1\n")
    own = node.sysctl_d / "99-links.conf"
    links = {"path": str(own), "content": "# Managed by Temper.\nfs.protected_fifos = 2\n"}
    settings = (("sysctl", {"name": "fs.protected_fifos", "value": "2"}), ("file", links))
    result = harden(*settings)
    assert (parameter.read_text(), result["overruled"]) == ("2", {})
    assert not harden(*settings)["changed"]
    harden()
    assert parameter.read_text().strip() == "1"
    assert not own.exists()
    assert vendor.read_text() == "fs.protected_fifos = 1\n"


def test_a_file_that_comes_to_win_keeps_its_value_when_the_hardening_goes(harden: Run, node: Node) -> None:
    parameter = node.parameter("kernel.perf_event_paranoid", "3\n")
    setting = ("sysctl", {"name": "kernel.perf_event_paranoid", "value": "2"})
    harden(setting)
    node.file("sysctl.d/95-temper-tuning.conf", "kernel.perf_event_paranoid = -1\n")
    parameter.write_text("-1\n")
    assert not harden(setting)["changed"]
    harden()
    assert parameter.read_text() == "-1\n"


def test_an_interface_that_is_gone_needs_no_way_back(harden: Run, node: Node) -> None:
    gone = node.parameter("net.ipv4.conf.veth0.send_redirects", "1\n")
    setting = ("sysctl", {"name": "net.ipv4.conf.*.send_redirects", "value": "0"})
    harden(setting)
    gone.unlink()
    assert not harden(setting)["changed"]
    assert not harden()["changed"]


@pytest.mark.parametrize("line", ["net.ipv4.conf.*.rp_filter=0", "-net/ipv4/conf/all/rp_filter = 0"])
def test_patterns_and_slashes_of_other_files_are_understood(harden: Run, node: Node, line: str) -> None:
    node.parameter("net.ipv4.conf.all.rp_filter", "0\n")
    node.file("sysctl.d/99-site.conf", f"{line}\n")
    assert harden(("sysctl", {"name": "net.ipv4.conf.all.rp_filter", "value": "2"}))["overruled"]


def test_a_name_that_no_parameter_can_have_is_compared_with_none(harden: Run, node: Node) -> None:
    parameter = node.parameter("kernel.sysrq", "438\n")
    node.file("sysctl.d/99-site.conf", f"kernel.{'[' * 300}* = 438\n")
    assert system.AtBoot().lines == []
    assert harden(("sysctl", {"name": "kernel.sysrq", "value": "176"}))["changed"]
    assert parameter.read_text() == "176"


def test_a_file_that_sorts_earlier_loses(harden: Run, node: Node) -> None:
    node.parameter("kernel.sysrq", "438\n")
    node.file("sysctl.d/50-default.conf", "kernel.sysrq = 438\n")
    assert harden(("sysctl", {"name": "kernel.sysrq", "value": "176"}))["changed"]


def test_a_parameter_that_this_kernel_lacks_is_reported(harden: Run, node: Node) -> None:
    result = harden(("sysctl", {"name": "kernel.apparmor_x", "value": "1"}))
    assert (result["changed"], result["unavailable"]) == (False, ["kernel.apparmor_x"])


def test_an_interface_that_goes_away_in_between_undoes_nothing(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's, which its user ends."""
    stays = node.parameter("net.ipv4.conf.eth0.accept_redirects", "1\n")
    goes = node.parameter("net.ipv4.conf.veth1.accept_redirects", "1\n")
    make = engine.Role.make

    def and_before(self: engine.Role, *arguments: Any) -> Any:
        shutil.rmtree(goes.parent)
        return make(self, *arguments)

    monkeypatch.setattr(engine.Role, "make", and_before)
    result = harden(("sysctl", {"name": "net.ipv4.conf.*.accept_redirects", "value": "0"}))
    assert "msg" not in result
    assert stays.read_text() == "0"


@pytest.mark.parametrize(
    ("name", "locked", "wanted"),
    [("kernel.unprivileged_bpf_disabled", "1", "2"), ("kernel.yama.ptrace_scope", "3", "1")],
)
def test_a_parameter_that_the_kernel_has_locked_is_let_be(
    harden: Run, node: Node, name: str, locked: str, wanted: str
) -> None:
    """To write it would fail, and all else would be undone."""
    parameter = node.parameter(name, f"{locked}\n")
    setting = ("sysctl", {"name": name, "value": wanted})
    assert not harden(setting)["changed"]
    parameter.write_text("0\n")
    harden(setting)
    parameter.write_text(f"{locked}\n")
    assert "msg" not in harden()
    assert parameter.read_text() == f"{locked}\n"


def test_a_weaker_value_of_somebody_elses_file_is_named(harden: Run, node: Node) -> None:
    node.parameter("kernel.sysrq", "438\n")
    node.file("sysctl.d/99-site.conf", "=\nkernel.sysrq = 438\n")
    warnings = str(harden(("sysctl", {"name": "kernel.sysrq", "value": "176"}))["warnings"])
    assert f"kernel.sysrq (438 in {node.sysctl_d}/99-site.conf)" in warnings


@pytest.mark.parametrize(
    ("file", "value"),
    [("# Managed by Temper.\nkernel.sysrq = 438\n", "438\n"), ("kernel.sysrq = 176\n", "176\n")],
)
def test_a_value_of_another_role_or_as_wanted_is_not_named(
    harden: Run, node: Node, file: str, value: str
) -> None:
    node.parameter("kernel.sysrq", value)
    node.file("sysctl.d/99-site.conf", file)
    result = harden(("sysctl", {"name": "kernel.sysrq", "value": "176"}))
    # Others' warnings stay in the process.
    assert str(node.sysctl_d) not in str(result.get("warnings"))


# ---------------------------------------------------------------- permissions, units, PAM, mounts


def test_what_is_stricter_already_stays_so(harden: Run, node: Node) -> None:
    path = node.file("etc/crontab", "x\n", mode=0o400)
    assert not harden(("access", {"path": str(path), "mode": "0600"}))["changed"]


def test_a_link_is_not_followed(harden: Run, node: Node) -> None:
    target = node.file("target", "x\n", mode=0o666)
    (node.path / "link").symlink_to(target)
    assert not harden(("access", {"path": f"{node.path}/link", "mode": "0600"}))["changed"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o666


def test_a_pattern_stands_for_all_files(harden: Run, node: Node) -> None:
    for name in ("a.rules", "b.rules", "c.conf"):
        node.file(f"rules.d/{name}", "", mode=0o644)
    harden(("access", {"path": f"{node.path}/rules.d/*.rules", "mode": "0640"}))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (node.path / "rules.d").iterdir()}
    assert modes == {"a.rules": 0o640, "b.rules": 0o640, "c.conf": 0o644}


@pytest.mark.component
def test_a_unit_that_its_own_condition_keeps_from_running_is_let_be(harden: Run, node: Node) -> None:
    node.unit("auditd.service", "enabled", "inactive", condition="no")
    assert not harden(("unit", {"name": "auditd.service", "on": True}))["changed"]


@pytest.mark.component
def test_a_unit_is_not_started_beside_one_that_does_the_same(harden: Run, node: Node) -> None:
    node.unit("timesyncd.service", "disabled", "inactive")
    setting = (
        "unit",
        {"name": "timesyncd.service", "on": True, "unless": ["chrony.service", "ptp4l.service"]},
    )
    assert harden(setting, check_mode=True)["changed"]
    node.unit("ptp4l.service", "enabled", "active")
    assert not harden(setting)["changed"]


def test_directories_that_a_file_brought_go_with_it_unless_somebody_uses_them(
    harden: Run, node: Node
) -> None:
    for name in ("alone", "shared"):
        (node.path / name).mkdir()
    paths = [f"{node.path}/{name}/a.d/b.d/file" for name in ("alone", "shared")]
    harden(*(("file", {"path": path, "content": "x\n"}) for path in paths))
    node.file("shared/a.d/of-others", "")
    harden()
    assert list((node.path / "alone").iterdir()) == []
    assert [path.name for path in (node.path / "shared/a.d").iterdir()] == ["of-others"]


def test_a_line_that_is_no_utf8_survives(harden: Run, node: Node) -> None:
    path = node.path / "login.defs"
    path.write_bytes(b"# caf\xe9 \x0c\nUMASK 022\n")
    harden(("keyword", {"path": str(path), "keyword": "UMASK", "value": "027"}))
    assert path.read_bytes() == b"# caf\xe9 \x0c\nUMASK 027\n"
    harden()
    assert path.read_bytes() == b"# caf\xe9 \x0c\nUMASK 022\n"


@pytest.mark.component
def test_a_unit_that_is_not_installed_is_let_be(harden: Run, node: Node) -> None:
    assert not harden(("unit", {"name": "cups.service", "on": False}))["changed"]


@pytest.mark.component
def test_pam_that_was_changed_by_hand_is_a_sentence(harden: Run, node: Node) -> None:
    (node.stacks / "by-hand").touch()
    words = ["pam_faillock.so", "preauth"]
    result = harden(("pam", {"name": "temper-faillock", "stack": "common-auth", "words": words}))
    assert "was changed by hand, so pam-auth-update does not put temper-faillock into it" in result["msg"]


def test_counting_wrong_passwords_is_refused_where_they_would_close_root(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless they are counted already: then it is the site's choice."""
    path = node.file("security/faillock.conf", "# even_deny_root\n even_deny_root\n")
    monkeypatch.setattr(files, "FAILLOCK", path)
    words = ["pam_faillock.so", "preauth"]
    setting = ("pam", {"name": "temper-faillock", "stack": "common-auth", "words": words})
    assert f"{path}:2 has even_deny_root" in harden(setting)["msg"]
    with (node.stacks / "common-auth").open("a") as stack:
        stack.write("auth required pam_faillock.so preauth\n")
    assert not harden(setting)["changed"]


@pytest.mark.component
def test_profile_that_pam_auth_update_brings_back_is_taken_out_again(harden: Run, node: Node) -> None:
    """As it does with one of a package's own, for which it has forgotten that it knew it."""
    node.program(
        "pam-auth-update",
        f"""#!/bin/sh
        cd {node.stacks}
        case $2 in
            --enable) echo "auth required $3.so" >>common-auth ;;
            --remove)
                sed -i "/ $3.so/d" common-auth
                [ "$3" != b ] || ! mkdir seen 2>/dev/null || echo "auth required a.so" >>common-auth ;;
        esac
        """,
    )
    before = (node.stacks / "common-auth").read_text()
    # Taken back in the opposite order: c, a, b.
    harden(*(("pam", {"name": n, "stack": "common-auth", "words": [f"{n}.so"]}) for n in ("b", "a", "c")))
    harden()
    assert (node.stacks / "common-auth").read_text() == before


@pytest.mark.parametrize(
    ("above", "options"),
    [
        (b"31 30 0:2 / /tmp rw,nosuid - tmpfs tmpfs rw\n", "nosuid"),
        # Of a user, who names his folder as a line of another mount.
        (
            b"31 30 0:3 / /home/u/x\r1\x0b0\x0b0:1\x0b/\x0b/tmp\x0bnosuid,nodev\ry\xff rw - fuse.x x rw\n",
            "nodev",
        ),
    ],
)
def test_options_in_force_are_those_of_the_mount_on_top(
    harden: Run, node: Node, monkeypatch: pytest.MonkeyPatch, above: bytes, options: str
) -> None:
    mounts = node.file("mountinfo", "")
    mounts.write_bytes(b"30 1 0:1 / /tmp rw,nodev shared:1 - ext4 /dev/sda rw\n" + above)
    monkeypatch.setattr(system, "MOUNTINFO", mounts)
    result = harden(("mount", {"path": "/tmp", "options": ["nodev", "nosuid"]}), check_mode=True)
    assert result["actions"] == [f"mount:/tmp: {options} -> nodev,nosuid"]


def test_a_directory_that_is_no_mount_point_is_let_be_unless_it_may_be_bound(harden: Run, node: Node) -> None:
    spec = {"path": str(node.path), "options": ["nodev"]}
    assert not harden(("mount", spec))["changed"]
    assert harden(("mount", spec | {"bind": True}), check_mode=True)["changed"]


@pytest.fixture
def mount_calls(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Have mount and umount only tell what they were asked to do."""
    for name in ("mount", "umount"):
        node.program(name, f"#!/bin/sh\necho {name} $* >>{node.path}/calls\n")
    monkeypatch.setattr(system, "MOUNTINFO", node.file("mountinfo", "1 0 0:1 / / rw - ext4 x rw\n"))
    return lambda: (node.path / "calls").read_text().splitlines()


@pytest.mark.component
def test_what_is_mounted_below_a_directory_is_not_hidden_when_it_is_bound(
    harden: Run, node: Node, mount_calls: Callable[[], list[str]]
) -> None:
    harden(("mount", {"path": str(node.bin), "options": ["nodev"], "bind": True}))
    assert mount_calls()[0] == f"mount --rbind {node.bin} {node.bin}"


@pytest.mark.component
@pytest.mark.parametrize("below", [True, False])
def test_what_is_mounted_below_a_directory_does_not_go_with_the_hardening(
    harden: Run, node: Node, mount_calls: Callable[[], list[str]], below: bool
) -> None:
    harden(("mount", {"path": str(node.bin), "options": ["nodev"], "bind": True}))
    lines = [
        "1 0 0:1 /@root / rw - btrfs x rw",
        f"2 1 0:1 /@root{node.bin} {node.bin} rw,nodev - btrfs x rw",
        *([f"3 2 0:2 / {node.bin}/job rw - squashfs x rw"] * below),
    ]
    (node.path / "mountinfo").write_text("\n".join(lines) + "\n")
    harden()
    remount = f"mount --options remount,bind,dev,suid,exec none {node.bin}"
    assert mount_calls()[-1] == (remount if below else f"umount --lazy {node.bin}")


@pytest.mark.component
def test_a_file_system_that_the_site_mounts_later_does_not_go_with_the_hardening(
    harden: Run, node: Node, mount_calls: Callable[[], list[str]]
) -> None:
    harden(("mount", {"path": str(node.bin), "options": ["nodev"], "bind": True}))
    calls = mount_calls()
    (node.path / "mountinfo").write_text(
        f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:1 {node.bin} {node.bin} rw,nodev - ext4 x rw\n"
        f"3 2 0:2 / {node.bin} rw,nodev - tmpfs x rw\n"
    )
    assert f"{node.bin} (a file system was mounted there since)" in str(harden()["warnings"])
    assert mount_calls() == calls


def test_a_setting_for_another_processor_is_left_out(harden: Run, node: Node) -> None:
    wanted = [
        ("file", {"path": f"{node.path}/{machine}", "content": "x", "machine": machine})
        for machine in ("x86_64", "sparc")
    ]
    result = harden(*wanted, check_mode=True)
    assert result["actions"] == [f"{node.path}/{platform.machine()}: unset -> x"]


@pytest.mark.component
def test_the_record_is_for_root_alone(harden: Run, node: Node) -> None:
    harden(*everything(node))
    assert stat.S_IMODE(node.record.stat().st_mode) == 0o600
    assert json.loads(node.record.read_text())["pending"] == []
