"""The controls of the operating system's hardening: complete, honest about what they relax, documented."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.temper.settings import strictness

from temper.plan.convert import plain
from temper.plan.os_controls import (
    BANNER,
    BEFORE,
    CONDITIONS,
    MODPROBE_FILE,
    PROFILES,
    STRICTEST,
    WAIVER_FILE,
    Asker,
    Hardening,
    alone,
    concerns,
    demanded,
    distribution_of,
    hardening,
    lacking,
    settings_of,
    waiver_of,
    waiver_problems,
)
from temper.plan.os_systems import STIG, systems
from temper.plan.role_variables import role_variables
from temper.plan.strictness import order_of, orders
from temper.plan.variables import OsHardening, OsHardeningWaiver
from temper.plan.wanted import Kind
from tests.unit.control_values import SETTINGS
from tests.unit.each import each
from tests.unit.planning_roles.plans import planned
from tests.unit.tables import specs as role_specs
from tools import control_docs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from temper.plan.node_plan import PlannedSetting

AREAS = control_docs.controls()
CONTROLS: dict[str, Any] = {name: control for area in AREAS.values() for name, control in area.items()}
UPDATES = "/etc/apt/apt.conf.d/51temper-hardening"
BARE = OsHardening(
    state="present", profile="gpu", waivers=(), banner="", busy_ok=False, upgrade_kernels=False
)
each_control = each(*CONTROLS)
each_profile = each(*PROFILES)

# Recommendations of the benchmarks: section -> how many it has. 4 (firewall) and 5.1 (SSH) are other roles'.
BENCHMARKS = {
    "debian-12": """
        1.1.1:10 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:2 1.2.2:1 1.3.1:4
        1.4:2 1.5:5 1.6:6 1.7:10 2.1:22 2.2:6 2.3.1:1 2.3.2:2 2.3.3:3 2.4.1:8 2.4.2:1 3.1:3 3.2:4 3.3:11
        5.2:7 5.3.1:3 5.3.2:4 5.3.3.1:3 5.3.3.2:8 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3
        6.1.1:4 6.1.2.1:4 6.1.3:8 6.1.4:1 6.2.1:4 6.2.2:4 6.2.3:21 6.2.4:10 6.3:3 7.1:13 7.2:10
    """,
    "debian-13": """
        1.1.1:11 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:9 1.2.2:1 1.3.1:4
        1.4:2 1.5:13 1.6:6 1.7:11 2.1:23 2.2:6 2.3.1:1 2.3.2:2 2.3.3:3 2.4.1:9 2.4.2:1 3.1:3 3.2:6 3.3.1:18
        3.3.2:8 5.2:7 5.3.1:3 5.3.2:4 5.3.3.1:3 5.3.3.2:8 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3
        6.1.1.1:6 6.1.1.2:4 6.1.2:11 6.2.1:4 6.2.2:4 6.2.3:37 6.2.4:10 6.3:3 7.1:13 7.2:10
    """,
    "ubuntu-22.04": """
        1.1.1:8 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:2 1.2.2:1 1.3.1:4
        1.4:2 1.5:5 1.6:6 1.7:10 2.1:22 2.2:6 2.3.1:1 2.3.2:2 2.3.3:3 2.4.1:8 2.4.2:1 3.1:3 3.2:4 3.3:11
        5.2:7 5.3.1:3 5.3.2:4 5.3.3.1:3 5.3.3.2:8 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3
        6.1:3 6.2.1.1:6 6.2.1.2:4 6.2.2:1 6.3.1:4 6.3.2:4 6.3.3:21 6.3.4:10 7.1:13 7.2:10
    """,
    "ubuntu-24.04": """
        1.1.1:10 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:2 1.2.2:1 1.3.1:4
        1.4:2 1.5:5 1.6:6 1.7:10 2.1:22 2.2:6 2.3.1:1 2.3.2:2 2.3.3:3 2.4.1:8 2.4.2:1 3.1:3 3.2:4 3.3:11
        5.2:7 5.3.1:3 5.3.2:4 5.3.3.1:3 5.3.3.2:8 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3
        6.1.1:4 6.1.2.1:4 6.1.3:8 6.1.4:1 6.2.1:4 6.2.2:4 6.2.3:21 6.2.4:10 6.3:3 7.1:13 7.2:10
    """,
    "rhel-8": """
        1.1.1:11 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:5 1.2.2:1
        1.3.1:8 1.4:2 1.5:10 1.6:6 1.7:6 1.8:7 2.1:24 2.2:5 2.3:3 2.4.1:9 2.4.2:1 3.1:3 3.2:6 3.3.1:18
        3.3.2:8 5.2:7 5.3.1:2 5.3.2:5 5.3.3.1:3 5.3.3.2:7 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3 6.1:3
        6.2.1.1:6 6.2.1.2:4 6.2.2:8 6.2.3:1 6.3.1:4 6.3.2:4 6.3.3:22 6.3.4:10 7.1:13 7.2:9
    """,
    "rhel-9": """
        1.1.1:9 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:4 1.2.2:1
        1.3.1:8 1.4:2 1.5:4 1.6:7 1.7:6 1.8:10 2.1:22 2.2:5 2.3:3 2.4.1:8 2.4.2:1 3.1:3 3.2:4 3.3:11 5.2:7
        5.3.1:3 5.3.2:5 5.3.3.1:3 5.3.3.2:7 5.3.3.3:3 5.3.3.4:4 5.4.1:6 5.4.2:8 5.4.3:3 6.1:3 6.2.1:4
        6.2.2.1:4 6.2.3:8 6.2.4:1 6.3.1:4 6.3.2:4 6.3.3:21 6.3.4:10 7.1:14 7.2:9
    """,
    "rhel-10": """
        1.1.1:11 1.1.2.1:4 1.1.2.2:4 1.1.2.3:3 1.1.2.4:3 1.1.2.5:4 1.1.2.6:4 1.1.2.7:4 1.2.1:5 1.2.2:1
        1.3.1:8 1.4:2 1.5:10 1.6:4 1.7:6 1.8:6 2.1:22 2.2:4 2.3:3 2.4.1:9 2.4.2:1 3.1:3 3.2:6 3.3.1:18
        3.3.2:8 5.2:7 5.3.1:5 5.3.2.1:3 5.3.2.2:7 5.3.2.3:3 5.3.2.4:4 5.4.1:6 5.4.2:8 5.4.3:3 6.1:3 6.2.1:4
        6.2.2.1:4 6.2.3:8 6.2.4:1 6.3.1:4 6.3.2:4 6.3.3:37 6.3.4:10 7.1:13 7.2:9
    """,
}
# 6.1.2 of Debian 12's begins with a section of its own. Of SSH's, what its role leaves to this one or waives.
BEYOND = {
    "debian-12": {"6.1.2.2", "6.1.2.3", "6.1.2.4", "5.1.1", "5.1.4", "5.1.5", "5.1.18"},
    "debian-13": {"5.1.1", "5.1.4", "5.1.5", "5.1.19"},
    "ubuntu-22.04": set(),
    "ubuntu-24.04": {"6.1.2.2", "6.1.2.3", "6.1.2.4"},
    "rhel-8": {"5.1.2", "5.1.6", "5.1.7", "5.1.20"},
    "rhel-9": {"5.1.1", "5.1.7", "5.1.8", "5.1.17", "6.2.2.2", "6.2.2.3", "6.2.2.4"},
    "rhel-10": {"5.1.1", "5.1.4", "5.1.5", "5.1.17", "6.2.2.2", "6.2.2.3", "6.2.2.4"},
}
# Each profile with the one that it goes on from.
STEPS = [(weaker, stricter) for stricter, weaker in BEFORE.items() if weaker]
# The level of the benchmark that a profile is measured by: the default must account for all of it.
MEASURED_BY = {"gpu": 2, "cis-level1": 1, **dict.fromkeys(PROFILES[2:], 2)}


def expand(numbers: Iterable[str]) -> list[str]:
    """The numbers of a benchmark, written out: 1.1.1.1-3 is 1.1.1.1, 1.1.1.2 and 1.1.1.3."""
    result = []
    for entry in numbers:
        first, dash, last = entry.partition("-")
        stem, _, low = first.rpartition(".")
        result += [f"{stem}.{number}" for number in range(int(low), int(last if dash else low) + 1)]
    return result


def flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as one mapping; a list's entries become keys."""
    result: dict[str, Any] = {}
    for kind, entries in settings.items():
        if isinstance(entries, list):
            result |= {f"{kind} {entry}": True for entry in entries}
        else:
            result |= {f"{kind} {key}": value for key, value in entries.items()}
    return result


def strictest_of(profile: str) -> str:
    """Return the last of the profiles that go on from one another, among which this one is."""
    return profile if profile == STIG else STRICTEST


def plan(profile: Any = "gpu", *waivers: OsHardeningWaiver, options: Any = None, **wish: Any) -> Hardening:
    return hardening(CONTROLS, replace(BARE, profile=profile, waivers=waivers, **wish), options)


def of_kind(result: Hardening, kind: Kind) -> dict[str, Any]:
    """Key -> what is wanted."""
    return {setting.key: plain(setting.wanted) for setting in result.settings if setting.kind == kind}


def setting(result: Hardening, kind: Kind, key: str) -> PlannedSetting:
    return next(found for found in result.settings if (found.kind, found.key) == (kind, key))


@each(*BENCHMARKS)
def test_every_recommendation_of_the_benchmark_is_accounted_for_once(name: str) -> None:
    system, expected = systems()[name], set(BEYOND[name])
    assert system.numbers.keys() <= CONTROLS.keys()
    for entry in BENCHMARKS[name].split():
        section, count = entry.split(":")
        expected |= {f"{section}.{number}" for number in range(1, int(count) + 1)}
    named = [
        number for name, control in CONTROLS.items() for number in expand(system.numbers_of(name, control))
    ]
    assert sorted(set(named) ^ expected) == []
    assert sorted(number for number in set(named) if named.count(number) > 1) == []


@each_control
def test_a_control_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    control = CONTROLS[name]
    assert control["title"]
    assert control["why"]
    assert control["level"] in (0, 1, 2)
    if control["level"]:
        assert any(system.numbers_of(name, control) for system in systems().values())
    unknown = set(control) - {
        *("scap", "title", "level", "why", "profiles", "demand", "waivers", "option", "unverified"),
        *CONDITIONS,
        *("cis_debian12", "cis_debian13", "anssi", "lacking", "of"),
    }
    assert unknown == set()
    known = {*systems(), *map(distribution_of, systems())}
    for system, reason in control.get("lacking", {}).items():
        assert system in known
        assert reason.endswith("."), "a comma in braces ends a text that has no quotation marks"


@each_profile
@each_control
def test_a_profile_that_does_less_than_the_benchmark_has_a_waiver(name: str, profile: str) -> None:
    control = CONTROLS[name]
    strictest, made = (flat(settings_of(control, p)) for p in (strictest_of(profile), profile))
    demand = flat(control["demand"]) if "demand" in control else strictest
    less = not made or (made != strictest and any(made.get(key) != value for key, value in demand.items()))
    # What no level asks for, gpu has to account for all the same: it is the default.
    measured = profile == "gpu" or 1 <= control["level"] <= MEASURED_BY[profile]
    if less and measured:
        assert waiver_of(control, profile), f"{name}: {profile} does less than it should, without a reason"


@each_profile
@each_control
def test_a_waiver_waives_something(name: str, profile: str) -> None:
    control = CONTROLS[name]
    if waiver_of(control, profile):
        strictest = flat(settings_of(control, strictest_of(profile)))
        assert not strictest or flat(settings_of(control, profile)) != strictest


@each_control
def test_a_stricter_profile_sets_all_that_the_one_before_it_sets(name: str) -> None:
    control = CONTROLS[name]
    for weaker, stricter in STEPS:
        assert flat(settings_of(control, weaker)).keys() <= flat(settings_of(control, stricter)).keys()


@each(*sorted({(kind, key) for kind, key, _ in SETTINGS}))
def test_each_setting_has_an_order(kind: str, key: str) -> None:
    order = order_of(kind, key)
    assert order, f"data/strictness.yml has no order for {kind} {key}: say `exactly` where there is none"
    assert ">" in order or order.partition(",")[0] in strictness.NAMES


def test_no_order_is_for_a_setting_that_nobody_makes() -> None:
    made = {(kind, key) for kind, key, _ in SETTINGS}
    # The unit is made of all mounts; the neighbour table is os_tuning's.
    made.add(("unit", "temper-mount-options.service"))
    made |= {("sysctl", f"net.ipv4.neigh.default.gc_thresh{number}") for number in (1, 2, 3)}
    kinds = ("sysctl", "keyword", "unit")
    assert {(kind, key) for kind in kinds for key in orders()[kind]} <= made


def test_the_orders_agree_with_what_the_profiles_call_stricter() -> None:
    for control in CONTROLS.values():
        asker = Asker("", "", None)
        for weaker, stricter in STEPS:
            less = {one.key: one.wanted for one in alone(asker, settings_of(control, weaker))}
            for more in alone(asker, settings_of(control, stricter)):
                if more.key in less and more.kind in (Kind.SYSCTL, Kind.KEYWORD):
                    values = str(more.wanted), str(less[more.key])
                    assert strictness.as_strict(more.order, *values), more.key


def test_nothing_takes_modules_from_gpus_rdma_or_containers() -> None:
    needed = {
        "overlay",
        "squashfs",
        "vfat",
        "br_netfilter",
        "fuse",
        "nfs",
        "ib_core",
        "rdma_cm",
        "nvidia",
        "nvme",
        "xfs",
        "ext4",
    }
    blocked = {
        module for c in CONTROLS.values() for p in PROFILES for module in settings_of(c, p).get("modules", [])
    }
    assert blocked & needed == set()


@each_profile
def test_root_is_never_closed_by_wrong_passwords_and_auditd_stops_nothing(profile: str) -> None:
    result = plan(profile)
    everything = str(
        [plain(setting.wanted) for setting in result.settings if setting.key != WAIVER_FILE]
    ).lower()
    assert "even_deny_root" not in everything
    keywords = of_kind(result, Kind.KEYWORD)
    actions = {value for keyword, value in keywords.items() if keyword.endswith("_action")}
    assert actions <= {"SYSLOG", "ROTATE"}


@each_profile
def test_no_sudo_rule_is_touched(profile: str) -> None:
    files = of_kind(plan(profile), Kind.FILE)
    (wanted,) = (file for path, file in files.items() if path.startswith("/etc/sudoers"))
    lines = [line for line in wanted["content"].splitlines() if not line.startswith("#")]
    assert all(line.startswith("Defaults ") for line in lines)
    assert (wanted["mode"], wanted["validate"]) == ("0440", ["visudo", "-cf", "%s"])


@each_profile
def test_automatic_updates_leave_drivers_and_kernels_alone(profile: str) -> None:
    content = of_kind(plan(profile), Kind.FILE)[UPDATES]["content"]
    for name in ("nvidia-", "libnvidia-", "cuda-", "linux-image-", "linux-headers-"):
        assert f'"{name}";' in content
    assert 'Automatic-Reboot "false"' in content


def test_kernels_are_updated_where_the_operator_wants_it() -> None:
    content = of_kind(plan(upgrade_kernels=True), Kind.FILE)[UPDATES]["content"]
    assert "linux-image-" not in content
    assert '"nvidia-";' in content


def test_parameters_sort_before_those_of_tuning() -> None:
    paths = [path for path in of_kind(plan(), Kind.FILE) if path.startswith("/etc/sysctl.d/")]
    assert paths == ["/etc/sysctl.d/90-temper-hardening.conf"]
    assert paths[0] < "/etc/sysctl.d/95-temper-tuning.conf"
    # What sorts after it overrules it, on the node as at boot.
    assert planned("os_hardening").options.sysctl_file == "90-temper-hardening.conf"


def rule_files(system: str = "debian-13") -> dict[str, Any]:
    files = of_kind(plan("cis-level2", options={"system": system}), Kind.FILE)
    return {path: file for path, file in files.items() if "/audit/rules.d/" in path}


def test_settings_of_auditd_sort_after_debians_own_which_make_everybody_wait() -> None:
    setting = re.compile("^-[bf] ", re.MULTILINE)
    paths = [path for path, file in rule_files().items() if setting.search(file["content"])]
    assert paths
    assert all(path > "/etc/audit/rules.d/audit.rules" for path in paths)


def test_a_rule_that_cannot_be_loaded_keeps_no_other_rule_of_auditd_out() -> None:
    files = rule_files()
    assert "-c" in files[min(files)]["content"].splitlines()


def test_every_call_that_auditd_records_is_recorded_of_32_bit_programs_too() -> None:
    """Their calls have numbers of their own, which no rule for b64 sees."""
    calls: dict[str, set[tuple[str, ...]]] = {"b32": set(), "b64": set()}
    for file in rule_files().values():
        for bits, names, conditions in re.findall(r"-F arch=(b\d\d) -S (\S+) (.*)", file["content"]):
            assert bits == "b64" or file["machine"] == "x86_64"
            calls[bits] |= {(name, conditions) for name in names.split(",")}
    assert calls["b64"]
    assert calls["b64"] - calls["b32"] == set()


def test_only_a_system_whose_auditctl_knows_a_call_gets_its_rule() -> None:
    assert {p for p, f in rule_files().items() if "fchmodat2" in f["content"]}
    assert not {p for p, f in rule_files("debian-12").items() if "fchmodat2" in f["content"]}


@each_profile
def test_no_path_parameter_or_unit_is_set_twice(profile: str) -> None:
    keys = [(setting.kind, setting.key) for setting in plan(profile).settings]
    assert [key for key in set(keys) if keys.count(key) > 1] == []


def test_two_controls_that_differ_on_one_setting_are_an_error_in_the_data() -> None:
    one, other = ({"title": "x", "profiles": {"gpu": {"sysctls": {"a.b": value}}}} for value in (1, 2))
    with pytest.raises(ValueError, match=r"other and another control differ on sysctl a\.b"):
        hardening({"one": one, "other": other}, BARE)


def test_a_setting_names_its_controls_and_why_it_does_less() -> None:
    result = plan()
    (title, ids) = ("A process may trace only its own children", ("ptrace-scope",))
    found = setting(result, Kind.SYSCTL, "kernel.yama.ptrace_scope")
    assert (found.why, found.controls) == (title, ids)
    assert "py-spy" in (found.waiver or "")
    assert setting(result, Kind.SYSCTL, "kernel.randomize_va_space").waiver is None
    shared = setting(result, Kind.FILE, "/etc/modprobe.d/temper-hardening.conf")
    assert shared.controls == ("unused-filesystems", "firewire", "rare-protocols")


def test_options_of_a_mount_point_add_up_over_controls() -> None:
    mounts = of_kind(plan("cis-level2"), Kind.MOUNT)
    assert mounts["/tmp"] == {"options": ["nodev", "noexec", "nosuid"], "bind": True}
    assert mounts["/dev/shm"]["options"] == ["nodev", "noexec", "nosuid"]
    assert all(
        "noexec" not in wanted["options"]
        for path, wanted in of_kind(plan(), Kind.MOUNT).items()
        if not path.startswith(("/var/log", "/boot"))
    )


def test_a_waiver_of_the_operator_takes_a_control_out_and_is_listed() -> None:
    result = plan("gpu", OsHardeningWaiver("core-dumps", "We debug."))
    assert "fs.suid_dumpable" not in of_kind(result, Kind.SYSCTL)
    entry = next(waiver for waiver in result.waived if waiver.id == "core-dumps")
    assert (entry.reason, entry.by) == ("We debug.", "the operator")
    waivers = of_kind(result, Kind.FILE)[WAIVER_FILE]["content"]
    assert "core-dumps: No core dumps (CIS Debian 12 1.5.3" in waivers
    assert "waived by the operator: We debug." in waivers


@each(
    ({"id": "core-dump", "reason": "x"}, "there is no control 'core-dump'; did you mean core-dumps?"),
    ({"id": "zzz", "reason": "x"}, "there is no control 'zzz'; docs/reference/os_hardening.md lists them"),
    ({"id": "core-dumps", "reason": " "}, "entry 1 (core-dumps): expected a reason, found none"),
    ({"id": "core-dumps"}, "expected a reason, found none"),
)
def test_a_bad_waiver_is_a_problem(waiver: dict[str, str], problem: str) -> None:
    (found,) = waiver_problems(CONTROLS, [waiver])
    assert problem in found
    if "reason" in waiver:
        assert role_variables({"os_hardening_waivers": [waiver]}, role_specs())["problems"]


@each(("Keep out.", "Keep out."), ("", BANNER))
def test_the_console_shows_the_operators_banner_or_our_own(given: str, shown: str) -> None:
    files = of_kind(plan(banner=given), Kind.FILE)
    assert files["/etc/issue"]["content"] == files["/etc/issue.net"]["content"] == f"{shown}\n"


def test_what_the_role_of_sshd_waives_is_listed_with_the_rest() -> None:
    waived = {waiver.id: waiver.reason for waiver in plan().waived}
    assert "MaxStartups is 30:30:100" in waived["sshd-max-startups"]
    assert {"sshd-access", "sshd-banner"} <= set(waived)


@each(
    ({"ssh_hardening_access": ["ops"]}, "sshd-access"),
    ({"ssh_hardening_banner": "Keep out."}, "sshd-banner"),
)
def test_what_the_operator_sets_for_sshd_is_waived_no_longer(option: dict[str, Any], control: str) -> None:
    assert control not in [waiver.id for waiver in plan(options=option).waived]


@each("cis-level1", "cis-level2")
def test_a_node_that_forwards_for_others_goes_on_to(profile: str) -> None:
    strict = {"net.ipv4.ip_forward": "0"} if profile == "cis-level2" else {}
    strict["net.ipv4.conf.all.rp_filter"] = "1"
    own, router = plan(profile), plan(profile, options={"forwards": True})
    assert of_kind(own, Kind.SYSCTL).items() >= strict.items()
    assert not of_kind(router, Kind.SYSCTL).items() & strict.items()
    reasons = {waiver.id: waiver for waiver in router.waived}
    assert "forwards packets" in reasons["ip-forwarding"].reason
    assert "profile" not in reasons["reverse-path"].by


def test_a_node_whose_answers_take_another_interface_keeps_the_loose_filter() -> None:
    there = plan("cis-level2", options={"answers_elsewhere": True})
    assert of_kind(there, Kind.SYSCTL)["net.ipv4.conf.all.rp_filter"] == "2"
    assert of_kind(there, Kind.SYSCTL)["net.ipv4.ip_forward"] == "0"
    reasons = {waiver.id: waiver for waiver in there.waived}
    assert reasons["reverse-path"].by == "what the node does"
    assert "ip-forwarding" not in reasons


def test_a_node_with_a_usb_disk_boots_from_it_again() -> None:
    own, there = plan("cis-level1"), plan("cis-level1", options={"usb_disk": True})
    texts = [of_kind(one, Kind.FILE)[MODPROBE_FILE]["content"] for one in (own, there)]
    assert ["usb-storage" in text for text in texts] == [True, False]
    assert "usb-storage" in {waiver.id for waiver in there.waived if waiver.by == "what the node does"}


def test_numbers_of_a_benchmark_are_written_out() -> None:
    assert expand(["1.1.1.9-11", "2.3"]) == ["1.1.1.9", "1.1.1.10", "1.1.1.11", "2.3"]


def test_unknown_profile_is_refused_with_a_sentence() -> None:
    (problem,) = role_variables({"os_hardening_profile": "cis-level-1"}, role_specs())["problems"]
    assert problem.startswith("os_hardening_profile: ")
    assert f"must be one of: {', '.join(PROFILES)}, got: cis-level-1" in problem


@each_profile
def test_who_gets_a_rule_for_sudo_has_sudo_to_check_it(profile: str) -> None:
    for name in CONTROLS:
        result = plan(profile, *(OsHardeningWaiver(other, "x") for other in CONTROLS if other != name))
        if any(path.startswith("/etc/sudoers.d/") for path in of_kind(result, Kind.FILE)):
            assert of_kind(result, Kind.PACKAGE_CHOICE)["sudo"] == {"any": ["sudo", "sudo-ldap", "sudo-rs"]}


def test_rules_of_auditd_name_no_call_that_arm64_lacks() -> None:
    """It stops at the first one that it does not know; asm-generic/unistd.h has none of these."""
    missing = {
        "creat",
        "open",
        "chmod",
        "chown",
        "lchown",
        "unlink",
        "rename",
        "link",
        "symlink",
        "mkdir",
        "rmdir",
    }
    rules = rule_files()
    assert any(file.get("machine") == "x86_64" for file in rules.values())
    for file in rules.values():
        if "machine" not in file:
            words = re.findall(r"-S (\S+)", file["content"])
            assert {call for word in words for call in word.split(",")} & missing == set()


def test_a_system_has_its_own_values_numbers_and_what_it_lacks() -> None:
    """What is wanted of an older, a newer and an unknown system."""
    login = "/etc/login.defs:"
    debian, jammy, resolute, unknown = (
        plan("cis-level1", options={"system": name})
        for name in ("debian-13", "ubuntu-22.04", "ubuntu-26.04", "plan9-4")
    )
    keywords = of_kind(debian, Kind.KEYWORD)
    old = of_kind(jammy, Kind.KEYWORD)
    assert (keywords[f"{login}ENCRYPT_METHOD"], old[f"{login}ENCRYPT_METHOD"]) == ("YESCRYPT", "SHA512")
    assert keywords.keys() - old.keys() == {f"{login}YESCRYPT_COST_FACTOR"}
    assert of_kind(unknown, Kind.KEYWORD) == keywords
    assert "Allowed-Origins" not in of_kind(debian, Kind.FILE)[UPDATES]["content"]
    assert '"${distro_id}:${distro_codename}-security";' in of_kind(jammy, Kind.FILE)[UPDATES]["content"]
    sudo = "/etc/sudoers.d/temper-hardening"
    assert "logfile" in of_kind(jammy, Kind.FILE)[sudo]["content"]
    assert "logfile" not in of_kind(resolute, Kind.FILE)[sudo]["content"]
    (one,) = (one for one in resolute.waived if one.id == "sudo-log")
    assert (one.by, one.references) == ("ubuntu-26.04", "CIS Ubuntu 24.04 5.2.3")
    assert {one.references for one in jammy.waived if "Debian" in one.references} == set()


@each("rhel-8", "rhel-9", "rhel-10")
def test_enterprise_linux_has_its_own_programs_and_nothing_of_debians(system: str) -> None:
    result = plan("anssi-high", options={"system": system})
    debians = ("/usr/share/pam-configs", "/etc/apt", "unattended", "apparmor", "common-")
    names = [one.key for one in result.settings]
    assert [name for name in names if any(word in name for word in debians)] == []
    packages = of_kind(result, Kind.PACKAGE_CHOICE)
    assert packages.keys() >= {"audit", "chrony", "libpwquality", "authselect"}
    units = of_kind(result, Kind.UNIT)
    assert units.keys() >= {"auditd.service", "chronyd.service", "crond.service"}
    assert of_kind(result, Kind.AUTHSELECT) == {"with-faillock": True}
    assert of_kind(result, Kind.ACCESS)["/etc/shadow"]["mode"] == "0000"
    keywords = of_kind(result, Kind.KEYWORD)
    assert keywords["/etc/login.defs:ENCRYPT_METHOD"] == ("YESCRYPT" if system == "rhel-10" else "SHA512")


@each(*[(profile, system) for profile in PROFILES for system in systems()])
def test_each_text_of_a_control_is_known_on_each_system(profile: str, system: str) -> None:
    found = plan(profile, options={"system": system}).settings
    assert not [one for one in found if re.search(r"(?m)^\s*@\w+@$", str(plain(one.wanted)))]


def test_a_control_of_one_distribution_is_no_waiver_of_another() -> None:
    ids = {
        name: {one.id for one in plan(options={"system": name}).waived}
        for name in ("debian-13", "ubuntu-24.04")
    }
    own = {name for name, control in CONTROLS.items() if control.get("of") == ["ubuntu"]}
    assert own
    assert (ids["debian-13"] & own, ids["ubuntu-24.04"] & own) == (set(), own)


def test_a_system_is_measured_by_what_the_strictest_profile_sets_there() -> None:
    strictest = replace(BARE, profile="anssi-high", upgrade_kernels=True)
    compared, wrong = set(), []
    for system in systems():
        made = hardening(CONTROLS, strictest, {"system": system}).settings
        wanted = {(one.kind.value, one.key): plain(one.wanted) for one in made}
        names = [
            name
            for name, control in CONTROLS.items()
            if "demand" not in control and concerns(control, system) and not lacking(control, system)
        ]
        for one in demanded(CONTROLS, names, system):
            place = one["kind"], one["key"]
            # Modules and lines have a file together, and options of a mount point are of several controls.
            if one["kind"] in ("module", "lines", "separate", "mount"):
                continue
            compared.add((system, one["controls"][0]))
            found, asked = wanted.get(place, "not there"), one["wanted"]
            if one["kind"] == "file" and isinstance(found, dict):
                # A file has the orders of all parameters, of its own control or not.
                found, asked = found["content"], asked["content"]
            if found != asked:
                wrong.append((system, *place, asked, found))
    assert not wrong
    assert ("ubuntu-22.04", "password-hash") in compared


@each(("ubuntu-22.04", "SHA512"), ("debian-13", "YESCRYPT"), (None, "YESCRYPT"))
def test_a_benchmark_asks_for_a_hash_that_the_system_knows(system: str | None, method: str) -> None:
    asked = {one["key"]: one["wanted"] for one in demanded(CONTROLS, ["password-hash"], system)}
    assert asked["/etc/login.defs:ENCRYPT_METHOD"] == method
    assert ("/etc/login.defs:YESCRYPT_COST_FACTOR" in asked) == (method == "YESCRYPT")
