"""Check an inventory's variables against the argument specs of all roles, before anything is planned."""

from __future__ import annotations

import difflib
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LAST_PORT = 65535


def port_problems(name: str, value: Any) -> list[str]:
    """What is wrong with a variable whose name ends in _port or _ports: TCP or UDP port numbers.

    Argument specs cannot say a range.
    """
    if not name.endswith(("_port", "_ports")) or value is None:
        return []
    ports = value if isinstance(value, list) else [value]
    return [
        f"{name}: expected a port number from 1 to {LAST_PORT}, found {port!r}"
        for port in ports
        if not (isinstance(port, int) and 1 <= port <= LAST_PORT)
    ]


def unknown_variables(names: Iterable[str], known: Iterable[str], roles: Iterable[str]) -> list[str]:
    """Sentences about names that carry a role's prefix but are no variable of it.

    Without them a typo would be silently ignored.
    """
    prefixes = tuple(f"{role}_" for role in roles)
    known = sorted(known)
    problems = []
    for name in sorted(names):
        if not name.startswith(prefixes) or name in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "see the README of the role for its variables"
        problems.append(f"{name}: no role has a variable of this name; {hint}")
    return problems


def role_variables(host_variables: Mapping[str, Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    """The effective value of every public variable of every role for one node, and what is wrong with them.

    `specs` maps role names to the content of their meta/argument_specs.yml. Returns `values` (name -> value
    after type conversion, the spec's default where the inventory sets none) and `problems` (one sentence
    each).
    """
    roles = list(specs)
    options: dict[str, Mapping[str, Any]] = {}
    for spec in specs.values():
        options |= spec["argument_specs"]["main"]["options"]
    problems = unknown_variables(host_variables, options, roles)
    given: dict[str, Any] = {}
    for name in sorted(options.keys() & set(host_variables)):
        try:
            given[name] = host_variables[name]
        except AnsibleError as error:
            problems.append(f"{name}: its value cannot be evaluated: {error}")
    values: dict[str, Any] = {}
    for name, spec in options.items():
        if name not in given:
            values[name] = spec.get("default")
            continue
        result = ArgumentSpecValidator({name: dict(spec)}).validate({name: given[name]})
        values[name] = result.validated_parameters.get(name)
        errors = list(result.error_messages) or port_problems(name, values[name])
        problems += [error if error.startswith(name) else f"{name}: {error}" for error in errors]
    return {"values": values, "problems": problems}


def specs_by_role(files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Argument specs by role name, from files {path, content} named roles/ROLE/meta/argument_specs.yml."""
    return {PurePath(file["path"]).parts[-3]: file["content"] for file in files}


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {"role_variables": role_variables, "specs_by_role": specs_by_role}
