"""The nvidia module of every installed kernel as one setting: there, of the planned version, and signed."""

from __future__ import annotations

import functools
import platform
import ssl
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver.kernel_modules import installed_kernels, nvidia_modules, vermagic
from ansible.module_utils.temper.driver.secure_boot import serial_number
from ansible.module_utils.temper.packaging import dkms
from ansible.module_utils.temper.settings.base import Difference, Setting, SettingError, State

ROOT = Path("/")
LAST_LINES = 5
# DKMS compiles the module for minutes on a small machine; nobody waits longer than this.
BUILD_TIMEOUT_S = 3600
HEADERS = {"apt": "linux-headers-{}", "dnf": "'kernel-devel-uname-r = {}'"}
REMOVAL = {"apt": "apt-get purge linux-image-{}", "dnf": "dnf remove 'kernel-uname-r = {}'"}

Kernels = dict[str, dict[str, Any]]


class KernelModules(Setting):
    """The module of one version in every kernel that could boot.

    `dkms_name` is the module's name in DKMS, empty for precompiled ones; `certificate` (PEM) must have signed
    it, where it is given. `kernel` is the one that an image boots: of modules there, the files themselves
    must say that they are for their kernel, because DKMS builds for the builder's as well.
    """

    key = "driver:modules"

    def __init__(
        self, version: str, dkms_name: str, certificate: str, package_manager: str, kernel: str = ""
    ) -> None:
        self.kernel = kernel
        self.spec = {}
        self.version = version
        self.dkms_name = dkms_name
        self.manager = package_manager
        certificate = certificate.strip()
        self.serial = serial_number(ssl.PEM_cert_to_DER_cert(certificate)) if certificate else None
        self.built: list[str] | None = None

    @functools.cached_property
    def kernels(self) -> Kernels:
        """Kernel -> headers_present, and its module's version, signer and signing_key."""
        kernels = installed_kernels(ROOT, self.kernel or platform.release())
        releases = [kernel["release"] for kernel in kernels]
        modules = nvidia_modules(ROOT, releases, signers=self.serial is not None)
        none = {"version": None, "signer": None, "signing_key": None}
        found = {kernel["release"]: kernel | (modules[kernel["release"]] or none) for kernel in kernels}
        if self.kernel:
            for release in releases:
                found[release]["vermagic"] = vermagic(ROOT, release)
        return found

    def lacking(self) -> dict[str, str]:
        """Return what is wrong with the module, by kernel."""
        reasons = {name: lack(kernel, self.version, self.serial) for name, kernel in self.kernels.items()}
        return {release: reason for release, reason in reasons.items() if reason}

    def hindrance(self, release: str) -> str | None:
        """Return why no module can be built for a kernel, or None."""
        if not self.dkms_name:
            return ", and the driver's packages bring none for it"
        if not self.kernels[release]["headers_present"]:
            return f", because its headers are missing: install {HEADERS[self.manager].format(release)}"
        return None if process.which("dkms") else ", and dkms is not installed"

    def buildable(self) -> list[str]:
        """Return the kernels that DKMS has to build the module for, and can."""
        return [release for release in self.lacking() if not self.hindrance(release)]

    def read(self) -> State:
        """Return the module's version by kernel."""
        return {release: kernel["version"] for release, kernel in self.kernels.items()}

    def settled(self) -> bool:
        """Return whether every kernel has the module."""
        return not self.lacking()

    def change(self) -> list[Difference]:
        """Return the kernels whose module is built."""
        return [
            Difference(
                f"nvidia module of kernel {release}", self.kernels[release]["version"] or "", self.version
            )
            for release in self.buildable()
        ]

    def apply(self) -> None:
        """Build where it can be built. Raises SettingError that names every kernel which stays without."""
        lacking, self.built = self.lacking(), self.buildable()
        causes = {
            release: f"{reason}{self.hindrance(release)}"
            for release, reason in lacking.items()
            if release not in self.built
        }
        for release in self.built:
            failure = build(self.dkms_name, self.version, release)
            if failure:
                causes[release] = f"{lacking[release]}. {failure}"
        self.forget()
        for release, reason in self.lacking().items():
            if release not in causes:
                causes[release] = (
                    f"DKMS reports success, but {reason}. Look at `dkms status` and `modinfo nvidia`"
                )
        sentences = [
            f"Kernel {release} would boot without the driver: {cause}. {remedy(release, self.manager)}."
            for release, cause in causes.items()
        ]
        if sentences:
            raise SettingError(" ".join(sentences))

    def others(self) -> dict[str, str]:
        """Return the version of each kernel's module file, where that is not the planned one.

        The files themselves are read, not DKMS's record of them: seconds where they are compressed.
        """
        modules = nvidia_modules(ROOT, list(self.kernels), signers=True)
        versions = {release: module["version"] for release, module in modules.items() if module}
        return {release: found for release, found in versions.items() if found and found != self.version}

    def reinstall(self, release: str) -> list[str]:
        """Return the repair that puts the planned module back in its place."""
        if self.dkms_name:
            return ["install-module-dkms", self.dkms_name, self.version, release]
        return [f"reinstall-module-{self.manager}", release]

    def forget(self) -> None:
        """Forget what was read, because the modules are others now."""
        self.__dict__.pop("kernels", None)

    def restore(self, state: State) -> None:
        """There is no way back: DKMS's modules belong to the driver's packages."""
        if self.read() != state:
            raise SettingError(
                "Temper has no way back to other kernel modules yet: they come with the driver's packages."
            )

    def result(self) -> dict[str, Any]:
        """Return the kernels that the module was built for, or would be, and the versions of all."""
        return {"built": self.buildable() if self.built is None else self.built, "kernels": self.read()}


def lack(kernel: dict[str, Any], version: str, serial: int | None) -> str | None:
    """Return what is wrong with the module of a kernel; None if nothing is."""
    if kernel["version"] is None:
        return "it has no nvidia module"
    if kernel["version"] != version:
        return f"its nvidia module is of version {kernel['version']}, expected {version}"
    if "vermagic" in kernel and kernel["vermagic"] != kernel["release"]:
        return f"its nvidia module is built for kernel {kernel['vermagic'] or 'unknown'}"
    if serial is None:
        return None
    key = kernel["signing_key"]
    if not key:
        return "its nvidia module is not signed"
    if int(key.replace(":", ""), 16) != serial:
        return f"its nvidia module is signed by {kernel['signer']}, not with the given certificate"
    return None


def build(name: str, version: str, release: str) -> str | None:
    """Have DKMS build, sign and install the module for a kernel; why it did not, or None.

    With --force, because a module that was built before may be signed with another key.
    """
    arguments = ["-m", name, "-v", version, "-k", release, "--force"]
    output = ""
    for step in ("build", "install"):
        try:
            completed = process.complete(["dkms", step, *arguments], BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"`dkms {step}` did not end within {BUILD_TIMEOUT_S} s"
        output += completed.stdout + completed.stderr
        if completed.returncode:
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            return " ".join(dkms.failures(output)) or " ".join(lines[-LAST_LINES:])
    return None


def remedy(release: str, manager: str) -> str:
    """Return what to do about a kernel that cannot get the module."""
    return (
        f"Remove that kernel if it shall not boot again (`{REMOVAL[manager].format(release)}`), or correct "
        "the cause, and run again"
    )
