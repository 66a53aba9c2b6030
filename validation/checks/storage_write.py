"""How fast the node writes where its training data is, or its checkpoints go."""

from __future__ import annotations

from pathlib import Path

from validation.backends import storage
from validation.checks.launch import Stage
from validation.checks.storage import (
    StorageCheck,
    blocks_to_compare,
    on_path,
    sequential,
    wrong_data,
)
from validation.model.contract import Measured
from validation.model.not_run import NotRunError
from validation.processes.child import Request


def write(source: storage.Source, path: Path, request: Request, stage: Stage) -> Measured:
    """Measure writes in several threads and in one. Raises NotRunError, OSError."""
    if source.content is None:
        raise NotRunError(f"{path} is a file, and files are only read: name a folder")
    measurements = sequential("write", source.write_seconds, source, path, request, stage)
    checked, wrong = blocks_to_compare(source), []
    for block in checked:
        stage(f"comparing what was written to {path}")
        source.restore(block)
        wrong += [block] if source.wrong(block) else []
    details = {"file_bytes": source.size_bytes, "checked_blocks": len(checked), "cache": source.how}
    return Measured(tuple(measurements), tuple(wrong_data(path, wrong, len(checked))), details=details)


measure = on_path(write)


class StorageWrite(StorageCheck):
    """Sequential writes of 4 MiB in 8 threads and in one, in each folder of `gpu_validation_storage_paths`.

    Over a file of our own of up to 1 GiB, without a name; each sample ends when the storage has it
    (fdatasync). A path that is a file is not written to.
    """

    id = "storage_write"
    title = "sequential writes where the training data is"
    place = 312
    passes = "blocks that are read again are what was written"
    headline = ("storage_write_gb_s",)
