"""What the operator asks of a run besides its plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunOptions:
    """`storage_paths` are folders or files to read from."""

    storage_paths: tuple[Path, ...] = ()
    #: What each of the paths must reach; None: nothing is compared with a floor.
    storage_floor_gb_s: float | None = None
    #: The folder that gets the traces of profiles.
    traces: Path | None = None
    #: The Python that has TensorFlow.
    tensorflow: Path | None = None
    #: Whether programs are to draw on the GPUs.
    graphics: bool = False


NO_OPTIONS = RunOptions()
