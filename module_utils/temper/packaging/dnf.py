"""RHEL's package manager, dnf 4 with its versionlock plugin: see `packages.Manager`."""

from __future__ import annotations

import contextlib
import fnmatch
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible.module_utils.temper.files import replace_file
from ansible.module_utils.temper.packaging import dkms
from ansible.module_utils.temper.packaging.packages import (
    FAMILY,
    Change,
    OthersUnreadableError,
    Package,
    PackageError,
    Packages,
    Transaction,
    attempt,
    closed,
    recorded_holds,
)
from ansible.module_utils.temper.process import each_line, parsed, shown

# The packages of both stacks, while a node is on its way from one to the other; `dnf_staging` fills it.
KEPT = "/var/cache/temper/former-packages"
LOCK_PLUGIN = "python3-dnf-plugin-versionlock"
ENVIRONMENT = {"NEEDRESTART_SUSPEND": "1", "PYTHONWARNINGS": "ignore"}
INSTALL = ["install", "--allowerasing", "--setopt=install_weak_deps=False"]
REMOVE = ["remove", "--setopt=clean_requirements_on_remove=False"]
ERROR_LINES = 12
#: dnf ends with 1 both where nobody has agreed (--assumeno) and where it finds no transaction.
RESOLVED = "Dependencies resolved."
QUERY = "%{NAME}\\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\\t%{ARCH}\\n"
SCRIPT_FAILED = re.compile(r"Error in \S+ scriptlet in rpm package (\S+)")
FULL_DISK = re.compile(
    r"No space left on device|Failed writing received data to disk|more space needed on the"
    r"|not enough free space|needs \d+\S* more"
)
# Name, architecture, version, repository, size.
TRANSACTION_COLUMNS = 5
# How many of dnf's last transactions may be ours: others may have come right after it.
RECENT = 5
# How the table of a transaction names its parts.
SECTIONS = {
    "Installing": "install",
    "Installing dependencies": "install",
    "Installing weak dependencies": "install",
    "Installing group/module packages": "install",
    "Upgrading": "upgrade",
    "Downgrading": "downgrade",
    "Reinstalling": "reinstall",
    "Removing": "remove",
    "Removing dependent packages": "remove",
    "Removing unused dependencies": "remove",
}


def specs(wanted: Mapping[str, str]) -> list[str]:
    """NAME-VERSION-RELEASE, or NAME where any version will do."""
    return [f"{name}-{version}" if version else name for name, version in wanted.items()]


def why(output: str) -> str:
    """Return the lines of dnf's output that say why it failed."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if line.startswith("Error")), None)
    telling = lines[start:] if start is not None else lines[-ERROR_LINES:]
    telling = [line for line in telling if not line.startswith(("(try to add", "Operation aborted"))]
    return " ".join([*(line for line in lines if line.startswith("No match for")), *telling][:ERROR_LINES])


@dataclass(frozen=True)
class Dnf:
    """dnf and rpm, of the node or of another root directory.

    `pins` hold back versions during a transaction: packages (patterns) and version, as in a plan. `streams`
    are module streams (name, stream) that are enabled before it.
    """

    pins: Sequence[Mapping[str, str]] = ()
    streams: Sequence[Mapping[str, str]] = ()
    root: Path = Path("/")
    options: tuple[str, ...] = ()
    saved: dict[Path, bytes | None] = field(default_factory=dict)

    def dnf(self, arguments: Sequence[str], plugins: Path | None = None) -> tuple[int, str, str]:
        """Exit status, standard output, and both outputs of dnf."""
        command = ["dnf", "-y", *self.options]
        if self.root != Path("/"):
            command.append(f"--installroot={self.root}")
        if plugins:
            command.append(f"--setopt=pluginconfpath={plugins}")
        completed = attempt([*command, *arguments], ENVIRONMENT)
        return completed.returncode, completed.stdout, completed.stdout + completed.stderr

    def path(self, name: str) -> Path:
        """Return a file below the root directory."""
        return self.root / name.lstrip("/")

    def kept(self) -> Dnf | None:
        """Return a dnf that knows only the packages kept of an upgrade; None where none are kept."""
        sources = self.path(f"{KEPT}/yum.repos.d")
        alone = f"--setopt=reposdir={sources}"
        if alone in self.options or not (sources / "temper-former.repo").is_file():
            return None
        # A cache of its own, which goes with them; dnf itself puts it below the root directory.
        return replace(self, options=(*self.options, alone, f"--setopt=cachedir={KEPT}/cache"))

    def sufficient(self, wanted: dict[str, str]) -> Dnf:
        """Return a dnf that needs no network where the kept packages are enough, else this one."""
        kept = self.kept()
        if kept is not None:
            with contextlib.suppress(PackageError):
                kept.simulate(wanted)
                return kept
        return self

    # ------------------------------------------------------------ state

    def query(self) -> Packages:
        """Return all packages that rpm knows.

        Two versions of one package of the family mean that a transaction was cut off.
        """
        command = [
            "rpm",
            *(["--root", str(self.root)] if self.root != Path("/") else []),
            "-qa",
            "--qf",
            QUERY,
        ]
        completed = attempt(command, ENVIRONMENT)
        if completed.returncode:
            raise PackageError(f"Reading the installed packages failed: {completed.stderr.strip()}")
        locks = self.locks()
        found: Packages = {}
        for name, version, architecture in each_line("rpm -qa", completed.stdout, installed):
            if name == "gpg-pubkey":
                # A key that rpm knows, not a package.
                continue
            held = any(locked(lock, name, version, architecture) for lock in locks)
            before = found.get(name)
            others = (*before.others, before.version) if before and before.version != version else ()
            status = "half-installed" if others and FAMILY.match(name) else "installed"
            found[name] = Package(name, version, "hold" if held else "install", status, others)
        return found

    def lock_list(self) -> Path:
        """Return the file with the version locks."""
        plugin = self.path("/etc/dnf/plugins/versionlock.conf")
        text = plugin.read_text(encoding="utf-8") if plugin.is_file() else ""
        match = re.search(r"^\s*locklist\s*=\s*(\S+)", text, re.MULTILINE)
        return self.path(match[1] if match else "/etc/dnf/plugins/versionlock.list")

    def locks(self) -> list[str]:
        """Return the version locks, without comments."""
        return [line.strip() for line in self.lock_lines() if line.strip() and not line.startswith("#")]

    def lock_lines(self) -> list[str]:
        """Return the lines of the file with the version locks."""
        path = self.lock_list()
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def foreign_locks(self) -> list[str]:
        """Return the version locks that are somebody else's."""
        ours = recorded_holds()
        return [lock for lock in self.locks() if not any(is_lock_of(lock, name) for name in ours)]

    def stream_state(self, name: str) -> Path:
        """Return the file in which dnf notes which stream of a module is enabled."""
        return self.path(f"/etc/dnf/modules.d/{name}.module")

    def enabled(self, name: str) -> str:
        """Return the stream of a module that is enabled; empty if none is."""
        path = self.stream_state(name)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        stream = re.search(r"^stream\s*=\s*(\S+)", text, re.MULTILINE)
        state = re.search(r"^state\s*=\s*enabled", text, re.MULTILINE)
        return stream[1] if stream and state else ""

    def required(self) -> list[str]:
        """Return packages that holding needs and that are missing."""
        present = self.path("/etc/dnf/plugins/versionlock.conf").is_file()
        return [] if present else [LOCK_PLUGIN]

    # ------------------------------------------------------------ steps

    def prepared(self) -> bool:
        """Return whether the module streams are those that are wanted."""
        return all(self.enabled(stream["name"]) == stream["stream"] for stream in self.streams)

    def prepare(self) -> None:
        """Enable the module streams; `abandon` returns to those of before."""
        wrong = [stream for stream in self.streams if self.enabled(stream["name"]) != stream["stream"]]
        for stream in wrong:
            path = self.stream_state(stream["name"])
            self.saved[path] = path.read_bytes() if path.is_file() else None
            kept = kept_stream(self.path(KEPT), stream["name"], stream["stream"])
            if kept.is_file():
                # As dnf has written it. It would ask the repository that the module is from.
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(kept, path)
        wrong = [stream for stream in wrong if self.enabled(stream["name"]) != stream["stream"]]
        if wrong:
            names = [f"{stream['name']}:{stream['stream']}" for stream in wrong]
            status, _, output = self.dnf(["module", "enable", "--setopt=module_stream_switch=True", *names])
            if status:
                self.abandon()
                raise PackageError(f"Enabling module stream {', '.join(names)} failed: {why(output)}", output)

    def abandon(self) -> None:
        """Return to the module streams of before."""
        for path, content in self.saved.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        self.saved.clear()

    def refresh(self) -> None:
        """Read the metadata of all repositories anew."""
        status, _, output = self.dnf(
            ["makecache", "--refresh", "--setopt=temper-*.skip_if_unavailable=False"]
        )
        if status:
            # Where packages are kept, what is wanted may be among them.
            error = OthersUnreadableError if self.kept() else PackageError
            raise error(f"Reading the repositories (dnf makecache) failed: {why(output)}", output)

    def offered(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Versions of each package that the repositories have, newest first."""
        asked = list(names)
        arguments = ["-q", "repoquery", "--qf", "%{name}\t%{evr}", *asked]
        versions: dict[str, list[str]] = {}
        # Without a name, repoquery lists everything.
        for line in reversed(self.dnf(arguments)[1].splitlines() if asked else []):
            name, _, version = line.partition("\t")
            if version and version not in versions.setdefault(name, []):
                versions[name].append(version)
        return versions

    def offers(self, wanted: dict[str, str]) -> bool:
        """Return whether the repositories, as far as they are known, have all these versions."""
        kept = self.kept()
        if kept is not None and kept.offers(wanted):
            return True
        offered = self.offered(wanted) if wanted else {}
        return all(
            name in offered and (not version or any(same(version, other) for other in offered[name]))
            for name, version in wanted.items()
        )

    def simulate(self, wanted: dict[str, str]) -> Transaction:
        """Return what installing these versions would do; changes nothing."""
        kept = self.kept()
        if kept is not None:
            with contextlib.suppress(PackageError):
                return kept.simulate(wanted)
        with self.plugins() as plugins:
            status, _, output = self.dnf([*INSTALL, "--assumeno", *specs(wanted)], plugins)
        if status and RESOLVED not in output:
            others = self.foreign_locks()
            barred = [name for name in wanted if any(is_lock_of(lock, name) for lock in others)]
            hint = f" Somebody holds {', '.join(barred)}: see `dnf versionlock list`." if barred else ""
            raise PackageError(f"Simulating the installation failed: {why(output)}.{hint}", output)
        return self.parse(output)

    def parse(self, output: str) -> Transaction:
        """Return what dnf's table of a transaction says."""
        known = self.query()
        parts: dict[str, list[Change]] = {}
        section = ""
        for line in joined(output):
            title = line.rstrip(":")
            if line.endswith(":") and not line.startswith(" "):
                section = SECTIONS.get(title, "")
            elif line and not line.startswith(" "):
                section = ""
            elif line.startswith("   ") and line.split()[:1] == ["replacing"]:
                parts.setdefault("remove", []).append(parsed("dnf install", line, replaced))
            elif section and line.strip():
                columns = line.split()
                if len(columns) < TRANSACTION_COLUMNS:
                    raise PackageError(
                        f"dnf's table of the transaction has an unknown row: {shown(line.strip())}.", output
                    )
                name, architecture, version = columns[:3]
                previous = known[name].version if name in known and section != "install" else ""
                parts.setdefault(section, []).append(Change(name, version, architecture, previous))
        removed = ((change.name, change.version) for change in parts.get("remove", []))
        return Transaction.of(parts, removed)

    def install(self, wanted: dict[str, str]) -> None:
        """Install in one transaction; dnf downloads and checks everything first. One that fails is undone."""
        sufficient = self.sufficient(wanted)
        before = self.query()
        with sufficient.plugins() as plugins:
            status, _, output = sufficient.dnf([*INSTALL, *specs(wanted)], plugins)
            failed = [name for name in SCRIPT_FAILED.findall(output) if FAMILY.match(name)]
            builds = dkms.failures(output)
            if not status and not failed and not builds:
                return
            reasons = [*builds, *(["the disk is full"] if FULL_DISK.search(output) else [])]
            reasons += [f"a script of {name} failed" for name in dict.fromkeys(failed)]
            reason = ". ".join(reasons or [why(output)])
            raise PackageError(
                f"Installing the packages failed: {reason}. {sufficient.undo(before, plugins)}", output
            )

    def removable(self, names: Sequence[str], ours: Collection[str]) -> list[str]:
        """Return which of these packages can go without changing any other, or what others recommend."""
        base = ["rpm", *(["--root", str(self.root)] if self.root != Path("/") else [])]
        free = []
        for name in names:
            if name == LOCK_PLUGIN and self.foreign_locks():
                continue
            asked = attempt([*base, "-q", "--whatrecommends", name, "--qf", "%{NAME}\\n"], ENVIRONMENT)
            # It ends with 1 where there is none, and says so.
            if asked.returncode or set(asked.stdout.split()) <= {*ours, *names}:
                free.append(name)

        def touched(some: Sequence[str]) -> set[str]:
            status, _, output = self.dnf([*REMOVE, "--assumeno", *some])
            if status and RESOLVED not in output:
                return {"+protected"}
            transaction = self.parse(output)
            return {
                *(name for name, _ in transaction.remove),
                *(f"+{one.name}" for one in transaction.changes),
            }

        return closed(free, touched)

    def remove(self, names: Sequence[str], purge: Sequence[str]) -> None:  # noqa: ARG002 - rpm has no purge
        """Remove them in one transaction, and locks of ours on them: dnf keeps these without a package."""
        if ours := sorted(recorded_holds() & {*names}):
            self.release(ours)
        status, _, output = self.dnf([*REMOVE, *names])
        if status:
            raise PackageError(f"Removing the packages failed: {why(output)}.", output)

    def undo(self, before: Packages, plugins: Path) -> str:
        """Return to the packages of before; says what became of it."""
        number = "" if versions(self.query()) == versions(before) else self.transaction(plugins)
        if not number:
            return "Nothing was installed; run again when that is put right."
        status, _, output = self.dnf(["history", "undo", number], plugins)
        # Another dnf may have changed something since.
        if not status or versions(self.query()) == versions(before):
            return "The transaction was undone, and the node has the packages of before."
        return f"It could not be undone (status {status}: {why(output)}); see `dnf history info {number}`."

    def transaction(self, plugins: Path) -> str:
        """Return the number in dnf's history of the transaction that ran with these plugins, else ""."""
        listing = self.dnf(["history", "list"])[1]
        numbers: list[str] = re.findall(r"^\s*(\d+) \|", listing, re.MULTILINE)
        for number in numbers[:RECENT]:
            # The directory's name is in its command line, and in no other's.
            told = self.dnf(["history", "info", number])[1]
            if str(plugins) in "".join(told.split()):
                return number
        return ""

    def recover(self) -> None:
        """Remove the older ones of packages that a transaction which was cut off has left twice."""
        twice = [name for name, package in self.query().items() if package.broken]
        if twice:
            manager = self.kept() or self
            with manager.plugins() as plugins:
                manager.dnf(["remove", "--duplicates", *twice], plugins)

    def hold(self, names: Sequence[str]) -> None:
        """Lock these packages at their versions, in place of earlier locks of ours."""
        known = self.query()
        new = [f"{name}-{with_epoch(known[name].version)}.*" for name in names]
        self.replace_locks(names, new)

    def release(self, names: Sequence[str]) -> None:
        """Let dnf move these packages again."""
        self.replace_locks(names, [])

    def replace_locks(self, names: Sequence[str], new: Sequence[str]) -> None:
        """Write the version locks with others for these packages."""
        kept = [
            line for line in self.lock_lines() if not any(is_lock_of(line.strip(), name) for name in names)
        ]
        replace_file(self.lock_list(), "".join(f"{line}\n" for line in [*kept, *new]).encode(), 0o644)

    def pinned(self) -> list[str]:
        """Return the pins as version locks, one a name that the repositories offer at the pin's version.

        A lock with a pattern for a name bars every package that matches it at another version: one on
        nvidia-* would bar the container toolkit.
        """
        offered = self.offered(pattern for pin in self.pins for pattern in pin["packages"].split())
        return [
            f"{name}-{pin['version']}.*"
            for pin in self.pins
            for name, versions in offered.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in pin["packages"].split())
            and any(same(pin["version"], version) for version in versions)
        ]

    @contextlib.contextmanager
    def plugins(self) -> Iterator[Path]:
        """Provide the plugins' configuration for one transaction.

        The locks of others hold, ours do not: its packages have to move. The pins hold as locks, too.
        """
        with tempfile.TemporaryDirectory(prefix="temper-dnf-") as name:
            directory = Path(name)
            node = self.path("/etc/dnf/plugins")
            for path in node.glob("*.conf") if node.is_dir() else ():
                shutil.copyfile(path, directory / path.name)
            pinned = self.pinned()
            (directory / "locks").write_text("".join(f"{line}\n" for line in self.foreign_locks() + pinned))
            if (directory / "versionlock.conf").is_file() or pinned:
                text = f"[main]\nenabled=1\nlocklist={directory}/locks\n"
                (directory / "versionlock.conf").write_text(text)
            yield directory

    def with_details(self, transaction: Transaction) -> Transaction:
        """Return the transaction with addresses and sizes; checksums where the metadata are plain gzip."""
        changes = transaction.changes
        if not changes:
            return transaction
        exact = [f"{change.name}-{change.version}.{change.architecture}" for change in changes]
        form = "%{name}\t%{evr}\t%{arch}\t%{downloadsize}\t%{installsize}"
        rows = each_line("dnf repoquery", self.dnf(["-q", "repoquery", "--qf", form, *exact])[1], sized)
        sizes = dict(filter(None, rows))
        addresses = {
            line.rpartition("/")[2]: line
            for line in self.dnf(["-q", "repoquery", "--location", *exact])[1].splitlines()
        }

        def detailed(change: Change) -> Change:
            version = change.version.partition(":")[2] or change.version
            file = f"{change.name}-{version}.{change.architecture}.rpm"
            size = sizes.get((change.name, change.version, change.architecture), (0, 0))[0]
            return replace(change, uri=addresses.get(file, ""), size_bytes=size)

        installed = [sizes.get((c.name, c.version, c.architecture), (0, 0))[1] for c in changes]
        download_bytes = sum(size for size, _ in sizes.values())
        return transaction.detailed(detailed, download_bytes, sum(installed) - self.freed(transaction))

    def freed(self, transaction: Transaction) -> int:
        """Bytes on disk of what a transaction replaces and removes."""
        names = [change.name for change in transaction.changes if change.previous]
        names += [name for name, _ in transaction.remove]
        if not names:
            return 0
        root = ["--root", str(self.root)] if self.root != Path("/") else []
        listing = attempt(["rpm", *root, "-q", "--qf", "%{LONGSIZE}\\n", *names], ENVIRONMENT).stdout
        # "package NAME is not installed" is a line of it, too.
        return sum(each_line("rpm -q", listing, lambda line: int(line) if line.strip().isdecimal() else 0))


def kept_stream(folder: Path, name: str, stream: str) -> Path:
    """Return where dnf's note on a module stream is kept, as it is when that stream is enabled."""
    return folder / "modules.d" / f"{name}-{stream}.module"


def joined(output: str) -> list[str]:
    """Return the lines of dnf's table, a row in one line each.

    Without a terminal dnf formats for 80 columns, and breaks a row behind each column that is too wide; what
    follows is indented more than the one space that a row begins with.
    """
    lines: list[str] = []
    for line in output.splitlines():
        continues = line.startswith("  ") and line.split()[:1] != ["replacing"]
        if continues and lines and lines[-1].startswith(" "):
            lines[-1] += line
        else:
            lines.append(line)
    return lines


def installed(line: str) -> tuple[str, str, str]:
    """Read name, version and architecture from a line of `rpm -qa`."""
    name, version, architecture = line.split("\t")
    return name, version, architecture


def replaced(line: str) -> Change:
    """Read the package that a line "replacing NAME.ARCHITECTURE VERSION" of a transaction's table names."""
    _, name, version, *_ = line.split()
    return Change(name.rpartition(".")[0], version.rstrip("."), "")


def sized(line: str) -> tuple[tuple[str, str, str], tuple[int, int]] | None:
    """Read a package with its sizes, of the file and installed; None for a line of dnf's own."""
    columns = line.split("\t")
    if len(columns) != len(("name", "version", "architecture", "file", "installed")):
        return None
    return (columns[0], columns[1], columns[2]), (int(columns[3]), int(columns[4]))


def versions(known: Packages) -> dict[str, str]:
    """Name -> version."""
    return {name: package.version for name, package in known.items()}


def same(wanted: str, version: str) -> bool:
    """Return whether a wanted version is this one; one without an epoch has whatever epoch there is."""
    return wanted == version or (":" not in wanted and version.partition(":")[2] == wanted)


def with_epoch(version: str) -> str:
    """EPOCH:VERSION-RELEASE, as the versionlock plugin writes it."""
    return version if ":" in version else f"0:{version}"


def locked(lock: str, name: str, version: str, architecture: str) -> bool:
    """Return whether a version lock is for this very version of a package."""
    full = f"{name}-{with_epoch(version)}.{architecture}"
    bare = f"{name}-{version.partition(':')[2] or version}.{architecture}"
    return any(fnmatch.fnmatchcase(form, lock) for form in (full, bare, name))


def is_lock_of(lock: str, name: str) -> bool:
    """Return whether a version lock, of whatever version, names exactly this package."""
    return bool(re.fullmatch(rf"{re.escape(name)}(-(\d+:)?[^-\s]+-[^-\s]+)?", lock))
