"""Podman: has no daemon and needs nothing but the CDI specification."""

from __future__ import annotations

import typing

from ansible.module_utils.engines.base import Plan, Unit, Wish, begin, program_of, run, version_of


class Podman:
    """The engine."""

    name = "podman"
    title = "Podman"
    unit = ""
    program = "podman"
    cdi_since = "5.1"
    without_cdi = ", and it has no other supported way to the GPUs: install a newer Podman"

    def plan(self, wish: Wish, unit: Unit, _record: dict[str, typing.Any]) -> Plan:
        """Nothing but whether it reads the specification."""
        return begin(self, unit, version_of(run([program_of(self), "--version"]).stdout), wish, {})

    def disagreement(self, _wish: Wish, _plan: Plan) -> str:
        """It reads everything anew for each container."""
        return ""
