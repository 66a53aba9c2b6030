"""`temper plan`: preflight from any folder, its document for programs, and the exit status."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from temper.cli import plan
from temper.cli.main import main

INVENTORY = "gpu_nodes: {hosts: {gpu01: {ansible_host: 127.0.0.1, ansible_port: 1}, gpu02: {}}}\n"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder than the checkout, with an inventory."""
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preflight_leaves(
    monkeypatch: pytest.MonkeyPatch, nodes: dict[str, Any] | None, status: int = 0
) -> list[list[str]]:
    """Replace ansible-playbook by what preflight leaves; returns the command lines that it is given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        if nodes is not None:
            path = Path(json.loads(command[3])["preflight_plan_file"])
            path.write_text(json.dumps({"schema_version": 2, "nodes": nodes}))
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(plan, "read", lambda *_: None)
    return commands


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ({"gpu01": {"problems": []}}, 0),
        ({"gpu01": {"problems": []}, "gpu02": {"problems": ["no GPU"]}}, 1),
        (None, 2),
    ],
)
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_exit_status_says_whether_every_node_has_a_plan(
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: dict[str, Any] | None,
    status: int,
    words: list[str],
) -> None:
    monkeypatch.setattr(plan, "PLANS", elsewhere / "plan.json")
    preflight_leaves(monkeypatch, nodes)
    assert main(["plan", *words]) == status


def test_a_plan_of_an_earlier_run_is_not_taken_for_this_one(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "PLANS", elsewhere / "plan.json")
    plan.PLANS.write_text(json.dumps({"nodes": {"gpu01": {"problems": []}}}))
    preflight_leaves(monkeypatch, None)
    assert main(["plan"]) == 2
    assert "no plan was made" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "status"), [(0, 0), (2, 0), (1, 2), (4, 2), (99, 130)])
def test_a_plan_of_another_run_is_not_taken_for_one_that_broke_off(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, ended: int, status: int
) -> None:
    monkeypatch.setattr(plan, "PLANS", elsewhere / "plan.json")
    preflight_leaves(monkeypatch, {"gpu01": {"problems": []}}, ended)
    assert main(["plan"]) == status


def test_an_inventory_that_is_not_there_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = preflight_leaves(monkeypatch, {})
    assert main(["plan", "-i", str(elsewhere / "nosuch")]) == 2
    assert str(elsewhere / "nosuch") in capsys.readouterr().err
    main(["plan", "-i", "gpu01,gpu02"])
    assert len(commands) == 1


def test_an_option_that_is_misspelt_is_named(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = preflight_leaves(monkeypatch, {})
    assert main(["plan", "--limti", "gpu01"]) == 2
    assert main(["uninstall", "--yes", "--chek"]) == 2
    assert [line.partition("; did you mean ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "--limit?",
        "--check?; nothing was changed",
    ]
    main(["plan", "--inventory-file", "hosts.yml"])  # Ansible's own
    assert len(commands) == 1


def test_other_options_are_ansible_playbooks(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = preflight_leaves(monkeypatch, {})
    main(["plan", "-i", "hosts.yml", "--limit", "gpu01", "--json", "--ask-become-pass", "-e", "@more.yml"])
    assert commands[0][2] == "-e"
    words = commands[0][4:]
    assert words == ["-i", "hosts.yml", "--limit", "gpu01", "--ask-become-pass", "-e", "@more.yml"]


@pytest.mark.component
def test_no_other_playbook_is_carried_out(elsewhere: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "other.yml").write_text(
        "- {hosts: localhost, tasks: [{ansible.builtin.debug: {msg: carried out}}]}\n"
    )
    assert main(["plan", "other.yml"]) == 2
    said = capfd.readouterr()
    assert "carried out" not in said.out + said.err


@pytest.mark.component
def test_preflight_runs_from_any_folder_and_standard_output_is_the_document(
    elsewhere: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-i", "hosts.yml", "--limit", "gpu01", "--json"]) == 1
    said = capfd.readouterr()
    nodes = json.loads(said.out)["nodes"]
    assert list(nodes) == ["gpu01"]
    assert "cannot be reached over SSH" in nodes["gpu01"]["problems"][0]
    assert "PLAY RECAP" in said.err


def test_waived_controls_are_listed_with_their_reasons(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "PLANS", elsewhere / "plan.json")
    assert main(["plan", "--waived"]) == 2
    assert "temper plan makes them" in capsys.readouterr().err
    control = {"id": "umask", "title": "Files are private", "by": "the profile gpu", "reason": "shared homes"}
    nodes = {name: {"problems": [], "waived": "a1"} for name in ("gpu01", "gpu02")}
    plan.PLANS.write_text(json.dumps({"nodes": nodes, "waived": {"a1": [control]}}))
    assert main(["plan", "--waived"]) == 0
    said = capsys.readouterr().out
    assert "2 nodes: gpu01, gpu02: 1 control waived" in said
    assert "umask: Files are private\n    by the profile gpu: shared homes" in said
    assert main(["plan", "--waived", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["waived"] == [
        {"nodes": ["gpu01", "gpu02"], "controls": [control]}
    ]
