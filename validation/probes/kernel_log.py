"""The kernel log: the Xid errors that the driver writes to it when a GPU, or its use, goes wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.processes.command import CommandError, run

if TYPE_CHECKING:
    from collections.abc import Iterable

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
