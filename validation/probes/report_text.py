"""Take the text of `nvidia-smi -q -x` apart, so that names of processes cannot change what it says.

nvidia-smi writes these names as they are: a user's process may be called `</gpu>`, a line break and
`<gpu id="...">`. They stand behind everything else that is read of a GPU (nvsmi_device_v8.dtd to v13.dtd): so
what is before a GPU's <processes> is the driver's. A name can add a GPU and take none away, and the head of
the report says how many there are.
"""

from __future__ import annotations

import contextlib
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from validation.probes.reading import ReadingError, in_one_line

REPORT_END = "</nvidia_smi_log>"
GPU = re.compile(r'^[ \t]*<gpu id="(?P<id>[^"<>\n]{1,64})"[^<>\n]{0,200}>', re.MULTILINE)
#: What ends the part that is read. Old drivers have <compute_processes>.
GPU_END = re.compile(r"<(?:/gpu|(?:compute_)?processes)>")
PROCESS = re.compile(
    r"<pid>(?P<pid>[0-9]{1,10})</pid>\s*(?:<type>(?P<type>[^<\n]{1,8})</type>\s*)?"
    r"(?:<process_name>(?P<name>[^\n]*?)(?:</process_name>|\n))?"
)
#: What no XML may have.
NO_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)")
#: An element with a text that looks like one, as what a damaged infoROM holds may.
STRANGE_TEXT = re.compile(r"^([ \t]*<(\w+)>)([^\n]*(?:<|\]\]>)[^\n]*)(</\2>[ \t]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    """A process that has a GPU: C, G, C+G or no kind. Its name is its user's choice, all of it."""

    pid: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'a process'} (pid {self.pid})"


@dataclass(frozen=True)
class GpuText:
    """The part of one GPU: its PCI address, its text up to its processes, and the text with these."""

    id: str
    own: str
    of_users: str

    def element(self) -> ET.Element:
        """Return all but its processes. Raises ReadingError."""
        text = f"{BARE_AMPERSAND.sub('&amp;', NO_XML.sub('', self.own))}</gpu>"
        mended = STRANGE_TEXT.sub(lambda one: f"{one[1]}{_escaped(one[3])}{one[4]}", text)
        try:
            # Without a document type there are no entities.
            with contextlib.suppress(ET.ParseError):
                return ET.fromstring(text)  # noqa: S314
            return ET.fromstring(mended)  # noqa: S314
        except ET.ParseError as error:
            raise ReadingError(
                f"nvidia-smi -q -x gave XML that breaks off or is damaged (GPU {self.id}: {error})"
            ) from error

    def processes(self) -> tuple[Process, ...]:
        """Return its processes, by their text."""
        return tuple(
            Process(int(found["pid"]), found["type"] or "", in_one_line(found["name"] or ""))
            for found in PROCESS.finditer(self.of_users)
        )


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True)
class ReportText:
    """A report in parts: before its first GPU, its GPUs, and what comes behind its end."""

    head: str
    gpus: tuple[GpuText, ...]
    tail: str
    is_whole: bool

    @property
    def attached(self) -> int | None:
        """How many GPUs there are, None where the driver does not say."""
        said = self.of_head("attached_gpus")
        return int(said) if re.fullmatch("[0-9]{1,4}", said) else None

    @property
    def is_forged(self) -> bool:
        """Whether the name of a process has a GPU: there are more than the driver's, or one of them twice."""
        there = self.attached
        return there is not None and (
            len(self.gpus) > there or len({gpu.id for gpu in self.gpus}) < len(self.gpus)
        )

    @property
    def of_driver(self) -> str:
        """Everything that no user wrote; of a report that breaks off, all.

        Which GPUs are the driver's in a forged report, nobody can tell, but that the first one is.
        """
        gpus = self.gpus[:1] if self.is_forged else self.gpus
        return "\n".join((self.head, *(gpu.own for gpu in gpus), self.tail))

    def of_head(self, name: str) -> str:
        """Return what an element before the first GPU says, empty where it is not there."""
        found = re.search(rf"<{name}>([^<]{{0,200}})</{name}>", self.head)
        return found[1].strip() if found else ""


def split(text: str) -> ReportText:
    """Take a report apart; text that is none has no GPUs, and all of it is its head."""
    starts = list(GPU.finditer(text))
    end = text.rfind(REPORT_END)
    is_whole = end >= (starts[-1].start() if starts else 0)
    last = end if is_whole else len(text)
    first = starts[0].start() if starts else last
    gpus = []
    for number, found in enumerate(starts, 1):
        stop = starts[number].start() if number < len(starts) else last
        own = GPU_END.search(text, found.start(), stop)
        cut = own.start() if own and is_whole else stop
        gpus.append(GpuText(found["id"], text[found.start() : cut], text[cut:stop]))
    return ReportText(text[:first], tuple(gpus), text[last:].removeprefix(REPORT_END), is_whole)
