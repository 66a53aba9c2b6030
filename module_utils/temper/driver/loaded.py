"""The NVIDIA driver as one setting: in every kernel, loaded, and proven by what its libraries say."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.temper.driver import loaded_state, module_builds, runtime
from ansible.module_utils.temper.driver.module_builds import KernelModules
from ansible.module_utils.temper.packaging import node
from ansible.module_utils.temper.settings.base import Difference, Fault, Setting, SettingError, State


class LoadedDriver(Setting):
    """The driver at one version. It never reboots: `reboot_due` tells the controller that only that helps.

    `expected` are versions that libraries and daemons must say themselves: see `runtime.prove`. After a boot
    the driver has `after_boot_s` to load and to answer, and nvidia-smi must have no complaint.
    """

    key = "driver:nvidia"

    def __init__(
        self,
        modules: KernelModules,
        expected: Mapping[str, str | None] | None = None,
        *,
        after_boot_s: float = 0,
    ) -> None:
        self.modules = modules
        self.after_boot_s = after_boot_s
        self.version = modules.version
        self.expected = {**(expected or {}), "driver": modules.version}
        self.spec = {}
        self.processes: list[str] = []
        self.complaint: str | None = None
        self.versions: runtime.Versions = {}

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedDriver:
        """From the item "nvidia": version, dkms, mok_certificate, package_manager, runtime.

        Of an image it has the kernel, too. Option `after_boot_s` as above.
        """
        (wanted,) = items.values()
        modules = KernelModules(
            wanted["version"],
            wanted["dkms"],
            wanted["mok_certificate"],
            wanted["package_manager"],
            wanted.get("kernel", ""),
        )
        return cls(modules, wanted.get("runtime"), after_boot_s=options.get("after_boot_s", 0))

    @property
    def loaded(self) -> str | None:
        """The version of the loaded module."""
        return loaded_state.loaded_version(module_builds.ROOT)

    @property
    def userspace(self) -> str | None:
        """The version of the installed libraries."""
        return loaded_state.userspace_version(module_builds.ROOT)

    @property
    def reboot_due(self) -> bool:
        """Whether another driver than the planned one, or none, is loaded. Of an image it is not asked."""
        return self.live and self.loaded != self.version

    def read(self) -> State:
        """Return what is loaded, and the module's version by kernel."""
        return {"loaded": self.loaded, "userspace": self.userspace, "modules": self.modules.read()}

    def settled(self) -> bool:
        """Return whether the driver is loaded, in every kernel, and proven since its packages have changed.

        Files only: neither nvidia-smi nor a library is asked. In an image it stays to be proven, on each
        machine.
        """
        if not self.live:
            return self.userspace == self.version and node.unproven().exists() and self.modules.settled()
        right = self.loaded == self.userspace == self.version
        return right and not node.unproven().exists() and self.modules.settled()

    def change(self) -> list[Difference]:
        """Return the modules to build, and the loaded version."""
        loaded = [Difference("loaded driver", self.loaded or "", self.version)] if self.reboot_due else []
        return [*self.modules.change(), *loaded]

    def reason(self) -> str:
        """Return what differs, those parts as well that no text of `change` is about."""
        parts = [
            f"kernel {release}: {reason}{self.modules.hindrance(release) or ''}"
            for release, reason in self.modules.lacking().items()
        ]
        if self.reboot_due:
            parts.insert(0, f"driver {self.loaded or 'none'} is loaded, expected {self.version}")
        if self.userspace != self.version:
            parts.append(f"its libraries are of {self.userspace or 'no version'}, expected {self.version}")
        if not parts and node.unproven().exists():
            parts.append("its packages have changed since it and its libraries were last asked")
        return "; ".join(parts)

    def fault(self) -> Fault | None:
        """Return a kernel whose module is another than DKMS knows of, as NVIDIA's own installer leaves it."""
        others = self.modules.others()
        if not others:
            return None
        found = "; ".join(f"kernel {release} would load version {one}" for release, one in others.items())
        return Fault(
            f"{found}, expected {self.version}: somebody has replaced the nvidia module",
            [self.modules.reinstall(release) for release in others],
        )

    def apply(self) -> None:
        """Build the modules; where the right driver is loaded, prove that it and its libraries answer."""
        node.mark_unproven()
        # Packages may have been installed since.
        self.modules.forget()
        if not self.modules.settled():
            self.modules.apply()
        if not self.live:
            if self.userspace != self.version:
                raise SettingError(
                    f"Expected the driver's libraries of version {self.version} in the image, found "
                    f"{self.userspace or 'none'}: look at the packages that were installed."
                )
            return
        if self.after_boot_s:
            loaded_state.wait_for_driver(self.after_boot_s, module_builds.ROOT)
        # Through nvidia-modprobe it also loads the driver where nothing else has yet.
        self.processes, self.complaint = loaded_state.gpu_users(module_builds.ROOT)
        if self.reboot_due and not self.after_boot_s:
            return
        silent = bool(self.after_boot_s and self.complaint)
        if self.reboot_due or self.userspace != self.version or silent:
            raise SettingError(self.mismatch())
        self.versions, problem = runtime.prove(self.expected)
        if problem:
            raise SettingError(problem)
        node.unproven().unlink(missing_ok=True)

    def make(self) -> dict[str, Any]:
        """Apply it; where another driver is loaded, only a reboot helps."""
        self.apply()
        return {"driver": self.result()} if self.reboot_due else {}

    def mismatch(self) -> str:
        """Return what is expected, what was found, and where to look."""
        return (
            f"Expected driver {self.version} to be loaded and to answer, with its libraries of the same "
            f"version, found {self.loaded or 'none'} loaded and libraries of {self.userspace or 'none'} on "
            f"kernel {platform.release()} ({self.complaint or 'nvidia-smi reports no error'}). Look at "
            "`dkms status` and `journalctl -k` on the node."
        )

    def restore(self, state: State) -> None:
        """There is no way back to another driver without its packages and a reboot."""
        if self.read() != state:
            raise SettingError(
                f"Temper has no way back to driver {state['loaded'] or 'none'} yet: install its packages, "
                "build its modules, and reboot."
            )

    def result(self) -> dict[str, Any]:
        """Return what is loaded and whether a reboot is due.

        The processes on the GPUs are among it only after `apply` has asked for them.
        """
        return {
            **self.modules.result(),
            "loaded_version": self.loaded,
            "userspace_version": self.userspace,
            "nouveau_loaded": loaded_state.nouveau_loaded(module_builds.ROOT),
            "compute_processes": self.processes,
            "smi_error": self.complaint,
            "reboot_due": self.reboot_due,
            "versions": self.versions,
        }
