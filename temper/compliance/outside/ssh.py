"""Ask an SSH server, as a stranger, for its algorithms, its host keys and what it would take of an account.

For each account it sends one request, `none` (RFC 4252, 5.2), which the server answers with the methods that
it would go on with. No password and no key is tried. sshd logs a line or two for it, and its
PerSourcePenalties count a connection without a login, one second each. So one connection follows the other,
and after the first few they keep to one a second, so that penalties do not add up to a refusal.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from temper.compliance.outside.hello import Hello, HelloError, read_hello
from temper.plan.ssh_turns import Turn

MISSING = ""
try:
    import paramiko
except ModuleNotFoundError as error:  # on a node that pulls, which has ansible-core alone and asks no server
    MISSING = f"{error}: install requirements/controller.txt here"


#: A handshake and the answer to one request take a few kilobytes.
MOST_BYTES = 128 << 10
#: Of a handshake, and of one answer.
STEP_S = 5.0
#: Connections in one go. Penalties below 15 s are not enforced (sshd_config(5), PerSourcePenalties).
BURST = 5
MOST_METHODS = 20
MOST_OF_A_METHOD = 64
#: Of host keys that paramiko can check.
KEY_TYPES = (
    *("ssh-ed25519", "rsa-sha2-512"),
    *("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
)
#: Answered with a success: the account needs nothing at all.
NO_PROOF = "none"
# Paramiko's threads log what a server has them stumble over; it is part of the result.
LOG = "temper-outside"
logging.getLogger(LOG).addHandler(logging.NullHandler())
logging.getLogger(LOG).propagate = False


@dataclass(frozen=True)
class SshServer:
    """What a server offers at a port; `methods` by account, `host_keys` by type ("ssh-ed25519") as base64.

    `problem` says why it could not be asked, or not for every account.
    """

    address: str
    port: int
    hello: Hello | None = None
    host_keys: dict[str, str] = field(default_factory=dict)
    methods: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""


class Pace:
    """When connections to one node may begin: the first ones at once, then one a second."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._begun = time.monotonic()
        self._count = 0

    def next(self) -> bool:
        """Wait for the next connection's turn; False where it would come too late."""
        wait_s = self._begun + max(0, self._count - BURST + 1) - time.monotonic()
        if time.monotonic() + max(wait_s, 0) >= self.deadline:
            return False
        if wait_s > 0:
            time.sleep(wait_s)
        self._count += 1
        return True


class Bounded(socket.socket):
    """A connection that ends after so many bytes or at its deadline, and keeps what it has received."""

    def __init__(
        self, connection: socket.socket, deadline: float, greeted: Callable[[], None] | None = None
    ) -> None:
        super().__init__(fileno=connection.detach())
        self.said = bytearray()
        self._deadline = deadline
        self._greeted = greeted

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return bytes, none where it has to end."""
        if len(self.said) >= MOST_BYTES or time.monotonic() >= self._deadline:
            return b""
        found = super().recv(min(size, MOST_BYTES), flags)
        self.said += found
        if self._greeted:
            self._greeted()
            self._greeted = None
        return found


@contextlib.contextmanager
def connected(
    address: str,
    port: int,
    proxy: Sequence[str],
    deadline: float,
    greeted: Callable[[], None] | None = None,
) -> Iterator[Bounded]:
    """Open a connection, through a command of the operator's where there is one. Raises OSError."""
    if not proxy:
        with Bounded(socket.create_connection((address, port), STEP_S), deadline) as connection:
            yield connection
        return
    ours, its = socket.socketpair()
    with Bounded(ours, deadline, greeted) as connection:
        with its:
            process = subprocess.Popen(  # noqa: S603 - the inventory's own proxy
                proxy, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.DEVNULL
            )
        try:
            yield connection
        finally:
            process.terminate()
            try:
                process.wait(STEP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def ask_server(
    server: SshServer, accounts: Iterable[str], pace: Pace, proxy: Sequence[str] = (), gate: str = ""
) -> SshServer:
    """Ask a server, once for each account, and return what is known of it then.

    Behind a `gate`, a connection begins once those of other looks there have been greeted. It ends with the
    pace's deadline, and at the first problem.
    """
    for account in accounts:
        if server.problem:
            break
        if MISSING:
            return replace(server, problem=MISSING)
        if not pace.next():
            return replace(server, problem="time was up before every account was asked for")
        with Turn(gate, pace.deadline) as turn:
            if not turn.taken:
                return replace(server, problem="too many others are looked at through the same jump host")
            server = _asked(server, account, pace.deadline, proxy, turn.end)
    return server


def _asked(
    server: SshServer, account: str, deadline: float, proxy: Sequence[str], greeted: Callable[[], None]
) -> SshServer:
    """Ask for one account."""
    deadline = min(deadline, time.monotonic() + 2 * STEP_S)
    hello, keys, methods, problem = server.hello, dict(server.host_keys), dict(server.methods), ""
    try:
        with connected(server.address, server.port, proxy, deadline, greeted) as connection:
            try:
                key, methods[account] = _session(connection, account, _key_types(hello, len(methods)))
                keys[key.get_name()] = key.get_base64()
            finally:
                if hello is None and connection.said:
                    hello = read_hello(bytes(connection.said))
    except HelloError as error:
        problem = f"it does not answer as an SSH server: {error}"
    except paramiko.SSHException as error:
        problem = f"it could not be asked: {error}"
    except (OSError, EOFError) as error:
        problem = f"the connection failed: {error or type(error).__name__}"
    # What a hostile server makes paramiko stumble over is that server's.
    except Exception as error:  # noqa: BLE001
        problem = f"it answers in another form than expected: {type(error).__name__}"
    return replace(server, hello=hello, host_keys=keys, methods=methods, problem=problem)


def _key_types(hello: Hello | None, number: int) -> tuple[str, ...]:
    """Return the types to ask a host key of, best first: another one is first with each connection."""
    found = [name for name in KEY_TYPES if hello is None or name in hello.host_keys]
    turn = number % len(found) if found else 0
    return tuple(found[turn:] + found[:turn])


def _session(
    connection: Bounded, account: str, key_types: Sequence[str]
) -> tuple[paramiko.PKey, tuple[str, ...]]:
    """Return the host key, and the methods that the server would go on with.

    Raises SSHException, EOFError.
    """
    transport = paramiko.Transport(connection)
    transport.set_log_channel(LOG)
    transport.daemon = True
    transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = STEP_S
    if key_types:
        transport.get_security_options().key_types = key_types
    try:
        transport.start_client(timeout=STEP_S)
        key = transport.get_remote_server_key()
        try:
            more = transport.auth_none(account)
        except paramiko.BadAuthenticationType as refusal:
            return key, _methods(refusal.allowed_types)
        return key, _methods(more) or (NO_PROOF,)
    finally:
        transport.close()


def _methods(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({name[:MOST_OF_A_METHOD] for name in list(found)[:MOST_METHODS] if name}))


def fingerprint(key: str) -> str:
    """Return a key, as base64, in the way ssh-keygen shows it; what is none as it stands."""
    try:
        digest = hashlib.sha256(base64.b64decode(key)).digest()
    except ValueError:
        return repr(key[:MOST_OF_A_METHOD])
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
