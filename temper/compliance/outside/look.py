"""One look at one node: the ports that answer, and its SSH servers. Nothing here judges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from temper.compliance.outside.claims import Claims
from temper.compliance.outside.expected import Expected
from temper.compliance.outside.ports import SAMPLE, Answer, Port, look_at_ports
from temper.compliance.outside.route import Route, RouteError
from temper.compliance.outside.ssh import Pace, SshServer, ask_server

Found = TypeVar("Found")

ROOT = "root"
#: No node has it: what sshd offers to it is what it offers where no Match line names somebody.
NOBODY = "temper-outside"
#: For a whole look.
LOOK_S = 40.0
MOST_ACCOUNTS = 9
#: For ports that should not answer, and that the node has listening.
UNPLANNED_S = 1.2
#: Beside Ansible's way in.
MOST_SERVERS = 4


@dataclass(frozen=True)
class Look:
    """What was seen. `known_keys` are those that this machine knows of the node, by type.

    The first server is the one that Ansible comes through. `through` names what lies between; then no port
    was looked at. With a `problem`, nothing was.
    """

    servers: tuple[SshServer, ...] = ()
    ports: tuple[Port, ...] = ()
    known_keys: dict[str, set[str]] = field(default_factory=dict)
    through: str = ""
    problem: str = ""


def look(
    way: Route,
    planned: Callable[[], Expected],
    later: Callable[[], Claims],
    further: Sequence[str] = (),
    seconds: float = LOOK_S,
) -> Look:
    """Look at a node. Its addresses are those of its host's name, and the operator's `further` ones.

    What is `planned`, and what the node says itself `later`, may be still to come: each is asked for when all
    has been looked at that needs no more. Most of the time goes by until silent ports are given up.
    """
    pace = Pace(time.monotonic() + seconds)
    try:
        known, addresses = way.known_keys(), () if way.proxy else (*way.addresses(), *further)
    except RouteError as error:
        return Look(problem=str(error))
    asked = {*SAMPLE, way.port}
    sample = beside(lambda: look_at_ports(addresses, asked - {way.port}, pace.deadline))
    ports = look_at_ports(addresses, {way.port}, pace.deadline)
    # A busy server may greet later than a port is waited for.
    answering = sorted((one for one in ports if one.answer is Answer.OPEN), key=lambda one: not one.is_ssh)
    main = _way_in(way, [one.address for one in answering], pace)
    asked_at = time.monotonic()
    wanted = planned()
    # A node takes its time, which is not the look's.
    pace.deadline += time.monotonic() - asked_at
    ports += look_at_ports(addresses, wanted.ports - asked, pace.deadline) + sample.result()
    claims = later()
    pace.deadline = time.monotonic() + seconds
    soon = min(pace.deadline, time.monotonic() + UNPLANNED_S)
    ports += look_at_ports(addresses, {*claims.listening} - asked - wanted.ports, soon)
    greeting = [SshServer(one.address, one.port) for one in ports if one.is_ssh]
    others = [one for one in greeting if (one.address, one.port) != (main.address, main.port)]
    others = [ask_server(one, everybody(way), pace) for one in others[:MOST_SERVERS]]
    named = () if way.proxy else dict.fromkeys((*claims.accounts, *wanted.administrators))
    main = ask_server(main, [one for one in named if one not in main.methods][:MOST_ACCOUNTS], pace)
    return Look((main, *others), tuple(ports), known, way.through)


def look_at_ssh(way: Route, seconds: float) -> Look:
    """Look at Ansible's way in alone."""
    try:
        known, addresses = way.known_keys(), () if way.proxy else way.addresses()
    except RouteError as error:
        return Look(problem=str(error))
    return Look((_way_in(way, addresses, Pace(time.monotonic() + seconds)),), (), known, way.through)


def everybody(way: Route) -> tuple[str, ...]:
    """Return the accounts that every server is asked for.

    Each costs a login on the machines that lie between.
    """
    return tuple(dict.fromkeys((way.user, ROOT) if way.proxy else (way.user, ROOT, NOBODY)))


def _way_in(way: Route, addresses: Sequence[str], pace: Pace) -> SshServer:
    """Ask the server that Ansible comes through, at the first address that answers."""
    server = SshServer(way.host, way.port, problem="no SSH server answers there")
    # Those of a whole fleet may be too many at once for what lies between.
    for address in addresses if not way.proxy else (way.host, way.host):
        server = ask_server(SshServer(address, way.port), everybody(way), pace, way.proxy, way.gate)
        if server.hello:
            break
    return server


class Looking:
    """A look that goes on while the node does something else. `take` gets to ask what the node says.

    Whatever becomes of it is a look.
    """

    def __init__(self, take: Callable[[Callable[[], Claims]], Look]) -> None:
        self._claims: Future[Claims] = Future()
        self._seen = beside(lambda: take(self._claims.result))

    def end(self, claims: Claims, seconds: float = 2 * LOOK_S) -> Look:
        """Return what was seen, with what the node says of itself looked at as well."""
        self._claims.set_result(claims)
        try:
            return self._seen.result(seconds)
        except TimeoutError:
            return Look(problem=f"the look took longer than {seconds:.0f} s")
        # Whatever it is, it is a look that could not be taken.
        except Exception as error:  # noqa: BLE001
            return Look(problem=f"it could not be looked at: {type(error).__name__}: {error}")


def beside(work: Callable[[], Found]) -> Future[Found]:
    """Begin a work in a thread of its own, which keeps no process from ending."""
    future: Future[Found] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
