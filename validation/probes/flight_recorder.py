"""torch's flight recorder: the last collectives of a rank, which torch keeps in memory.

The dump has the keys of torch/csrc/distributed/c10d/FlightRecorder.hpp, as torch 2.4.1 to 2.15.0 have them.
gloo's collectives are recorded, too, where torch has `_dump_fr_trace_json`.
"""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import dataclass
from typing import Any

#: torch 2.4 records nothing unless told how much to keep; newer ones keep 2,000, which takes longer to dump.
#: Newer ones also warn of the old name.
OLD_SIZE, SIZE, KEPT = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "64"
MOST_ENTRIES, MOST_CHARACTERS, MOST = 10_000, 80, 1 << 62
STATES = ("scheduled", "started", "completed")
#: The number of the group that all ranks are in.
ALL_RANKS = 0


class FlightError(Exception):
    """The dump is none of torch's flight recorder; the message says what is wrong."""


@dataclass(frozen=True)
class FlightRecord:
    """The last collective that a rank called: number, name, state.

    `handed_over` is the last one that the library took over: one less where the rank hangs in the call.
    """

    called: int
    handed_over: int
    name: str = ""
    state: str = ""


def keep() -> None:
    """Have torch keep the last collectives of this process, before it makes a group."""
    from torch._C import _distributed_c10d as c10d

    if not {OLD_SIZE, SIZE} & os.environ.keys():
        os.environ[SIZE if hasattr(c10d, "_dump_fr_trace_json") else OLD_SIZE] = KEPT


def of_this_process(library: str) -> FlightRecord | None:
    """Return the record of this rank; None where this torch keeps none. Raises FlightError."""
    from torch._C import _distributed_c10d as c10d

    kind = "nccl" if library == "nccl" else "fr"
    if as_json := getattr(c10d, f"_dump_{kind}_trace_json", None):
        return read(json.loads(as_json(True, False)))
    if as_pickle := getattr(c10d, f"_dump_{kind}_trace", None):
        return read(pickle.loads(as_pickle(True, False, False)))  # noqa: S301 - this process made it
    return None


def read(dump: Any) -> FlightRecord | None:
    """Return the last collective over all ranks; None if none was called. Raises FlightError."""
    if not isinstance(dump, dict):
        raise FlightError("expected a dump of torch's flight recorder, a mapping")
    entries = dump.get("entries", [])
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise FlightError(f"expected a list of up to {MOST_ENTRIES} entries")
    found = [record for entry in entries if (record := _record(entry)) is not None]
    if not found:
        return None
    last = max(found, key=lambda record: record.called)
    status = _mapping(_mapping(dump.get("pg_status", {})).get(str(ALL_RANKS), {}))
    enqueued = status.get("last_enqueued_collective")
    return last if enqueued is None else FlightRecord(last.called, _number(enqueued), last.name, last.state)


def _record(entry: Any) -> FlightRecord | None:
    entry = _mapping(entry)
    if entry.get("is_p2p") or _number(entry.get("pg_id")) != ALL_RANKS:
        return None
    name, state = entry.get("profiling_name"), entry.get("state")
    if not isinstance(name, str) or not name.isprintable() or len(name) > MOST_CHARACTERS:
        raise FlightError(f"expected the name of a collective of up to {MOST_CHARACTERS} characters")
    if state not in STATES:
        raise FlightError(f"expected a state of a collective, one of {', '.join(STATES)}")
    number = _number(entry.get("collective_seq_id"))
    return FlightRecord(number, number, name, state)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FlightError("expected a mapping in a dump of torch's flight recorder")
    return value


def _number(value: Any) -> int:
    """Return a number, which newer dumps have as text."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < len(str(MOST))):
        raise FlightError("expected a whole number in a dump of torch's flight recorder")
    return int(text)
