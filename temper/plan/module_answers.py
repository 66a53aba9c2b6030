"""Read what Temper's modules answer from a node, before Ansible takes any of it for an action's own result.

Ansible believes an action: `add_host` in its result makes a host, with a connection that runs commands on the
controller. A node that somebody has taken over can answer anything. So an action returns only keys that it
names, each of the type that it must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from temper.plan.convert import build, plain

Answer = TypeVar("Answer", "RoleAnswer", "Failure", "HeldLease")

MOST_WARNINGS = 100
#: Characters of a message, and of what a program printed.
MOST_CHARACTERS = 64 << 10


class AnswerError(ValueError):
    """An answer that does not have the form it must have; the message says where."""


@dataclass(frozen=True)
class Diff:
    """A difference, as Ansible's --diff prints it."""

    before: str
    after: str
    before_header: str = ""
    after_header: str = ""


@dataclass(frozen=True)
class RoleResults:
    """What later tasks read of a role: the port that sshd moves to, sentences about the firewall.

    `left` has what is taken back only once a change of a way in is confirmed.
    """

    port: int | None = None
    report: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedDriver:
    """The driver that is loaded, and the processes that use it."""

    loaded_version: str | None
    nouveau_loaded: bool
    compute_processes: tuple[str, ...]


@dataclass(frozen=True)
class Needs:
    """What only the controller can do before a role goes on: confirm a change, or load a driver."""

    confirm: str | None = None
    driver: LoadedDriver | None = None


@dataclass(frozen=True)
class RoleAnswer:
    """What module node_settings says of one role. With `failed`, the message is why."""

    changed: bool = False
    actions: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    diff: tuple[Diff, ...] = ()
    results: RoleResults = field(default_factory=RoleResults)
    needs: Needs = field(default_factory=Needs)
    failed: bool = False
    refused: bool = False
    msg: str = ""
    output: tuple[str, ...] = ()

    def as_result(self) -> dict[str, Any]:
        """Return the result of the role's task."""
        said: dict[str, Any] = plain(self)
        said["needs"] = {name: value for name, value in said["needs"].items() if value is not None}
        kept = (
            ("changed", "failed", "refused", "msg", "output")
            if self.failed
            else ("changed", "actions", "controls", "diff", "results", "needs")
        )
        return {name: said[name] for name in kept}


@dataclass(frozen=True)
class Failure:
    """Why a module ended without an answer, in its words or those of Ansible."""

    msg: str = ""
    refused: bool = False
    module_stdout: str = ""
    module_stderr: str = ""
    rc: int | None = None


@dataclass(frozen=True)
class HeldLease:
    """The lease of a node that this run holds."""

    owner: str
    fencing: int


def role_answers(answer: Mapping[str, Any], key: str, asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results of the roles under a key of node_settings' answer. Raises AnswerError.

    `asked` are the roles that the module was asked about: it speaks for no other.
    """
    said = answer.get(key)
    if not isinstance(said, Mapping):
        raise AnswerError(f"{key}: expected an object, found {type(said).__name__}")
    if others := [str(name)[:60] for name in said if name not in asked]:
        raise AnswerError(f"{key}: expected only roles that it was asked about, found {others[0]!r}")
    return {str(name): role_answer(one, f"{key}.{name}").as_result() for name, one in said.items()}


def role_answer(value: object, where: str) -> RoleAnswer:
    """Return what is said of one role. Raises AnswerError."""
    found = _read(RoleAnswer, value, where)
    port = found.results.port
    # It becomes an option of ssh on the controller.
    if port is not None and not 0 < port < 1 << 16:
        raise AnswerError(f"{where}.results.port: expected a port from 1 to 65535, found {port}")
    return found


def warnings(answer: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the warnings of an answer, as Ansible has read them, under their key."""
    said = answer.get("warnings")
    return {"warnings": list(said)[:MOST_WARNINGS] if isinstance(said, list) else []}


def reason(answer: Mapping[str, Any]) -> str:
    """Return why a module gave no answer, in its own words; empty where it has none.

    Of a module that broke, Ansible hands on the exception, without a message.
    """
    event = getattr(answer.get("exception"), "event", None)
    said = [answer.get("msg"), getattr(event, "msg", ""), answer.get("module_stderr")]
    if answer.get("_ansible_parsed") is False:
        # Of one that did not begin, what came in place of an answer says why: sudo's refusal.
        said[:1] = [answer.get("module_stderr"), answer.get("module_stdout"), answer.get("msg")]
    return next((words[:MOST_CHARACTERS] for words in said if isinstance(words, str) and words.strip()), "")


def failure(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failed task's result from the answer of a module that did not do its work."""
    try:
        found = _read(Failure, answer, "its answer")
    except AnswerError as error:
        found = Failure(f"It answered in another form than expected: {error}.")
    said = {name: value for name, value in plain(found).items() if value not in (None, "")}
    said = {
        name: value[:MOST_CHARACTERS] if isinstance(value, str) else value for name, value in said.items()
    }
    words = reason(answer) or "The module gave neither an answer nor a reason."
    return {"msg": words, **said, "failed": True}


def node_facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of module node_facts: the node's own under one name, and its lease."""
    facts = answer.get("ansible_facts")
    if not isinstance(facts, Mapping) or not isinstance(facts.get("temper"), Mapping):
        return {}
    found = {"temper": facts["temper"]}
    if "temper_lease" in facts:
        found["temper_lease"] = plain(_read(HeldLease, facts["temper_lease"], "temper_lease"))
    return found


def _read(kind: type[Answer], value: object, where: str) -> Answer:
    if not isinstance(value, Mapping):
        raise AnswerError(f"{where}: expected an object, found {type(value).__name__}")
    try:
        return build(kind, value, where)
    except ValueError as error:
        raise AnswerError(str(error)) from None
