"""A machine that two slices have under two names is refused before the first slice changes anything."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from temper.base import ROOT
from temper.cli import fleet as command
from temper.fleet import identities
from temper.fleet.collected import CollectedError
from temper.fleet.identities import Named
from temper.fleet.journal import Job, Journal
from temper.fleet.run import HERE, FleetRun
from temper.fleet.slices import Board, Place
from temper.plan.identity import twins
from temper.plan.inventory import from_listing
from temper.plan.jump_hosts import MOST_LEVELS
from tests.unit.each import each


def handed_over(folder: Path, document: Any) -> Path:
    folder.mkdir()
    (folder / "identity.json").write_text(json.dumps(document))
    return folder


def test_names_of_one_machine_in_two_slices_are_refused_under_both(tmp_path: Path) -> None:
    own, other = {"machine": ["a", "b"], "level": 0}, {"machine": ["c"], "level": 2, "host_keys": ["rsa x"]}
    silent = {"machine": [], "level": 0}
    found = identities.read(
        [
            handed_over(tmp_path / "1", {"nodes": {"gpu01": own, "gpu02": other, "gpu04": silent}}),
            handed_over(tmp_path / "2", {"nodes": {"gpu01-ib": own, "gpu03": silent}}),
        ]
    )
    assert found["gpu02"] == Named(("c",), 2, ("rsa x",))
    refused = twins(found).refused
    assert refused.keys() == {"gpu01", "gpu01-ib"}
    assert refused["gpu01"].facts["others"] == "gpu01-ib"


@each(
    {},
    [],
    {"nodes": []},
    {"nodes": {"a": {"machine": "x", "level": 0}}},
    {"nodes": {"a": {"machine": []}}},
)
def test_an_answer_of_another_form_is_said(document: Any, tmp_path: Path) -> None:
    with pytest.raises(CollectedError, match="expected"):
        identities.read([handed_over(tmp_path / "1", document)])


def test_nothing_but_the_forks_of_a_run_is_for_the_question() -> None:
    job = Job("site.yml", (), "", {"x": 1}, ("--tags", "harden", "--forks", "8", "--check"), ("gpu01",))
    assert identities.asking(job).options == ("--forks", "8")
    assert identities.asking(job).variables == {"x": 1}


@each(
    ({"gpu01": Named(("a",), 0), "gpu02": Named(("b",), 0), "gpu03": Named(("c",), 1)}, ""),
    ({"gpu01": Named(("a",), 0), "gpu02": Named((), 0)}, "2 nodes: gpu02, gpu03"),
    ({}, "3 nodes: gpu01-gpu03"),
)
def test_nodes_that_did_not_say_which_machine_they_are_are_named(
    named: dict[str, Named],
    unnamed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody knows whether one of them is another node's machine, and the run goes on."""
    job = Job("site.yml", (), "", {}, (), ("gpu01", "gpu02", "gpu03"))
    journal = Journal(tmp_path / "runs.sqlite")
    journal.begin("one", job)
    known = from_listing(
        {"gpu_nodes": {"hosts": list(job.nodes)}, "_meta": {"hostvars": {one: {} for one in job.nodes}}}
    )
    monkeypatch.setattr(identities, "ask", lambda _: named)
    monkeypatch.setattr("temper.fleet.run.FleetRun", Mock())
    monkeypatch.setattr("temper.cli.fleet.fleet_addresses", Mock())
    monkeypatch.setattr(command, "_report", lambda *_: 0)
    given = argparse.Namespace(helpers="", slice=1, jobs=1, ssh_options=())
    assert command._carry_out("one", job, journal, known, given) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "no answer" in line]
    assert [unnamed in line for line in said] == [True] * bool(unnamed)


@pytest.mark.component
def test_two_slices_on_this_machine_have_it_under_two_names(tmp_path: Path) -> None:
    names = ("gpu01", "gpu02", "gpu03")
    here = {
        "ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable,
    }  # fmt: skip
    hosts = dict.fromkeys(names[:2], here) | {
        "gpu03": here | {"ansible_connection": "ssh", "ansible_port": 1}
    }
    hosts["gpu03"]["ansible_host"] = "127.0.0.1"
    known = from_listing({"gpu_nodes": {"hosts": list(names)}, "_meta": {"hostvars": hosts}})
    job = Job("site.yml", (), "", {}, (), names)

    def prepared(journal: Journal) -> FleetRun:
        board = Board.of(names, 1, [Place(HERE, 2)])
        return FleetRun("one", identities.asking(job), known, board, journal, tmp_path, {}, False, print)

    found = identities.ask(prepared)
    assert {name for name, one in found.items() if one.machine} == {*names[:2]}
    assert twins(found).refused.keys() == {*names[:2]}


def test_drivers_are_loaded_on_jump_hosts_level_by_level_after_all_others() -> None:
    tasks = yaml.safe_load((ROOT / "roles/nvidia_stack/tasks/main.yml").read_text())
    reboots = [
        str(task["when"]) for task in tasks if task.get("ansible.builtin.include_tasks") == "reboot.yml"
    ]
    assert "not in groups.temper_jump_hosts |" in reboots[0]
    assert [f"in groups.temper_jump_hosts_{level} " in text for level, text in enumerate(reboots[1:], 1)] == (
        [True] * MOST_LEVELS
    )
