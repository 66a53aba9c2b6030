"""What the lines of PAM's stacks say: an argument of a module wins over the file that it reads as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ansible.module_utils.temper.files import MOST_BYTES
from ansible.module_utils.temper.settings.site_lines import MOST_FILES, UnreadableError, text_of
from ansible.module_utils.temper.settings.strictness import ABSENT, as_strict, implicit, stricter

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
        """Return the value of an argument, empty of a flag; the last one counts."""
        found = [
            rest for word, _, rest in (one.partition("=") for one in self.arguments) if word.lower() == name
        ]
        return found[-1] if found else None

    @property
    def actions(self) -> Mapping[str, str]:
        """What PAM does where the module returns a value, and where it returns any other (`default`)."""
        found = CONTROLS.get(self.control) or dict(_ACTION.findall(self.control))
        return {"default": "bad", **found}

    @property
    def binds(self) -> bool:
        """Whether a login fails where the module refuses: pam.d(5)."""
        actions = self.actions
        return all(actions.get(name, actions["default"]) in ("bad", "die") for name in REFUSALS)

    @property
    def short(self) -> str:
        """Control and module, for people."""
        return f"{self.control} {self.module}"


#: What modules that judge a login or a password return where they refuse.
REFUSALS = ("auth_err", "perm_denied", "maxtries", "authtok_err", "acct_expired")
#: The words for actions in pam.d(5). Without a default it is `bad`: _pam_parse_conf_file() of Linux-PAM.
_GOOD = {"success": "ok", "new_authtok_reqd": "ok"}
CONTROLS: Mapping[str, Mapping[str, str]] = {
    "required": {**_GOOD, "ignore": "ignore"},
    "requisite": {**_GOOD, "ignore": "ignore", "default": "die"},
    "optional": {**_GOOD, "default": "ignore"},
    "sufficient": {"success": "done", "new_authtok_reqd": "done", "default": "ignore"},
}


def lines(path: Path) -> Sequence[PamLine]:
    """Return the lines of one file, read anew where it has changed. Raises UnreadableError."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return _lines(path, status.st_mtime_ns, status.st_size, status.st_ino)


@cache
def _lines(path: Path, *_stamp: int) -> Sequence[PamLine]:
    return (*stack_lines(text_of(path), str(path)),)


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
        own = lines(path)
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
        """Return the value that a line has of it, None for none."""
        method = ([None, *(word for word in line.arguments if word in HASHES)])[-1]
        if self.name == "hash":
            return method
        value = line.value(self.name)
        if self.name == "rounds" and value is not None:
            if method not in (None, "yescrypt"):
                return None  # they are that method's: 65536 of sha512 cost less than 5 of yescrypt
            # support.c of pam_unix: beyond 11, Linux-PAM 1.5.2 takes 5, and 1.7.0 takes 11.
            return "5" if re.fullmatch(r"0*(?:1[2-9]|[2-9]\d|[1-9]\d{2,})", value) else value
        return value

    def lines(self) -> list[PamLine]:
        """Return the lines that it may stand in."""
        return [line for line in stacks() if (line.kind, line.module) == (self.kind, self.module)]

    def left_to_file(self) -> bool:
        """Return whether a line has the module, and leaves the value to the usual file."""
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
        for name in (
            "minlen",
            "minclass",
            "difok",
            "maxrepeat",
            "maxclassrepeat",
            "retry",
            "maxsequence",
            "dictcheck",
            "enforcing",
            "dcredit",
            "ucredit",
            "lcredit",
            "ocredit",
            "local_users_only",
        )
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
        if order == ABSENT:
            found.weaker.append(f"{place} has {argument.module} take {keyword}, expected none")
        elif not as_strict(order, value, wanted):
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
        own = lines(path)
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


# ---------------------------------------------------------------- ways through a stack

#: Modules that compare an account's password, or store a new one.
PASSWORDS = ("pam_unix.so", "pam_sss.so", "pam_ldap.so", "pam_krb5.so", "pam_winbind.so")
#: What they return for a wrong one.
WRONG = ("auth_err", "maxtries")
#: PAM_SUBSTACK_MAX_LEVEL of Linux-PAM; a service of more lines than this is nobody's.
MOST_DEPTH, MOST_LINES = 16, 500
#: Lines in their order; a substack is one item.
Stack = list["PamLine | Stack"]


class Way(NamedTuple):
    """How PAM has come to a line without asking the module that is to judge each password."""

    #: Whether a login succeeds if nothing else is said; None before a module has decided.
    good: bool | None = None
    #: Whether a password was right; None before one was compared.
    right: bool | None = None
    #: The line that led past the module.
    past: str = ""


def stack_of(path: Path, kind: str, depth: int = 0) -> Stack:
    """Return what PAM goes through for a service: pam.d(5). Raises UnreadableError."""
    found: Stack = []
    for line in lines(path):
        if line.control in INCLUDES and line.kind in ("", kind):
            name = Path(line.module)
            file = name if name.is_absolute() else STACKS / name
            file = file if file.exists() else VENDOR / name
            inner = stack_of(file, kind, depth + 1) if depth < MOST_DEPTH else []
            found += [inner] if line.control == "substack" else inner
        elif line.kind == kind and line.control not in INCLUDES:
            found.append(line)
        if len(found) > MOST_LINES:
            raise UnreadableError(f"{path}: expected to include at most {MOST_LINES} lines")
    return found


def flat(stack: Stack) -> Iterator[PamLine]:
    """Yield all lines of a stack."""
    for item in stack:
        if isinstance(item, PamLine):
            yield item
        else:
            yield from flat(item)


def ways(stack: Stack, judges: Callable[[PamLine], bool], begin: Iterable[Way]) -> set[Way]:
    """Return how PAM can leave a stack past the lines that judge: _pam_dispatch_aux() of Linux-PAM 1.7.0.

    Of a module nobody knows what it returns, so each value is tried.
    """
    end = len(stack)
    judging = [any(judges(line) for line in flat([item])) for item in stack]
    at: list[set[Way]] = [set(begin), *(set() for _ in stack)]
    for number, item in enumerate(stack):
        if not isinstance(item, PamLine):
            at[number + 1] |= ways(item, judges, at[number])
        elif not judging[number]:
            for way in at[number]:
                for value, action in returned(item):
                    good, steps = decided(way.good, value, action)
                    to = end if steps is None else number + 1 + steps
                    if to > end:  # "bad jump in stack"
                        good, to = False, end
                    past = way.past
                    if not past and any(judging[number + 1 : to]):
                        past = f"{item.place} ({item.short})"
                    at[to].add(Way(good, compared(item, way.right, value), past))
    return at[end]


def returned(line: PamLine) -> Iterator[tuple[str, str]]:
    """Yield the values that a module may return, and what PAM does then."""
    actions = line.actions
    values = {"success", "ignore", *WRONG, *actions}
    if line.module == "pam_permit.so":
        values = {"success"}
    elif line.module == "pam_deny.so":
        values = {"auth_err"}
    elif line.module == "pam_faillock.so":  # of an account that is not closed
        values = {"success", "ignore"}
    for value in values:
        yield value, actions.get(value, actions["default"])


def decided(good: bool | None, value: str, action: str) -> tuple[bool | None, int | None]:
    """Return what PAM holds of a login after an action, and how many lines it skips; None for all."""
    if action.isdecimal():
        return good, int(action[:5])
    if action in ("ok", "done"):
        good = value == "success" if good is not False else False
        return good, None if action == "done" and good else 0
    if action in ("bad", "die"):
        return False, None if action == "die" else 0
    return (None if action == "reset" else good), 0


def compared(line: PamLine, right: bool | None, value: str) -> bool | None:
    """Return whether a password was right, after a module has returned a value."""
    if line.module not in PASSWORDS:
        return right
    return True if value == "success" else False if value in WRONG and right is None else right


def unjudged(stack: str, kind: str, words: set[str], counted: bool, on: bool) -> list[str]:
    """Return clauses on ways of services on which a password gets past a line with these words.

    Where it is `counted`, what must not get past is a wrong password, else one that lets in. While the
    profile is not `on`, services that include the stack are left out: they get the line with it.

    Raises UnreadableError.
    """

    def judges(line: PamLine) -> bool:
        has = {line.module, *line.arguments}
        # Behind a right password, authsucc asks the same as preauth.
        return words <= has or ("authsucc" in has and words <= {*has, "preauth"})

    wanted = " ".join(sorted(words, key=lambda word: not word.endswith(".so")))
    files = services()
    included = {line.module for path in files.values() for line in lines(path) if line.control in INCLUDES}
    found = []
    for name in sorted(files.keys() - included):
        whole = stack_of(files[name], kind)
        places = {line.path for line in flat(whole)}
        if not on and str(STACKS / stack) in places:
            continue
        for way in ways(whole, judges, {Way()}):
            if way.right is not (not counted) or bool(way.good) is counted:
                continue
            first = next(line for line in flat(whole) if line.module in PASSWORDS)
            led = way.past or f"{first.place} ({first.short}), in a stack without that line,"
            found.append(f"{led} leads past {wanted}, expected it at each {'wrong ' * counted}password")
    return [*dict.fromkeys(found)]
