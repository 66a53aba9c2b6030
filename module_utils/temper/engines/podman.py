"""Podman: has no daemon and needs nothing but the CDI specification."""

from __future__ import annotations

import typing

from ansible.module_utils.temper.engines.base import EngineOptions, EnginePlan, Unit, begin, version_printed


class Podman:
    """The engine."""

    name = "podman"
    title = "Podman"
    unit = ""
    program = "podman"
    cdi_since = "5.1"
    without_cdi = ", and it has no other supported way to the GPUs: install a newer Podman"

    def plan(self, options: EngineOptions, unit: Unit, _record: dict[str, typing.Any]) -> EnginePlan:
        """Nothing but whether it reads the specification."""
        return begin(self, unit, version_printed(self), options, {})

    def disagreement(self, _options: EngineOptions, _plan: EnginePlan) -> str:
        """Return nothing to do: it reads everything anew for each container."""
        return ""
