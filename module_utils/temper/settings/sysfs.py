"""Values of the kernel's files in /sys, in force now. What sets them at boot is another setting."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.settings.base import Difference, Setting, SettingError, State

SYS = Path("/sys")
#: What a file of a device answers that is switched off or gone by now.
ABSENT = (errno.ENOENT, errno.ENODEV, errno.EBUSY)
#: What the record has of a value while the kernel is given it.
GIVEN = "given"
# The file of a device that has no choice of schedulers: it shows one word without brackets.
SCHEDULER = "scheduler"


def chosen(text: str) -> str:
    """Return the value in force: of `always [madvise] never` the word in brackets, else the whole text."""
    words = text.split()
    marked = [word[1:-1] for word in words if word.startswith("[") and word.endswith("]")]
    return marked[0] if marked else " ".join(words)


def choices(text: str) -> list[str]:
    """Return the values that a file offers: `always [madvise] never`."""
    return [word.strip("[]") for word in text.split()]


class KernelValue(Setting):
    """A value that the kernel takes through a file. `subject` names that file in messages."""

    path: Path
    subject: str
    #: What the kernel has made of the value that it was given: 1-3 of 1,2,3, or fewer pages than asked for.
    taken: str | None = None

    @property
    def value(self) -> str:
        """What it shall be."""
        raise NotImplementedError

    def as_made(self) -> dict[str, Any]:
        """Return `spec` with the value as Temper makes it, or has made it."""
        return {**self.spec, "value": self.value if self.taken is None else self.taken}

    def values(self, state: State) -> list[str]:
        """Return the one value, where there is any."""
        return [] if state is None else [state]

    def values_made(self) -> set[str]:
        """Return the values that runs have written."""
        return {*self.recorded("value")}

    def half_made(self) -> bool:
        """Return whether a run was cut off while the kernel was given it: 700 of 1024 huge pages, say."""
        return bool(self.original and self.original.get(GIVEN))

    def apply(self) -> None:
        """Write it."""
        self._write(self.value)
        self.taken = self.read()

    def change(self) -> list[Difference]:
        """Return the values."""
        return [Difference(self.key, str(self.read()), self.value)]

    def _write(self, value: str) -> None:
        try:
            # A write of nothing does not reach the kernel.
            self.path.write_text(value or "\n", encoding="utf-8")
        except FileNotFoundError:
            # It was there when it was looked at. Containers' interfaces come and go as their users like.
            return
        except OSError as error:
            raise SettingError(
                f"The kernel does not take {value!r} for {self.subject}: {error.strerror}."
            ) from error


class SysfsValue(KernelValue):
    """The live value of one file below /sys. A file that is not there, or offers no choice, is settled."""

    why_absent = "there is nothing to choose"

    def __init__(self, path: str, value: str) -> None:
        self.key = f"sysfs:{path}"
        self.spec = {"path": path, "value": value}
        self.path = SYS / path
        self.wanted = value
        self.subject = str(self.path)

    @property
    def value(self) -> str:
        """The wanted one."""
        return self.wanted

    def read(self) -> State:
        """Return the value in force; None where nobody could set one."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise
        if self.path.name == SCHEDULER and "[" not in text:
            return None
        return chosen(text)

    def settled(self) -> bool:
        """Return whether it has the value."""
        return self.read() in (None, self.value)

    def apply(self) -> None:
        """Write it; the former value again, where the kernel makes something else of it."""
        former = self.read()
        try:
            super().apply()
        except SettingError:
            if former not in (None, self.read()):
                super()._write(former)
            raise

    def restore(self, state: State) -> None:
        """Write the former value, where the file is still there and takes it.

        Another kernel, or another driver of the CPUs' clocks, may no longer know it. Then ours stays until
        the next boot, which brings the kernel's own.
        """
        if state is None or self.read() in (None, state):
            return
        try:
            self._write(state)
        except SettingError as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EINVAL):
                raise

    def _write(self, value: str) -> None:
        super()._write(value)
        if (found := self.read()) not in (None, value):
            raise SettingError(
                f"The kernel was given {value!r} for {self.path} and made {found!r} of it: ask for one "
                "that it takes as it is."
            )


def sysfs_values(pattern: str, value: str) -> Iterator[SysfsValue]:
    """Yield the settings for all files below /sys that match a shell pattern."""
    for path in sorted(SYS.glob(pattern)):
        yield SysfsValue(str(path.relative_to(SYS)), value)
