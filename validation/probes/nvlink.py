"""NVLink as `nvidia-smi nvlink --status` shows it: which links of each GPU are up."""

from __future__ import annotations

import re
from dataclasses import dataclass

from validation.probes.nvidia_smi import SAMPLE_TIMEOUT_S, NvidiaSmiError, ask
from validation.probes.reading import in_one_line

GPU = re.compile(r"GPU (?P<index>[0-9]{1,4}):")
LINK = re.compile(r"\s*Link (?P<link>[0-9]{1,4}): (?P<state>\S.*)")
#: A link that is up has a rate; one that is not is `<inactive>`, or has none.
UP = re.compile(r"(?=[0-9.]*[1-9])[0-9]+(?:\.[0-9]+)? GB/s")


@dataclass(frozen=True)
class Links:
    """The links of one GPU: how many are up, and the numbers of those that are not."""

    up: int
    down: tuple[int, ...]


def query() -> dict[int, Links]:
    """Return the links of each GPU that has any, by its index. Raises NvidiaSmiError.

    A GPU without NVLink is an error to some drivers; one with all links down has no line for any.
    """
    return parse(ask(["nvlink", "--status"], SAMPLE_TIMEOUT_S))


def parse(text: str) -> dict[int, Links]:
    """Return what `nvidia-smi nvlink --status` printed. Raises NvidiaSmiError for text of something else."""
    states: dict[int, dict[int, bool]] = {}
    index = None
    for line in text.split("\n"):
        if gpu := GPU.match(line):
            index = int(gpu["index"])
        elif index is not None and (link := LINK.match(line)):
            states.setdefault(index, {})[int(link["link"])] = bool(UP.match(link["state"]))
    if index is None and text.strip():
        raise NvidiaSmiError(
            "other", f"nvidia-smi nvlink --status: expected `GPU 0: ...`, found {in_one_line(text)!r}"
        )
    return {
        index: Links(sum(links.values()), tuple(link for link, up in links.items() if not up))
        for index, links in states.items()
    }
