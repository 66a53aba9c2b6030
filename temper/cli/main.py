"""Find the command that is asked for, and hand the rest of the command line to it.

Each command is imported when it is asked for: `temper --help` takes no second, and one whose packages are
missing says so alone.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from temper.base.version import version

#: What every command ends with.
GOOD, BAD, NOT_CARRIED_OUT, NOT_FINISHED, NOT_TOLD = range(5)
INTERRUPTED = 130  # as a shell says that Ctrl-C ended a program


@dataclass(frozen=True)
class Command:
    """A command: the module whose `main(arguments)` carries it out, what it does, and an example."""

    module: str
    does: str
    example: str


JUDGING = "temper.cli.judging"
COMMANDS = {
    "plan": Command(
        "temper.cli.plan",
        "show what site.yml would do to the nodes, and why it refuses one",
        "-i inventory/mine",
    ),
    "rollout": Command(
        "temper.cli.rollout",
        "upgrade drivers and kernels node by node, with a way back",
        "plan -i inventory/mine --stack r595-cuda13.2",
    ),
    "fleet": Command(
        "temper.cli.fleet",
        "run a playbook in slices, here or on helper controllers; judge nodes that pull",
        "run site.yml -i inventory/mine --helpers 'ctl[1-4]'",
    ),
    "compliance": Command(
        "temper.cli.compliance", "show the newest statement, verify the chain of all, list drifts", "status"
    ),
    "notify": Command(
        "temper.cli.notify",
        "run a scheduled check, and tell people when its state changes",
        "compliance --settings FILE -- ansible-playbook playbooks/compliance.yml",
    ),
    "report": Command(
        JUDGING,
        "judge the results of a fleet and write the report",
        "--results DIR --expectations FILE --output DIR",
    ),
    "compare": Command(JUDGING, "say what became better or worse between two results", "BEFORE AFTER"),
    "explain": Command(
        JUDGING, "say what a finding means, or whether a number is right", "bf16_tflops=640 --gpu 'H100 SXM'"
    ),
    "accept": Command(JUDGING, "let a node be measured by its next runs, not by its earlier ones", "gpu01"),
    "propose": Command(JUDGING, "write evidence of autotune as variables", "--evidence evidence.json"),
    "groups": Command(JUDGING, "say which nodes measure with which in the next rounds", "< rounds.json"),
    "uninstall": Command(
        "temper.cli.uninstall",
        "take back what Temper has made on nodes, after a question",
        "-i inventory/mine --limit gpu07",
    ),
    "doctor": Command(
        "temper.cli.doctor", "check this machine and an inventory before a run", "-i inventory/mine"
    ),
    "completion": Command(
        "temper.cli.completion", "print a script that completes command lines in a shell", "bash"
    ),
    "pages": Command(
        "temper.cli.pages",
        "make the pages of a report anew, of validation, of compliance, or of both",
        "--validation reports/latest --output pages",
    ),
}

STATUSES = f"""\
Exit status:
  {GOOD}    good: everything is as it should be
  {BAD}    bad: a node, a verdict or a statement is
  {NOT_CARRIED_OUT}    not carried out: the command line, a file or this machine does not allow it
  {NOT_FINISHED}    not finished: nodes are left, or it goes on elsewhere
  {NOT_TOLD}    a notification could not be sent, or it could not be recorded that it was
  {INTERRUPTED}  interrupted"""


def overview() -> str:
    """Return what `temper --help` says."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.does}" for name, command in COMMANDS.items()]
    examples = [f"  temper {name} {command.example}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: temper COMMAND ...      (temper COMMAND --help says more)",
            "       temper --version",
            "",
            "Commands:",
            *lines,
            "",
            "Examples:",
            *examples,
            "",
            STATUSES,
        ]
    )


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = list(sys.argv[1:] if command_line is None else command_line)
    name = words[0] if words else ""
    try:
        status = _run(words)
    except KeyboardInterrupt as stop:
        print("; ".join([f"temper {name}: interrupted", *map(str, stop.args)]), file=sys.stderr)
        status = INTERRUPTED
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        status = NOT_CARRIED_OUT
    except (OSError, UnicodeError) as error:  # a name with bytes that are no text is a UnicodeError
        status = refused(name, error)
    except MemoryError:
        status = refused(name, "it needs more memory than there is: see that it is given the right files")
    except Exception:  # noqa: BLE001 - Python would end with 1, which says that a node is bad
        status = refused(name, f"this is a fault of this program\n{traceback.format_exc()}")
    return status if _written(sys.stdout) else NOT_CARRIED_OUT


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return GOOD if words else NOT_CARRIED_OUT
    if words[0] == "--version":
        print(f"temper {version()}")
        return GOOD
    command = COMMANDS.get(words[0])
    if command is None:
        close = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(COMMANDS)}"
        print(f"temper: there is no command {words[0]!r}; {hint}", file=sys.stderr)
        return NOT_CARRIED_OUT
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("temper", "validation"):
            raise
        print(
            f"temper: {sys.executable} has no {error.name}: `make setup` makes an environment that has it; "
            "`. .venv/bin/activate` uses it in this shell.",
            file=sys.stderr,
        )
        return NOT_CARRIED_OUT
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that a terminal's encoding does not have costs no verdict.
            stream.reconfigure(errors="backslashreplace")
    # The commands of one module are told apart by their name.
    status: int = module.main(words if command.module == JUDGING else words[1:])
    return status


def refused(command: str, reason: object) -> int:
    """Say why a command is not carried out, and return its exit status. What is said may be a user's word."""
    from temper.base.nodes import printable
    from temper.base.options import told

    print(printable(f"temper {command}: {told(reason)}".rstrip()), file=sys.stderr)
    return NOT_CARRIED_OUT


def former(name: str) -> int:
    """Run a command that was started by its former name, and say the new one."""
    print(f"python3 -m {name} is now: temper {name}", file=sys.stderr)
    return main([name, *sys.argv[1:]])


def _written(stream: TextIO | None) -> bool:
    """Return whether all that was printed has been written.

    Nobody may read a pipe any more, a disk may be full.
    """
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        _to_nowhere()
        return False
    return True


def _to_nowhere() -> None:
    """Drop what is still to be written: Python flushes once more at its end, and would end with 120."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
