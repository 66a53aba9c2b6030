"""Servers in a thread of the test."""

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

Server = TypeVar("Server", bound=socketserver.BaseServer)


class Silent:
    """What has a handler of HTTP write no log."""

    def log_message(self, *_: object) -> None:
        pass


class Files(Silent, SimpleHTTPRequestHandler):
    """Serves the files of a folder."""


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Have a server answer until the body ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving_files(folder: Path, handler: type[SimpleHTTPRequestHandler] = Files) -> Iterator[str]:
    """Serve a folder to this machine; yields the address."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))) as server:
        yield f"http://127.0.0.1:{server.server_port}"
