"""Runs a command that does not outlive whoever asked for it, and ends all that it has started with it.

    python3 -m temper.rollout.guard CONTROLLER COMMAND [ARGUMENT ...]

CONTROLLER is the id of the process that starts this. ansible-runner has a run ignore the end of its terminal:
where the controller is killed, the run would go on to its last task, beside that of the next controller. And
where ansible-runner ends a run, it reaches one process group; Ansible's processes for single nodes are in
sessions of their own, and would go on without an Ansible.

So two processes guard each other: one works, and one waits for it. Where either is killed, as by a kernel
that has run out of memory, the other one ends what was started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

#: From linux/prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TASKS = Path("/proc/self/task")
#: A terminal sends them to what its controller has started, too.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """A signal has asked for the end; `status` is as a shell has it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def adopt() -> None:
    """Become the parent of what the processes below this one leave behind. Raises OSError."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def end_descendants() -> None:
    """End all processes that this one has started, and those that they have, until there is none."""
    while children := list(_children()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            # Its own children become ours with its end.
            os.waitpid(pid, 0)


def _children() -> Iterator[int]:
    for path in TASKS.glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended since
            yield from map(int, path.read_text().split())


def guarded(work: Callable[[], int]) -> int:
    """Do the work in a process of its own, and return its status; where that is killed, end what it has left.

    The status is then 128 and the signal's number, as a shell has it. Raises OSError.
    """
    adopt()
    guard, worker = os.getpid(), os.fork()
    if not worker:
        status = 1
        try:
            _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            adopt()
            if os.getppid() == guard:  # else it was killed before it could be noticed
                status = work()
        except BaseException:  # noqa: BLE001 - this process ends here
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os._exit(status)
    for number in STOPS:
        signal.signal(number, lambda stop, _: os.kill(worker, stop))
    # As long as it is not waited for, the number is its own: no other process gets the signal.
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if status >= 0:
        return status
    end_descendants()
    print(
        f"The worker of this run was killed ({signal.Signals(-status).name}; out of memory?), and the run "
        "was ended.",
        file=sys.stderr,
        flush=True,
    )
    return 128 - status


def carry_out(command: list[str]) -> int:
    """Run a command, and return its status. What it leaves is ended, but where it has ended by itself.

    Connections of OpenSSH that wait for the next run stay then. Raises OSError where it cannot be started.
    """
    # Out of the process group that ansible-runner kills: somebody has to be left to end the others.
    os.setsid()
    whole = False
    try:
        for number in STOPS:
            signal.signal(number, _stop)
        status = subprocess.Popen(command).wait()  # noqa: S603 - whose end it guards says which
        whole = status >= 0
    except StoppedError as stopped:
        status = stopped.status
    finally:
        if not whole:
            end_descendants()
    return status if status >= 0 else 128 - status


def _stop(number: int, _frame: object) -> NoReturn:
    for other in STOPS:
        signal.signal(other, signal.SIG_IGN)
    raise StoppedError(number)


def main() -> int:
    """Return the program; returns its exit status."""
    controller, *command = sys.argv[1:]
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(controller):
        return 1  # it was killed before that could be noticed
    return guarded(lambda: carry_out(command))


if __name__ == "__main__":
    sys.exit(main())
