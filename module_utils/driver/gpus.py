"""The live settings of all GPUs as one setting. What they are and how they are set is in gpu_settings.py."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ansible.module_utils import process
from ansible.module_utils.driver import gpu_settings
from ansible.module_utils.driver.gpu_settings import SettingsError
from ansible.module_utils.settings.base import Difference, Fault, Setting, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible.module_utils.settings.base import State

# Sets everything anew, what was noted as set as well.
BOOT_UNIT = "temper-gpu-settings.service"
# clocks_event_reasons.active (nvml.h, nvmlClocksEventReasons*): power cap 0x4, slowdown 0x8, sync boost 0x10,
# heat 0x20 and 0x40, power brake 0x80. Its older name is known to every driver.
SLOWED = 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80
LOCK_FIELDS = "index,name,uuid,clocks.current.graphics,clocks_throttle_reasons.active"


def below_their_lock() -> dict[str, tuple[int, int]]:
    """GPUs whose clock is below the one that was locked, with both in MHz, unless something slows them down.

    Raises:
        SettingsError: nvidia-smi does not answer.
    """
    record, lost = gpu_settings.read_record(), {}
    arguments = (f"--query-gpu={LOCK_FIELDS}", "--format=csv,noheader,nounits")
    for line in gpu_settings.nvidia_smi(*arguments).splitlines():
        index, name, uuid, clock, reasons = (part.strip() for part in line.split(","))
        now, (wanted, _) = gpu_settings.integer(clock), record.get(uuid, [None, None])
        try:
            slowed = int(reasons, 16) & SLOWED
        except ValueError:
            continue  # "[N/A]": nobody can tell
        if now and wanted and now < wanted - gpu_settings.CLOCK_STEP_MHZ and not slowed:
            lost[f"GPU {index} ({name})"] = (now, wanted)
    return lost


class GpuSettings(Setting):
    """Persistence mode, clocks and power limit: `wanted` as `gpu_settings.settle` takes it."""

    key = "gpu:settings"

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self.wanted = {name: wanted.get(name) for name in ("clocks", "power_limit_w", "locked_clocks")}
        self.spec = {}
        # Where clocks cannot be locked, the GPUs get application clocks.
        self.locked = bool(wanted["locked_clocks"]["graphics"])
        self.made: gpu_settings.Changes | None = None

    @classmethod
    def from_items(
        cls,
        items: Mapping[str, Any],
        options: Mapping[str, Any],  # noqa: ARG003 - the signature is the one of all kinds
    ) -> GpuSettings:
        """From items clocks, power_limit_w and locked_clocks."""
        return cls(items)

    @functools.cached_property
    def changes(self) -> gpu_settings.Changes:
        """What has to change, by GPU and setting."""
        try:
            return gpu_settings.settle(self.wanted, only_look=True)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def read(self) -> State:
        """Clocks and power limit of each GPU, by UUID."""
        try:
            return gpu_settings.present(self.locked)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def settled(self) -> bool:
        """Whether all GPUs have the wanted settings; not before there is a driver."""
        return bool(process.which("nvidia-smi")) and not self.changes

    def change(self) -> list[Difference]:
        """Each setting of each GPU."""
        if not process.which("nvidia-smi"):
            return []
        return [
            Difference(f"{gpu}, {setting}", *change.split(" -> "))
            for gpu, settings in self.changes.items()
            for setting, change in settings.items()
        ]

    def fault(self) -> Fault | None:
        """GPUs that run below their locked clock although nothing slows them down: the lock is gone.

        Locked clocks have no query; nvidia-smi(1): they "take effect regardless if an app is running".
        """
        try:
            lost = below_their_lock() if self.locked else {}
        except SettingsError as error:
            raise SettingError(f"{error}.") from error
        if not lost:
            return None
        gpu, (now, wanted) = next(iter(lost.items()))
        more = f" (and {len(lost) - 1} more alike)" if len(lost) > 1 else ""
        return Fault(
            f"{gpu}{more} runs at {now} MHz and was locked at {wanted} MHz; neither power nor heat slows it "
            "down, so somebody has reset the clocks",
            [f"systemctl restart {BOOT_UNIT}"],
        )

    def apply(self) -> None:
        """Set what differs and read it back."""
        try:
            self.made = gpu_settings.settle(self.wanted)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def restore(self, state: State) -> None:
        """Return to these clocks and limits. Persistence stays: without it the driver would forget them."""
        try:
            gpu_settings.settle_back(state, self.locked)
        except SettingsError as error:
            raise SettingError(f"{error}.") from error

    def result(self) -> dict[str, Any]:
        """What changed, or would, by GPU and setting."""
        if self.made is not None:
            return {"changes": self.made}
        if not process.which("nvidia-smi"):
            return {"changes": {}, "msg": "The driver is not installed yet; its settings would follow."}
        return {"changes": self.changes}
