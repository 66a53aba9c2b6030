"""A site that is stricter than a control stays so; the data says in which order a control's values stand."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import node_settings
import pytest
from ansible.module_utils.temper.settings import observe, record, system
from ansible.module_utils.temper.settings.base import SettingError
from ansible.module_utils.temper.settings.files import Keyword
from ansible.module_utils.temper.settings.strictness import chosen, strictest

from temper.plan.strictness import order_of
from tests.unit.control_values import SETTINGS
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.settings.role_plans import item, role_plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., dict[str, Any]]

OURS = "90-temper-hardening.conf"
VALUES = [(kind, key, value) for kind, key, value in SETTINGS if kind in ("sysctl", "keyword")]


def neighbours(order: str, wanted: str) -> dict[str, str]:
    """A stricter and a weaker value than this one, where the order has any, and one that is in none."""
    found = {"foreign": "never-heard"}
    name = order.partition(",")[0]
    if ">" in order:
        places = [place.strip().split("|") for place in name.split(">")]
        place = next(number for number, words in enumerate(places) if wanted.lower() in words)
        found |= {"stricter": places[place - 1][0]} if place else {}
        return found | ({"weaker": places[place + 1][0]} if place + 1 < len(places) else {})
    unlimited = re.search(r", ([^,]+) unlimited", order)
    if name == "at least" and unlimited and wanted in unlimited[1].split():
        return found | {"weaker": "1"}  # nothing is more
    if name in ("at most", "at least"):
        up, down = str(int(wanted) + 1), str(int(wanted) - 1)
        weaker, more = (up, down) if name == "at most" else (down, up)
        return found | {"stricter": more, "weaker": weaker}
    if name == "contains":  # what the site adds is no foreign word, but more
        return {"stricter": f"{wanted},more", "weaker": wanted.partition(",")[0]}
    if name == "bits":
        return found | {"weaker": "1"} | ({"stricter": "0"} if wanted != "0" else {})
    if name == "umask":
        return found | {"weaker": "000"} | ({"stricter": "077"} if wanted != "077" else {})
    return found


CASES = [
    (kind, key, wanted, case, value)
    for kind, key, wanted in VALUES
    for case, value in {"equal": wanted, **neighbours(str(order_of(kind, key)), wanted)}.items()
]


def a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a node without parameters, files and records."""
    for folder in ("proc-sys", "sysctl.d", "records"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(system, "PROC_SYS", tmp_path / "proc-sys")
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", (str(tmp_path / "sysctl.d"),))
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(record, "FORMER", {})
    return tmp_path


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return a_node(tmp_path, monkeypatch)


@each(*CASES)
def test_a_stricter_value_stays_and_every_other_becomes_the_wanted_one(
    kind: str,
    key: str,
    wanted: str,
    case: str,
    found: str,
    run_module: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs and a comparison, of every value of every control beside what a site may have."""
    node = a_node(tmp_path, monkeypatch)
    order = str(order_of(kind, key))
    if case == "stricter" and not chosen(order, found, wanted):
        case = "weaker"  # the distribution's own stays only where the site has written it down
    live, file = place(node, kind, key, found)
    plan = plan_of(node, kind, key, wanted, file)
    first = run(run_module, plan)
    kept = found if case in ("stricter", "equal") else wanted
    assert strictest(order, kept, wanted) == kept
    assert (value_of(live, kind), first["changed"]) == (kept, kind == "sysctl" or kept != found)
    assert ("kept: " in first["warnings"]) == (case == "stricter")
    assert not run(run_module, plan)["changed"]
    assert {one["state"] for one in observe.observe(plan)} == {"pass"}
    if kind == "sysctl":
        text = (node / "sysctl.d" / OURS).read_text()
        name = key if kept == wanted else live_name(key)
        assert f"{name} = {kept}\n" in text
    if case == "stricter":
        weaken(live, kind, found, neighbours(order, wanted).get("weaker", "never-heard"))
        assert "fail" in {one["state"] for one in observe.observe(plan)}


@each(
    ("ENABLED=yes", "net/ipv4/conf/all/log_martians=0", "fail"),
    ("ENABLED=yes", "net/ipv4/conf/all/log_martians = 1", "pass"),
    ("ENABLED=no", "net/ipv4/conf/all/log_martians=0", "pass"),
    ("# ENABLED=yes", "net/ipv4/conf/all/log_martians=0", "pass"),
)
def test_what_ufw_sets_when_it_starts_comes_after_all_files_of_sysctl(
    enabled: str,
    line: str,
    state: str,
    run_module: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = a_node(tmp_path, monkeypatch)
    own = node / "00-of-ufw"
    own.write_text(f"# Of the package.\n{line}\n")
    (node / "default").write_text(f'IPV6=yes\nIPT_SYSCTL="{own}"\n')
    (node / "ufw.conf").write_text(f"{enabled}\nLOGLEVEL=low\n")
    monkeypatch.setattr(system, "UFW", node / "default")
    monkeypatch.setattr(system, "UFW_STARTS", node / "ufw.conf")
    _, key = place(node, "sysctl", "net.ipv4.conf.all.log_martians", "0")
    plan = plan_of(node, "sysctl", key, "1", key)
    said = run(run_module, plan)["warnings"]
    assert (state == "fail") == ("fail" in {one["state"] for one in observe.observe(plan)})
    assert (str(own) in said) == (state == "fail")
    # Its line is a setting, too: the first run has both in force.
    word = "net/ipv4/conf/all/log_martians"
    plan["settings"].append({**item("keyword", f"{own}:{word}", "1", "control"), "order": "1 > 0"})
    assert str(own) not in run(run_module, plan)["warnings"]
    assert {one["state"] for one in observe.observe(plan)} == {"pass"}
    assert not run(run_module, plan)["changed"]


def live_name(key: str) -> str:
    return key.replace("*", "eth0")


def place(node: Path, kind: str, key: str, found: str) -> tuple[Path, str]:
    """Put a value into a node: the file that has it, and the key in the plan."""
    if kind == "keyword":
        path, _, keyword = key.rpartition(":")
        file = node / path.rpartition("/")[2]
        file.write_text(f"# how\n{keyword} = {found}\n" if "login" not in path else f"{keyword} {found}\n")
        return file, f"{file}:{keyword}"
    file = node / "proc-sys" / live_name(key).replace(".", "/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{found}\n")
    return file, key


def plan_of(node: Path, kind: str, key: str, wanted: str, place_key: str) -> dict[str, Any]:
    order = str(order_of(kind, key))
    items = [{**item(kind, place_key, wanted, "control"), "order": order}]
    if kind == "sysctl":
        content = f"# Managed by Temper.\n{key} = {wanted}\n"
        file = {"content": content, "mode": "0644", "validate": [], "orders": {key: order}}
        items.append(item("file", str(node / "sysctl.d" / OURS), file, "control"))
    return role_plan("os_hardening", items, atomic=True, sysctl_file=OURS)


def run(run_module: Run, plan: dict[str, Any]) -> dict[str, Any]:
    result = run_module(node_settings.main, roles=json.dumps([plan]))
    role = result["roles"]["os_hardening"]
    assert not role.get("failed"), role
    return {**role, "warnings": str(result.get("warnings"))}


def value_of(path: Path, kind: str) -> str:
    # Of keywords with "=", the file's own form stays: `umask = 027`, `Storage=persistent`.
    return re.split(r"[\s=]+", path.read_text().strip())[-1]


def weaken(path: Path, kind: str, found: str, weaker: str) -> None:
    path.write_text(path.read_text().replace(found, weaker))


# ------------------------------------------------------------------ kernel parameters, now and at boot

KPTR = "kernel.kptr_restrict"


def boots_with(node: Path) -> str:
    """The value after a reboot: the last file's."""
    lines = [line for file in sorted((node / "sysctl.d").iterdir()) for line in file.read_text().splitlines()]
    return [line.split(" = ")[1] for line in lines if line.startswith(KPTR)][-1]


@pytest.mark.parametrize("file", ["10-site.conf", "99-site.conf"])
@pytest.mark.parametrize(
    ("live", "said", "result"), [("2", "2", "2"), ("0", "2", "2"), ("2", "1", "2"), ("0", "1", "1")]
)
def test_a_file_of_the_site_counts_before_and_after_ours(
    node: Path, run_module: Run, file: str, live: str, said: str, result: str
) -> None:
    parameter, _ = place(node, "sysctl", KPTR, live)
    (node / "sysctl.d" / file).write_text(f"{KPTR} = {said}\n")
    plan = plan_of(node, "sysctl", KPTR, "1", KPTR)
    run(run_module, plan)
    assert parameter.read_text().strip() == result
    if (file, result) != ("99-site.conf", "2") or said == "2":
        assert boots_with(node) == result
    assert not run(run_module, plan)["changed"]


def test_a_weaker_file_that_sorts_last_stays_and_fails(node: Path, run_module: Run) -> None:
    place(node, "sysctl", KPTR, "0")
    (node / "sysctl.d" / "99-site.conf").write_text(f"{KPTR} = 0\n")
    plan = plan_of(node, "sysctl", KPTR, "1", KPTR)
    assert "set other values" in run(run_module, plan)["warnings"]
    assert "fail" in {one["state"] for one in observe.observe(plan)}


@pytest.mark.parametrize("recorded", [True, False], ids=["by a run", "by an image"])
@pytest.mark.parametrize(("before", "file", "after"), [("0", None, "1"), ("1", None, "1"), ("0", "2", "2")])
def test_a_lower_profile_lowers_what_temper_has_made(
    node: Path, run_module: Run, recorded: bool, before: str, file: str | None, after: str
) -> None:
    parameter, _ = place(node, "sysctl", KPTR, before)
    if file:
        (node / "sysctl.d" / "10-site.conf").write_text(f"{KPTR} = {file}\n")
    run(run_module, plan_of(node, "sysctl", KPTR, "2", KPTR))
    assert parameter.read_text().strip() == "2"
    if not recorded:
        (node / "records" / "os_hardening.json").unlink()
    lower = plan_of(node, "sysctl", KPTR, "1", KPTR)
    run(run_module, lower)
    assert (parameter.read_text().strip(), boots_with(node)) == (after, after)
    assert not run(run_module, lower)["changed"]


def test_a_parameter_that_drifted_to_just_what_a_lower_profile_wants_settles_in_one_run(
    node: Path, run_module: Run
) -> None:
    parameter, _ = place(node, "sysctl", KPTR, "1")
    run(run_module, plan_of(node, "sysctl", KPTR, "2", KPTR))
    parameter.write_text("0\n")
    lower = plan_of(node, "sysctl", KPTR, "0", KPTR)
    run(run_module, lower)
    assert not run(run_module, lower)["changed"]
    assert (parameter.read_text().strip(), boots_with(node)) == ("0", "0")


def test_a_line_that_the_site_takes_out_no_longer_counts(node: Path, run_module: Run) -> None:
    parameter, _ = place(node, "sysctl", KPTR, "2")
    site = node / "sysctl.d" / "10-site.conf"
    site.write_text(f"{KPTR} = 2\n")
    plan = plan_of(node, "sysctl", KPTR, "1", KPTR)
    run(run_module, plan)
    site.unlink()
    run(run_module, plan)
    assert (parameter.read_text().strip(), boots_with(node)) == ("1", "1")
    assert not run(run_module, plan)["changed"]


def test_what_was_made_stricter_than_the_record_says_returns_with_the_role(
    node: Path, run_module: Run
) -> None:
    parameter, _ = place(node, "sysctl", KPTR, "0")
    (node / "sysctl.d" / "10-site.conf").write_text(f"{KPTR} = 2\n")
    before = {path: path.read_text() for path in (node / "sysctl.d").iterdir()}
    run(run_module, plan_of(node, "sysctl", KPTR, "1", KPTR))
    run(run_module, role_plan("os_hardening", [], atomic=True, sysctl_file=OURS))
    assert parameter.read_text().strip() == "0"
    assert {path: path.read_text() for path in (node / "sysctl.d").iterdir()} == before


def test_what_a_first_profile_found_as_it_wants_it_returns_after_a_stricter_one(
    node: Path, run_module: Run
) -> None:
    parameter, _ = place(node, "sysctl", KPTR, "1")
    for wanted in ("1", "2"):
        run(run_module, plan_of(node, "sysctl", KPTR, wanted, KPTR))
        assert parameter.read_text().strip() == wanted
    run(run_module, role_plan("os_hardening", [], atomic=True, sysctl_file=OURS))
    assert parameter.read_text().strip() == "1"


class Killed(BaseException):
    """The run ends there and then."""


DAYS = "/etc/login.defs:PASS_MAX_DAYS"


@pytest.mark.parametrize("end", [SettingError("no"), Killed()], ids=["undone", "cut off"])
@pytest.mark.parametrize("applied", [False, True])
def test_of_a_run_that_did_not_end_both_values_are_ours(
    tmp_path: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch, end: BaseException, applied: bool
) -> None:
    """Two such runs, then one that ends: with what was made before, with less, or taken back."""
    apply = Keyword.apply

    def ended(setting: Keyword) -> None:
        if applied:
            apply(setting)
        raise end

    for wanted, expected in (("365", "365"), ("400", "400"), (None, "99999")):
        root = tmp_path / str(wanted)
        root.mkdir()
        with monkeypatch.context() as patch:
            node = a_node(root, patch)
            file, key = place(node, "keyword", DAYS, "99999")
            run(run_module, plan_of(node, "keyword", DAYS, "365", key))
            for next_one in ("180", "90"):
                with patch.context() as broken:
                    broken.setattr(Keyword, "apply", ended)
                    with pytest.raises((AssertionError, Killed)):
                        run(run_module, plan_of(node, "keyword", DAYS, next_one, key))
            none = role_plan("os_hardening", [], atomic=True, sysctl_file=OURS)
            plan = plan_of(node, "keyword", DAYS, wanted, key) if wanted else none
            run(run_module, plan)
            assert value_of(file, "keyword") == expected, wanted
            assert not run(run_module, plan)["changed"]
            if wanted:
                (original,) = json.loads((node / "records/os_hardening.json").read_text())[
                    "originals"
                ].values()
                assert (original["spec"]["value"], original.keys()) == (expected, {"spec", "state"})
            run(run_module, none)
            assert value_of(file, "keyword") == "99999", wanted


@pytest.mark.parametrize("end", [SettingError("no"), Killed()], ids=["undone", "cut off"])
def test_what_a_site_makes_stricter_after_a_run_that_did_not_end_stays(
    tmp_path: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    """Through two more runs and a take-back; if it was undone, also where it is just what the run wanted."""

    def ended(_: object) -> None:
        raise end

    cases: tuple[tuple[str, str, str, str, str, str], ...] = (
        ("keyword", DAYS, "99999", "365", "180", "90"),
        ("sysctl", "vm.mmap_min_addr", "4096", "65536", "98304", "131072"),
    )
    for kind, key, before, made, next_one, site in cases:
        for value in (site, next_one) if isinstance(end, SettingError) else (site,):
            root = tmp_path / kind / value
            root.mkdir(parents=True)
            with monkeypatch.context() as patch:
                node = a_node(root, patch)
                file, name = place(node, kind, key, before)
                plan = plan_of(node, kind, key, made, name)
                run(run_module, plan)
                with patch.context() as broken:
                    broken.setattr(Keyword if kind == "keyword" else system.Sysctl, "apply", ended)
                    with pytest.raises((AssertionError, Killed)):
                        run(run_module, plan_of(node, kind, key, next_one, name))
                weaken(file, kind, made, value)
                for _ in range(2):
                    run(run_module, plan)
                    assert value_of(file, kind) == value, kind
                run(run_module, role_plan("os_hardening", [], atomic=True, sysctl_file=OURS))
                assert value_of(file, kind) == value, kind


def test_a_keyword_that_somebody_has_changed_since_is_not_taken_back(node: Path, run_module: Run) -> None:
    """Whichever is stricter, and beside ours, too: it is theirs by now."""
    for since in (["365", "90"], ["90", "365"], ["90"], ["400"], []):
        file, key = place(node, "keyword", DAYS, "99999")
        run(run_module, plan_of(node, "keyword", DAYS, "365", key))
        text = "".join(f"PASS_MAX_DAYS {value}\n" for value in since)
        file.write_text(text)
        back = run(run_module, role_plan("os_hardening", [], atomic=True, sysctl_file=OURS))
        assert (file.read_text(), back["actions"]) == (text, []), since


def test_the_last_choice_of_the_site_counts_in_each_run_and_returns_with_the_role(
    node: Path, run_module: Run
) -> None:
    """What the site has, one after the other; then the value that two runs give, and what returns."""
    table: tuple[tuple[list[str], str, str], ...] = (
        (["99999", "90 # policy 7"], "90", "PASS_MAX_DAYS 90 # policy 7"),
        # Behind ours, or behind what is the site's and has become one line.
        (["99999", "+90"], "90", "PASS_MAX_DAYS 90"),
        (["99999 90", "+180"], "90", "PASS_MAX_DAYS 90 PASS_MAX_DAYS 180"),
        # A weaker one takes a stricter one back.
        (["60 400", "400"], "365", "PASS_MAX_DAYS 400"),
        (["99999", "90", "400 # x"], "365", "PASS_MAX_DAYS 400 # x"),
    )
    wrong = []
    for texts, value, back in table:
        file, key = place(node, "keyword", DAYS, "99999")
        plan = plan_of(node, "keyword", DAYS, "365", key)
        for text in texts:
            values = text.removeprefix("+").split() if "#" not in text else [text]
            lines = "".join(f"PASS_MAX_DAYS {value}\n" for value in values)
            file.write_text(file.read_text() + lines if text[0] == "+" else lines)
            run(run_module, plan)
        again = run(run_module, plan)["changed"]
        found = file.read_text().split()
        run(run_module, role_plan("os_hardening", [], atomic=True, sysctl_file=OURS))
        if (again, found, file.read_text().split()) != (False, ["PASS_MAX_DAYS", value], back.split()):
            wrong.append((texts, again, found, file.read_text()))
    assert wrong == []


def test_a_stricter_or_weaker_value_than_the_recorded_one_is_not_ours(node: Path) -> None:
    for since in ("90", "400", "365"):
        _, key = place(node, "keyword", DAYS, since)
        path, _, word = key.rpartition(":")
        setting = Keyword(path, word, "365")
        setting.order = "at most"
        setting.recall({setting.key: {"spec": {**setting.spec, "value": "365"}, "state": []}})
        assert bool(setting.left_alone()) == (since != "365"), since


def test_a_line_counts_as_ours_where_a_record_has_no_value(node: Path) -> None:
    """As earlier versions have written it: what they made strict is lowered, and returns as a whole."""
    _, key = place(node, "keyword", DAYS, "90")
    path, _, word = key.rpartition(":")
    for former in ([], [{"path": path, "keyword": word, "value": "60"}]):
        setting = Keyword(path, word, "365")
        setting.order = "at most"
        before = [f"{word} 99999"]
        setting.recall({setting.key: {"spec": setting.spec, "former": former, "state": before}})
        assert (setting.value, setting.left_alone(), setting.since(setting.read())) == ("365", "", [])


def test_a_mount_point_that_was_not_there_before_is_ours_as_a_whole() -> None:
    setting = system.MountOptions("/x", ["nodev"])
    setting.recall({setting.key: {"spec": setting.spec, "state": None}})
    assert setting.since(["nodev", "noexec"]) is None


def test_what_a_run_before_one_that_was_cut_off_has_made_is_not_the_sites(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(node, "sysctl", KPTR, "2")
    monkeypatch.setattr(system.MountOptions, "read", lambda _: ["nodev", "noexec", "nosuid"])
    cases = (
        (system.Sysctl(KPTR, "1"), "1", {"value": "2"}, "0"),
        (system.MountOptions("/x", ["nodev"]), ["nodev", "nosuid"], {"options": ["noexec"]}, ["nosuid"]),
    )
    for setting, expected, former, state in cases:
        setting.order = str(order_of("sysctl", KPTR))
        setting.recall({setting.key: {"spec": setting.spec, "state": state, "former": [former]}})
        assert setting.value == expected, setting.key


def test_a_run_that_is_undone_brings_no_option_that_the_site_had_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remounted: list[list[str]] = []
    monkeypatch.setattr(system.MountOptions, "read", lambda _: ["nodev", "noexec", "nosuid"])
    monkeypatch.setattr(system.MountOptions, "_remount", lambda _, options: remounted.append(sorted(options)))
    setting = system.MountOptions("/x", ["nodev", "noexec", "nosuid"])
    made = {"path": "/x", "options": ["nodev", "noexec"]}
    setting.recall({setting.key: {"spec": setting.spec, "state": ["nosuid"], "former": [made]}})
    setting.restore(["nodev", "noexec"])
    assert remounted == [["nodev", "noexec"]]


def test_an_option_that_the_site_has_set_before_a_run_asked_for_it_is_the_sites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remounted: list[list[str]] = []
    monkeypatch.setattr(system.MountOptions, "_remount", lambda _, options: remounted.append(sorted(options)))
    setting = system.MountOptions("/x", ["nodev", "noexec", "nosuid"])
    made = {"path": "/x", "options": ["noexec"]}
    setting.recall({setting.key: {"spec": made, "state": ["nodev"]}})
    assert setting.since(["nodev", "noexec", "nosuid"]) == ["nodev", "nosuid"]
    # A first run that is undone takes away what it has asked for.
    setting.recall({})
    monkeypatch.setattr(system.MountOptions, "read", lambda _: ["nodev", "noexec", "nosuid"])
    setting.restore(["nodev"])
    assert remounted == [["nodev"]]


def test_a_default_of_the_distribution_is_nobodys_choice_until_a_file_says_so(
    node: Path, run_module: Run
) -> None:
    paranoid = "kernel.perf_event_paranoid"
    parameter, _ = place(node, "sysctl", paranoid, "3")
    plan = plan_of(node, "sysctl", paranoid, "2", paranoid)
    run(run_module, plan)
    assert parameter.read_text().strip() == "2"
    assert not run(run_module, plan)["changed"]
    (node / "sysctl.d" / "10-site.conf").write_text(f"{paranoid} = 3\n")
    run(run_module, plan)
    assert parameter.read_text().strip() == "3"


def test_a_pattern_keeps_the_stricter_value_of_one_interface(node: Path, run_module: Run) -> None:
    key = "net.ipv6.conf.*.accept_source_route"
    for name, value in (("eth0", "-1"), ("eth1", "1")):
        place(node, "sysctl", key.replace("*", name), value)
    run(run_module, plan_of(node, "sysctl", key, "0", key))
    lines = (node / "sysctl.d" / OURS).read_text().splitlines()
    assert (f"{key} = 0" in lines, f"{key.replace('*', 'eth0')} = -1" in lines) == (True, True)
    assert not any("eth1" in line for line in lines)


@pytest.mark.parametrize(
    ("interfaces", "site", "result", "state"),
    [
        ({"eth0": "1", "eth1": "2"}, "net.ipv4.conf.eth0.rp_filter = 1", "0", "pass"),
        ({"eth0": "1", "eth1": "0"}, "net/ipv4/conf/default/rp_filter = 1", "0", "fail"),
        ({"eth0.5": "1", "eth1": "2"}, "net.ipv4.conf.eth0/5.rp_filter = 1", "0", "pass"),
        ({"eth0": "1", "eth1": "2"}, "", "2", "pass"),
        ({"eth0": "0", "eth1": "2"}, "net.ipv4.conf.eth0.rp_filter = 1", "2", "pass"),
        ({"eth0": "0", "eth1": "2"}, "net.ipv4.conf.all.rp_filter = 1", "1", "pass"),
    ],
)
def test_the_loose_filter_for_all_does_not_loosen_a_strict_interface(
    node: Path, run_module: Run, interfaces: dict[str, str], site: str, result: str, state: str
) -> None:
    key = "net.ipv4.conf.all.rp_filter"
    parameter, _ = place(node, "sysctl", key, "0")
    for name, value in interfaces.items():
        own = node / "proc-sys/net/ipv4/conf" / name / "rp_filter"
        own.parent.mkdir()
        own.write_text(value)
    (node / "sysctl.d" / "10-site.conf").write_text(f"{site}\n")
    plan = plan_of(node, "sysctl", key, "2", key)
    run(run_module, plan)
    assert parameter.read_text().strip() == result
    assert f"{key} = {result}\n" in (node / "sysctl.d" / OURS).read_text()
    assert not run(run_module, plan)["changed"]
    assert state in {one["state"] for one in observe.observe(plan)}


def test_the_tree_of_an_image_keeps_what_its_files_say_and_nothing_of_the_machine_that_builds_it(
    node: Path, run_module: Run
) -> None:
    place(node, "sysctl", KPTR, "2")
    place(node, "sysctl", "kernel.dmesg_restrict", "2")
    (node / "sysctl.d" / "10-site.conf").write_text(f"{KPTR} = 2\n")
    contents: dict[str, Any] = {
        "content": f"# Managed by Temper.\n{KPTR} = 1\nkernel.dmesg_restrict = 1\n",
        "orders": {KPTR: "at least", "kernel.dmesg_restrict": "at least"},
    }
    file = item("file", str(node / "sysctl.d" / OURS), contents, "control")
    result = run(run_module, role_plan("os_hardening", [file], atomic=True, sysctl_file=OURS, live=False))
    assert (node / "sysctl.d" / OURS).read_text().splitlines()[1:] == [
        f"{KPTR} = 2",
        "kernel.dmesg_restrict = 1",
    ]
    assert f"kept: {KPTR} 2" in result["warnings"]


# ------------------------------------------------------------------------------------------ other kinds


def test_a_keyword_is_lowered_to_what_the_site_had(node: Path, run_module: Run) -> None:
    file, key = place(node, "keyword", "/etc/login.defs:UMASK", "027")
    order = order_of("keyword", "/etc/login.defs:UMASK")

    def plan(value: str) -> dict[str, Any]:
        return role_plan(
            "os_hardening", [{**item("keyword", key, value, "umask"), "order": order}], atomic=True
        )

    run(run_module, plan("077"))
    assert file.read_text() == "UMASK 077\n"
    run(run_module, plan("022"))
    assert file.read_text() == "UMASK 027\n"
    assert not run(run_module, plan("022"))["changed"]


@each(
    ("UMASK 077 # ours\n", "077"),
    ('UMASK "077"\n', "077"),
    ("UMASK 022\nUMASK 077\n", "077"),
    ("UMASK 072\n", "077"),
    ("UMASK\t\t022\n", "027"),
    ("UMASK -1\n", "027"),
    ("# nothing\n", "027"),
)
def test_what_a_file_says_of_a_keyword_in_other_words_counts(
    text: str, result: str, run_module: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_node(tmp_path, monkeypatch) / "login.defs"
    file.write_text(text)
    order = order_of("keyword", "/etc/login.defs:UMASK")
    items = [{**item("keyword", f"{file}:UMASK", "027", "umask"), "order": order}]
    plan = role_plan("os_hardening", items, atomic=True)
    run(run_module, plan)
    assert [line.split()[1] for line in file.read_text().splitlines() if line[0] != "#"] == [result]
    assert not run(run_module, plan)["changed"]


def test_the_program_that_auditd_is_to_run_stays_behind_its_exec(node: Path, run_module: Run) -> None:
    file = node / "auditd.conf"
    text = "space_left_action = exec /usr/local/sbin/page-operators\n"
    file.write_text(text)
    order = order_of("keyword", "/etc/audit/auditd.conf:space_left_action")
    wanted = {**item("keyword", f"{file}:space_left_action", "SYSLOG", "audit-space"), "order": order}
    result = run(run_module, role_plan("os_hardening", [wanted], atomic=True))
    assert file.read_text() == text
    assert not result["changed"]
    assert "kept: space_left_action" in str(result["warnings"])


@pytest.mark.skipif(os.geteuid() != 0, reason="the file belongs to root")
def test_a_file_that_only_the_group_root_reads_is_not_given_to_another_group(
    node: Path, run_module: Run
) -> None:
    shadow = node / "shadow"
    shadow.write_text("x")
    shadow.chmod(0o640)
    wanted = item("access", str(shadow), {"mode": "0640", "groups": ["shadow"]}, "one")
    assert not run(run_module, role_plan("os_hardening", [wanted], atomic=True))["changed"]


def mount(node: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> Callable[[], str]:
    """A mount point whose options are what mount was last asked for."""
    bin_folder, info = node / "bin", node / "mountinfo"
    executable(bin_folder / "mount", f'echo "1 0 0:1 / /data ${{2#remount,bind,}} - ext4 x rw" >{info}')
    info.write_text(f"1 0 0:1 / /data {options} - ext4 x rw\n")
    monkeypatch.setattr(system, "MOUNTINFO", info)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=":")
    return lambda: info.read_text().split()[5]


def options_plan(*options: str) -> dict[str, Any]:
    wanted = {"options": list(options), "bind": False}
    return role_plan(
        "os_hardening", [{**item("mount", "/data", wanted, "one"), "order": "contains"}], atomic=True
    )


@pytest.mark.component
def test_options_of_a_mount_point_stay_and_those_of_temper_go_with_the_profile(
    node: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_force = mount(node, monkeypatch, "ro,nosuid,relatime")
    result = run(run_module, options_plan("nodev", "noexec"))
    assert in_force() == "ro,nodev,nosuid,noexec"
    assert "kept: nosuid of /data" in result["warnings"]
    run(run_module, options_plan("nodev"))
    assert in_force() == "ro,nodev,nosuid,exec"
    assert not run(run_module, options_plan("nodev"))["changed"]
    run(run_module, role_plan("os_hardening", [], atomic=True))
    assert in_force() == "ro,dev,nosuid,exec"


@pytest.mark.component
def test_an_option_of_a_mount_point_that_the_site_adds_later_stays(
    node: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_force = mount(node, monkeypatch, "rw,relatime")
    run(run_module, options_plan("nodev"))
    (node / "mountinfo").write_text("1 0 0:1 / /data rw,noexec - ext4 x rw\n")
    assert run(run_module, options_plan("nodev"))["changed"]
    assert not run(run_module, options_plan("nodev"))["changed"]
    assert in_force() == "nodev,suid,noexec"
    run(run_module, role_plan("os_hardening", [], atomic=True))
    assert in_force() == "dev,suid,noexec"


@each("disabled", "masked")
def test_a_unit_that_the_site_has_switched_off_stays_off_where_that_is_stricter(enablement: str) -> None:
    found = {"LoadState": "loaded", "UnitFileState": enablement, "ActiveState": "inactive"}
    for name, stays in (("cron.service", True), ("auditd.service", False)):
        unit = system.Unit(name, on=True)
        unit.order = str(order_of("unit", name))
        unit.know({**found, "ConditionResult": "no", "ConditionTimestampMonotonic": "0"})
        assert (unit.settled(), bool(unit.kept())) == (stays, stays)
