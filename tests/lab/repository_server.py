"""Serve a directory over HTTP: the simulated NVIDIA repositories, on the lab's bridge.

Run as a program of its own: repository_server.py ADDRESS PORT DIRECTORY
"""

import functools
import http.server
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    """Keeps connections open, as apt expects of a mirror."""

    protocol_version = "HTTP/1.1"


def main() -> None:
    """Serve until killed."""
    address, port, directory = sys.argv[1:]
    handler = functools.partial(Handler, directory=directory)
    http.server.ThreadingHTTPServer((address, int(port)), handler).serve_forever()


if __name__ == "__main__":
    main()
