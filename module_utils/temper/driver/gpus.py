"""The live settings of all GPUs as one setting. What they are and how they are set is in gpu_settings.py."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import gpu_settings
from ansible.module_utils.temper.driver.smi import SettingsError
from ansible.module_utils.temper.settings.base import Difference, Fault, Setting, SettingError, State

# Who asks for CDI names MIG instances as they were when this unit looked.
CDI_UNIT = "nvidia-cdi-refresh.service"
# Sets everything anew, what was noted as set as well.
BOOT_UNIT = "temper-gpu-settings.service"


def below_their_lock(gpus: list[gpu_settings.Gpu]) -> dict[str, tuple[int, int]]:
    """GPUs that run below their locked clock and that nothing slows down, with both clocks in MHz."""
    record, lost = gpu_settings.read_record(), {}
    for gpu in gpus:
        now, (wanted, _) = gpu.graphics_mhz, record.get(gpu.uuid, [None, None])
        slowed = gpu.slowed_by is None or gpu.slowed_by & gpu_settings.SLOWED  # None: nobody can tell
        if now and wanted and now < wanted - gpu_settings.CLOCK_STEP_MHZ and not slowed:
            lost[str(gpu)] = (now, wanted)
    return lost


def pending() -> list[str]:
    """Return sentences about modes of GPUs that wait for a reboot, for the condition `reboot` of a node."""
    try:
        return gpu_settings.pending(gpu_settings.read_gpus()) if process.which("nvidia-smi") else []
    except SettingsError:
        return []  # the settings of the GPUs say why


class GpuSettings(Setting):
    """Persistence mode, clocks, power limit, modes: `wanted` as `gpu_settings.settle` takes it."""

    key = "gpu:settings"
    in_parts = True

    def __init__(self, wanted: Mapping[str, Any], busy_ok: bool = False) -> None:
        self.wanted = {name: wanted.get(name) for name in gpu_settings.NAMES}
        self.busy_ok = busy_ok
        self.spec = {"wanted": {"locked_clocks": wanted["locked_clocks"]}}
        self.complaint = ""
        # Where clocks cannot be locked, the GPUs get application clocks.
        self.locked = bool(wanted["locked_clocks"]["graphics"])
        self.made: gpu_settings.Changes | None = None

    @classmethod
    def from_items(
        cls,
        items: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> GpuSettings:
        """From items that `gpu_settings.NAMES` names."""
        return cls(items, bool(options.get("busy_ok")))

    def as_made(self) -> dict[str, Any]:
        """Return the first `spec`: the recorded state is of clocks that were locked, or not, as that says."""
        first: dict[str, Any] = self.original["spec"] if self.original else self.spec
        return first

    @property
    def changes(self) -> gpu_settings.Changes:
        """What has to change, by GPU and setting."""
        return self.found.named

    @functools.cached_property
    def found(self) -> gpu_settings.Found:
        """The GPUs beside what they are to have."""
        try:
            return gpu_settings.look(self.wanted)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def read(self) -> State:
        """Clocks and power limit of each GPU, by UUID; nothing without a driver."""
        if not process.which("nvidia-smi"):
            return {}
        try:
            return gpu_settings.present(self.locked)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def settled(self) -> bool:
        """Return whether all GPUs have the wanted settings; not before there is a driver."""
        return bool(process.which("nvidia-smi")) and not self.changes

    def change(self) -> list[Difference]:
        """Return each setting of each GPU."""
        if not process.which("nvidia-smi"):
            return []
        return [
            Difference(f"{gpu}, {setting}", *change.split(" -> "))
            for gpu, settings in self.changes.items()
            for setting, change in settings.items()
        ]

    def obstacle(self) -> str | None:
        """Return who uses a GPU that is to change, or that nobody has allowed to divide it anew."""
        if self.settled() or not process.which("nvidia-smi"):
            return None
        return gpu_settings.refusal(self.found, self.wanted, self.busy_ok)

    def warnings(self) -> list[str]:
        """Modes that wait for a reboot, and clocks that power or heat keeps a GPU from."""
        return [f"{note}." for note in self.found.notes] if process.which("nvidia-smi") else []

    def fault(self) -> Fault | None:
        """GPUs that run below their locked clock although nothing slows them down: the lock is gone.

        Locked clocks have no query; nvidia-smi(1): they "take effect regardless if an app is running".
        """
        lost = below_their_lock(self.found.gpus) if self.locked else {}
        if not lost:
            return None
        gpu, (now, wanted) = next(iter(lost.items()))
        more = f" (and {len(lost) - 1} more alike)" if len(lost) > 1 else ""
        return Fault(
            f"{gpu}{more} runs at {now} MHz and was locked at {wanted} MHz; neither power nor heat slows it "
            "down, so somebody has reset the clocks",
            [["restart", BOOT_UNIT]],
        )

    def apply(self) -> None:
        """Set what differs and read it back."""
        try:
            self.made = gpu_settings.settle(self.wanted, busy_ok=self.busy_ok)
            self.__dict__.pop("found", None)  # what is to say of them now is another thing
            if self.divided and process.succeeds(["systemctl", "cat", CDI_UNIT]):
                process.run(["systemctl", "restart", CDI_UNIT])
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    @property
    def divided(self) -> bool:
        """Whether this run has made MIG instances, or taken some."""
        return any(gpu_settings.MIG_LAYOUT in changes for changes in (self.made or {}).values())

    def restore(self, state: State) -> None:
        """Return to these clocks and limits. Persistence stays: without it the driver would forget them.

        A driver that does not answer forgets them as it is loaded anew: it must not stand in the way.
        """
        if not process.which("nvidia-smi"):
            return
        try:
            gpu_settings.settle_back(state, self.locked)
        except SettingsError as error:
            self.complaint = str(error)

    def is_at(self, state: State) -> bool:
        """Return whether each GPU that is there still has what it had."""
        now = self.read()
        return all(now[uuid] == had for uuid, had in state.items() if uuid in now)

    def after(self) -> list[str]:
        """Return why clocks and power limits stay."""
        if not self.complaint:
            return []
        return [f"stays: clocks and power limits, until the driver is loaded anew, because {self.complaint}."]

    def result(self) -> dict[str, Any]:
        """Return what changed, or would, by GPU and setting."""
        if self.made is not None:
            return {"changes": self.made}
        if not process.which("nvidia-smi"):
            return {"changes": {}, "msg": "The driver is not installed yet; its settings would follow."}
        return {"changes": self.changes}
