"""In which order the values of a setting stand: which of two is stricter, and what is as strict as both.

An order is a text, as data/strictness.yml and the tables of sshd_strictness.py have it:

    exactly                         no value is stricter than another
    at most, 0 -1 unlimited         numbers; those that are named stand for no limit, and so do those below 0
    at least, 0 unlimited           likewise, where no limit is the strictest
    subset                          names between commas or blanks: fewer are stricter
    contains                        likewise: more are stricter
    bits, 1 all                     the bits of a number: fewer are stricter; this number stands for all
    umask                           octal digits that take rights away: more bits are stricter
    no > local|remote > yes         words, the strictest first; of two in one place neither is stricter

    switch                          0 is off, and anything else is on
    interval                        apt's days, or 12h, 30m, 10s, always: shorter is stricter, but 0 is never
    absent                          no file and no line has it

Words may be the only numbers that a kernel takes. `, 3 4 default` at the end names values that are the
distribution's own: nobody has chosen them. `, 3 implicit` is what the program takes where no line sets it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

EXACTLY = "exactly"
ABSENT = "absent"
# No limit of a kernel or a program has more digits.
NUMBER = re.compile(r"-?[0-9]{1,20}")
OCTAL = re.compile(r"0?[0-7]{1,3}")
INTERVAL = re.compile(r"([0-9]{1,9})([smhd]?)")
ZERO = re.compile(r"\s*[-+]?0+\s*")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "": 86400}


def as_strict(order: str, found: str, wanted: str) -> bool:
    """Return whether a value allows nothing that the wanted one forbids."""
    if found == wanted:
        return True
    if ">" in order:
        return _place(order, found) < _place(order, wanted)
    try:
        return _COMPARED[_name(order)](order, found, wanted)
    except ValueError:  # "none", "infinite": in no order with numbers
        return False


def stricter(order: str, found: str, wanted: str) -> bool:
    """Return whether a value forbids more than the wanted one, and allows nothing that it forbids."""
    return as_strict(order, found, wanted) and not as_strict(order, wanted, found)


def strictest(order: str, found: str, wanted: str) -> str:
    """Return a value that is as strict as both: the found one, where it is; the wanted one, where none is.

    Of names and bits, one may be neither of the two.
    """
    if as_strict(order, found, wanted):
        return found
    join = _JOINED.get(_name(order))
    try:
        return join(order, found, wanted) if join else wanted
    except ValueError:
        return wanted


def chosen(order: str, value: str, wanted: str) -> bool:
    """Return whether a value is somebody's choice, not the distribution's that the wanted one relaxes."""
    defaults = _named(order, "default")
    return value not in defaults or wanted in defaults


def implicit(order: str) -> list[str]:
    """Return what a program takes where no line sets a keyword: one value, or none that is known."""
    return _named(order, "implicit")


def _name(order: str) -> str:
    return order.partition(",")[0].strip()


def _named(order: str, role: str) -> list[str]:
    """Return the values that an order names for a role: `default` of `at least, 3 4 default`."""
    parts = [part.split() for part in order.split(",")[1:]]
    return [value for *values, last in parts if last == role for value in values]


def _place(order: str, value: str) -> int:
    """Return the place of a word in an order.

    An unknown word, as of a newer program, has the weakest place: nothing is kept for it.
    """
    places = [place.strip().lower().split("|") for place in order.partition(",")[0].split(">")]
    found = [number for number, words in enumerate(places) if value.lower() in words]
    return found[0] if found else len(places)


def _number(order: str, text: str) -> float:
    unlimited = _named(order, "unlimited")
    if text in unlimited:
        return math.inf
    value = _whole(text)
    # 00 is 0. What takes no limit takes any number below 0 for none, or for one of its largest.
    negative = value < 0 and bool(unlimited) and _name(order) == "at most"
    return math.inf if negative or str(value) in unlimited else value


def _whole(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _octal(text: str) -> int:
    if not OCTAL.fullmatch(text):
        raise ValueError(text)
    return int(text, 8)


def _bits(order: str, text: str) -> int:
    return -1 if text in _named(order, "all") else _whole(text)


def _seconds(text: str) -> float:
    """Return what check_stamp() of apt.systemd.daily makes of an interval; 0h is always."""
    if text in ("always", "0"):
        return math.inf if text == "0" else 0
    match = INTERVAL.fullmatch(text)
    if not match:
        raise ValueError(text)
    return int(match[1]) * SECONDS[match[2]]


def _names(text: str) -> list[str]:
    return [name for name in re.split(r"[,\s]+", text) if name]


def _listed(names: list[str], wanted: str) -> str:
    """Return names as the wanted text writes them."""
    return ("," if "," in wanted else " ").join(dict.fromkeys(names))


def _common_bits(order: str, found: str, wanted: str) -> str:
    bits = str(_bits(order, found) & _bits(order, wanted))
    return "0" if bits in _named(order, "all") else bits


def _common_names(_order: str, found: str, wanted: str) -> str:
    """Return the names of both; those that are wanted where there are none."""
    known = _names(found)
    return _listed([name for name in _names(wanted) if name in known], wanted) or wanted


_COMPARED: dict[str, Callable[[str, str, str], bool]] = {
    EXACTLY: lambda _order, _found, _wanted: False,
    "at most": lambda order, found, wanted: _number(order, found) <= _number(order, wanted),
    "at least": lambda order, found, wanted: _number(order, found) >= _number(order, wanted),
    "subset": lambda _order, found, wanted: set(_names(found)) <= set(_names(wanted)),
    "contains": lambda _order, found, wanted: set(_names(found)) >= set(_names(wanted)),
    "bits": lambda order, found, wanted: not _bits(order, found) & ~_bits(order, wanted),
    "umask": lambda _order, found, wanted: not _octal(wanted) & ~_octal(found),
    "switch": lambda _order, found, wanted: not ZERO.fullmatch(found) or bool(ZERO.fullmatch(wanted)),
    "interval": lambda _order, found, wanted: _seconds(found) <= _seconds(wanted),
}
_JOINED: dict[str, Callable[[str, str, str], str]] = {
    "subset": _common_names,
    "contains": lambda _order, found, wanted: _listed([*_names(wanted), *_names(found)], wanted),
    "bits": _common_bits,
    "umask": lambda _order, found, wanted: f"{_octal(found) | _octal(wanted):03o}",
}
#: The names of orders that are no list of words.
NAMES = tuple(_COMPARED)
