"""Runs one slice, here or on a helper: a job of ansible-runner in, its events out.

    python3 -m temper.fleet.worker < job > events

The job is what `ansible-runner transmit` writes, and the output is what `ansible-runner process` reads. To
`ansible-runner worker` two things are added: only events that the controller needs are sent, and where
standard input ends, because the controller or the connection is gone, or a signal asks for it, the run ends
with all its processes.

So it does where the worker itself is killed: temper/rollout/guard.py says how.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_runner import run  # type: ignore[import-untyped]  # it ships no types
from ansible_runner.streaming import Worker  # type: ignore[import-untyped]  # likewise

from temper.base import ROOT
from temper.fleet.bundle import in_use
from temper.fleet.stream import COLLECTED
from temper.rollout.guard import STOPS, end_descendants, guarded

IDENT = "slice"
#: How often a run that has nothing to say gives a sign of life.
KEEPALIVE_S = 15
STATS, FAILED, UNREACHABLE, TASK = (
    "playbook_on_stats", "runner_on_failed", "runner_on_unreachable", "playbook_on_task_start",
)  # fmt: skip
#: The results of a task that its reason may be in.
REASONS = ("msg", "problems", "stderr", "refused", "module_stderr")


def slim(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the controller needs of an event; None where it is nothing."""
    data = event.get("event_data") or {}
    kind = event.get("event")
    if kind == STATS:
        kept = data
    elif kind in (FAILED, UNREACHABLE):
        result = data.get("res") or {}
        kept = {key: data.get(key) for key in ("host", "task", "ignore_errors")}
        kept["res"] = {key: result[key] for key in REASONS if key in result}
    elif kind == TASK:
        kept = {key: data.get(key) for key in ("task", "play")}
    else:
        return None
    return {"event": kind, "uuid": event["uuid"], "counter": event["counter"], "event_data": kept}


class SliceWorker(Worker):  # type: ignore[misc]  # it ships no types
    """A worker of ansible-runner that ends with its standard input."""

    def __init__(self, folder: Path) -> None:
        self.cancelled = threading.Event()
        self._watched = False
        super().__init__(
            private_data_dir=str(folder),
            keepalive_seconds=KEEPALIVE_S,
            cancel_callback=self.cancelled.is_set,
        )

    def update_paths(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return where things are on this machine."""
        collected = Path(self.private_data_dir) / "artifacts" / IDENT / COLLECTED
        collected.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = super().update_paths(kwargs)
        own = {"__fleet_collect": str(collected)}
        return given | {"project_dir": str(ROOT), "ident": IDENT, "extravars": own}

    def status_handler(self, status_data: dict[str, Any], runner_config: Any) -> None:
        """Pass it on. The job is read when the first one comes: what follows on standard input is its end."""
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, daemon=True).start()
        self._send(super().status_handler, status_data, runner_config)

    def _watch(self) -> None:
        # A file, as Receptor gives one, ends whatever becomes of the controller.
        if stat.S_ISREG(os.fstat(self._input.fileno()).st_mode):
            return
        # Not through the buffer, which Python cannot close at its end while a thread reads it.
        while os.read(self._input.fileno(), 4096):
            pass
        self.cancelled.set()

    def event_handler(self, event_data: dict[str, Any]) -> None:
        """Send on what the controller needs."""
        kept = event_data if event_data.get("event") == "keepalive" else slim(event_data)
        if kept is not None:
            self._send(super().event_handler, kept)

    def artifacts_handler(self, artifact_dir: str) -> None:
        """Give the nodes back, then send what the run has left, but its events."""
        if self.cancelled.is_set():
            end_descendants()
        release(Path(self.private_data_dir), self.job_kwargs or {})
        for name in ("job_events", "fact_cache"):
            shutil.rmtree(Path(artifact_dir) / name, ignore_errors=True)
        self._send(super().artifacts_handler, artifact_dir)

    def finished_callback(self, runner_obj: Any) -> None:
        """Say that nothing more comes."""
        self._send(super().finished_callback, runner_obj)

    def _send(self, write: Callable[..., None], *what: Any) -> None:
        """Write; where nobody reads any more, the run ends, with all that is to be done at its end."""
        try:
            write(*what)
        except BrokenPipeError:
            # What the buffer still has goes nowhere, too: it could not be closed otherwise.
            with Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), self._output.fileno())
            self.cancelled.set()


def release(folder: Path, job: dict[str, Any]) -> None:
    """Give back the leases that the run took."""
    given = json.loads((folder / "env" / "extravars").read_text(encoding="utf-8"))
    if not given.get("__preflight_lease"):
        return
    run(
        private_data_dir=str(folder),
        project_dir=str(ROOT),
        playbook="playbooks/release.yml",
        inventory=job["inventory"],
        limit=job.get("limit"),
        envvars=job.get("envvars"),
        ident="release",
        quiet=True,
        # Without it ansible-runner takes signals for itself, and ends at one: nodes would stay taken.
        cancel_callback=lambda: False,
    )


def work(folder: Path) -> int:
    """Run the job of standard input; its status is in what it writes."""
    worker = SliceWorker(folder)
    for number in STOPS:
        signal.signal(number, lambda *_: worker.cancelled.set())
    whole = False
    try:
        worker.run()
        whole = not worker.cancelled.is_set()
    finally:
        try:
            if not whole:
                end_descendants()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def main() -> int:
    """Return the program; returns its exit status."""
    folder = Path(tempfile.mkdtemp(prefix="temper-slice-"))
    try:
        with in_use():
            return guarded(lambda: work(folder))
    finally:
        # A worker that was killed has left it, with the inventory's variables.
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
