"""Settings that are files: whole ones, keywords in files of others, permissions, profiles of PAM."""

from __future__ import annotations

import base64
import contextlib
import grp
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.files import File, candidate, put_back, replace_file, saved
from ansible.module_utils.temper.process import run
from ansible.module_utils.temper.settings import pam_lines
from ansible.module_utils.temper.settings.base import (
    Difference,
    Fault,
    Setting,
    SettingError,
    State,
    kept_value,
    word_on_faults,
)
from ansible.module_utils.temper.settings.site_lines import UnreadableError, text_of
from ansible.module_utils.temper.settings.strictness import implicit, stricter, strictest

FAILLOCK = Path("/etc/security/faillock.conf")
LOGIN_DEFS = Path("/etc/login.defs")
CLOSES_ROOT = re.compile(r"\s*even_deny_root\s*(#|$)")
LOCAL_ONLY = "local_users_only"
#: The stacks through which passwords go.
PASSWORDS = {"common-auth": "auth", "common-password": "password"}


def link_in_place(path: Path) -> str | None:
    """Return why a link is not replaced by a file: a site may keep what it leads to in a tree of its own."""
    if not path.is_symlink():
        return None
    return f"{path}: expected a file, found a link to {path.readlink()}: replace it by what it leads to"


class WholeFile(Setting):
    """A file that is Temper's own; `content` None: it must not exist.

    `validate` is a command that must accept it, with %s for its path. The text of a `secret` one is neither
    shown nor recorded.
    """

    def __init__(
        self,
        path: str,
        content: str | None,
        mode: str = "0644",
        validate: Sequence[str] = (),
        encoding: str = "text",
        secret: bool = False,
        directories: Sequence[str] | None = None,
    ) -> None:
        self.key = f"file:{path}"
        self.path = Path(path)
        # Those that it brings along, the deepest first.
        missing = [str(parent) for parent in self.path.parents if not parent.exists()]
        self.directories = missing if directories is None else directories
        self.spec = {"path": path, "content": "", "directories": self.directories}
        self.data = to_der(content) if content is not None and encoding == "der" else content
        self.mode = mode
        self.secret = secret
        self.validate = validate

    def recall(self, originals: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the record has of it, and the directories that other files have brought along."""
        super().recall(originals)
        brought = {*self.directories}.union(
            *(one["spec"].get("directories", ()) for one in originals.values())
        )
        self.directories = [str(parent) for parent in self.path.parents if str(parent) in brought]

    def as_made(self) -> dict[str, Any]:
        """Return `spec` with all directories that runs have brought along."""
        made = {*self.directories}.union(*self.recorded("directories"))
        return {**self.spec, "directories": sorted(made, key=len, reverse=True)}

    @cached_property
    def file(self) -> File:
        """As it shall be."""
        return File(str(self.path), self.data, self.mode, public=not self.secret)

    def obstacle(self) -> str | None:
        """Return what is in its place, if it is no file."""
        if self.path.is_symlink():
            return link_in_place(self.path) if self.file.content is not None else None
        if self.path.exists() and not self.path.is_file():
            return f"{self.path}: expected a file, found something else; move it away."
        return None

    def read(self) -> State:
        """Content and owner, None where there is no file."""
        if obstacle := WholeFile.obstacle(self):
            raise SettingError(obstacle)
        return saved(self.path)

    def settled(self) -> bool:
        """Return whether bytes, mode and owner are the same; or none is there, where there must be none."""
        return not self.file.differs()

    def apply(self) -> None:
        """Write it, if its own program accepts it; or take it away."""
        if self.validate and self.file.content is not None:
            with candidate(self.file.data) as path:
                run([word.replace("%s", path) for word in self.validate])
        self.file.write()

    def restore(self, state: State) -> None:
        """Bring the former file back, or take ours away."""
        put_back(self.path, state)
        if state is None:
            for directory in self.directories:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    Path(directory).rmdir()

    def rewritten(self, state: State) -> bool:
        """Return whether a state has a text of the site in the place of ours, where the record has that."""
        made = self.recorded("content")
        texts = [base64.b64encode(text.encode()).decode() for text in made]
        return bool(state and made and all(made)) and state.get("content") not in texts

    def left_alone(self) -> str:
        """Return that the site has written it since."""
        plain = self.path.is_file() and not self.path.is_symlink()
        rewritten = plain and self.rewritten(saved(self.path))
        return f"{self.path} (the site has written it since)" if rewritten else ""

    def change(self) -> list[Difference]:
        """Return the whole file, unless not everybody may read it."""
        return [Difference(self.key, *self.file.before_and_after())]


class OrderedFile(WholeFile):
    """A file of Temper's whose values have `orders`, by their keys: what of the site is stricter stays."""

    def __init__(self, path: str, content: str, orders: Mapping[str, str], **details: Any) -> None:
        super().__init__(path, content, **details)
        self.content = content
        self.orders = orders

    @property
    def unreadable(self) -> str:
        """Why the site's own lines are not known; empty where they are."""
        return ""

    def obstacle(self) -> str | None:
        """Likewise: what is stricter there, or wins over ours, is not known."""
        return self.unreadable or super().obstacle()

    def settled(self) -> bool:
        """Return whether it says what it is to say beside the site's files."""
        return not self.unreadable and super().settled()

    def warnings(self) -> list[str]:
        """Return the site's lines that win and are weaker: the operator takes them out."""
        return word_on_faults(str(self.path), self.fault())


def to_der(certificate: str) -> bytes:
    """Return a certificate that is given as PEM in its binary form."""
    import ssl  # takes its time to load, and few nodes have such a file

    return ssl.PEM_cert_to_DER_cert(certificate.strip())


class Keyword(Setting):
    """One keyword of a configuration file that belongs to the distribution; the rest stays as it is."""

    of_others = True
    why_absent = "there is no such file"

    def __init__(self, path: str, keyword: str, value: str) -> None:
        self.key = f"keyword:{path}:{keyword}"
        self.spec = {"path": path, "keyword": keyword, "value": ""}
        self.path = Path(path)
        self.keyword = keyword
        self.wanted = value
        self.pattern = re.compile(rf"^\s*{re.escape(keyword)}(\s*=\s*|\s+)(.*?)\s*$")
        #: What wins over it on a line of PAM.
        self.argument = pam_lines.argument_of(self.path, keyword)

    def as_made(self) -> dict[str, Any]:
        """Return `spec` with the value as Temper makes it."""
        return {**self.spec, "value": self.value}

    @cached_property
    def value(self) -> str:
        """The wanted value, or one that is as strict as the site's, too."""
        lines = self.read() or []
        found = self.of_site(lines)
        if self.original and lines and not found:
            found = self.values(self.original["state"])
        elif self.in_use and not (found or self.original):
            found = implicit(self.order)
        result = self.wanted
        programs = {}
        for value in found:
            word = self._word(value)
            if word.lower() == "exec":  # of auditd, which does not start without the program behind it
                programs[word] = value
            result = strictest(self.order, word, result)
        return programs.get(result, result)

    @cached_property
    def in_use(self) -> bool:
        """Whether a module of PAM goes by the file; what other programs read is always in use."""
        return self.argument is None or self.argument.left_to_file()

    @cached_property
    def by_pam(self) -> pam_lines.Verdict:
        """What lines of PAM take in its place."""
        if self.argument is None:
            return pam_lines.Verdict([], [])
        return pam_lines.judged(self.argument, self.keyword, self.order, self.wanted)

    @cached_property
    def unreadable(self) -> str:
        """Why those lines are not known; empty where they are."""
        try:
            _ = self.in_use, self.by_pam
        except UnreadableError as error:
            return str(error)
        return ""

    def obstacle(self) -> str | None:
        """Likewise: what is stricter there is not known. Or whose the file is: a site's link would go."""
        return self.unreadable or link_in_place(self.path)

    @property
    def line(self) -> str:
        """The line that sets it."""
        # login.defs has blanks between keyword and value, systemd and SELinux an equals sign alone.
        between = {"login.defs": " ", "journald.conf": "=", "config": "="}.get(self.path.name, " = ")
        return f"{self.keyword}{between}{self.value}"

    def kept(self) -> list[str]:
        """Return the value, and what is stricter on lines of PAM."""
        if self.read() is None:
            return []
        name = f"{self.keyword} in {self.path}"
        own = stricter(self.order, self.value.partition(" ")[0], self.wanted)
        return [*([kept_value(name, self.value, self.wanted)] if own else []), *self.by_pam.stricter]

    def fault(self) -> Fault | None:
        """Lines of PAM that win and are weaker."""
        return Fault("; ".join(self.by_pam.weaker)) if self.by_pam.weaker else None

    def warnings(self) -> list[str]:
        """Likewise: the operator takes them out."""
        return word_on_faults(f"{self.keyword} {self.value} in {self.path}", self.fault())

    def read(self) -> State:
        """Return the lines that set the keyword now, None where there is no file."""
        if not self.path.is_file():
            return None
        return [line for line in self._lines() if self.pattern.match(line)]

    def settled(self) -> bool:
        """Return whether exactly one line sets it, to the wanted value. A file that is not there needs none.

        Nor does one whose program takes that value without a line.
        """
        lines = self.read()
        if lines is None:
            return True
        if self.unreadable:
            return False
        by_default = not (lines or self.original) and self.in_use and implicit(self.order) == [self.value]
        return by_default or self.values(lines) == [self.value]

    def apply(self) -> None:
        """Put one line where the first one was, else at the end; of a file that is still there."""
        if self.read() is not None:
            self._replace([self.line])

    def restore(self, state: State) -> None:
        """Put the former lines back."""
        if state is not None:
            self._replace(state)

    def change(self) -> list[Difference]:
        """Return the lines."""
        return [Difference(self.key, "\n".join(self.read() or []), self.line)]

    def values(self, state: State) -> list[str]:
        """Return the values in the lines, with what follows them."""
        return [match[2] for line in state or () if (match := self.pattern.match(line))]

    def values_made(self) -> set[str]:
        """Return the values of our line. Records of earlier versions have none: any counts as ours."""
        made = {*self.recorded("value")}
        return set() if "" in made else made

    def _word(self, value: str) -> str:
        # Programs stop at a blank, or at a quotation mark: a comment may follow.
        return value if self.order == "contains" else (value.split() or [""])[0].strip('"')

    def _lines(self) -> list[str]:
        # Only what ends a line for its readers, too; bytes that are no UTF-8 stay as they are.
        return self.path.read_bytes().decode(errors="surrogateescape").removesuffix("\n").split("\n")

    def _replace(self, new: list[str]) -> None:
        lines: list[str] = []
        placed = False
        for line in self._lines():
            if not self.pattern.match(line):
                lines.append(line)
            elif not placed:
                lines += new
                placed = True
        if not placed:
            lines += new
        status = self.path.stat()
        content = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        replace_file(self.path, content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


class Access(Setting):
    """Owner root, and no permission beyond `mode`; what is stricter already stays so."""

    of_others = True
    in_steps = True

    def __init__(self, path: str, mode: str, groups: Sequence[str] = ("root",)) -> None:
        self.key = f"access:{path}"
        self.spec = {"path": path, "mode": mode}
        self.path = Path(path)
        self.mode = int(mode, 8)
        self.groups = groups

    def as_made(self) -> dict[str, Any]:
        """Return `spec` with mode and group as Temper makes them."""
        if self.read() is None:
            return self.spec
        mode, gid = self._reduced()
        return {**self.spec, "mode": f"{mode:04o}", "groups": [group_name(gid)]}

    def values(self, state: State) -> list[str]:
        """Return mode and owner as one value."""
        if state is None:
            return []
        owner = "root" if state["uid"] == 0 else state["uid"]
        return [f"{state['mode']:04o} {owner}:{group_name(state['gid'])}"]

    def values_made(self) -> set[str]:
        """Return mode and owner. Records of earlier versions have no group: any counts as ours."""
        specs = self.made_as()
        known = all("groups" in spec for spec in specs)
        return {f"{spec['mode']} root:{','.join(spec['groups'])}" for spec in specs} if known else set()

    def read(self) -> State:
        """Mode and owner, None where there is nothing (or a link, whose target is another's business)."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(status.st_mode):
            return None
        return {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}

    def settled(self) -> bool:
        """Return whether nobody has more than they should."""
        state = self.read()
        if state is None:
            return True
        return bool(not state["mode"] & ~self.mode and state["uid"] == 0 and state["gid"] in self._gids())

    def half_made(self) -> bool:
        """Return whether it has the former mode or one of ours; any other is the site's.

        A change of the owner takes the bits of setuid and setgid away.
        """
        state, before = self.read(), self.original and self.original["state"]
        known = [*(int(mode, 8) for mode in self.recorded("mode")), *([before["mode"]] if before else [])]
        return state is None or state["mode"] & 0o1777 in (mode & 0o1777 for mode in known)

    def apply(self) -> None:
        """Take away what is too much, where it is still there: a run may have taken back a file of ours."""
        if self.read() is None:
            return
        mode, gid = self._reduced()
        os.chown(self.path, 0, gid, follow_symlinks=False)
        self.path.chmod(mode)

    def restore(self, state: State) -> None:
        """Give it back."""
        if state is not None and self.read() is not None:
            os.chown(self.path, state["uid"], state["gid"], follow_symlinks=False)
            self.path.chmod(state["mode"])

    def change(self) -> list[Difference]:
        """Return the modes and owners."""
        mode, gid = self._reduced()
        after = {"mode": mode, "uid": 0, "gid": gid}
        return [Difference(self.key, *self.values(self.read()), *self.values(after))]

    def _reduced(self) -> tuple[int, int]:
        """Return mode and group without what is too much."""
        state, gids = self.read(), self._gids()
        return state["mode"] & self.mode, state["gid"] if state["gid"] in gids else gids[0]

    def _gids(self) -> list[int]:
        known = []
        for group in self.groups:
            try:
                known.append(grp.getgrnam(group).gr_gid)
            except KeyError:
                continue
        # That of root is as strict as any.
        return [*known, 0]


def group_name(gid: int) -> str:
    """Return a group's name, or its number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def accesses(path: str, mode: str, groups: Sequence[str] = ("root",)) -> Iterator[Access]:
    """Yield the settings for all paths that match a shell pattern."""
    if not any(sign in path for sign in "*?["):
        yield Access(path, mode, groups)
        return
    for found in sorted(Path("/").glob(path.lstrip("/"))):
        yield Access(str(found), mode, groups)


class PamProfile(Setting):
    """A profile of pam-auth-update (its file is another setting), switched on.

    It is on when one line of the stack has all the words. `requisite` is no word of it: with that, a login
    has to fail where the module refuses, by whatever control of pam.d(5).
    """

    def __init__(self, name: str, stack: str, words: Sequence[str]) -> None:
        self.key = f"pam:{name}"
        self.spec = {"name": name, "stack": stack, "words": list(words)}
        self.name = name
        self.stack = stack
        self.words = {*words} - {"requisite"}
        self.binding = "requisite" in words

    @property
    def unreadable(self) -> str:
        """Why the stack is not known; empty where it is."""
        try:
            self.read()
        except UnreadableError as error:
            return str(error)
        return ""

    def obstacle(self) -> str | None:
        """Return why it cannot be switched on, or that nobody knows."""
        try:
            return self.unreadable or self.danger()
        except UnreadableError as error:
            return str(error)

    def danger(self) -> str | None:
        """Return whether wrong passwords would close root, too, or ours would loosen what a service has.

        Raises UnreadableError.
        """
        if "pam_faillock.so" in self.words and FAILLOCK.is_file():
            text = FAILLOCK.read_text(encoding="utf-8", errors="replace")
            for number, line in enumerate(text.split("\n"), 1):
                if CLOSES_ROOT.match(line):
                    return (
                        f"{FAILLOCK}:{number} has even_deny_root, and with {self.name} anybody could close "
                        "root by wrong passwords: take it out"
                    )
        if "pam_umask.so" in self.words and (line := self.loosened()):
            return (
                f"{line} before it includes {self.stack}, where {self.name} would set the mask of login.defs "
                "behind it: move that line to the end"
            )
        return None

    def loosened(self) -> str:
        """Return the line of a service whose mask ours would take away."""
        mask = Keyword(str(LOGIN_DEFS), "UMASK", "000")
        mask.order = "umask"
        argument = mask.argument
        return pam_lines.before(self.stack, argument, mask.order, mask.value) if argument else ""

    def fault(self) -> Fault | None:
        """Ways past it: jumps and services without the stack; and accounts that faillock leaves out."""
        if self.stack not in PASSWORDS:
            return None
        counted = "authfail" in self.words
        found = pam_lines.unjudged(self.stack, PASSWORDS[self.stack], self.words, counted, bool(self.read()))
        if counted:
            found += accounts_left_out()
        return Fault("; ".join(found)) if found else None

    def warnings(self) -> list[str]:
        """Likewise: the operator mends them. What cannot be read is an obstacle."""
        try:
            return word_on_faults(f"{self.name} in {pam_lines.STACKS / self.stack}", self.fault())
        except UnreadableError:
            return []

    def lines(self) -> Sequence[pam_lines.PamLine]:
        """Return the lines of the stack that have its words, whatever their control.

        Raises UnreadableError.
        """
        found = pam_lines.lines(pam_lines.STACKS / self.stack)
        return [line for line in found if self.words <= {line.module, *line.arguments}]

    def read(self) -> State:
        """Return whether its module is in the stack."""
        return any(line.binds or not self.binding for line in self.lines())

    def settled(self) -> bool:
        """Return whether it is there."""
        return not self.unreadable and bool(self.read())

    def apply(self) -> None:
        """Let Debian's own program put it in."""
        run(["pam-auth-update", "--package", "--enable", self.name])
        if not self.read():
            raise SettingError(
                f"{pam_lines.STACKS / self.stack} was changed by hand, so pam-auth-update does not put "
                f"{self.name} into it. Run `pam-auth-update --force` on the node, or waive the control that "
                "asks for it."
            )

    def restore(self, state: State) -> None:
        """Let it take it out."""
        if not state and self.lines():  # whatever somebody has made of our control
            run(["pam-auth-update", "--package", "--remove", self.name])

    def change(self) -> list[Difference]:
        """Return which module."""
        return [Difference(self.key, "", f"{self.name} in {pam_lines.STACKS / self.stack}")]


def accounts_left_out() -> Iterator[str]:
    """Yield clauses on who has faillock count only accounts of /etc/passwd: faillock.conf(5).

    Raises UnreadableError.
    """
    for number, line in enumerate(text_of(FAILLOCK).split("\n"), 1):
        if LOCAL_ONLY in (name for name, _ in pam_lines.keywords(line)):
            yield f"{FAILLOCK}:{number} has {LOCAL_ONLY}, expected none"
    argument = pam_lines.Argument("pam_faillock.so", "auth", LOCAL_ONLY)
    for one in argument.lines():
        if argument.of(one) is not None:
            yield f"{one.place} has pam_faillock.so take {LOCAL_ONLY}, expected none"
