"""Repositories of empty rpm packages, built and signed here, and a root directory for a real dnf."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.openpgp_keys import KeyRing

RELEASE = "1.el9"


@dataclass(frozen=True)
class Rpm:
    """An empty package; its version has a release, and an epoch or none."""

    name: str
    version: str
    lines: tuple[str, ...] = ()  # of its spec

    @property
    def spec(self) -> str:
        """Its part of a spec that is for several."""
        epoch, _, evr = self.version.rpartition(":")
        version, _, release = evr.partition("-")
        head = [f"%package -n {self.name}", "Summary: empty", f"Version: {version}", f"Release: {release}"]
        head += [f"Epoch: {epoch}"] if epoch else []
        tail = [f"%description -n {self.name}", "Empty.", f"%files -n {self.name}", ""]
        return "\n".join([*head, *self.lines, *tail])

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.version.rpartition(':')[2]}.noarch.rpm"


@dataclass(frozen=True)
class RpmArchive:
    """A repository whose packages and metadata are signed."""

    path: Path
    ring: KeyRing
    key: str
    modules: list[str] = field(default_factory=list)

    def add(self, name: str, version: str, *lines: str, epoch: int = 0, script: str = "") -> None:
        """Build and sign a package; `lines` go into its spec, `script` is Lua for its %post."""
        work = self.path.parent / "work"
        work.mkdir(exist_ok=True)
        spec = work / f"{name}.spec"
        head = [
            f"Name: {name}",
            f"Version: {version}",
            f"Release: {RELEASE}",
            "Summary: empty",
            "License: none",
        ]
        head += [f"Epoch: {epoch}"] if epoch else []
        post = ["%post -p <lua>", script] if script else []
        text = [*head, "BuildArch: noarch", *lines, "%description", "Empty.", *post, "%files"]
        spec.write_text("\n".join(text) + "\n")
        self.build(spec)
        self.sign_package(self.file(name, version))

    def add_all(self, packages: Iterable[Rpm]) -> None:
        """Build and sign many packages: rpmbuild makes those of different names in one go."""
        work = self.path.parent / "work"
        work.mkdir(exist_ok=True)
        rounds: list[dict[str, Rpm]] = []
        for package in packages:
            free = next((found for found in rounds if package.name not in found), None)
            if free is None:
                rounds.append(free := {})
            free[package.name] = package
        head = ["Name: all", "Version: 1", f"Release: {RELEASE}", "Summary: all", "License: none"]
        for found in rounds:
            spec = work / "all.spec"
            parts = [package.spec for package in found.values()]
            spec.write_text("\n".join([*head, "BuildArch: noarch", "%description", "All.", *parts]))
            self.build(spec)
            self.sign_package(*(self.path / package.file for package in found.values()))

    def build(self, spec: Path) -> None:
        """Run rpmbuild."""
        run(
            *("rpmbuild", "-bb", "-D", f"_topdir {spec.parent}", "-D", f"_rpmdir {self.path}"),
            *("-D", "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", str(spec)),
        )

    def file(self, name: str, version: str) -> Path:
        """The file of a package."""
        return self.path / f"{name}-{version}-{RELEASE}.noarch.rpm"

    def sign_package(self, *files: Path) -> None:
        """Sign packages."""
        gpg = shutil.which("gpg")
        run(
            *(
                "rpmsign",
                "-D",
                f"__gpg {gpg}",
                "-D",
                f"_gpg_path {self.ring.home}",
                "-D",
                f"_gpg_name {self.ring.keys[self.key]}",
            ),
            *("--addsign", *map(str, files)),
        )

    def add_stream(self, name: str, stream: str, artifacts: Mapping[str, str], major: str = "9") -> None:
        """Let packages (name: EPOCH:VERSION-RELEASE) be those of a stream of a module."""
        lines = [
            *("---", "document: modulemd", "version: 2", "data:", f"  name: {name}", f'  stream: "{stream}"'),
            *(
                "  version: 1",
                "  context: x",
                "  arch: noarch",
                "  summary: a module",
                "  description: a module",
            ),
            *(
                "  license:",
                "    module: [MIT]",
                "  dependencies:",
                "  - requires:",
                f"      platform: [el{major}]",
            ),
            *("  artifacts:", "    rpms:"),
            *(f"    - {rpm}-{version}.noarch" for rpm, version in artifacts.items()),
            "...",
        ]
        self.modules.append("\n".join(lines) + "\n")

    def publish(self) -> None:
        """Write and sign the metadata of what has been added."""
        run("createrepo_c", "--quiet", str(self.path))
        if self.modules:
            document = self.path.parent / "modules.yaml"
            document.write_text("".join(self.modules))
            run("modifyrepo_c", "--mdtype=modules", str(document), str(self.path / "repodata"))
        metadata = self.path / "repodata/repomd.xml"
        options = ["--local-user", self.ring.keys[self.key], "--yes", "--armor", "--detach-sign"]
        self.ring.gpg(*options, "--output", f"{metadata}.asc", str(metadata))


def kernel_provides(uname: str) -> tuple[str, ...]:
    """What the headers of a kernel provide: dnf installs them beside those of others."""
    return ("Provides: installonlypkg(kernel)", f"Provides: kernel-devel-uname-r = {uname}")


def run(*command: str) -> str:
    """Run a command that has to succeed."""
    completed = subprocess.run(command, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def make_root(root: Path, plugins: Sequence[str] = ("versionlock",), major: str = "9") -> None:
    """A root directory that dnf takes for an installation of Enterprise Linux."""
    (root / "etc/dnf/plugins").mkdir(parents=True, exist_ok=True)
    (root / "etc/yum.repos.d").mkdir(parents=True, exist_ok=True)
    settings = ["[main]", f"module_platform_id=platform:el{major}", "gpgcheck=1", "keepcache=0"]
    (root / "etc/os-release").write_text(f'ID="rocky"\nVERSION_ID="{major}.4"\n')
    (root / "etc/dnf/dnf.conf").write_text("\n".join(settings) + "\n")
    # Debian's own plugin for local packages would look for its repository.
    (root / "etc/dnf/plugins/local.conf").write_text("[main]\nenabled=0\n")
    for name in plugins:
        shutil.copy(f"/etc/dnf/plugins/{name}.conf", root / "etc/dnf/plugins")
