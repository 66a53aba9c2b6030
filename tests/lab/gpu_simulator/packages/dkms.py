#!/usr/bin/python3 -I
"""dkms, simulated by Temper's lab: the commands, files, words and exit status of dkms 3.2 that others use.

The real one needs a compiler, make and a kernel's headers, 250 MB on each node. This one runs the module's
own MAKE command in the same places, keeps the same tree in /var/lib/dkms, signs with openssl what the real
one signs with the kernel's sign-file, and installs modules where modprobe looks for them.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

VERSION = "@VERSION@"
ROOT = Path(os.environ.get("GPU_SIMULATOR_ROOT", "/"))
TREE = ROOT / "var/lib/dkms"
MODULES = ROOT / "lib/modules"
ARCHITECTURE = os.uname().machine


class DkmsError(Exception):
    """Ends the program with the real one's exit status and words."""

    def __init__(self, status: int, *lines: str) -> None:
        super().__init__("\n".join((f"Error! {lines[0]}", *lines[1:])))
        self.status = status


def framework() -> dict[str, str]:
    """Read the configuration: the later of two files wins."""
    files = [ROOT / "etc/dkms/framework.conf", *sorted((ROOT / "etc/dkms/framework.conf.d").glob("*.conf"))]
    text = "\n".join(path.read_text() for path in files if path.is_file())
    return dict(re.findall(r'^\s*(\w+)="?([^"\n]*)"?\s*$', text, re.MULTILINE))


class Module:
    """A module at one version."""

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.home = TREE / name / version
        self.source = ROOT / f"usr/src/{name}-{version}"

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    def built(self, kernel: str) -> Path:
        """Return where what was built for a kernel is kept."""
        return self.home / kernel / ARCHITECTURE

    def link(self, kernel: str) -> Path:
        """Return the link that says which version is installed for a kernel."""
        return TREE / self.name / f"kernel-{kernel}-{ARCHITECTURE}"

    def installed(self, kernel: str) -> bool:
        link = self.link(kernel)
        return link.is_symlink() and link.readlink().parts[0] == self.version

    def setting(self, name: str) -> str:
        found = re.search(
            rf'^{re.escape(name)}="(.*)"$', (self.source / "dkms.conf").read_text(), re.MULTILINE
        )
        return found[1] if found else ""

    def add(self) -> None:
        if (self.home / "source").is_symlink():
            raise DkmsError(3, f"DKMS tree already contains: {self}")
        if not (self.source / "dkms.conf").is_file():
            raise DkmsError(
                2, f"Could not find module source directory.\nDirectory: {self.source} does not exist."
            )
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "source").symlink_to(self.source)

    def build(self, kernel: str, *, force: bool) -> None:
        if (self.built(kernel) / "module").is_dir():
            if not force:
                return
            shutil.rmtree(self.built(kernel))
        if not (MODULES / kernel / "build").exists():
            raise DkmsError(
                21,
                f"Your kernel headers for kernel {kernel} cannot be found at /lib/modules/{kernel}/build or "
                f"/lib/modules/{kernel}/source.",
                f"Please install the linux-headers-{kernel} package or use the --kernelsourcedir option to "
                "tell DKMS where it's located.",
            )
        name = self.setting("BUILT_MODULE_NAME[0]")
        work = self.home / "build"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.source, work)
        sign, key, certificate = signing()
        print(f"Building module(s)... for {kernel}", flush=True)
        with (work / "make.log").open("w") as log:
            log.write(f"DKMS (dkms-{VERSION}) make.log for {self} for kernel {kernel} ({ARCHITECTURE})\n")
            log.write(f"{time.asctime()}\n\nBuilding module(s)\n# command: {self.setting('MAKE[0]')}\n")
            log.flush()
            environment = {**os.environ, "kernelver": kernel, "LC_ALL": "C.UTF-8"}
            status = subprocess.run(
                ["sh", "-c", self.setting("MAKE[0]")],
                cwd=work,
                stdout=log,
                stderr=log,
                env=environment,
                check=False,
            ).returncode
            log.write(f"\n# exit code: {status}\n")
        if status:
            raise DkmsError(
                10,
                f"Bad return status for module build on kernel: {kernel} ({ARCHITECTURE})",
                f"Consult {work}/make.log for more information.",
            )
        place = self.built(kernel)
        for folder in ("log", "module"):
            (place / folder).mkdir(parents=True)
        content = (work / f"{name}.ko").read_bytes()
        if sign:
            print(f"Signing module {work}/{name}.ko", flush=True)
            content = signed(content, key, certificate)
        (place / "module" / f"{name}.ko").write_bytes(content)
        (work / "make.log").rename(place / "log/make.log")
        shutil.rmtree(work)

    def install(self, kernel: str, *, force: bool) -> None:
        if not (MODULES / kernel).is_dir():
            raise DkmsError(6, f"The directory /lib/modules/{kernel} doesn't exist.")
        self.build(kernel, force=False)
        if self.installed(kernel) and not force:
            raise DkmsError(
                5, f"This module/version combo is already installed for kernel {kernel} ({ARCHITECTURE})."
            )
        target = MODULES / kernel / "updates/dkms"
        target.mkdir(parents=True, exist_ok=True)
        for path in (self.built(kernel) / "module").iterdir():
            print(f"Installing {target / path.name}")
            shutil.copy(path, target)
        link = self.link(kernel)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{self.version}/{kernel}/{ARCHITECTURE}")
        depmod(kernel)

    def uninstall(self, kernel: str) -> None:
        if not self.installed(kernel):
            return
        for path in (self.built(kernel) / "module").iterdir():
            (MODULES / kernel / "updates/dkms" / path.name).unlink(missing_ok=True)
        self.link(kernel).unlink()
        depmod(kernel)

    def kernels(self) -> list[str]:
        return sorted(path.parent.parent.name for path in self.home.glob("*/*/module"))

    def remove(self, kernel: str | None) -> None:
        if not (self.home / "source").is_symlink():
            raise DkmsError(3, f"The module/version combo: {self} is not located in the DKMS tree.")
        for each in [kernel] if kernel else self.kernels():
            self.uninstall(each)
            shutil.rmtree(self.home / each, ignore_errors=True)
        if kernel is None or not self.kernels():
            shutil.rmtree(self.home)
            if not any(self.home.parent.iterdir()):
                self.home.parent.rmdir()

    def status(self, kernel: str | None) -> list[str]:
        lines = []
        for each in self.kernels():
            if kernel in (None, each):
                state = "installed" if self.installed(each) else "built"
                lines.append(f"{self}, {each}, {ARCHITECTURE}: {state}{self.difference(each)}")
        return lines or ([f"{self}: added"] if not self.kernels() and kernel is None else [])

    def difference(self, kernel: str) -> str:
        for path in (self.built(kernel) / "module").iterdir() if self.installed(kernel) else ():
            there = MODULES / kernel / "updates/dkms" / path.name
            if not there.is_file() or there.read_bytes() != path.read_bytes():
                return " (Differences between built and installed modules)"
        return ""


def depmod(kernel: str) -> None:
    command = ["depmod", *([] if str(ROOT) == "/" else ["-b", str(ROOT)]), kernel]
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def signing() -> tuple[bool, Path, Path]:
    """Say whether modules are signed, and with what; like the real one, make a key that is missing."""
    settings = framework()
    key = ROOT / settings.get("mok_signing_key", "/var/lib/dkms/mok.key").lstrip("/")
    certificate = ROOT / settings.get("mok_certificate", "/var/lib/dkms/mok.pub").lstrip("/")
    if not shutil.which("openssl"):
        print("openssl not found, can't generate key and certificate, modules won't be signed")
        return False, key, certificate
    if not (key.is_file() and certificate.is_file()):
        key.parent.mkdir(parents=True, exist_ok=True)
        # The real one makes an RSA key, which takes much longer.
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        owner = ["-days", "36500", "-subj", "/CN=DKMS module signing key"]
        files = ["-keyout", str(key), "-outform", "DER", "-out", str(certificate)]
        command = ["openssl", "req", "-new", "-x509", "-nodes", *kind, *owner, *files]
        subprocess.run(command, check=True, capture_output=True)
    print(f"Signing key: {key}\nPublic certificate (MOK): {certificate}")
    return True, key, certificate


def signed(content: bytes, key: Path, certificate: Path) -> bytes:
    """Append a signature in the format of the kernel's sign-file."""
    options = ["-binary", "-noattr", "-nocerts", "-outform", "DER", "-md", "sha512"]
    result = subprocess.run(
        ["openssl", "cms", "-sign", *options, "-signer", str(certificate), "-inkey", str(key)],
        input=content,
        capture_output=True,
        check=False,
    )
    if result.returncode:
        raise DkmsError(6, "Failed to sign module", result.stderr.decode(errors="replace").strip())
    signature = result.stdout
    return (
        content
        + signature
        + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(signature))
        + b"~Module signature appended~\n"
    )


def added() -> list[Module]:
    return [Module(path.parent.parent.name, path.parent.name) for path in sorted(TREE.glob("*/*/source"))]


def autoinstall(kernels: list[str]) -> None:
    """Build and install what is missing; a module that fails does not keep the others from theirs."""
    failed = []
    for kernel in kernels:
        for module in added():
            if module.setting("AUTOINSTALL") != "yes" or module.installed(kernel):
                continue
            print(f"Autoinstall of module {module} for kernel {kernel} ({ARCHITECTURE})", flush=True)
            try:
                module.install(kernel, force=False)
            except DkmsError as error:
                print(error, file=sys.stderr)
                failed.append(f"{module}({error.status})")
    if failed:
        raise DkmsError(
            11,
            f"One or more modules failed to install during autoinstall: {' '.join(failed)}.",
            "Refer to previous errors for more information.",
        )


def parse(arguments: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """Split the command line into the command, its options and the kernels."""
    names = {"-m": "module", "-v": "version", "-k": "kernel", "-a": "arch", "--kernelver": "kernel"}
    options: dict[str, str] = {}
    kernels = []
    rest = arguments[1:]
    while rest:
        argument = rest.pop(0)
        if argument in ("--force", "--all", "-q", "--quiet"):
            options[argument] = "yes"
        elif names.get(argument) == "kernel":
            kernels.append(rest.pop(0))
        elif argument in names:
            options[names[argument]] = rest.pop(0)
        elif not argument.startswith("-"):
            options["module"] = argument
        else:
            raise DkmsError(1, f"Unknown option: {argument}")
    name, slash, version = options.get("module", "").partition("/")
    if slash:
        options.update(module=name, version=version)
    return arguments[0], options, kernels


def run(arguments: list[str]) -> None:
    if not arguments or arguments[0] == "--version":
        print(f"dkms-{VERSION} (simulated by Temper's lab)")
        return
    command, options, given = parse(arguments)
    if command == "status":
        for module in added():
            wanted = options.get("module", module.name), options.get("version", module.version)
            if (module.name, module.version) == wanted:
                print("".join(f"{line}\n" for line in module.status(given[0] if given else None)), end="")
        return
    kernels = given or [os.uname().release]
    if command == "autoinstall":
        autoinstall(kernels)
        return
    if not {"module", "version"} <= options.keys():
        raise DkmsError(1, "Arguments <module> and <module-version> are not specified.")
    module, force = Module(options["module"], options["version"]), "--force" in options
    if command == "add":
        module.add()
    elif command == "remove":
        module.remove(None if "--all" in options else kernels[0])
    elif command in ("build", "install", "uninstall"):
        if not (module.home / "source").is_symlink():
            module.add()
        for kernel in kernels:
            if command == "build":
                module.build(kernel, force=force)
            elif command == "install":
                module.install(kernel, force=force)
            else:
                module.uninstall(kernel)
    else:
        raise DkmsError(1, f"Unknown command: {command}")


def main() -> int:
    try:
        run(sys.argv[1:])
    except DkmsError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
