"""What is settled and still not in force, or will not be after the next boot: found, named, and repaired."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.access import firewall, sshd
from ansible.module_utils.temper.driver import gpu_settings, gpus
from ansible.module_utils.temper.engines import daemon_json
from ansible.module_utils.temper.settings import observe, system
from ansible.module_utils.temper.settings.base import Difference, Fault, RefusedError, Setting

from temper.compliance.repairs import command_of
from tests.unit.each import each


class Silent(Setting):
    """Differs, and has no text that shows it."""

    key = "driver:nvidia"

    def settled(self) -> bool:
        return False

    def change(self) -> list[Difference]:
        return []


class Made(Silent):
    """Settled, but a daemon has not read it."""

    def settled(self) -> bool:
        return True

    def fault(self) -> Fault | None:
        return Fault("a daemon runs with what was before", ["systemctl reload it"])


class Refused(Silent):
    """Somebody else's work is in the way."""

    def settled(self) -> bool:
        raise RefusedError("somebody else's", ["rm it"])


def test_no_failure_is_without_a_word() -> None:
    assert observe.observed(Silent(), [], {})["reason"]


def test_a_setting_that_is_made_and_not_in_force_fails_with_its_repair() -> None:
    found = observe.observed(Made(), ["one"], {})
    assert (found["state"], found["reason"]) == ("fail", "a daemon runs with what was before")
    assert found["repair"] == ["systemctl reload it"]


def test_a_refusal_may_say_what_takes_the_obstacle_away() -> None:
    assert observe.observed(Refused(), [], {})["repair"] == ["rm it"]


# ------------------------------------------------------------------------ sshd


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of an hour ago in three files, and an sshd that has read it since: this process."""
    folder = tmp_path / "ssh"
    (folder / "sshd_config.d").mkdir(parents=True)
    (folder / "sshd_config").write_text(f"Include {folder}/sshd_config.d/*.conf\nPort 22\n")
    (folder / "sshd_config.d" / "50-cloud.conf").write_text(f"Include {folder}/extra\n")
    (folder / "extra").write_text("UseDNS no\n")
    hour_ago = time.time() - 3600
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (hour_ago, hour_ago))
    (tmp_path / "sshd.pid").write_text(f"{os.getpid()}\n")
    os.utime(tmp_path / "sshd.pid", (hour_ago + 60, hour_ago + 60))
    monkeypatch.setattr(sshd, "is_active", lambda _: False)
    monkeypatch.setattr(sshd, "_is_sshd", lambda process, _: process == os.getpid())
    real = sshd.configuration_files
    monkeypatch.setattr(sshd, "configuration_files", lambda: real(folder / "sshd_config"))
    return folder


def unread(ssh: Path) -> str | None:
    found = sshd.unread_changes({"pidfile": [str(ssh.parent / "sshd.pid")]})
    return found[0].rpartition("/")[2] if found else None


def test_an_sshd_that_has_read_all_has_nothing_left(ssh: Path) -> None:
    assert unread(ssh) is None


@pytest.mark.parametrize("name", ["sshd_config", "sshd_config.d/50-cloud.conf", "extra"])
def test_a_file_that_has_changed_since_is_named(ssh: Path, name: str) -> None:
    (ssh / name).write_text("PermitRootLogin yes\n" + (ssh / name).read_text())
    assert unread(ssh) == name.rpartition("/")[2]


def test_a_file_that_was_taken_away_since_is_found_by_its_folder(ssh: Path) -> None:
    (ssh / "sshd_config.d" / "50-cloud.conf").unlink()
    assert unread(ssh) == "sshd_config.d"


def test_a_pid_file_that_names_another_process_says_nothing(
    ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ssh / "extra").write_text("UseDNS yes\n")
    monkeypatch.setattr(sshd, "_is_sshd", lambda *_: False)
    assert unread(ssh) is None


def test_permissions_and_times_to_come_are_no_change(ssh: Path) -> None:
    (ssh / "sshd_config").chmod(0o600)
    later = time.time() + 3600
    os.utime(ssh / "extra", (later, later))
    assert unread(ssh) is None


def test_an_sshd_without_a_pid_file_is_looked_up_at_systemd(
    ssh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ssh / "extra").write_text("UseDNS yes\n")
    assert sshd.unread_changes({"pidfile": ["none"]}) is None  # systemd starts one for each connection
    monkeypatch.setattr(sshd, "is_active", lambda unit: unit == "ssh.service")
    monkeypatch.setattr(sshd, "run", lambda _: "0\n")
    assert sshd.unread_changes({"pidfile": ["none"]}) is not None
    after_it_us = (time.monotonic() + 1) * 1e6
    monkeypatch.setattr(sshd, "run", lambda _: f"{after_it_us:.0f}\n")
    assert sshd.unread_changes({"pidfile": ["none"]}) is None


# ------------------------------------------------------------- units, firewall


def unit(**properties: str) -> system.Unit:
    made = system.Unit("one", on=True)
    made.know(
        {
            "LoadState": "loaded",
            "UnitFileState": "enabled",
            "ActiveState": "active",
            "ConditionResult": "yes",
            "ConditionTimestampMonotonic": "1",
            **properties,
        }
    )
    return made


@each("disabled", "enabled-runtime")
def test_a_unit_that_runs_and_does_not_start_at_boot_fails(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        system, "complete", lambda command: subprocess.CompletedProcess(command, 0, f"{state}\n", "")
    )
    assert observe.observed(unit(UnitFileState=state), [], {})["state"] == "fail"


@each(
    ("masked", "systemctl unmask one.service"),
    ("masked-runtime", "systemctl unmask --runtime one.service"),
)
def test_a_mask_is_taken_away_where_it_lies(state: str, command: str) -> None:
    masked = unit(LoadState="masked", UnitFileState=state, ActiveState="inactive")
    (repair,) = observe.observed(masked, [], {})["repair"]
    assert command_of(repair) == command


def test_a_firewall_that_no_boot_loads_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "LINK", tmp_path / "link")
    made = firewall.Firewall({"state": "present"}, 0, None)
    made.__dict__["outlook"] = firewall.Outlook("", [], "table", "table", [])
    found = observe.observed(made, [], {})
    assert (found["state"], "after the next boot" in found["reason"]) == ("fail", True)
    (tmp_path / "link").symlink_to("unit")
    assert observe.observed(made, [], {})["state"] == "pass"


def test_options_of_a_mount_point_are_those_in_force_whatever_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("36 35 0:32 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw\n")
    monkeypatch.setattr(system, "MOUNTINFO", table)
    wanted = system.MountOptions("/dev/shm", ["nodev", "nosuid"])
    assert observe.observed(wanted, [], {})["state"] == "pass"
    # Somebody has remounted it; fstab and our unit are as they were.
    table.write_text("36 35 0:32 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n")
    (change,) = observe.observed(wanted, [], {})["changes"]
    assert (change["before"], change["after"]) == ("nosuid", "nodev,nosuid")


# ------------------------------------------------------------------------ GPUs


@pytest.fixture
def lost_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], dict[str, Any]]:
    """What is lost of a lock at 1980 MHz at a clock (MHz), and with what slows the GPU down."""
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"GPU-1": [1980, None]}))
    monkeypatch.setattr(gpu_settings, "RECORD", record)

    def lost(clock: str, reasons: str) -> dict[str, Any]:
        first = "0, GPU-1, NVIDIA H100 80GB HBM3, Enabled, 700.00, 200.00, 700.00, 700.00"
        modes = "Default, Enabled, Enabled, Disabled, Disabled"
        line = f"{first}, {clock}, 1980, 2619, 1980, 2619, 1980, 2619, {reasons}, {modes}\n"
        return gpus.below_their_lock(gpu_settings.parse_gpus(line))

    return lost


IDLE, POWER, HEAT = "0x0000000000000001", "0x0000000000000004", "0x0000000000000040"


def test_an_idle_gpu_below_its_lock_has_lost_it(lost_at: Callable[[str, str], dict[str, Any]]) -> None:
    assert list(lost_at("345", IDLE).values()) == [(345, 1980)]


@pytest.mark.parametrize(
    ("clock", "reasons"), [("1980", IDLE), ("1965", IDLE), ("1200", POWER), ("900", HEAT), ("345", "[N/A]")]
)
def test_what_runs_at_its_lock_or_is_slowed_down_has_not(
    lost_at: Callable[[str, str], dict[str, Any]], clock: str, reasons: str
) -> None:
    assert lost_at(clock, reasons) == {}


# ---------------------------------------------------------------------- Docker

WANTED = [
    daemon_json.WantedKey(("runtimes", "nvidia"), {"path": "nvidia-container-runtime", "args": []}, ""),
    daemon_json.WantedKey(("features", "cdi"), True, ""),
]


@pytest.mark.component
@pytest.mark.parametrize(
    "content",
    [
        '{"runtimes": {"nvidia": {"path": "/opt/x"}, "kata": {"path": "/k"}}, "log-level": "warn"}',
        '{"features": false, "log-level": "warn"}',
        '{"runtimes": {"nvidia": {"path": "/opt/x"}}, "features": {"cdi": false}, "log-level": "warn"}',
        '{"log-level": "info", "log-level": "warn"}',
        '{"log-level": ',
        "[]",
    ],
)
def test_a_file_that_contradicts_is_mended_by_the_printed_command_and_kept_beside(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(content)
    nothing = daemon_json.DockerRecord([], [], False)
    with pytest.raises(RefusedError) as refused:
        daemon_json.merge(daemon_json.parse(content, str(path)), WANTED, nothing, str(path))
    for words in refused.value.repair:
        command = command_of(words)
        assert command
        subprocess.run(["sh", "-c", command.replace("/etc/docker/daemon.json", str(path))], check=True)
    left = path.read_text() if path.exists() else ""
    merged, _ = daemon_json.merge(daemon_json.parse(left, str(path)), WANTED, nothing, str(path))
    assert merged["features"] == {"cdi": True}
    assert (tmp_path / "daemon.json.before-repair").read_text() == content
    assert merged.get("log-level") == ("warn" if "warn" in content else None)
    assert ("kata" in merged["runtimes"]) == ("kata" in content)


# ------------------------------------------------- what the benchmark asks for


def demand(kind: str, key: str, wanted: Any = None) -> dict[str, Any]:
    (found,) = observe.measured([{"kind": kind, "key": key, "wanted": wanted, "controls": ["one"]}])
    return found


def test_what_a_benchmark_asks_is_measured_as_settings_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "PROC_SYS", tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "one").write_text("1\n")
    assert demand("sysctl", "net.one", "1")["state"] == "pass"
    assert demand("sysctl", "net.one", "2")["state"] == "fail"
    assert demand("sysctl", "net.two", "2")["state"] == "not-applicable"


def test_a_module_that_is_loaded_or_could_be_is_told_from_one_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(observe, "FILE_SYSTEMS", tmp_path / "filesystems")
    answers = {"udf": "insmod /lib/modules/6.1.0-9/udf.ko \n", "sctp": "install /bin/false \n", "none": ""}
    monkeypatch.setattr(
        observe,
        "complete",
        lambda command: subprocess.CompletedProcess(command, 0, answers[command[-1]], ""),
    )
    assert [demand("module", name)["state"] for name in answers] == ["fail", "pass", "pass"]
    (tmp_path / "modules").write_text("usb_storage 81920 0 - Live 0x0\n")
    assert "is loaded" in demand("module", "usb-storage")["reason"]
    (tmp_path / "filesystems").write_text("nodev\toverlay\n\text4\n")
    assert "built in" in demand("module", "overlay")["reason"]


def test_lines_of_a_file_are_looked_for(tmp_path: Path) -> None:
    path = tmp_path / "sudoers"
    assert demand("lines", str(path), ["one"])["state"] == "fail"
    path.write_text("# more\none\n")
    assert demand("lines", str(path), ["one"])["state"] == "pass"


def test_a_folder_that_is_no_file_system_of_its_own_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    assert demand("separate", str(tmp_path / "home"))["state"] == "fail"
    assert demand("separate", str(tmp_path / "gone"))["state"] == "fail"
    assert demand("separate", "/proc")["state"] == "pass"


def test_what_cannot_be_asked_is_not_checked() -> None:
    assert demand("nonsense", "x")["state"] == "not-checked"
