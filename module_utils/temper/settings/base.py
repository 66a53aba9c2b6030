"""What every setting of a node can do, whatever its kind: be read, compared, made and taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ansible.module_utils.temper.settings.strictness import EXACTLY

# What a state is on disk: JSON. None means "was not there".
State = Any

#: Readers of the states that all roles have noted under a key. Records are made of settings (record.py): a
#: setting that asks for them cannot import them.
NOTED: list[Callable[[str], list[Any]]] = []


class RefusedError(Exception):
    """A change is refused before anything was touched; the message says why and what to do.

    `repair` names what takes away what somebody else has put in the way (temper/compliance/repairs.py).
    """

    def __init__(self, message: str, repair: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(message)
        self.repair = list(repair)


class SettingError(Exception):
    """A setting could not be made; the message is a sentence for the operator."""


class NodeModule(Protocol):
    """What a setting needs of the Ansible module that drives it."""

    check_mode: bool

    def warn(self, warning: str) -> None:
        """Show a warning in the run."""


@dataclass(frozen=True)
class Difference:
    """Before and after of one setting, for people. `name` says what of."""

    name: str
    before: str
    after: str

    def as_dict(self) -> dict[str, str]:
        """Return the form that Ansible's --diff prints, whole lines."""
        before, after = (
            text if text.endswith("\n") or not text else f"{text}\n" for text in (self.before, self.after)
        )
        return {"before_header": self.name, "after_header": self.name, "before": before, "after": after}


@dataclass(frozen=True)
class Fault:
    """Why a setting that is made is not in force all the same, and the repairs that help."""

    reason: str
    repair: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class WayIn:
    """How a change that may lock the operator out is undone unless a new connection confirms it.

    `name` is the change's name ("ssh"), `subject` the same in words, `files` what the change writes, creates
    or removes, and `live` the shell commands that make restored files effective.
    """

    name: str
    subject: str
    files: Sequence[Path] = ()
    live: Sequence[str] = ()


class Setting:
    """One setting, or several that can only be made together (the rules of a firewall).

    Reading never changes anything. `apply` and `restore` may be cut off anywhere: what `read` says after that
    is again the truth.
    """

    #: Names it in the record and in what the operator reads: "sysctl:kernel.kptr_restrict".
    key: str
    #: What makes this object again, only to restore it.
    spec: dict[str, Any]
    #: Whether it also acts on the running system. In the tree of an image it writes, installs and enables;
    #: what is started, loaded or asked stays as it is.
    live = True
    #: In which order its values stand (strictness.py): what the site has that is stricter stays.
    order = EXACTLY
    #: What the record has of it: `state` before Temper first made it, `spec` as Temper last made it. After a
    #: run that failed or was cut off, `former` has the earlier specs: one of them may still be in force.
    original: Mapping[str, Any] | None = None
    #: Whether its state has parts, each of which is recorded before it is first made.
    in_parts = False
    #: Whether a run that is cut off may leave it in a state that is neither the one before nor the one after.
    in_steps = False
    #: Whether it changes what others bring and may take away again.
    of_others = False
    #: Why a node may have nothing that it could be made on, where it is settled then.
    why_absent = ""
    #: Whether who uses a GPU, or has it in a container, may be disturbed.
    busy_ok = False
    #: Whether another role removes, later, the packages that stay because others need them.
    heir = False
    #: The variable by which the operator decides against what the site has; empty where there is none.
    otherwise = ""

    def recall(self, originals: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the role's record has of it: only what Temper has not made is the site's."""
        self.original = originals.get(self.key)

    @property
    def own(self) -> bool:
        """Whether the node has it from Temper without a record: from an image."""
        return False

    def made_as(self) -> list[dict[str, Any]]:
        """Return the specs that the record has: what Temper has made."""
        return [self.original["spec"], *self.original.get("former", [])] if self.original else []

    def recorded(self, name: str) -> list[Any]:
        """Return this part of each spec that the record has."""
        return [spec[name] for spec in self.made_as() if name in spec]

    def as_made(self) -> dict[str, Any]:
        """Return `spec` with the value as Temper makes it."""
        return self.spec

    def values(self, state: State) -> list[str]:
        """Return the values of a state, in the words of `values_made`."""
        return list(state or ())

    def values_made(self) -> set[str]:
        """Return the values that Temper has made; none where the record does not say."""
        return set()

    def of_site(self, state: State) -> list[str]:
        """Return the values of a state that Temper has not made, or that were there before it made them."""
        ours = self.values_made()
        if self.original and not ours:
            return []
        before = self.values(self.original["state"]) if self.original else []
        return [value for value in self.values(state) if value in before or value not in ours]

    def is_of_site(self) -> bool:
        """Return whether Temper has made nothing of what is in force."""
        state = self.read()
        return state is not None and self.of_site(state) == self.values(state)

    def since(self, state: State) -> State:
        """Return what of a state the site has set since Temper first made it, where that can be told.

        What was not there before is Temper's as a whole.
        """
        if not self.original or self.original["state"] is None:
            return None
        if isinstance(state, list):
            return [part for part in state if self.of_site([part])]
        return state if self.of_site(state) else None

    @property
    def first(self) -> bool:
        """Whether it brings what the other settings of a role work with, and so comes before them all."""
        return False

    def begin(self, node: NodeModule) -> None:
        """Settle what an earlier run has left open, before anything looks at the node."""

    def read(self) -> State:
        """Return the present state, enough to restore it."""
        raise NotImplementedError

    def settled(self) -> bool:
        """Return whether nothing is left to do."""
        raise NotImplementedError

    def half_made(self) -> bool:
        """Return whether a run that was cut off may have left it so, and nobody has set it since."""
        return self.in_steps

    def change(self) -> list[Difference]:
        """Return what `apply` would change."""
        raise NotImplementedError

    def reason(self) -> str:
        """Return why it is not settled, in words, where `change` cannot show that as a text."""
        return ""

    def fault(self) -> Fault | None:
        """Return why a settled setting is not in force, as where a daemon has not read its files."""
        return None

    def kept(self) -> list[str]:
        """Clauses about what stays of the site because it is stricter than what is wanted."""
        return []

    def unknown(self) -> str:
        """Return what the node's program does not know of what is wanted, with its version."""
        return ""

    def withdraw(self) -> None:
        """Take rights away that nobody shall have any more, before anything of theirs is described.

        What goes wrong here, `apply` says. Raises SettingError, OSError where nothing can be noted.
        """

    def apply(self) -> None:
        """Make the setting. Raises SettingError, CommandError, OSError."""
        raise NotImplementedError

    def make(self) -> dict[str, Any]:
        """`apply` with its safeguards; returns what the controller must do before the next setting.

        {"confirm": NAME} asks for a new connection, {"driver": result} for a reboot. Raises as `apply` does.
        """
        self.apply()
        return {}

    def restore(self, state: State) -> None:
        """Return to a state that `read` has returned."""
        raise NotImplementedError

    def left_alone(self) -> str:
        """Return the clause on why it is not restored: gone, or set by the site since; empty where it is."""
        if self.of_others and self.read() is None:
            return f"{self.key} (it is no longer there)"
        ours = self.values_made()
        found = self.values(self.read()) if ours else []
        if not ours or (found and ours.issuperset(found)):
            return ""
        return f"{self.key} (expected {' or '.join(sorted(ours))}, found {', '.join(found) or 'none'})"

    def is_at(self, state: State) -> bool:
        """Return whether it is in a state that `read` has returned."""
        return bool(self.read() == state)

    def taken_back(self) -> list[Difference]:
        """Return what `restore` changes, where the key alone does not say it."""
        return []

    @property
    def needed(self) -> list[str]:
        """Packages that stay because others need them."""
        return []

    def inherited(self, note: dict[str, Any]) -> dict[str, Any]:
        """Return another role's note with what stays for it."""
        return note

    def after(self) -> list[str]:
        """Return what the operator should know once it is taken back."""
        return []

    def obstacle(self) -> str | None:
        """Return why it cannot be made here, or taken back, known before anything is changed, or None."""
        return None

    def way_in(self) -> WayIn | None:
        """Return how it is undone, where it changes a way into the node; None where it does not."""
        return None

    def warnings(self) -> list[str]:
        """Return what the operator should know whether or not anything changes."""
        return []

    def result(self) -> dict[str, Any]:
        """Return what there is to say of it, beside `changed` and `diff`."""
        return {}


def kept_value(name: str, value: str, wanted: str) -> str:
    """Return the clause about a value that stays."""
    return f"{name} {value}, which is stricter than {wanted}"


def word_on_kept(clauses: Sequence[str], otherwise: str) -> list[str]:
    """Say what of the site stays, where anything does."""
    decides = f" ({otherwise} decides otherwise)" if otherwise else ""
    return [f"kept: {'; '.join(clauses)}{decides}."] if clauses else []


def word_on_faults(subject: str, fault: Fault | None) -> list[str]:
    """Say what keeps a file of ours from being in force, and who decides."""
    if fault is None:
        return []
    return [
        f"{subject} is not in force as a whole: {fault.reason}. Take that out, or waive the control "
        "(os_hardening_waivers)."
    ]
