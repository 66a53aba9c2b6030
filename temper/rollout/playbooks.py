"""Runs Ansible for one node, and says how its tasks ended.

Through ansible-runner, which gives events instead of text, ends what it has started when it is told to, and
can carry the same run out elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.base.nodes import printable
from temper.base.selection import limit_to
from temper.rollout.node_step import NodeStepResult

CHECKOUT = Path(__file__).resolve().parents[2]
#: The action that reports the result of a step.
RESULT = "step_result"
#: Of what Ansible wrote, where it has no better reason.
LAST_LINES = 3
#: Characters of a node's reason to fail.
MOST_CHARACTERS = 4096
FAILED, UNREACHABLE, OK = "runner_on_failed", "runner_on_unreachable", "runner_on_ok"


@dataclass(frozen=True)
class Played:
    """The outcome of a run. `result` is what action step_result has reported, None where it was not reached.

    `refused`: nothing was changed on the node. `said` is the last failure in the words of its task.
    `unreachable`: it did not come to the node, or not to an end there, and no task has failed.
    """

    ok: bool
    said: str = ""
    refused: bool = False
    unreachable: bool = False
    result: NodeStepResult | None = None

    @property
    def reported(self) -> NodeStepResult:
        """The result; that of a run that has reported none is empty."""
        return self.result or NodeStepResult()


@dataclass
class Events:
    """Gathers what a run reports, event by event."""

    result: NodeStepResult | None = None
    said: str = ""
    refused: bool = False
    unreachable: bool = False
    #: Why the result cannot be used.
    wrong: str = ""

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Take an event; False: it need not be kept in a file of its own."""
        data = event.get("event_data") or {}
        result, kind = data.get("res") or {}, event.get("event")
        if kind == OK and data.get("task_action") == RESULT:
            try:
                self.result = NodeStepResult.read(result.get("step"))
            except ValueError as error:
                self.wrong = printable(f"The node answered in another form than expected: {error}.")
        elif kind in (FAILED, UNREACHABLE) and not data.get("ignore_errors"):
            self.said = failure(str(data.get("task")), result)
            self.refused = result.get("refused") is True
            self.unreachable = kind == UNREACHABLE
        return False


def failure(task: str, result: Mapping[str, Any]) -> str:
    """Return why a task failed, in one line."""
    # One that failed by its own condition (failed_when) has no message, but may name its problems.
    problems = result.get("problems")
    listed = " ".join(map(str, problems)) if isinstance(problems, list) else ""
    words = listed or result.get("msg") or result.get("stderr") or task
    return " ".join(printable(str(words)[:MOST_CHARACTERS]).split())


def last_words(output: str) -> str:
    """Return the end of what Ansible wrote, in one line."""
    lines = [line.strip() for line in printable(output).splitlines() if line.strip()]
    return " ".join(lines[-LAST_LINES:]) or "Ansible said nothing"


class Ansible:
    """Ansible with these inventories, or its configuration's. `logs` gets a file with each run's output."""

    def __init__(self, logs: Path, inventory: Sequence[str] = ()) -> None:
        self.logs = logs
        self.inventory = list(inventory)

    async def playbook(self, name: str, node: str, label: str, variables: Mapping[str, Any]) -> Played:
        """Run a playbook on one node. Cancelled, it ends the run and waits for that."""
        cancelled = threading.Event()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(None, self._play, name, node, label, variables, cancelled.is_set)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.wait([running])
            raise

    def _play(
        self, name: str, node: str, label: str, variables: Mapping[str, Any], cancelled: Callable[[], bool]
    ) -> Played:
        # Late: a command line that only looks at a roll-out needs none of it.
        from ansible_runner.interface import init_runner  # type: ignore[import-untyped]  # it ships no types

        events = Events()
        folder = self.logs / node
        private = folder / f".{label}"
        shutil.rmtree(private, ignore_errors=True)
        private.mkdir(parents=True)
        try:
            run = init_runner(
                private_data_dir=str(private),
                project_dir=str(CHECKOUT),
                **({"inventory": self.inventory} if self.inventory else {}),
                playbook=f"playbooks/{name}.yml",
                limit=limit_to([node]),
                extravars=dict(variables),
                quiet=True,
                cancel_callback=cancelled,
                event_handler=events,
                # The commands that belong to this Python.
                envvars={
                    "ANSIBLE_NOCOLOR": "1",
                    "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
                },
            )
            # Killed or cancelled, this process leaves no Ansible on the node beside that of the next one.
            run.config.command[:0] = [sys.executable, "-m", "temper.rollout.guard", str(os.getpid())]
            run.run()
            with run.stdout as stream:
                output = stream.read()
        finally:
            shutil.rmtree(private, ignore_errors=True)
        (folder / f"{label}.log").write_text(output, encoding="utf-8")
        ok = run.status == "successful"
        if events.wrong:
            return Played(False, events.wrong)
        if ok:
            return Played(ok, result=events.result)
        if events.said:
            return Played(ok, events.said, events.refused, events.unreachable, events.result)
        # No task has failed: the inventory cannot be read now, or this machine has ended Ansible.
        said = f"{last_words(output)} (Ansible ended with {run.status}: see {folder / label}.log)"
        return Played(ok, said, unreachable=True, result=events.result)
