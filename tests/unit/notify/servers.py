"""Real servers for notifications: HTTP(S) of the standard library, and SMTP as RFC 5321 and 3207 have it."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socketserver
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from tests.unit.serving import Silent, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER, PASSWORD = "temper", "pass word"


def certificate(folder: Path, name: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
    """Make a certificate that is its own authority; returns it and its key."""
    chain, key = folder / "server.pem", folder / "server.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
    words += ["-addext", f"subjectAltName={name}", "-out", str(chain), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True)
    return chain, key


def server_side(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context


class Quiet(socketserver.ThreadingTCPServer):
    """Says nothing of a client that goes."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(handler: type[socketserver.BaseRequestHandler], tls: ssl.SSLContext | None) -> Iterator[int]:
    """Serve on a port of this machine, with TLS from the beginning where a context is given."""
    server = Quiet(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with running(server):
        yield server.server_address[1]


@contextlib.contextmanager
def talking(answer: bytes) -> Iterator[int]:
    """Answer every request with these bytes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with serving(Handler, None) as port:
        yield port


class Hook:
    """What a receiver of webhooks got, and how it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.paths: list[str] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.reason = ""
        #: While it is not set, the server answers nothing but one byte after the other.
        self.awake = threading.Event()
        self.awake.set()

    @contextlib.contextmanager
    def serving(self, tls: ssl.SSLContext | None = None) -> Iterator[int]:
        hook = self

        class Handler(Silent, http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.paths.append(self.path)
                while not hook.awake.wait(0.05):
                    self.wfile.write(b"H")  # never a status line
                hook.got.append(({**self.headers}, body))
                self.send_response(hook.status, hook.reason or None)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.end_headers()

        with serving(Handler, tls) as port:
            yield port


class Mailbox:
    """A mail server that takes mail after STARTTLS or on TLS, with or without a password."""

    def __init__(self, pair: tuple[Path, Path] | None = None, *, password: bool = True) -> None:
        #: Envelope recipients and message, as they came.
        self.got: list[tuple[list[str], str]] = []
        self.pair, self.password = pair, password
        self.refused: set[str] = set()
        #: Whether it takes mail and passwords without TLS, as one of this machine does.
        self.plain = False

    @contextlib.contextmanager
    def serving(self, *, smtps: bool = False) -> Iterator[int]:
        box = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                dialogue = _Dialogue(box, self.request, secure=smtps)
                with contextlib.closing(dialogue):
                    dialogue.run()

        with serving(Handler, server_side(self.pair) if smtps and self.pair else None) as port:
            yield port


class _Dialogue:
    def __init__(self, box: Mailbox, connection: Any, *, secure: bool) -> None:
        self.box, self.connection, self.secure = box, connection, secure
        self.stream = connection.makefile("rb")
        self.known = not box.password
        self.recipients: list[str] = []

    def say(self, text: str) -> None:
        self.connection.sendall(f"{text}\r\n".encode())

    def close(self) -> None:
        self.stream.close()
        self.connection.close()

    def run(self) -> None:
        self.say("220 mail.example ESMTP")
        while line := self.stream.readline().decode().rstrip("\r\n"):
            verb, _, rest = line.partition(" ")
            if verb.upper() == "QUIT":
                self.say("221 bye")
                return
            getattr(self, f"do_{verb.lower()}", lambda _: self.say("502 not implemented"))(rest)

    def do_ehlo(self, _: str) -> None:
        self.say("250-mail.example")
        if self.box.pair and not self.secure:
            self.say("250-STARTTLS")
        if self.secure or self.box.plain:
            self.say("250-AUTH PLAIN")
        self.say("250 8BITMIME")

    def do_starttls(self, _: str) -> None:
        assert self.box.pair
        self.say("220 go ahead")
        self.connection = server_side(self.box.pair).wrap_socket(self.connection, server_side=True)
        self.stream, self.secure = self.connection.makefile("rb"), True

    def do_auth(self, rest: str) -> None:
        word = base64.b64decode(rest.removeprefix("PLAIN ")).decode()
        self.known = word == f"\0{USER}\0{PASSWORD}"
        # A server that repeats what it should not.
        self.say("235 welcome" if self.known else f"535 wrong password {word.rpartition(chr(0))[2]}")

    def do_mail(self, _: str) -> None:
        ready = self.known and (self.secure or self.box.plain)
        self.recipients = []
        self.say("250 ok" if ready else "530 first STARTTLS and AUTH")

    def do_rcpt(self, rest: str) -> None:
        address = rest.partition("<")[2].partition(">")[0]
        if address in self.box.refused:
            self.say("550 nobody here")
            return
        self.recipients.append(address)
        self.say("250 ok")

    def do_data(self, _: str) -> None:
        if not self.recipients:
            self.say("503 no recipient")
            return
        self.say("354 go on")
        lines = []
        while (line := self.stream.readline()) not in (b".\r\n", b""):
            lines.append(line.decode().removeprefix("." if line.startswith(b"..") else ""))
        self.box.got.append((self.recipients, "".join(lines)))
        self.say("250 taken")

    def do_rset(self, _: str) -> None:
        self.say("250 ok")
