"""The DataLoader over pieces of files, epoch after epoch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from validation.backends.files import read
from validation.backends.loading import BATCH, Loading
from validation.backends.protocol import Piece


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
