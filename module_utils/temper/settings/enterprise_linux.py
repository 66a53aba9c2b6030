"""What only Enterprise Linux has: features of authselect."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.temper.process import CommandError, run, which
from ansible.module_utils.temper.settings.base import Difference, Setting, State

# The selected profile, then a feature in each line: authselect-profiles(5), lib/files/config.c of authselect.
AUTHSELECT = Path("/etc/authselect/authselect.conf")


class Authselect(Setting):
    """A feature of the profile that authselect keeps PAM's stacks by: no line of theirs is edited."""

    def __init__(self, feature: str) -> None:
        self.key = f"authselect:{feature}"
        self.spec = {"feature": feature}
        self.feature = feature

    def lines(self) -> list[str]:
        """Return the profile and its features; none where authselect keeps nothing."""
        text = AUTHSELECT.read_text(encoding="utf-8", errors="replace") if AUTHSELECT.is_file() else ""
        return text.split()

    def obstacle(self) -> str | None:
        """Return why authselect would refuse, or undo what somebody has written."""
        if not which("authselect") or self.settled():
            return None  # it is installed first
        if not self.lines():
            return (
                f"{AUTHSELECT} names no profile, so PAM's stacks are kept by hand: run `authselect select` "
                "with the profile that fits on the node"
            )
        profile = self.lines()[0]
        try:
            run(["authselect", "check"])
            known = run(["authselect", "list-features", profile]).split()
        except CommandError as error:
            return f"{error} Mend that with `authselect select` on the node"
        if self.feature not in known:
            return f"authselect's profile {profile} has no feature {self.feature}: add it"
        return None

    def read(self) -> State:
        """Return whether it is on."""
        return self.feature in self.lines()[1:]

    def settled(self) -> bool:
        """Return whether it is on, as wanted."""
        return bool(self.read())

    def apply(self) -> None:
        """Let authselect write the stacks."""
        run(["authselect", "enable-feature", self.feature])

    def restore(self, state: State) -> None:
        """Let authselect write the stacks without it."""
        if not state and self.read():
            run(["authselect", "disable-feature", self.feature])

    def change(self) -> list[Difference]:
        """Return which feature."""
        return [Difference(self.key, "", f"{self.feature} in {' '.join(self.lines())}")]
