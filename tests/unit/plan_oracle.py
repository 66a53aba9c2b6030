"""What an expert holds against a plan.

The rules are written down a second time, by hand, from the documents of NVIDIA, PyTorch and the
distributions: nothing here reads data/ or asks temper/plan/. So a wrong row or rule there shows as a
violation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PROPRIETARY, OPEN, BOTH = {"proprietary"}, {"open"}, {"open", "proprietary"}
ANY = 9999


class Generation(NamedTuple):
    """Driver branches, CUDA versions and flavours of kernel modules that a generation works with."""

    first_branch: int
    last_branch: int
    first_cuda: tuple[int, int]
    last_cuda: tuple[int, int]
    modules: set[str]


MAXWELL_TO_VOLTA = Generation(0, 580, (0, 0), (12, 9), PROPRIETARY)
TURING = Generation(410, ANY, (10, 0), (99, 0), BOTH)
AMPERE = Generation(450, ANY, (11, 0), (99, 0), BOTH)
ADA_HOPPER = Generation(520, ANY, (11, 8), (99, 0), BOTH)
BLACKWELL = Generation(570, ANY, (12, 8), (99, 0), OPEN)
RUBIN = Generation(615, ANY, (13, 4), (99, 0), OPEN)

# NVIDIA gives its chips PCI ids in blocks: first and last id, generation, compute capability.
CHIPS: tuple[tuple[int, int, Generation, float], ...] = (
    (0x1340, 0x13BF, MAXWELL_TO_VOLTA, 5.0),
    (0x13C0, 0x147F, MAXWELL_TO_VOLTA, 5.2),
    (0x15C0, 0x15FF, MAXWELL_TO_VOLTA, 6.0),
    (0x1600, 0x167F, MAXWELL_TO_VOLTA, 5.2),
    (0x1725, 0x172F, MAXWELL_TO_VOLTA, 6.0),
    (0x1740, 0x17BF, MAXWELL_TO_VOLTA, 5.0),
    (0x17C0, 0x17FF, MAXWELL_TO_VOLTA, 5.2),
    (0x1B00, 0x1D7F, MAXWELL_TO_VOLTA, 6.1),
    (0x1D80, 0x1DFF, MAXWELL_TO_VOLTA, 7.0),
    (0x1E00, 0x1FFF, TURING, 7.5),
    (0x2080, 0x20FF, AMPERE, 8.0),
    (0x2180, 0x21FF, TURING, 7.5),
    (0x2200, 0x227F, AMPERE, 8.6),
    (0x2300, 0x237F, ADA_HOPPER, 9.0),
    (0x2400, 0x25FF, AMPERE, 8.6),
    (0x2680, 0x28FF, ADA_HOPPER, 8.9),
    (0x2900, 0x29FF, BLACKWELL, 10.0),
    (0x2B80, 0x2DFF, BLACKWELL, 12.0),
    (0x2E00, 0x2E7F, BLACKWELL, 12.1),
    (0x2F00, 0x2F7F, BLACKWELL, 12.0),
    (0x3000, 0x30FF, RUBIN, 10.7),
    (0x3180, 0x327F, BLACKWELL, 10.3),
)
# A Hopper GPU in one package with a Grace CPU works with open modules alone.
GRACE_HOPPER = {"2342", "2345", "2348"}
GPU_CLASSES = {"0300", "0302"}
SWITCH_CLASS = "0680"
# Beside large GPUs, these are for a monitor: they have no say.
DISPLAY = {"1fb0", "102d"}

# By release: NVIDIA's folder, its first driver branch and first CUDA, the end of the driver's version.
RELEASES = {
    "debian-12": ("debian12", 0, (0, 0), "-1"),
    "debian-13": ("debian13", 590, (0, 0), "-1"),
    "ubuntu-22.04": ("ubuntu2204", 0, (0, 0), "-1ubuntu1"),
    "ubuntu-24.04": ("ubuntu2404", 0, (0, 0), "-1ubuntu1"),
    "ubuntu-26.04": ("ubuntu2604", 595, (13, 3), "-1ubuntu1"),
    "rhel-8": ("rhel8", 0, (0, 0), "-1.el8"),
    "rhel-9": ("rhel9", 0, (0, 0), "-1.el9"),
    "rhel-10": ("rhel10", 0, (13, 0), "-1.el10"),
}
# Drivers whose packages for Debian and Ubuntu were built a second time.
REBUILT = {"615.71.09"}
# Oldest driver that starts a CUDA of a major version.
CUDA_STARTS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}
# Before, open modules do not compile for kernels of today; from 620 on, there are no others.
FIRST_OPEN, FIRST_WITHOUT_PROPRIETARY = (580, 126, 9), 620
# Last cuDNN and last CUDA for Maxwell, Pascal and Volta.
LAST_CUDNN = (9, 10, 2)
TOOLKIT = {
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
}
# What Canonical has modules of the branch for servers for.
CANONICAL = {
    "ubuntu-22.04": "generic lowlatency aws azure gcp gke ibm nvidia oracle",
    "ubuntu-24.04": "generic lowlatency aws azure gcp gke ibm nvidia oracle",
    "ubuntu-26.04": "generic aws azure gcp ibm nvidia oracle",
}
# The newest kernels that Debian's own modules build for; GPUs that its branches do not list.
DEBIAN_KERNEL = (6, 12)
UNLISTED = {535: {"2335", "233b", "28b0", "230e"}, 550: {"233b", "230e"}}
# Pythons of Enterprise Linux beside its own.
EXTRA_PYTHONS = {"rhel-8": {"3.11", "3.12"}, "rhel-9": {"3.11", "3.12"}}


def numbers(text: str) -> tuple[int, ...]:
    """580.126.09 as numbers that compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def chip(device_id: str) -> tuple[Generation, float] | None:
    """Generation and compute capability of a PCI id."""
    number = int(device_id, 16)
    return next((row[2:] for row in CHIPS if row[0] <= number <= row[1]), None)


def compute_ids(facts: Mapping[str, Any]) -> list[str]:
    """The ids of the GPUs that decide."""
    found = [item["device_id"] for item in facts["pci"] if item["class_id"] in GPU_CLASSES]
    return [one for one in found if one not in DISPLAY] or found


def violations(facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a plan that was accepted."""
    if not plan["driver"]:
        yield "no driver"
        return
    name = plan["system"]
    yield from of_the_gpus(facts, plan)
    yield from of_the_driver(name, facts, values, plan)
    if facts["nvidia"]["userspace_version"] and not facts["packages"]:
        yield "a driver that no package owns is there"
    yield from of_the_packages(name, facts, values, plan)
    yield from of_the_headers(name, facts, values, plan)
    yield from of_secure_boot(facts, values, plan)
    yield from of_torch(name, facts, values, plan)


def of_the_gpus(facts: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """Branch, CUDA, cuDNN and flavour of the modules."""
    driver, cuda = plan["driver"], plan["cuda"]
    for device_id in compute_ids(facts):
        known = chip(device_id)
        if not known:
            if device_id not in plan["unknown_gpus"]:
                yield f"{device_id}: planned as if it were known"
            continue
        rule, capability = known
        if not rule.first_branch <= driver["branch"] <= rule.last_branch:
            yield f"{device_id}: driver branch {driver['branch']}"
        if driver["modules"] not in (OPEN if device_id in GRACE_HOPPER else rule.modules):
            yield f"{device_id}: {driver['modules']} modules"
        if cuda and not rule.first_cuda <= numbers(cuda)[:2] <= rule.last_cuda:
            yield f"{device_id}: CUDA {cuda}"
        cudnn = plan["runtime"]["cudnn"]
        if capability < 7.5 and cudnn and numbers(cudnn) > LAST_CUDNN:
            yield f"{device_id}: cuDNN {cudnn}"
        if device_id in UNLISTED.get(driver["branch"], ()):
            yield f"{device_id}: not listed by branch {driver['branch']}"


def of_the_driver(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[str]:
    """The driver by itself, with the repository, and with the kernels."""
    driver, cuda, distro = plan["driver"], plan["cuda"], plan["source"] == "distro"
    if driver["modules"] == "open" and numbers(driver["version"]) < FIRST_OPEN:
        yield f"open modules of {driver['version']} do not compile"
    if driver["modules"] == "proprietary" and driver["branch"] >= FIRST_WITHOUT_PROPRIETARY:
        yield f"{driver['version']} has no proprietary modules"
    if cuda and numbers(driver["version"]) < CUDA_STARTS[numbers(cuda)[0]]:
        yield f"CUDA {cuda} does not start on {driver['version']}"
    folder, first_branch, first_cuda, _ = RELEASES[name]
    from_nvidia = "download.nvidia.com" in values["nvidia_stack_cuda_repository_url"]
    if not distro and from_nvidia:
        if driver["branch"] < first_branch or numbers(cuda)[:2] < first_cuda:
            yield f"NVIDIA's repository for {name} has no {driver['version']} with CUDA {cuda}"
        if (name, facts["architecture"]) == ("debian-12", "aarch64"):
            yield "nothing shows packages for debian-12 on aarch64"
        place = f"{folder}/{'sbsa' if facts['architecture'] == 'aarch64' else 'x86_64'}"
        if not any(place in one["uri"] for one in plan["repositories"]):
            yield f"no repository {place}"
    if not distro and not all(one["fingerprints"] for one in plan["repositories"]):
        yield "a repository whose key has no fingerprint"
    if (
        driver["dkms"]
        and not name.startswith("rhel")
        and re.search(r"-(rt|realtime)\b", facts["kernel"]["release"])
    ):
        yield "modules that refuse to build for a real-time kernel"
    if distro and name in ("debian-12", "debian-13"):
        for release in (facts["kernel"]["release"], *(one["release"] for one in facts["kernels"])):
            own = re.search(r"(amd64|arm64)(-16k)?$", release)
            if own and numbers(release)[:2] > DEBIAN_KERNEL:
                yield f"Debian's driver is not known to build for {release}"


def fabric(facts: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """What joins the GPUs."""
    if values["nvidia_stack_fabric"] != "auto":
        return str(values["nvidia_stack_fabric"])
    if facts["nvlink_switch_managed"]:
        return "nvlink5"
    return "nvswitch" if any(one["class_id"] == SWITCH_CLASS for one in facts["pci"]) else "none"


def of_the_packages(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[str]:
    """Names and versions, none missing and none too many."""
    wanted = dict(expected_packages(name, facts, values, plan))
    found = plan["packages"]
    for package in wanted.keys() ^ found.keys():
        yield f"package {package} is {'missing' if package in wanted else 'too many'}"
    for package in wanted.keys() & found.keys():
        if wanted[package] is not None and found[package] != wanted[package]:
            yield f"package {package} at {found[package]!r}, expected {wanted[package]!r}"
        if wanted[package] is None and not re.fullmatch(r"[\d:.]+-[\w.+]+", found[package]):
            yield f"package {package} has no exact version: {found[package]!r}"
    for package in (*found, *plan["present"]):
        if re.search(r"i386|i686|lib32|-32(bit)?$|:\w+$|[*?\[]", package):
            yield f"package {package} is for 32 bits, or no name"


def expected_packages(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """Packages with their versions; None is any exact one, "" what the sources offer."""
    driver, joined = plan["driver"], fabric(facts, values)
    number, opened = driver["branch"], driver["modules"] == "open"
    if plan["source"] == "distro":
        yield from distro_packages(name, facts, values, plan)
        if values["nvidia_stack_distro_container_toolkit"]:
            yield from ((one, None) for one in TOOLKIT)
        return
    again = driver["version"] in REBUILT and not name.startswith("rhel")
    at = driver["version"] + RELEASES[name][3].replace("-1", "-2" if again else "-1", 1)
    family, cuda = name.partition("-")[0], numbers(plan["cuda"])
    both = ["nvidia-persistenced", "nvidia-modprobe"]
    if family == "debian":
        names = ["nvidia-driver-cuda", f"nvidia-kernel-{'open-' if opened else ''}dkms"]
    elif family == "rhel":
        names = ["nvidia-driver-cuda", f"kmod-nvidia-{'open' if opened else 'latest'}-dkms"]
    else:
        suffix = f"-{number}" if number < 590 else ""
        names = [f"libnvidia-compute{suffix}", f"nvidia-dkms{suffix}{'-open' if opened else ''}"]
        if number >= 590:
            yield f"nvidia-driver-pinning-{driver['version']}", ""
    if joined != "none":
        both += ["nvidia-fabricmanager", "libnvidia-nscq"]
    if joined == "nvlink5":
        yield "nvlsm", ""
        both += ["libnvsdm"] if facts["architecture"] == "x86_64" else []
    if values["nvidia_stack_imex"]:
        both.append("nvidia-imex")
    yield from ((one, at) for one in names + both)
    yield f"cuda-toolkit-{cuda[0]}-{cuda[1]}", None
    yield f"cudnn9-cuda-{cuda[0]}", None
    if family == "rhel":
        yield f"libcudnn9-cuda-{cuda[0]}", None
    yield from (
        (one, None)
        for one in (("libnccl", "libnccl-devel") if family == "rhel" else ("libnccl2", "libnccl-dev"))
    )
    yield from ((one, None) for one in TOOLKIT)


def distro_packages(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """The distribution's own: at what its sources offer."""
    opened = "-open" if plan["driver"]["modules"] == "open" else ""
    if name.startswith("debian"):
        names = ["nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1", "libnvidia-nvvm4", "nvidia-smi"]
        names += ["nvidia-modprobe", "nvidia-persistenced"]
        names += ["nvidia-cuda-toolkit"] if values["nvidia_stack_distro_cuda_toolkit"] else []
        names += ["libnccl2", "libnccl-dev"] if name == "debian-13" else []
    else:
        names = [f"nvidia-headless-no-dkms-580-server{opened}", "libnvidia-cfg1-580-server"]
        names += [
            "libnvidia-compute-580-server",
            "nvidia-compute-utils-580-server",
            "nvidia-utils-580-server",
        ]
        names += ["nvidia-fabricmanager-580"] if fabric(facts, values) != "none" else []
        kinds = {facts["kernel"]["release"], *(one["release"] for one in facts["kernels"])}
        kinds |= {kind.replace("virtual", "generic", 1) for kind in metas(facts)}
        names += [f"linux-modules-nvidia-580-server{opened}-{kind}" for kind in kinds]
        for release in {facts["kernel"]["release"], *(one["release"] for one in facts["kernels"])}:
            flavour = re.fullmatch(r"[\d.]+-\d+-([a-z]+)([\w.-]*)", release)
            if not flavour or flavour[1] not in CANONICAL[name].split():
                yield f"modules for {release}, which Canonical has not", None
    yield from ((one, "") for one in names)


def metas(facts: Mapping[str, Any]) -> set[str]:
    """What the packages that bring Ubuntu's kernels are called after linux-image-."""
    found = (one.partition("linux-image-")[2] for one in facts["kernel"]["image_packages"])
    return {one for one in found if one and not one[0].isdigit() and not one.startswith("unsigned")}


def of_the_headers(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[str]:
    """What DKMS builds with is there for the running kernel and those to come, under its flavour's name."""
    kernel, present = facts["kernel"], plan["present"]
    if not plan["driver"]["dkms"]:
        images = {f"linux-image-{kind}" for kind in metas(facts)}
        if set(present) != images:
            yield f"held kernels {sorted(present)}, expected {sorted(images)}"
        return
    if name == "ubuntu-22.04" and "gcc-12" not in present:
        yield "no gcc-12, which 22.04's kernels after 5.15 are built with"
    if values["nvidia_stack_follow_kernels"]:
        missing = following_headers(name, facts) - set(present)
        yield from (f"nothing brings headers: {one}" for one in sorted(missing))
    if not kernel["headers_present"] and not own_headers(name, kernel["release"]) <= set(present):
        yield f"no headers of the running kernel {kernel['release']}"
    apt = not name.startswith("rhel")
    if not kernel["headers_present"] and (
        not kernel["headers_installable"] if apt else not following_headers(name, facts)
    ):
        yield f"nothing brings headers of the running kernel {kernel['release']}"
    wrong = {one for one in present if "headers" in one or "devel" in one}
    wrong -= following_headers(name, facts) | own_headers(name, kernel["release"]) | {"kernel-headers"}
    yield from (f"headers {one} of another kernel" for one in sorted(wrong))


def rhel_flavour(release: str) -> str:
    """64k of 5.14.0-503.el9.aarch64+64k, rt of 4.18.0-553.rt7.342.el8_10.x86_64."""
    _, _, flavour = release.partition("+")
    return flavour or ("rt" if ".rt" in release else "")


def following_headers(name: str, facts: Mapping[str, Any]) -> set[str]:
    """The packages that come with each new kernel of this kind."""
    release = facts["kernel"]["release"]
    if name.startswith("ubuntu"):
        return {f"linux-headers-{kind}" for kind in metas(facts)}
    if name.startswith("debian"):
        own = re.fullmatch(
            r"\d[\d.]*(?:-\d+|\+(?:deb|bpo)[\d.]*)-((?:cloud-|rt-)?(?:amd64|arm64)(?:-16k)?)", release
        )
        images = facts["kernel"]["image_packages"]
        kind = own[1] if own else ""
        backport = "+bpo" in release or "~bpo" in images.get(f"linux-image-{release}", "")
        brought = f"linux-image-{kind}" in images or not backport
        return {f"linux-headers-{kind}"} if own and brought else set()
    if ".el" not in release or "elrepo" in release:
        return set()
    flavour = rhel_flavour(release)
    devel = f"kernel-{flavour}-devel" if flavour else "kernel-devel"
    return {devel if name == "rhel-8" else f"{devel}-matched"}


def own_headers(name: str, release: str) -> set[str]:
    """The package with the headers of this kernel."""
    if not name.startswith("rhel"):
        return {f"linux-headers-{release}"}
    flavour = rhel_flavour(release)
    return {f"kernel-{flavour}-devel" if flavour else "kernel-devel"}


def of_secure_boot(
    facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[str]:
    """Modules that DKMS builds are signed with a key that the firmware knows, or the operator has said so."""
    if facts["secure_boot"] != "enabled" or not plan["driver"]["dkms"]:
        return
    if not plan["mok"] and not values["preflight_secure_boot_ok"]:
        yield "unsigned modules under Secure Boot"
    if "openssl" not in plan["present"]:
        yield "DKMS signs with openssl, which is not planned"


def kernels_of(release: tuple[int, ...], label: str, machine: str) -> set[float]:
    """The compute capabilities that a wheel of torch has kernels for; none where there is no such wheel."""
    minor = release[:2]
    modern = {8.0, 8.6, 9.0, 10.0, 12.0}
    if machine == "aarch64":
        wheel = label or ("cu130" if (2, 11) <= minor <= (2, 14) else "cu132" if minor == (2, 15) else "")
        return {8.0, 9.0} if wheel == "cu126" else {8.0, 9.0, 10.0, 12.0} if wheel else set()
    wheel = label or next(
        wheel
        for last, wheel in (
            ((2, 4), "cu121"),
            ((2, 6), "cu124"),
            ((2, 7), "cu126"),
            ((2, 10), "cu128"),
            ((2, 14), "cu130"),
            ((2, 15), "cu132"),
        )
        if minor <= last
    )
    if wheel in ("cu121", "cu124", "cu126"):
        return {5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0}
    return modern | {7.5} | ({7.0} if wheel == "cu128" and minor in ((2, 9), (2, 10)) else set())


def of_torch(
    name: str, facts: Mapping[str, Any], values: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[str]:
    """A wheel for the Python and the machine, with kernels for the GPUs, on a driver that starts its CUDA."""
    payload = plan["payload"]
    if not payload or not payload["python"]:
        return
    torch, _, label = payload["torch"].partition("+")
    if label and not label.startswith("cu"):  # the operator has built it
        return
    minor, python = numbers(torch)[:2], numbers(payload["python"])
    first, last = (3, 9) if minor >= (2, 5) else (3, 8), (3, 12) if minor <= (2, 5) else (3, 13)
    if minor >= (2, 9):
        first, last = ((3, 10), (3, 14)) if minor < (2, 15) else ((3, 11), (3, 15))
    if not max(first, (3, 10)) <= python <= last:
        yield f"torch {torch} on Python {payload['python']}"
    if payload["python"] not in {*facts["pythons"], *EXTRA_PYTHONS.get(name, ())}:
        yield f"nothing brings Python {payload['python']}"
    if values["gpu_validation_required_tests"] == ["health"]:
        return
    kernels = kernels_of(minor, label, facts["architecture"])
    for device_id in compute_ids(facts):
        known = chip(device_id)
        if known and not any(int(one) == int(known[1]) and one <= known[1] for one in kernels):
            yield f"{device_id}: torch {payload['torch']} has no kernels for {known[1]}"
    needed = 580 if (minor >= (2, 11) and not label) or label.startswith("cu13") else 525
    if plan["driver"]["branch"] < needed:
        yield f"torch {payload['torch']} does not start on branch {plan['driver']['branch']}"
