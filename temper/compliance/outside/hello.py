"""What an SSH server says before any secret: its version and its lists of algorithms (RFC 4253). Pure."""

from __future__ import annotations

import string
import struct
from dataclasses import dataclass

#: Bytes: of the first packet (RFC 4253, 6.1, asks for 35,000), and of the lines before it.
MOST_OF_A_PACKET = 35_000
MOST_OF_A_LINE = 255
MOST_LINES = 50
MOST_NAMES = 200
#: RFC 4251, 6.
MOST_OF_A_NAME = 64
NAME = frozenset(string.ascii_letters + string.digits + string.punctuation) - {","}
KEXINIT = 20
COOKIE = 16
LISTS = 8


class HelloError(ValueError):
    """The server does not begin as an SSH server does; the message says how."""


@dataclass(frozen=True)
class Hello:
    """A server's lists of algorithms; ciphers and MACs are those of both directions."""

    version: str
    kex: tuple[str, ...]
    host_keys: tuple[str, ...]
    ciphers: tuple[str, ...]
    macs: tuple[str, ...]


def read_hello(said: bytes) -> Hello:
    """Return what a server said first. Raises HelloError."""
    rest = said
    for _ in range(MOST_LINES):
        line, end, rest = rest.partition(b"\n")
        if line.startswith(b"SSH-") and end and len(line) <= MOST_OF_A_LINE:
            return _algorithms(line.rstrip(b"\r").decode("ascii", "replace"), rest)
        if not end:
            break
    raise HelloError(f"expected its version, found {said[:60]!r}")


def _algorithms(version: str, packet: bytes) -> Hello:
    if len(packet) < 6:
        raise HelloError(f"expected its algorithms, found {len(packet)} bytes")
    length, padding, kind = struct.unpack_from(">IBB", packet)
    if kind != KEXINIT or not padding < length <= min(MOST_OF_A_PACKET, len(packet) - 4):
        raise HelloError(f"expected its algorithms, found a packet of type {kind} and {length} bytes")
    body, place = packet[6 : 4 + length - padding], COOKIE
    lists: list[tuple[str, ...]] = []
    for _ in range(LISTS):
        if len(body) < place + 4:
            raise HelloError(f"expected {LISTS} lists of algorithms, found {len(lists)}")
        (size,) = struct.unpack_from(">I", body, place)
        text = body[place + 4 : place + 4 + size]
        if len(text) < size:
            raise HelloError(f"expected a list of {size} bytes, found {len(text)}")
        lists.append(_names(text))
        place += 4 + size
    kex, host_keys, to_server, to_client, macs_to_server, macs_to_client, *_ = lists
    return Hello(version, kex, host_keys, _both(to_server, to_client), _both(macs_to_server, macs_to_client))


def _names(text: bytes) -> tuple[str, ...]:
    names = tuple(text.decode("latin-1").split(",")) if text else ()
    if len(names) > MOST_NAMES:
        raise HelloError(f"expected at most {MOST_NAMES} algorithms in a list, found {len(names)}")
    for name in names:
        if not 0 < len(name) <= MOST_OF_A_NAME or not NAME.issuperset(name):
            raise HelloError(f"expected the name of an algorithm, found {name[:MOST_OF_A_NAME]!r}")
    return names


def _both(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
