"""NVLink as `nvidia-smi nvlink --status` shows it: which links of each GPU are up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from validation.probes.nvidia_smi import SAMPLE_TIMEOUT_S, ask

GPU = re.compile(r"^GPU (?P<index>\d+):")
LINK = re.compile(r"^\s*Link (?P<link>\d+): (?P<state>.+?)\s*$")
INACTIVE = {"<inactive>", "0 GB/s"}


@dataclass(frozen=True)
class Links:
    """The links of one GPU: how many are up, and the numbers of those that are not."""

    up: int
    down: tuple[int, ...]


def query() -> dict[int, Links]:
    """The links of each GPU that has any, by its index. Raises NvidiaSmiError.

    A GPU without NVLink is an error to some drivers; one with all links down has no line for any.
    """
    return parse(ask(["nvlink", "--status"], SAMPLE_TIMEOUT_S))


def parse(text: str) -> dict[int, Links]:
    """What `nvidia-smi nvlink --status` printed."""
    states: dict[int, dict[int, bool]] = {}
    index = None
    for line in text.splitlines():
        if gpu := GPU.match(line):
            index = int(gpu["index"])
        elif index is not None and (link := LINK.match(line)):
            states.setdefault(index, {})[int(link["link"])] = link["state"] not in INACTIVE
    return {
        index: Links(sum(links.values()), tuple(link for link, up in links.items() if not up))
        for index, links in states.items()
    }
