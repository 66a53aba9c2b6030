"""Each control beside four values of a site: stricter, equal, weaker, foreign; or where its table is."""

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import units
from ansible.module_utils.temper.access.sshd_strictness import COMPARED, ORDERS
from ansible.module_utils.temper.settings import files, system
from ansible.module_utils.temper.settings.kinds import file
from ansible.module_utils.temper.settings.modprobe import installs

from temper.plan.os_controls import MODPROBE_FILE, PROFILES, hardening, load_controls, settings_of
from temper.plan.strictness import order_of
from temper.plan.variables import OsHardening
from temper.plan.wanted import Kind
from tests.unit.control_values import SETTINGS
from tests.unit.each import each
from tests.unit.harden.test_sshd_site import KEYWORDS
from tests.unit.planning_roles.plans import trixie, whole_plan

CASES = ("stricter", "equal", "weaker", "foreign")
CONTROLS = load_controls(Path(__file__).resolve().parents[3] / "data" / "os_controls")
#: The tables of the other kinds, by the file that has them.
ELSEWHERE = {
    "sysctl": "test_strict_sites.py",
    "keyword": "test_strict_sites.py, test_pam_lines.py",
    "file": "test_shared_files.py, test_pam_lines.py",
    "sshd": "harden/test_sshd_site.py",
    "authselect": "test_enterprise_linux.py",
}
#: What a control asks for and no site can have in another way.
WITHOUT_VALUES = {"package_choice"}
HERE = {"pam", "access", "mount", "unit"}


def of_kind(kind: str) -> list[tuple[str, Any]]:
    return [(key, wanted) for one, key, wanted in SETTINGS if one == kind]


def test_every_kind_of_a_control_has_a_table() -> None:
    wish = OsHardening(
        state="present", profile="cis-level2", waivers=(), banner="", busy_ok=False, upgrade_kernels=False
    )
    planned = {str(setting.kind.value) for setting in hardening(CONTROLS, wish).settings}
    assert planned | {kind for kind, _, _ in SETTINGS} == (HERE | {*ELSEWHERE} | WITHOUT_VALUES) - {"sshd"}


def test_every_keyword_of_sshd_with_an_order_has_a_row() -> None:
    (role,) = [one for one in whole_plan(trixie).roles if one.role == "ssh_hardening"]
    kinds = (Kind.SSHD, Kind.SSHD_ALGORITHM)
    made = {setting.key.lower() for setting in role.settings if setting.kind in kinds}
    rows = {keyword.lower() for keyword, *_ in KEYWORDS}
    assert sorted(made & (ORDERS.keys() | COMPARED) - rows) == []


# ---------------------------------------------------------------- profiles of PAM

AUTHFAIL, PREAUTH = "auth [default=die] pam_faillock.so authfail", "auth requisite pam_faillock.so preauth"
#: Profile -> case -> the line of a site, and whether ours is to be put in.
STACKS: dict[str, dict[str, tuple[str, bool]]] = {
    "temper-umask": {
        "stricter": ("session required pam_umask.so umask=077", False),
        "equal": ("session optional pam_umask.so", False),
        "weaker": ("session required pam_unix.so", True),
        "foreign": ("# session optional pam_umask.so", True),
    },
    "pwquality": {
        "stricter": ("password required pam_pwquality.so minlen=20", False),
        "equal": ("password requisite pam_pwquality.so retry=3", False),
        "weaker": ("password optional pam_pwquality.so", True),
        "foreign": ("password requisite pam_cracklib.so", True),
    },
    "temper-faillock": {
        "stricter": (f"{AUTHFAIL} deny=3 even_deny_root", False),
        "equal": (AUTHFAIL, False),
        "weaker": (PREAUTH, True),
        "foreign": (f"auth optional pam_echo.so file=pam_faillock.so # {AUTHFAIL}", True),
    },
    "temper-faillock-notify": {
        "stricter": (f"{PREAUTH} silent deny=3", False),
        "equal": (PREAUTH, False),
        "weaker": ("auth [success=1 default=ignore] pam_faillock.so preauth", True),
        "foreign": ("auth sufficient pam_tally2.so preauth", True),
    },
}


def test_profiles_of_pam_are_on_where_a_line_is_as_strict(pam: Path) -> None:
    violations = []
    for name, wanted in of_kind("pam"):
        for case in CASES:
            line, due = STACKS[name][case]
            (pam / wanted["stack"]).write_text(f"{line}\n")
            profile = files.PamProfile(name, **wanted)
            if profile.settled() == due:
                violations.append((name, case, line))
    assert violations == []
    assert {name for name, _ in of_kind("pam")} == STACKS.keys()


# ---------------------------------------------------------------- permissions


@pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")
def test_permissions_are_only_taken_away(tmp_path: Path) -> None:
    violations = []
    path = tmp_path / "x"
    path.write_text("")
    for key, wanted in of_kind("access"):
        mode = int(wanted["mode"], 8)
        # More for everybody; another owner, who could give himself what he likes.
        cases = {"stricter": mode & 0o400, "equal": mode, "weaker": mode | 0o007, "foreign": mode}
        for case in CASES:
            os.chown(path, 12345 if case == "foreign" else 0, 0)
            path.chmod(cases[case])
            setting = files.Access(str(path), **wanted)
            settled = setting.settled()
            if not settled:
                setting.apply()
            status = path.stat()
            result = cases[case] & mode
            kept = (stat.S_IMODE(status.st_mode), status.st_uid) == (result, 0)
            # A mode that gives everybody all has nothing weaker than itself.
            due = case == "foreign" or cases[case] & ~mode != 0
            if settled == due or not kept or not files.Access(str(path), **wanted).settled():
                violations.append((key, case, oct(status.st_mode)))
    assert violations == []


# ---------------------------------------------------------------- kernel modules


def modprobe(root: Path, module: str) -> str:
    """What the program itself would do."""
    command = ["modprobe", "--dirname", str(root), "--set-version", "1.0"]
    command += ["--config", str(root / "etc/modprobe.d"), "--dry-run", "--verbose", module]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("modprobe"), reason="modprobe is the judge")
def test_a_module_that_a_site_has_loaded_in_its_own_way_is_a_fault(tmp_path: Path) -> None:
    every = [settings_of(control, profile) for control in CONTROLS.values() for profile in PROFILES]
    names = sorted({name for settings in every for name in settings.get("modules", [])})
    content = "".join(f"install {name} /bin/false\nblacklist {name}\n" for name in names)
    folder = tmp_path / "etc/modprobe.d"
    folder.mkdir(parents=True)
    kernel = tmp_path / "lib/modules/1.0"
    kernel.mkdir(parents=True)
    (kernel / "modules.dep").write_text("".join(f"{name}.ko:\n" for name in names))
    for name in names:
        (kernel / f"{name}.ko").write_text("")
    subprocess.run(["depmod", "--basedir", str(tmp_path), "1.0"], capture_output=True, check=False)
    ours = str(folder / Path(MODPROBE_FILE).name)
    lines = {
        "stricter": "install {} /bin/false",  # none is
        "equal": "install {} /bin/true",
        "weaker": "install {} /sbin/modprobe --ignore-install {}",
        "foreign": "install {} /usr/local/bin/load",
    }
    violations = []
    for name in names:
        for case in CASES:
            for place in ("00-site.conf", "zz-site.conf"):
                (folder / place).write_text(f"# the site's\n{lines[case].format(name, name)}\n")
                (setting,) = file(ours, {"content": content, "orders": {"every": "loads nothing"}}, {})
                setting.apply()
                fault = setting.fault()
                real = "false" not in (said := modprobe(tmp_path, name)) and "true" not in said
                named = fault is not None and f"{folder}/{place}:2" in fault.reason
                if named != real or real != (case in CASES[2:] and place < "temper"):
                    violations.append((name, case, place, said, fault))
                (folder / place).unlink()
    assert violations == []


@each(
    ("/bin/true", True),
    ("/usr/bin/false # never", True),
    ("true", True),
    ("/sbin/nologin", True),
    (":", True),
    ('"/bin/false"', True),
    ("'/bin/true' x", True),
    ("/bin/false>/dev/null", True),
    ("/bin/true > /dev/null 2>&1", True),
    ("/bin/true>/dev/null;insmod x.ko", False),
    ("/sbin/modprobe;/bin/true", False),
    ("/bin/true >/dev/null & insmod x.ko", False),
    ("/bin/true; insmod x.ko", False),
    ("/bin/false || /sbin/modprobe -i x", False),
    ("/bin/true $(insmod x.ko)", False),
    ("/sbin/modprobe -i x", False),
)
def test_a_command_loads_nothing_where_it_is_nothing_else(command: str, nothing: bool) -> None:
    (found,) = installs(f"install usb-storage {command}\n", "x")
    assert (found.module, found.loads_nothing) == ("usb_storage", nothing)


def test_modules_of_a_pattern_and_of_other_folders_count_in_the_order_of_names(
    tmp_path: Path, pam: Path
) -> None:
    own = tmp_path / "modprobe.d/temper-hardening.conf"
    own.parent.mkdir()
    vendor = pam.parent / "lib/modprobe.d"
    vendor.mkdir(parents=True)
    (vendor / "a.conf").write_text("install usb[-_]* /sbin/modprobe -i usb-storage\n")
    wanted = {"content": "install usb-storage /bin/false\n", "orders": {"every": "loads nothing"}}
    (setting,) = file(str(own), wanted, {})
    assert f"{vendor}/a.conf:1" in str(setting.fault())
    assert f"{vendor}/a.conf:1" in setting.warnings()[0]
    # A file of /etc takes the place of that of its name.
    (own.parent / "a.conf").write_text("")
    assert setting.fault() is None


def test_a_file_of_modprobe_that_cannot_be_read_is_an_obstacle(tmp_path: Path, pam: Path) -> None:
    own = tmp_path / "modprobe.d/temper-hardening.conf"
    (own.parent / "a.conf").mkdir(parents=True)
    wanted = {"content": "install usb-storage /bin/false\n", "orders": {"every": "loads nothing"}}
    (setting,) = file(str(own), wanted, {})
    assert str(own.parent / "a.conf") in str(setting.obstacle())
    assert not setting.settled()
    assert setting.warnings() == []


# ---------------------------------------------------------------- mount points


def test_options_of_a_mount_point_only_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    violations = []
    for key, wanted in of_kind("mount"):
        options = set(wanted["options"])
        cases = {
            "stricter": {*options, "nosuid", "nodev", "noexec", "ro"},
            "equal": options,
            "weaker": {*list(options)[1:]},
            "foreign": {"sync", "lazytime"},
        }
        for case in CASES:
            monkeypatch.setattr(system, "MOUNTINFO", tmp_path / "mountinfo")
            has = ",".join(sorted({"relatime", *cases[case]}))
            (tmp_path / "mountinfo").write_text(f"1 0 0:1 / {key} {has} - ext4 x rw\n")
            setting = system.MountOptions(key, **wanted)
            keeps = cases[case] & system.MOUNT_OPPOSITES.keys() <= {*setting.value}
            if setting.settled() == (case in CASES[2:]) or not keeps or not options <= {*setting.value}:
                violations.append((key, case))
            if bool(setting.kept()) != (case == "stricter" and len(options) < len(system.MOUNT_OPPOSITES)):
                violations.append((key, f"{case}: kept {setting.kept()}"))
    assert violations == []


# ---------------------------------------------------------------- units


def unit(
    key: str, wanted: dict[str, Any], enablement: str, activity: str, load: str = "loaded"
) -> system.Unit:
    found = system.Unit(key, **{**wanted, "unless": []})
    found.order = str(order_of("unit", key))
    state = {"LoadState": load, "UnitFileState": enablement, "ActiveState": activity}
    found.know({**state, "ConditionResult": "yes", "ConditionTimestampMonotonic": "1"})
    return found


def test_units_run_or_do_not_as_is_stricter() -> None:
    violations = []
    for key, wanted in of_kind("unit"):
        off_is_stricter = str(order_of("unit", key)).startswith("disabled")
        on, off = unit(key, wanted, "enabled", "active"), unit(key, wanted, "disabled", "inactive")
        masked = unit(key, wanted, "masked", "inactive", "masked")
        absent = unit(key, wanted, "", "inactive", "not-found")
        # Where the wanted state is the stricter one, a site can only be as strict, or weaker.
        settled = {
            "stricter": (off.settled(), off_is_stricter),
            "equal": ((on if wanted["on"] else off).settled(), True),
            "weaker": (on.settled() if not wanted["on"] else off.settled(), off_is_stricter and wanted["on"]),
            "foreign": (masked.settled() or bool(masked.obstacle()), True),
            "absent": (absent.settled(), not wanted["made_here"]),
        }
        violations += [(key, case) for case, (found, expected) in settled.items() if found != expected]
        if bool(masked.obstacle()) != (wanted["on"] and not off_is_stricter):
            violations.append((key, "masked"))
        if bool(off.kept()) != (wanted["on"] and off_is_stricter):
            violations.append((key, "kept"))
    assert violations == []


@each(True, False)
def test_a_timer_whose_service_is_masked_does_nothing(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    load = "masked" if masked else "loaded"
    monkeypatch.setattr(units, "unit_states", lambda names: {names[0]: {"LoadState": load}})
    timer = unit("apt-daily-upgrade.timer", {"on": True}, "enabled", "active")
    fault = timer.fault()
    assert timer.settled()
    assert (fault is not None) == masked == bool(timer.warnings())
    if fault:
        assert fault.repair == [["unmask", "apt-daily-upgrade.service"]]
