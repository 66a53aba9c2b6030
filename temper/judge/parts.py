"""Parts of a fleet, each worked on by a process of its own that keeps what it has read.

Only what parts have to know of each other passes between processes: a fleet's results are too much to be sent
around.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess
    from types import FrameType

P = TypeVar("P")
A = TypeVar("A")
R = TypeVar("R")


class Parts(Generic[P]):
    """Objects of one kind, each in a process of its own; a single one stays in this process.

    A context: at its end, and where this process ends otherwise, the others end, too. To be entered before
    this process has threads, because they are copies of it.
    """

    def __init__(self, parts: Sequence[P]) -> None:
        self._parts = parts
        self._workers: list[tuple[ForkProcess, Connection]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def __enter__(self) -> Parts[P]:
        if len(self._parts) > 1:
            # Late: nobody else needs it.
            from multiprocessing import get_context

            context = get_context("fork")
            for part in self._parts:
                mine, its = context.Pipe()
                others = [connection for _, connection in self._workers]
                worker = context.Process(target=_serve, args=(part, its, [mine, *others]), daemon=True)
                worker.start()
                its.close()
                self._workers.append((worker, mine))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_raised: object) -> None:
        for process, connection in self._workers:
            connection.close()
            if kind:
                process.terminate()
        for process, _ in self._workers:
            process.join()

    def each(
        self, work: Callable[[P, A], R], asked: Iterable[A], meanwhile: Callable[[], object] | None = None
    ) -> list[R]:
        """What `work` makes of each part and of what is asked of it, in the order of the parts.

        `meanwhile` is what this process does until they answer.

        Raises what `work` raises, of the first part of which it does; ChildProcessError where a process was
        ended from outside.
        """
        if not self._workers:
            if meanwhile:
                meanwhile()
            return [work(part, one) for part, one in zip(self._parts, asked, strict=True)]
        for (_, connection), one in zip(self._workers, asked, strict=True):
            # One that has ended says so below.
            with contextlib.suppress(BrokenPipeError):
                connection.send((work, one))
        if meanwhile:
            meanwhile()
        return [_answer(*worker) for worker in self._workers]


def _answer(process: ForkProcess, connection: Connection) -> Any:
    try:
        content = connection.recv_bytes()
    except (EOFError, OSError):
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        why = " by SIGKILL, as a machine without memory does" if killed else f": status {process.exitcode}"
        raise ChildProcessError(
            f"a process that worked on a part of the fleet was ended{why}. Run it again when the cause is "
            "gone"
        ) from None
    answer, error, told = pickle.loads(content)  # noqa: S301 - of a copy of this process
    if error is not None:
        raise error from RuntimeError(told)
    return answer


def _serve(part: P, connection: Connection, others: Iterable[Connection]) -> None:
    """Work for the process that this one is a copy of, until that closes the connection or ends."""
    for other in others:
        other.close()
    # Of what a terminal tells all of them, the other one tells this one once more.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    status = 1
    try:
        while True:
            work, asked = connection.recv()
            try:
                answer = pickle.dumps((work(part, asked), None, ""))
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                answer = pickle.dumps((None, _portable(error), traceback.format_exc()))
            connection.send_bytes(answer)
    except (EOFError, OSError):
        status = 0  # there is nobody to work for any more
    except KeyboardInterrupt:
        pass  # who has told this one to end knows why
    finally:
        # At once: what the other one has to clean up is not this one's.
        os._exit(status)


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    # Once: what is being cleaned up is not to be interrupted.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _portable(error: Exception) -> Exception:
    """The error itself, or what it says where it is of a kind that cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever it is that does not work
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
