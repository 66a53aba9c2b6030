"""Podman: has no daemon and needs nothing but the CDI specification."""

from __future__ import annotations

import typing

from ansible.module_utils.engines.base import Plan, Unit, Wish, at_least, run, version_of, which

CDI_SINCE = "5.1"


class Podman:
    """The engine."""

    name = "podman"
    unit = ""
    program = "podman"

    def plan(self, wish: Wish, unit: Unit, _record: dict[str, typing.Any]) -> Plan:
        """Nothing but whether it reads the specification."""
        plan = Plan(
            self.name, unit, version_of(run([which(self.program) or self.program, "--version"]).stdout)
        )
        plan.cdi = wish.cdi and at_least(plan.version, CDI_SINCE)
        if wish.present and wish.cdi and not plan.cdi:
            plan.warnings.append(
                f"Podman {plan.version} does not read CDI specifications of the toolkit's version (expected "
                f"{CDI_SINCE} or newer), and it has no other supported way to the GPUs: install a newer "
                "Podman."
            )
        return plan

    def disagreement(self, _wish: Wish, _plan: Plan) -> str:
        """It reads everything anew for each container."""
        return ""
