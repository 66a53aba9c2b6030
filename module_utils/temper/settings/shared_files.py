"""Files for which a site has lines of its own, beside them or in the same file: never weaker than found."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.files import File, put_back, saved
from ansible.module_utils.temper.settings import pam_lines
from ansible.module_utils.temper.settings.base import Difference, Fault, State, kept_value, word_on_faults
from ansible.module_utils.temper.settings.files import WholeFile
from ansible.module_utils.temper.settings.site_lines import (
    CLEARED,
    OFF,
    Line,
    UnreadableError,
    grammar_of,
    is_ours,
)
from ansible.module_utils.temper.settings.strictness import (
    ABSENT,
    EXACTLY,
    as_strict,
    implicit,
    stricter,
    strictest,
)

#: Orders of a file, beside those of strictness.py: the file as a whole has one, and not its keys ...
WHOLE = "every"
#: ... any text that tells nobody what the system runs is as good as ours; any value of the site is ...
TELLS_NOTHING, ANY = "tells nothing", "any"
#: ... and entries of the site's list are added to ours, without those that its distribution's file has.
ADDED = "added"
#: ... and of patterns that leave packages out, one that leaves out all of them is a fault. Of the site's
#: entries of a list that ours does not have: where there are any, they have to name all packages, all days.
SOME, ALL, DAILY = "some", "all", "daily"
#: What no pattern for some packages has in common: unattended-upgrade(8) asks re.match() of each.
UNRELATED = ("apt", "linux-libc-dev", "openssl", "zlib1g")
#: is_update_day() of unattended-upgrade(8) takes their first three letters and their numbers, too.
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
#: What a text before a login may have that tells the system's name or version: agetty(8).
ESCAPE = re.compile(r"\\[mnorsvS]")
RELEASE = Path("/etc/os-release")
#: The entry of a list that Debian's own file has, by the file's name.
DISTRIBUTION = {"50unattended-upgrades": "origin=Debian,codename=${distro_codename},label=Debian"}


@dataclass
class Text:
    """What a file of ours is to say beside the site's files, and what there is to say about that."""

    lines: list[str]
    kept: list[str] = field(default_factory=list)
    #: What keeps our lines from being in force.
    faults: list[str] = field(default_factory=list)
    #: Why all that is not known.
    unreadable: str = ""


def beside(path: Path, content: str, orders: Mapping[str, str], own: str) -> Text:
    """Put the site's values in the place of those that are weaker. Raises UnreadableError.

    `own` is what the site had in a file of this name. A value is written although the site sets it: the site
    may take its line out, and until the next run the node stays as strict.
    """
    grammar = grammar_of(str(path))
    site: list[Line | None] = list(grammar.read(path))
    found = Text([], faults=[] if None in site else [f"no file includes {path}"])
    at = site.index(None) if None in site else len(site)
    before = left([*filter(None, site[:at]), *grammar.lines(own, str(path))])
    after = [*filter(None, site[at + 1 :])]
    ours = {line.number: line for line in grammar.lines(content, str(path))}
    scopes = {line.scope for line in ours.values()}
    for number, text in enumerate(content.splitlines(), 1):
        line = ours.get(number)
        order = orders.get(line.key) if line else None
        if line is None or order in (None, ADDED, SOME):
            found.lines.append(text)
            continue
        # A line for all concerns those of whom no line of ours says anything else.
        others = scopes - {line.scope}
        earlier, later = (
            [
                one
                for one in lines
                if one.key.lower() == line.key.lower()
                and (one.scope == line.scope or (not line.scope and one.scope not in others))
            ]
            for lines in (before, [set_back(one, line.key, order) for one in after])
        )
        put(found, line, text, order, earlier, later)
    for key, order in orders.items():
        mine = [line.value for line in ours.values() if line.key == key]
        found.faults += list_faults(key, order, mine, left([*before, *after]), after)
    for key in {line.key for line in ours.values() if orders.get(line.key) == ADDED}:
        add(found, key, {line.value for line in ours.values() if line.key == key}, before)
    return found


def put(
    found: Text, ours: Line, text: str, order: str, earlier: Sequence[Line], later: Sequence[Line]
) -> None:
    """Add our line as it is to be beside the lines of the site with its key, before it and behind it."""
    same = [line for line in (*earlier, *later) if line.scope == ours.scope]
    site = same[-1] if same else None
    if order == ANY and site and site.value == OFF:
        order = EXACTLY
    if order == ANY and site and site.value not in ("", ours.value):
        found.kept.append(f"{site.key} {site.value} ({site.place}), in place of {ours.value}")
        return
    if order == ANY:
        found.lines.append(text)
        return
    value = ours.value
    if site and stricter(order, joint := strictest(order, site.value, value), value):
        found.kept.append(kept_value(site.key, f"{joint} ({site.place})", value))
        value = joint
    head, tail = text.rsplit(ours.value, 1) if ours.value else (text, "")
    found.lines.append(f"{head}{value}{tail}")
    for line in earlier:
        # Ours, which is for all, would override it.
        if line.scope != ours.scope and not line.late and stricter(order, line.value, value):
            found.lines.append(f"Defaults{line.scope} {line.key}={line.value}")
            found.kept.append(
                kept_value(f"{line.key} for {line.scope}", f"{line.value} ({line.place})", value)
            )
    # What comes behind ours overrides it, and what wins everywhere.
    late = [line for line in earlier if line.late and line.scope != ours.scope]
    for line in {line.scope: line for line in (*late, *later)}.values():
        if not as_strict(order, line.value, value):
            whom = f" for {line.scope}" if line.scope else ""
            found.faults.append(f"{line.place} sets {line.key} {line.value}{whom}, which wins over {value}")


def add(found: Text, key: str, ours: set[str], before: Sequence[Line]) -> None:
    """Add the site's entries of a list of apt that ours begins anew."""
    for line in before:
        if line.key.lower() != key.lower() or line.value in ours:
            continue
        if DISTRIBUTION.get(Path(line.path).name) == line.value:
            continue
        if not re.fullmatch(r"[ -~]+", line.value):
            raise UnreadableError(f"{line.place}: expected a printable text for {key}")
        found.lines.append(f'{key} "{line.value}";')
        found.kept.append(f"{key} {line.value} ({line.place})")


def list_faults(
    key: str, order: str, ours: Sequence[str], site: Sequence[Line], after: Sequence[Line]
) -> Iterator[str]:
    """Yield clauses on entries of the site that leave out more than ours do, and on lines that clear ours."""
    entries = [line for line in site if line.key.lower() == key.lower()]
    name, values = key.rstrip(":"), {line.value for line in entries}
    if order in (ADDED, SOME) and not values.issuperset(ours):
        yield from (f"{line.place} clears {name}" for line in after if clears(line, key))
    if order == ABSENT:
        yield from (f"{line.place} has {name}, expected none" for line in entries)
    elif order == SOME:
        yield from (
            f"{line.place} has {line.value!r} for {name}: no package is left"
            for line in entries
            if leaves_out_all(line.value)
        )
    elif order == ALL and entries and not any(leaves_out_all(value) for value in values):
        yield f"{entries[0].place} has {name}, expected none: no other package is updated"
    elif order == DAILY and entries:
        rest = [day for number, day in enumerate(DAYS) if not values & {day, day[:3], str(number)}]
        if rest:
            yield f"{entries[0].place} has {name}, expected each day: none on {', '.join(rest)}"


def clears(line: Line, key: str) -> bool:
    """Return whether a line empties a key of apt.conf(5), alone or with all that its scope has."""
    return line.value == CLEARED and f"{key.rstrip(':')}::".lower().startswith(f"{line.key}::".lower())


def left(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that no later one clears."""
    found: list[Line] = []
    for line in lines:
        found = [*(one for one in found if not clears(line, one.key)), line]
    return found


def set_back(line: Line, key: str, order: str) -> Line:
    """Return a line that clears a key as one that sets what the program takes without a line."""
    return line._replace(key=key, value=(implicit(order) or [""])[0]) if clears(line, key) else line


def leaves_out_all(pattern: str) -> bool:
    """Return whether a pattern matches packages that have nothing to do with each other."""
    try:
        return all(re.match(pattern, name) for name in UNRELATED)
    except re.error:
        return False  # unattended-upgrades passes it over


def as_good(order: str, text: str, wanted: str) -> bool:
    """Return whether the text of a site's file forbids all that the wanted one does."""
    if order != TELLS_NOTHING:
        return as_strict(order, text.strip(), wanted.strip())
    release = RELEASE.read_text(encoding="utf-8", errors="replace") if RELEASE.exists() else ""
    names = {name.lower() for name in re.findall(r"^(?:ID|NAME)=[\"']?([^\"'\n]+)", release, re.MULTILINE)}
    words = text.lower()
    told = any(re.search(rf"\b{re.escape(name)}\b", words) for name in names)
    return bool(text.strip()) and not ESCAPE.search(text) and not told


class SharedFile(WholeFile):
    """A file that says no less than the site does; `orders` has the order of each key's values."""

    def __init__(self, path: str, content: str, orders: Mapping[str, str], **details: Any) -> None:
        super().__init__(path, content, **details)
        self.content = content
        self.orders = orders

    @cached_property
    def text(self) -> Text:
        """What it is to say; the site's files are read once."""
        try:
            found = beside(self.path, self.content, self.orders, site_text(self))
            lines = grammar_of(str(self.path)).lines(self.content, str(self.path))
            wanted = {line.key: line.value for line in lines}
            for key, order in self.orders.items():
                if argument := pam_lines.argument_of(self.path, key):
                    by_pam = pam_lines.judged(argument, key, order, wanted.get(key, ""))
                    found.faults += by_pam.weaker
                    found.kept += by_pam.stricter
            if self.path.parent.name == "limits.d":
                found.faults += pam_lines.limits_elsewhere()
        except UnreadableError as error:
            return Text(self.content.splitlines(), unreadable=str(error))
        return found

    @cached_property
    def file(self) -> File:
        """With the values that are as strict as the site's."""
        return File(str(self.path), "".join(f"{line}\n" for line in self.text.lines), self.mode, public=True)

    def settled(self) -> bool:
        """Return whether it says what it is to say beside the site's files."""
        return not self.text.unreadable and super().settled()

    def change(self) -> list[Difference]:
        """Return the whole file, where it is known."""
        return [] if self.text.unreadable else super().change()

    def reason(self) -> str:
        """Return which file of the site cannot be read."""
        return self.text.unreadable

    def obstacle(self) -> str | None:
        """Likewise: what is stricter there is not known."""
        return self.text.unreadable or super().obstacle()

    def kept(self) -> list[str]:
        """Return what the site has that is stricter."""
        return self.text.kept

    def fault(self) -> Fault | None:
        """Lines of the site that win and are weaker."""
        return Fault("; ".join(self.text.faults)) if self.text.faults else None

    def warnings(self) -> list[str]:
        """Likewise: the operator takes them out."""
        return word_on_faults(str(self.path), self.fault())


class SiteFile(WholeFile):
    """A file that has one author: the site's own stays where it is as strict as ours as a whole."""

    def __init__(self, path: str, content: str, orders: Mapping[str, str], **details: Any) -> None:
        super().__init__(path, content, **details)
        self.content = content
        self.whole = orders[WHOLE]

    @cached_property
    def stays(self) -> bool:
        """Whether the site's own file is there, or was, and is to stay."""
        state = site_state(self)
        if state is None or "content" not in state or state["uid"] or state["mode"] & 0o022:
            return False
        return as_good(self.whole, site_text(self), self.content)

    def settled(self) -> bool:
        """Return whether it is the site's, or ours."""
        return saved(self.path) == site_state(self) if self.stays else super().settled()

    def change(self) -> list[Difference]:
        """Return the whole file."""
        if not self.stays:
            return super().change()
        return [Difference(self.key, self.file.before_and_after()[0], site_text(self))]

    def apply(self) -> None:
        """Write ours, or bring the site's back."""
        if self.stays:
            put_back(self.path, site_state(self))
        else:
            super().apply()

    def kept(self) -> list[str]:
        """Return that it is the site's."""
        differs = self.stays and site_text(self) != self.content
        return [f"{self.path} as the site has it"] if differs else []


def site_state(file: WholeFile) -> State:
    """Return the state of the site's own file of this name; None where there was none but Temper's."""
    return file.original["state"] if file.original else saved(file.path)


def site_text(file: WholeFile) -> str:
    """Return its text; none where Temper has brought it with an image."""
    content = (site_state(file) or {}).get("content", "")
    text = base64.b64decode(content).decode(errors="replace")
    return "" if is_ours(text) else text
