"""What the actions that read a node share (preflight and compliance): they ask its modules, and plan.

Ansible forks a process for each node's task, and before that imports an action in the process that all of
them come from (a filter it does not): what is imported and read here is imported and read once a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from temper.base import DATA
from temper.plan.module_answers import reason, warnings
from temper.plan.os_controls import load_controls
from temper.plan.os_systems import systems
from temper.plan.refusals import Refusal, refusal, sentences
from temper.plan.role_variables import planned_variables
from temper.plan.tables import load_models, load_tables

planned_variables()
load_tables(DATA)
load_models(DATA)
load_controls(DATA / "os_controls")
systems()
sentences("refusals")
sentences("remedies")


class TaskValues(Mapping[str, Any]):
    """The node's variables, evaluated as in a task: with `hostvars`, `groups` and all other magic variables.

    A value that is read out of `hostvars` is evaluated without them.
    """

    def __init__(self, variables: Mapping[str, Any], templar: Any) -> None:
        self._names: Mapping[str, Any] = variables["hostvars"][variables["inventory_hostname"]]
        self._variables, self._templar = variables, templar

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._variables:
            return self._names[name]
        return self._templar.template(self._variables[name])

    @property
    def raw(self) -> dict[str, Any]:
        """The values as they stand in the inventory, with their templates."""
        return {name: self._variables[name] for name in self._names if name in self._variables}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class NodeAction(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """An action on a node. `warnings` are of the modules that it asked, `reached` is whether it answers."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what every action returns."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.warnings: list[str] = []
        self.reached = True
        return result

    def ask(self, module: str, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return what a module returns.

        Of one that could not be run or broke, why (`msg`): an answer like any other.
        """
        try:
            found: dict[str, Any] = self._execute_module(module, arguments, task_vars=variables)
        except AnsibleError as error:
            self.reached = not isinstance(error, AnsibleConnectionFailure)
            return {"msg": str(error), "unreachable": not self.reached}
        self.warnings += warnings(found)["warnings"]
        return {**found, "msg": reason(found)} if found.get("failed") else found

    def known(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return what the controller knows of the node; address, account and port are its connection's.

        An inventory need not say them by `ansible_host`, `ansible_user` and `ansible_port`: the command line,
        the play or older names of the variables may. Of the jump hosts, which may be many, it has this node
        alone.
        """
        name = variables["inventory_hostname"]
        jumps = (variables.get("__preflight_ways") or {}).get("jump_hosts", {})
        found: dict[str, Any] = dict(self._task.args["known"])
        for key, option in (("address", "host"), ("user", "remote_user"), ("port", "port")):
            if self._connection.has_option(option) and (given := self._connection.get_option(option)):
                found[key] = str(given)
        return found | {"jump_hosts": {name: jumps[name]} if name in jumps else {}}

    def own(self, variables: dict[str, Any]) -> TaskValues:
        """Return the node's variables, as its tasks see them."""
        return TaskValues(variables, self._templar)

    def unseen(self, variables: dict[str, Any]) -> list[Refusal]:
        """Return a refusal for each role's variable that the play or a task sets, not the inventory.

        A plan that another play makes would be made without it, in silence.
        """
        own = variables["hostvars"][variables["inventory_hostname"]]
        given = self._task.get_play().get_vars().keys() | self._task.get_vars().keys()
        return [
            refusal("variable-in-play", variable=name)
            for name in sorted(given & planned_variables())
            if name not in own or own[name] != self._templar.template(variables[name])
        ]
