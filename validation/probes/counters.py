"""Error counters that only grow: PCIe replays, corrected memory errors, errors of each NVLink.

What they say since boot means little; what they grow by while a GPU works is a link or a memory that fails.
Names of the NVLink counters: `nvidia-smi nvlink --errorcounters` of driver 535 to 580 up to Hopper, and of
driver 595 on Blackwell (published logs, read 2026-11-21). Bit errors that a link corrects by itself (FEC,
symbol errors) are its daily work and not counted.
"""

from __future__ import annotations

import re

from validation.findings.catalogue import finding
from validation.model.contract import Finding
from validation.probes import nvidia_smi
from validation.processes.command import Running

#: Counts by GPU index and name.
Counts = dict[int, dict[str, int]]

GPU = re.compile(r"GPU (?P<index>[0-9]{1,4}):")
COUNT = re.compile(r"\s*Link (?P<link>[0-9]{1,4}): (?P<name>[A-Za-z ]{1,60}):\s*(?P<count>[0-9]{1,20})\s*$")
#: A link that lost its partner and trained again, or packets that were lost for good.
RECOVERIES = {
    "Recovery Errors",
    "Total link recovery events",
    "Link recovery failed events",
    "Malformed packet Errors",
    "Buffer overrun Errors",
    "Local link integrity Errors",
}
#: Data that was sent again.
RESENT = {"Replay Errors", "CRC Errors", "Rx Errors", "Rx General Errors", "Effective Errors"}


def read() -> Counts:
    """Return all counters now, as far as nvidia-smi says them; empty where it does not answer."""
    try:
        # Both at once: with eight GPUs each takes a second and more.
        links = nvidia_smi.start(["nvlink", "--errorcounters"])
    except nvidia_smi.NvidiaSmiError:
        return {}
    counts = _report()
    for index, of_links in _links(links).items():
        counts.setdefault(index, {}).update(of_links)
    return counts


def _report() -> Counts:
    try:
        gpus = nvidia_smi.query().gpus
    except nvidia_smi.NvidiaSmiError:
        return {}
    return {
        gpu.index: {
            name: count
            for name, count in (
                ("pcie_replays", gpu.pcie_replays),
                ("ecc_corrected", gpu.ecc_corrected_volatile),
            )
            if count is not None
        }
        for gpu in gpus
    }


def _links(asked: Running) -> Counts:
    try:
        return parse(nvidia_smi.answer_of(asked))
    except nvidia_smi.NvidiaSmiError:
        return {}  # a GPU without NVLink is an error to some drivers


def parse(text: str) -> Counts:
    """Return what `nvidia-smi nvlink --errorcounters` printed: `nvlink 3 Replay Errors` and its count."""
    counts: Counts = {}
    index = None
    for line in text.split("\n"):
        if gpu := GPU.match(line):
            index = int(gpu["index"])
        elif index is not None and (found := COUNT.match(line)) and found["name"] in RECOVERIES | RESENT:
            counts.setdefault(index, {})[f"nvlink {found['link']} {found['name']}"] = int(found["count"])
    return counts


def growth(before: Counts, after: Counts) -> Counts:
    """By how much each counter grew that was read both times; those that did not are left out."""
    grown = {
        index: {
            name: count - before[index][name]
            for name, count in counts.items()
            if count > before.get(index, {}).get(name, count)
        }
        for index, counts in after.items()
    }
    return {index: counts for index, counts in grown.items() if counts}


def findings(grown: Counts) -> list[Finding]:
    """Return what grew, as findings.

    A link that trained again or lost data fails, what was corrected is noted.
    """
    found = []
    for index, counts in sorted(grown.items()):
        lost = _said(counts, RECOVERIES)
        resent = _said(counts, RESENT)
        if lost:
            found.append(finding("nvlink-lost-under-load", gpu=index, errors=lost))
        if resent:
            found.append(finding("nvlink-errors-under-load", gpu=index, errors=resent))
        if replays := counts.get("pcie_replays"):
            found.append(finding("pcie-replay-under-load", gpu=index, count=replays))
        if corrected := counts.get("ecc_corrected"):
            found.append(finding("ecc-corrected-under-load", gpu=index, count=corrected))
    return found


def _said(counts: dict[str, int], names: set[str]) -> str:
    """`NVLink 3 counted 2 Replay Errors`, for those of `names` that grew."""
    said = []
    for counter, count in counts.items():
        kind, _, rest = counter.partition(" ")
        link, _, name = rest.partition(" ")
        if kind == "nvlink" and name in names:
            said.append(f"NVLink {link} counted {count} {name}")
    return ", ".join(said)
