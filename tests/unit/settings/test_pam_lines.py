"""Lines of PAM's stacks are read as PAM reads them, and their arguments win over the files."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.settings import files, observe, pam_lines, record, site_lines
from ansible.module_utils.temper.settings.kinds import build
from ansible.module_utils.temper.settings.pam_lines import ARGUMENTS, PamLine
from ansible.module_utils.temper.settings.site_lines import UnreadableError
from ansible.module_utils.temper.settings.strictness import implicit

from temper.plan.os_controls import load_controls, settings_of
from temper.plan.strictness import order_of, orders_of_files
from tests.unit.each import each
from tests.unit.settings.role_plans import carried_out, item, role_plan

Run = Callable[..., dict[str, Any]]

CONTROLS = load_controls(Path(__file__).resolve().parents[3] / "data" / "os_controls")
QUALITY = "/etc/security/pwquality.conf.d/50-temper-hardening.conf"

STACK = """\
# auth required pam_no.so
@include common-auth
-auth [success=1 default=ignore] /usr/lib/security/pam_unix.so \\
  nullok # why
AUTH\tRequired pam_faillock.so preauth deny=3 deny=4
session optional pam_exec.so [cmd=/bin/a b]
auth required
"""


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(record, "FORMER", {})


def test_a_line_is_read_with_its_brackets_comments_and_continuations(pam: Path) -> None:
    stack = pam / "sshd"
    stack.write_text(STACK)
    path = str(stack)
    assert [*pam_lines.lines(stack)] == [
        PamLine(path, 2, "", "include", "common-auth", ()),
        PamLine(path, 3, "auth", "[success=1 default=ignore]", "pam_unix.so", ["nullok"]),
        PamLine(path, 5, "auth", "required", "pam_faillock.so", ["preauth", "deny=3", "deny=4"]),
        PamLine(path, 6, "session", "optional", "pam_exec.so", ["cmd=/bin/a b"]),
    ]
    assert [*pam_lines.lines(stack)][2].value("deny") == "4"


@each(
    ("auth required pam_faillock.so preauth [deny=99]\n", [1], "99"),
    ("auth required pam_faillock.so preauth [deny=99\n", [1], "99"),
    ("auth required pam_faillock.so [x=\\]] deny=9\n", [1], "9"),
    ("# comment \\\nauth required pam_faillock.so deny=9\n", [2], "9"),
    ("auth required a.so # \\\nauth required pam_faillock.so deny=9\n", [1, 2], "9"),
    ("auth required \\ \t\npam_faillock.so\\\ndeny=9\n", [1], "9"),
    ("auth required pam_faillock.so deny=9 \\", [1], "9"),
)
def test_lines_and_arguments_are_those_that_pam_makes_of_them(
    text: str, places: list[int], deny: str
) -> None:
    found = [*pam_lines.stack_lines(text, "x")]
    assert [line.number for line in found] == places
    assert (found[-1].module, found[-1].value("deny")) == ("pam_faillock.so", deny)


def test_a_bracket_that_is_escaped_is_part_of_the_argument() -> None:
    (line,) = pam_lines.stack_lines("auth required a.so [x=[a\\] b]\n", "x")
    assert line.arguments == ["x=[a] b"]


@each(
    ("required", True),
    ("requisite", True),
    ("sufficient", False),
    ("optional", False),
    ("[default=die]", True),
    ("[success=1 default=bad]", True),
    ("[success=ok new_authtok_reqd=ok ignore=ignore default=bad]", True),
    ("[success=1 default=ignore]", False),
    ("[default=die auth_err=ignore]", False),
    ("[success=ok]", True),
    ("[success=ok default=3]", False),
)
def test_a_control_binds_where_a_refusal_ends_the_login(control: str, binds: bool) -> None:
    assert PamLine("", 1, "auth", control, "m", ()).binds == binds


def test_files_that_are_no_service_are_left_out_and_included_ones_are_followed(pam: Path) -> None:
    shared = pam.parent / "authselect"
    shared.mkdir()
    (shared / "system-auth").write_text("auth required a.so\n")
    (shared / "extra").write_text("auth required b.so\n")
    (pam / "system-auth").symlink_to(shared / "system-auth")
    (pam / "sshd").write_text(f"auth substack system-auth\nauth include {shared}/extra\nauth include sshd\n")
    pam_lines.VENDOR.mkdir()
    (pam_lines.VENDOR / "sshd").write_text("auth required hidden.so\n")
    (pam_lines.VENDOR / "polkit").write_text("auth required c.so\n")
    for name in ("sshd.dpkg-old", "common-auth.pam-old", "sshd~", "sshd.rpmnew", "sshd.bak"):
        (pam / name).write_text("auth required no.so\n")
    modules = [line.module for line in pam_lines.stacks() if line.control == "required"]
    assert sorted(modules) == ["a.so", "b.so", "c.so"]


# ---------------------------------------------------------------- four values of each argument


FAILLOCK = "auth [default=die] pam_faillock.so authfail {}={{}}"
PWQUALITY = "password requisite pam_pwquality.so retry=3 {}={{}}"
#: Values as they stand on the line. Foreign ones the module would not take, or nobody can compare.
ROWS = {
    ("/etc/security/faillock.conf", "deny"): (FAILLOCK, "4", "3", "50 0", "x -1"),
    ("/etc/security/faillock.conf", "unlock_time"): (FAILLOCK, "900", "1800 0 never", "1 600", "x -1"),
    ("/etc/security/faillock.conf", "fail_interval"): (FAILLOCK, "900", "3600", "60 0", "x"),
    (QUALITY, "minlen"): (PWQUALITY, "15", "20", "4", "x"),
    (QUALITY, "difok"): (PWQUALITY, "2", "5", "0", "x"),
    (QUALITY, "maxrepeat"): (PWQUALITY, "3", "2", "9 0", "x"),
    (QUALITY, "maxclassrepeat"): (PWQUALITY, "0", "4", "", "x"),
    (QUALITY, "retry"): ("password requisite pam_pwquality.so {}={{}}", "3", "1", "5", "x"),
    (QUALITY, "maxsequence"): (PWQUALITY, "3", "2", "9 0", "x"),
    (QUALITY, "dictcheck"): (PWQUALITY, "1", "", "0", "x"),
    (QUALITY, "enforcing"): (PWQUALITY, "1", "", "0", "x"),
    (QUALITY, "minclass"): (PWQUALITY, "4", "", "0 3", "x"),
    **{(QUALITY, f"{one}credit"): (PWQUALITY, "-1", "-2", "0 1 14", "x") for one in "dulo"},
    ("/etc/login.defs", "UMASK"): (
        "session optional pam_umask.so umask={{}}", "0027 027", "077", "000 0022 002", "x",
    ),
    ("/etc/login.defs", "ENCRYPT_METHOD"): (
        "password [success=1 default=ignore] pam_unix.so obscure {{}}",
        "yescrypt md5\tyescrypt", "", "md5 sha512 bigcrypt yescrypt\tmd5", "gost_yescrypt",
    ),
    ("/etc/login.defs", "YESCRYPT_COST_FACTOR"): (
        "password sufficient pam_unix.so yescrypt rounds={{}}", "5", "11", "1 0", "x",
    ),
}  # fmt: skip
CASES = ("equal", "stricter", "weaker", "foreign")
#: Where a site's line stands: in what services include, of two families, or in the file of a service.
LAYOUTS = ("common-auth", "system-auth", "sshd")


def wanted_of(path: str, keyword: str) -> str:
    if path != QUALITY:
        keywords = [
            settings_of(control, "cis-level2").get("keywords", {}).get(path, {})
            for control in CONTROLS.values()
        ]
        return str(next(one[keyword] for one in keywords if keyword in one))
    text: str = settings_of(CONTROLS["password-quality"], "cis-level2")["files"][QUALITY]
    lines = text.splitlines()
    return next(line.partition(" = ")[2] for line in lines if line.startswith(f"{keyword} ="))


def plan_of(root: Path, path: str, keyword: str) -> dict[str, Any]:
    wanted = wanted_of(path, keyword)
    if path == QUALITY:
        content = f"# Managed by Temper.\n{keyword} = {wanted}\n"
        whole = {"content": content, "mode": "0644", "orders": {keyword: orders_of_files()[QUALITY][keyword]}}  # type: ignore[index]
        return role_plan("os_hardening", [item("file", f"{root}{path}", whole, "control")], atomic=True)
    one = {**item("keyword", f"{root}{path}:{keyword}", wanted, "control")}
    one["order"] = order_of("keyword", f"{path}:{keyword}")
    return role_plan("os_hardening", [one], atomic=True)


def cases() -> Iterator[tuple[str, str, str, str, str]]:
    for (path, keyword), (line, *values) in ROWS.items():
        for case, several in zip(CASES, values, strict=True):
            for value in several.split(" ") if several else []:
                text = line.format(keyword).format(value.replace("\t", " "))
                yield path, keyword, case, value, text


def test_each_argument_of_a_module_has_four_values() -> None:
    told = {
        (Path(path).name if path != QUALITY else Path(path).parent.name, keyword) for path, keyword in ROWS
    }
    arguments = {(name, keyword) for name, found in ARGUMENTS.items() for keyword in found}
    assert told == arguments - {("pwquality.conf.d", "local_users_only")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stricter_argument_is_kept_and_a_weaker_one_fails_with_its_place(
    layout: str, pam: Path, tmp_path: Path, run_module: Run
) -> None:
    violations = []
    for number, (path, keyword, case, value, line) in enumerate(cases()):
        root = tmp_path / str(number)
        (root / "etc/security/pwquality.conf.d").mkdir(parents=True)
        for name in ("login.defs", "security/faillock.conf"):
            (root / "etc" / name).write_text("# nothing\n")
        (pam / layout).write_text(f"# the site's\n{line}\n")
        plan = plan_of(root, path, keyword)
        first = carried_out(run_module, plan)
        again = carried_out(run_module, plan)
        (found,) = observe.observe(plan)
        place, wanted = f"{pam / layout}:2", wanted_of(path, keyword)
        said = json.dumps(first["warnings"])
        state = {"equal": "pass", "stricter": "pass"}.get(case, "fail")
        shown = value.split("\t")[-1].upper() if keyword == "ENCRYPT_METHOD" else value
        expected = {
            "equal": "kept" not in said and place not in said,
            "stricter": f"kept: {keyword} {shown} ({place}), which is stricter than {wanted}" in said,
        }.get(
            case,
            f"{place} has {line.split('.so')[0].split()[-1]}.so take {shown} for {keyword}, not {wanted}"
            in said,
        )
        if found["state"] != state or again["changed"] or not expected or "msg" in first:
            violations.append((path, keyword, case, value, found["state"], again["changed"], said))
        (record.RECORDS / "os_hardening.json").unlink(missing_ok=True)
    assert violations == []


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ("sha512 rounds=65536", None),
        ("rounds=65536 blowfish", None),
        ("yescrypt rounds=65536", None),
        ("yescrypt rounds=012", None),
        ("yescrypt rounds=11", "11"),
        ("rounds=9", "9"),
    ],
)
def test_rounds_count_for_the_method_that_they_belong_to(
    arguments: str, kept: str | None, pam: Path, tmp_path: Path
) -> None:
    """Without a method on the line, it is that of login.defs. Linux-PAM 1.5.2 takes 5 for more than 11."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/login.defs").write_text("YESCRYPT_COST_FACTOR 5\n")
    (pam / "common-password").write_text(f"password required pam_unix.so {arguments}\n")
    (found,) = observe.observe(plan_of(tmp_path, "/etc/login.defs", "YESCRYPT_COST_FACTOR"))
    assert found["state"] == "pass"
    assert (f"kept: YESCRYPT_COST_FACTOR {kept} " in found["reason"]) == (kept is not None)


@pytest.mark.parametrize(
    ("place", "text", "at_fault"),
    [
        ("pam", "password requisite pam_pwquality.so local_users_only retry=3\n", True),
        ("pam", "password requisite pam_pwquality.so retry=3\n", False),
        ("00-site.conf", "local_users_only\n", True),
        ("99-site.conf", "Local_Users_Only = 0\n", True),
        ("../pwquality.conf", "# local_users_only\n", False),
    ],
)
def test_accounts_that_pwquality_leaves_out_are_a_fault_wherever_that_is_said(
    place: str, text: str, at_fault: bool, pam: Path, tmp_path: Path
) -> None:
    """It is a flag: settings.c of libpwquality takes any value for it."""
    own = tmp_path / "etc/security/pwquality.conf.d/50-temper-hardening.conf"
    own.parent.mkdir(parents=True)
    content = settings_of(CONTROLS["password-quality"], "cis-level2")["files"][QUALITY]
    own.write_text(content)
    target = pam / "common-password" if place == "pam" else own.parent / place
    target.write_text(text)
    whole = {"content": content, "mode": "0644", "orders": orders_of_files()[QUALITY]}
    plan = role_plan("os_hardening", [item("file", str(own), whole, "control")])
    (found,) = observe.observe(plan)
    assert (found["state"], f"{target}:1" in found["reason"]) == (
        ("fail", True) if at_fault else ("pass", False)
    )


@pytest.mark.parametrize(("gecos", "state"), [("Ann,,,,umask=000", "fail"), ("Ann,umask=077", "pass")])
def test_the_mask_of_an_account_comes_before_all_others(
    gecos: str, state: str, tmp_path: Path, run_module: Run
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/login.defs").write_text("UMASK 027\n")
    pam_lines.ACCOUNTS.write_text(f"root:x:0:0:root:/root:/bin/sh\nann:x:1:1:{gecos}:/home/ann:/bin/sh\n")
    plan = plan_of(tmp_path, "/etc/login.defs", "UMASK")
    assert carried_out(run_module, plan)["changed"] is False
    (found,) = observe.observe(plan)
    assert found["state"] == state
    assert f"{pam_lines.ACCOUNTS}:2 (ann)" in found["reason"]


def test_accounts_of_a_large_site_are_read(pam: Path) -> None:
    line = f"someone:x:1:1:{'Name,' * 14}umask=077:/home/someone:/bin/sh\n"
    pam_lines.ACCOUNTS.write_text(line * 16_000)
    assert pam_lines.ACCOUNTS.stat().st_size > site_lines.MOST_BYTES
    assert len([*pam_lines.masks_of_accounts()]) == 16_000


def test_accounts_that_never_end_are_not_read(pam: Path) -> None:
    with pam_lines.ACCOUNTS.open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(UnreadableError, match="passwd: expected a file that can be read"):
        next(pam_lines.masks_of_accounts())


@pytest.mark.parametrize(("other", "state"), [("deny = 3\n", "pass"), ("deny = 40\n", "fail"), ("", "pass")])
def test_another_file_that_faillock_is_told_to_read_counts_in_place_of_the_usual_one(
    other: str, state: str, pam: Path, tmp_path: Path
) -> None:
    (tmp_path / "etc/security").mkdir(parents=True)
    (tmp_path / "etc/security/faillock.conf").write_text("deny = 4\n")
    (tmp_path / "other.conf").write_text(other)
    (pam / "common-auth").write_text(f"auth required pam_faillock.so preauth conf={tmp_path}/other.conf\n")
    (found,) = observe.observe(plan_of(tmp_path, "/etc/security/faillock.conf", "deny"))
    assert found["state"] == state
    assert "other.conf" in found["reason"]


# ---------------------------------------------------------------- what a program takes without a line


def keyword_of(root: Path, keyword: str) -> Any:
    plan = plan_of(root, "/etc/security/faillock.conf", keyword)
    ((setting, _),) = build(
        "os_hardening", plan["settings"], plan["options"], record.Record("os_hardening").originals
    )
    return setting


@pytest.mark.parametrize(
    ("keyword", "in_use", "line"),
    [
        ("deny", True, None),
        ("deny", False, "deny = 4"),
        ("fail_interval", True, None),
        ("unlock_time", True, "unlock_time = 900"),
    ],
)
def test_a_default_of_faillock_counts_where_a_site_counts_wrong_passwords(
    keyword: str, in_use: bool, line: str | None, pam: Path, tmp_path: Path, run_module: Run
) -> None:
    """3, 600 s and 900 s: faillock.conf(5)."""
    (tmp_path / "etc/security").mkdir(parents=True)
    file = tmp_path / "etc/security/faillock.conf"
    file.write_text("# deny = 3\n")
    if in_use:
        (pam / "common-auth").write_text("auth required pam_faillock.so preauth\n")
    plan = plan_of(tmp_path, "/etc/security/faillock.conf", keyword)
    said = carried_out(run_module, plan)
    assert file.read_text().splitlines()[1:] == ([line] if line else [])
    assert ("kept: deny" in str(said["warnings"])) == (keyword == "deny" and in_use)
    assert [one["state"] for one in observe.observe(plan)] == ["pass"]
    # Ours counts from now on; the default that it took the place of was nobody's.
    (pam / "common-auth").write_text("auth required pam_faillock.so preauth\n")
    assert not carried_out(run_module, plan)["changed"]


def test_defaults_of_programs_are_those_of_their_manuals() -> None:
    told = {key: implicit(str(order_of("keyword", f"/etc/{key}"))) for key in (
        "security/faillock.conf:deny", "security/faillock.conf:unlock_time",
        "security/faillock.conf:fail_interval", "login.defs:UMASK", "login.defs:PASS_MAX_DAYS",
        "login.defs:PASS_MIN_DAYS", "login.defs:PASS_WARN_AGE", "login.defs:YESCRYPT_COST_FACTOR",
    )}  # fmt: skip
    assert [*told.values()] == [["3"], ["600"], ["900"], ["022"], ["-1"], ["0"], ["-1"], ["5"]]


# ---------------------------------------------------------------- a mask that ours would take away


@pytest.mark.parametrize(
    ("service", "number"),
    [
        ("session optional pam_umask.so umask=077\n@include common-session\n", 1),
        ("# ours\n\nsession optional pam_umask.so [umask=077]\n@include common-session\n", 3),
        ("session optional pam_umask.so umask=022\n@include common-session\n", None),
        ("session optional pam_umask.so umask=027\n@include common-session\n", None),
        ("@include common-session\nsession optional pam_umask.so umask=077\n", None),
        ("session optional pam_umask.so umask=077\n", None),
    ],
)
def test_a_stricter_mask_before_ours_is_an_obstacle(
    service: str, number: int | None, pam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOGIN_DEFS", tmp_path / "login.defs")
    (tmp_path / "login.defs").write_text("UMASK 027\n")
    (pam / "sshd").write_text(service)
    (pam / "common-session").write_text("session required pam_unix.so\n")
    profile = files.PamProfile("temper-umask", "common-session", ["pam_umask.so"])
    obstacle = profile.obstacle()
    assert (obstacle is not None) == (number is not None)
    assert obstacle is None or obstacle.startswith(f"{pam}/sshd:{number} sets umask=077 before")


# ---------------------------------------------------------------- stacks that cannot be read


def folder(path: Path) -> None:
    path.mkdir()


def too_long(path: Path) -> None:
    path.write_text("#" * (site_lines.MOST_BYTES + 1))


@pytest.mark.parametrize("odd", [folder, os.mkfifo, too_long])
def test_a_stack_that_cannot_be_read_costs_the_settings_that_go_by_it(
    odd: Callable[[Path], None], pam: Path, tmp_path: Path, run_module: Run
) -> None:
    (tmp_path / "etc/security").mkdir(parents=True)
    (tmp_path / "etc/security/faillock.conf").write_text("# nothing\n")
    odd(tmp_path / "odd")
    (pam / "sshd").write_text(f"auth include {tmp_path}/odd\n")
    plan = plan_of(tmp_path, "/etc/security/faillock.conf", "deny")
    plan["settings"].append(item("file", str(tmp_path / "other"), {"content": None}, "other"))
    said = carried_out(run_module, plan)["msg"]
    assert said.startswith(f"Nothing was changed: {tmp_path}/odd: expected a file that can be read")
    assert said.endswith(", or waive the control control (os_hardening_waivers).")
    states = {one["key"].partition(":")[0]: one["state"] for one in observe.observe(plan)}
    assert states == {"keyword": "not-checked", "file": "pass"}


@pytest.mark.parametrize("name", ["sshd", "common-session"])
def test_a_profile_beside_a_file_that_cannot_be_read_is_refused_with_the_control(
    name: str, pam: Path, run_module: Run
) -> None:
    (pam / "common-session").write_text("session required pam_unix.so\n")
    too_long(pam / name)
    wanted = {"stack": "common-session", "words": ["pam_umask.so"]}
    plan = role_plan("os_hardening", [item("pam", "temper-umask", wanted, "umask")], atomic=True)
    said = carried_out(run_module, plan)["msg"]
    assert said.startswith(f"Nothing was changed: {pam}/{name}: expected a file that can be read")
    assert said.endswith(", or waive the control umask (os_hardening_waivers).")
    (found,) = observe.observe(plan)
    assert found["state"] == ("fail" if name == "sshd" else "not-checked")


# ---------------------------------------------------------------- what is taken back


@pytest.mark.parametrize(("line", "runs"), [("optional pam_pwquality.so", 1), ("requisite pam_unix.so", 0)])
def test_a_profile_is_taken_out_whatever_its_control_has_become(
    line: str, runs: int, pam: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pam / "common-password").write_text(f"password {line} retry=3\n")
    commands: list[list[str]] = []
    monkeypatch.setattr(files, "run", commands.append)
    files.PamProfile("pwquality", "common-password", ["requisite", "pam_pwquality.so"]).restore(False)
    assert commands == [["pam-auth-update", "--package", "--remove", "pwquality"]] * runs


def test_limits_that_pam_reads_from_another_file_alone_are_a_fault(pam: Path) -> None:
    (pam / "sshd").write_text("session required pam_limits.so\nsession required pam_limits.so conf=/etc/l\n")
    assert pam_lines.limits_elsewhere() == [f"{pam}/sshd:2 has pam_limits.so read /etc/l alone"]


# ---------------------------------------------------------------- ways past a line


PREAUTH = "auth requisite pam_faillock.so preauth\n"
UNIX = "auth [success=2 default=ignore] pam_unix.so nullok\n"
COUNTED = "auth [default=die] pam_faillock.so authfail\n"
COMMON = f"{PREAUTH}{UNIX}{COUNTED}auth requisite pam_deny.so\nauth required pam_permit.so\n"
SKIPS = "auth [success={} default=ignore] pam_succeed_if.so uid > 5\n"
QUALITY_LINES = (
    "password requisite pam_pwquality.so retry=3\n"
    "password [success=1 default=ignore] pam_unix.so obscure use_authtok\n"
    "password requisite pam_deny.so\npassword required pam_permit.so\n"
)
INCLUDED = "@include common-auth\n@include common-password\n"
#: What is put into a stack: file -> text; the line that leads past ours, and past which (b: before a
#: password, a: after a wrong one, q: at a new one).
WAYS: tuple[tuple[dict[str, str], str, str], ...] = (
    ({"sshd": INCLUDED}, "", ""),
    ({"su": f"auth sufficient pam_rootok.so\n{INCLUDED}", "su-l": "auth include su\n"}, "", ""),
    ({"runuser": "auth sufficient pam_rootok.so\n"}, "", ""),
    ({"sshd": f"auth required pam_google_authenticator.so\n{INCLUDED}"}, "", ""),
    ({"sshd": f"auth sufficient pam_u2f.so\n{INCLUDED}"}, "", ""),
    ({"sshd": f"auth required pam_unix.so\n{INCLUDED}"}, "", ""),
    # A service of its own, with faillock of its own, and without.
    ({"vsftpd": f"{PREAUTH}auth sufficient pam_unix.so\nauth required pam_faillock.so authfail\n"}, "", ""),
    ({"vsftpd": "auth required pam_listfile.so\nauth required pam_unix.so\n"}, "vsftpd:2", "ba"),
    ({"vsftpd": "auth required pam_unix.so\npassword required pam_unix.so\n"}, "vsftpd:", "baq"),
    ({"x": f"{PREAUTH}auth required pam_unix.so\n"}, "x:2", "a"),
    ({"x": "auth required pam_unix.so\nauth required pam_faillock.so authsucc\n"}, "x:1", "a"),
    # A password is taken before ours.
    ({"sshd": f"auth sufficient pam_unix.so\n{INCLUDED}"}, "sshd:1", "b"),
    ({"sshd": f"auth [success=done default=ignore] pam_sss.so\n{INCLUDED}"}, "sshd:1", "b"),
    ({"sshd": f"auth requisite pam_unix.so\n{INCLUDED}"}, "sshd:1", "a"),
    # A jump leads past ours; one that is too long leads nowhere.
    ({"common-auth": SKIPS.format(1) + COMMON}, "common-auth:1", "b"),
    ({"common-auth": SKIPS.format(9) + COMMON}, "", ""),
    ({"common-auth": COMMON.replace("default=ignore", "default=1")}, "common-auth:2", "a"),
    ({"common-auth": COMMON.replace("default=ignore", "default=die")}, "common-auth:2", "a"),
    ({"common-auth": COMMON.replace("default=ignore", "user_unknown=die default=ignore")}, "", ""),
    ({"common-password": f"password sufficient pam_unix.so\n{QUALITY_LINES}"}, "common-password:1", "q"),
    ({"common-password": f"password [default=1] pam_exec.so x\n{QUALITY_LINES}"}, "common-password:1", "q"),
    # What ends a substack does not end its parent; an include is part of it.
    ({"more": "auth sufficient pam_unix.so\n", "sshd": f"auth substack more\n{INCLUDED}"}, "", ""),
    ({"more": "auth sufficient pam_unix.so\n", "sshd": f"auth include more\n{INCLUDED}"}, "more:1", "b"),
    # A jump takes a substack for one.
    ({"sshd": f"{SKIPS.format(1)}auth substack common-auth\nauth required pam_unix.so\n"}, "sshd:1", "ba"),
)  # fmt: skip
PROFILES = {
    "b": ("temper-faillock-notify", "common-auth", ["requisite", "pam_faillock.so", "preauth"]),
    "a": ("temper-faillock", "common-auth", ["pam_faillock.so", "authfail"]),
    "q": ("pwquality", "common-password", ["requisite", "pam_pwquality.so"]),
}


def test_a_way_past_a_line_of_ours_is_a_fault_with_the_line_that_leads_there(pam: Path) -> None:
    violations = []
    for texts, place, past in WAYS:
        for path in pam.iterdir():
            path.unlink()
        for name, text in {"common-auth": COMMON, "common-password": QUALITY_LINES, **texts}.items():
            (pam / name).write_text(text)
        for one, (name, stack, words) in PROFILES.items():
            profile = files.PamProfile(name, stack, words)
            fault, said = profile.fault(), profile.warnings()
            named = fault is not None and f"{pam}/{place}" in fault.reason
            if (fault is not None, named, len(said)) != ((one in past), (one in past), int(one in past)):
                violations.append((texts, one, fault))
    assert violations == []


def test_before_a_profile_is_on_only_services_that_will_not_have_it_are_named(pam: Path) -> None:
    (pam / "common-auth").write_text("auth required pam_unix.so\n")
    (pam / "sshd").write_text("@include common-auth\n")
    (pam / "vsftpd").write_text("auth required pam_unix.so\n")
    fault = files.PamProfile(*PROFILES["b"]).fault()
    assert fault is not None
    assert f"{pam}/vsftpd:1" in fault.reason
    assert "sshd" not in fault.reason
    assert "common-auth" not in fault.reason


def test_a_stack_that_includes_itself_many_times_is_not_followed_for_long(pam: Path) -> None:
    (pam / "sshd").write_text("auth required pam_unix.so\nauth include more\n")
    (pam / "more").write_text("auth include more\n" * 20 + "auth required pam_unix.so\n")
    with pytest.raises(UnreadableError, match="at most"):
        pam_lines.stack_of(pam / "sshd", "auth")
    (pam / "common-auth").write_text(COMMON)
    assert files.PamProfile(*PROFILES["b"]).warnings() == []


@pytest.mark.parametrize("where", ["file", "line", ""])
def test_accounts_that_faillock_leaves_out_are_a_fault(
    where: str, pam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FAILLOCK", tmp_path / "faillock.conf")
    (tmp_path / "faillock.conf").write_text(f"# no\n{'local_users_only' * (where == 'file')}\n")
    (pam / "common-auth").write_text(
        COMMON.replace("authfail", f"authfail {'local_users_only' * (where == 'line')}")
    )
    fault = files.PamProfile(*PROFILES["a"]).fault()
    place = {"file": f"{tmp_path}/faillock.conf:2", "line": f"{pam}/common-auth:3"}.get(where)
    assert (place in fault.reason if fault and place else fault) == (True if place else None)
