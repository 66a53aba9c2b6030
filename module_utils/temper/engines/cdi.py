"""The CDI specification: the toolkit's own units write it. Here they are switched on, and asked again."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper.engines.base import journal_of
from ansible.module_utils.temper.process import CommandError, run
from ansible.module_utils.temper.settings.base import RefusedError, SettingError
from ansible.module_utils.temper.units import unit_states

PATH_UNIT = "nvidia-cdi-refresh.path"
SERVICE = "nvidia-cdi-refresh.service"
ENVIRONMENT = Path("/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env")
DEFAULT_OUTPUT = Path("/var/run/cdi/nvidia.yaml")
LOADED_VERSION = Path("/sys/module/nvidia/version")
DEV = Path("/dev")
ENABLED = ("enabled", "enabled-runtime", "static")


@dataclass
class CdiPlan:
    """What is to be done, in words; empty for a node whose specification is current."""

    enable: list[str] = field(default_factory=list)
    refresh: str = ""  # why

    @property
    def actions(self) -> list[str]:
        """For the module's result."""
        return [f"enable {unit}" for unit in self.enable] + (
            [f"refresh CDI: {self.refresh}"] if self.refresh else []
        )


def plan(*, live: bool = True) -> CdiPlan:
    """Compare units and specification with the driver that is loaded. Raises RefusedError.

    An image has the units alone: the specification is of a machine.
    """
    units = unit_states([PATH_UNIT, SERVICE], "UnitFileState")
    states = {unit: state["UnitFileState"] for unit, state in units.items()}
    missing = [unit for unit, state in states.items() if not state]
    if missing:
        raise RefusedError(
            f"The container toolkit has no unit {missing[0]}: expected version 1.18 or newer, which renews "
            "the CDI specification after a driver change. Upgrade it (role nvidia_stack), or set "
            "container_engines_cdi: false."
        )
    enable = [unit for unit, state in states.items() if state not in ENABLED]
    return CdiPlan(enable, stale() if live else "")


def output() -> Path:
    """Return where the unit writes the specification."""
    try:
        text = ENVIRONMENT.read_text(encoding="utf-8")
    except FileNotFoundError:
        return DEFAULT_OUTPUT
    values = re.findall(r"^\s*NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=(\S+)", text, re.MULTILINE)
    return Path(values[-1].strip("\"'")) if values else DEFAULT_OUTPUT


def stale() -> str:
    """Return why the specification is not the one of the loaded driver and its GPUs; empty where it is."""
    path = output()
    gpus = {entry.name for entry in DEV.iterdir() if re.fullmatch(r"nvidia\d+", entry.name)}
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    absent = gpus - set(re.findall(r"/dev/(nvidia\d+)\b", text))
    loaded = _loaded()
    if text and absent == set() and (not loaded or f".so.{loaded}" in text):
        return ""
    # Asked only now: on most nodes nothing is amiss.
    empty = _without_instances()
    if gpus and gpus <= empty:
        return ""  # nobody could use any of them, and a specification without devices is none
    if not text:
        return f"{path} is missing"
    if loaded and f".so.{loaded}" not in text:
        return f"{path} is not for the loaded driver {loaded}"
    lacking = ", ".join(sorted(absent - empty))
    return f"{path} lacks {lacking}" if lacking else ""


def _without_instances() -> set[str]:
    """Return the device files of GPUs in MIG mode that are not divided yet, as after a boot.

    nvidia-ctk leaves out whole GPUs in MIG mode (getDeviceSpecGeneratorsForAllDevices in its
    pkg/nvcdi/lib-nvml.go), and there is nothing else to name.
    """
    from ansible.module_utils.temper.driver import gpu_settings, holders, mig, smi  # few nodes need them

    try:
        cards = [gpu.card for gpu in gpu_settings.read_gpus()]
        divided = mig.present(cards)
    except smi.SettingsError:
        return set()  # no driver answers: its own checks say so
    return {
        Path(holders.gpu_of(card.uuid, holders.PROC)[1]).name
        for card in cards
        if divided.get(card.index) == []
    }


def _loaded() -> str:
    try:
        return LOADED_VERSION.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def apply(wanted: CdiPlan, *, live: bool = True) -> None:
    """Switch the units on and have the specification written, then look at it. Raises SettingError."""
    steps = [["systemctl", "enable", *wanted.enable]] if wanted.enable else []
    if live:
        steps.append(["systemctl", "start", PATH_UNIT])
    if wanted.refresh:
        steps.append(["systemctl", "restart", SERVICE])
    for command in steps:
        try:
            run(command)
        except CommandError as error:
            raise SettingError(f"{error}{journal_of(SERVICE)}") from error
    problem = stale() if wanted.refresh else ""
    if problem:
        raise SettingError(f"{SERVICE} ran, and still {problem}.{journal_of(SERVICE)}")


def switch_off(units: typing.Iterable[str], *, live: bool = True) -> None:
    """Take back what `apply` switched on. Raises CommandError."""
    run(["systemctl", "disable", *(["--now"] if live else []), *units])
