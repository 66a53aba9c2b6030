"""Every value that a profile or the benchmark asks for, by kind and key of its setting."""

import json
from typing import Any

from temper.plan.convert import plain
from temper.plan.os_controls import PROFILES, Asker, alone, concerns, demand_of, on_system, settings_of
from temper.plan.os_systems import systems
from tools import control_docs

CONTROLS: dict[str, Any] = {
    name: one for area in control_docs.controls().values() for name, one in area.items()
}
# A whole file is Temper's own; of several packages one is enough.
WITHOUT_ORDER = ("file", "package_choice")


def asked(control: Any) -> dict[tuple[str, str], set[str]]:
    """Kind and key -> the values as JSON."""
    found: dict[tuple[str, str], set[str]] = {}
    for wanted in [*(settings_of(control, profile) for profile in PROFILES), demand_of(control)]:
        for system in (system for system in systems() if concerns(control, system)):
            for setting in alone(Asker("", "", None), on_system(wanted, system), system):
                values = found.setdefault((setting.kind.value, setting.key), set())
                values.add(json.dumps(plain(setting.wanted)))
    return found


SETTINGS = [
    (kind, key, json.loads(value))
    for area in control_docs.controls().values()
    for control in area.values()
    for (kind, key), values in asked(control).items()
    if kind not in WITHOUT_ORDER
    for value in sorted(values)
]
