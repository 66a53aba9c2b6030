"""What the role pull sets: what the program reads, whom it trusts, and when it starts."""

import re
import shutil
import socket
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pull.configuration import Configuration, ConfigurationError
from pull.playbooks import REPAIRABLE
from pull.repository import Repository
from temper.plan.role_variables import role_variables
from temper.plan.roles.pull import calendar, keyring_line
from temper.plan.variables import PullSigner
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.planning_roles.plans import contents, enterprise, planned, wanted
from tests.unit.tables import specs

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ1dHRlcmZseWJ1dHRlcmZseWJ1dHRlcmZseWJ1dHRl"
ON: dict[str, Any] = {
    "pull_enabled": True,
    "pull_url": "https://git.example.org/fleet.git",
    "pull_signers": [{"name": "ada", "key": f"{KEY} ada@desk"}],
    "pull_python": "/opt/temper/ansible/bin/python3",
}
SPEC = specs()["pull"]["argument_specs"]["main"]["options"]


def problems(**given: Any) -> list[str]:
    found: list[str] = role_variables({**ON, **given}, specs())["problems"]
    return found


def test_by_default_nothing_is_set() -> None:
    assert planned("pull").settings == ()


def test_the_program_reads_what_the_role_writes(tmp_path: Path) -> None:
    found = contents(planned("pull", **ON, pull_repair=["os_tuning"], pull_interval_minutes=60))
    path = tmp_path / "pull.json"
    path.write_text(found["/etc/temper/pull.json"] or "")
    read = Configuration.load(path)
    assert (read.url, read.branch, read.tags) == ("https://git.example.org/fleet.git", "main", "")
    assert (read.repair, read.interval_s) == (("os_tuning",), 3600)
    for name in (read.keyring, read.known_hosts):
        assert name in found


def image(folder: Path) -> Path:
    """What the role writes in the tree of an image."""
    gpus = [{"gpu": "h100_sxm_80gb", "count": 8}]
    found = contents(planned("pull", **ON, preflight_image=True, preflight_image_gpus=gpus))
    path = folder / "pull.json"
    path.write_text(found["/etc/temper/pull.json"] or "")
    return path


def test_a_machine_of_an_image_pulls_as_the_node_of_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = image(tmp_path)
    for name in ("gpu17", "gpu18.example.org"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        assert Configuration.load(path).node == name


@each("", "localhost", "localhost.localdomain", "all", "gpu[01-99]", "!gpu01")
def test_a_machine_of_an_image_without_a_name_of_its_own_pulls_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    with pytest.raises(ConfigurationError, match="Give this machine its name"):
        Configuration.load(image(tmp_path))


def test_the_keyring_is_what_the_program_takes(tmp_path: Path) -> None:
    signers = [{"name": "ada", "key": f"{KEY} ada", "valid_from": "2026-01-01", "valid_until": "2027-03-31"}]
    found = contents(planned("pull", **{**ON, "pull_signers": signers}))
    for name in ("pull.json", "pull_allowed_signers"):
        (tmp_path / name).write_text(found[f"/etc/temper/{name}"] or "")
    given = Configuration.load(tmp_path / "pull.json")
    repository = Repository(tmp_path, replace(given, keyring=str(tmp_path / "pull_allowed_signers")))
    line = f'ada namespaces="git" {KEY}\n'
    assert repository.keyring(datetime(2027, 3, 30, 23, 59, tzinfo=UTC)) == ([line], [])
    assert repository.keyring(datetime(2026, 1, 1, tzinfo=UTC)) == ([line], [])
    assert repository.keyring(datetime(2027, 3, 31, tzinfo=UTC)) == ([], [line])
    assert repository.keyring(datetime(2025, 12, 31, 23, 59, tzinfo=UTC)) == ([], [line])


@pytest.mark.component
def test_the_keyring_is_what_ssh_keygen_takes(tmp_path: Path) -> None:
    """Of a key that counts, and of one that has ended: ssh-keygen itself says which is which."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    message = tmp_path / "message"
    message.write_text("text")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(key), str(message)], check=True)
    public = key.with_suffix(".pub").read_text()
    found = []
    for until in ("2099-01-01", "2001-01-01"):
        (tmp_path / "keyring").write_text(keyring_line(PullSigner("ada", public, None, until)))
        command = ["ssh-keygen", "-Y", "verify", "-n", "git", "-I", "ada", "-f", str(tmp_path / "keyring")]
        with message.open() as text:
            done = subprocess.run(
                [*command, "-s", f"{message}.sig"], stdin=text, capture_output=True, check=False
            )
        found.append(done.returncode == 0)
    assert found == [True, False]


def test_the_roles_that_may_repair_are_those_of_the_program() -> None:
    assert SPEC["pull_repair"]["choices"] == sorted(REPAIRABLE)


@pytest.mark.component
@pytest.mark.parametrize("minutes", SPEC["pull_interval_minutes"]["choices"])
def test_the_timer_starts_once_an_interval(minutes: int) -> None:
    """As systemd itself reads the calendar: every start is one interval after the last, over a day."""
    count = 24 * 60 // minutes + 1
    command = ["systemd-analyze", "calendar", f"--iterations={count}", "--base-time=2026-11-23 00:00:00 UTC"]
    if not shutil.which(command[0]):
        pytest.skip("systemd-analyze reads calendars")
    done = subprocess.run(
        [*command, f"{calendar(minutes)} UTC"],
        env={"TZ": "UTC", "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = re.findall(r"(?:Next elapse|Iteration #\d+|Iter\. #\d+): \w+ ([\d-]+ [\d:]+) UTC", done.stdout)
    starts = [datetime.fromisoformat(line) for line in lines]
    assert len(starts) == count
    gaps = {later - earlier for earlier, later in pairwise(starts)}
    assert gaps == {timedelta(minutes=minutes)}


def test_the_starts_spread_over_the_whole_interval_and_are_made_up_for() -> None:
    found = contents(planned("pull", **ON, pull_interval_minutes=120))
    timer = (found["/etc/systemd/system/temper-pull.timer"] or "").splitlines()
    assert {"RandomizedDelaySec=120min", "FixedRandomDelay=yes", "Persistent=yes"} <= set(timer)


@pytest.mark.component
def test_systemd_takes_both_units(tmp_path: Path) -> None:
    found = contents(planned("pull", **ON))
    names = []
    for path, text in found.items():
        if path.startswith("/etc/systemd/"):
            names.append(tmp_path / Path(path).name)
            names[-1].write_text(text or "")
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze reads units")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, names)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "temper-pull" in line]
    assert (len(names), complaints) == (2, [])


def test_packages_are_those_of_the_family() -> None:
    assert "openssh-client" in wanted(planned("pull", **ON), Kind.PACKAGE)
    assert "openssh-clients" in wanted(planned("pull", enterprise, **ON), Kind.PACKAGE)


@each(
    ({"pull_url": ""}, "pull_url"),
    ({"pull_signers": []}, "pull_signers"),
    ({"pull_python": ""}, "pull_python"),
    ({"pull_python": "python3"}, "pull_python"),
    ({"pull_url": "http://git.example.org/fleet.git"}, "https://"),
    ({"pull_url": "ext::sh -c id"}, "pull_url"),
    ({"pull_url": "https://ada:secret@git.example.org/x"}, "pull_url"),
    ({"pull_report_to": "http://192.0.2.1/"}, "pull_report_to"),
    ({"pull_branch": "--upload-pack=x"}, "pull_branch"),
    ({"pull_tags": "fleet-*-*"}, "pull_tags"),
    ({"pull_inventory": "../other"}, "pull_inventory"),
    ({"pull_repair": ["nvidia_stack"]}, "pull_repair"),
    ({"pull_interval_minutes": 7}, "pull_interval_minutes"),
    ({"pull_signers": [{"name": "*", "key": KEY}]}, "pull_signers"),
    ({"pull_signers": [{"name": "ada", "key": "ssh-ed25519 AAAA"}]}, "pull_signers"),
    ({"pull_signers": [{"name": "ada", "key": f"cert-authority {KEY}"}]}, "pull_signers"),
    ({"pull_signers": [{"name": "ada", "key": KEY, "valid_until": "31.3.2027"}]}, "pull_signers"),
)
def test_what_the_program_could_not_use_is_refused(given: dict[str, Any], word: str) -> None:
    assert any(word in problem for problem in problems(**given))
    assert "secret" not in " ".join(problems(**given))


def test_what_is_wanted_is_no_problem() -> None:
    assert problems() == []
