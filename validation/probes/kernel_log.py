"""The kernel log: what the driver writes to it when a GPU, or its use, goes wrong.

That are Xid errors, as a rule. A GPU that the driver finds gone before it uses it has no Xid.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from validation.findings.catalogue import Nvlink5Unit, xids
from validation.model.contract import StringEnum
from validation.probes.reading import ReadingError, in_one_line
from validation.processes.command import MOST_BYTES, CommandError, run

TIMEOUT_S = 5.0
#: Of the kernel's lines, those that the kernel wrote itself: systemd and others write to its log, too.
JOURNAL = (
    # As JSON: of a message with line breaks, other forms make lines that look like messages of their own.
    *("journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--all", "--output=json"),
    *("--output-fields=MESSAGE", "SYSLOG_FACILITY=0"),
)
#: What a message of the driver begins with; journalctl looks at the beginning of a message.
OF_THE_DRIVER = r"^(NVRM: |nvidia-nvswitch[0-9]+: SXid )"
KMSG = Path("/dev/kmsg")
#: `6,1209,5140900,-;NVRM: loading ...`: a number of facility * 8 + severity, and what the message is of. The
#: kernel escapes line breaks in messages; lines that begin with a blank are of the message before. A `c` in
#: place of the `-` is the rest of a message that another one cut in two: it may begin with a user's words.
RECORD = re.compile(r"(?P<priority>[0-9]+),[0-9]+,[0-9]+,-[^;]*;(?P<message>.*)")
ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
OF_THE_KERNEL = 0  # facility
#: `<4>[   12.345678] NVRM: ...`, as dmesg has it from the kernel.
RAW = re.compile(r"<(?P<priority>[0-9]+)>(?P<message>.*)")
#: Of one read there is one record, of no more than this (PRINTK_MESSAGE_MAX).
MOST_OF_A_RECORD = 1 << 13

#: The time, and the thread, that stand before a message in a log that dmesg wrote.
TIME = re.compile(r"\[ *[0-9]+\.[0-9]+\] (?:\[ *[TC][0-9]+\] )?")
#: Each pattern is of a message from its beginning. Some messages begin with the name of a process, of 15
#: characters that its user chose, with words of the kernel behind: so the driver's own words are more there.
PLACE = "(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
ADDRESS = f"(?P<address>{PLACE})"
#: `NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`; of a MIG instance
#: `(PCI:0000:1b:00 GPU-I:05)` or `(PCI:0000:1b:00 GPU-I:05 GPU-CI:02)`; of an old driver `(0000:1b:00)`.
LINE = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{ADDRESS}(?:[. ][^)]*)?\): (?P<number>[0-9]{{1,4}}), *(?P<rest>(?s:.*))"
)
#: `NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)`: the
#: unit, how bad it is, and the unit's information and error status, which drivers before 575 do not say.
#: Where a program was hit, `pid=876767, name=ray::WorkerDict, ` comes first (lines in the tests of
#: leptonai/gpud, kmsg_extended_test.go, 2026-08-20).
NVLINK5 = range(144, 151)
NVLINK5_DETAIL = re.compile(
    # As much as may be the name: 15 characters of its user, any of them.
    r"(?:pid=[^,]*, name=.{0,15}, )?(?:\w+/)?(?P<unit>\w+)\s+(?P<severity>Non-?fatal|Fatal)\b"
    r"(?:.*?\((?P<information>0x[0-9a-f]+) (?P<status>0x[0-9a-f]+))?",
    re.I | re.S,
)
#: Why a link went down (bits 20 to 25 of the information), where the same table asks for no reset: to look at
#: the software that did it, or at the host.
LINK_DOWN = {"NETIR_LINK_EVT", "NETIR_LINK_DOWN"}
TAKEN_DOWN = {0b100110, 0b101000}
#: The number of the unit RLW_RXPIPE in the information of drivers from 575 on (bits 0 to 6).
RXPIPE = 0b0000110
#: `NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.`, in old drivers `NVRM: GPU at 0000:1b:00.0 has ...`;
#: while the driver is loaded, one message of three lines: `NVRM: The NVIDIA GPU 0000:1b:00.0`, `NVRM: (PCI
#: ID: 10de:2330) installed in this system has`, `NVRM: fallen off ...` (open-gpu-kernel-modules 595.45.04,
#: osinit.c and osapi.c).
OFF_THE_BUS = re.compile(
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?{ADDRESS}\.[0-9a-f]:? (?:GPU )?has fallen off the bus"
    r"|(?:\(PCI ID: [0-9a-f:]+\) )?(?:installed in this system has )?fallen off the bus and is not resp)"
)
SUBJECT = re.compile(rf"NVRM: The NVIDIA GPU {ADDRESS}\.[0-9a-f]\b")
#: `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`, or Non-fatal. Lines with
#: its data follow.
SWITCH = r"nvidia-nvswitch[0-9]+: SXid \(PCI:(?P<address>[0-9a-fA-F:.]{7,16})\)"
SWITCH_LINE = re.compile(rf"{SWITCH}: (?P<number>[0-9]{{1,6}}), (?P<rest>(?:Non-f|F)atal\b.*)")
SWITCH_DATA = re.compile(rf"{SWITCH}: [0-9]{{1,6}}, (?:Severity|Data)\b")
#: What begins as an error does and goes on in a way that no pattern here knows; also of a place that is no
#: address, or after the driver's number of a GPU, which lines without an Xid have since 610. Each has more
#: words of the driver than fit into the name of a process.
NO_PATTERN = re.compile(
    rf"NVRM: (?:GPU[0-9]{{1,4}}:? )?(?i:xid):?(?: \(|\((?=PCI:))(?:(?:PCI:)?{ADDRESS}|[^()\[\]]{{3,64}}\): )"
    rf"|NVRM: GPU (?:at )?(?:PCI:)?(?P<gpu>{PLACE})[.:0-9a-f]*:? Xid\b"
    r"|NVRM: GPU[0-9]{1,4}:? Xid:? [0-9]{1,4}, |nvidia-nvswitch[0-9]+: SXid\b"
)
#: `NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)
#: returned from status @ kernel_channel.c:2827`, since 610 with `GPU0 ` before it, a number of the driver's
#: own. CUDA says that the device is busy or unavailable (dra-driver-nvidia-gpu issue 982, GB200).
#: `NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP`: the next line says
#: that the GPU may need to be reset (open-gpu-kernel-modules, kernel_gsp.c).
RESET_REQUIRED = re.compile(
    r"NVRM: (?:GPU[0-9]+ )?(?:nv\w+: (?:Assertion|Check) failed: Reset required \[NV_ERR_RESET_REQUIRED\]"
    r"|_kgspBootGspRm: unexpected WPR2 already up\b)"
)
#: The same of a GPU that is gone, `... failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)`.
LOST = re.compile(
    r"NVRM: (?:GPU[0-9]+ )?nv\w+: (?:Assertion|Check) failed: GPU lost from the bus \[NV_ERR_GPU_IS_LOST\]"
)
#: `NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU
#: likely needs to be reset.`: the system processor of a GPU has stopped, mostly after an Xid 119 of the same.
GSP_STOPPED = re.compile(rf"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:{ADDRESS}\b.*to be reset")
GSP_TIMEOUT = 119
#: `NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.`:
#: of the driver of CUDA's unified memory, which then serves no GPU.
REBOOT_REQUIRED = re.compile(
    r"NVRM: (?:GPU[0-9]+ )?nvGpuOpsReportFatalError: uvm encountered global fatal error\b"
)
#: The Xid that tells what the driver wants done with a GPU: `GPU recovery action changed from 0x0 (None) to
#: 0x2 (Node Reboot Required)`.
RECOVERY = 154
RECOVERY_DETAIL = re.compile(r"recovery action changed from .* to 0x[0-9a-f]+ \((?P<action>[^()]+)\)", re.I)
#: The Xid of a GPU that has fallen off the bus.
FALLEN = 79
#: What the module says when it is loaded; errors of before are gone with the module that had them.
LOADED = re.compile(r"NVRM: loading NVIDIA UNIX .*\bKernel Module\b")
#: What the kernel's own buffer has as long as it has lost nothing that matters here: it is a ring.
BEGINNING = re.compile(rf"{LOADED.pattern}|Linux version [0-9]+\.[0-9]+")


class Kind(StringEnum):
    """An Xid, one of a link that asks for no reset, an SXid, or what the driver says without one.

    A GPU that went away, one that must be reset, or an error that this program cannot read.
    """

    XID = "xid"
    NONFATAL = "nonfatal"
    HARMLESS = "harmless"
    SXID = "sxid"
    OFF_THE_BUS = "off-the-bus"
    RESET_REQUIRED = "reset-required"
    REBOOT_REQUIRED = "reboot-required"
    UNREADABLE = "unreadable"


#: Which lines without an Xid say the same as one.
SAID_BY = {FALLEN: Kind.OFF_THE_BUS, GSP_TIMEOUT: Kind.RESET_REQUIRED}


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
    def fatal(self) -> bool:
        """Whether an SXid was fatal: the driver's own word, with which its line begins."""
        return self.kind is Kind.SXID and self.detail.startswith("Fatal")

    @property
    def name(self) -> str:
        """What it is counted as."""
        names = {
            Kind.SXID: f"SXid {self.number}",
            Kind.OFF_THE_BUS: "off the bus",
            Kind.RESET_REQUIRED: "reset required",
            Kind.REBOOT_REQUIRED: "reboot required",
            Kind.UNREADABLE: "unreadable",
        }
        return names.get(self.kind, str(self.number))

    @property
    def recovery_action(self) -> str:
        """What an Xid 154 says that the driver wants done now, in its words."""
        match = RECOVERY_DETAIL.search(self.detail)
        return match["action"] if match else self.detail


@dataclass(frozen=True)
class KernelLog:
    """The Xid events since the driver was loaded, and why there may be more that cannot be read."""

    events: tuple[Event, ...] = ()
    unreadable: str = ""


def events(lines: Iterable[str]) -> tuple[Event, ...]:
    """Return the errors in lines of the kernel log, since the driver was loaded last.

    Of one GPU or switch each number once, and apart whether it was fatal: a log may have a million lines, and
    what was handled must not hide what was fatal before.
    """
    found: dict[tuple[str, int, Kind, str], Event] = {}
    subject = ""
    for message in _messages(lines):
        if LOADED.match(message):
            found.clear()
        if match := SUBJECT.match(message):
            subject = match["address"]
        event = _event(message, subject)
        if event:
            severity = event.detail.partition(",")[0] if event.kind is Kind.SXID else ""
            key = event.address, event.number, event.kind, severity
            before = found.pop(key, None)  # in the order of their last lines
            found[key] = dataclasses.replace(event, count=before.count + 1 if before else 1)
    # What the Xid of the same GPU says better; a line that names no GPU says less than any that does.
    told = {(event.address, SAID_BY.get(event.number)) for event in found.values()}
    if Kind.OFF_THE_BUS in {one.kind for one in found.values() if one.address} | {kind for _, kind in told}:
        found.pop(("", 0, Kind.OFF_THE_BUS, ""), None)
    return tuple(
        dataclasses.replace(event, detail=in_one_line(event.detail))
        for event in found.values()
        if not event.address or (event.address, event.kind) not in told
    )


def _messages(lines: Iterable[str]) -> Iterator[str]:
    """Yield the messages in lines.

    The driver's own of several lines, in which no user has a word, as so many.
    """
    for line in lines:
        message = TIME.sub("", line, count=1) if line.startswith("[") else line
        if SUBJECT.match(message):
            yield from map(str.strip, message.split("\n"))
        else:
            yield message


def _event(message: str, subject: str) -> Event | None:
    """Return the error in a message; `subject` is the GPU of the messages before it."""
    if match := LINE.match(message):
        number, detail = int(match["number"]), match["rest"]
        return Event(_with_domain(match["address"]), number, detail.strip(), _kind(number, detail))
    if match := SWITCH_LINE.match(message):
        return Event(match["address"].lower(), int(match["number"]), match["rest"].strip(), Kind.SXID)
    if (match := OFF_THE_BUS.match(message)) and (address := match["address"] or subject):
        return Event(_with_domain(address), 0, message.strip(), Kind.OFF_THE_BUS)
    if match := GSP_STOPPED.match(message):
        return Event(_with_domain(match["address"]), 0, message.strip(), Kind.RESET_REQUIRED)
    if LOST.match(message):
        return Event("", 0, message.strip(), Kind.OFF_THE_BUS)
    if RESET_REQUIRED.match(message):
        return Event("", 0, message.strip(), Kind.RESET_REQUIRED)
    if REBOOT_REQUIRED.match(message):
        return Event("", 0, message.strip(), Kind.REBOOT_REQUIRED)
    if (match := NO_PATTERN.match(message)) and not SWITCH_DATA.match(message):
        address = match["address"] or match["gpu"]
        return Event(_with_domain(address) if address else "", 0, message.strip(), Kind.UNREADABLE)
    return None


def _with_domain(address: str) -> str:
    """`18:00` as `0000:18:00`: so old drivers name a GPU, which has its other lines with the domain."""
    short = address.lower().rstrip(":")
    return short if short.count(":") > 1 else f"0000:{short}"


def _kind(number: int, detail: str) -> Kind:
    """Return what an Xid asks for.

    One of NVLink 5 says whether it was fatal, and the table knows more of some.
    """
    match = NVLINK5_DETAIL.match(detail) if number in NVLINK5 else None
    if match is None:
        return Kind.XID
    name, fatal = match["unit"].upper(), match["severity"].lower() == "fatal"
    if match["status"] is None:
        return Kind.XID if fatal else Kind.NONFATAL
    information, status = int(match["information"], 16), int(match["status"], 16)
    if fatal:
        taken_down = name in LINK_DOWN and information >> 20 & 0x3F in TAKEN_DOWN
        return Kind.NONFATAL if taken_down else Kind.XID
    unit = xids().nvlink5.get(name, Nvlink5Unit())
    promoted = information >> (7 if information & 0x7F == RXPIPE else 10) & 1
    if status in unit.reset or (promoted and status in unit.promoted):
        return Kind.XID
    return Kind.HARMLESS if status in unit.nothing else Kind.NONFATAL


def read_kernel_log() -> KernelLog:
    """Return the Xid events of this boot, from the complete journal, else from the kernel's own buffer."""
    reasons = []
    heard = journal_lost = False
    try:
        found, heard = _journal()
        if found:
            return KernelLog(found)
    except (OSError, CommandError) as error:
        reasons.append(f"journalctl: {error}")
        journal_lost = isinstance(error, CommandError)
    except ReadingError as error:
        reasons.append(str(error))
    try:
        messages = list(_buffer())
    except (OSError, CommandError, ReadingError) as error:
        reasons.append(f"{KMSG}: {error.strerror if isinstance(error, OSError) else error}")
        return KernelLog(unreadable="" if heard else "; ".join(reasons))
    if not messages:  # what a container has in its place is no log
        reasons.append(f"{KMSG}: it shows no message of the kernel")
        return KernelLog(unreadable="" if heard else "; ".join(reasons))
    lost = journal_lost and not any(map(BEGINNING.match, messages))
    return KernelLog(
        events(messages), "; ".join([*reasons, f"{KMSG}: it has lost its beginning"]) if lost else ""
    )


def _journal() -> tuple[tuple[Event, ...], bool]:
    """Return the events in the journal, and whether this user may read there.

    journalctl answers 1 when no line matches, and also, without a word, when this user may read none at all.
    """
    # Since boot, messages only; the journal finds the kernel's lines by an index.
    done = run([*JOURNAL, f"--grep={OF_THE_DRIVER}"], TIMEOUT_S)
    if done.status == 0:
        return events(map(_message, filter(None, done.output.split("\n")))), True
    errors = in_one_line(done.errors)
    if errors or not run([*JOURNAL, "--lines=1"], TIMEOUT_S).output.strip():
        raise ReadingError(f"journalctl: {errors or 'it shows no line of the kernel'}")
    return (), True


def _message(entry: str) -> str:
    """Return the message of an entry of the journal. Raises ReadingError."""
    try:
        said = json.loads(entry)["MESSAGE"]
        # Text that is no UTF-8 is a list of bytes.
        return said if isinstance(said, str) else bytes(said).decode(errors="replace")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ReadingError(f"journalctl: expected an entry as JSON, found {in_one_line(entry)}") from error


def _buffer() -> Iterator[str]:
    """Yield the messages in the kernel's own buffer, those of the kernel itself.

    Not from dmesg, which prints the line breaks in a message, on Enterprise Linux without a blank behind
    them: what follows looks like a message of its own. Only a container that serves as a node has no other.
    """
    if not KMSG.exists():
        yield from _of_the_kernel(RAW, run(["dmesg", "--raw", "--syslog"], TIMEOUT_S).output)
        return
    descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    read = bytearray()
    try:
        while len(read) < MOST_BYTES:
            try:
                record = os.read(descriptor, MOST_OF_A_RECORD)
            except BrokenPipeError:
                continue  # the record was overwritten; the next read is of the one that is the first now
            except BlockingIOError:
                break
            if not record:
                break
            read += record
        else:
            raise ReadingError(f"expected the kernel's buffer, found more than {MOST_BYTES >> 20} MiB")
    finally:
        os.close(descriptor)
    for message in _of_the_kernel(RECORD, read.decode(errors="replace")):
        yield ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), message.encode()).decode(
            errors="replace"
        )


def _of_the_kernel(form: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the messages in lines of a form that the kernel wrote itself."""
    for line in text.split("\n"):
        match = form.match(line)
        if match and int(match["priority"]) >> 3 == OF_THE_KERNEL:
            yield match["message"]
