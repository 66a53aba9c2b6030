"""The live settings of all GPUs as one setting. What they are and how they are set is in gpu_settings.py."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ansible.module_utils import process
from ansible.module_utils.driver import gpu_settings
from ansible.module_utils.driver.gpu_settings import SettingsError
from ansible.module_utils.settings.base import Difference, Setting, SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ansible.module_utils.settings.base import State


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
