"""A node seen from outside, for Ansible's actions: its plan and its connection in, observations out."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from temper.compliance.model import Observation, State
from temper.compliance.outside.claims import Claims, read_claims
from temper.compliance.outside.expected import Expected, expected, role_plans
from temper.compliance.outside.judge import LOGIN_AS_ROOT, METHODS, PORTS, judge, unseen
from temper.compliance.outside.look import Look, Looking, look, look_at_ssh
from temper.compliance.outside.route import Route, RouteError, route
from temper.plan.ssh_client import Plugin
from validation.model.contract import ContractError
from validation.model.printable import printable

# isort: split

from ansible.module_utils.temper.settings.base import RefusedError

#: Of Ansible's connection plugin.
SSH = "ssh"
#: A change waits for it, and is undone by itself before long.
CONFIRM_S = 8.0
#: Changes that a stranger can see, and the controls that decide about them.
SEEN = {"ssh": (METHODS, LOGIN_AS_ROOT), "firewall": (PORTS,)}


class Outside:
    """A look that begins with it, goes on with the node's plan, and is judged once the node has answered."""

    def __init__(self, connection: Plugin, further: Sequence[str] = ()) -> None:
        self._looking: Looking | Look | None = None
        self._wanted: Future[Expected] = Future()
        if connection.transport == SSH:
            try:
                self._way = route(connection)
                for address in further:
                    _refuse_name(address)
                self._looking = Looking(lambda later: look(self._way, self._wanted.result, later, further))
            except RouteError as error:
                self._looking = Look(problem=str(error))

    def expect(self, plan: Mapping[str, Any]) -> None:
        """Say what the plan is, once there is one."""
        if not isinstance(self._looking, Looking):
            self._wanted.set_result(Expected(None, None))
            return
        try:
            self._wanted.set_result(planned(plan, self._way))
        except RouteError as error:
            self._wanted.set_result(Expected(None, None))
            self._looking = Look(problem=str(error))

    def observations(
        self, said: object, own: Mapping[str, Iterable[Mapping[str, Any]]]
    ) -> tuple[Observation, ...]:
        """Return an observation for each control, of a node whose plan is known. Raises ClaimsError.

        `said` is what the node says of its ways in, `own` what it has observed of itself by role.
        """
        claims = read_claims(said or {})
        if self._looking is None:
            return unseen("it is not reached by SSH")
        seen = self._looking if isinstance(self._looking, Look) else self._looking.end(claims)
        return judge(seen, self._wanted.result(), claims, passing(own))


def passing(own: Mapping[str, Any]) -> set[str]:
    """Return the controls that pass by the node's own word, which may be of any form."""
    return {
        f"{role}/{one.get('key')}"
        for role, found in own.items()
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping) and one.get("state") == State.PASS
    }


def contradicted(change: str, plan: Mapping[str, Any], connection: Plugin) -> tuple[str, list[str]]:
    """Look at a changed way in; return why it must not be confirmed, empty where it may, and warnings.

    Of the firewall only warnings come: a port that answers although the rules leave it out is forwarded, to a
    container for example, and would not be closed by taking the rules back. What was not looked at is a
    warning, too, by its control.
    """
    if connection.transport != SSH or change not in SEEN:
        return "", []
    try:
        found = _seen(change, plan, connection)
    # A change that is good must not fail for what goes wrong here.
    except Exception as error:  # noqa: BLE001
        return "", [f"The node was not looked at from outside: {error}"]
    failed = [sentence(one) for one in found if one.state is State.FAIL]
    reasons: dict[str, list[str]] = {}
    for one in found:
        # Through a jump host, or from a machine of the fleet, nobody sees what the rules close to strangers.
        if one.state is State.NOT_CHECKED or (one.state is State.NOT_APPLICABLE and change == "firewall"):
            reasons.setdefault(one.reason, []).append(f"outside/{one.key} is {one.state}")
    unseen_of_it = [f"{', '.join(keys)}: {reason}" for reason, keys in reasons.items()]
    if change == "firewall":
        return "", [f"The firewall is in force; {one}" for one in (*failed, *unseen_of_it)]
    return "; ".join(failed), [f"The settings of sshd are in force; {one}" for one in unseen_of_it]


def _seen(change: str, plan: Mapping[str, Any], connection: Plugin) -> tuple[Observation, ...]:
    """Return what decides about a change."""
    way = route(connection)
    wanted = planned(plan, way)
    if change == "firewall":
        if wanted.openings is None:  # it is gone
            return ()
        looking = Looking(lambda later: look(way, lambda: wanted, later, seconds=CONFIRM_S))
    else:
        looking = Looking(lambda _: look_at_ssh(way, CONFIRM_S))
    found = judge(looking.end(Claims(), 2 * CONFIRM_S), wanted, None)
    return tuple(one for one in found if one.key in SEEN[change])


def sentence(one: Observation) -> str:
    """Return what was found and wanted."""
    places = [f"{change.name}: found {change.before}, wanted {change.after}" for change in one.changes]
    return printable(f"{one.reason} ({'; '.join(places)})")


def _refuse_name(text: str) -> None:
    """Raise RouteError where a further address is none."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise RouteError(f"compliance_outside_addresses: expected addresses, found {text!r}") from None


def planned(plan: Mapping[str, Any], way: Route) -> Expected:
    """Return what the plan lets a stranger find. Raises RouteError."""
    try:
        return expected(role_plans(plan), way.port)
    except (ContractError, RefusedError) as error:
        raise RouteError(f"the plan cannot be carried out: {error}") from None
