"""Run a scheduled check, and tell people when its state changes: by webhook, by mail, or both.

temper notify compliance --settings FILE -- ansible-playbook -i inventory/mine playbooks/compliance.yml
temper notify validation --settings FILE -- ansible-playbook -i inventory/mine playbooks/validate.yml
temper notify test --settings FILE          send a test message, and run nothing

The check's own output stays as it is. People are told where its state (good, bad, not checked, not carried
out) or the nodes that are not good differ from what they were told last. A channel that could not be reached
is tried again after the next check. Settings are read, with the files that they name, before the check.

The exit status is that of the verdict, 2 where the check was not carried out, 4 where a notification could
not be sent or not be recorded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from temper.base.nodes import printable, utc
from temper.base.options import OptionsError, named
from temper.base.store import HISTORY, HistoryError
from temper.cli.main import NOT_TOLD, refused
from temper.notify.outcome import CHECKS, REPORTS, CheckOutcome, CheckState, is_news, message, names, outcome
from temper.notify.settings import Settings, read
from temper.report.origin import CHECK

TEST = "test"
MOST_MINUTES = 360
SECONDS = 60.0  # of a minute
#: How long a check that is ended may take to end.
ENDING_S = 30
STOPS = (signal.SIGINT, signal.SIGTERM)


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(
        prog="temper notify",
        usage="temper notify CHECK --settings FILE [OPTIONS] -- COMMAND ...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("check", choices=[*CHECKS, TEST])
    made.add_argument("--settings", type=named, required=True, help="whom to tell, in YAML")
    made.add_argument(
        "--reports", type=named, help="the folder that the check writes its reports into (" + ", ".join(
            f"{check}: {folder}" for check, (folder, _) in CHECKS.items()) + ")",
    )  # fmt: skip
    made.add_argument(
        "--history", type=named, default=REPORTS / HISTORY, help="the fleet's history (%(default)s)"
    )
    made.add_argument(
        "--minutes", type=int, default=MOST_MINUTES, help="end the check after so long (%(default)s)"
    )
    return made


def read_words(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the command behind the first `--`, which may have a `--` of its own."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return parser().parse_args(words[:end]), words[end + 1 :]


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    given, command = read_words(arguments)
    try:
        settings = read(given.settings)
    except OptionsError as error:
        return _refused(str(error))
    if (given.check == TEST) == bool(command):
        found = f"found {shlex.join(command)}" if command else "found none"
        wanted = "no command after test" if command else "-- and the command that carries the check out"
        return _refused(f"expected {wanted}, {found}")
    if given.minutes < 1:
        return _refused(f"--minutes: expected 1 or more, found {given.minutes}")
    if given.check == TEST:
        now = CheckOutcome(CheckState.GOOD, "This message is a test. Nothing was checked.")
        return NOT_TOLD if _tell(given, settings, now, TEST) else 0
    if not shutil.which(command[0]):
        return _refused(f"expected a program after --, found {command[0]}")
    reports = given.reports or CHECKS[given.check][0]
    before, token = names(reports), secrets.token_hex()
    status, ended = _carried_out(command, given.minutes, token)
    now = outcome(given.check, reports, before, token, status, ended)
    return NOT_TOLD if _tell(given, settings, now, shlex.join(command)) else now.exit_status


def _refused(sentence: str) -> int:
    return refused("notify", f"{sentence}\nNothing was checked.")


def _carried_out(words: Sequence[str], minutes: int, token: str) -> tuple[int, str]:
    """Run a check; returns its exit status, and how it ended in words. What it started ends with it.

    Its report has the token, because others may make reports meanwhile.
    """
    environment = {**os.environ, CHECK: token}
    stopped: list[int] = []
    for number in STOPS:  # a check that has just begun, and that nobody has a hold of yet, would go on
        signal.signal(number, lambda received, _: stopped.append(received))
    process = subprocess.Popen(  # noqa: S603 - the operator's command
        words, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
    )
    try:
        # A unit that is stopped, as Ctrl-C: the check ends, too, and nobody is told.
        for number in STOPS:
            signal.signal(number, signal.default_int_handler)
        if stopped:
            raise KeyboardInterrupt
        status = process.wait(minutes * SECONDS)
        return status, f"`{shlex.join(words)}` ended with status {status}"
    except BaseException as error:
        for one in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, one)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING_S)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 1, f"`{shlex.join(words)}` was ended after {minutes} min"


def _tell(given: argparse.Namespace, settings: Settings, now: CheckOutcome, command: str) -> bool:
    """Tell each channel what is news to it; returns whether something failed, which was said."""
    # Late: email and http are not needed for --help.
    from temper.notify.channels import ChannelError, send
    from temper.notify.told import Told

    at, controller = utc(datetime.now(UTC)), socket.gethostname()
    told, failed = Told(given.history), False
    said = []
    for name, channel in settings.channels.items():
        last = None
        try:
            # A history that cannot be read costs a message too many, never one too few.
            with contextlib.suppress(HistoryError):
                last = None if given.check == TEST else told.last(command, name)
            news = given.check == TEST or is_news(now, last)
            if news:
                words = message(given.check, settings.fleet or controller, controller, at, now, last)
                if refused := send(channel, words):
                    print(printable(f"{name}: the others were told. {refused}"), file=sys.stderr)
                said.append(name)
            if given.check != TEST and (news or last is None):
                told.record(command, name, at, now.remembered(last))
        except ChannelError as error:
            failed = True
            print(printable(f"{name}: nobody was told. {error}. {_again(given)}"), file=sys.stderr)
        except HistoryError as error:
            failed = True
            sent = "the message was sent" if name in said else "there was nothing to tell"
            again = f"{sent}, but that cannot be recorded, and the next check may tell it again"
            print(printable(f"{name}: {again}. {error}"), file=sys.stderr)
    if said or not failed:
        news = f"told by {', '.join(said)}" if said else "as people were told before"
        print(printable(f"{given.check}: {now.state}; {news}"))
    return failed


def _again(given: argparse.Namespace) -> str:
    return "" if given.check == TEST else "The next check tries again."
