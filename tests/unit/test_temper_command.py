"""The command `temper`: what it offers, and what it says of wrong words, missing packages and inventories."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from ansible.errors import ExitCode

from temper.base.nodes import printable
from temper.cli import doctor
from temper.cli.main import BAD, COMMANDS, GOOD, INTERRUPTED, NOT_CARRIED_OUT, NOT_FINISHED, NOT_TOLD, main
from tests.unit.each import each
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_FAIL, EXIT_PASS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]


@each(*COMMANDS)
def test_each_command_is_listed_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert f"temper {name} {COMMANDS[name].example}" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: temper {name}")


@each(("rolout", "did you mean rollout?"), ("xyz", "expected one of plan"))
def test_a_word_that_is_no_command_is_named(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert hint in capsys.readouterr().err


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert f'version = "{capsys.readouterr().out.split()[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_table_of_exit_statuses_has_those_of_the_command_and_of_playbooks() -> None:
    page = (ROOT / "docs/reference/exit_statuses.md").read_text()
    playbooks, command, payload = (
        {int(number) for number in re.findall(r"^\| (\d+) \|", part, flags=re.MULTILINE)}
        for part in re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    )
    assert command == {GOOD, BAD, NOT_CARRIED_OUT, NOT_FINISHED, NOT_TOLD, INTERRUPTED}
    # Of those that Ansible has, one is not used any more.
    assert playbooks == {int(code) for code in ExitCode} - {ExitCode.UNICODE_ERROR}
    assert payload == {EXIT_PASS, EXIT_FAIL, EXIT_ENVIRONMENT, INTERRUPTED}


@each("compliance", "fleet", "pages", "rollout")
def test_a_former_name_answers_with_the_new_one(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / f"tools/former/{name}.py"), run_name="__main__")
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.err == f"python3 -m {name} is now: temper {name}\n"
    assert said.out.startswith(f"usage: temper {name}")


#: What takes long to import, and no help needs; of the rest, `help` imports more only for these.
HEAVY = (
    "ansible",
    "ansible_runner",
    "asyncio",
    "ClusterShell",
    "cryptography",
    "jinja2",
    "paramiko",
    "torch",
    "yaml",
)
LATE = {"completion": ("yaml",), "compliance": ("yaml",), "fleet": ("yaml",), "rollout": ("asyncio", "yaml")}
HELP = """
import json, os, sys
from temper.cli.main import COMMANDS, main
for words in ([], *([name] for name in COMMANDS)):
    if not os.fork():
        sys.stdout = open(os.devnull, "w")
        try:
            main([*words, "--help"])
        except SystemExit:
            pass
        print(json.dumps([words, sorted(set(sys.argv[1:]) & set(sys.modules))]), file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.component
def test_help_imports_nothing_that_takes_long() -> None:
    words = [sys.executable, "-c", HELP, *HEAVY]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {" ".join(words): set(heavy) for words, heavy in map(json.loads, done.stderr.splitlines())}
    assert found.keys() == {"", *COMMANDS}
    assert {name: heavy for name, heavy in found.items() if heavy - set(LATE.get(name, ()))} == {}


@pytest.mark.component
def test_a_command_whose_packages_are_missing_says_what_to_type() -> None:
    """As in a new shell, or in cron. `-S` leaves packages out."""
    words = [sys.executable, "-S", "-m", "temper", "rollout", "status"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "`. .venv/bin/activate`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(doctor, "SYSTEM_HOST_KEYS", tmp_path / "none")
    monkeypatch.setattr(doctor, "ALONE", ())
    return tmp_path


def examined(home: Path, capsys: pytest.CaptureFixture[str], nodes: str) -> tuple[int, str]:
    file = home / "hosts.yml"
    file.write_text(f"gpu_nodes: {{hosts: {nodes}}}\n")
    return main(["doctor", "-i", str(file)]), capsys.readouterr().out


@pytest.mark.component
def test_the_doctor_names_missing_keys(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = examined(home, capsys, "{gpu01: {ansible_host: 192.0.2.1}, gpu02: {ansible_port: 2222}}")
    assert status == 1
    assert "BAD  SSH keys   none in an agent or in ~/.ssh" in said
    assert "BAD  host keys  unknown of gpu01, gpu02" in said


def test_the_doctor_says_what_this_python_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "make setup" in doctor.packages().remedy
    monkeypatch.setenv("LC_ALL", "C")
    assert doctor.language().remedy == "export LC_ALL=C.UTF-8"


@pytest.mark.component
def test_the_doctor_answers_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "hosts.yml").write_text("gpu_nodes: {hosts: {}}\n")
    assert main(["doctor", "-i", str(home / "hosts.yml"), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["subject"], finding["good"]) == ("inventory", False)


def test_a_finding_is_explained_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pcie-link-down-trained", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert list(document["findings"]) == ["pcie-link-down-trained"]
    assert main(["explain", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) > 50
    assert main(["explain", "no-such-code", "--json"]) == 2


@pytest.mark.component
def test_the_doctor_is_content_with_an_inventory_whose_keys_are_known(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".ssh/id_ed25519").touch()
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGHBcO6kXYo1iVjQ8v6HTlA1vHsBuUN7nAsZ1kRkkJ1Q"
    (home / ".ssh/known_hosts").write_text(f"192.0.2.1 {key}\n[gpu02]:2222 {key}\n")
    nodes = (
        "{gpu01: {ansible_host: 192.0.2.1}, gpu02: {ansible_port: 2222}, "
        "gpu03: {ansible_ssh_common_args: -o UserKnownHostsFile=/srv/keys}}"
    )
    status, said = examined(home, capsys, nodes)
    assert "BAD" not in said
    assert status == 0


@pytest.mark.component
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ("ansible_ssh_private_key_file: /srv/key", "ok  SSH keys   those that the inventory names"),
        ("ansible_ssh_common_args: -o UserKnownHostsFile=/srv/keys", "ok  host keys  not looked at"),
    ],
)
def test_the_doctor_takes_what_the_inventory_says(
    home: Path, capsys: pytest.CaptureFixture[str], variables: str, said: str
) -> None:
    assert said in examined(home, capsys, f"{{gpu01: {{{variables}}}}}")[1]


@pytest.mark.component
def test_nodes_without_ssh_need_no_keys(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert examined(home, capsys, "{gpu01: {ansible_connection: local}}")[0] == 0


def test_an_interrupted_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "main", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "temper doctor: interrupted\n"


@each(
    (OSError(28, "No space left on device", "re\x1b[2Jports"), False),
    (OSError(28, "No space left on device"), False),
    (RuntimeError("Symlink loop from 'x'"), True),
    (MemoryError("", "memory"), False),
)
def test_status_1_says_only_that_a_node_is_bad(error: Exception, is_fault: bool) -> None:
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(doctor, "main", Mock(side_effect=error))
        assert main(["doctor"]) == 2
    assert not re.search("\x1b|Errno", said.getvalue())
    assert str(error.args[-1 if is_fault else 1]) in said.getvalue()
    assert ("Traceback" in said.getvalue()) is is_fault


#: Commands that read one file, FILE.
READING = (
    "rollout status --folder FILE",
    "fleet run tune -i hosts -e @FILE",
    "fleet pulled FILE -i hosts",
    "compliance status --reports FILE",
    "compliance drifts --history FILE",
    "compliance scan --results FILE",
    "notify test --settings FILE",
    "report --output out --results results --expectations FILE",
    "report --output out --results results --expectations expectations.json --fabric FILE",
    "pages --output out --validation FILE",
    "pages --output out --compliance FILE",
    "compare FILE FILE",
    "propose --evidence FILE",
    "accept gpu01 --history FILE",
)


@pytest.fixture
def unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Names of what no command can read, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("results").mkdir()
    Path("loop").symlink_to("loop")
    Path("empty").touch()
    Path("nested").write_text("[" * 3000)
    Path("e\x1b[2Jscape").write_text("{")
    Path("expectations.json").write_text('{"schema_version": 3, "nodes": {}}')
    return "missing", "folder", "folder/" + "x" * 300, "loop", "empty", "nested", "e\x1b[2Jscape", "\udcff"


@each(*READING)
def test_what_cannot_be_read_is_named_in_a_sentence(line: str, unreadable: tuple[str, ...]) -> None:
    for name in unreadable:
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            assert main([word.replace("FILE", name) for word in line.split()]) == 2, name
        assert "Traceback" not in said.getvalue(), name
        assert "\x1b" not in said.getvalue()
        assert printable(name) in said.getvalue()


@each(
    *("fleet run tune -i hosts -e @FILE", "notify test --settings FILE"),
    *("compare FILE FILE", "propose --evidence FILE"),
)
def test_of_a_file_that_is_far_too_large_only_a_part_is_read(line: str, unreadable: tuple[str, ...]) -> None:
    with Path("large").open("wb") as file:
        file.truncate(1 << 36)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main([word.replace("FILE", "large") for word in line.split()]) == 2
    assert "large: expected at most 16777216 bytes, found more" in said.getvalue()


def test_nobody_waits_for_a_pipe_in_the_place_of_a_history(unreadable: tuple[str, ...]) -> None:
    os.mkfifo("pipe")
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(["compliance", "drifts", "--history", "pipe"]) == 2
    assert "pipe cannot be read: expected a file" in said.getvalue()


@each(
    *("rollout status --folder", "compliance status --reports", "compliance drifts --history"),
    *(
        "notify test --settings",
        "report --output",
        "pages --output",
        "fleet pulled",
        "compare",
        "propose --evidence",
    ),
)
def test_an_empty_name_is_not_the_current_folder(line: str) -> None:
    """As `--output "$REPORTS"` gives it where nobody has set that."""
    said = io.StringIO()
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stderr(said):
        main([*line.split(), ""])
    assert ended.value.code == 2
    assert "empty" in said.getvalue()


def test_the_doctor_speaks_before_it_has_read_the_inventory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def read(_: object) -> Iterator[doctor.Finding]:
        said.append(capsys.readouterr().out)
        yield doctor.Finding("inventory", "read")

    monkeypatch.setattr(doctor, "ALONE", (lambda: doctor.Finding("checkout", "here"),))
    monkeypatch.setattr(doctor, "inventory", read)
    assert main(["doctor"]) == 0
    assert "checkout" in said[0]


@pytest.mark.component
def test_the_doctor_says_why_an_inventory_cannot_be_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = examined(home, capsys, "{}")
    assert status == 1
    assert "has no group gpu_nodes" in said


@pytest.mark.component
def test_the_doctor_looks_at_this_machine() -> None:
    said = "\n".join(doctor.text(check()) for check in doctor.ALONE)
    for words in (f"{ROOT}, commit", "ansible-core", "GiB free for reports"):
        assert words in said


def test_the_doctor_says_where_ansible_reads_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    found = []
    for mode, named in ((0o700, ""), (0o700, f"{tmp_path}/ansible.cfg"), (0o700, "/etc/x"), (0o707, "")):
        tmp_path.chmod(mode)
        monkeypatch.setenv("ANSIBLE_CONFIG", named)
        found.append(doctor.settings().remedy)
    assert found == ["", "", "unset ANSIBLE_CONFIG", f"chmod o-w {tmp_path}"]


def test_a_file_that_is_not_what_a_command_reads_is_named(
    run_temper: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    file, summary = tmp_path / "x.json", tmp_path / "latest/summary.json"
    file.write_text("[]")
    summary.parent.mkdir()
    summary.write_text('{"nodes": [')
    table = (
        (["compliance", "status", "--reports", tmp_path], summary),
        (["compliance", "scan", "--results", file], file),
        (["propose", "--evidence", file], file),
    )
    found = [run_temper(*words) for words, _ in table]
    wrong = [
        done
        for done, (_, path) in zip(found, table, strict=True)
        if done.returncode != 2 or f"{path}: expected" not in done.stderr
    ]
    assert not wrong
