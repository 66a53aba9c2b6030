"""A node in a temporary folder, with a stand-in for systemctl: its settings are files of that folder."""

import os
from pathlib import Path

import pytest
from ansible.module_utils.temper.engines import busy
from ansible.module_utils.temper.settings import engine, record, system

from tests.unit.executables import executable

# Units are files that hold enablement, activity and whether a condition keeps them from running. One that is
# `lost` runs, and has no file of its own any more.
SYSTEMCTL = """\
#!/bin/sh
cd "{state}" || exit
verb=$1
for last; do :; done
[ "$verb" = show ] || [ "$verb" = is-active ] || echo "$*" >> log
case $verb in
    is-active)
        shift 3
        for unit; do
            [ ! -e "$unit" ] || ! grep -q " active " "$unit" || exit 0
        done
        exit 3 ;;
    show)
        shift 3
        for unit; do
            load=not-found enablement= activity=inactive condition=yes
            [ ! -e "$unit" ] || {{ load=loaded; read -r enablement activity condition < "$unit"; }}
            [ "$enablement" != masked ] || load=masked
            [ "$enablement" != lost ] || {{ load=not-found enablement=; }}
            printf 'LoadState=%s\\nUnitFileState=%s\\nActiveState=%s\\nConditionResult=%s\\n' \\
                "$load" "$enablement" "$activity" "$condition"
            printf 'ConditionTimestampMonotonic=1\\n\\n'
        done ;;
    daemon-reload) ;;
    *)
        [ -e "$last" ] || {{ echo "Unit $last not found." >&2; exit 5; }}
        read -r enablement activity condition < "$last"
        case $verb in
            enable) enablement=enabled ;;
            disable) enablement=disabled ;;
            start|restart) [ "$condition" = no ] || activity=active ;;
            stop) activity=inactive ;;
        esac
        echo "$enablement $activity $condition" > "$last" ;;
esac
"""


class StandInNode:
    """The kernel's parameters, systemd's units and programs on PATH."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.units = path / "systemd"
        self.bin = path / "bin"
        self.sysctl = path / "proc-sys"
        self.sysctl.mkdir()
        self.units.mkdir()
        self.program("systemctl", SYSTEMCTL.format(state=self.units))
        monkeypatch.setattr(record, "RECORDS", path / "records")
        monkeypatch.setattr(engine, "UNIT_DIRECTORIES", (f"{path}/etc/systemd/",))
        # Whatever else runs on this machine, a lab with simulated GPUs say.
        monkeypatch.setattr(busy, "gpu_processes", list)
        monkeypatch.setattr(system, "PROC_SYS", self.sysctl)
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")

    def program(self, name: str, text: str) -> None:
        executable(self.bin / name, text)

    def unit(self, name: str, enablement: str, activity: str, condition: str = "yes") -> Path:
        path = self.units / name
        path.write_text(f"{enablement} {activity} {condition}\n")
        return path

    def parameter(self, name: str, value: str) -> Path:
        path = self.sysctl / name.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value.rstrip()}\n")
        return path

    @property
    def systemctl_calls(self) -> list[str]:
        log = self.units / "log"
        return log.read_text().splitlines() if log.exists() else []
