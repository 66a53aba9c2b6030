"""The simulated repositories: apt reads them, trusts their key and resolves what roles install."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from _pytest.tmpdir import TempPathFactory

from tests.lab.gpu_simulator import (
    contents,
    deb,
    nvidia_packages,
    profiling_packages,
    repository,
    server_packages,
)

pytestmark = pytest.mark.component

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is Debian's")

STACK = [
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-modprobe",
    "nvidia-kernel-support",
    "firmware-nvidia-gsp",
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "libnvidia-nscq",
]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OLD, NEW, NEXT_BRANCH = "580.126.09-1", "580.178.04-1", "595.91.07-1"


@pytest.fixture(scope="module")
def web(tmp_path_factory: TempPathFactory) -> Path:
    """A web root with all repositories."""
    directory = tmp_path_factory.mktemp("web")
    made = repository.build(directory / "www", directory / "gnupg")
    assert [len(fingerprint) for fingerprint in made["fingerprints"]] == [40]
    (directory / "fingerprint").write_text(made["fingerprints"][0])
    return directory / "www"


class Apt:
    """A root of its own for apt: it reads nothing of this machine's configuration, needs no privileges."""

    def __init__(self, root: Path, web: Path) -> None:
        self.root = root
        arch = repository.architecture()
        self.cuda = web / "compute/cuda/repos/debian12" / arch.nvidia
        self.container = web / "libnvidia-container/stable/deb" / arch.debian
        for name in (
            "etc/apt/preferences.d",
            "etc/apt/apt.conf.d",
            "state/lists/partial",
            "cache/archives/partial",
        ):
            (root / name).mkdir(parents=True)
        self.status = root / "status"
        self.status.write_text("")
        key = web / "libnvidia-container/gpgkey"
        (root / "etc/apt/sources.list").write_text(
            "".join(f"deb [signed-by={key}] file:{each} /\n" for each in (self.cuda, self.container))
        )
        options = {
            "Dir": root,
            "Dir::State": root / "state",
            "Dir::State::status": self.status,
            "Dir::Cache": root / "cache",
            "Dir::Etc": root / "etc/apt",
            "APT::Architecture": arch.debian,
            "APT::Sandbox::User": "",
        }
        # In a file rather than in -o options: apt reads /etc/apt/apt.conf.d before it looks at those.
        (root / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))

    def get(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run apt-get."""
        environment = {"APT_CONFIG": str(self.root / "apt.conf"), "PATH": PATH, "LC_ALL": "C"}
        command = ["apt-get", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def simulate(self, *packages: str) -> dict[str, str]:
        """Return what installing would set up: package -> version."""
        result = self.get("-s", "install", *packages)
        assert result.returncode == 0, result.stdout + result.stderr
        chosen = dict(re.findall(r"^Conf (\S+) \((\S+)", result.stdout, re.MULTILINE))
        # It comes along with a kernel module, whatever the driver's version is.
        chosen.pop("dkms", None)
        return chosen

    def pretend_installed(self, version: str, names: list[str]) -> None:
        """Write dpkg's record of packages of one version."""
        stanzas = (self.cuda / "Packages").read_text().split("\n\n")
        names = [*names, "dkms"]
        chosen = [
            stanza.strip().replace("\nVersion:", "\nStatus: install ok installed\nVersion:")
            for stanza in stanzas
            for name in names
            if stanza.lstrip().startswith(f"Package: {name}\nVersion: {version if name != 'dkms' else ''}")
        ]
        assert len(chosen) == len(names)
        self.status.write_text("\n\n".join(chosen) + "\n")


@pytest.fixture
def apt(tmp_path: Path, web: Path) -> Apt:
    """Give apt fresh lists of the simulated repositories."""
    made = Apt(tmp_path, web)
    result = made.get("update")
    assert (result.returncode, result.stderr) == (0, "")
    return made


# ---------------------------------------------------------------- layout and signature


def test_both_releases_and_the_container_toolkit_are_there(web: Path) -> None:
    arch = repository.architecture()
    fingerprint = (web.parent / "fingerprint").read_text()
    for release in ("debian12", "debian13"):
        directory = web / "compute/cuda/repos" / release / arch.nvidia
        names = {path.name for path in directory.iterdir()}
        assert {"InRelease", "Release", "Release.gpg", "Packages", "Packages.gz"} <= names
        assert {"cuda-keyring_1.1-1_all.deb", f"{fingerprint[-8:]}.pub"} <= names
    assert (web / "libnvidia-container/stable/deb" / arch.debian / "InRelease").is_file()
    assert (web / "libnvidia-container/gpgkey").read_text().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")


def test_the_signatures_are_sha256_by_the_named_key(web: Path, tmp_path: Path) -> None:
    (web_release,) = web.glob("compute/cuda/repos/debian13/*/Release")
    keyring = tmp_path / "key.gpg"
    subprocess.run(
        [
            "gpg",
            "--batch",
            "--quiet",
            "--dearmor",
            "-o",
            str(keyring),
            str(web / "libnvidia-container/gpgkey"),
        ],
        check=True,
    )
    command = ["gpgv", "--status-fd", "1", "--keyring", str(keyring), f"{web_release}.gpg", str(web_release)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    (valid,) = re.findall(r"^\[GNUPG:\] VALIDSIG (.*)$", result.stdout, re.MULTILINE)
    fields = valid.split()
    assert (fields[0], fields[7]) == ((web.parent / "fingerprint").read_text(), "8")  # 8: SHA-256


def test_a_second_build_takes_the_same_key(web: Path, tmp_path: Path) -> None:
    again = repository.build(tmp_path / "www", web.parent / "gnupg")
    assert again["fingerprints"] == [(web.parent / "fingerprint").read_text()]
    for path in web.rglob("*.deb"):
        assert (tmp_path / "www" / path.relative_to(web)).read_bytes() == path.read_bytes()


def test_an_interrupted_build_is_swept_away_by_the_next(tmp_path: Path, web: Path) -> None:
    (tmp_path / "www.partial/compute").mkdir(parents=True)
    repository.build(tmp_path / "www", web.parent / "gnupg")
    assert not (tmp_path / "www.partial").exists()


def test_the_content_key_follows_the_packages_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = repository.content_key()
    copy = tmp_path / "simulator"
    shutil.copytree(contents.FILES, copy / "packages")
    for path in contents.FILES.parent.glob("*.py"):
        shutil.copy(path, copy)
    monkeypatch.setattr(repository, "__file__", str(copy / "repository.py"))
    assert repository.content_key() == before
    (copy / "packages/nvidia_smi.py").write_text("changed")
    assert repository.content_key() != before


# ---------------------------------------------------------------- packages


def all_packages() -> list[deb.Package]:
    arch = repository.architecture()
    return [
        *(
            package
            for version in nvidia_packages.DRIVERS
            for package in (
                *nvidia_packages.driver_packages(version, arch),
                *server_packages.fabric_packages(version, arch),
            )
        ),
        *server_packages.dcgm_packages(arch),
        server_packages.nvlsm_package(arch),
        server_packages.dkms_package(),
        *nvidia_packages.pinning_packages(),
        *nvidia_packages.cuda_packages(arch),
        *profiling_packages.profiling_packages(arch),
        *nvidia_packages.container_packages(arch),
        nvidia_packages.keyring_package(b"key"),
    ]


def test_no_package_is_there_twice() -> None:
    names = [package.filename for package in all_packages()]
    assert len(set(names)) == len(names)


def test_every_package_says_that_it_is_simulated() -> None:
    for package in all_packages():
        assert "(simulated by Temper's lab)" in deb.control(package)


def test_every_maintainer_script_is_good_shell(tmp_path: Path) -> None:
    for package in all_packages():
        for script in package.scripts.values():
            assert "@" not in script
            result = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, timeout=30)
            assert result.returncode == 0, f"{package.name}: {result.stderr}"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is Debian's")
def test_dpkg_reads_a_package_as_it_was_meant(tmp_path: Path) -> None:
    package = deb.Package(
        name="example",
        version="1:2.0-1",
        architecture="all",
        description="an example",
        depends="other (= 2)",
        files={"/etc/example.conf": deb.File(b"a=1\n"), "/usr/bin/example": deb.File(b"#!/bin/sh\n", 0o755)},
        scripts={"postinst": "#!/bin/sh\n"},
    )
    path = tmp_path / package.filename
    assert path.name == "example_2.0-1_all.deb"
    path.write_bytes(deb.build(package))
    fields = subprocess.run(["dpkg-deb", "-f", str(path)], check=True, capture_output=True, text=True).stdout
    assert "Version: 1:2.0-1\n" in fields
    assert "Depends: other (= 2)\n" in fields
    subprocess.run(["dpkg-deb", "-R", str(path), str(tmp_path / "out")], check=True)
    assert (tmp_path / "out/DEBIAN/conffiles").read_text() == "/etc/example.conf\n"
    assert (tmp_path / "out/usr/bin/example").stat().st_mode & 0o777 == 0o755
    listing = subprocess.run(["dpkg-deb", "-c", str(path)], check=True, capture_output=True, text=True).stdout
    assert all(" root/root " in line for line in listing.splitlines())


# ---------------------------------------------------------------- apt


@needs_apt
def test_apt_trusts_the_repositories_with_their_key_alone(tmp_path: Path, web: Path) -> None:
    made = Apt(tmp_path, web)
    sources = tmp_path / "etc/apt/sources.list"
    sources.write_text(re.sub(r"\[signed-by=.*?\] ", "", sources.read_text()))
    assert made.get("update").returncode != 0


@needs_apt
@pytest.mark.parametrize("version", [OLD, NEW, NEXT_BRANCH])
def test_a_stack_installs_at_exactly_one_version(apt: Apt, version: str) -> None:
    chosen = apt.simulate(*(f"{name}={version}" for name in STACK))
    assert chosen == dict.fromkeys(STACK, version)


@needs_apt
def test_the_metapackage_alone_takes_the_newest_branch(apt: Apt) -> None:
    assert set(apt.simulate("nvidia-open").values()) == {NEXT_BRANCH}


@needs_apt
def test_an_old_version_without_its_libraries_does_not_resolve(apt: Apt) -> None:
    result = apt.get("-s", "install", f"nvidia-driver-cuda={OLD}")
    assert (result.returncode, "unmet dependencies" in result.stdout) == (100, True)


@needs_apt
@pytest.mark.parametrize(("pin", "version"), [("580", NEW), ("580.126.09", OLD), ("595", NEXT_BRANCH)])
def test_a_pinning_package_holds_a_branch_or_a_version(apt: Apt, pin: str, version: str) -> None:
    pinning = {package.name: package for package in nvidia_packages.pinning_packages()}
    for path, file in pinning[f"nvidia-driver-pinning-{pin}"].files.items():
        (apt.root / path[1:]).write_bytes(file.content)
    assert set(apt.simulate("nvidia-open").values()) == {version}


@needs_apt
def test_an_upgrade_moves_the_whole_stack(apt: Apt) -> None:
    apt.pretend_installed(OLD, STACK)
    assert apt.simulate(*(f"{name}={NEW}" for name in STACK)) == dict.fromkeys(STACK, NEW)


@needs_apt
def test_half_an_upgrade_does_not_resolve(apt: Apt) -> None:
    apt.pretend_installed(OLD, STACK)
    result = apt.get("-s", "install", "--no-remove", f"nvidia-driver-cuda={OLD}", f"libnvidia-ml1={NEW}")
    assert result.returncode == 100


@needs_apt
def test_open_and_proprietary_modules_exclude_each_other(apt: Apt) -> None:
    apt.pretend_installed(OLD, STACK)
    result = apt.get("-s", "install", f"nvidia-kernel-dkms={OLD}")
    assert f"Remv nvidia-kernel-open-dkms [{OLD}]" in result.stdout


@needs_apt
def test_the_rest_of_a_stack_installs_beside_the_driver(apt: Apt) -> None:
    wanted = {
        "cuda-toolkit-13-0": "13.0.2-1",
        "cudnn9-cuda-13": "9.19.0.56-1",
        "libcudnn9-cuda-13": "9.19.0.56-1",
        "libnccl2": "2.28.9-1+cuda13.0",
        "libnccl-dev": "2.28.9-1+cuda13.0",
        "datacenter-gpu-manager-4-core": "1:4.6.0-1",
        "nvidia-container-toolkit": "1.20.0-1",
        "nvidia-container-toolkit-base": "1.20.0-1",
        "libnvidia-container-tools": "1.20.0-1",
        "libnvidia-container1": "1.20.0-1",
    }
    assert apt.simulate(*(f"{name}={version}" for name, version in wanted.items())) == wanted
