"""What the lines of PAM's stacks say: an argument of a module wins over the file that it reads as well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ansible.module_utils.temper.files import MOST_BYTES
from ansible.module_utils.temper.settings.site_lines import MOST_FILES, UnreadableError, text_of
from ansible.module_utils.temper.settings.strictness import as_strict, implicit, stricter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STACKS = Path("/etc/pam.d")
#: What a distribution ships for services that STACKS has no file of: pam.d(5).
VENDOR = Path("/usr/lib/pam.d")
ACCOUNTS = Path("/etc/passwd")
#: Copies that editors and package managers leave there; no program is a service of such a name.
COPY = re.compile(r"~$|\.(?:dpkg-\w+|ucf-\w+|rpm\w+|pam-old|bak|old|orig|save)$")
_BRACKETS = re.compile(r"\[((?:\\\]|[^\]])*)\]?")
_WORD = re.compile(rf"(?:{_BRACKETS.pattern}|\S+)")
_ACTION = re.compile(r"(\w+)\s*=\s*(\w+)")
#: The algorithms of pam_unix; the last one on a line counts.
HASHES = ("md5", "bigcrypt", "sha256", "sha512", "blowfish", "gost_yescrypt", "yescrypt")


class PamLine(NamedTuple):
    """One line of a stack: auth, account, password or session."""

    path: str
    number: int
    kind: str
    control: str
    module: str
    arguments: Sequence[str]

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.path}:{self.number}"

    def value(self, name: str) -> str | None:
        """The value of an argument, empty of a flag; the last one counts."""
        found = [
            rest for word, _, rest in (one.partition("=") for one in self.arguments) if word.lower() == name
        ]
        return found[-1] if found else None

    @property
    def binds(self) -> bool:
        """Whether a login fails where the module refuses: pam.d(5)."""
        if not self.control.startswith("["):
            return self.control in ("required", "requisite")
        actions = dict(_ACTION.findall(self.control))
        refusals = [action for name, action in actions.items() if name in REFUSALS]
        return all(action in ("bad", "die") for action in [*refusals, actions.get("default", "ignore")])


#: What modules that judge a login or a password return where they refuse.
REFUSALS = ("auth_err", "perm_denied", "maxtries", "authtok_err", "acct_expired")


def lines(path: Path) -> Iterator[PamLine]:
    """Yield the lines of one file. Raises UnreadableError."""
    return stack_lines(text_of(path), str(path))


def stack_lines(text: str, path: str) -> Iterator[PamLine]:
    """Yield the lines of the text of a file."""
    for number, line in joined(text):
        words = [match[0] for match in _WORD.finditer(line)]
        if len(words) > 1 and words[0] == "@include":
            yield PamLine(path, number, "", "include", words[1], ())
        elif len(words) > 2:
            kind, control, module, *arguments = words
            name = module if control in INCLUDES else module.rpartition("/")[2]
            kind, control = kind.lstrip("-").lower(), control.lower()
            yield PamLine(path, number, kind, control, name, [without_brackets(word) for word in arguments])


def joined(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the lines without comments, with their numbers; one that ends in a \ goes on in the next one.

    A comment ends a line, whatever it ends in: _pam_assemble_line() of Linux-PAM 1.5.2, _pam_line_assemble()
    of 1.7.0, read 2026-11-26. So does an empty line for 1.7.0; 1.5.2 passes over it behind a backslash.
    """
    whole, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if whole else number
        content, comment, _ = line.partition("#")
        content = content.rstrip(" \t")
        if content.endswith("\\") and not comment:
            whole += f"{content[:-1]} "
            continue
        yield first, whole + content
        whole = ""
    if whole:
        yield first, whole


def without_brackets(word: str) -> str:
    r"""Return an argument as its module gets it, with ] for \]: _pam_tokenize() of Linux-PAM 1.7.0."""
    match = _BRACKETS.fullmatch(word)
    return match[1].replace("\\]", "]") if match else word


INCLUDES = ("include", "substack")


def services() -> dict[str, Path]:
    """Return the files of all services, by name, and those that they include from there."""
    found = {}
    for folder in (VENDOR, STACKS):
        entries = folder.iterdir() if folder.is_dir() else []
        found.update({path.name: path for path in entries if not COPY.search(path.name) and path.is_file()})
    return found


def stacks() -> list[PamLine]:
    """Return the lines of all services, those of a file that several include once. Raises UnreadableError."""
    left = sorted(services().values())
    seen = set()
    found: list[PamLine] = []
    while left:
        path = left.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MOST_FILES:
            raise UnreadableError(f"{STACKS}: expected at most {MOST_FILES} files")
        own = [*lines(path)]
        found += own
        # What is included by its name alone is a file of these folders.
        left += [Path(line.module) for line in own if line.control in INCLUDES and "/" in line.module]
    return found


class Argument(NamedTuple):
    """The argument of a module that wins over a keyword of a file."""

    module: str
    kind: str
    name: str
    #: The argument that names another file in the place of the usual one.
    other_file: str = ""

    def of(self, line: PamLine) -> str | None:
        """The value that a line has of it, None for none."""
        if self.name == "hash":
            return ([None, *(word for word in line.arguments if word in HASHES)])[-1]
        return line.value(self.name)

    def lines(self) -> list[PamLine]:
        """The lines that it may stand in."""
        return [line for line in stacks() if (line.kind, line.module) == (self.kind, self.module)]

    def left_to_file(self) -> bool:
        """Whether a line has the module, and leaves the value to the usual file."""
        return any(self.of(line) is None and line.value(self.other_file) is None for line in self.lines())


# pam_faillock(8): "The options specified on the module command line override the values from the
# configuration file"; conf= names another file. pam_pwquality(8): "The module arguments override the settings
# in the configuration file". pam_umask(8): GECOS, argument, UMASK of login.defs. pam_unix(8), support.c:
# ENCRYPT_METHOD and YESCRYPT_COST_FACTOR of login.defs, then the arguments. Linux-PAM 1.5.2 and 1.7.0,
# libpwquality 1.4.5, read 2026-11-26.
#: The name of the file, or of our drop-in's folder -> keyword -> argument.
ARGUMENTS = {
    "faillock.conf": {
        name: Argument("pam_faillock.so", "auth", name, "conf")
        for name in ("deny", "unlock_time", "fail_interval")
    },
    "pwquality.conf.d": {
        name: Argument("pam_pwquality.so", "password", name)
        for name in ("minlen", "difok", "maxrepeat", "maxsequence", "dictcheck", "enforcing")
    },
    "login.defs": {
        "UMASK": Argument("pam_umask.so", "session", "umask"),
        "ENCRYPT_METHOD": Argument("pam_unix.so", "password", "hash"),
        "YESCRYPT_COST_FACTOR": Argument("pam_unix.so", "password", "rounds"),
    },
}


def argument_of(path: Path, keyword: str) -> Argument | None:
    """Return the argument that wins over a keyword of a file, None where there is none."""
    found = ARGUMENTS.get(path.name) or ARGUMENTS.get(path.parent.name) or {}
    return found.get(keyword)


class Verdict(NamedTuple):
    """What lines of PAM make of a keyword: clauses on what is weaker than wanted, and on what is stricter."""

    weaker: list[str]
    stricter: list[str]


def judged(argument: Argument, keyword: str, order: str, wanted: str) -> Verdict:
    """Compare the lines that have an argument of their own, and so do not go by the file.

    Raises UnreadableError.
    """
    found = Verdict([], [])
    for place, value in overriding(argument, keyword, order):
        if not as_strict(order, value, wanted):
            found.weaker.append(f"{place} has {argument.module} take {value} for {keyword}, not {wanted}")
        elif stricter(order, value, wanted):
            found.stricter.append(f"{keyword} {value} ({place}), which is stricter than {wanted}")
    return found


def overriding(argument: Argument, keyword: str, order: str) -> Iterator[tuple[str, str]]:
    """Yield place and value of what comes before the file of a keyword."""
    for line in argument.lines():
        value, other = argument.of(line), line.value(argument.other_file)
        if value is None and other is not None:
            said = [text for name, text in keywords(text_of(Path(other))) if name == keyword]
            value = (said or implicit(order) or [""])[-1]
            yield f"{line.place} ({argument.other_file}={other})", value
        elif value is not None:
            yield line.place, value.upper() if argument.name == "hash" else value
    if argument.name == "umask":
        yield from masks_of_accounts()


def keywords(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keywords and values of a file as faillock.conf is one."""
    for line in text.split("\n"):
        match = re.match(r"\s*([^\s=]+)[\s=]*(.*?)\s*$", line.partition("#")[0])
        if match:
            yield match[1], match[2]


def masks_of_accounts() -> Iterator[tuple[str, str]]:
    """Yield the masks that accounts have in their GECOS field, which come before all others: pam_umask(8)."""
    for number, line in enumerate(text_of(ACCOUNTS, MOST_BYTES).split("\n"), 1):
        fields = line.split(":")
        for entry in fields[4].split(",") if len(fields) > 5 else []:
            if entry.lower().startswith("umask="):
                yield f"{ACCOUNTS}:{number} ({fields[0]})", entry[len("umask=") :]


def before(stack: str, argument: Argument, order: str, value: str) -> str:
    """Return the line of a service that sets a stricter value before it includes a stack; "" for none.

    A line without an argument at the end of the stack would put the value of the file in its place.
    """
    for path in sorted(services().values()):
        own = [*lines(path)]
        at = [one.number for one in own if one.control in INCLUDES and one.module == stack]
        for line in own:
            mine = argument.of(line) if (line.kind, line.module) == (argument.kind, argument.module) else None
            if mine is not None and at and line.number < at[-1] and not as_strict(order, value, mine):
                return f"{line.place} sets {argument.name}={mine}"
    return ""


def limits_elsewhere() -> list[str]:
    """Return clauses on lines that have pam_limits read another file, and so no drop-in: pam_limits(8)."""
    limits = [line for line in stacks() if (line.kind, line.module) == ("session", "pam_limits.so")]
    return [
        f"{one.place} has pam_limits.so read {file} alone" for one in limits if (file := one.value("conf"))
    ]
