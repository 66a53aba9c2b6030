"""Who may sign: a file in the form of ssh-keygen's ALLOWED SIGNERS, of which this reads what the role writes.

`ada namespaces="git",valid-after="20260101Z",valid-before="20270331Z" ssh-ed25519 AAAA...`

git has a signature's validity judged at the time that the commit itself claims, which whoever holds an
expired key can choose. So a key outside of its time is left out before git sees the keyring.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: git signs in this namespace: a signature that somebody made of a file for another use is none of a commit.
NAMESPACE = "git"
LINE = re.compile(
    r'(?P<name>[\w.@+-]+) namespaces="git"(?:,valid-after="(?P<after>\d{8})Z")?'
    r'(?:,valid-before="(?P<before>\d{8})Z")? (?P<key>[a-z][\w@.-]+ [A-Za-z0-9+/]+=*)'
)


class KeyringError(Exception):
    """Nobody can sign with this keyring; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Signer:
    """A key, its owner, and from when until when (UTC) it counts."""

    name: str
    key: str
    after: datetime | None = None
    before: datetime | None = None

    def valid(self, now: datetime) -> bool:
        """Whether the key counts now."""
        return (self.after is None or now >= self.after) and (self.before is None or now < self.before)


def load(path: Path) -> tuple[Signer, ...]:
    """All signers of a keyring.

    Raises:
        KeyringError: it cannot be read, has a line of another form, or names nobody.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyringError(f"The keyring {path} cannot be read: {error}.") from error
    signers = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        if not found:
            raise KeyringError(
                f'{path}, line {number}: expected NAME namespaces="git"[,valid-after=...][,valid-before=...] '
                "KEY, as the role pull writes it. Run playbooks/tune.yml for this node again."
            )
        try:
            signers.append(Signer(found["name"], found["key"], day(found["after"]), day(found["before"])))
        except ValueError as error:
            raise KeyringError(f"{path}, line {number}: {error}.") from error
    if not signers:
        raise KeyringError(f"The keyring {path} has no key, so nothing can be trusted: set pull_signers.")
    return tuple(signers)


def day(text: str | None) -> datetime | None:
    """The beginning of a day in UTC."""
    if not text:
        return None
    return datetime.strptime(text, "%Y%m%d").replace(tzinfo=timezone.utc)


def allowed_signers(signers: tuple[Signer, ...]) -> str:
    """The file that ssh-keygen is given, without times: who is in it, counts."""
    return "".join(f'{signer.name} namespaces="{NAMESPACE}" {signer.key}\n' for signer in signers)
