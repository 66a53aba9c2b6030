"""ufw and firewalld beside our table: seen, ended where the operator allows it, and brought back."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils import records
from ansible.module_utils.access.sshd import is_active
from ansible.module_utils.process import run, succeeds, which
from ansible.module_utils.settings.base import RefusedError

# Which one was ended here, until it is brought back.
ENDED = Path("/var/lib/temper/other-firewall.json")


@dataclass(frozen=True)
class OtherFirewall:
    """A program whose rules filter beside ours.

    `at_boot` says whether the next boot starts it, `by_hand` has the operator's commands that end it and
    bring it back.
    """

    name: str
    at_boot: bool
    by_hand: tuple[str, str]

    @property
    def end(self) -> list[list[str]]:
        """The commands that end it, now and at boot. None makes systemd read all units anew."""
        if self.name == "ufw":
            return [["ufw", "disable"]]
        return [
            ["systemctl", "--no-reload", "disable", "firewalld.service"],
            ["systemctl", "stop", "firewalld.service"],
        ]

    @property
    def back(self) -> list[list[str]]:
        """The commands that bring it back as it was."""
        if self.name == "ufw":
            return [["ufw", "--force", "enable"]]
        enable = [["systemctl", "--no-reload", "enable", "firewalld.service"]] if self.at_boot else []
        # An undo at boot runs before what firewalld waits for.
        return [*enable, ["systemctl", "--no-block", "start", "firewalld.service"]]


def in_shell(commands: list[list[str]]) -> str:
    """Commands without a character that a shell reads otherwise, as one line of it."""
    return " && ".join(" ".join(command) for command in commands)


def known(name: str, *, at_boot: bool) -> OtherFirewall:
    """One of the two by its name."""
    by_hand = {
        "ufw": ("ufw disable", "ufw enable"),
        "firewalld": ("systemctl disable --now firewalld", "systemctl enable --now firewalld"),
    }
    return OtherFirewall(name, at_boot, by_hand[name])


def other_firewall() -> OtherFirewall | None:
    """The other program that filters what comes in, by its rules in the kernel."""
    # ufw.service is active even where ufw is not.
    if which("ufw") and "Status: active" in run(["ufw", "status"]):
        return known("ufw", at_boot=True)
    if which("firewalld") and is_active("firewalld.service"):
        enabled = succeeds(["systemctl", "--quiet", "is-enabled", "firewalld.service"])
        return known("firewalld", at_boot=enabled)
    return None


def refuse(other: OtherFirewall) -> None:
    """Raise RefusedError: a packet has to pass its rules as well."""
    ends, returns = other.by_hand
    raise RefusedError(
        f"{other.name} filters here as well, and a packet has to pass both: what this firewall opens may "
        "stay closed; nothing was changed. Set firewall_disable_other: true, and the run ends "
        f"{other.name} once its own rules are loaded; or run `{ends}` on the node and this again "
        f"(`{returns}` brings it back); or keep {other.name} and set firewall_state: absent."
    )


def ended() -> OtherFirewall | None:
    """The one that was ended here, if any. Raises RecordError where nobody can tell which."""
    remedy = (
        "bring the firewall that Temper has ended here back yourself (`ufw enable`, or `systemctl enable "
        "--now firewalld`), remove the file, and run again"
    )
    _, data = records.load(ENDED, {"name": (str,), "at_boot": (bool,)}, remedy=remedy)
    if not os.path.lexists(ENDED):
        return None
    try:
        return known(data["name"], at_boot=data["at_boot"])
    except KeyError as error:
        raise records.damaged(ENDED, f"expected a firewall's name, found {error}", remedy) from error


def note_end(other: OtherFirewall) -> None:
    """Write down which one is about to be ended, unless another is written there already."""
    if not os.path.lexists(ENDED):
        records.store(ENDED, {"name": other.name, "at_boot": other.at_boot})


def end(other: OtherFirewall) -> None:
    """Have it filter no more, now and after a reboot."""
    note_end(other)
    for command in other.end:
        run(command)


def bring_back(other: OtherFirewall) -> None:
    """Have it filter again as it did, and forget that it was ended."""
    for command in other.back:
        run(command)
    with contextlib.suppress(FileNotFoundError):
        ENDED.unlink()
