"""On a node: what its links to other nodes carry, to know whether a collective between nodes is fast."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from validation.probes.mtu import has_hardware
from validation.probes.topology import RdmaPort

NCCL_CONF = Path("etc/nccl.conf")
BITS = 8


def link_gb_s(
    library: str,
    interface: str | None,
    ports: Iterable[RdmaPort],
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
) -> float | None:
    """Return what a node can send in GB/s; None where it cannot be told.

    `interface` is the one towards the others. NCCL takes all RDMA ports that are active, if it is not told
    otherwise (NCCL_IB_HCA), and sockets where there are none.
    """
    if library == "nccl":
        settings = _nccl_conf(root) | dict(environment)
        if settings.get("NCCL_IB_DISABLE", "0") == "0":
            chosen = settings.get("NCCL_IB_HCA", "")
            rates_gb = [port.rate_gb for port in ports if port.state == "ACTIVE" and _is_chosen(port, chosen)]
            if rates_gb:
                return sum(rates_gb) / BITS if all(rates_gb) else None
    speed_mb = _speed_mb(root, interface) if interface else None
    return speed_mb / 1000 / BITS if speed_mb else None


def _nccl_conf(root: Path) -> dict[str, str]:
    """Return what the node tells NCCL in /etc/nccl.conf; NCCL's own variables win over it."""
    try:
        text = (root / NCCL_CONF).read_text()
    except OSError:
        return {}
    lines = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {name.strip(): value.strip() for name, _, value in lines if value}


def _is_chosen(port: RdmaPort, chosen: str) -> bool:
    """Return whether NCCL_IB_HCA chooses a port.

    Its form is [^][=]NAME[:PORT],... where ^ means all others, and = the whole name.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    match = re.fullmatch(r"(\^?)(=?)(.*)", chosen)
    if not match or not match[3]:
        return True
    adapter, _, number = port.name.partition("/")

    def fits(entry: str) -> bool:
        name, _, wanted = entry.partition(":")
        same = adapter == name if match[2] else adapter.startswith(name)
        return same and wanted in ("", number)

    return any(fits(entry.strip()) for entry in match[3].split(",") if entry.strip()) != bool(match[1])


def _speed_mb(root: Path, interface: str) -> int | None:
    """Return the speed of an interface in Mb/s, None of one without hardware: what that says is made up."""
    place = root / "sys/class/net" / interface
    if not has_hardware(place):
        return None
    try:
        speed_mb = int((place / "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed_mb if speed_mb > 0 else None  # -1: not known
