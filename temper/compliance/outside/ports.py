"""Which TCP ports of a node answer, by bounded connects from one thread. Nothing is sent to what answers."""

from __future__ import annotations

import errno
import itertools
import math
import selectors
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from validation.model.contract import StringEnum

#: Connections that wait at a time, seconds that one waits (a lost SYN is sent again after one), and seconds
#: within which a service that speaks first says its first words.
AT_ONCE = 128
CONNECT_S = 1.75
GREETING_S = 0.5
MOST_OF_A_GREETING = 64
#: What is looked for whatever the plan and the node say: ways in, shares, databases, engines, schedulers.
SAMPLE = (
    *(21, 22, 23, 25, 53, 80, 111, 139, 443, 445, 512, 513, 514, 873, 2049, 2222, 2375, 2376, 2379, 3128),
    *(3306, 3389, 4444, 5000, 5432, 5900, 6379, 6443, 6817, 6818, 8000, 8080, 8443, 8888, 9090, 9100, 9400),
    *(10250, 11211, 27017),
)


class Answer(StringEnum):
    """How a port answers: with a connection, with a refusal, or not at all."""

    OPEN = "open"
    CLOSED = "closed"
    SILENT = "silent"


@dataclass(frozen=True)
class Port:
    """A port as this machine sees it. `source` is this machine's own address towards it."""

    address: str
    port: int
    answer: Answer
    source: str = ""
    greeting: bytes = b""

    @property
    def is_ssh(self) -> bool:
        """Whether it greets as an SSH server does."""
        return self.greeting.startswith(b"SSH-")


def look_at_ports(addresses: Iterable[str], ports: Iterable[int], deadline: float) -> list[Port]:
    """Return how each port of each address answers, as far as time allows."""
    waiting = itertools.product(addresses, sorted(set(ports)))
    found: list[Port] = []
    while (batch := list(itertools.islice(waiting, AT_ONCE))) and time.monotonic() < deadline:
        found += _batch(batch, deadline)
    return found


def _batch(asked: Iterable[tuple[str, int]], deadline: float) -> list[Port]:
    """Connect to all of them at once; those that answer have half a second for their first words."""
    found: list[Port] = []
    end = min(deadline, time.monotonic() + CONNECT_S)
    with selectors.DefaultSelector() as selector:
        for address, port in asked:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError:  # no IPv6 on this machine
                continue
            status = connection.connect_ex((address, port))
            if status not in (0, errno.EINPROGRESS):
                connection.close()
                continue
            selector.register(connection, selectors.EVENT_WRITE, (address, port))
        greetings: dict[socket.socket, float] = {}
        now = -math.inf
        # The last round waits no more: on a busy machine answers may have come while this process waited.
        while selector.get_map() and now < end:
            now = time.monotonic()
            for late in [one for one, until in greetings.items() if until <= now]:
                found.append(_ended(selector, late, Answer.OPEN))
                del greetings[late]
            until = min([end, *greetings.values()])
            for key, events in selector.select(max(0, until - now)):
                connection = key.fileobj  # type: ignore[assignment]  # only sockets are registered
                if events & selectors.EVENT_READ:
                    del greetings[connection]
                    found.append(_ended(selector, connection, Answer.OPEN, _words(connection)))
                elif error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    refused = error in (errno.ECONNREFUSED, errno.ECONNRESET)
                    found.append(_ended(selector, connection, Answer.CLOSED if refused else Answer.SILENT))
                else:
                    greetings[connection] = time.monotonic() + GREETING_S
                    selector.modify(connection, selectors.EVENT_READ, key.data)
        for key in list(selector.get_map().values()):
            connection = key.fileobj  # type: ignore[assignment]  # likewise
            answer = Answer.OPEN if connection in greetings else Answer.SILENT
            found.append(_ended(selector, connection, answer))
    return found


def _ended(
    selector: selectors.BaseSelector, connection: socket.socket, answer: Answer, words: bytes = b""
) -> Port:
    address, port = selector.unregister(connection).data
    source = connection.getsockname()[0] if answer is Answer.OPEN else ""
    connection.close()
    return Port(address, port, answer, source, words)


def _words(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MOST_OF_A_GREETING)
    except OSError:
        return b""
