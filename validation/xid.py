"""Xid errors: what the driver writes to the kernel log when a GPU, or its use, goes wrong.

Meaning and recommended action: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", catalogue of 2025-10-29.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.command import CommandError, run
from validation.contract import State

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
TIMEOUT_S = 5.0
JOURNAL = ("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=cat")

#: `NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`; of a MIG instance
#: `(PCI:0000:1b:00 GPU-I:05)` or `(PCI:0000:1b:00 GPU-I:05 GPU-CI:02)`.
LINE = re.compile(r"NVRM: Xid \(PCI:(?P<address>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d+),?\s*(?P<rest>.*)")
#: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`, or Non-fatal.
SWITCH_LINE = re.compile(
    r"SXid \(PCI:(?P<address>[0-9a-fA-F:.]+)\): (?P<number>\d+), (?P<rest>(?:Non-f|F)atal\b.*)"
)
#: What the module says when it is loaded; errors of before are gone with the module that had them.
LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")
#: What the kernel's own buffer has as long as it has lost nothing that matters here: it is a ring.
BEGINNING = re.compile(rf"{LOADED.pattern}|\bLinux version ")

_RESET = "drain the node and reset the GPU; if it comes back, have the GPU looked at"
_REBOOT = "drain and reboot the node; if it comes back, have the GPU looked at"
_LINKS = "reset all GPUs of the node together; if it comes back, have GPU, baseboard and cables looked at"
_UNKNOWN = "look it up in NVIDIA's catalogue; if it comes back, ask the vendor's support"


@dataclass(frozen=True)
class Xid:
    """One entry: what happened, how bad that is for the node, and what to do."""

    title: str
    state: State
    action: str


#: Those that say something about the node. The rest of the catalogue is a program's own doing (13, 31, 43,
#: ...) or information (63, 154, ...): counted in the details, and no fault of the node.
REPORTED = {
    **dict.fromkeys((46, 109, 158), Xid("the GPU stopped answering", State.FAIL, _RESET)),
    48: Xid("uncorrectable memory error (double bit)", State.FAIL, _RESET),
    54: Xid("auxiliary power is not connected", State.FAIL, "check the GPU's power cables"),
    62: Xid("internal microcontroller halted", State.FAIL, _RESET),
    64: Xid("a faulty memory row could not be remapped", State.FAIL, _RESET),
    74: Xid("NVLink error", State.FAIL, _LINKS),
    79: Xid("the GPU has fallen off the bus", State.FAIL, _REBOOT),
    94: Xid("contained memory error, which ended one program", State.DEGRADED, _RESET),
    95: Xid("uncontained memory error", State.FAIL, _RESET),
    110: Xid("security fault", State.FAIL, _RESET),
    **dict.fromkeys((119, 120), Xid("the GPU's system processor (GSP) failed", State.FAIL, _RESET)),
    136: Xid("NVLink training failed", State.FAIL, _LINKS),
    140: Xid("unrecovered memory error", State.FAIL, _RESET),
    143: Xid("the GPU failed to initialise", State.FAIL, _RESET),
    **dict.fromkeys(range(144, 151), Xid("NVLink error (fifth generation)", State.FAIL, _LINKS)),
    151: Xid("encryption key rotation failed", State.FAIL, "restart the virtual machine"),
    155: Xid("NVLink error, found by software", State.FAIL, _LINKS),
    156: Xid("a part of the GPU was retired", State.DEGRADED, _RESET),
    167: Xid("fatal PCIe time-out", State.FAIL, _REBOOT),
    **dict.fromkeys((171, 172), Xid("uncorrectable memory error", State.FAIL, _RESET)),
}
#: Numbers up to here are in the catalogue.
LAST_KNOWN = 172
UNKNOWN = Xid("an error that no catalogue of this program knows", State.DEGRADED, _UNKNOWN)


@dataclass(frozen=True)
class Event:
    """An Xid in the kernel log: on which GPU (`0000:1b:00`), how often, and what the last line says of it.

    `of_switch`: an SXid, of the NVSwitch at that address.
    """

    address: str
    number: int
    detail: str
    of_switch: bool = False
    count: int = 1

    @property
    def name(self) -> str:
        """What it is counted as."""
        return f"SXid {self.number}" if self.of_switch else str(self.number)


@dataclass(frozen=True)
class KernelLog:
    """The Xid events since the driver was loaded, and why there may be more that cannot be read."""

    events: tuple[Event, ...] = ()
    unreadable: str = ""


def find(number: int) -> Xid | None:
    """What an Xid says about the node; None if nothing."""
    return REPORTED.get(number) or (UNKNOWN if number > LAST_KNOWN else None)


def events(lines: Iterable[str]) -> tuple[Event, ...]:
    """The Xid events in lines of the kernel log, since the driver was loaded last.

    Of one GPU each number once, of a switch also by whether it is fatal: a log may have a million lines.
    """
    found: dict[tuple[str, int, bool, str], Event] = {}
    for line in lines:
        if LOADED.search(line):
            found.clear()
        elif match := LINE.search(line) or SWITCH_LINE.search(line):
            of_switch = match.re is SWITCH_LINE
            address, number, rest = match["address"].lower(), int(match["number"]), match["rest"].strip()
            key = address, number, of_switch, rest.partition(",")[0] if of_switch else ""
            before = found.pop(key, None)  # in the order of their last lines
            found[key] = Event(address, number, rest, of_switch, before.count + 1 if before else 1)
    return tuple(found.values())


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
