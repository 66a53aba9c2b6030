"""The host's settings are what they were once no lab is left, whatever happened in between."""

from pathlib import Path

import pytest

from tests.lab import host_settings

FORWARDING = "net/ipv4/ip_forward"
INOTIFY = "fs/inotify/max_user_instances"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host's /proc/sys with the usual values."""
    settings = tmp_path / "sys"
    for key, value in ((FORWARDING, "0\n"), (INOTIFY, "128\n"), ("kernel/random/boot_id", "one\n")):
        (settings / key).parent.mkdir(parents=True)
        (settings / key).write_text(value)
    monkeypatch.setattr(host_settings, "_PROC_SYS", settings)
    monkeypatch.setattr(host_settings, "_RECORD", tmp_path / "run/host.json")
    monkeypatch.setattr(host_settings, "_LOCK", tmp_path / "run/host.lock")
    return settings


def values(host: Path) -> list[int]:
    return [int((host / key).read_text()) for key in (FORWARDING, INOTIFY)]


@pytest.mark.parametrize("labs", [1, 2])
def test_settings_are_raised_and_put_back(host: Path, labs: int) -> None:
    for _ in range(labs):
        host_settings.apply()
        assert values(host) == [1, 8192]
    host_settings.restore()
    assert values(host) == [0, 128]


def test_host_that_has_more_is_left_alone(host: Path) -> None:
    (host / INOTIFY).write_text("65536\n")

    host_settings.apply()
    raised = values(host)
    host_settings.restore()

    assert raised == [1, 65536]
    assert values(host) == [0, 65536]


def test_what_was_recorded_before_a_restart_is_forgotten(host: Path) -> None:
    host_settings.apply()
    (host / "kernel/random/boot_id").write_text("two\n")
    (host / FORWARDING).write_text("1\n")

    host_settings.restore()

    assert values(host) == [1, 8192]
