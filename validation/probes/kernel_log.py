"""The kernel log: what the driver writes to it when a GPU, or its use, goes wrong.

That are Xid errors, as a rule. A GPU that the driver finds gone before it uses it has no Xid.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.model.contract import StringEnum
from validation.processes.command import CommandError, run

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT_S = 5.0
JOURNAL = ("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat")

#: `NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`; of a MIG instance
#: `(PCI:0000:1b:00 GPU-I:05)` or `(PCI:0000:1b:00 GPU-I:05 GPU-CI:02)`; of an old driver `(0000:1b:00)`.
LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:]+)[^)]*\): (?P<number>\d+),?\s*(?P<rest>.*)")
#: `NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)`: the
#: unit, how bad it is, and the unit's information and error status, which drivers before 575 do not say.
#: Where a program was hit, `pid=876767, name=ray::WorkerDict, ` comes first (lines in the tests of
#: leptonai/gpud, kmsg_extended_test.go, 2026-08-20).
NVLINK5 = range(144, 151)
NVLINK5_DETAIL = re.compile(
    r"(?:pid=[^,]*, name=[^,]*, )?(?:\w+/)?(?P<unit>\w+)\s+(?P<severity>Non-?fatal|Fatal)\b"
    r"(?:.*?\((?P<information>0x[0-9a-f]+) (?P<status>0x[0-9a-f]+))?",
    re.I,
)
#: What asks for nothing, neither at once nor later: units and their error status (NVIDIA, "Analyzing Xid
#: Errors with the Xid Catalog", catalogue of 2025-10-29, sheet of Xid 144 to 150).
HARMLESS = {
    "SAW_MVB": {0x4, 0x20},
    "RLW_REMAP": {0x100, 0x200},
    "RLW_RSPCOL": {0x1},
    "RLW_SRC_TRACK": {0x2},
    "RLW_TAGSTATE": {0x1, 0x10000},
    "TLW_CTRL": {0x1},
    "TLW_RX": {0x1},
    "TLW_RX_PIPE0": {0x1},
    "TLW_RX_PIPE1": {0x1},
    "TLW_TX": {0x1},
    "TLW_TX_PIPE0": {0x1},
    "TLW_TX_PIPE1": {0x1},
    "NETIR_MFDE_EVENT": {0x3},
}
#: Why a link went down (bits 20 to 25 of the information), where the same table asks for no reset: to look at
#: the software that did it, or at the host.
LINK_DOWN = {"NETIR_LINK_EVT", "NETIR_LINK_DOWN"}
TAKEN_DOWN = {0b100110, 0b101000}
#: `NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.`, in old drivers `NVRM: GPU at 0000:1b:00.0 has ...`;
#: while the driver is loaded, three lines: `NVRM: The NVIDIA GPU 0000:1b:00.0`, `NVRM: (PCI ID: 10de:2330)
#: installed in this system has`, `NVRM: fallen off ...` (open-gpu-kernel-modules 595.45.04, osinit.c and
#: osapi.c).
OFF_THE_BUS = re.compile(
    r"NVRM: (?:GPU (?:at )?(?:PCI:)?(?P<address>[0-9a-fA-F]+:[0-9a-fA-F:]+)\S*)?.*\bfallen off the bus"
)
SUBJECT = re.compile(r"NVRM: The NVIDIA GPU (?P<address>[0-9a-fA-F]+:[0-9a-fA-F:]+)")
#: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`, or Non-fatal.
SWITCH_LINE = re.compile(
    r"SXid \(PCI:(?P<address>[0-9a-fA-F:.]+)\): (?P<number>\d+), (?P<rest>(?:Non-f|F)atal\b.*)"
)
#: The Xid of a GPU that has fallen off the bus.
FALLEN = 79
#: What the module says when it is loaded; errors of before are gone with the module that had them.
LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
#: What the kernel's own buffer has as long as it has lost nothing that matters here: it is a ring.
BEGINNING = re.compile(rf"{LOADED.pattern}|\bLinux version ")


class Kind(StringEnum):
    """An Xid, one of a link that asks for no reset, an SXid, or a GPU that went away without an Xid."""

    XID = "xid"
    NONFATAL = "nonfatal"
    HARMLESS = "harmless"
    SXID = "sxid"
    OFF_THE_BUS = "off-the-bus"


@dataclass(frozen=True)
class Event:
    """An error in the kernel log: of which GPU (`0000:1b:00`) or NVSwitch, how often, its last line.

    `number` is that of the Xid or SXid, 0 where there is none.
    """

    address: str
    number: int
    detail: str
    kind: Kind = Kind.XID
    count: int = 1

    @property
    def name(self) -> str:
        """What it is counted as."""
        return {Kind.SXID: f"SXid {self.number}", Kind.OFF_THE_BUS: "off the bus"}.get(
            self.kind, str(self.number)
        )


@dataclass(frozen=True)
class KernelLog:
    """The Xid events since the driver was loaded, and why there may be more that cannot be read."""

    events: tuple[Event, ...] = ()
    unreadable: str = ""


def events(lines: Iterable[str]) -> tuple[Event, ...]:
    """The errors in lines of the kernel log, since the driver was loaded last.

    Of one GPU or switch each number once, and apart whether it was fatal: a log may have a million lines, and
    what was handled must not hide what was fatal before.
    """
    found: dict[tuple[str, int, Kind, str], Event] = {}
    subject = ""
    for line in lines:
        if LOADED.search(line):
            found.clear()
        if match := SUBJECT.search(line):
            subject = match["address"]
        event = _event(line, subject)
        if event:
            severity = event.detail.partition(",")[0] if event.kind is Kind.SXID else ""
            key = event.address, event.number, event.kind, severity
            before = found.pop(key, None)  # in the order of their last lines
            found[key] = dataclasses.replace(event, count=before.count + 1 if before else 1)
    lost = {event.address for event in found.values() if event.number == FALLEN}
    return tuple(
        event for event in found.values() if event.kind is not Kind.OFF_THE_BUS or event.address not in lost
    )


def _event(line: str, subject: str) -> Event | None:
    """The error in a line; `subject` is the GPU of the lines before it."""
    if match := LINE.search(line):
        number, detail = int(match["number"]), match["rest"].strip()
        return Event(match["address"].lower(), number, detail, _kind(number, detail))
    if match := SWITCH_LINE.search(line):
        return Event(match["address"].lower(), int(match["number"]), match["rest"].strip(), Kind.SXID)
    if (match := OFF_THE_BUS.search(line)) and (address := match["address"] or subject):
        return Event(_with_domain(address), 0, line[match.start() :].strip(), Kind.OFF_THE_BUS)
    return None


def _with_domain(address: str) -> str:
    """`18:00` as `0000:18:00`: so old drivers name a GPU, which has its other lines with the domain."""
    short = address.lower().rstrip(":")
    return short if short.count(":") > 1 else f"0000:{short}"


def _kind(number: int, detail: str) -> Kind:
    match = NVLINK5_DETAIL.match(detail) if number in NVLINK5 else None
    if match is None:
        return Kind.XID
    unit, said = match["unit"].upper(), match["status"] is not None
    if match["severity"].lower() == "fatal":
        taken_down = unit in LINK_DOWN and said and int(match["information"], 16) >> 20 & 0x3F in TAKEN_DOWN
        return Kind.NONFATAL if taken_down else Kind.XID
    harmless = said and int(match["status"], 16) in HARMLESS.get(unit, set())
    return Kind.HARMLESS if harmless else Kind.NONFATAL


def read_kernel_log() -> KernelLog:
    """The Xid events of this boot: from the journal, which is complete, else from the kernel's own buffer."""
    readable, journal_lost, reasons = False, False, []
    for command in (
        # Since boot, messages only; the journal finds the kernel's lines by an index.
        [*JOURNAL, "--grep=NVRM: |SXid"],
        ["dmesg"],
    ):
        try:
            done = run(command, TIMEOUT_S)
            # journalctl --grep answers 1 when no line matches, and also, without a word, when this user may
            # read none at all.
            heard = done.status == 0 or (
                command[0] == "journalctl"
                and not done.errors.strip()
                and bool(run([*JOURNAL, "--lines=1"], TIMEOUT_S).output.strip())
            )
        except (OSError, CommandError) as error:
            reasons.append(f"{command[0]}: {error}")
            journal_lost |= isinstance(error, CommandError)
            continue
        lines = done.output.splitlines() if heard else []
        found = events(lines)
        if heard and journal_lost and not any(map(BEGINNING.search, lines)):
            return KernelLog(found, "; ".join([*reasons, f"{command[0]}: it has lost its beginning"]))
        if found:
            return KernelLog(found)
        readable |= heard
        if not heard:
            reasons.append(f"{command[0]}: {done.errors.strip()[:200] or 'it shows no line of the kernel'}")
    return KernelLog(unreadable="" if readable else "; ".join(reasons))
