"""Parts of a fleet, each worked on by a process of its own that keeps what it has read.

Only what parts have to know of each other passes between processes: a fleet's results are too much to be sent
around.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

P = TypeVar("P")
A = TypeVar("A")
R = TypeVar("R")


def usable_cpus() -> int:
    """On how many CPUs this process may run."""
    return len(os.sched_getaffinity(0))


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
        self, work: Callable[[P, A], R], asked: Iterable[A], meanwhile: Callable[[], object] = bool
    ) -> list[R]:
        """What `work` makes of each part and of what is asked of it, in the order of the parts.

        `meanwhile` is what this process does until they answer.

        Raises what `work` raises, of the first part of which it does; ChildProcessError where a process was
        ended from outside.
        """
        if not self._workers:
            meanwhile()
            return [work(part, one) for part, one in zip(self._parts, asked, strict=True)]
        for (_, connection), one in zip(self._workers, asked, strict=True):
            # One that has ended says so below.
            with contextlib.suppress(BrokenPipeError):
                connection.send((work, one))
        meanwhile()
        return [_answer(*worker) for worker in self._workers]


def _answer(process: ForkProcess, connection: Connection) -> Any:
    try:
        answer, error, told = pickle.loads(connection.recv_bytes())  # noqa: S301 - of a copy of this process
    except (EOFError, ConnectionResetError):
        process.join()
        raise ChildProcessError(
            f"a process that worked on a part of the fleet ended with status {process.exitcode}; -9 is what "
            "a machine without memory does to it. Nothing is lost: free memory, and run it again"
        ) from None
    if error is not None:
        raise error from RuntimeError(told)
    return answer


def _serve(part: P, connection: Connection, others: Iterable[Connection]) -> None:
    """Work for the process that this one is a copy of, until that closes the connection or ends."""
    for other in others:
        other.close()
    try:
        while True:
            work, asked = connection.recv()
            try:
                answer = pickle.dumps((work(part, asked), None, ""))
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                answer = pickle.dumps((None, error, traceback.format_exc()))
            connection.send_bytes(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the other one has ended or is told of the same signal, and says so
    finally:
        # At once: what the other one has to clean up is not this one's.
        os._exit(0)
