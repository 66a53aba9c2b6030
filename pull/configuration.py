"""What the role `pull` has written for the program: /etc/temper/pull.json."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pull.shared import records

PATH = Path("/etc/temper/pull.json")
#: RFC 1123, 2.1.
HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
#: What a machine is called to which nobody has given a name, and what Ansible takes for all nodes.
NO_NAMES = ("all", "localhost", "ungrouped")
KINDS: dict[str, records.Form] = {"str": str, "int": int, "tuple[str, ...]": [str]}


class ConfigurationError(Exception):
    """The configuration cannot be used; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Configuration:
    """Where a node finds its configuration, and what it may do with it.

    `node` is its name in the inventory, `inventory` that one's path in the repository. An image's file names
    no node: there it is the host name of the machine that has booted from it. Either `branch` or `tags` is
    given; `tags` is a name with at most one `*`, and the highest version counts (PEP 440). `repair` names the
    roles whose drift may be repaired. `python` is that of the virtual environment with ansible-core.
    `report_to` is where results go: ssh://user@host, https://host/folder, or nowhere. Paths are files of the
    node; an empty one is none.
    """

    node: str
    url: str
    branch: str
    tags: str
    inventory: str
    repair: tuple[str, ...]
    python: str
    interval_s: int
    keyring: str
    known_hosts: str
    ca_file: str
    ssh_key: str
    report_to: str
    report_ca_file: str
    report_ssh_key: str
    report_token_file: str

    @classmethod
    def load(cls, path: Path) -> Configuration:
        """Return the configuration of a node. Raises ConfigurationError."""
        kinds = {field.name: KINDS[str(field.type)] for field in fields(cls)}
        remedy = "run playbooks/tune.yml for this node again"
        try:
            values: dict[str, Any] = records.load(path, kinds, remedy=remedy)[1]
        except records.RecordError as error:
            raise ConfigurationError(str(error)) from error
        if values.keys() != kinds.keys():
            raise ConfigurationError(f"{path}: expected the fields that the role pull writes: {remedy}.")
        return cls(**{**values, "node": values["node"] or own_name(path), "repair": tuple(values["repair"])})


def own_name(path: Path) -> str:
    """Return the host name of this machine. Raises ConfigurationError where it could be no node's."""
    name = socket.gethostname()
    if not HOST_NAME.fullmatch(name) or name.partition(".")[0] in NO_NAMES:
        raise ConfigurationError(
            f"{path}: it names no node, as in an image; expected a host name that is the node's name in the "
            f"inventory, found {name!r}. Give this machine its name (DHCP, hostnamectl), and the next run "
            "takes it."
        )
    return name
