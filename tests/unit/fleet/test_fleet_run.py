"""Slices as they run: real jobs of ansible-runner, started by ClusterShell on this machine."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from temper.base import ROOT
from temper.base.store import HistoryError
from temper.cli.fleet import (
    NOT_SLICED,
    SLICED,
    UsageError,
    _alone,
    _may_hold_nodes,
    _tags,
    helpers_of,
    judged,
    main,
    name_of_run,
    playbook_of,
    recap,
    sources_of,
    status_of,
    told,
    variables_again,
)
from temper.cli.main import main as temper
from temper.fleet import identities
from temper.fleet.bundle import python_version
from temper.fleet.collected import Said
from temper.fleet.journal import Job, Journal, NodeRecord, same, sealed
from temper.fleet.run import HERE, Events, FleetRun
from temper.fleet.slices import ATTEMPTS, Board, NodeOutcome, Place, Slice
from temper.fleet.worker import release, slim
from temper.plan import inventory
from temper.plan.extra_vars import ExtraVarsError, variables_of
from temper.plan.inventory import from_listing
from temper.rollout.guard import STOPS, end_descendants
from tests.unit.ansible_commands import ansible
from tests.unit.each import each
from tests.unit.executables import executable
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("forked_ansible")

Begin = Callable[[], subprocess.Popen[bytes]]

PLAY = """
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - name: Look at the node
      ansible.builtin.debug:
        msg: "{{ inventory_hostname }} of {{ site }}, {{ __preflight_lease.attempt }}"
    - name: Refuse a node that is odd
      refuse:
        msg: it is odd
      when: odd | default(false)
    - name: Hand over what was seen
      ansible.builtin.copy:
        content: "{{ {'nodes': ansible_play_hosts_all} | to_json }}"
        dest: "{{ __fleet_collect }}/seen.json"
        mode: "0600"
      run_once: true
"""
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
PART = Slice(1, 2, NODES)
CUT_OFF = "2026-11-23T02-00-00Z-aaaaaa"
READING = "2026-11-23T03-00-00Z-bbbbbb"


def job(playbook: Path, **variables: object) -> Job:
    return Job(str(playbook), (), "", {"site": "north", **variables}, (), NODES)


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    path = tmp_path / "play.yml"
    path.write_text(PLAY)
    return path


def carried_out(
    folder: Path,
    what: Job,
    *,
    own: Mapping[str, Any] | None = None,
    size: int = 2,
    places: Sequence[Place] = (),
    nodes: Sequence[str] = NODES,
    had: int = 0,
) -> FleetRun:
    """Run a job on some of the nodes, which have had so many attempts before."""
    hosts = {node: {"ansible_connection": "local", **(own or {}).get(node, {})} for node in NODES}
    known = from_listing({"gpu_nodes": {"hosts": list(NODES)}, "_meta": {"hostvars": hosts}})
    journal = Journal(folder / "runs.sqlite")
    journal.begin("one", what)
    board = Board.of(nodes, size, places or [Place(HERE, 2)], dict.fromkeys(nodes, had))
    said: list[str] = []
    addresses: dict[str, list[str]] = {"addresses": [], "unknown": []}
    run = FleetRun("one", what, known, board, journal, folder / "run", addresses, True, said.append)
    run.carry_out()
    return run


@pytest.mark.component
def test_slices_run_and_each_node_comes_to_its_own(playbook: Path, tmp_path: Path) -> None:
    run = carried_out(tmp_path, job(playbook), own={"gpu03": {"odd": True}})
    states = {node: one.state for node, one in run.board.outcomes.items()}
    # What is written on the controller counts for the first node of a slice.
    assert states == {"gpu01": "changed", "gpu02": "ok", "gpu03": "refused", "gpu04": "changed"}
    assert run.board.outcomes["gpu03"].reason == "it is odd"
    assert not run.board.left
    records = run.journal.nodes("one")
    seen = [json.loads((tmp_path / "run" / one.folder / "seen.json").read_text()) for one in records.values()]
    assert seen[0] == seen[1] == {"nodes": ["gpu01", "gpu02"]}
    assert seen[2] == seen[3] == {"nodes": ["gpu03", "gpu04"]}
    assert records["gpu03"].counts
    # Only the slice with a bad node keeps Ansible's output.
    (kept,) = (tmp_path / "run").glob("*/artifacts/stdout")
    assert "gpu03 of north, 1" in kept.read_text()
    assert not list((tmp_path / "run").glob("*/artifacts/job_events"))


@pytest.mark.nightly
@pytest.mark.component
def test_a_run_goes_on_in_a_process_of_the_same_number(playbook: Path, tmp_path: Path) -> None:
    """As in a container, where each controller is process 1. Slices begin again at 1."""
    what = job(playbook)
    hosts = {node: {"ansible_connection": "local"} for node in NODES}
    known = from_listing({"gpu_nodes": {"hosts": list(NODES)}, "_meta": {"hostvars": hosts}})
    journal = Journal(tmp_path / "runs.sqlite")
    journal.begin("one", what)
    for nodes in (NODES[:2], NODES[2:]):
        board = Board.of(nodes, 2, [Place(HERE, 1)])
        FleetRun("one", what, known, board, journal, tmp_path / "run", {}, True, print).carry_out()
    records = journal.nodes("one")
    assert {node: one.state for node, one in records.items()} == dict.fromkeys(NODES, "ok") | {
        "gpu01": "changed",
        "gpu03": "changed",
    }
    folders = {one.folder for one in records.values()}
    assert len(folders) == 2
    assert all(name.startswith("0001-1-") and (tmp_path / "run" / name).is_dir() for name in folders)


@pytest.mark.nightly
@pytest.mark.component
def test_a_lease_outlasts_the_measurements_of_its_node(tmp_path: Path) -> None:
    path = tmp_path / "lease.yml"
    path.write_text(
        "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - ansible.builtin.copy:\n"
        '        content: "{{ __preflight_lease.ttl_s }}"\n'
        '        dest: "{{ __fleet_collect }}/{{ inventory_hostname }}"\n        mode: "0600"\n'
    )
    days = {
        "gpu01": {"gpu_validation_timeout_s": 200_000},
        "gpu02": {"gpu_validation_timeout_s": "{{ 2 * 5 }}"},
    }
    run = carried_out(tmp_path, job(path), own=days, size=4)
    folder = tmp_path / "run" / run.journal.nodes("one")["gpu01"].folder
    found = {node: float((folder / node).read_text()) for node in NODES[:3]}
    assert found == {"gpu01": 221_600, "gpu02": 21_610, "gpu03": 21_600}


@pytest.mark.component
def test_a_slice_that_knows_all_nodes_works_on_its_own_alone(tmp_path: Path) -> None:
    path = tmp_path / "peers.yml"
    path.write_text(
        "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - ansible.builtin.copy:\n"
        '        content: "{{ [ansible_play_hosts_all, peers, groups.gpu_nodes] | to_json }}"\n'
        '        dest: "{{ __fleet_collect }}/{{ inventory_hostname }}"\n        mode: "0600"\n'
    )
    own = {node: {"peers": "{{ hostvars[groups.gpu_nodes[-1]].inventory_hostname }}"} for node in NODES}
    run = carried_out(tmp_path, job(path), own=own, nodes=NODES[:2])
    folder = tmp_path / "run" / run.journal.nodes("one")["gpu01"].folder
    found = {file.name: json.loads(file.read_text()) for file in folder.iterdir()}
    assert found == {node: [list(NODES[:2]), "gpu04", list(NODES)] for node in NODES[:2]}


@pytest.mark.component
def test_a_run_that_comes_to_no_node_is_given_up_with_what_ansible_said(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("- hosts: gpu_nodes\n  tusks: []\n")
    run = carried_out(tmp_path, job(broken), size=4, had=ATTEMPTS - 1)
    assert set(run.board.left) == set(NODES)
    assert all("tusks" in reason for reason in run.board.left.values())
    assert not run.board.outcomes


@pytest.fixture
def waits(tmp_path: Path) -> Path:
    """A playbook whose nodes write the id of their process into a file of `begun`, and stay at it."""
    path = tmp_path / "waits.yml"
    (tmp_path / "begun").mkdir()
    stay = f"echo $$ >{tmp_path}/begun/{{{{ inventory_hostname }}}} && exec sleep 600"
    path.write_text(
        f"- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n    - ansible.builtin.shell: {stay}\n"
    )
    return path


def processes(folder: Path) -> list[Path]:
    """Those of the nodes that have begun, while they are there."""
    ids = [path.read_text().strip() for path in (folder / "begun").iterdir()]
    return [Path("/proc", number) for number in ids if number and Path("/proc", number).exists()]


@pytest.mark.component
def test_a_run_that_is_stopped_begins_nothing_and_ends_its_slices(
    waits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    stopper = threading.Thread(target=stop_when, args=(lambda: len(processes(tmp_path)) == 2,))
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        carried_out(tmp_path, job(waits), size=1)
    stopper.join()
    # Nothing goes on, and the inventory's variables are not left behind.
    wait_until(
        lambda: not processes(tmp_path) and not list(own.glob("temper-slice-*")), "nothing is left", 300
    )
    assert {path.name for path in (tmp_path / "begun").iterdir()} == set(NODES[:2])
    records = Journal(tmp_path / "runs.sqlite").nodes("one")
    assert {node: (one.attempt, one.state) for node, one in records.items()} == {
        "gpu01": (1, ""),
        "gpu02": (1, ""),
    }


@pytest.mark.nightly
@pytest.mark.component
def test_a_slice_on_this_machine_that_is_given_up_ends(
    waits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_run: FleetRun) -> None:
        for stream in list(_run.streams.values()):
            if processes(tmp_path):
                stream.worker.abort()

    monkeypatch.setattr("temper.fleet.run.LOOK_S", 0.2)
    monkeypatch.setattr("temper.fleet.run.FleetRun.look", silent)
    run = carried_out(tmp_path, job(waits), size=4)
    assert set(run.board.left) == set(NODES)
    wait_until(lambda: not processes(tmp_path), "its processes end", 300)


@pytest.fixture
def begin(waits: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a slice's worker, and returns once its node's process is there."""
    hosts = {"gpu01": {"ansible_connection": "local"}}
    known = from_listing({"gpu_nodes": {"hosts": ["gpu01"]}, "_meta": {"hostvars": hosts}})
    journal = Journal(tmp_path / "runs.sqlite")
    run = FleetRun("one", job(waits), known, Board([Place(HERE, 1)]), journal, tmp_path, {}, False, print)
    with contextlib.ExitStack() as stack:

        def start() -> subprocess.Popen[bytes]:
            worker = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "temper.fleet.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=ROOT,
                    env={
                        **os.environ,
                        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                        "TMPDIR": str(tmp_path),
                    },
                )
            )
            assert worker.stdin
            worker.stdin.write(run._transmission(Slice(1, 1, ("gpu01",))))
            worker.stdin.flush()
            wait_until(lambda: processes(tmp_path), "its process is there", 300)
            return worker

        yield start


@pytest.mark.nightly
@pytest.mark.component
def test_a_worker_whose_input_ends_says_that_its_run_was_cancelled(begin: Begin, tmp_path: Path) -> None:
    worker = begin()
    assert worker.stdin
    assert worker.stdout
    worker.stdin.close()
    assert b'"status": "canceled"' in worker.stdout.read()
    assert worker.wait(60) == 0
    assert not processes(tmp_path)


@pytest.mark.component
@pytest.mark.parametrize("end", ["the controller is gone", "an interrupt of the terminal"])
def test_a_worker_ends_its_run_whatever_becomes_of_its_controller(
    end: str, begin: Begin, tmp_path: Path
) -> None:
    worker = begin()
    assert worker.stdin
    assert worker.stdout
    if end == "the controller is gone":
        worker.stdout.close()
        worker.stdin.close()
    else:
        worker.send_signal(signal.SIGINT)
    assert worker.wait(120) == 0
    assert not processes(tmp_path)
    assert not list(tmp_path.glob("temper-slice-*"))


@pytest.mark.component
def test_a_worker_that_is_killed_takes_its_run_with_it_and_says_so(begin: Begin, tmp_path: Path) -> None:
    worker = begin()
    (at_work,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    os.kill(int(at_work), signal.SIGKILL)
    assert worker.wait(120) == 128 + signal.SIGKILL
    # Known before the controller hears of the end, and gives the nodes to another one.
    assert not processes(tmp_path)
    assert not list(tmp_path.glob("temper-slice-*"))
    assert worker.stderr
    assert "was killed (SIGKILL" in worker.stderr.read().decode()


@pytest.mark.component
def test_a_run_ends_where_the_process_that_guards_it_is_killed(begin: Begin, tmp_path: Path) -> None:
    begin().kill()
    wait_until(
        lambda: not processes(tmp_path) and not list(tmp_path.glob("temper-slice-*")), "nothing is left", 300
    )


def test_threads_that_come_and_go_do_not_keep_descendants_from_being_ended(tmp_path: Path) -> None:
    gone, here = tmp_path / "1", tmp_path / "2"
    here.mkdir()
    (here / "children").write_text("")
    gone.mkdir()
    (gone / "children").symlink_to(tmp_path / "ended")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temper.rollout.guard.TASKS", tmp_path)
        end_descendants()


def stop_when(condition: Callable[[], bool]) -> None:
    """Interrupt this process, as Ctrl-C does, once something is so."""
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.component
def test_a_signal_does_not_end_what_gives_the_nodes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the second one of a terminal, or that of a guard which Receptor has killed."""
    begun, python = tmp_path / "begun", tmp_path / "python"
    executable(python, f"touch {begun}\nsleep 3\necho '{{}}'")
    own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": str(python)}
    given = {
        "env/extravars": {"__preflight_lease": {"owner": "one", "attempt": 1}},
        # How long ansible-runner waits for a word before it looks whether it is to end.
        "env/settings": {"pexpect_timeout": 1},
        "slice.json": {"gpu_nodes": {"hosts": {"gpu01": own}}},
    }
    (tmp_path / "env").mkdir()
    for name, content in given.items():
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    heard: list[int] = []
    before = {number: signal.signal(number, lambda got, _: heard.append(got)) for number in STOPS}
    try:
        threading.Thread(target=stop_when, args=(begun.exists,)).start()
        release(tmp_path, {"inventory": str(tmp_path / "slice.json")})
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "artifacts/release/status").read_text() == "successful"
    assert heard == [signal.SIGINT]


@pytest.mark.component
@pytest.mark.parametrize(
    ("command", "limits", "words"),
    [
        ("for i in $(seq 2000); do echo welcome; done", {}, "is no run of Ansible"),
        ("echo '{\"zipfile\": 4}'; echo AAAA", {}, "is no run of Ansible"),
        ("echo 5", {}, "is no run of Ansible"),
        ("printf '\\000\\000\\000\\000\\n'", {}, "is no run of Ansible"),
        (
            "tr '\\0' x < /dev/zero",
            {"stream.MOST_BYTES": 1 << 20, "stream.MOST_BYTES_A_NODE": 0},
            "a line without an end",
        ),
        (
            'while :; do echo \'{"event": "keepalive"}\'; sleep 0.1; done',
            {"run.LONGEST_S": 1.0},
            "has not ended within",
        ),
    ],
    ids=["text", "no zip", "a number", "zeros", "a line without an end", "signs of life for ever"],
)
def test_a_slice_that_sends_something_else_is_lost_with_the_reason_and_the_run_goes_on(
    command: str,
    limits: dict[str, float],
    words: str,
    playbook: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("temper.fleet.run._command", lambda *_: command)
    for name, value in {"run.LOOK_S": 0.2, **limits}.items():
        monkeypatch.setattr(f"temper.fleet.{name}", value)
    run = carried_out(tmp_path, job(playbook))
    assert set(run.board.left) == set(NODES)
    assert all(words in reason for reason in run.board.left.values())
    assert not run.board.outcomes


def helped(script: str, playbook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FleetRun:
    """Run slices on a helper; this script takes the place of ssh, and its last argument is the command."""
    ssh = executable(folder / "bin" / "ssh", script)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("temper.fleet.run.bundle", lambda: ("bundle-0", b"content"))
    return carried_out(folder, job(playbook), places=[Place("ctl1", 2)])


@pytest.mark.component
def test_a_greeting_of_a_helper_is_not_taken_for_its_python(
    playbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A banner of sshd, or a warning of ssh, as of a key exchange that is not what it recommends."""
    answer = f"echo Authorized use only. >&2; echo {python_version()}; echo present"
    run = helped(answer, playbook, tmp_path, monkeypatch)
    # It gets slices, of which this one here can make nothing.
    assert all("expected Python" not in reason for reason in run.board.left.values())


@pytest.mark.component
def test_a_helper_whose_disk_is_full_keeps_no_half_of_a_bundle_and_says_so_in_one_line(
    playbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tar = "tar() { touch half; for i in $(seq 9000); do echo no space left; done; return 2; }"
    script = f'for last; do :; done; cd {home}; export HOME={home} XDG_CACHE_HOME=; {tar}; eval "$last"'
    run = helped(script, playbook, tmp_path, monkeypatch)
    (reason,) = set(run.board.left.values())
    assert "ctl1: it could not be given what it needs: no space left" in reason
    assert len(reason) < 200
    assert not list(home.rglob("bundle-*"))


@pytest.mark.component
def test_a_helper_that_does_not_answer_gets_no_slice(
    playbook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.fleet.run.SILENCE_S", 0.5)
    run = helped("exec sleep 600", playbook, tmp_path, monkeypatch)
    assert set(run.board.left) == set(NODES)
    assert all("ctl1" in reason for reason in run.board.left.values())


def test_events_carry_only_what_the_controller_needs() -> None:
    failed = {
        "event": "runner_on_failed",
        "uuid": "u",
        "counter": 3,
        "stdout": "x" * 9000,
        "event_data": {"host": "gpu01", "task": "t", "res": {"msg": "no", "plan": "y" * 9000}},
    }
    kept = slim(failed)
    assert kept
    assert kept["event_data"]["res"] == {"msg": "no"}
    assert len(json.dumps(kept)) < 300
    assert slim({"event": "runner_on_ok", "uuid": "u", "counter": 1}) is None


def test_what_a_node_came_to_is_ansibles_count() -> None:
    events = Events()
    stats = {"processed": {"gpu01": 1, "gpu02": 1, "gpu03": 1}, "dark": {"gpu02": 1}, "changed": {"gpu03": 2}}
    events({"event": "runner_on_unreachable", "event_data": {"host": "gpu02", "res": {"msg": "no route"}}})
    events({"event": "playbook_on_stats", "event_data": stats})
    found = {node: events.outcome(node, PART, "ctl1") for node in NODES}
    assert {node: one.state for node, one in found.items() if one} == {
        "gpu01": "ok",
        "gpu02": "unreachable",
        "gpu03": "changed",
    }
    assert found["gpu02"]
    assert (found["gpu02"].reason, found["gpu02"].attempt, found["gpu02"].place) == ("no route", 2, "ctl1")


def test_nodes_are_counted_as_the_reports_judge_them() -> None:
    records = {
        node: NodeRecord(node, 1, HERE, state, reason)
        for node, state, reason in (
            ("gpu01", "ok", ""),
            ("gpu02", "changed", ""),
            ("gpu03", "unreachable", "no route"),
            ("gpu04", "", ""),
        )
    }
    assert status_of({"gpu01": records["gpu01"], "gpu02": records["gpu02"]}) == 0
    states = {"gpu01": "not checked", "gpu02": "failed", "gpu03": "not checked", "gpu04": "ok"}
    found = judged(records, [Said("", 1, states), Said("", 0, dict.fromkeys(states, "ok"))])
    assert [one.state for one in found.values()] == ["not checked", "failed", "unreachable", ""]
    assert found["gpu03"].reason == "no route"
    assert recap(found, {}).splitlines()[0] == "not checked: gpu01"
    assert status_of({"gpu01": found["gpu01"]}) == 1


def test_the_recap_names_nodes_once_with_their_reasons() -> None:
    records = {
        node: NodeRecord(node, 1, HERE, "failed", f"{node}: disk full")
        for node in ("gpu01", "gpu02", "gpu03")
    } | {"gpu04": NodeRecord("gpu04", 1, HERE, "ok")}
    assert recap(records, {"gpu05": "lost"}).splitlines() == [
        "ok: gpu04",
        "failed: 3 nodes: gpu01-gpu03",
        "  3 nodes: gpu01-gpu03: NODE: disk full",
        "left: gpu05",
        "  gpu05: lost",
    ]


def test_the_journal_remembers_jobs_and_nodes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "runs.sqlite")
    assert journal.last() is None
    what = job(Path("site.yml"), a=[1, {"b": None}])
    journal.begin("2026-01-01T00-00-00Z", what)
    journal.begin("2026-01-02T00-00-00Z", what)
    assert journal.last() == ("2026-01-02T00-00-00Z", replace(what, variables={}), "")
    run = "2026-01-02T00-00-00Z"
    journal.start(run, NODES[:2], 1, "ctl1")
    journal.start(run, NODES[:1], 2, "ctl2")
    journal.end(run, [NodeRecord("gpu01", 2, "ctl2", "ok", "", {"ok": 3}, "0001/collected")])
    journal.finish(run, "all through")
    again = Journal(tmp_path / "runs.sqlite")
    assert again.nodes(run) == {
        "gpu01": NodeRecord("gpu01", 2, "ctl2", "ok", "", {"ok": 3}, "0001/collected"),
        "gpu02": NodeRecord("gpu02", 1, "ctl1", counts={}),
    }
    assert (again.last() or ("", what, ""))[2] == "all through"


@each(
    (["a=1", "b='x y'"], {"a": "1", "b": "x y"}),
    (["a=1 b=2", "", "c-d={{ d }}"], {"a": "1", "b": "2", "c-d": "{{ d }}"}),
    (["{days: [2027-03-31]}"], {"days": ["2027-03-31"]}),
    (['{"a": [1]}', "a=2"], {"a": "2"}),
    (
        ["{a: !vault x, b: [!unsafe '{{ c }}']}"],
        {"a": {"__ansible_vault": "x"}, "b": [{"__ansible_unsafe": "{{ c }}"}]},
    ),
)
def test_variables_are_taken_as_ansible_takes_them(texts: list[str], found: dict[str, Any]) -> None:
    assert variables_of(texts) == found


@pytest.mark.component
def test_vaults_reach_ansible_and_whole_files_are_decrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name}\n")
    vault = VaultLib([("default", VaultSecret(b"right"))])
    value = vault.encrypt("hush").decode()
    text = f"token: !vault |\n{textwrap.indent(value, '  ')}plain: '{{{{ token }}}}'\n"
    (tmp_path / "values.yml").write_text(text)
    (tmp_path / "whole.yml").write_bytes(vault.encrypt(text))
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "right"))
    for name in ("values", "whole"):
        found = variables_of([f"@{tmp_path}/{name}.yml"])
        assert found == {"token": {"__ansible_vault": value}, "plain": "{{ token }}"}
    (tmp_path / "found.json").write_text(json.dumps(found))
    task = {"ansible.builtin.debug": {"msg": "{{ plain }}"}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    words = ["-i", "localhost,", "-c", "local", "-e", f"@{tmp_path}/found.json", f"{tmp_path}/play.yml"]
    assert "hush" in ansible("playbook", *words).stdout
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "wrong"))
    with pytest.raises(ExtraVarsError, match=r"-e @\S+whole.yml: .*ANSIBLE_VAULT_PASSWORD_FILE"):
        variables_of([f"@{tmp_path}/whole.yml"])


@each("a", "{a", "@/nowhere/x.yml", "{}x: [", "a=1 b", "a='1", "{a: !unsafe [1]}")
def test_variables_of_another_form_are_one_sentence(text: str) -> None:
    with pytest.raises(ExtraVarsError, match=r"-e \S+: expected"):
        variables_of([text])


@each("password='s3cret", "{password: [s3cret", "s3cret", "password=s3cret !", "{password: 's3cret")
def test_no_value_is_repeated_where_variables_are_of_another_form(text: str) -> None:
    with pytest.raises(ExtraVarsError) as error:
        variables_of([text])
    assert "s3cret" not in str(error.value)


def test_a_value_that_cannot_be_recorded_is_one_sentence() -> None:
    with pytest.raises(ExtraVarsError, match="-e: expected values that JSON has"):
        variables_of(["{a: !!set {b}}"])


def test_no_two_controllers_give_their_runs_one_name() -> None:
    now = datetime(2026, 11, 23, 2, tzinfo=UTC)
    assert name_of_run(now, "") != name_of_run(now, "")


@each("2026-11-23T02-00-00Z", "2026-11-23T02-00-00Z-ffffff", "2027-12-31T23-59-59Z")
def test_a_run_is_the_last_one_also_where_the_clock_was_set_back(before: str) -> None:
    now = datetime(2026, 11, 23, 2, tzinfo=UTC)
    first = name_of_run(now, before)
    assert before < first < name_of_run(now, first)


def test_what_a_run_leaves_on_the_controller_is_for_its_account_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports" / "fleet"
    folder.mkdir(parents=True, mode=0o755)
    monkeypatch.setattr("temper.cli.fleet.FOLDER", folder)
    with _alone():
        assert folder.stat().st_mode & 0o777 == 0o700


#: What Ansible has said of the inventories of these tests, by their content and its other words.
LISTED: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}


def ask_once(
    command: str, sources: Sequence[str], *arguments: str, real: Any = inventory.ansible
) -> subprocess.CompletedProcess[str]:
    """Have Ansible list each inventory once."""
    asked = (command, *(Path(one).read_text() if Path(one).is_file() else one for one in sources), *arguments)
    if asked not in LISTED:
        LISTED[asked] = real(command, sources, *arguments)
    return LISTED[asked]


@pytest.fixture
def cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A run of four nodes: two are through, one was under way as its third attempt, one had not begun."""
    folder = tmp_path / "reports" / "fleet"
    folder.mkdir(parents=True)
    listing = {"gpu_nodes": {"hosts": {node: {"ansible_connection": "local"} for node in NODES}}}
    (tmp_path / "hosts.json").write_text(json.dumps(listing))
    monkeypatch.setattr("temper.cli.fleet.FOLDER", folder)
    monkeypatch.setattr("temper.cli.fleet.HISTORY", folder / "runs.sqlite")
    monkeypatch.setattr(inventory, "ansible", ask_once)
    journal = Journal(folder / "runs.sqlite")
    journal.begin(CUT_OFF, Job("site.yml", (str(tmp_path / "hosts.json"),), "", {}, (), NODES))
    journal.start(CUT_OFF, NODES[:2], 1, HERE)
    journal.end(CUT_OFF, [NodeRecord(node, 1, HERE, "ok") for node in NODES[:2]])
    journal.start(CUT_OFF, NODES[2:3], 3, HERE)
    return journal


def test_a_run_records_the_inventory_of_the_shell_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("ANSIBLE_INVENTORY", "mine,gpu01,")
    assert sources_of([]) == (str(tmp_path / "mine"), "gpu01")
    assert sources_of(["other"]) == ("other",)
    monkeypatch.delenv("ANSIBLE_INVENTORY")
    assert sources_of([]) == ()


def test_no_value_of_a_variable_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    journal = Journal(path)
    journal.begin("one", replace(job(Path("site.yml"), password="s3cret"), extra=("password",), seal="x"))
    assert not [file for file in tmp_path.iterdir() if b"s3cret" in file.read_bytes()]
    assert path.stat().st_mode & 0o777 == 0o600


def test_values_that_an_earlier_temper_recorded_are_removed_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    journal = Journal(path)
    variables = {"password": "s3cret"}
    old = {"playbook": "site.yml", "sources": [], "limit": "", "options": [], "nodes": list(NODES)}
    with journal.store.writing() as connection:
        row = ("one", json.dumps(old | {"variables": variables}))
        connection.execute("INSERT INTO fleet_run (id, job) VALUES (?, ?)", row)
    path.chmod(0o644)
    assert journal.forget_values() == ["one"]
    assert not [file for file in tmp_path.iterdir() if b"s3cret" in file.read_bytes()]
    assert path.stat().st_mode & 0o777 == 0o600
    last = journal.last()
    assert last
    assert last[1].extra == ("password",)
    assert same(last[1].seal, variables)
    assert not same(last[1].seal, {"password": "other"})
    assert journal.forget_values() == []


def test_who_resumes_gives_the_same_variables_again(tmp_path: Path) -> None:
    file = tmp_path / "more.yml"
    file.write_text("b: 2\n")
    texts = ["password=s3cret", f"@{file}"]
    begun = Job("site.yml", (), "", {}, (), NODES, told(texts), sealed(variables_of(texts)))
    assert begun.extra == ("password", f"@{file}")
    with pytest.raises(UsageError, match="begun with -e of password"):
        variables_again("one", begun, [])
    with pytest.raises(UsageError, match="other values of -e"):
        variables_again("one", begun, ["password=other", f"@{file}"])
    assert variables_again("one", begun, texts) == {"password": "s3cret", "b": 2}


def test_a_file_of_variables_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "more.yml"
    file.write_text("b: 2\n")
    begun = Job("site.yml", (), "", {}, (), NODES, told([f"@{file}"]), sealed({"b": 2}))
    assert variables_again("one", begun, []) == {"b": 2}
    file.write_text("b: 3\n")
    with pytest.raises(UsageError, match="other values"):
        variables_again("one", begun, [])


@pytest.mark.component
def test_no_run_begins_while_another_may_hold_nodes(
    cut_off: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "tune", "-i", str(tmp_path / "hosts.json")]) == 2
    assert f"run {CUT_OFF} (site.yml) has not ended and may hold nodes" in capsys.readouterr().err
    # What has not begun holds nothing, as where the helpers could not be prepared.
    cut_off.end(CUT_OFF, [NodeRecord(NODES[2], 3, HERE, "ok")])
    last = cut_off.last()
    assert last
    assert not _may_hold_nodes(cut_off, *last)


@pytest.mark.component
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--helpers", "@racks"], "expected names such as"),
        (
            ["-e", "{firewall_peers: '{{ inventory_dir }}'}"],
            "-e: firewall_peers is a template of inventory_dir",
        ),
        (["-i", "slashed.json"], "rack1/gpu07: expected names without a slash"),
    ],
)
def test_a_run_that_cannot_be_is_not_recorded(
    options: list[str],
    words: str,
    cut_off: Journal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut_off.finish(CUT_OFF, "given up")
    monkeypatch.chdir(tmp_path)
    Path("slashed.json").write_text('{"gpu_nodes": {"hosts": {"rack1/gpu07": {}}}}')
    assert main(["run", "compliance", "-i", "hosts.json", *options]) == 2
    assert words in capsys.readouterr().err
    last = cut_off.last()
    assert last
    assert last[0] == CUT_OFF


@pytest.mark.component
@pytest.mark.parametrize("gives", [True, False], ids=["all answer", "no place to run"])
def test_a_run_that_was_cut_off_is_given_up_with_the_nodes_it_holds(
    cut_off: Journal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gives: bool
) -> None:
    asked = []

    def carry_out(run: FleetRun) -> None:
        for part, place in run.board.start():
            asked.append((run.job.playbook, run.name, part.nodes, part.attempt))
            if gives:
                outcomes = {node: NodeOutcome("changed", "", part.attempt, place) for node in part.nodes}
                run.journal.start(run.name, part.nodes, part.attempt, place)
                run.journal.end(
                    run.name, [NodeRecord(node, part.attempt, place, "changed") for node in part.nodes]
                )
                run.board.end(part, outcomes)
            else:
                run.board.exclude(place, "it is gone")
                run.board.lose(part, "it is gone")

    monkeypatch.setattr(FleetRun, "carry_out", carry_out)
    assert main(["abort"]) == (0 if gives else 3)
    # One more than the attempt that may still be at work there.
    assert asked[0] == ("playbooks/release.yml", CUT_OFF, NODES[2:3], 4)
    said = capsys.readouterr().out
    if gives:
        assert "given up; 1 of 4 nodes given back" in said
        assert cut_off.nodes(CUT_OFF)[NODES[2]].reason == "given up before it was through"
    else:
        assert "left: gpu03" in said
    if gives:
        # One that has ended may be named: a node that went away could not give its lease back.
        asked.clear()
        assert main(["abort", CUT_OFF]) == 0
        assert [nodes for *_, nodes, _ in asked] == [NODES[2:3]]
        assert main(["abort", "yesterday"]) == 2
        assert "found yesterday" in capsys.readouterr().err
    # Whoever was not reached can be given back later.
    assert main(["abort"]) == (2 if gives else 3)
    assert ("nothing is left of the last run" in capsys.readouterr().err) is gives


@pytest.fixture
def goes_well(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each node of each run is through at once; the names of the runs that were carried out."""
    carried = []

    def carry_out(run: FleetRun) -> None:
        if run.job.playbook == identities.PLAYBOOK:  # nobody answers
            return
        carried.append(run.name)
        for part, place in run.board.start():
            records = [NodeRecord(node, part.attempt, place, "ok") for node in part.nodes]
            run.journal.start(run.name, part.nodes, part.attempt, place)
            run.journal.end(run.name, records)
            run.board.end(part, {one.node: one.outcome for one in records})

    monkeypatch.setattr(FleetRun, "carry_out", carry_out)
    return carried


def begun(journal: Journal, name: str, playbook: str, ended: str = "") -> str:
    """A run after the one that was cut off, on the same nodes."""
    last = journal.last()
    assert last
    journal.begin(name, replace(last[1], playbook=playbook))
    if ended:
        journal.finish(name, ended)
    return name


@pytest.mark.component
@pytest.mark.parametrize("ended", ["4 of 4 nodes are through", ""], ids=["ended", "cut off, too"])
def test_a_run_that_only_reads_does_not_hide_one_that_may_hold_nodes(
    cut_off: Journal, goes_well: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], ended: str
) -> None:
    reading = begun(cut_off, READING, "playbooks/compliance.yml", ended)
    assert main(["status"]) == 3
    said = capsys.readouterr().out
    assert f"run {CUT_OFF}: site.yml: not ended" in said
    assert f"run {reading} (playbooks/compliance.yml)" in said
    assert f"temper fleet status {reading}" in said
    assert main(["run", "tune", "-i", str(tmp_path / "hosts.json")]) == 2
    said = capsys.readouterr().err
    assert f"run {CUT_OFF} (site.yml) has not ended and may hold nodes" in said
    assert f"temper fleet resume {CUT_OFF} " in said
    assert f"temper fleet abort {CUT_OFF} " in said
    assert not goes_well
    assert main(["resume"]) == 0
    assert goes_well == [CUT_OFF]
    assert (f"temper fleet resume {reading} " in capsys.readouterr().out) is (ended == "")
    # It has ended now: the last run is meant.
    assert main(["resume"]) == (2 if ended else 0)
    assert goes_well[1:] == ([] if ended else [reading])
    if ended:
        assert f"nothing is left of the last run, {reading}" in capsys.readouterr().err


@pytest.mark.component
def test_abort_gives_back_what_a_run_before_the_last_one_holds(
    cut_off: Journal, goes_well: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    begun(cut_off, READING, "playbooks/compliance.yml", "4 of 4 nodes are through")
    assert main(["abort"]) == 0
    assert goes_well == [CUT_OFF]
    assert f"run {CUT_OFF}: given up" in capsys.readouterr().out
    assert main(["abort"]) == 2


@pytest.mark.component
def test_a_run_can_be_named(
    cut_off: Journal, goes_well: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    reading = begun(cut_off, READING, "playbooks/compliance.yml")
    for command in ("resume", "status"):
        assert main([command, "yesterday"]) == 2
        assert "found yesterday" in capsys.readouterr().err
    assert main(["resume", reading]) == 0
    assert goes_well == [reading]
    assert main(["status", reading]) == 0
    assert f"run {reading}: playbooks/compliance.yml: 4 of 4 nodes done: 4 ok" in capsys.readouterr().out
    assert main(["resume", reading]) == 2
    assert f"nothing is left of run {reading}: 4 of 4" in capsys.readouterr().err
    assert main(["status", CUT_OFF]) == 3
    capsys.readouterr()
    assert main(["status", reading, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run"], shown["ended"]) == (reading, "4 of 4 nodes done: 4 ok")
    assert {node["state"] for node in shown["nodes"].values()} == {"ok"}
    assert main(["status", CUT_OFF, "--json"]) == 3
    assert "left" in {node["state"] for node in json.loads(capsys.readouterr().out)["nodes"].values()}


@pytest.mark.component
def test_who_goes_on_after_an_interrupt_is_told_with_what(
    cut_off: Journal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = begun(cut_off, READING, "playbooks/compliance.yml")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FleetRun, "carry_out", interrupted)
    for words in (["resume", reading], ["abort", CUT_OFF]):
        assert temper(["fleet", *words]) == 130
        assert f"temper fleet {' '.join(words)} " in capsys.readouterr().err
    monkeypatch.setattr("temper.plan.inventory.read", interrupted)
    assert temper(["fleet", "run", "tune"]) == 130
    assert "temper fleet resume" not in capsys.readouterr().err


@pytest.mark.component
@each(OSError(errno.ENOSPC, "disk full", "runs\x1b[2J"), HistoryError("disk full"))
def test_a_run_that_this_machine_ends_is_not_finished(
    error: Exception,
    cut_off: Journal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(FleetRun, "carry_out", Mock(side_effect=error))
    assert main(["resume"]) == 3
    said = capsys.readouterr().err
    assert all(fact in said for fact in ("disk full", f"temper fleet resume {CUT_OFF}"))
    assert "\x1b" not in said


@pytest.mark.component
def test_a_report_that_cannot_be_written_is_what_resume_has_left(
    cut_off: Journal,
    goes_well: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "disk full", "reports/plan.json")
        patch.setattr("temper.cli.fleet.plans", Mock(side_effect=full))
        assert main(["resume"]) == 3
    said = capsys.readouterr().err
    facts = (
        "all nodes are done",
        "reports/plan.json",
        "disk full",
        f"temper fleet resume {CUT_OFF} writes it",
    )
    assert all(fact in said for fact in facts)
    missing = "only its report is missing"
    main(["status"])
    assert missing in capsys.readouterr().out
    assert main(["resume"]) == 0
    assert goes_well == [CUT_OFF]
    assert missing in capsys.readouterr().out
    assert not cut_off.unended()


@pytest.mark.component
@pytest.mark.parametrize(("playbook", "left"), [("tune", []), ("compliance", [CUT_OFF])])
def test_a_run_takes_the_place_of_those_that_hold_nothing(
    playbook: str,
    left: list[str],
    cut_off: Journal,
    goes_well: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else `resume` and `status` would come back to what nobody waits for. One that reads ends no change."""
    cut_off.end(CUT_OFF, [NodeRecord(NODES[2], 3, HERE, "ok")])
    reading = begun(cut_off, READING, "playbooks/compliance.yml")
    assert main(["run", playbook, "-i", str(tmp_path / "hosts.json")]) == 0
    assert [name for name, _ in cut_off.unended()] == left
    (name,) = goes_well
    assert (
        f"run {name} takes the place of run {reading} (playbooks/compliance.yml)" in capsys.readouterr().out
    )
    assert main(["resume", reading]) == 2
    assert f"run {name} has taken its place" in capsys.readouterr().err


@pytest.mark.component
def test_abort_names_the_nodes_that_it_could_not_ask(
    cut_off: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    listing = {"gpu_nodes": {"hosts": {NODES[0]: {}, NODES[2]: away}}}
    (tmp_path / "hosts.json").write_text(json.dumps(listing))
    assert main(["abort"]) == 1
    said = capsys.readouterr().out
    assert f"1 could not be asked, and may be held: abort {CUT_OFF} asks them again" in said
    assert "gpu03" in said
    assert "Connection refused" in said
    assert not cut_off.unended()


@pytest.mark.component
@pytest.mark.parametrize(
    ("given", "apart"),
    [({"gpu01": True}, "gpu01"), ({"gpu01": "{{ x }}"}, "gpu01"), ({"gpu01": False, "gpu02": "no"}, "")],
)
def test_nodes_that_were_to_be_measured_with_others_are_named(
    given: dict[str, Any],
    apart: str,
    cut_off: Journal,
    goes_well: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else a fleet has passed, and nobody knows that a part of what it asked for was left out."""
    monkeypatch.setattr("temper.cli.fleet.validation", lambda *_: Said("Verdict: pass.", 0))
    hosts = {node: {"gpu_validation_fabric": given.get(node, False)} for node in NODES}
    (tmp_path / "hosts.json").write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    assert main(["resume"]) == 0
    said = capsys.readouterr().out
    assert ("gpu_validation_fabric" in said) is bool(apart)
    assert apart in said


@pytest.mark.component
def test_abort_of_a_run_that_has_ended_leaves_what_is_known_of_it(
    cut_off: Journal, goes_well: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    away = NodeRecord(NODES[2], 3, HERE, "unreachable", "no route to host")
    cut_off.end(CUT_OFF, [away])
    cut_off.finish(CUT_OFF, "3 of 3 nodes are through")
    assert main(["abort", CUT_OFF]) == 0
    assert goes_well == [CUT_OFF]
    known = cut_off.nodes(CUT_OFF)[NODES[2]]
    assert (known.state, known.reason, known.attempt) == ("unreachable", "no route to host", 4)
    good = begun(cut_off, READING, "site.yml", "4 of 4 nodes are through")
    cut_off.start(good, NODES, 1, HERE)
    cut_off.end(good, [NodeRecord(node, 1, HERE, "ok") for node in NODES])
    assert main(["abort", good]) == 2
    assert f"nothing is left of run {good}: 4 of 4 nodes are through" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '{"playbook": "site.yml"}', '{"playbook": 1}'])
def test_a_record_that_cannot_be_read_is_one_sentence(
    text: str, cut_off: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    with cut_off.store.writing() as connection:
        connection.execute("UPDATE fleet_run SET job = ?", (text,))
    assert main(["status"]) == 2
    assert f"run {CUT_OFF} cannot be read" in capsys.readouterr().err


@each(
    (["--ssh-options", "-F 'x"], "No closing quotation"),
    (["--forks", "-1"], "a whole number"),
    (["--forks", "0"], "a whole number"),
    (["--jobs", "many"], "a whole number"),
    (["--slice", "0"], "a whole number"),
)
def test_an_option_of_another_form_is_refused_before_a_run_is_recorded(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "compliance", *options])
    assert words in capsys.readouterr().err


@pytest.mark.component
def test_tags_may_be_given_again_and_a_name_of_no_node_is_refused(
    cut_off: Journal, goes_well: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off.finish(CUT_OFF, "given up")
    words = ["-i", str(tmp_path / "hosts.json"), "-t", "pull", "--limit"]
    assert main(["run", "tune", *words, "gpu01,gpu0l"]) == 2
    assert "no node and no group has the name gpu0l" in capsys.readouterr().err
    words += ["gpu01", "-t"]
    assert main(["run", "tune", *words, "os_tunin"]) == 2
    assert "did you mean os_tuning?" in capsys.readouterr().err
    assert main(["run", "tune", *words, "os_tuning"]) == 0
    last = cut_off.last(goes_well[0])
    assert last
    assert (last[1].nodes, last[1].options) == (("gpu01",), ("--tags", "pull,os_tuning"))


@pytest.mark.component
def test_old_runs_are_forgotten_whole_and_those_that_have_not_ended_never(
    cut_off: Journal, goes_well: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.cli.fleet.KEPT_RUNS", 2)
    folder = tmp_path / "reports" / "fleet"
    ended = {
        "2026-11-22T01": "site.yml",  # the third of those that take nodes
        "2026-11-22T02": "playbooks/tune.yml",
        "2026-11-24T01": "playbooks/compliance.yml",
        "2026-11-24T02": "playbooks/preflight.yml",
        "2026-11-24T03": "playbooks/compliance.yml",
    }
    for name, playbook in ended.items():
        begun(cut_off, name, playbook, "through")
        cut_off.start(name, NODES, 1, HERE)
    for name in (CUT_OFF, *ended):
        (folder / name).mkdir()
    main(["resume"])
    left = {"2026-11-22T02", CUT_OFF, "2026-11-24T02", "2026-11-24T03"}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == left
    assert {name for name in (CUT_OFF, *ended) if cut_off.nodes(name)} == left
    assert {name for name in (CUT_OFF, *ended) if cut_off.last(name)} == left
    # One that was cut off stays, however many come after it.
    begun(cut_off, "2026-11-21T01", "site.yml")
    begun(cut_off, "2026-11-21T02", "playbooks/compliance.yml")
    assert cut_off.old(2) == []
    assert set(cut_off.old(0)) == left


@pytest.mark.component
@pytest.mark.parametrize("names", ["@racks", "ctl[1-", "-oProxyCommand=id", "ctl 1", "ctl1/3"])
def test_helpers_are_names_of_machines(names: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--helpers {names}: expected names")):
        helpers_of(names)


def test_without_helpers_this_machine_is_the_place() -> None:
    assert helpers_of("") == []
    assert helpers_of("ctl[1-2],ops@login.example.org") == ["ctl1", "ctl2", "ops@login.example.org"]


def test_a_playbook_is_one_of_tempers() -> None:
    assert playbook_of("compliance") == "playbooks/compliance.yml"
    assert playbook_of("site.yml") == "site.yml"
    with pytest.raises(UsageError, match=r"expected a playbook that can be cut into slices, found mine"):
        playbook_of("mine.yml")
    with pytest.raises(UsageError, match=r"found complience; did you mean compliance\?"):
        playbook_of("complience")


def test_each_playbook_is_cut_into_slices_or_refused_with_the_reason() -> None:
    """A new one has to be in one of the two."""
    known = {"site.yml", *(f"playbooks/{path.name}" for path in (ROOT / "playbooks").glob("*.yml"))}
    assert set(SLICED) | set(NOT_SLICED) == known
    assert not set(SLICED) & set(NOT_SLICED)


@each(*SLICED)
def test_what_is_cut_into_slices_loses_nothing(path: str) -> None:
    """What is written on the controller, roles hand over in `__fleet_collect`; a playbook writes nothing."""
    assert playbook_of(path) == path
    text = (ROOT / path).read_text()
    assert not re.search(r"delegate_to|inventory_dir|inventory_file|ansible_inventory_sources", text)
    imported = re.findall(r"import_playbook: (\S+)", text)
    assert {str(Path(path).parent / one) for one in imported} <= set(SLICED)


@each(
    ("autotune", "ansible-playbook -i INVENTORY playbooks/autotune.yml --limit NODE"),
    ("image", "ansible-playbook -i INVENTORY playbooks/image.yml"),
    ("kernel_preview", "temper rollout plan -i INVENTORY --kernel newest"),
    ("mirror_list", "ansible-playbook -i INVENTORY playbooks/mirror_list.yml --limit NODES"),
    ("release", "temper fleet abort RUN"),
    ("upgrade", "temper rollout run -i INVENTORY --stack STACK"),
    ("upgrade_settle", "temper rollout run -i INVENTORY --stack STACK"),
    ("upgrade_step", "temper rollout run -i INVENTORY --stack STACK"),
)
def test_what_cannot_be_cut_into_slices_is_refused_with_what_to_type(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (name, f"{name}.yml", f"playbooks/{name}.yml"):
        assert main(["run", given]) == 2
        said = capsys.readouterr().err
        assert f"playbooks/{name}.yml cannot be cut into slices, because " in said
        assert said.endswith(f"; type: {words}\n")


@each(
    ([], []),
    (["firewall, ssh_hardening"], ["--tags", "firewall,ssh_hardening"]),
    ([" firewall ,", "ssh_hardening"], ["--tags", "firewall,ssh_hardening"]),
    (["firewall, fierwall"], "did you mean firewall"),
    # An empty variable of a shell is not to mean every task.
    ([""], "found none"),
    ([" , "], "found none"),
)
def test_tags_are_read_as_ansible_playbook_reads_them(
    given: list[str], expected: list[str] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "      TASK TAGS: [firewall, ssh_hardening]\n"
    answer = subprocess.CompletedProcess([], 0, listed, "")
    monkeypatch.setattr("temper.cli.fleet.inventory.ansible", lambda *_: answer)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            _tags("site.yml", given)
    else:
        assert _tags("site.yml", given) == expected
