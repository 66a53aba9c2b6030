"""`temper notify`: from check to check, with real servers; the timers and settings of the examples."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from temper.cli import notify
from temper.cli.main import BAD, GOOD, INTERRUPTED, NOT_CARRIED_OUT, NOT_TOLD, main
from temper.compliance import document
from temper.compliance.model import Verdict
from temper.notify.settings import read
from tests.unit.each import each
from tests.unit.notify.servers import Hook, Mailbox
from tests.unit.pages import made_up

ROOT = Path(__file__).resolve().parents[3]
TIMERS = ROOT / "examples/timers"
#: A check as far as this command sees one: it leaves the next prepared report, if there is one.
CHECK = """
import json, os, pathlib, sys
reports, prepared, status = *map(pathlib.Path, sys.argv[1:3]), int(pathlib.Path(sys.argv[3]).read_text())
print("what the check says")
if prepared.is_dir():
    made = reports / f"report-{len(list(reports.iterdir()))}"
    prepared.rename(made)
    (made / "origin.json").write_text(json.dumps({"check": os.environ["TEMPER_CHECK"]}))
    (reports / "latest").unlink(missing_ok=True)
    (reports / "latest").symlink_to(made.name)
sys.exit(status)
"""


@dataclass
class Site:
    """A controller with a check that fails as it is told."""

    folder: Path
    settings: str = ""
    checks: int = 0
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "statements").mkdir(parents=True)
        (self.folder / "check.py").write_text(CHECK)
        places = [self.folder / name for name in ("check.py", "statements", "next", "status")]
        self.words = [sys.executable, *map(str, places)]

    def check(self, verdict: Verdict | None, *nodes: str, status: int = 2) -> int:
        """Carry out a check that finds these nodes failing; without a verdict it writes no report."""
        (self.folder / "status").write_text(str(status))
        if verdict:
            whole = made_up.statement()
            failing = {node.node: node for node in whole.nodes if node.node in ("gpu-002", "gpu-009")}
            chosen = tuple(failing[node] for node in nodes)
            (self.folder / "next").mkdir()
            changed = {"verdict": verdict, "nodes": chosen, "sentence": f"Verdict: {verdict}."}
            document.write(self.folder / "next", type(whole)(**{**vars(whole), **changed}))
        return self.run("compliance", "--", *self.words)

    def run(self, check: str, *words: str) -> int:
        file = self.folder / "notify.yml"
        file.write_text(self.settings)
        options = ["--settings", str(file), "--reports", str(self.folder / "statements")]
        options += ["--history", str(self.folder / "history.sqlite")]
        return main(["notify", check, *options, *words])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("no_proxy", "*")
    return Site(tmp_path)


@pytest.mark.component
def test_people_hear_once_of_each_change(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    hook, box = Hook(), Mailbox(password=False)
    box.plain = True
    with hook.serving() as web, box.serving() as mail:
        site.settings = f"""
webhook: {{url: 'http://127.0.0.1:{web}/'}}
mail: {{server: 127.0.0.1, port: {mail}, tls: none, from: temper@example.com, to: [ops@example.com]}}
"""
        assert site.check(Verdict.COMPLIANT, status=0) == GOOD
        assert hook.got == []
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002", "gpu-009") == BAD
        assert site.check(None, status=4) == NOT_CARRIED_OUT
        assert site.check(None, status=4) == NOT_CARRIED_OUT
        assert site.check(Verdict.COMPLIANT, status=0) == GOOD
    states = [body["state"] for _, body in hook.got]
    assert states == ["bad", "bad", "not carried out", "good"]
    assert [sorted(body["nodes"]) for _, body in hook.got[:2]] == [["gpu-002"], ["gpu-002", "gpu-009"]]
    assert "status 4" in hook.got[2][1]["text"]
    assert [re.findall("^Subject: .* is (.*)\r$", text, re.MULTILINE) for _, text in box.got] == [
        ["bad (was good)"],
        ["bad"],
        ["not carried out (was bad)"],
        ["good (was not carried out)"],
    ]
    said = capfd.readouterr().out
    assert (said.count("what the check says"), said.count("told by webhook, mail")) == (7, 4)


@pytest.mark.component
def test_a_channel_that_failed_is_tried_again_alone(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    hook, box = Hook(), Mailbox(password=False)
    hook.status = 500
    box.plain = True
    with hook.serving() as web, box.serving() as mail:
        site.settings = f"""
webhook: {{url: 'http://127.0.0.1:{web}/s3cret'}}
mail: {{server: 127.0.0.1, port: {mail}, tls: none, from: temper@example.com, to: [ops@example.com]}}
"""
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == NOT_TOLD
        said = capfd.readouterr()
        assert f"webhook: nobody was told. 127.0.0.1:{web}: " in said.err
        assert "500" in said.err
        assert "s3cret" not in said.out + said.err
        hook.status = 200
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
    assert len(hook.got) == 2
    assert len(box.got) == 1


@pytest.mark.component
def test_who_is_refused_costs_the_others_no_second_mail(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    box = Mailbox(password=False)
    box.plain, box.refused = True, {"gone@example.com"}
    with box.serving() as mail:
        site.settings = f"""
mail: {{server: 127.0.0.1, port: {mail}, tls: none, from: a@b.example, to: [x@b.example, gone@example.com]}}
"""
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
        assert "gone@example.com" in capfd.readouterr().err
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == BAD
    assert [recipients for recipients, _ in box.got] == [["x@b.example"]]


@pytest.mark.component
def test_a_damaged_history_costs_no_message(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    hook = Hook()
    (site.folder / "history.sqlite").write_text("no database, however long this text may be" * 99)
    with hook.serving() as web:
        site.settings = f"webhook: {{url: 'http://127.0.0.1:{web}/'}}"
        assert site.check(Verdict.NOT_COMPLIANT, "gpu-002") == NOT_TOLD
    assert len(hook.got) == 1
    said = capfd.readouterr().err
    assert "history.sqlite" in said
    assert "webhook: the message was sent" in said
    assert "nobody" not in said


@pytest.mark.component
def test_a_test_message_runs_nothing_and_changes_no_state(site: Site) -> None:
    hook = Hook()
    with hook.serving() as web:
        site.settings = f"webhook: {{url: 'http://127.0.0.1:{web}/'}}"
        assert site.run("test") == GOOD
        hook.status = 404
        assert site.run("test") == NOT_TOLD
    assert [body["check"] for _, body in hook.got] == ["test", "test"]
    assert not (site.folder / "history.sqlite").exists()


@pytest.mark.component
def test_a_check_that_hangs_is_ended_and_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has started ends with it."""
    monkeypatch.setattr(notify, "SECONDS", 0.02)
    monkeypatch.setattr(notify, "ENDING_S", 0.5)
    hook, mark = Hook(), site.folder / "pid"
    script = f"trap '' INT; sleep 600 & echo $! > {mark}; wait; wait"
    with hook.serving() as web:
        site.settings = f"webhook: {{url: 'http://127.0.0.1:{web}/'}}"
        assert site.run("compliance", "--minutes", "50", "--", "sh", "-c", script) == NOT_CARRIED_OUT
    ((_, body),) = hook.got
    assert "after 50 min" in body["text"]
    until = time.monotonic() + 10
    status = Path("/proc", mark.read_text().strip(), "status")
    while status.exists() and "zombie" not in status.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert not status.exists() or "zombie" in status.read_text()


@pytest.mark.component
def test_who_is_stopped_ends_the_check_and_tells_nobody(site: Site) -> None:
    hook, mark = Hook(), site.folder / "pid"
    with hook.serving() as web:
        file = site.folder / "notify.yml"
        file.write_text(f"webhook: {{url: 'http://127.0.0.1:{web}/'}}")
        words = [sys.executable, "-m", "temper", "notify", "compliance", "--settings", str(file)]
        check = f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 600"
        words += ["--history", str(site.folder / "history.sqlite"), "--", "sh", "-c", check]
        process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert hook.got == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.mark.component
def test_a_check_that_is_stopped_as_it_begins_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def begin(*words: Any, **how: Any) -> subprocess.Popen[bytes]:
        begun.append(start(*words, **how))
        signal.raise_signal(signal.SIGTERM)
        return begun[0]

    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    monkeypatch.setattr(subprocess, "Popen", begin)
    site.settings = "webhook: {url: 'http://127.0.0.1:9/'}"
    try:
        assert site.run("compliance", "--", "sleep", "600") == INTERRUPTED
        assert begun[0].poll() is not None
    finally:
        begun[0].kill()
        begun[0].wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_is_wrong_is_said_before_the_check(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing here starts a process."""
    good = "webhook: {url: 'http://127.0.0.1:9/'}"
    for settings, words, said in (
        ("webhook: {url: 'http://example.com/'}", ["--", *site.words], "webhook.url"),
        (good, [], "found none"),
        (good, ["--minutes", "0", "--", *site.words], "--minutes"),
        (good, ["--", "ansible-playbok", "x.yml"], "found ansible-playbok"),
    ):
        site.settings = settings
        assert site.run("compliance", *words) == NOT_CARRIED_OUT, words
        assert said in capsys.readouterr().err
    assert site.run("test", "--", "true") == NOT_CARRIED_OUT
    assert main(["notify", "test", "--settings", str(site.folder / "none.yml")]) == NOT_CARRIED_OUT
    assert "none.yml" in capsys.readouterr().err


def test_the_examples_settings_are_right(tmp_path: Path) -> None:
    text = (TIMERS / "notify.yml").read_text()
    for name, content in (
        ("webhook.url", "https://hooks.example.com/T/x"),
        ("webhook.secret", "Bearer x"),
        ("mail.password", "x"),
    ):
        assert f"/etc/temper/{name}" in text
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    text = text.replace("/etc/temper", str(tmp_path))
    for chosen in (text, re.sub(r"^  # (header|secret_file)", r"  \1", text, flags=re.MULTILINE)):
        (tmp_path / "notify.yml").write_text(chosen)
        assert list(read(tmp_path / "notify.yml").channels) == ["webhook", "mail"]


@each(("compliance", "compliance"), ("validation", "validation"), ("retest", "validation"))
def test_a_timers_command_is_one_of_this_program(name_of_unit: str, check: str) -> None:
    unit = (TIMERS / f"temper-{name_of_unit}.service").read_text()
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    program, name, *words = shlex.split(command)
    assert (program, name) == ("/opt/temper/.venv/bin/temper", "notify")
    given, started = notify.read_words(words)
    assert given.check == check
    assert started[0] == "ansible-playbook"
    assert (ROOT / started[1]).is_file()


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd reads its own units")
def test_systemd_takes_the_timers(tmp_path: Path) -> None:
    for path in TIMERS.glob("temper-*"):
        text = path.read_text().replace("/opt/temper/.venv/bin/temper", "/usr/bin/true")
        (tmp_path / path.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")
