"""A result on its way to the controller: over SSH, or with HTTP PUT over TLS."""

from __future__ import annotations

import http.client
import signal
import ssl
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote, urlsplit

from pull.configuration import Configuration
from pull.repository import one_line, ssh_command
from pull.shared import PROGRAMS, EndedError, run

if TYPE_CHECKING:
    from urllib.parse import SplitResult


TIMEOUT_S = 60.0
#: The command that ssh asks for. What the account there really does is its forced command's matter.
COMMAND = "temper-pull-result"


class DeliveryError(Exception):
    """A result was not taken; the message is a sentence without secrets."""


def deliver(text: str, wanted: Configuration) -> None:
    """Hand a result back the configured way; without one, do nothing. Raises DeliveryError."""
    if not wanted.report_to:
        return
    try:
        where = urlsplit(wanted.report_to)
        if not where.hostname or where.scheme not in ("https", "ssh"):
            raise ValueError("no such address")
        (over_ssh if where.scheme == "ssh" else put)(text, where, wanted)
    except (OSError, EndedError, http.client.HTTPException) as error:
        reason = str(error)
    except ValueError:
        # Its text could repeat the token.
        reason = "pull_report_to has no valid address, or the token file holds no token"
    else:
        return
    raise DeliveryError(f"The result was not taken by {wanted.report_to}: {reason}.")


def over_ssh(text: str, where: SplitResult, wanted: Configuration) -> None:
    """Give the result to a command on another machine, on its standard input. Raises as `deliver` handles."""
    port = ["-p", str(where.port)] if where.port else []
    target = f"{where.username}@{where.hostname}" if where.username else str(where.hostname)
    command = [*ssh_command(wanted.known_hosts, wanted.report_ssh_key), *port]
    command += ["--", target, COMMAND, wanted.node]
    done = run(command, TIMEOUT_S, {"PATH": PROGRAMS, "LC_ALL": "C.UTF-8"}, text=text)
    if done.returncode:
        raise OSError(f"status {done.returncode}, {one_line(done.stderr)}")


def put(text: str, where: SplitResult, wanted: Configuration) -> None:
    """Write the result as NODE.json below an address. Raises as `deliver` handles.

    http.client uses no proxy and follows nobody elsewhere: a token goes to whom it is for.
    """
    headers = {"Content-Type": "application/json"}
    if wanted.report_token_file:
        token = Path(wanted.report_token_file).read_text(encoding="ascii").strip()
        headers["Authorization"] = f"Bearer {token}"
    context = ssl.create_default_context(cafile=wanted.report_ca_file or None)
    connection = http.client.HTTPSConnection(
        str(where.hostname), where.port, timeout=TIMEOUT_S, context=context
    )
    path = f"{where.path.rstrip('/')}/{quote(wanted.node, safe='')}.json"
    # A socket's own time begins anew with each byte.
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        connection.request("PUT", path, text.encode(), headers)
        status = connection.getresponse().status
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.close()
    if status not in range(200, 300):
        raise OSError(f"status {status}")


def late(_signal: int, _frame: FrameType | None) -> NoReturn:
    """End a delivery that takes too long. Raises TimeoutError."""
    raise TimeoutError(f"it did not end within {TIMEOUT_S:g} s")
