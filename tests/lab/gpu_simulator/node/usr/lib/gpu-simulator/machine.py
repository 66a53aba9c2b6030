#!/usr/bin/python3 -I
"""The simulated GPUs of a lab node as its kernel would show them: in /sys, /proc/driver and /dev.

Usage:
    machine.py boot                 at boot: put everything in place, then load the module that a real server
    would load machine.py load                 load the nvidia module if that is possible (what
    nvidia-modprobe does) machine.py fault NAME on|off    switch a fault on or off, at once machine.py refresh
    bring sysfs in line with faults.json after somebody else wrote that file

Reads /var/lib/gpu-simulator/hardware.json (made with the node) and faults.json beside it. Whatever it mounts
is mounted in its own mount namespace, and it refuses to do so outside a container.

Exit status: 0 done, 1 not possible (the reason is on standard error), 2 wrong usage.

GPU_SIMULATOR_ROOT puts another directory in the place of / and mounts nothing: for tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import struct
import sys
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("GPU_SIMULATOR_ROOT", "/"))
IN_PLACE = str(ROOT) == "/"
STATE = ROOT / "var/lib/gpu-simulator"  # outlives a reboot
RUN = ROOT / "run/gpu-simulator"  # does not
PCI = ROOT / "sys/bus/pci"
CLASSES = ROOT / "sys/class"
MODULES = ROOT / "sys/module"
PROC = ROOT / "proc/driver"

# The same names as tests/lab/gpu_simulator/faults.py, which describes them; a test compares the two.
FAULTS = (
    "compute-process",
    "ecc-errors",
    "fabric-not-ready",
    "gpu-lost",
    "module-build-fails",
    "no-driver",
    "pcie-gen1",
    "row-remap-failure",
    "throttling",
)

LINK_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}  # GT/s, by PCIe generation
MODULE_NAMES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096

Hardware = dict[str, Any]


class RefusalError(Exception):
    """Something that this node, as it is, cannot do."""


# ---------------------------------------------------------------- files


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_json(path: Path, value: object) -> None:
    """Replace `path` in one step: nvidia-smi may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.replace(path)


def read_json(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default


def hardware() -> Hardware:
    path = STATE / "hardware.json"
    found: Hardware | None = read_json(path, None)
    if found is None:
        raise RefusalError(f"expected the node's hardware in {path}, found no file: create the node again")
    return found


def faults() -> set[str]:
    return set(read_json(STATE / "faults.json", []))


# ---------------------------------------------------------------- mounts


def mount(source: Path | None, target: Path, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    name = None if source is None else os.fsencode(source)
    if libc.mount(name, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        error = ctypes.get_errno()
        raise RefusalError(f"expected to mount {source} on {target}, found: {os.strerror(error)}")


def require_node() -> None:
    """Refuse to mount over the /sys and /proc of a machine that is no lab node."""
    if not Path("/run/systemd/container").exists():
        raise RefusalError(
            "expected to run inside a lab node, found a machine that is no container: start it in a node"
        )


def make_directory(target: Path) -> None:
    """Create `target` below /sys although that is mounted read-only (a tmpfs of the node's own)."""
    mount(None, Path("/sys"), MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    try:
        target.mkdir()
    finally:
        mount(None, Path("/sys"), MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)


def is_real_nvidia(entry: Path) -> bool:
    """Whether a host's own entry would contradict the simulation: its NVIDIA devices and modules."""
    if entry.name.startswith("nvidia") or entry.name == "nouveau":
        return True
    vendor = entry / "vendor"
    return vendor.is_file() and vendor.read_text().strip() == "0x10de"


def shadow(target: Path, keep_below: tuple[str, ...] = ()) -> None:
    """Make `target` a writable directory with the entries it had.

    What is to stay is linked to a second mount of the original. Directories named in `keep_below` are made
    anew, with links to their entries, so that they are writable too.
    """
    if not IN_PLACE:
        for name in ("", *keep_below):
            (target / name).mkdir(parents=True, exist_ok=True)
        return
    label = "-".join(target.parts[1:])
    original, replacement = RUN / "original" / label, RUN / "replacement" / label
    if replacement.exists():
        return
    original.mkdir(parents=True)
    for name in ("", *keep_below):
        (replacement / name).mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        mount(target, original, MS_BIND)
        for name in ("", *keep_below):
            link_entries(target / name, original / name, replacement / name)
    else:
        make_directory(target)
    mount(replacement, target, MS_BIND)


def link_entries(source: Path, original: Path, replacement: Path) -> None:
    """Link what `source` has into `replacement`, but what is there already and what is NVIDIA's."""
    for entry in source.iterdir() if source.is_dir() else ():
        place = replacement / entry.name
        if not place.exists() and not is_real_nvidia(entry):
            # A link in sysfs is relative to its place, so it is followed here; its end lies outside of
            # `source`.
            place.symlink_to(entry.resolve() if entry.is_symlink() else original / entry.name)


# ---------------------------------------------------------------- PCI


def link_state(gpu: Hardware, active: set[str], index: int, count: int) -> tuple[str, str]:
    """Current speed and width as sysfs prints them. A lost device answers every read with all bits set."""
    if "gpu-lost" in active and index == count - 1:
        return "Unknown", "63"
    generation = 1 if "pcie-gen1" in active and index == 0 else gpu["pcie_gen_max"]
    return f"{LINK_SPEEDS[generation]} GT/s PCIe", str(gpu["pcie_width_max"])


def add_device(address: str, device_id: str, subsystem_id: str, pci_class: str, numa_node: int) -> Path:
    """Add one NVIDIA PCI function to sysfs, with what lspci and udev's tools read of it."""
    device, subsystem = device_id.upper(), subsystem_id.upper()
    directory = PCI / "devices" / address
    code = f"bc{pci_class[:2]}sc{pci_class[2:4]}i{pci_class[4:]}"
    alias = f"pci:v000010DEd0000{device}sv000010DEsd0000{subsystem}{code}"
    attributes = {
        "vendor": "0x10de",
        "device": f"0x{device_id}",
        "class": f"0x{pci_class}",
        "subsystem_vendor": "0x10de",
        "subsystem_device": f"0x{subsystem_id}",
        "revision": "0xa1",
        "numa_node": str(numa_node),
        "irq": "0",
        "enable": "1",
        "modalias": alias,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
        "uevent": f"PCI_CLASS={pci_class.lstrip('0').upper()}\nPCI_ID=10DE:{device}\n"
        f"PCI_SUBSYS_ID=10DE:{subsystem}\nPCI_SLOT_NAME={address}\nMODALIAS={alias}",
    }
    for name, value in attributes.items():
        write(directory / name, value + "\n")
    # The first 64 bytes of the configuration space: ids, command, status, revision, class, subsystem.
    ids = struct.pack("<HHHHB", 0x10DE, int(device_id, 16), 0x0006, 0x0010, 0xA1)
    code_bytes = bytes.fromhex(pci_class)[::-1]
    subsystem_ids = struct.pack("<HH", 0x10DE, int(subsystem_id, 16))
    (directory / "config").write_bytes(ids + code_bytes + bytes(32) + subsystem_ids + bytes(16))
    return directory


def add_devices(machine: Hardware, active: set[str]) -> None:
    gpus = machine["gpus"]
    for index, gpu in enumerate(gpus):
        if "gpu-lost" in active and index == len(gpus) - 1:
            continue  # a GPU that fell off the bus is not found again by the next boot
        directory = add_device(
            gpu["address"], gpu["device_id"], gpu["subsystem_id"], "030200", gpu["numa_node"]
        )
        write(directory / "max_link_speed", f"{LINK_SPEEDS[gpu['pcie_gen_max']]} GT/s PCIe\n")
        write(directory / "max_link_width", f"{gpu['pcie_width_max']}\n")
    for switch in machine["nvswitches"]:
        add_device(
            switch["address"], switch["device_id"], switch["subsystem_id"], "068000", switch["numa_node"]
        )
    add_switch_managers(machine.get("switch_managers", []))
    update_links(machine, active)


def add_switch_managers(names: list[str]) -> None:
    """Add InfiniBand devices that manage NVLink 5 switches: their vital product data says so."""
    if names:
        shadow(CLASSES, keep_below=("infiniband",))
    for name in names:
        vpd = CLASSES / "infiniband" / name / "device/vpd"
        vpd.parent.mkdir(parents=True, exist_ok=True)
        # Large resource 0x82 (the name), then 0x90 (read-only fields); which field has the mark is assumed.
        vpd.write_bytes(b"\x82\x11\x00NVIDIA ConnectX-7\x90\x09\x00V3\x06SW_MNG\x78")


def update_links(machine: Hardware, active: set[str]) -> None:
    gpus = machine["gpus"]
    for index, gpu in enumerate(gpus):
        directory = PCI / "devices" / gpu["address"]
        if directory.is_dir():
            speed, width = link_state(gpu, active, index, len(gpus))
            write(directory / "current_link_speed", f"{speed}\n")
            write(directory / "current_link_width", f"{width}\n")


def bind(address: str, driver: str) -> None:
    """Give a PCI device to a driver, as far as sysfs tells."""
    directory, home = PCI / "devices" / address, PCI / "drivers" / driver
    home.mkdir(parents=True, exist_ok=True)
    (directory / "driver").symlink_to(os.path.relpath(home, directory))
    (home / address).symlink_to(os.path.relpath(directory, home))


def unbind_all(driver: str) -> None:
    home = PCI / "drivers" / driver
    if home.is_dir():
        for link in home.iterdir():
            (PCI / "devices" / link.name / "driver").unlink()
        shutil.rmtree(home)


# ---------------------------------------------------------------- modules


def module_on_disk() -> Hardware | None:
    """Return the simulated module for the running kernel, {"version", "flavour"}; None if none was built."""
    path = ROOT / "lib/modules" / os.uname().release / "updates/dkms/nvidia.ko"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    start = content.index(b'{"simulated"')
    found: Hardware = json.loads(content[start : content.index(b"}", start) + 1])
    return found


def loaded_version() -> str | None:
    try:
        return (MODULES / "nvidia/version").read_text().strip()
    except FileNotFoundError:
        return None


def nouveau_is_loaded() -> bool:
    return (MODULES / "nouveau").is_dir()


def modprobe_lines() -> list[list[str]]:
    """Read modprobe.d as modprobe does: a file hides its namesakes in directories of lower rank."""
    files: dict[str, Path] = {}
    for directory in ("lib", "usr/lib", "usr/local/lib", "run", "etc"):
        for path in (ROOT / directory / "modprobe.d").glob("*.conf"):
            files[path.name] = path
    return [line.split() for path in files.values() for line in path.read_text().splitlines()]


def nouveau_is_blacklisted() -> bool:
    never = (
        ["blacklist", "nouveau"],
        ["install", "nouveau", "/bin/false"],
        ["install", "nouveau", "/bin/true"],
    )
    return any(line in never for line in modprobe_lines())


def counters_are_open() -> bool:
    """Say whether the module is loaded with access to the performance counters for everybody."""
    option = "NVreg_RestrictProfilingToAdminUsers=0"
    return any(line[:2] == ["options", "nvidia"] and option in line for line in modprobe_lines())


def drives(module: Hardware, gpu: Hardware) -> bool:
    """Say whether this build of the nvidia module drives this GPU."""
    return bool(gpu["known_to_driver"] and gpu["branch_min"] <= int(module["version"].split(".")[0]))


def module_banner(module: Hardware) -> str:
    """Return /proc/driver/nvidia/version in the real format; builder and date are the simulator's."""
    machine = os.uname().machine
    if module["flavour"] == "open":
        kind, build = f"Open Kernel Module for {machine}", "  Release Build  (simulated@temper)"
    else:
        kind, build = f"{machine} Kernel Module", ""
    return (
        f"NVRM version: NVIDIA UNIX {kind}  {module['version']}{build}  Fri Nov 20 00:00:00 UTC 2026\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
    )


def information(gpu: Hardware, module: Hardware) -> str:
    """Return a GPU's file in /proc/driver/nvidia/gpus."""
    lines = {
        "Model": gpu["name"],
        "IRQ": "0",
        "GPU UUID": gpu["uuid"],
        "Video BIOS": gpu["vbios_version"],
        "Bus Type": "PCIe",
        "DMA Size": "52 bits",
        "DMA Mask": "0xfffffffffffff",
        "Bus Location": gpu["address"],
        "Device Minor": gpu["index"],
        "GPU Firmware": module["version"],
        "GPU Excluded": "No",
    }
    return "".join(f"{name}:\t {value}\n" for name, value in lines.items())


def load() -> None:
    """Load the nvidia module that is on disk.

    Raises RefusalError with the reason for which a real module would not load.
    """
    if loaded_version() is not None:
        return
    module = module_on_disk()
    if module is None:
        kernel = os.uname().release
        raise RefusalError(f"expected an nvidia module for kernel {kernel}, found none: install the driver")
    if "no-driver" in faults():
        raise RefusalError("the nvidia module does not load: fault no-driver is on")
    if nouveau_is_loaded():
        raise RefusalError("the nvidia module does not load: nouveau holds the GPUs; blacklist it and reboot")
    machine = hardware()
    present = [gpu for gpu in machine["gpus"] if (PCI / "devices" / gpu["address"]).is_dir()]
    driven = [gpu for gpu in present if drives(module, gpu)]
    if not driven:
        names = ", ".join(sorted({gpu["name"] for gpu in present})) or "none"
        what = f"the {module['flavour']} nvidia module {module['version']}"
        raise RefusalError(f"{what} does not load: it drives no GPU of this node ({names})")
    for name in MODULE_NAMES:
        for attribute, value in (("version", module["version"]), ("initstate", "live"), ("refcnt", "0")):
            write(MODULES / name / attribute, f"{value}\n")
    for gpu in driven:
        bind(gpu["address"], "nvidia")
        write(PROC / "nvidia/gpus" / gpu["address"] / "information", information(gpu, module))
    for switch in machine["nvswitches"]:
        bind(switch["address"], "nvidia-nvswitch")
        write(PROC / "nvidia-nvswitch/devices" / switch["address"], "")
    write(PROC / "nvidia/version", module_banner(module))
    write(PROC / "nvidia/params", f"RmProfilingAdminOnly: {0 if counters_are_open() else 1}\n")
    make_device_nodes(len(driven), len(machine["nvswitches"]))


def make_device_nodes(gpus: int, nvswitches: int) -> None:
    names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{index}" for index in range(gpus))]
    if nvswitches:
        names += ["nvidia-nvswitchctl", *(f"nvidia-nvswitch{index}" for index in range(nvswitches))]
    for name in names:
        path = ROOT / "dev" / name
        if path.exists():
            continue
        if IN_PLACE:
            # The numbers of /dev/null, not NVIDIA's: on a host with real GPUs these would open them.
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            path.chmod(0o666)
        else:
            write(path, "")


def unload() -> None:
    unbind_all("nvidia")
    unbind_all("nvidia-nvswitch")
    for directory in (*(MODULES / name for name in MODULE_NAMES), PROC / "nvidia", PROC / "nvidia-nvswitch"):
        if directory.is_dir():
            shutil.rmtree(directory)
    for name in ("settings.json", "mig.json"):
        (RUN / name).unlink(missing_ok=True)  # the driver forgets with its module


def load_nouveau(machine: Hardware) -> None:
    write(MODULES / "nouveau/initstate", "live\n")
    for gpu in machine["gpus"]:
        if (PCI / "devices" / gpu["address"]).is_dir():
            bind(gpu["address"], "nouveau")


# ---------------------------------------------------------------- commands


def boot() -> None:
    if IN_PLACE:
        require_node()
    machine, active = hardware(), faults()
    RUN.mkdir(parents=True, exist_ok=True)
    shadow(PCI, keep_below=("devices", "drivers"))
    shadow(MODULES)
    shadow(PROC)
    # Modes that GPUs keep in their InfoROM take effect now.
    write_json(RUN / "inforom.json", read_json(STATE / "inforom.json", {}))
    add_devices(machine, active)
    if not nouveau_is_blacklisted():
        load_nouveau(machine)
        return
    try:
        load()
    except RefusalError as reason:
        print(f"gpu-simulator: {reason}")  # into the journal, as the kernel log would have it


def refresh() -> None:
    active = faults()
    update_links(hardware(), active)
    if "no-driver" in active:
        unload()
    elif loaded_version() is None and module_on_disk() is not None and not nouveau_is_loaded():
        load()


def set_fault(name: str, state: str) -> None:
    if name not in FAULTS:
        raise SystemExit(usage(f"unknown fault {name}: expected one of {', '.join(FAULTS)}"))
    active = faults()
    if state == "on":
        active.add(name)
    else:
        active.discard(name)
    write_json(STATE / "faults.json", sorted(active))
    refresh()


def usage(problem: str) -> int:
    print(f"gpu-simulator: {problem}", file=sys.stderr)
    return 2


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["boot"]:
                boot()
            case ["load"]:
                load()
            case ["refresh"]:
                refresh()
            case ["fault", name, "on" | "off" as state]:
                set_fault(name, state)
            case _:
                return usage("expected boot, load, refresh or fault NAME on|off")
    except RefusalError as reason:
        print(f"gpu-simulator: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
