"""Evidence: changed bytes, missing and added files and reports are found; signatures are real."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from temper.base import DATA
from temper.base.store import HISTORY, HistoryError
from temper.cli import compliance as command
from temper.compliance import evidence
from temper.compliance.evidence import MANIFEST, SIGNATURE, EvidenceError, digest_of_tree, sign, verify
from temper.compliance.history import History
from temper.compliance.model import State
from temper.report import statement as report
from temper.report.compliance import Settings, check
from tests.unit.compliance.fleets import NOW, checked, observation
from tests.unit.executables import executable


@pytest.fixture
def key(tmp_path: Path) -> str:
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen signs")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    public = (tmp_path / "key.pub").read_text()
    (tmp_path / "signers").write_text(f'auditor@example namespaces="temper-compliance" {public}')
    return str(path)


def problems(reports: Path, signers: Path | None = None) -> list[str]:
    return verify(reports, History(reports.parent / HISTORY).reports(), signers)


def folders(reports: Path) -> list[Path]:
    return sorted(path for path in reports.iterdir() if path.is_dir() and not path.is_symlink())


def test_reports_that_nobody_has_touched_verify(reports: Path) -> None:
    assert len(folders(reports)) == 3
    assert problems(reports) == []
    assert (reports / "latest").resolve() == folders(reports)[-1]


def test_a_changed_byte_is_found_wherever_it_is(reports: Path) -> None:
    files = [path for folder in folders(reports) for path in sorted(folder.rglob("*")) if path.is_file()]
    chance = random.Random(1)
    assert len(files) == 3 * 9
    for path in files:
        before = path.read_bytes()
        place = chance.randrange(len(before))
        path.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
        assert problems(reports), (path, place)
        path.write_bytes(before)
    assert problems(reports) == []


def test_a_missing_or_additional_file_is_found(reports: Path) -> None:
    first = folders(reports)[0]
    (first / "junit.xml").unlink()
    (first / "more.txt").write_text("x")
    found = problems(reports)
    assert any("junit.xml is missing" in problem for problem in found)
    assert any("more.txt was added" in problem for problem in found)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_report_that_is_gone_is_found(reports: Path, which: int) -> None:
    gone = folders(reports)[which]
    shutil.rmtree(gone)
    (problem,) = problems(reports)
    assert problem.startswith(gone.name)


def test_a_report_that_was_put_there_is_found(reports: Path) -> None:
    shutil.copytree(folders(reports)[0], reports / "2026-01-01T00-00-00Z")
    (problem,) = problems(reports)
    assert problem.startswith("2026-01-01T00-00-00Z")


def test_a_manifest_that_was_made_anew_is_found(reports: Path) -> None:
    """Who changes a file and its digest still has the history, and the next report, against them."""
    first = folders(reports)[0]
    text = (first / MANIFEST).read_text()
    (first / MANIFEST).write_text(text.replace("Temper", "Tamper"))
    assert any(MANIFEST in problem for problem in problems(reports))


@pytest.mark.component
def test_signed_reports_verify_and_others_do_not(settings: Settings, key: str, tmp_path: Path) -> None:
    check([checked()], replace(settings, key=key), NOW)
    signers = tmp_path / "signers"
    assert problems(settings.directory, signers) == []
    check([checked()], settings, NOW + timedelta(hours=1))
    (problem,) = problems(settings.directory, signers)
    assert "not signed" in problem


@pytest.mark.component
@pytest.mark.parametrize("wrong", ["changed", "another key", "another purpose"])
def test_a_signature_that_does_not_count_is_found(
    settings: Settings, key: str, tmp_path: Path, wrong: str
) -> None:
    _, folder = check([checked()], replace(settings, key=key), NOW)
    if wrong == "changed":
        (folder / MANIFEST).write_text((folder / MANIFEST).read_text() + " ")
    else:
        other = tmp_path / "other"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
        (folder / SIGNATURE).unlink()
        namespace = "file" if wrong == "another purpose" else "temper-compliance"
        signer = key if wrong == "another purpose" else str(other)
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-f", signer, "-n", namespace, str(folder / MANIFEST)],
            check=True,
        )
    assert problems(settings.directory, tmp_path / "signers")


@pytest.mark.component
def test_a_key_that_cannot_sign_leaves_no_report_behind_as_whole(settings: Settings) -> None:
    with pytest.raises(EvidenceError, match="/nowhere/key"):
        check([checked()], replace(settings, key="/nowhere/key"), NOW)
    assert History(settings.validations / HISTORY).reports() == {}
    with pytest.raises(EvidenceError):
        sign(settings.directory / "missing", "/nowhere/key")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_report_that_cannot_be_written_whole_is_not_there(
    reports: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(report, "sarif", fail)
        with pytest.raises(type(error)):
            check([checked()], settings, NOW + timedelta(hours=9))
    assert problems(reports) == []
    assert (reports / "latest").resolve() == folders(reports)[-1]
    check([checked()], settings, NOW + timedelta(hours=10))
    assert len(folders(reports)) == 4
    assert problems(reports) == []


def test_a_history_of_a_newer_version_leaves_everything_as_it_is(reports: Path, settings: Settings) -> None:
    import sqlite3

    with sqlite3.connect(settings.validations / HISTORY) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(HistoryError):
        check([checked()], settings, NOW + timedelta(hours=9))
    assert len(folders(reports)) == 3


def test_a_second_check_names_what_has_changed(reports: Path, settings: Settings) -> None:
    broken = observation("sshd:PasswordAuthentication", State.FAIL, reason="yes")
    made, folder = check([checked("gpu01", broken)], settings, NOW + timedelta(hours=9))
    assert [one.control for one in made.changed] == ["ssh_hardening/sshd:PasswordAuthentication"]
    assert folder.name in (reports / "latest").resolve().name


def test_the_digest_of_a_tree_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = digest_of_tree([tmp_path])
    (tmp_path / "a").rename(tmp_path / "b")
    assert digest_of_tree([tmp_path]) != before


def test_the_command_line_ends_with_the_verdict(
    reports: Path, settings: Settings, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # No validation is on record here: that alone is not compliant.
    assert command.main(["status", "--reports", str(reports)]) == 1
    assert command.main(["verify", "--reports", str(reports)]) == 0
    assert command.main(["drifts", "--reports", str(reports)]) == 0
    assert "validation/last" in capsys.readouterr().out
    shown = {}
    for name in ("status", "verify", "head", "drifts"):
        command.main([name, "--reports", str(reports), "--json"])
        shown[name] = json.loads(capsys.readouterr().out)
    assert shown["status"]["verdict"] == "not-compliant"
    assert (shown["verify"]["problems"], shown["verify"]["head"]) == ([], shown["head"]["head"])
    assert "validation/last" in {drift["control"] for drift in shown["drifts"]["drifts"]}
    (folders(reports)[0] / "junit.xml").unlink()
    assert command.main(["verify", "--reports", str(reports)]) == 1
    assert command.main(["status", "--reports", str(tmp_path)]) == 2
    assert "playbooks/compliance.yml" in capsys.readouterr().err


@pytest.fixture
def read_only(reports: Path) -> list[str]:
    """A command before another one, which then finds the reports on a medium that is read-only."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(reports.parent)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine mounts nothing for tests")
    return command


@pytest.mark.component
def test_a_copy_that_nobody_may_write_to_is_verified(reports: Path, read_only: list[str]) -> None:
    def verified() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*read_only, sys.executable, "-m", "temper", "compliance", "verify", "--reports", str(reports)],
            cwd=DATA.parent,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )

    before = sorted(reports.parent.rglob("*"))
    done = verified()
    assert (done.returncode, done.stdout.startswith("3 reports are as they were written")) == (0, True)
    (folders(reports)[0] / "junit.xml").write_text("")
    assert verified().returncode == 1
    assert sorted(reports.parent.rglob("*")) == before


def test_a_drift_of_a_node_that_nobody_checks_any_more_says_so(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(reports.parent / HISTORY)) as file, file:
        file.execute("INSERT INTO drift VALUES ('gone', 'a/b', '2026-01-01T00:00:00Z', NULL)")
    assert command.main(["drifts", "--reports", str(reports)]) == 0
    unseen = [line for line in capsys.readouterr().out.splitlines() if "is not in the newest report" in line]
    assert [line.split()[3:5] for line in unseen] == [["gone", "a/b,"]]


def test_drifts_of_another_fleet_are_not_compared_with_the_newest_report(
    reports: Path, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = replace(settings, directory=tmp_path / "others" / "compliance", validations=tmp_path / "others")
    _, folder = check([checked("other")], others, NOW + timedelta(days=1))
    history = others.validations / HISTORY
    assert command.main(["drifts", "--reports", str(reports), "--history", str(history)]) == 0
    said = capsys.readouterr()
    assert "other" in said.out
    assert "newest report" not in said.out
    for fact in (str((reports / "latest").resolve()), str(history), folder.name):
        assert fact in said.err


def test_verify_and_drifts_write_nothing_where_they_could(reports: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in reports.parent.rglob("*")}
    for name in ("verify", "drifts", "status"):
        command.main([name, "--reports", str(reports)])
    left = {path: path.stat().st_mtime_ns for path in reports.parent.rglob("*") if "-shm" not in path.name}
    assert {path: left[path] for path in before if path.is_file()} == {
        path: stamp for path, stamp in before.items() if path.is_file()
    }


@pytest.mark.component
def test_an_ssh_keygen_that_never_answers_is_one_sentence(
    settings: Settings, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that waits to be touched, an agent that hangs."""
    _, folder = check([checked()], replace(settings, key=key), NOW)
    hanging = executable(tmp_path / "bin" / "ssh-keygen", "exec sleep 600")
    monkeypatch.setattr(evidence, "SIGNING_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", f"{hanging.parent}:{os.environ['PATH']}")
    (problem,) = problems(settings.directory, tmp_path / "signers")
    assert problem.startswith(f"{folder.name}: its signature could not be checked: ssh-keygen")
    with pytest.raises(EvidenceError, match=r"gave no answer within 0\.2 s"):
        check([checked()], replace(settings, key=key), NOW + timedelta(hours=1))
    hanging.unlink()
    monkeypatch.setenv("PATH", str(hanging.parent))
    (problem,) = problems(settings.directory, tmp_path / "signers")
    assert "ssh-keygen cannot be run" in problem
    assert "Errno" not in problem
