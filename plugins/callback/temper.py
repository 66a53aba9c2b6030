"""What an operator sees of a run: stages, changes grouped over nodes, every error once, the outcome last."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import ansible.constants as constants
import ansible.context as context
from ansible.errors import AnsibleError, AnsibleParserError
from ansible.playbook.block import Block
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as AnsibleOwn

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from temper.base.nodes import counted, number_of, printable
from temper.base.outcome import BAD, FinalVerdict
from temper.output.progress import Line, Progress, Waiting
from temper.output.results import (
    changes,
    complaint,
    differences,
    messages,
    problems,
    program,
    refused,
    warnings,
)
from temper.output.run import Note, Run, Stage, before_verdict
from temper.plan.inventory import unreadable_variables
from temper.plan.origin import place_of_error, with_vault_remedy
from validation.model.grouping import by_key

DOCUMENTATION = """
name: temper
type: stdout
short_description: A run on many nodes that a human can read
description:
  - Shows each stage with its counts, what changed once for all nodes on which it is the same, refusals and
    failures once and in full, what is waited for, and last the outcome, the verdict with its report, and
    what to do next.
  - With C(-v) and more, with C(--step) and with the task debugger it shows what callback
    P(ansible.builtin.default#callback) does.
options:
  output:
    description:
      - V(quiet) shows what went wrong, warnings and the outcome.
      - V(normal) also shows plans, counts and changes, the first of many, and with C(--diff) Temper's own
        programs as one line each; V(verbose) shows all of it in full.
    type: str
    choices: [quiet, normal, verbose]
    default: normal
    env: [{name: TEMPER_OUTPUT}]
    ini: [{section: callback_temper, key: output}]
  progress_interval_s:
    description: Seconds between two lines that say what is waited for, where the output is no terminal.
    type: float
    default: 60
    env: [{name: TEMPER_PROGRESS_INTERVAL_S}]
    ini: [{section: callback_temper, key: progress_interval_s}]
  reasons_file:
    description: A file that gets each refusal and failure as a line of JSON (C(kind), C(node), C(task),
      C(text)), for the program that has started the run; none where it is empty.
    type: str
    default: ''
    env: [{name: TEMPER_REASONS_FILE}]
extends_documentation_fragment: [default_callback, result_format_callback]
requirements: [set as stdout in configuration]
"""

REDRAW_S = 1.0
#: Lines of a difference, and Ansible's colours in them, which come off before differences are compared.
DIFF = re.compile(r"\s+(\+|-|@@)")
COLOR_CODES = re.compile("\x1b\\[[0-9;]*m")
#: Variable of the plays that are for jump hosts alone.
JUMP_HOSTS = "__jump_hosts"
#: What is displayed where as little as possible is asked for.
QUIET = (*BAD, "warning", "ignored", "rescued")
COLORS = {
    "+": "COLOR_DIFF_ADD",
    "-": "COLOR_DIFF_REMOVE",
    "@@": "COLOR_DIFF_LINES",
    "heading": "COLOR_HIGHLIGHT",
    "ok": "COLOR_OK",
    "said": "COLOR_OK",
    "changed": "COLOR_CHANGED",
    "not checked": "COLOR_WARN",
    "refused": "COLOR_ERROR",
    "failed": "COLOR_ERROR",
    "unreachable": "COLOR_UNREACHABLE",
    "warning": "COLOR_WARN",
    "ignored": "COLOR_WARN",
    "rescued": "COLOR_WARN",
}


def event(method: Callable[..., None]) -> Callable[..., None]:
    """Have `method` handle an event, or Ansible's own callback where that was asked for or `method` fails."""

    @functools.wraps(method)
    def handle(self: CallbackModule, *args: Any, **kwargs: Any) -> None:
        with self.lock:
            if not self.detailed:
                try:
                    method(self, *args, **kwargs)
                except Exception as error:  # noqa: BLE001 - what shows a run must never end it
                    self.give_up(error)
                else:
                    return
            getattr(AnsibleOwn, method.__name__)(self, *args, **kwargs)

    return handle


class CallbackModule(AnsibleOwn):  # type: ignore[misc]  # Ansible ships no types
    """Feeds a `Run` with what Ansible reports, and displays its lines."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "temper"

    def __init__(self) -> None:
        super().__init__()
        # Events come from Ansible's main thread and from the one that listens to workers; ticks are a third.
        self.lock = threading.RLock()
        asked = self._display.verbosity > 0 or context.CLIARGS.get("step")
        self.detailed = bool(asked or constants.ENABLE_TASK_DEBUGGER)
        self.run = Run(check=bool(context.CLIARGS.get("check")))
        self.stage = Stage("", time.monotonic())
        self.progress = Progress()
        self.in_step = self.headed = True
        self.diffs: dict[tuple[str, str], list[str]] = {}
        #: All nodes of the present play.
        self.hosts: tuple[str, ...] = ()
        #: Nodes that preflight could not reach.
        self.silent: set[str] = set()
        self.spoke_s = self.noted_s = time.monotonic()
        self.ended = threading.Event()
        self.ended.set()
        self.line: Line | None = None
        self.process = os.getpid()
        #: Whether the last thing that Ansible said is an error that it ends with.
        self.broken = False
        self.display = self._display.display
        if self.detailed:
            return
        atexit.register(self.interrupted)
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self.line = Line(sys.stdout)
        # Warnings and errors come from everywhere in Ansible: they may have a node's words, and must not be
        # written into the line.
        self._display.display = self.display_words

    # What is displayed.

    def display_words(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Ansible's `Display.display` of what a terminal does not act on, the moving line out of its way."""
        text = printable(COLOR_CODES.sub("", msg))
        # Of files of variables, Ansible says what is wrong, and not where.
        error = sys.exception()
        if kwargs.get("stderr"):
            self.broken = isinstance(error, AnsibleError)
        if isinstance(error, AnsibleParserError) and error.message in text and "\n" not in text.strip():
            place = place_of_error(error)
            if not place and "/" not in text:
                place = unreadable_variables([*map(str, context.CLIARGS.get("inventory") or ())])
            text = f"{text.rstrip()}{place}"
        text = with_vault_remedy(text)
        # A worker process has a copy of the lock that nobody in it may ever release.
        if self.line is None or os.getpid() != self.process:
            self.display(text, *args, **kwargs)
            return
        with self.lock:
            self.line.clear()
            self.display(text, *args, **kwargs)

    def say(self, text: str, kind: str = "", *, last: bool = False) -> None:
        """Display lines at once: a pipe would hold them back until the run's end."""
        if self.get_option("output") == "quiet" and kind not in QUIET and not last:
            return
        self.head()
        stderr = kind in BAD and self.get_option("display_failed_stderr")
        for line in text.split("\n") if kind == "changed" else [text]:
            change = DIFF.match(line) if kind == "changed" else None
            color = COLORS.get(change[1] if change else kind)
            color = getattr(constants, color, None) if color else None
            self._display.display(line, color=color, stderr=stderr)
        with suppress(BrokenPipeError):  # as behind head: the run goes on, and its status says how it ends
            sys.stdout.flush()
        self.spoke_s = time.monotonic()

    def head(self) -> None:
        """Display the heading of the stage, once there is something below it."""
        if not self.headed:
            self.headed = True
            if self.get_option("output") != "quiet":
                self.say(f"\n{self.stage.title}", "heading")

    def tick(self, ended: threading.Event) -> None:
        """Show what is waited for until the run has ended, and what has waited for its turn long enough."""
        interval_s: float = self.get_option("progress_interval_s")
        while not ended.wait(min(REDRAW_S, interval_s)):
            with self.lock:
                try:
                    self.show_progress(interval_s, time.monotonic())
                except Exception as error:  # noqa: BLE001 - what shows a run must never end it
                    self.give_up(error)

    def show_progress(self, interval_s: float, now_s: float) -> None:
        """Show the line that moves; where there is none, print a line now and then."""
        if self.stage.notes and now_s - self.noted_s >= interval_s:
            self.say_notes()
        text = self.progress.line(now_s)
        if self.line:
            self.line.show(text)
        elif text and now_s - self.spoke_s >= interval_s:
            self.say(text)

    def say_notes(self) -> None:
        """Display what tasks had to say since the last time."""
        notes, self.stage.notes = self.stage.notes, []
        for block in self.run.blocks(notes):
            self.say(block.text, block.kind)

    def end_stage(self, *, whole: bool = True) -> None:
        """Display what is left to say of the stage, and, where it has ended as a `whole`, its counts."""
        self.say_notes()
        changed, self.stage.changes = self.stage.changes, []
        self.run.whole = self.get_option("output") == "verbose"
        for block in self.run.blocks(changed, check=self.stage.check):
            self.say(block.text, block.kind)
        if self.stage.states and whole:
            self.say(self.stage.counts(time.monotonic()))
        self.stage, self.progress, self.headed = Stage("", time.monotonic()), Progress(), True

    def interrupted(self) -> None:
        """At the end of the process: what a run that was cut off has not displayed yet."""
        if self.ended.is_set() or os.getpid() != self.process:
            return
        with self.lock, suppress(Exception):
            self.ended.set()
            waiting = self.progress.waiting
            self.end_stage(whole=False)
            how = (
                "ended with the error above" if self.broken else "was interrupted before all stages had ended"
            )
            self.say(f"The run {how}.", "failed")
            if said := under_way(waiting):
                self.say(said, last=True)
            first = "correct the error; then " if self.broken else ""
            self.say(f"Next: {first}the same command completes the run.", last=True)

    def give_up(self, error: Exception) -> None:
        """Leave the rest of the run to Ansible's own callback."""
        self.detailed = True
        self.ended.set()
        with suppress(Exception):
            self.end_stage()
        self._display.warning(
            f"Callback temper failed ({type(error).__name__}: {error}); what follows is Ansible's own output."
        )

    # What happens.

    def take(self, result: Any, kind: str = "", *texts: str) -> None:
        """Note the result of a task on a node."""
        node, task = result.host.get_name(), titled(result.task)
        self.progress.end(node, task)
        self.diffs.pop((node, result.task._uuid), None)
        self.run.settle(self.stage, node, "ok")
        # Only the controller's own action concludes: a node may put any key into its results.
        own = result.task.action.rpartition(".")[2] == "verdict"
        if own and (verdict := FinalVerdict.from_result(result.result, self.hosts)):
            self.conclude(result, verdict)
            return
        if not self.stage.notes:
            self.noted_s = time.monotonic()
        for warning in warnings(result.result):
            self.run.note(self.stage, Note("warning", node, task, warning))
        result.result.pop("warnings", None)
        self._handle_warnings(result.result)  # deprecations, each of which Ansible shows once
        # The result of run_once is that of all nodes. Strategies in which nodes run ahead do not know it.
        once = self.in_step and keyword(result, "run_once") is True
        if kind:
            whole = once and kind in ("refused", "failed", "ignored", "rescued")
            where = located(result.task) if kind in ("failed", "ignored", "rescued") else ""
            told = [
                self.run.note(self.stage, Note(kind, "" if whole else node, f"{task}{where}", text))
                for text in texts or ("",)
            ]
            if kind in BAD:
                self.keep_reason(replace(told[0], text="\n".join(note.text for note in told)))
        for message in messages(result.result, self.dumped) if kind in ("", "changed") else ():
            self.run.note(self.stage, Note("said", "" if once else node, task, message))

    def conclude(self, result: Any, verdict: FinalVerdict) -> None:
        """Take the verdict on all nodes, which is displayed last, and what else the judge has to say."""
        self.run.conclude(self.stage, verdict)
        if said := before_verdict(str(result.result.get("msg") or ""), verdict):
            self.run.note(self.stage, Note("said", "", titled(result.task), said))
        if not verdict.good:
            self.keep_reason(Note("failed", "", titled(result.task), verdict.sentence))

    def keep_reason(self, note: Note) -> None:
        """Write why a node does not go on, for the program that has started the run."""
        if path := self.get_option("reasons_file"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(asdict(note))}\n")

    def dumped(self, values: Mapping[str, Any]) -> str:
        """Return values as Ansible's own callback shows them."""
        return dedent(self._dump_results({**values, "_ansible_verbose_always": True})).strip("\n")

    @event
    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a stage, or the next batch of nodes of one."""
        self.end_stage()
        self._play = play
        self.in_step = play.strategy.rpartition(".")[2] not in ("free", "host_pinned")
        variables = play.get_variable_manager().get_vars(play=play)
        self.hosts = tuple(map(str, variables["ansible_play_hosts_all"]))
        self.stage = Stage(
            play.get_name().strip(),
            time.monotonic(),
            bool(play.check_mode),
            tuple(map(str, variables.get("ansible_play_batch", ()))),
        )
        self.headed = False
        self.progress = Progress(self.stage.name)
        if self.ended.is_set():
            self.ended = threading.Event()
            threading.Thread(target=self.tick, args=(self.ended,), daemon=True).start()

    @event
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002 - Ansible's
        """Begin a task; where nodes go in step, all of them are through with the one before."""
        self.begin_task()

    @event
    def v2_playbook_on_handler_task_start(self, task: Any) -> None:  # noqa: ARG002 - Ansible's
        """Begin a handler."""
        self.begin_task()

    def begin_task(self) -> None:
        """Display what the task before had to say, where it has an end."""
        if self.in_step:
            self.say_notes()
            self.progress.done.clear()

    @event
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Note that a node begins a task."""
        name = host.get_name()
        self.run.own.setdefault(name, (name, str(host.vars.get("ansible_host", ""))))
        self.progress.begin(name, titled(task), time.monotonic())

    @event
    def v2_runner_on_ok(self, result: Any) -> None:
        """Note that a node has finished a task."""
        if result.result.get("reached") is False:
            self.silent.add(result.host.get_name())
        if isinstance(result.task, TaskInclude) or not result.is_changed():
            self.take(result)
            return
        whole = self.get_option("output") == "verbose"
        parts = [
            *changes(result.result, whole=whole),
            *self.diffs.get((result.host.get_name(), result.task._uuid), ()),
        ]
        self.take(result, "changed", *parts)

    @event
    def v2_runner_on_skipped(self, result: Any) -> None:
        """Note that a node had nothing to do."""
        self.take(result)

    @event
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Note that a node failed, was refused, or goes on in spite of that."""
        kind = "ignored" if ignore_errors else "rescued" if is_rescued(result.task) else "failed"
        if not ignore_errors and refused(result.result):
            kind = "unreachable" if result.host.get_name() in self.silent else "refused"
        self.take(result, kind, *(problems(result.result) or [complaint(result.result, self.dumped)]))

    @event
    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Note that a node does not answer."""
        kind = "ignored" if result.task.ignore_unreachable else "unreachable"
        self.take(result, kind, complaint(result.result, self.dumped))

    @event
    def v2_runner_retry(self, result: Any) -> None:
        """Note that a task is tried again after a while."""
        delay_s = float(keyword(result, "delay") or 0)
        self.progress.retry(result.host.get_name(), result.result, delay_s, time.monotonic())

    @event
    def v2_on_file_diff(self, result: Any) -> None:
        """Keep what changes in a file or in a loop's item.

        Ansible tells it before the result, and with --diff alone.
        """
        if result.result.get("diff") and result.result.get("changed"):
            key = result.host.get_name(), result.task._uuid
            verbose = self.get_option("output") == "verbose"
            for one in differences(result.result):
                own = None if verbose else program(one)
                text = own or COLOR_CODES.sub("", self._get_diff([one])).strip("\n")
                self.diffs.setdefault(key, []).append(text)

    @event
    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Note that the play has no nodes; most fleets have no jump hosts."""
        if JUMP_HOSTS not in self._play.get_vars():
            self.say("No node matches.", "warning")

    @event
    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """End the stage, because all nodes have failed."""
        self.say_notes()
        self.say("No node is left.", "failed")

    @event
    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the outcome, because the playbook has ended."""
        self.ended.set()
        self.end_stage()
        if not stats.processed:  # require_work says why
            return
        self.say("\n== Outcome", "heading")
        for kind, line in self.run.last_lines():
            self.say(line, kind, last=True)


def nothing(name: str) -> Callable[..., None]:
    """Return a handler of an event that says nothing which a result does not say, too."""

    def method(self: CallbackModule, *_: Any) -> None:
        """Nothing to display."""

    method.__name__ = name
    return event(method)


for told_otherwise in (
    "v2_playbook_on_include",
    "v2_runner_item_on_ok",
    "v2_runner_item_on_failed",
    "v2_runner_item_on_skipped",
    "v2_runner_on_async_poll",
    "v2_runner_on_async_ok",
    "v2_runner_on_async_failed",
):
    setattr(CallbackModule, told_otherwise, nothing(told_otherwise))


def titled(task: Any) -> str:
    """Return the name of a task, after that of its role."""
    return str(task.get_name()).strip().replace(" : ", ": ", 1)


def keyword(result: Any, name: str) -> Any:
    """Return the value of a task's keyword.

    Ansible-core 2.19 has the templated one in `task_fields` alone.
    """
    value = getattr(result.task, name)
    return getattr(result, "task_fields", {}).get(name) if isinstance(value, str) else value


def located(task: Any) -> str:
    """Return where a task stands; with `fail` its sentence says it all."""
    path = "" if task.action.rpartition(".")[2] == "fail" else task.get_path() or ""
    return f" ({path.removeprefix(f'{ROOT}/')})" if path else ""


def is_rescued(task: Any) -> bool:
    """Return whether a failure of the task is caught by the `rescue` of a block that it stands in."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if isinstance(parent, Block) and parent.rescue and child._uuid in {one._uuid for one in parent.block}:
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


def under_way(waiting: Mapping[str, Waiting]) -> str:
    """Name the tasks that still run on nodes although nobody waits for them any more."""
    by_task = by_key((one.task, node) for node, one in waiting.items())
    if not by_task:
        return ""
    lines = [f"  {task}: {counted(nodes)}" for task, nodes in by_task.items()]
    return "\n".join(
        [
            f"Tasks still run on {number_of(len(waiting), 'node')}, such as a package manager or a "
            "measurement. They continue there:",
            *lines,
        ]
    )
