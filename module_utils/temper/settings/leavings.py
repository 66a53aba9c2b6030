"""What Temper has on a node beside its settings: programs, results, empty folders. The last to be removed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ansible.module_utils.temper.access.accounts import Accounts
from ansible.module_utils.temper.access.commit_confirm import BOOT_UNIT
from ansible.module_utils.temper.driver import loaded_state
from ansible.module_utils.temper.kernel.grub import PIN
from ansible.module_utils.temper.lease import Now
from ansible.module_utils.temper.lease import read as read_lease
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.snapshots import FOLDER as SNAPSHOTS

ROOT = Path("/")
#: The folders that are Temper's own.
FOLDERS = (
    "etc/temper",
    "usr/local/lib/temper",
    "usr/local/lib/temper-pull",
    "opt/temper",
    "var/cache/temper",
    "var/lib/temper",
)
UNITS = "etc/systemd/system"
#: In /var/lib/temper, what says nothing of the time before Temper.
RESULTS = ("validation-rounds.json", "validation-traces")
#: There, too: what a role needs as long as it stays.
OF_ROLES = {"monitoring": ("maintenance",), "nvidia_stack": ("unproven-packages",), "pull": ("pull",)}


class Leavings:
    """What is there, and what of it can go."""

    def __init__(self, root: Path | None = None, only: Iterable[str] = ()) -> None:
        self.root = root or ROOT
        self.state = self.root / "var/lib/temper"
        self.settings = self.state / "settings"
        #: The roles that a run is of; empty where it is of all. What is of no role, or of others, stays then.
        self.only = frozenset(only)
        self.lease = self.state / "lease.json"

    def kept(self, role: str) -> bool:
        """Return whether a role has not been taken back."""
        return (self.settings / f"{role}.json").exists()

    def check_before(self, keeps: Iterable[str] = ()) -> None:
        """Raise RefusedError where a run must not begin. `keeps` are the tags that it leaves out."""
        self.check_holder()
        tags = {"admin_accounts", "harden"}
        if not tags & {*keeps} and (not self.only or tags & self.only):
            # This role comes last, when all the others have been taken back.
            Accounts.from_items({}, {"absent": True}).look()

    def check(self) -> None:
        """Raise RefusedError where somebody works on the node, or a change of a way in is not confirmed."""
        # A hidden one is a copy that was cut off, and never restored.
        if pending := sorted(
            one.name
            for one in (self.state / "rollback").glob("*")
            if one.is_dir() and not one.name.startswith(".")
        ):
            raise RefusedError(
                f"A change of {', '.join(pending)} waits for its confirmation, or has just been undone: look "
                f"into {self.state / 'rollback'} on the node, and run again."
            )
        self.check_holder()

    def check_holder(self) -> None:
        """Raise RefusedError where somebody holds the node's lease."""
        if self.lease.exists() and (held := read_lease(self.lease)).owner and not held.expired(Now.read()):
            raise RefusedError(
                f"{held.owner} works on this node, as {self.lease} says: let it end, or free the node with "
                "`temper rollout` or `temper fleet`, and run again."
            )

    def going(self) -> list[Path]:
        """Files and folders to remove, each with all below it."""
        own = [
            self.state / name
            for role, names in OF_ROLES.items()
            if not self.kept(role) and (not self.only or role in self.only)
            for name in names
        ]
        found = [path for path in [*own, *self._of_no_role()] if path.exists() or path.is_symlink()]
        lease = [path for path in (self.lease, self.lease.with_suffix(".json.lock")) if path.exists()]
        stays = self.lease in lease and (self.unreturned() or {*self._left(found)} - {*lease})
        if self.only or stays:
            return found
        return [*found, *lease]

    def unreturned(self) -> str:
        """Return who has not given the node back; "" where nobody holds it.

        He may still come, but the fencing number keeps him from working.
        """
        return read_lease(self.lease).owner if self.lease.exists() else ""

    def _left(self, going: Sequence[Path]) -> list[Path]:
        """Files in folders of Temper that are not below what goes."""
        return [
            path
            for folder in (self.root / name for name in FOLDERS)
            for path in folder.rglob("*")
            if (path.is_symlink() or not path.is_dir())
            and not any(path == one or one in path.parents for one in going)
        ]

    def _of_no_role(self) -> Iterator[Path]:
        if self.only:
            return
        units = self.root / UNITS
        yield units / "sysinit.target.wants" / BOOT_UNIT
        yield units / BOOT_UNIT
        if not self.kept("monitoring"):
            yield self.root / "usr/local/lib/temper-validation.pyz"
        # Where the operator has put another Python, it is the operator's.
        if (self.root / "opt/temper/venv/pyvenv.cfg").exists():
            yield self.root / "opt/temper/venv"
        yield self.root / "var/cache/temper"
        if not self.kept("gpu_settings"):
            yield self.root / "run/temper"
        yield from (self.state / name for name in RESULTS)
        yield self.state / "rollback"
        held = self.state / "held-packages"
        if held.exists() and not held.read_text(encoding="utf-8").split():
            yield held

    def stays(self) -> list[str]:
        """Return sentences about what is left, by whose it is."""
        left = self._left(self.going())
        roles = sorted(path.stem for path in self.settings.glob("*.json"))
        said = (
            [f"stays: the settings of {', '.join(roles)}, which this run has not taken back."]
            if roles
            else []
        )
        if (journal := self.state / "autotune-journal.json") in left:
            said.append(f"stays: what an autotune has changed; {journal} says how it was.")
        if self.lease in left and not roles and not self.only:
            said.append(f"stays: {self.lease}, whose number keeps a former holder from working on this node.")
        if not self.only and (pin := self.root / PIN).exists():
            said.append(
                f"stays: {pin}, because GRUB's own options may boot another kernel: to use these, remove it "
                "and run update-grub."
            )
        if not self.only and (kept := sorted(path.name for path in (self.root / SNAPSHOTS).glob("*"))):
            said.append(
                f"stays: {', '.join(kept)} in {self.root / SNAPSHOTS}, which a roll-out took: delete "
                "them with `btrfs subvolume delete`."
            )
        known = ("autotune-journal.json", "lease.json", "lease.json.lock")
        # A folder stands for all that is in it: an operator's Python has thousands of files.
        others = {
            str(top / path.relative_to(top).parts[0])
            for path in left
            for top in (self.root / name for name in FOLDERS)
            if top in path.parents and not (roles or self.only) and path.name not in known
        }
        said += loaded_state.gone_but_loaded(self.root)
        return said + ([f"stays: {', '.join(sorted(others))}, which no role knows."] if others else [])

    def remove(self) -> None:
        """Remove what can go, and the folders that are empty then."""
        for path in self.going():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in self.empty():
            with contextlib.suppress(OSError):  # somebody has just put something there
                folder.rmdir()

    def empty(self) -> list[Path]:
        """Folders without a file, but for what goes, the deepest first."""
        going = self.going()
        if self.only:
            return []

        def bare(folder: Path) -> bool:
            return all(
                one in going or (one.is_dir() and not one.is_symlink() and bare(one))
                for one in folder.iterdir()
            )

        found: list[Path] = []
        for top in (self.root / name for name in FOLDERS):
            below = [top, *(path for path in top.rglob("*") if path.is_dir() and not path.is_symlink())]
            found += [one for one in below if one.is_dir() and one not in going and bare(one)]
        outside = [one for one in found if not any(other in one.parents for other in going)]
        return sorted(outside, key=lambda path: len(path.parts), reverse=True)


def text(paths: list[Path]) -> str:
    """Return the paths for a difference, one a line."""
    return "".join(f"{json.dumps(str(path))[1:-1]}\n" for path in paths)
