"""What this node says of its own ways in, to be compared with what a stranger sees of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.access.listeners import listeners
from ansible.module_utils.temper.access.ssh_keys import read_regular
from ansible.module_utils.temper.access.ssh_login import ssh_login
from ansible.module_utils.temper.access.sshd import parse_effective
from ansible.module_utils.temper.access.sshd_matches import NO_LOGIN, probes, site_lines
from ansible.module_utils.temper.process import CommandError, run
from ansible.module_utils.temper.settings.base import RefusedError

#: Bounds of the controller, which takes no more (temper/compliance/outside/claims.py).
MOST_PORTS, MOST_NAMES = 256, 8
#: Names that are reported, those of a directory service among them (DOMAIN\user). A pattern of a Match line
#: may stand for others.
ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+$ -]{0,63}", re.ASCII)


def self_report() -> dict[str, Any]:
    """Return what can be read of it: `client`, `listening`, `accounts`, `host_keys` and `methods`."""
    login = ssh_login()
    found: dict[str, Any] = {"client": login.client if login else ""}
    with contextlib.suppress(CommandError, OSError):
        ports = {one.port for one in listeners() if one.protocol == "tcp"}
        found["listening"] = sorted(ports)[:MOST_PORTS]
    with contextlib.suppress(CommandError, RefusedError, OSError):
        named = [probe.who.name for probe in probes(site_lines(), (), login)]
        names = [name for name in named if ACCOUNT.fullmatch(name)]
        found["accounts"] = list(dict.fromkeys(names))[:MOST_NAMES]
    with contextlib.suppress(CommandError, OSError):
        effective = parse_effective(run(["sshd", "-T", "-C", NO_LOGIN]))
        found["methods"] = " ".join(effective.get("authenticationmethods", []))
        found["host_keys"] = list(_host_keys(effective.get("hostkey", [])))[:MOST_NAMES]
    return found


def _host_keys(files: list[str]) -> Iterator[str]:
    """Return the public keys, each as type and base64."""
    for name in files:
        read = None
        with contextlib.suppress(OSError):
            read = read_regular(Path(f"{name}.pub"), follow=True)
        words = read[0].decode(errors="replace").split() if read else []
        if len(words) >= 2:
            yield " ".join(words[:2])
