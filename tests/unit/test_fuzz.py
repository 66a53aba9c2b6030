"""A short look at every reader of foreign input, with the same inputs each time: `make fuzz` in small."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz import mutations
from tests.fuzz.guard import Reader, examine
from tests.fuzz.readers import READERS

pytestmark = pytest.mark.component

SEED = 20261125
#: A whole report costs as much as hundreds of lines.
WHOLE = 12


def repeated(reader: Reader, most: int) -> list[str]:
    """What is wrong with a reader, and the command that repeats it."""
    found = examine(reader, SEED, cpu_s=60, most=most)
    assert found.inputs == most
    return [
        f"{kind}: {place}: python -m tests.fuzz --reader {reader.name!r} --seed {seed}"
        for (kind, place), seed in found.places.items()
    ]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_hostile_input_is_refused_in_a_sentence(reader: Reader) -> None:
    assert repeated(reader, WHOLE if reader.name.endswith("hostile") else 100) == []


def loops(text: str) -> None:
    """Read as a reader does that never ends, and takes every exception."""
    while text is not None:
        try:
            text += ""
        except Exception:  # noqa: BLE001, S112 - so do some
            continue


def crowds(_text: str) -> None:
    """Read as a reader does that takes all memory."""
    held = []
    while True:
        held.append(bytearray(64 << 20))


def never_ends(_text: str) -> None:
    """Read as a reader does that no exception reaches."""
    while True:
        with suppress(BaseException):
            "".join(map(str, range(1000)))


def sleeps(_text: str) -> None:
    """Read as a reader does that waits for another process for ever."""
    time.sleep(3600)


def waits_for_a_cpu(_text: str) -> None:
    """Read on a machine that is busy: long by the clock, and nearly nothing by CPU time."""
    reader = os.getpid()
    if not os.fork():
        while Path(f"/proc/{reader}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        time.sleep(1)
        os.kill(reader, signal.SIGCONT)
        os._exit(0)
    os.kill(reader, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("name", "read", "kind"),
    [
        ("loops", loops, "hang"),
        ("crowds", crowds, "hang"),
        ("never ends", never_ends, "hang"),
        ("sleeps", sleeps, "hang"),
        ("int", int, "unhandled"),
    ],
)
def test_a_reader_that_fails_is_found_and_the_next_input_is_read(
    name: str, read: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.guard.LONGEST_S", 0.1)
    monkeypatch.setattr("tests.fuzz.guard.PATIENCE_S", 0.5)
    reader = Reader(name, read, lambda: ["x"])  # type: ignore[arg-type]  # of several types
    found = examine(reader, SEED, cpu_s=60, most=3)
    assert (found.inputs, set(found.counts)) == (3, {kind})


def test_a_reader_that_waits_for_a_cpu_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.guard.PATIENCE_S", 0.3)
    found = examine(Reader("waits", waits_for_a_cpu, lambda: ["x"]), SEED, cpu_s=60, most=2)
    assert (found.inputs, found.counts) == (2, {})


def test_what_should_not_have_been_accepted_is_found() -> None:
    found = examine(Reader("all", str, lambda: ["x"], (), lambda *_: "it was"), SEED, 60, 2)
    assert found.places == {("wrong", "it was"): SEED}


@pytest.mark.parametrize("reader", READERS[::9], ids=lambda reader: reader.name)
def test_a_seed_gives_the_same_input_again(reader: Reader) -> None:
    assert repr(reader.input(7)) == repr(reader.input(7))


def containers(value: Any) -> Iterator[int]:
    """Yield what tells each object and list of a document apart, as often as it stands there."""
    if isinstance(value, (dict, list)):
        yield id(value)
        for one in value.values() if isinstance(value, dict) else value:
            yield from containers(one)


def test_no_two_places_of_a_document_share_what_a_further_change_may_grow() -> None:
    documents = [mutations.document(Random(seed), [{"a": [{"b": {}}]}]) for seed in range(100)]
    found = [list(containers(document)) for document in documents]
    assert [len(places) for places in found] == [len(set(places)) for places in found]
