"""Processes that are killed while they write: what is there afterwards is whole, and nothing is lost."""

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import lease

from temper.fleet.journal import Job, Journal

pytestmark = pytest.mark.component

FORK = multiprocessing.get_context("fork")
KILLS = 25
JOB = Job("site.yml", (), "", {}, (), ())


def killed(write: Callable[..., None], seed: int) -> list[Any]:
    """Have a process write until it is killed; return what it has said it has written."""
    said, saying = FORK.Pipe(duplex=False)
    process = FORK.Process(target=write, args=(saying,))
    process.start()
    saying.close()
    found = [said.recv()]  # it is at work
    time.sleep(random.Random(seed).uniform(0, 0.03))
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while said.poll():
        try:
            found.append(said.recv())
        except EOFError:
            break
    return found


def test_a_journal_loses_no_run_that_a_killed_controller_has_recorded(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"

    def write(name: str) -> Callable[..., None]:
        def work(saying: Connection | None = None) -> None:
            journal = Journal(path)
            for number in range(10_000):
                run = f"{name}-{number:05}"
                journal.begin(run, JOB)
                journal.start(run, ["gpu01"], 1, "here")
                if saying:
                    saying.send(run)

        return work

    recorded: set[str] = set()
    other = FORK.Process(target=write("other"), daemon=True)
    other.start()
    for attempt in range(KILLS):
        recorded.update(killed(write(f"killed-{attempt}"), attempt))
    assert other.is_alive()
    other.kill()
    other.join()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        there = {run for (run,) in connection.execute("SELECT run FROM fleet_node")}
    assert recorded <= there


def test_no_fencing_number_is_given_twice_by_processes_that_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"

    def work(saying: Connection) -> None:
        while True:
            held = lease.acquire("ada", 600, path=path)
            lease.release("ada", held.fencing, path=path)
            saying.send(held.fencing)

    given: list[int] = []
    for attempt in range(KILLS):
        given += killed(work, attempt)
        assert lease.read(path).fencing >= given[-1]
        lease.release("ada", lease.read(path).fencing, path=path)
    assert given == sorted(set(given))
