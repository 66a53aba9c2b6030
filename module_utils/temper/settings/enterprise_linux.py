"""Settings that only Enterprise Linux has: features of authselect, the crypto policy, SELinux's mode."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ansible.module_utils.temper.files import SELINUX, put_back, saved
from ansible.module_utils.temper.process import CommandError, run, which
from ansible.module_utils.temper.settings.base import Difference, Fault, Setting, State, word_on_faults
from ansible.module_utils.temper.settings.files import Keyword

# The selected profile, then a feature in each line: authselect-profiles(5), lib/files/config.c of authselect.
AUTHSELECT = Path("/etc/authselect/authselect.conf")
POLICY = Path("/etc/crypto-policies/config")
SELINUX_CONFIG = "/etc/selinux/config"
UPDATE_POLICY = "update-crypto-policies"


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
                "with the profile that fits on the node, or waive the control"
            )
        profile = self.lines()[0]
        try:
            run(["authselect", "check"])
            known = run(["authselect", "list-features", profile]).split()
        except CommandError as error:
            return f"{error} Mend that with `authselect select` on the node, or waive the control"
        if self.feature not in known:
            return (
                f"authselect's profile {profile} has no feature {self.feature}: add it, or waive the control"
            )
        return None

    def read(self) -> State:
        """Return whether it is on."""
        return self.feature in self.lines()[1:]

    def settled(self) -> bool:
        """Likewise."""
        return bool(self.read())

    def apply(self) -> None:
        """Let authselect write the stacks."""
        run(["authselect", "enable-feature", self.feature])

    def restore(self, state: State) -> None:
        """Let it write them without."""
        if not state and self.read():
            run(["authselect", "disable-feature", self.feature])

    def change(self) -> list[Difference]:
        """Return which feature."""
        return [Difference(self.key, "", f"{self.feature} in {' '.join(self.lines())}")]


class CryptoPolicy(Setting):
    """A module (its file is another setting) behind the policy that the site has chosen, which stays."""

    def __init__(self, module: str) -> None:
        self.key = f"crypto_policy:{module}"
        self.spec = {"module": module}
        self.module = module

    @property
    def policy(self) -> str:
        """The chosen policy with its modules, such as DEFAULT:NO-SHA1: update-crypto-policies(8)."""
        text = POLICY.read_text(encoding="utf-8", errors="replace") if POLICY.is_file() else ""
        found = [line.partition("#")[0].strip() for line in text.split("\n")]
        return next(filter(None, found), "DEFAULT").upper()

    @property
    def others(self) -> str:
        """The policy without ours."""
        return ":".join(word for word in self.policy.split(":") if word != self.module)

    def fault(self) -> Fault | None:
        """Return a policy below it that takes what is weak."""
        if self.others.partition(":")[0] != "LEGACY":
            return None
        return Fault(f"{POLICY} has LEGACY, which takes what is weak; expected DEFAULT or a stricter one")

    def warnings(self) -> list[str]:
        """Likewise: the operator chooses it."""
        return word_on_faults(f"The crypto policy's module {self.module}", self.fault())

    def read(self) -> State:
        """Return the file that names the policy, None where there is none."""
        return saved(POLICY)

    def settled(self) -> bool:
        """Return whether ours is one of the modules."""
        return self.module in self.policy.split(":")[1:]

    def apply(self) -> None:
        """Put ours behind those that are there."""
        run([UPDATE_POLICY, "--set", f"{self.others}:{self.module}"])

    def restore(self, state: State) -> None:
        """Take ours out; the file is as it was, unless somebody has chosen another policy since."""
        if not self.settled():
            return
        others = self.others
        before = saved(POLICY)
        put_back(POLICY, state)
        if self.policy == others:
            run([UPDATE_POLICY])
        else:
            put_back(POLICY, before)
            run([UPDATE_POLICY, "--set", others])

    def is_at(self, state: State) -> bool:
        """Return whether ours is out: the rest is the site's."""
        return not self.settled() or super().is_at(state)

    def change(self) -> list[Difference]:
        """Return the policy."""
        return [Difference(self.key, self.policy, f"{self.others}:{self.module}")]


class SelinuxMode(Keyword):
    """The mode that SELinux boots in. The running one stays: a service that it would stop has jobs now.

    A node without SELinux first boots in permissive mode, which labels all files (selinux-autorelabel-mark of
    policycoreutils) and denies nothing; the next run has it enforce.
    """

    @property
    def running(self) -> str:
        """The mode of this boot; an image has none that could be in the way."""
        if not self.live:
            return self.wanted
        try:
            return "enforcing" if SELINUX.read_text(encoding="ascii").strip() == "1" else "permissive"
        except OSError:
            return "disabled"

    @cached_property
    def value(self) -> str:
        """Likewise, one step at a time."""
        found = "".join(self._values(self.read() or [])).lower()
        if self.wanted == "enforcing" and self.running == "disabled" and found != "enforcing":
            return "permissive"
        return super().value

    def fault(self) -> Fault | None:
        """Return a fault where what runs is not what the next boot has."""
        running = self.running
        if running == self.wanted or self.read() is None:
            return None
        then = (
            "The next boot labels all files first, which takes minutes to hours. "
            if running == "disabled"
            else ""
        )
        again = "The run after that boot has it enforce. " if self.value != self.wanted else ""
        return Fault(
            f"SELinux is {running} until the next boot, and {self.value} from then on. {then}{again}".strip()
        )

    def warnings(self) -> list[str]:
        """Likewise."""
        fault = self.fault()
        return [f"{fault.reason.rstrip('.')}."] if fault else []
