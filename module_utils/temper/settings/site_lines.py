"""What a site's files say beside one of ours, in the order in which their program reads them."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.temper.files import read_regular
from ansible.module_utils.temper.settings.base import SettingError

MOST_BYTES = 2**20
MOST_FILES = 500
#: Where programs of systemd look for drop-ins, the weakest first.
SYSTEMD = ("usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd")
#: The value of what a line of sudoers switches off, and of what #clear of apt.conf(5) empties.
OFF = "!"
CLEARED = "#clear"
#: How every file of ours begins that lies beside a site's.
MANAGED = re.compile(r"(#|//) Managed by Temper")
_NAME = r'(?:"[^"]*"|\\.|[^\s,"\\=])+'
_WHOM = rf"(?:!\s*)?{_NAME}"
_DEFAULTS = re.compile(rf"Defaults(?:([@:!>])\s*({_WHOM}(?:\s*,\s*{_WHOM})*))?\s+(\S.*)$")
_VALUE = r'"(?:[^"\\]|\\.)*"|(?:[^\s,"\\]|\\.)*'
_PARAMETER = re.compile(rf"\s*(!*)\s*(\w+)\s*(?:[+-]?=\s*({_VALUE}))?\s*(?:,|$)")
_APT = re.compile(
    r'#(?:clear|include)\s[^;\n]*;?|//[^\n]*|/\*.*?(?:\*/|\Z)|#[^\n]*|"[^"]*"|[{};]|\s+|[^\s"{};]+|"',
    re.DOTALL,
)
# As getopt reads them: -f2, too.
_AUDIT = re.compile(r"\s*(-[bef]|--backlog_wait_time)(?:\s+|=|(?=[0-9]))(\S+)")
_INCLUDE = re.compile(r'[@#](include|includedir)\s+("[^"]+"|(?:\\.|\S)+)$')


class UnreadableError(SettingError):
    """A file of the site cannot be read; the message names the line, what was expected and what to do."""


class Line(NamedTuple):
    """One value that a line sets. Its `scope` is empty for everybody; one that is `late` wins everywhere."""

    path: str
    number: int
    scope: str
    key: str
    value: str
    late: bool = False

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.path}:{self.number}"


def text_of(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file of the site, following links as its program does. Raises UnreadableError.

    A link to /dev/null masks the file of the same name in a weaker folder: nothing is read.
    """
    if os.path.realpath(path) == os.devnull:
        return ""
    try:
        return read_regular(path, most_bytes, follow=True).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UnreadableError(f"{path}: expected a file that can be read, found: {error.strerror}") from error


def is_ours(text: str) -> bool:
    """Return whether Temper has written a file: nothing in it is the site's."""
    return bool(MANAGED.match(text))


def joined(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the lines with their numbers; one that ends in a \ goes on in the next one."""
    whole, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if whole else number
        if line.endswith("\\"):
            whole += line[:-1]
            continue
        yield first, (whole + line).strip()
        whole = ""
    if whole:
        yield first, whole.strip()


# ---------------------------------------------------------------- sudoers


def sudoers_lines(text: str, path: str) -> Iterator[Line]:
    """Yield what Defaults say. Raises UnreadableError."""
    for number, line in joined(text):
        if line.startswith("Defaults"):
            yield from sudo_defaults(line, path, number)


def sudo_defaults(line: str, path: str, number: int) -> Iterator[Line]:
    """Yield what one line of Defaults says."""
    error = UnreadableError(f"{path}:{number}: expected Defaults as in sudoers(5); `visudo -c` says more")
    match = _DEFAULTS.match(without_comment(line))
    if not match:
        raise error
    kind, whom, parameters = match[1] or "", match[2] or "", match[3]
    at = 0
    while at < len(parameters):
        found = _PARAMETER.match(parameters, at)
        if not found:
            raise error
        at = found.end()
        off, key, value = len(found[1]) % 2 == 1, found[2], (found[3] or "").strip('"')
        if key == "timestamp_timeout":
            value = "0" if off else minutes(value)
        elif off or (key == "umask" and value in ("777", "0777")):
            value = OFF  # no umask, too: that of the user stays
        # Those for commands, and for whom they run as, come behind all others.
        yield Line(path, number, f"{kind}{whom}", key, value, kind in ("!", ">"))


def minutes(text: str) -> str:
    """Return whole minutes, rounded up; -1 for those that never end."""
    try:
        value = float(text)
    except ValueError:
        return text
    return "-1" if value < 0 else str(math.ceil(value)) if value < sys.maxsize else text


def without_comment(line: str) -> str:
    """Cut what follows a # that stands neither in quotes nor behind a backslash, and is no user id."""
    match = re.match(r'(?:"(?:[^"\\]|\\.)*"|\\.|#(?=-?\d)|[^#"\\]|")*', line)
    return match[0].rstrip() if match else line


def sudoers(own: Path) -> Iterator[Line | None]:
    """Yield what sudoers and all that it includes say, in the order in which sudo reads it."""
    left = [MOST_FILES]

    def visit(file: Path) -> Iterator[Line | None]:
        if file == own:
            yield None
            return
        left[0] -= 1
        if left[0] < 0:
            raise UnreadableError(f"{file}: expected sudoers to include at most {MOST_FILES} files")
        text = text_of(file)
        lines = [] if is_ours(text) else [*sudoers_lines(text, str(file))]
        for number, line in joined(text):
            while lines and lines[0].number <= number:
                yield lines.pop(0)
            if match := _INCLUDE.match(line):
                name = re.sub(r"\\(.)", r"\1", match[2].strip('"')).replace("%h", host)
                for entry in included(file.parent / name, match[1]):
                    yield from visit(entry)

    def included(target: Path, how: str) -> list[Path]:
        if how == "include":
            return [target]
        entries = [*target.iterdir()] if target.is_dir() else []
        named = {*entries, own} if own.parent == target else entries
        return sorted(entry for entry in named if "." not in entry.name and not entry.name.endswith("~"))

    host = os.uname().nodename.partition(".")[0]
    return visit(own.parent.parent / "sudoers")


# ---------------------------------------------------------------- systemd, PAM, auditd


def ini_lines(text: str, path: str) -> Iterator[Line]:
    """Yield the values of all sections; a key is SECTION.KEY."""
    section = ""
    for number, line in joined(text):
        name, equals, value = line.partition("=")
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif equals and line[0] not in "#;":
            yield Line(path, number, "", f"{section}.{name.strip()}", value.strip())


def systemd_files(path: Path) -> list[Path]:
    """Return the main file and all drop-ins by name; of one name, that in the strongest folder."""
    root, folder = path.parents[3], path.parent.name
    by_name = {found.name: found for place in SYSTEMD for found in (root / place / folder).glob("*.conf")}
    by_name[path.name] = path
    mains = [root / place / folder[: -len(".d")] for place in SYSTEMD]
    main = [file for file in mains if file.is_file()][-1:]
    return [*main, *(file for _, file in sorted(by_name.items()))]


def keyword_lines(text: str, path: str) -> Iterator[Line]:
    """Yield `key = value` and flags, as in pwquality.conf(5)."""
    for number, line in enumerate(text.split("\n"), 1):
        name, _, value = line.partition("#")[0].partition("=")
        if name.strip():
            key, _, rest = name.strip().partition(" ")
            yield Line(path, number, "", key, (value or rest).strip())


def pwquality_files(path: Path) -> list[Path]:
    """Return the drop-ins, and behind them the main file."""
    folder = path.parent
    return [*sorted({*folder.glob("*.conf"), path}), folder.parent / folder.name[: -len(".d")]]


def limit_lines(text: str, path: str) -> Iterator[Line]:
    """Yield limits of limits.conf(5); PAM passes over what it cannot read."""
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if len(words) != 4:
            continue
        domain, kind, item, value = words
        for one in ("soft", "hard") if kind == "-" else (kind,):
            # Lines for one account or group win over those for all.
            yield Line(path, number, "" if domain == "*" else domain, f"{one} {item}", value, domain != "*")


def limit_files(path: Path) -> list[Path]:
    """Return limits.conf, and behind it the drop-ins."""
    folder = path.parent
    return [folder.parent / "limits.conf", *sorted({*folder.glob("*.conf"), path})]


def audit_lines(text: str, path: str) -> Iterator[Line]:
    """Yield the settings of auditd's rules; the rules add up."""
    for number, line in enumerate(text.split("\n"), 1):
        if match := _AUDIT.match(line):
            yield Line(path, number, "", match[1], match[2])


def audit_files(path: Path) -> list[Path]:
    """Return the files of rules in the order in which augenrules reads them (`ls -v`)."""
    return sorted({*path.parent.glob("*.rules"), path}, key=lambda file: version_order(file.name))


def version_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts 9-a before 10-b."""
    parts = re.findall(r"([0-9]{1,18})|([^0-9]+)", name)
    return [(0, int(number), "") if number else (1, 0, word) for number, word in parts]


# ---------------------------------------------------------------- apt


def apt_lines(text: str, path: str) -> Iterator[Line]:
    """Yield values of apt.conf(5) by their whole names; that of an entry of a list ends in `::`."""
    scopes: list[str] = []
    words: list[str] = []
    number = 1
    for match in _APT.finditer(text):
        word, at = match[0], number
        number += word.count("\n")
        if word.startswith(("#clear", "#include")) and not words:
            if word.startswith("#include"):
                raise UnreadableError(
                    f"{path}:{at}: expected no #include, which is not followed; put what it brings into a "
                    f"file of {Path(path).parent}"
                )
            yield Line(path, at, "", word[len("#clear") :].strip(' \t\r;"'), CLEARED)
            continue
        if word[0].isspace() or word.startswith(("//", "/*")) or (word[0] == "#" and not words):
            continue
        if word not in ("{", "}", ";"):
            words.append(word)
            continue
        if word == "{":
            scopes.append(words[0] if words and not words[0].startswith('"') else "")
        elif words:
            # An entry of a list has no name.
            named = not words[0].startswith('"')
            key = "::".join([*filter(None, scopes), words[0] if named else ""])
            yield Line(path, at, "", key, words[-1].strip('"') if len(words) > named else "")
        if word == "}":  # it ends an entry, too; apt does not miss the last ones
            scopes[-1:] = []
        words = []
    if words:
        raise UnreadableError(
            f"{path}:{number}: expected the end of what was begun; `apt-config dump` says more"
        )


def apt_files(path: Path) -> list[Path]:
    """Return the drop-ins whose names apt takes, and behind them apt.conf."""
    folder = path.parent
    named = [file for file in folder.glob("*") if re.fullmatch(r"[\w-]+(\.conf)?", file.name)]
    return [*sorted({*named, path}), folder.parent / "apt.conf"]


class Grammar(NamedTuple):
    """How a program reads one kind of file: its lines, and all files in their order.

    `read` gets the path of our file, and yields None in its place.
    """

    lines: Callable[[str, str], Iterator[Line]]
    read: Callable[[Path], Iterator[Line | None]]


def one_by_one(lines: Callable[[str, str], Iterator[Line]], files: Callable[[Path], list[Path]]) -> Grammar:
    """Return the grammar of files that are read one after the other."""

    def read(own: Path) -> Iterator[Line | None]:
        found = files(own)
        if len(found) > MOST_FILES:
            raise UnreadableError(f"{own.parent}: expected at most {MOST_FILES} files")
        for file in found:
            if file == own:
                yield None
            elif not is_ours(text := text_of(file)):
                yield from lines(text, str(file))

    return Grammar(lines, read)


#: By the pattern of our file's path.
GRAMMARS: Mapping[str, Grammar] = {
    "*/sudoers.d/*": Grammar(sudoers_lines, sudoers),
    "*/systemd/*.conf.d/*": one_by_one(ini_lines, systemd_files),
    "*/security/pwquality.conf.d/*": one_by_one(keyword_lines, pwquality_files),
    "*/security/limits.d/*": one_by_one(limit_lines, limit_files),
    "*/audit/rules.d/*": one_by_one(audit_lines, audit_files),
    "*/apt/apt.conf.d/*": one_by_one(apt_lines, apt_files),
}


def grammar_of(path: str) -> Grammar:
    """Return the grammar of a file of ours. Raises KeyError."""
    return GRAMMARS[next((pattern for pattern in GRAMMARS if fnmatch.fnmatchcase(path, pattern)), path)]
