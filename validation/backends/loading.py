"""A DataLoader over a data set that costs its workers what images do: decompress, crop, flip, normalise."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

from validation.backends.files import read
from validation.backends.protocol import WORKER_PATIENCE_S, LimitError, Piece, WorkerError
from validation.processes.pool import halted

BATCH = 32
#: torch's default: batches that each worker keeps ready.
PREFETCH = 2
STORED, EDGE, CROP = 16, 256, 224
#: Of float32, three colours.
BATCH_BYTES = BATCH * 3 * CROP * CROP * 4
PR_SET_PDEATHSIG = 1
#: What torch says, in the process and of its workers, where there may be no more open files.
TOO_MANY_FILES = ("Too many open files", "received 0 items of ancdata")
#: Of a worker that died, and of one that hands over nothing: neither has an exception of its own.
WORKER_DIED, TIMED_OUT = "DataLoader worker", "DataLoader timed out"


class Images:
    """Compressed images in memory, over and over: number i is always the same."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(23)
        images = torch.randint(0, 16, (STORED, 3, EDGE, EDGE), generator=generator, dtype=torch.uint8)
        self._stored = [zlib.compress(bytes(image.flatten().tolist()), 1) for image in images]

    def __len__(self) -> int:
        """As good as endless."""
        return 1 << 30

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        """Return an image of CROP x CROP, normalised, and its number."""
        raw = bytearray(zlib.decompress(self._stored[number % STORED]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, EDGE, EDGE)
        top, left = number * 7 % (EDGE - CROP), number * 13 % (EDGE - CROP)
        cropped = image[:, top : top + CROP, left : left + CROP]
        if number % 2:
            cropped = cropped.flip(2)
        return cropped.float().sub_(7.5).div_(4.6), number


class Deaths:
    """Has torch look for workers that were killed only where its error is expected.

    Its handler of SIGCHLD raises an error wherever this process is by then, in the middle of anything.
    """

    def __init__(self) -> None:
        self._look: Any = None  # torch's handler, once there is one
        self._expected, self._missed = False, False

    def take_over(self) -> None:
        """Put this in the place of the handler that torch has set up with its first worker."""
        current = signal.getsignal(signal.SIGCHLD)
        if callable(current) and current != self._heard:
            self._look = current
            signal.signal(signal.SIGCHLD, self._heard)

    def _heard(self, number: int, frame: Any) -> None:
        if self._expected:
            self._look(number, frame)
        else:
            self._missed = True

    @contextlib.contextmanager
    def expected(self) -> Iterator[None]:
        """Torch's RuntimeError for a worker that was killed comes in here, for one before, too."""
        self._expected = True
        try:
            if self._missed:
                self._missed = False
                self._look(signal.SIGCHLD, None)
            yield
        finally:
            self._expected = False


DEATHS = Deaths()  # as a process has one handler


class Loading:
    """Batches from `workers` processes (0: from this one), each copied to `device` if there is one."""

    work = float(BATCH)

    def __init__(
        self,
        workers: int,
        *,
        pinned: bool,
        device: torch.device | None,
        data: Any = None,
        collate: Callable[[Any], Any] | None = None,
        prefetch: int = PREFETCH,
        persistent: bool = False,
    ) -> None:
        self._device, self._pinned = device, pinned
        self._data = data or Images()
        self._loader = torch.utils.data.DataLoader(
            self._data,
            batch_size=BATCH,
            num_workers=workers,
            pin_memory=pinned,
            collate_fn=collate,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=persistent and workers > 0,
            worker_init_fn=end_with_parent if workers else None,
            timeout=WORKER_PATIENCE_S if workers else 0,
            # Starts in no time; newer Pythons would start each worker from scratch.
            multiprocessing_context="fork" if workers else None,
        )
        self._patience_s = 2.0 * WORKER_PATIENCE_S
        self._waits_since: float | None = None
        self._ended, self._given_up = threading.Event(), ""
        self._batches: Iterator[Any] | None = None
        self._watcher: threading.Thread | None = None
        self._start()

    def _start(self) -> None:
        """Begin an epoch."""
        if self._watcher:
            self._ended.set()
            self._watcher.join()
            self._ended.clear()
        self._next = 0
        self._batches = None  # the workers of the epoch before end, but persistent ones
        try:
            self._batches = iter(self._loader)
        except OSError as error:
            self.close()  # those that had started
            raise LimitError(f"no more can be started: {error.strerror or error}") from error
        # After the workers: no process is to start as a copy of one with threads.
        if self._loader.num_workers:
            DEATHS.take_over()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()

    def take(self, batches: int, go_on: Callable[[], None]) -> float:
        """Return seconds that so many batches took to come and be on the device.

        Raises WorkerError, LimitError.
        """
        start = time.perf_counter()
        for _ in range(batches):
            self._take()
            go_on()
        if self._device is not None:
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - start

    def error(self) -> float:
        """Return the part of the next samples that are not what they must be, or not in their place."""
        first = self._next
        images, numbers = self._take()
        right = [
            bool(number == first + place and torch.equal(image.cpu(), self._data[first + place][0]))
            for place, (image, number) in enumerate(zip(images, numbers.tolist(), strict=True))
        ]
        return 1 - sum(right) / BATCH

    def close(self) -> None:
        """End the workers, whatever state they are in."""
        self._waits_since = time.monotonic()
        # torch raises an error, wherever this process is, when a worker is killed: here that is how it ends.
        former = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self._batches = None
            self._ended.set()
            for worker in multiprocessing.active_children():
                worker.kill()
                worker.join()
        finally:
            signal.signal(signal.SIGCHLD, former or signal.SIG_DFL)

    def _watch(self) -> None:
        """End workers that hand over no batch that they have announced: for that, torch waits without end."""
        while not self._ended.wait(1.0):
            since = self._waits_since
            if since is not None and time.monotonic() - since > self._patience_s:
                self._given_up = f"DataLoader timed out while a worker handed over a batch{_halted()}"
                for worker in multiprocessing.active_children():
                    worker.kill()
                return

    def _take(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._batches is not None
        self._waits_since = time.monotonic()
        try:
            with DEATHS.expected():
                try:
                    images, numbers = next(self._batches)
                except StopIteration:
                    self._start()
                    self._waits_since = time.monotonic()
                    images, numbers = next(self._batches)
        except (EOFError, ConnectionError, RuntimeError, OSError) as error:
            if self._given_up:
                raise WorkerError(self._given_up) from error
            if isinstance(error, (EOFError, ConnectionError)):
                # It died while it handed over a batch, and torch has not noticed yet.
                raise WorkerError(f"a DataLoader worker closed its connection: {error!r}") from error
            if any(words in str(error) for words in TOO_MANY_FILES):
                raise LimitError("too many open files") from error
            if WORKER_DIED in str(error) or TIMED_OUT in str(error):
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                # An error in a worker comes with its traceback: what it is stands in the last line.
                why = _halted() if TIMED_OUT in lines[0] else ""
                raise WorkerError(" ".join(dict.fromkeys([lines[0], lines[-1]])) + why) from error
            raise
        finally:
            self._waits_since = None
        self._next += BATCH
        if self._device is not None:
            images = images.to(self._device, non_blocking=self._pinned)
        return images, numbers


def _halted() -> str:
    """`; worker 4711 is stopped by a signal`: which of the workers that live cannot run."""
    states = {worker.pid: halted(worker.pid) for worker in multiprocessing.active_children() if worker.pid}
    return "".join(f"; worker {pid} is {state}" for pid, state in sorted(states.items()) if state)


def end_with_parent(_worker: int) -> None:
    """In a worker: if its parent is killed, nobody would be left to end it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def shared_bytes(workers: int) -> int:
    """Return what so many workers keep ready, and two batches that are being taken; all in shared memory."""
    return BATCH_BYTES * (PREFETCH * workers + 2) if workers else 0


class Pieces:
    """Pieces of files as bytes; `length` samples are an epoch, in which they come over and over."""

    def __init__(self, pieces: Sequence[Piece], length: int) -> None:
        self._pieces, self._length = pieces, length

    def __len__(self) -> int:
        """Return samples of an epoch."""
        return self._length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        """Return the bytes of a piece, and its number. Raises OSError."""
        return torch.frombuffer(read(self._pieces[number % len(self._pieces)]), dtype=torch.uint8), number


def together(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples of any length as one batch: their bytes, one after the other, and their numbers."""
    return torch.cat([content for content, _ in samples]), torch.tensor([number for _, number in samples])


class FileLoading(Loading):
    """Batches of pieces of files from `workers` processes, which keep `prefetch` batches ready each.

    With `persistent` workers they stay for the next epoch.
    """

    def __init__(
        self, pieces: Sequence[Piece], workers: int, *, prefetch: int, persistent: bool, batches: int
    ) -> None:
        """`batches` are an epoch."""
        data = Pieces(pieces, batches * BATCH)
        super().__init__(
            *(workers,),
            pinned=False,
            device=None,
            data=data,
            collate=together,
            prefetch=prefetch,
            persistent=persistent,
        )

    def error(self) -> float:
        """1 where the next batch is not what is in the files, or not in its place; else 0."""
        content, numbers = self._take()
        first = self._next - BATCH
        right, _ = together([self._data[first + place] for place in range(BATCH)])
        in_place = numbers.tolist() == list(range(first, first + BATCH))
        return 0.0 if in_place and torch.equal(content, right) else 1.0
