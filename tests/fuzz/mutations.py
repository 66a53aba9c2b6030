"""Change a sample into hostile input, text or a JSON document: the same seed gives the same input."""

import copy
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

#: Python refuses to make a number of more than 4,300 digits.
HUGE = "9" * 4301
NUMBERS = (
    HUGE,
    f"0x{'f' * 5000}",
    "1e400",
    "inf",
    "nan",
    "-1",
    "0",
    "1_0",
    "٣",
    "²",
    "18446744073709551616",
    "",
)
CHARACTERS = "\0\x07\x1b\r\n\t\x0b\x1c\x7f\x85\u2028\ufeff\ufffe\ud800\udcff\U0001f4a5 \"'\\<>&[]{}()=:,;#%*"
WORDS = (
    "{{ lookup('pipe','id') }}",
    "{% raw %}",
    "../../etc/shadow",
    "$(id)`id`",
    "<script>alert(1)</script>",
    "\x1b]0;owned\x07",
    "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus",
    "NVRM: loading NVIDIA UNIX Open Kernel Module",
    "x" * 100_000,
    'a \\"\\"' * 40,
)
#: What another program says, or the same one where it fails.
OTHERS = (
    "",
    "Segmentation fault (core dumped)\n",
    "usage: program [OPTION]... [FILE]...\nTry --help.\n",
    "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'x'\n",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
    "{}",
    "[]",
    "null",
)
NESTED = ("[" * 100_000, '{"a":' * 100_000, "<a>" * 10_000, "(" * 5000, '"' * 999)
TIMES = (
    "9999-12-31T23:59:59+00:00",
    "0001-01-01T00:00:00+23:59",
    "2036-01-01T00:00:00+00:00",
    "2026-11-20T00:00:00",
    "yesterday",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**400,
    float("nan"),
    float("inf"),
    -1e308,
    "",
    "\ud800",
    [],
    {},
    [[]],
    *TIMES,
)
#: JSON that nests deeper than Python's own stack.
DEEP = 100_000
#: More than one machine has of anything.
MANY, MOST_BYTES = 20_000, 4 << 20
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SEPARATORS = ("\t", ",", " ", ":", "=", "|")


def text(random: Random, samples: Sequence[str]) -> str:
    """Return one of the samples after one to four changes."""
    found = random.choice(samples)
    for _ in range(random.randint(1, 4)):
        found = _change(random, found, samples)[:MOST_BYTES]
    return found


def data(random: Random, samples: Sequence[bytes]) -> bytes:
    """Return one of the samples with the same changes, and with bytes that were flipped."""
    found = bytearray(text(random, [one.decode("latin-1") for one in samples]).encode("latin-1", "replace"))
    for _ in range(random.choice((0, 1, 8)) if found else 0):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found)


def document(random: Random, samples: Sequence[Any]) -> Any:
    """Return a copy of one of the samples with one to three places changed."""
    holder = [copy.deepcopy(random.choice(samples))]
    for _ in range(random.randint(1, 3)):
        if holder:
            _spoil(random, holder)
    return holder[0] if holder else None


def as_text(value: Any) -> str:
    """Return a document as JSON text, which may have numbers that JSON does not know."""
    # Python writes no integer of more than 4,300 digits either.
    text = json.dumps(value).replace('"@huge@"', HUGE, 100).replace('"@1e400@"', "1e400")
    return text.replace('"@deep@"', "[" * DEEP + "]" * DEEP, 3)


def _change(random: Random, found: str, samples: Sequence[str]) -> str:
    """Return the text with one change."""
    place = random.randint(0, len(found))
    kind = random.randrange(12)
    if kind == 0:
        return found[:place]
    if kind == 1:
        return _lines(random, found)
    if kind == 2:
        return _fields(random, found)
    if kind in (3, 4):
        numbers = list(NUMBER.finditer(found))
        if not numbers:
            return random.choice(NUMBERS)
        one = random.choice(numbers)
        return found[: one.start()] + random.choice(NUMBERS) + found[one.end() :]
    if kind in (5, 6):
        return found[:place] + random.choice(CHARACTERS) + found[place + random.randint(0, 1) :]
    if kind == 7:
        return found[:place] + random.choice(WORDS) + found[place:]
    if kind == 8:
        return found[:place] + random.choice(samples)[random.randint(0, len(found)) :]
    if kind == 9:
        return (
            found[:place]
            + "".join(chr(random.randrange(256)) for _ in range(random.randint(1, 64)))
            + found[place:]
        )
    if kind == 10 and random.random() < 0.2:  # costs every reader time
        return found[:place] + random.choice(NESTED) + found[place:]
    if kind == 11 and random.random() < 0.1:
        return random.choice((*OTHERS, "\n" * 1000, found * 20))
    end = random.randint(place, len(found))
    return found[:place] + found[end:]


def _lines(random: Random, found: str) -> str:
    """Return the text with a line removed, doubled, moved, indented or made a word's."""
    lines = found.split("\n")
    place = random.randrange(len(lines))
    line = lines.pop(place)
    kind = random.randrange(5)
    if kind == 1:
        lines[place:place] = [line] * random.choice((2, 2, 300))
    elif kind == 2:
        lines.insert(random.randint(0, len(lines)), line)
    elif kind == 3:
        lines.insert(place, f"  {line}")
    elif kind == 4:
        lines.insert(place, f"{random.choice(WORDS)} {line}")
    return "\n".join(lines)


def _fields(random: Random, found: str) -> str:
    """Return the text with a field of a line removed, doubled or moved."""
    lines = found.split("\n")
    place = random.randrange(len(lines))
    separator = random.choice([one for one in SEPARATORS if one in lines[place]] or [" "])
    fields = lines[place].split(separator)
    field = fields.pop(random.randrange(len(fields)))
    for _ in range(random.randrange(3)):
        fields.insert(random.randint(0, len(fields)), field)
    lines[place] = separator.join(fields)
    return "\n".join(lines)


def _place(random: Random, container: Any) -> tuple[Any, Any]:
    """Return a container in a document and one of its keys; each level is as likely as the one below it."""
    while True:
        key = random.choice(list(container) if isinstance(container, dict) else range(len(container)))
        inner = container[key]
        if not isinstance(inner, (dict, list)) or not inner or random.random() < 0.3:
            return container, key
        container = inner


def _spoil(random: Random, holder: list[Any]) -> None:
    """Change one place of a document."""
    container, key = _place(random, holder)
    value = container[key]
    kind = random.randrange(10)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(value, (int, float)):
        container[key] = random.choice((-value, value + 1, "@huge@", "@1e400@", str(value), 0))
    elif kind <= 4 and isinstance(value, str):
        container[key] = _string(random, value)
    elif kind == 4:
        other, name = _place(random, holder)
        container[key] = copy.deepcopy(other[name])
    elif kind == 5:
        nested: Any = value
        for _ in range(random.choice((1, 2, 50))):
            nested = {"a": nested} if random.random() < 0.5 else [nested]
        container[key] = nested
    elif kind == 6 and isinstance(value, list):
        most = min(MANY // (len(value) or 1), MOST_BYTES // len(repr(value)))
        times = 2 if random.random() < 0.9 else most
        # No two places share an object: it would grow in all of them at once.
        container[key] = [copy.deepcopy(one) for _ in range(times) for one in value]
    elif kind == 6 and isinstance(value, dict):
        value[random.choice(("", "add_host", "ansible_facts", "_ansible_x", "\ud800", "../x"))] = (
            copy.deepcopy(value)
        )
    else:
        container[key] = copy.deepcopy(random.choice((*ODD, *WORDS, "@deep@")))


def _string(random: Random, value: str) -> str:
    """Return a text of a document after changes; one that is JSON itself is changed as that."""
    if value[:1] in ("{", "[") and random.random() < 0.8:
        with suppress(ValueError, RecursionError):
            return as_text(document(random, [json.loads(value)]))
    return text(random, [value])
