"""What is mounted, as the kernel lists it (proc_pid_mountinfo(5)).

Users mount as well (FUSE), and may call the folder as they like, in no encoding and with any character in it
that Python takes for a blank or the end of a line. The kernel escapes just those that separate its fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mount: `options` are those of its point, `kind` the file system, `source` the device or dataset.

    `root` is the folder of the file system that is seen there, `above` the number of the mount that it is in.
    """

    point: str
    kind: str
    source: str
    options: str
    number: str = ""
    above: str = ""
    device: str = ""
    root: str = ""

    def is_bound_to_itself(self, others: Iterable[Mount]) -> bool:
        """Return whether the same folder is there without it, among these mounts."""
        return any(
            (one.number, one.device) == (self.above, self.device)
            and self.root == one.root.rstrip("/") + self.point.removeprefix(one.point.rstrip("/"))
            for one in others
        )


def parse(text: str) -> list[Mount]:
    """Return the mounts in the kernel's order: of several at one point, the last one hides the others."""
    found = []
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        fields, (kind, source, *_) = before.split(" "), [*after.split(" "), "", ""]
        if len(fields) > 5 and kind and source:
            number, above, device, root, point, options, *_ = fields
            found.append(
                Mount(plain(point), kind, plain(source), options, number, above, device, plain(root))
            )
    return found


def mounts(path: Path = MOUNTINFO) -> list[Mount]:
    """Return what is mounted here. A name in no encoding has surrogates, as Python's own names of files."""
    return parse(path.read_bytes().decode(errors="surrogateescape"))


def plain(word: str) -> str:
    """Return a field of the kernel's table, or of fstab, as it was before its blanks were escaped."""
    return ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)
