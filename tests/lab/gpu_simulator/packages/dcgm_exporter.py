#!/usr/bin/python3 -I
"""Simulated by Temper's lab: dcgm-exporter, which serves one metric on port 9400 as long as DCGM runs."""

from __future__ import annotations

import http.server
import socket
import subprocess


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every request with the GPUs' temperatures."""

    def do_GET(self) -> None:
        query = ["nvidia-smi", "--query-gpu=index,uuid,temperature.gpu", "--format=csv,noheader,nounits"]
        output = subprocess.run(query, capture_output=True, text=True, check=False)
        rows = [line.split(", ") for line in output.stdout.splitlines()] if output.returncode == 0 else []
        lines = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",UUID="{uuid}"}} {value}\n' for gpu, uuid, value in rows]
        body = "".join(
            ["# HELP DCGM_FI_DEV_GPU_TEMP temperature\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n", *lines]
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


class Server(http.server.ThreadingHTTPServer):
    """Listens on every address, of both families."""

    address_family = socket.AF_INET6


if __name__ == "__main__":
    Server(("::", 9400), Handler).serve_forever()
