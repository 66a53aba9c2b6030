"""What is made of an object is made once, however many nodes share the object.

Nodes of a fleet are mostly alike: statement.py gives those that are the same controls. That two hold the
same is then told by what they are, not by what is in them, which for hundreds of controls of thousands of
nodes takes longer than all the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar
from uuid import NAMESPACE_URL

One = TypeVar("One")
Made = TypeVar("Made")


class Once(Generic[One, Made]):
    """A function of an object that cannot change, which is asked once for each object."""

    def __init__(self, make: Callable[[One], Made]) -> None:
        self._make = make
        # With the object itself: as long as it is here, no other one has its id.
        self._known: dict[int, tuple[One, Made]] = {}

    def __call__(self, one: One) -> Made:
        """Return what is made of it."""
        known = self._known.get(id(one))
        if known is None:
            known = self._known[id(one)] = (one, self._make(one))
        return known[1]


def uuid_of(name: str) -> str:
    """Return the UUID (RFC 9562, version 5) of a name, as the module uuid makes it: without an object of it.

    A fleet has millions of them.
    """
    found = hashlib.sha1(NAMESPACE_URL.bytes + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(found[16], 16) & 3]
    return f"{found[:8]}-{found[8:12]}-5{found[13:16]}-{variant}{found[17:20]}-{found[20:32]}"
