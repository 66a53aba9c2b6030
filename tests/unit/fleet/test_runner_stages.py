"""A slice is a job of ansible-runner: its own commands carry it, as those do that AWX and Receptor start."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from temper.base import ROOT
from temper.fleet.journal import Job, Journal
from temper.fleet.run import HERE, Events, FleetRun
from temper.fleet.slices import Board, Place, Slice
from temper.plan.inventory import from_listing

pytestmark = pytest.mark.component

PLAY = """
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Look at the node
      ansible.builtin.assert:
        that: not odd | default(false)
        fail_msg: it is odd in {{ site }}
"""
NODES = ("gpu01", "gpu02")
RUNNER = str(Path(sys.executable).with_name("ansible-runner"))


def stage(command: Sequence[str], folder: Path, given: bytes = b"") -> bytes:
    """What a stage writes to the next one; it reads a file, as Receptor gives it one.

    Its status may be that of the run, of which a node is bad.
    """
    (folder / "given").write_bytes(given)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "given").open("rb") as file:
        done = subprocess.run(
            command, stdin=file, capture_output=True, cwd=ROOT, env={**os.environ, "PATH": path}
        )
    assert not done.stderr
    return done.stdout


def by_the_controller(folder: Path, play: Path) -> bytes:
    """The job that a run over slices sends."""
    hosts = {"gpu01": {"ansible_connection": "local"}, "gpu02": {"ansible_connection": "local", "odd": True}}
    known = from_listing({"gpu_nodes": {"hosts": list(NODES)}, "_meta": {"hostvars": hosts}})
    job = Job(str(play), (), "", {"site": "north"}, (), NODES)
    board, journal = Board([Place(HERE, 1)]), Journal(folder / "runs.sqlite")
    run = FleetRun("one", job, known, board, journal, folder, {}, False, print)
    return run._transmission(Slice(1, 1, NODES))


def by_the_command(folder: Path, play: Path) -> bytes:
    """The job that `ansible-runner transmit` makes of a folder of somebody else's."""
    content = {
        "inventory/hosts": "[gpu_nodes]\ngpu01\ngpu02 odd=true\n[all:vars]\nansible_connection=local\n",
        "env/extravars": json.dumps({"site": "north"}),
    }
    for name, text in content.items():
        (folder / "job" / name).parent.mkdir(parents=True)
        (folder / "job" / name).write_text(text)
    return stage([RUNNER, "transmit", str(folder / "job"), "--playbook", str(play)], folder)


@pytest.mark.parametrize(
    ("transmit", "worker"),
    [
        (by_the_controller, (RUNNER, "worker")),
        (by_the_command, (sys.executable, "-m", "temper.fleet.worker")),
    ],
    ids=["our job, their worker", "their job, our worker"],
)
def test_a_job_passes_through_the_stages_of_ansible_runner(
    transmit: object, worker: tuple[str, ...], tmp_path: Path
) -> None:
    play = tmp_path / "play.yml"
    play.write_text(PLAY)
    assert callable(transmit)
    said = stage(worker, tmp_path, transmit(tmp_path, play))
    done = tmp_path / "processed"
    done.mkdir()
    stage([RUNNER, "process", str(done)], tmp_path, said)
    events = Events()
    for path in sorted(done.glob("artifacts/**/job_events/*.json")):
        events(json.loads(path.read_text()))
    found = {node: events.outcome(node, Slice(1, 1, NODES), HERE) for node in NODES}
    assert {node: (one.state, one.reason) for node, one in found.items() if one} == {
        "gpu01": ("ok", ""),
        "gpu02": ("failed", "it is odd in north"),
    }
