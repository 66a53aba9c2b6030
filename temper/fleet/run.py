"""Carries out a run over slices: jobs of ansible-runner that ClusterShell starts here or on helpers.

What is decided is in `slices`, what is remembered in `journal`. A controller that is killed takes its slices
with it, because their standard input ends; whoever goes on comes as a later attempt, which nodes prefer.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ansible_runner.streaming import Transmitter  # type: ignore[import-untyped]  # ships no types
from ClusterShell.Event import EventHandler
from ClusterShell.NodeSet import NodeSet
from ClusterShell.Task import task_self

from temper.base import ROOT
from temper.base.nodes import counted, duration, number_of, printable
from temper.base.options import told
from temper.base.outcome import GOOD, numbers
from temper.base.selection import limit_to
from temper.fleet.bundle import bundle, python_version
from temper.fleet.journal import Job, Journal, NodeRecord
from temper.fleet.slices import Board, NodeOutcome, Place, Slice
from temper.fleet.stream import COLLECTED, OUTPUT, Received, StreamError
from temper.fleet.worker import FAILED, IDENT, STATS, UNREACHABLE
from temper.plan.inventory import Inventory
from temper.rollout.playbooks import LAST_LINES, failure, last_words

HERE = "this machine"
#: A slice gives a sign of life every 15 s (fleet.worker): it is lost when none has come for so long.
SILENCE_S = 120.0
#: No slice takes longer, whatever signs of life come: a burn-in goes on for days.
LONGEST_S = 14 * 24 * 3600.0
#: Of what a slice says for people.
LONGEST_LINE = 4000
MOST_LINES = 100
ARTIFACTS = "artifacts"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 5.0
CONNECT_S = 20
#: With less a helper that is sent the bundle is of no use.
SLOWEST_BYTES_S = 100_000
#: How long a node's lease outlasts a slice that has not given it back: as long as site.yml may take, and the
#: time that a measurement may take besides: a burn-in goes on for days.
LEASE_S = 6 * 3600.0
#: How a helper says which Python it has (fleet.bundle.python_version).
VERSION = re.compile(r"\d+\.\d+-\w+")
#: Settings of the environment that go to helpers; a path is one of theirs.
PASSED_ON = ("ANSIBLE_VAULT_PASSWORD_FILE", "ANSIBLE_VAULT_IDENTITY_LIST")


@dataclass
class Events:
    """What the events of a slice say of its nodes."""

    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, bool]] = field(default_factory=dict)
    task: str = ""

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Take an event; False: it needs no file of its own."""
        data, kind = event.get("event_data") or {}, event.get("event")
        if kind == STATS:
            self.stats = {
                key: {node: count for node, count in value.items() if type(count) is int}
                for key, value in data.items()
                if isinstance(value, dict)
            }
        elif kind in (FAILED, UNREACHABLE):
            if not data.get("ignore_errors"):
                task, result = str(data.get("task")), data.get("res") or {}
                refused = result.get("refused") is True
                self.reasons[str(data.get("host"))] = failure(task, result)[:LONGEST_LINE], refused
        else:
            self.task = str(data.get("task") or "")
        return False

    def counts(self, node: str) -> dict[str, int]:
        """Ansible's counts of a node; empty where it was not worked on."""
        kinds = ("ok", "changed", "dark", "failures", "skipped", "rescued", "ignored")
        heard = node in self.stats.get("processed", {})
        return {kind: self.stats.get(kind, {}).get(node, 0) for kind in kinds} if heard else {}

    def outcome(self, node: str, part: Slice, place: str) -> NodeOutcome | None:
        """Return the outcome of a node; None where nothing is known of it."""
        counts = self.counts(node)
        if not counts:
            return None
        reason, refused = self.reasons.get(node, ("", False))
        if counts["dark"]:
            return NodeOutcome("unreachable", reason, part.attempt, place)
        if counts["failures"]:
            return NodeOutcome("refused" if refused else "failed", reason, part.attempt, place)
        return NodeOutcome("changed" if counts["changed"] else "ok", "", part.attempt, place)


class Stream(EventHandler):  # type: ignore[misc]  # ClusterShell ships no types
    """A slice under way, and what its worker has sent."""

    def __init__(self, part: Slice, place: str, folder: Path, ended: Callable[[Stream], None]) -> None:
        self.part, self.place, self.folder, self.ended = part, place, folder, ended
        self.events = Events()
        self.begun_s = self.heard_s = time.monotonic()
        self.status: int | None = None
        self.errors: list[str] = []
        self.worker: Any = None
        (folder / ARTIFACTS).mkdir()
        self.received = Received(folder / ARTIFACTS, part.nodes, self.events)
        self._lost = False

    @property
    def whole(self) -> bool:
        """Whether all that the run has left is here, and nothing came that no slice sends."""
        return self.received.whole and not self._lost

    @property
    def collected(self) -> Path:
        """What the slice has handed over."""
        return self.folder / ARTIFACTS / COLLECTED

    @property
    def output(self) -> Path:
        """What Ansible has written."""
        return self.folder / ARTIFACTS / OUTPUT

    def last_words(self) -> str:
        """Return the end of what Ansible wrote, of a run that reached no node."""
        try:
            return last_words(self.output.read_text(encoding="utf-8"))
        except OSError as error:
            return f"Ansible ended before it reached any node, and its output cannot be read: {told(error)}"

    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        """Read a line."""
        self.heard_s = time.monotonic()
        if self._lost:  # given up in the middle of what was read at once
            return
        if sname == "stdout":
            try:
                self.received.line(msg)
            except (StreamError, OSError) as error:
                self.give_up(told(error))
        else:
            self._note(msg.decode(errors="replace"))

    def _note(self, said: str) -> None:
        self.errors = [*self.errors, said[:LONGEST_LINE]][-LAST_LINES:]

    def give_up(self, why: str) -> None:
        """End the slice, because of what came or did not come."""
        self._lost = True
        self._note(why)
        self.worker.abort()

    def pending(self) -> int:
        """Return how many bytes of a line have come that has no end yet."""
        clients = self.worker._engine_clients()
        return max((len(stream.rbuf) for one in clients for stream in one.streams.values()), default=0)

    def ev_hup(self, worker: Any, node: str, rc: int) -> None:
        """Note that the command has ended."""
        self.status = rc

    def ev_close(self, worker: Any, timedout: bool) -> None:
        """Nothing more comes."""
        self.ended(self)

    def why(self) -> str:
        """Return why it broke off, in words."""
        said = " ".join(" ".join(self.errors).split())
        if said:
            return f"{self.place}: {said}"
        if time.monotonic() - self.heard_s > SILENCE_S:
            return f"{self.place} has been silent for {SILENCE_S:.0f} s"
        return f"{self.place}: the connection or the run there was ended (status {self.status})"


class Answers(EventHandler):  # type: ignore[misc]  # ClusterShell ships no types
    """The last lines that each helper has said, for people and for `VERSION`."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
        """Read a line."""
        line = printable(msg[:LONGEST_LINE].decode(errors="replace"))
        self.lines[node] = [*self.lines.get(node, []), line][-MOST_LINES:]


def transmission(files: Mapping[str, Any], job: Mapping[str, Any]) -> bytes:
    """Return a job of ansible-runner as one text: its arguments, and its folder's `files` (JSON by name)."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content), encoding="utf-8")
        stream = io.BytesIO()
        stream.name = "job"  # ansible-runner asks every stream for it
        Transmitter(_output=stream, private_data_dir=folder, **job).run()
        return stream.getvalue()


@dataclass
class FleetRun:
    """One run over slices. `say` takes lines for the operator; `leased`: whether nodes are taken for it."""

    name: str
    job: Job
    inventory: Inventory
    board: Board
    journal: Journal
    folder: Path
    fleet: Mapping[str, Any]
    leased: bool
    say: Callable[[str], None]
    ssh_options: str = ""

    def __post_init__(self) -> None:
        self.task = task_self()
        self.task.set_default("stderr", True)
        # What comes goes to handlers, which have bounds.
        for kept in ("stdout_msgtree", "stderr_msgtree"):
            self.task.set_default(kept, False)
        self.task.set_info("fanout", 1024)
        self.task.set_info("connect_timeout", CONNECT_S)
        if self.ssh_options:
            self.task.set_info("ssh_options", self.ssh_options)
        self.stopping = False
        self.streams: dict[Slice, Stream] = {}
        self.commands: dict[str, str] = {}
        self.begun_s = time.monotonic()
        #: Of all hosts, where templates name others than their own.
        self.whole = (
            self.inventory.whole() if self.inventory.spans(self.job.nodes, self.job.variables) else None
        )

    def carry_out(self) -> None:
        """Prepare the helpers, then run slices until nothing is left or nothing can go on."""
        helpers = [place.name for place in self.board.places if place.name != HERE]
        if helpers:
            self._prepare(helpers)
        self.commands[HERE] = _command(ROOT, sys.executable, [str(Path(sys.executable).parent)], [ROOT])
        self.task.timer(LOOK_S, handler=_Watch(self), interval=LOOK_S, autoclose=True)
        before = {number: signal.signal(number, self._stop) for number in STOPS}
        try:
            self._start()
            self.task.resume()
        except BaseException:
            self.stopping = True
            self.task.abort(kill=False)
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _signal: int, _frame: FrameType | None) -> NoReturn:
        # Known before ClusterShell ends the slices: none is to begin in the place of one that it ends.
        self.stopping = True
        raise KeyboardInterrupt

    def _prepare(self, helpers: list[str]) -> None:
        """Bring the bundle to the helpers that do not have it; one that cannot be used gets no slice."""

        def exclude(helper: str, why: str) -> None:
            self.board.exclude(helper, why)
            self.say(f"{helper} cannot be used: {why}")

        name, content = bundle()
        home = f'"${{XDG_CACHE_HOME:-$HOME/.cache}}"/temper/{name}'
        look = (
            'python3 -c \'import sys, sysconfig; print("%d.%d-%s" % (*sys.version_info[:2], '
            'sysconfig.get_platform().rpartition("-")[2]))\'; '
            f"test -d {home} && echo present || true"
        )
        answers = self._ask(helpers, look)
        missing = []
        for helper in helpers:
            status, lines = answers[helper]
            # What stands before it is of ssh, or a greeting: banners and warnings come with every connection.
            version = next((line for line in lines if VERSION.fullmatch(line)), "")
            if status or version != python_version():
                said = " ".join(lines) or "no answer"
                wanted = f"expected Python {python_version()} as here, found {version or said}"
                exclude(helper, said if status else wanted)
            elif "present" not in lines:
                missing.append(helper)
        if missing:
            unpack = (
                f"umask 077; d={home}; if mkdir -p $d.$$ && tar xzf - -C $d.$$; "
                "then mv -T $d.$$ $d 2>/dev/null || rm -rf $d.$$; "
                # Where the disk is full, half of it would take what room comes free, at each try.
                "else rm -rf $d.$$; exit 1; fi; "
                # Where there is a new one, an old one may go. That it cannot is no reason to stop.
                "cd $d && { python3 -m temper.fleet.bundle || true; }"
            )
            given = self._ask(missing, unpack, content)
            for helper, (status, lines) in given.items():
                if status:
                    # A full disk is said once for each file.
                    said = " ".join(lines[-LAST_LINES:]) or "no answer"
                    exclude(helper, f"it could not be given what it needs: {said}")
            if taken := [helper for helper, (status, _) in given.items() if not status]:
                self.say(f"{len(content) / 2**20:.1f} MiB sent to {counted(taken)}")
        for helper in helpers:
            paths = [f"{home}", f"{home}/site-packages"]
            self.commands[helper] = (
                f"cd {home} && PATH={home}/bin:$PATH PYTHONPATH={':'.join(paths)} "
                f"ANSIBLE_CONFIG={home}/ansible.cfg LC_ALL=C.UTF-8 exec python3 -m temper.fleet.worker"
            )

    def _ask(
        self, helpers: Iterable[str], command: str, content: bytes = b""
    ) -> dict[str, tuple[int, list[str]]]:
        """Exit status and lines of a command on each helper; it reads `content`.

        A helper that takes longer than `SILENCE_S`, and the time that `content` may take, has not answered.
        """
        timeout_s = SILENCE_S + len(content) / SLOWEST_BYTES_S
        nodes = NodeSet.fromlist(list(helpers))
        said = Answers()
        worker = self.task.shell(command, nodes=nodes, stderr=False, timeout=timeout_s, handler=said)
        if content:
            worker.write(content)
        worker.set_write_eof()
        self.task.resume()
        found = {}
        for helper in helpers:
            try:
                status = worker.node_retcode(helper)
            except KeyError:  # it was ended
                status = None
            found[helper] = (255 if status is None else status, said.lines.get(helper, []))
        return found

    def _start(self) -> None:
        """Begin what can begin."""
        for part, place in self.board.start():
            self.folder.mkdir(parents=True, exist_ok=True)
            # Numbers begin again where a run goes on, and in a container each controller is process 1.
            folder = Path(tempfile.mkdtemp(prefix=f"{part.number:04d}-{part.attempt}-", dir=self.folder))
            # Before anything reaches a node: whoever goes on after a crash comes with a later attempt.
            self.journal.start(self.name, part.nodes, part.attempt, place)
            stream = Stream(part, place, folder, self._ended)
            self.streams[part] = stream
            nodes = {} if place == HERE else {"nodes": place}
            stream.worker = self.task.shell(self.commands[place], handler=stream, tree=False, **nodes)
            stream.worker.write(self._transmission(part))

    def _transmission(self, part: Slice) -> bytes:
        variables: dict[str, Any] = {
            **self.job.variables,
            "__preflight_fleet": dict(self.fleet),
            "__preflight_fleet_nodes": [],
            # A slice knows its own nodes alone.
            "gpu_validation_fabric": False,
        }
        if self.leased:
            variables["__preflight_lease"] = {
                "owner": f"fleet run {self.name}",
                "attempt": part.attempt,
                # As Ansible resolves it for each node.
                "ttl_s": f"{{{{ {LEASE_S} + gpu_validation_timeout_s | default(0) | float }}}}",
            }
        return transmission(
            {"slice.json": self.whole or self.inventory.slice(part.nodes), "env/extravars": variables},
            {
                "playbook": self.job.playbook,
                "inventory": "slice.json",
                **({"limit": limit_to(part.nodes)} if self.whole else {}),
                "ident": IDENT,
                "envvars": {name: os.environ[name] for name in PASSED_ON if name in os.environ}
                | {"ANSIBLE_NOCOLOR": "1"},
                **({"cmdline": shlex.join(self.job.options)} if self.job.options else {}),
            },
        )

    def look(self) -> None:
        """Give up slices of which nothing is heard any more."""
        now_s = time.monotonic()
        for stream in list(self.streams.values()):
            if now_s - stream.heard_s > SILENCE_S:
                stream.worker.abort()
            elif now_s - stream.begun_s > LONGEST_S:
                stream.give_up(f"it has not ended within {duration(LONGEST_S)}")
            elif stream.pending() > max(stream.received.left, LONGEST_LINE):
                stream.give_up("it has sent a line without an end")

    def _ended(self, stream: Stream) -> None:
        """Record a slice that has ended, whole or not, and begin what can begin now."""
        part = stream.part
        del self.streams[part]
        if self.stopping:
            return
        found = {node: stream.events.outcome(node, part, stream.place) for node in part.nodes}
        outcomes = {node: outcome for node, outcome in found.items() if outcome}
        if stream.whole and outcomes:
            self.journal.end(self.name, [self._record(stream, node, one) for node, one in outcomes.items()])
            self.board.end(part, outcomes)
            if all(one.state in GOOD for one in outcomes.values()):
                stream.output.unlink(missing_ok=True)
        else:
            reason = stream.why() if not stream.whole else stream.last_words()
            self.board.lose(part, reason)
            self.say(
                f"slice {part.number} ({counted(part.nodes)}), attempt {part.attempt}, is lost: {reason}"
            )
        self.say(self.progress())
        self._start()

    def _record(self, stream: Stream, node: str, outcome: NodeOutcome) -> NodeRecord:
        counts = stream.events.counts(node)
        folder = str(stream.collected.relative_to(self.folder))
        return NodeRecord(node, outcome.attempt, outcome.place, outcome.state, outcome.reason, counts, folder)

    def progress(self) -> str:
        """Return where the run is, in one line."""
        board = self.board
        done = len(board.outcomes)
        states = {node: one.state for node, one in board.outcomes.items()}
        total = done + len(board.left) + sum(len(part.nodes) for part in board.running)
        places = ", ".join(
            f"{list(board.running.values()).count(name)} on {name}"
            for name in sorted({*board.running.values()})
        )
        under_way = f"; slices under way: {places}" if places else ""
        passed = duration(time.monotonic() - self.begun_s)
        counts = f": {numbers(states)}" if states else ""
        return f"{done} of {number_of(total, 'node')} done{counts}; {passed}{under_way}"


class _Watch(EventHandler):  # type: ignore[misc]  # ClusterShell ships no types
    """Looks for slices that are silent."""

    def __init__(self, run: FleetRun) -> None:
        self.run = run

    def ev_timer(self, timer: Any) -> None:
        """Time has passed."""
        self.run.look()


def _command(folder: Path, python: str, path: list[str], modules: list[Path]) -> str:
    """Return the worker on this machine."""
    variables = {
        "PATH": ":".join([*path, os.environ.get("PATH", "")]),
        "PYTHONPATH": ":".join(map(str, modules)),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "LC_ALL": "C.UTF-8",
    }
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    run = f"cd {shlex.quote(str(folder))} && {' '.join(words)} {shlex.quote(python)} -m temper.fleet.worker"
    # ClusterShell kills what it has started: a shell. The worker sees its input end, and ends its Ansible.
    return f"{run}; exit $?"


def places(names: Iterable[str], jobs: int) -> list[Place]:
    """Helpers, or this machine where there are none."""
    return [Place(name, jobs) for name in names] or [Place(HERE, jobs)]
