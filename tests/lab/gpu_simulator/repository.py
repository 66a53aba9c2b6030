"""Build signed apt repositories with NVIDIA's layout, package names and versions, full of simulated packages.

Below the destination:

    compute/cuda/repos/debian12/<arch>/        Packages, Packages.gz, Release, InRelease, Release.gpg, <key>.pub, *.deb
    compute/cuda/repos/debian13/<arch>/        the same
    libnvidia-container/stable/deb/<arch>/     the container toolkit
    libnvidia-container/gpgkey                 its key: the same as above

Usage, from the root of the checkout: python3 -m tests.lab.gpu_simulator.repository DESTINATION GNUPG_HOME

Package names, versions and relations follow NVIDIA's documentation and installation scripts, as of 2026-11 (no listing of NVIDIA's
repositories was at hand). Maintainer scripts do what the real packages' do where another program could notice, and no more.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests.lab.gpu_simulator import deb
from tests.lab.gpu_simulator.deb import File, Package

HERE = Path(__file__).resolve().parent
RELEASES = ("debian12", "debian13")
KEY_OWNER = "Temper's lab (signs simulated packages) <root@localhost>"

# Driver version -> newest CUDA version that it runs, as nvidia-smi prints it.
DRIVERS = {"580.126.09": "13.0", "580.178.04": "13.0", "595.91.07": "13.2"}
# CUDA release -> (package version, version nvcc prints). The build number of 13.2 is assumed.
CUDA_TOOLKITS = {"12.9": ("12.9.1-1", "12.9.86"), "13.0": ("13.0.2-1", "13.0.88"), "13.2": ("13.2.2-1", "13.2.78")}
CUDNN = {"12": ("9.10.2.21-1",), "13": ("9.19.0.56-1", "9.24.0.43-1")}
NCCL = ("2.27.5-1+cuda12.9", "2.28.9-1+cuda13.0", "2.30.7-1+cuda13.2")
DCGM = "1:4.6.0-1"
CONTAINER_TOOLKITS = ("1.18.0-1", "1.20.0-1")
KEYRING = "1.1-1"


@dataclass(frozen=True)
class Architecture:
    """One machine architecture under its three names."""

    debian: str
    nvidia: str  # in the CUDA repositories' paths
    triplet: str


ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64", "x86_64-linux-gnu"),
    "aarch64": Architecture("arm64", "sbsa", "aarch64-linux-gnu"),
}


def architecture() -> Architecture:
    """Return this machine's architecture, which is its nodes' too; raise ValueError if NVIDIA has no repository for it."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ValueError(f"expected a machine of {' or '.join(ARCHITECTURES)}, found {machine}: no simulated packages for it")
    return ARCHITECTURES[machine]


# ---------------------------------------------------------------- packages


def _file(name: str, mode: int = 0o644, **values: str) -> File:
    """Read a file of `packages/` and put values in the place of @NAME@."""
    text = (HERE / "packages" / name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return File(text.encode(), mode)


def _library(name: str, version: str, **more: str) -> File:
    """Stand for a shared library: text that says what it is, and what the simulated programs ask it."""
    return File((json.dumps({"simulated": f"stands for {name}, is no library", "version": version, **more}) + "\n").encode())


def _with_service(unit: str, *, enabled: bool) -> dict[str, str]:
    """Return the maintainer scripts that debhelper's dh_installsystemd would write for `unit`."""
    # "|| true" as debhelper has it: a service that cannot start (no hardware, no reboot yet) must not fail the installation.
    postinst = f"""\
        #!/bin/sh
        set -e
        case "$1" in
        configure | abort-upgrade | abort-deconfigure | abort-remove)
            deb-systemd-helper unmask '{unit}' >/dev/null || true
            if {str(enabled).lower()} && deb-systemd-helper --quiet was-enabled '{unit}'; then
                deb-systemd-helper enable '{unit}' >/dev/null || true
            else
                deb-systemd-helper update-state '{unit}' >/dev/null || true
            fi
            if [ -d /run/systemd/system ]; then
                systemctl --system daemon-reload >/dev/null || true
                if systemctl --quiet is-enabled '{unit}'; then
                    if [ -n "$2" ]; then action=restart; else action=start; fi
                    deb-systemd-invoke "$action" '{unit}' >/dev/null || true
                fi
            fi
            ;;
        esac
        """
    prerm = f"""\
        #!/bin/sh
        set -e
        if [ -d /run/systemd/system ] && [ "$1" = remove ]; then
            deb-systemd-invoke stop '{unit}' >/dev/null || true
        fi
        """
    postrm = f"""\
        #!/bin/sh
        set -e
        if [ "$1" = purge ]; then
            deb-systemd-helper purge '{unit}' >/dev/null || true
        fi
        if [ -d /run/systemd/system ]; then
            systemctl --system daemon-reload >/dev/null || true
        fi
        """
    return {"postinst": dedent(postinst), "prerm": dedent(prerm), "postrm": dedent(postrm)}


def _kernel_module(name: str, version: str, flavour: str, arch: Architecture) -> Package:
    """Return nvidia-kernel-open-dkms or nvidia-kernel-dkms: the module appears for every kernel whose headers are installed."""
    upstream = version.partition("-")[0]
    source = f"/usr/src/nvidia-{upstream}"
    other = "nvidia-kernel-dkms" if flavour == "open" else "nvidia-kernel-open-dkms"
    postinst = f"""\
        #!/bin/sh
        # The real package has DKMS compile the module, here it is copied. Layout of /var/lib/dkms as DKMS leaves it.
        set -e
        [ "$1" = configure ] || exit 0
        built=
        for headers in /lib/modules/*/build; do
            [ -e "$headers" ] || continue
            kernel=${{headers%/build}}
            kernel=${{kernel##*/}}
            record=/var/lib/dkms/nvidia/{upstream}/$kernel/$(uname -m)
            mkdir -p "$record/module" "/lib/modules/$kernel/updates/dkms"
            cp {source}/nvidia.ko "$record/module/nvidia.ko"
            cp {source}/nvidia.ko "/lib/modules/$kernel/updates/dkms/nvidia.ko"
            echo "nvidia/{upstream}, $kernel, $(uname -m): installed (simulated)"
            built=yes
        done
        [ -n "$built" ] || echo "nvidia/{upstream}: no kernel headers are installed, so no module was built" >&2
        """
    prerm = f"""\
        #!/bin/sh
        set -e
        for module in /lib/modules/*/updates/dkms/nvidia.ko; do
            [ -e "$module" ] || continue
            rm "$module"
            rmdir --ignore-fail-on-non-empty "${{module%/*}}"
        done
        rm -rf /var/lib/dkms/nvidia/{upstream}
        """
    # The lines that keep nouveau out are in NVIDIA's /usr/lib/modprobe.d/nvidia.conf of the RPM packages; for the Debian packages
    # the file's name and place are assumed.
    modprobe = "# Simulated by Temper's lab.\nblacklist nouveau\nblacklist nova_core\nblacklist nova_drm\n"
    module = {"simulated": "stands for nvidia.ko, is no kernel module", "version": upstream, "flavour": flavour}
    return Package(
        name=name,
        version=version,
        architecture=arch.debian,
        section="kernel",
        description=f"NVIDIA {flavour} kernel module for DKMS",
        depends=f"nvidia-modprobe (= {version})",
        conflicts=other,
        replaces=other,
        files={
            f"{source}/nvidia.ko": File((json.dumps(module) + "\n").encode()),
            f"{source}/dkms.conf": File(f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{upstream}"\n'.encode()),
            "/usr/lib/modprobe.d/nvidia.conf": File(modprobe.encode()),
        },
        scripts={"postinst": dedent(postinst), "prerm": dedent(prerm)},
    )


def driver_packages(upstream: str, arch: Architecture) -> Iterator[Package]:
    """Yield the packages of one driver version, tied together by `=` as NVIDIA's are."""
    version = f"{upstream}-1"
    libraries = f"/usr/lib/{arch.triplet}"

    def package(name: str, description: str, **more: object) -> Package:
        return Package(name=name, version=version, architecture=arch.debian, description=description, **more)  # type: ignore[arg-type]

    yield package(
        "libnvidia-ml1",
        "NVIDIA Management Library (NVML)",
        section="libs",
        files={f"{libraries}/libnvidia-ml.so.1": _library("libnvidia-ml.so", upstream, cuda=DRIVERS[upstream])},
    )
    yield package(
        "libcuda1",
        "NVIDIA CUDA driver library",
        section="libs",
        recommends=f"nvidia-kernel-open-dkms (= {version}) | nvidia-kernel-dkms (= {version})",
        files={f"{libraries}/libcuda.so.1": _library("libcuda.so", upstream)},
    )
    yield package(
        "nvidia-modprobe",
        "utility to load the NVIDIA kernel module and create its device files",
        files={"/usr/bin/nvidia-modprobe": _file("nvidia-modprobe.sh", 0o755)},
    )
    persistenced = _with_service("nvidia-persistenced.service", enabled=True)
    # The user must be there before the service starts.
    sysusers = "[ \"$1\" != configure ] || systemd-sysusers nvidia-persistenced.conf\n"
    persistenced["postinst"] = persistenced["postinst"].replace("set -e\n", "set -e\n" + sysusers, 1)
    yield package(
        "nvidia-persistenced",
        "daemon that keeps the driver's state while no client uses a GPU",
        depends=f"libnvidia-ml1 (= {version})",
        files={
            "/usr/bin/nvidia-persistenced": _file("nvidia_persistenced.py", 0o755, VERSION=upstream),
            "/usr/lib/systemd/system/nvidia-persistenced.service": _file("nvidia-persistenced.service"),
            "/usr/lib/sysusers.d/nvidia-persistenced.conf": File(b'u nvpd - "NVIDIA Persistence Daemon" /var/run/nvpd\n'),
        },
        scripts=persistenced,
    )
    yield package(
        "nvidia-driver-cuda",
        "NVIDIA driver, compute part, with nvidia-smi",
        depends=", ".join(
            f"{name} (= {version})" for name in ("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")
        ),
        files={"/usr/bin/nvidia-smi": _file("nvidia_smi.py", 0o755)},
    )
    yield _kernel_module("nvidia-kernel-open-dkms", version, "open", arch)
    yield _kernel_module("nvidia-kernel-dkms", version, "proprietary", arch)
    yield package(
        "nvidia-open",
        "NVIDIA driver with open kernel modules (metapackage)",
        depends=f"nvidia-driver-cuda (= {version}), nvidia-kernel-open-dkms (= {version})",
    )
    # NVIDIA's fabric manager is not tied to the driver's version, and its unit is not enabled by the package: both are the
    # administrator's to get right.
    yield package(
        "nvidia-fabricmanager",
        "fabric manager for NVSwitch based systems",
        files={
            "/usr/bin/nv-fabricmanager": _file("nv_fabricmanager.py", 0o755, VERSION=upstream),
            "/usr/bin/nvidia-fabricmanager-start.sh": _file("nvidia-fabricmanager-start.sh", 0o755),
            "/usr/lib/systemd/system/nvidia-fabricmanager.service": _file("nvidia-fabricmanager.service"),
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"# Simulated by Temper's lab.\nDAEMONIZE=1\n"),
        },
        scripts=_with_service("nvidia-fabricmanager.service", enabled=False),
    )
    yield package(
        "libnvidia-nscq",
        "NVSwitch configuration and query library",
        section="libs",
        files={f"{libraries}/libnvidia-nscq.so.2": _library("libnvidia-nscq.so", upstream)},
    )


def pinning_packages() -> Iterator[Package]:
    """Yield the packages that hold apt to a driver branch or version through apt's preferences."""
    branches = sorted({upstream.partition(".")[0] for upstream in DRIVERS})
    patterns = "nvidia-* libnvidia-* libcuda1"
    for name in (*branches, *DRIVERS):
        glob = f"{name}.*" if name in branches else f"{name}-*"
        preferences = f"# Simulated by Temper's lab.\nPackage: {patterns}\nPin: version {glob}\nPin-Priority: 1000\n"
        yield Package(
            name=f"nvidia-driver-pinning-{name}",
            version=f"{name}-1",
            architecture="all",
            description=f"holds the NVIDIA driver to {name}",
            provides="nvidia-driver-pinning",
            conflicts="nvidia-driver-pinning",
            replaces="nvidia-driver-pinning",
            files={f"/etc/apt/preferences.d/nvidia-driver-pinning-{name}": File(preferences.encode())},
        )


def cuda_packages(arch: Architecture) -> Iterator[Package]:
    """Yield CUDA toolkits, cuDNN, NCCL and DCGM."""
    for release, (version, nvcc) in CUDA_TOOLKITS.items():
        root = f"/usr/local/cuda-{release}"
        major, minor = release.split(".")
        priority = int(major) * 10 + int(minor)
        versions = {
            "cuda": {"name": "CUDA SDK", "version": version.partition("-")[0]},
            "cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc},
            "simulated": {"name": "by Temper's lab", "version": "-"},
        }
        alternatives = "\n".join(
            f"update-alternatives --install {link} {name} {root} {priority}"
            for name, link in (("cuda", "/usr/local/cuda"), (f"cuda-{major}", f"/usr/local/cuda-{major}"))
        )
        removal = "\n".join(f"update-alternatives --remove {name} {root}" for name in ("cuda", f"cuda-{major}"))
        yield Package(
            name=f"cuda-toolkit-{major}-{minor}",
            version=version,
            architecture=arch.debian,
            section="devel",
            description=f"CUDA toolkit {release}",
            files={
                f"{root}/bin/nvcc": _file("nvcc.sh", 0o755, RELEASE=release, NVCC=nvcc),
                f"{root}/version.json": File((json.dumps(versions, indent=3) + "\n").encode()),
            },
            scripts={
                "postinst": f'#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n{alternatives}\n',
                "prerm": f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{removal}\n',
            },
        )
    for major, versions_of_cudnn in CUDNN.items():
        for version in versions_of_cudnn:
            yield Package(
                name=f"libcudnn9-cuda-{major}",
                version=version,
                architecture=arch.debian,
                section="libs",
                description=f"cuDNN runtime libraries for CUDA {major}",
                files={f"/usr/lib/{arch.triplet}/libcudnn.so.9": _library("libcudnn.so", version.partition("-")[0])},
                conflicts=f"libcudnn9-cuda-{'12' if major == '13' else '13'}",
            )
            yield Package(
                name=f"cudnn9-cuda-{major}",
                version=version,
                architecture=arch.debian,
                description=f"cuDNN 9 for CUDA {major} (metapackage)",
                depends=f"libcudnn9-cuda-{major} (= {version})",
            )
    for version in NCCL:
        upstream = version.partition("-")[0]
        yield Package(
            name="libnccl2",
            version=version,
            architecture=arch.debian,
            section="libs",
            description="NVIDIA collective communication library",
            files={f"/usr/lib/{arch.triplet}/libnccl.so.2": _library("libnccl.so", upstream)},
        )
        yield Package(
            name="libnccl-dev",
            version=version,
            architecture=arch.debian,
            section="libdevel",
            description="NVIDIA collective communication library, development files",
            depends=f"libnccl2 (= {version})",
            files={
                "/usr/include/nccl.h": File(
                    f"/* Simulated by Temper's lab. */\n#define NCCL_VERSION \"{upstream}\"\n".encode()
                )
            },
        )
    dcgmi = f"#!/bin/sh\n# Simulated by Temper's lab.\necho 'dcgmi  version: {DCGM.partition(':')[2].partition('-')[0]}'\n"
    yield Package(
        name="datacenter-gpu-manager-4-core",
        version=DCGM,
        architecture=arch.debian,
        description="NVIDIA data center GPU manager",
        files={"/usr/bin/dcgmi": File(dcgmi.encode(), 0o755)},
    )


def keyring_package(public_key: bytes) -> Package:
    """Return cuda-keyring. The real one also brings a list of NVIDIA's own repository, which no simulated node uses."""
    return Package(
        name="cuda-keyring",
        version=KEYRING,
        architecture="all",
        description="key of the simulated CUDA repository",
        files={"/usr/share/keyrings/cuda-archive-keyring.gpg": File(public_key)},
    )


def container_packages(arch: Architecture) -> Iterator[Package]:
    """Yield the container toolkit: four packages of one version."""
    for version in CONTAINER_TOOLKITS:
        upstream = version.partition("-")[0]
        cli = f"#!/bin/sh\n# Simulated by Temper's lab.\necho 'cli-version: {upstream}'\necho 'lib-version: {upstream}'\n"
        yield Package(
            name="libnvidia-container1",
            version=version,
            architecture=arch.debian,
            section="libs",
            description="NVIDIA container runtime library",
            files={f"/usr/lib/{arch.triplet}/libnvidia-container.so.1": _library("libnvidia-container.so", upstream)},
        )
        yield Package(
            name="libnvidia-container-tools",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container runtime library, command line tools",
            depends=f"libnvidia-container1 (= {version})",
            files={"/usr/bin/nvidia-container-cli": File(cli.encode(), 0o755)},
        )
        yield Package(
            name="nvidia-container-toolkit-base",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container toolkit, base",
            files={"/usr/bin/nvidia-ctk": _file("nvidia-ctk.sh", 0o755, VERSION=upstream)},
        )
        yield Package(
            name="nvidia-container-toolkit",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container toolkit",
            depends=f"nvidia-container-toolkit-base (= {version}), libnvidia-container-tools (= {version})",
        )


# ---------------------------------------------------------------- signing


def _gpg(home: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run gpg in its own home and return what it prints; raise RuntimeError with its own words if it fails."""
    command = ["gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", *arguments]
    result = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"gpg {' '.join(arguments)} failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def signing_key(home: Path) -> str:
    """Return the fingerprint of the secret key in `home`; make one, without passphrase, if there is none.

    The kind of key is one that Debian 12's gpgv and Debian 13's sqv both accept.
    """
    if shutil.which("gpg") is None:
        raise RuntimeError("expected the program gpg, found none: install the package gnupg")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for attempt in ("find", "make"):
        listing = _gpg(home, "--with-colons", "--list-secret-keys").decode()
        fingerprints = re.findall(r"^fpr:::::::::([0-9A-F]{40}):", listing, re.MULTILINE)
        if fingerprints:
            return str(fingerprints[0])
        if attempt == "find":
            _gpg(home, "--passphrase", "", "--quick-generate-key", KEY_OWNER, "ed25519", "sign", "never")
    raise RuntimeError(f"gpg made a key in {home} but does not list it")


def _stop_agent(home: Path) -> None:
    """gpg leaves an agent running for its home."""
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False, capture_output=True)


# ---------------------------------------------------------------- repositories


def _write_repository(
    directory: Path, packages: Sequence[Package], debs: Mapping[str, bytes], label: str, home: Path, fingerprint: str
) -> None:
    """Write one flat repository: packages, indexes and signatures."""
    directory.mkdir(parents=True)
    stanzas = []
    for package in packages:
        content = debs[package.filename]
        (directory / package.filename).write_bytes(content)
        stanzas.append(deb.index_stanza(package, content, f"./{package.filename}"))
    index = "\n".join(stanzas).encode()
    files = {"Packages": index, "Packages.gz": gzip.compress(index, mtime=deb.BUILD_TIME)}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    release = (
        f"Origin: NVIDIA\nLabel: {label}\nArchitectures: {architecture().debian}\nDate: Fri, 20 Nov 2026 00:00:00 UTC\n"
        "Description: simulated by Temper's lab\nSHA256:\n"
    )
    for name, content in files.items():
        release += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
    (directory / "Release").write_text(release)
    sign = ["--local-user", fingerprint, "--digest-algo", "SHA256"]
    (directory / "InRelease").write_bytes(_gpg(home, *sign, "--clearsign", stdin=release.encode()))
    (directory / "Release.gpg").write_bytes(_gpg(home, *sign, "--armor", "--detach-sign", stdin=release.encode()))


def build(destination: Path, gnupg_home: Path) -> dict[str, list[str]]:
    """Build the whole web root at `destination`, which must not exist yet, signed with the key in `gnupg_home`.

    Returns {"fingerprints": [...]}, the keys that sign it. A missing key is made. Raises RuntimeError if gpg fails and ValueError
    on a machine that NVIDIA has no repository for.
    """
    arch = architecture()
    # Built beside the destination and moved there whole, so that an interrupted build leaves nothing that looks complete.
    partial = destination.with_name(f"{destination.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    try:
        fingerprint = signing_key(gnupg_home)
        armoured = _gpg(gnupg_home, "--armor", "--export", fingerprint)
        cuda = [
            *(package for upstream in DRIVERS for package in driver_packages(upstream, arch)),
            *pinning_packages(),
            *cuda_packages(arch),
            keyring_package(_gpg(gnupg_home, "--export", fingerprint)),
        ]
        container = list(container_packages(arch))
        debs = {package.filename: deb.build(package) for package in (*cuda, *container)}
        for release in RELEASES:
            directory = partial / "compute/cuda/repos" / release / arch.nvidia
            _write_repository(directory, cuda, debs, "NVIDIA CUDA", gnupg_home, fingerprint)
            (directory / f"{fingerprint[-8:]}.pub").write_bytes(armoured)
        directory = partial / "libnvidia-container/stable/deb" / arch.debian
        _write_repository(directory, container, debs, "NVIDIA Container Toolkit", gnupg_home, fingerprint)
        (partial / "libnvidia-container/gpgkey").write_bytes(armoured)
    finally:
        _stop_agent(gnupg_home)
    partial.rename(destination)
    return {"fingerprints": [fingerprint]}


def content_key() -> str:
    """Return a hash of all that `build` reads beside the signing key: the same key, the same packages."""
    digest = hashlib.sha256(architecture().debian.encode())
    for path in (HERE / "deb.py", HERE / "repository.py", *sorted((HERE / "packages").iterdir())):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Build from the command line."""
    if len(arguments) != 2:
        print("usage: python3 -m tests.lab.gpu_simulator.repository DESTINATION GNUPG_HOME", file=sys.stderr)
        return 2
    destination = Path(os.path.abspath(arguments[0]))
    if destination.exists():
        print(f"expected no {destination} yet, found one: remove it first", file=sys.stderr)
        return 2
    print(json.dumps(build(destination, Path(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
