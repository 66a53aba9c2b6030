"""A connection to a node that is played: it answers each module as a file says, and notes who asked."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: played
short_description: A node that answers as a file says
description: Runs nothing. TEMPER_PLAYED names a folder with answers.json, and gets calls.log.
author: Temper developers
extends_documentation_fragment: [connection_pipelining]
options:
  host:
    description: The address of the node.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: ansible_host
  port:
    description: The port of the node.
    type: int
    vars:
      - name: ansible_port
  transport:
    description: What kind of connection it passes for.
    default: played
    vars:
      - name: played_transport
  host_key_checking:
    description: As of ssh.
    type: bool
    default: true
  remote_user:
    description: As of ssh.
    vars:
      - name: ansible_user
  ssh_common_args:
    description: As of ssh.
    vars:
      - name: ansible_ssh_common_args
  ssh_extra_args:
    description: As of ssh.
  ssh_args:
    description: What ssh would be given on its command line.
    vars:
      - name: ansible_ssh_args
      - name: ansible_ssh_extra_args
"""

MODULE = re.compile(rb"ansible(?:\.modules|\.legacy)\.([a-z][a-z0-9_]*)")


class Connection(ConnectionBase):  # type: ignore[misc]  # Ansible ships no types
    """Answers module calls by their names."""

    has_pipelining = True

    @property
    def transport(self) -> str:
        """What it passes for, once its options are known."""
        return str(self.get_option("transport")) if self._options else "played"

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def close(self) -> None:
        """Nothing is open."""
        self._connected = False

    @property
    def folder(self) -> Path:
        """Where the answers are."""
        return Path(os.environ["TEMPER_PLAYED"])

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Answer the module that the command or its input runs; any other command succeeds silently."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        found = MODULE.search(in_data or b"")
        module = found[1].decode() if found else "async_wrapper" if "async_wrapper" in cmd else ""
        note = {
            "node": self.get_option("host"),
            "port": self.get_option("port"),
            "args": self.get_option("ssh_args"),
            "module": module,
        }
        with (self.folder / "calls.log").open("a") as log:
            log.write(json.dumps(note) + "\n")
        if not module:
            home = b"/root\n" if "echo ~" in cmd else b"/tmp/played=/tmp/played\n"
            return 0, home, b""
        answers: dict[str, Any] = json.loads((self.folder / "answers.json").read_text())
        said = answers[self.get_option("host")].get(module, {"changed": False, "rc": 0, "stdout": ""})
        return 0, (said if isinstance(said, str) else json.dumps(said)).encode(), b""

    def put_file(self, in_path: str, out_path: str) -> None:
        """Take a file, and keep nothing of it."""

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Hand over an empty file."""
        Path(out_path).touch()
