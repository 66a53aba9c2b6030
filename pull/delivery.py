"""A result on its way to the controller: over SSH, or with HTTP PUT over TLS."""

from __future__ import annotations

import contextlib
import http.client
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from pull.processes import PROGRAMS, OutputError, run
from pull.repository import ssh_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import NoReturn

    from pull.configuration import Configuration

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
        # A port that is no number is found when it is asked for.
        scheme = where.scheme if where.hostname and where.port != 0 else ""
    except ValueError:
        scheme = ""
    if scheme == "ssh":
        over_ssh(text, wanted)
    elif scheme == "https":
        put(text, wanted)
    else:
        raise DeliveryError(
            f"pull_report_to: expected ssh://USER@HOST or https://HOST/FOLDER, found {wanted.report_to}."
        )


def over_ssh(text: str, wanted: Configuration) -> None:
    """Give the result to a command on another machine, on its standard input. Raises DeliveryError."""
    where = urlsplit(wanted.report_to)
    port = ["-p", str(where.port)] if where.port else []
    target = f"{where.username}@{where.hostname}" if where.username else str(where.hostname)
    command = [
        *ssh_command(wanted.known_hosts, wanted.report_ssh_key),
        *port,
        "--",
        target,
        COMMAND,
        wanted.node,
    ]
    try:
        answer = run(command, {"PATH": PROGRAMS, "LC_ALL": "C.UTF-8"}, TIMEOUT_S, text.encode())
    except (OSError, OutputError, subprocess.TimeoutExpired) as error:
        raise DeliveryError(f"The result was not taken by {wanted.report_to}: {error}.") from error
    if answer.returncode:
        said = " ".join(answer.stderr.decode(errors="replace").split())[-300:]
        raise DeliveryError(
            f"The result was not taken by {wanted.report_to} (status {answer.returncode}): {said}"
        )


def put(text: str, wanted: Configuration) -> None:
    """Write the result as NODE.json below an address. Raises DeliveryError."""
    address = f"{wanted.report_to.rstrip('/')}/{quote(wanted.node, safe='')}.json"
    try:
        context = ssl.create_default_context(cafile=wanted.report_ca_file or None)
        headers = {"Content-Type": "application/json"}
        if wanted.report_token_file:
            token = Path(wanted.report_token_file).read_text(encoding="ascii").strip()
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(address, text.encode(), headers, method="PUT")  # noqa: S310 - https
        # Without proxies of the environment, and without redirects: a token goes to whom it is for.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), NoRedirect()
        )
        with within(TIMEOUT_S), opener.open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryError(f"The result was not taken by {address}: status {error.code}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        # HTTPException: the answer is none of HTTP, or the address has a space. ValueError: a token with a
        # line break. Its text would repeat it.
        said = "the token file holds no token" if isinstance(error, ValueError) else str(error)
        raise DeliveryError(f"The result was not taken by {address}: {said}.") from None


@contextlib.contextmanager
def within(timeout_s: float) -> Iterator[None]:
    """End the work in the block after a time: that of a socket begins anew with each byte.

    Raises TimeoutError.
    """

    def ended(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"it did not end within {timeout_s:g} s")

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes an answer that points elsewhere as the failure that it is."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Follow nobody."""
        return
