"""Write configuration files: compare first, replace atomically, say what changed."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

HIDDEN = "(not shown: not everybody may read this file)\n"
HIDDEN_NEW = "(other content or mode, not shown)\n"


@dataclass(frozen=True)
class File:
    """A file as it should be. `content` None means that it should not exist.

    --diff shows no text of a file that not everybody may read, unless it is `public`: holds no secret.
    """

    path: str
    content: str | bytes | None
    mode: str = "0644"
    public: bool = False

    @property
    def data(self) -> bytes:
        """The content as bytes."""
        return self.content.encode() if isinstance(self.content, str) else self.content or b""

    def differs(self) -> bool:
        """Whether the file on disk has other bytes, another mode or another owner than root."""
        path = Path(self.path)
        if self.content is None:
            return path.is_symlink() or path.exists()
        try:
            status = path.lstat()
        except FileNotFoundError:
            return True
        if not stat.S_ISREG(status.st_mode):
            return True
        owned = (status.st_uid, status.st_gid) == (0, 0)
        if not owned or stat.S_IMODE(status.st_mode) != int(self.mode, 8):
            return True
        return path.read_bytes() != self.data

    def diff(self) -> dict[str, str]:
        """Before and after in the form that Ansible's --diff prints."""
        path = Path(self.path)
        exists = path.is_file()
        headers = {"before_header": self.path, "after_header": self.path}
        private = not int(self.mode, 8) & stat.S_IROTH or (exists and not path.stat().st_mode & stat.S_IROTH)
        if private and not self.public:
            after = HIDDEN_NEW if self.content is not None else ""
            return headers | {"before": HIDDEN if exists else "", "after": after}
        before = path.read_text(errors="replace") if exists else ""
        return headers | {"before": before, "after": self.data.decode(errors="replace")}

    def write(self, module: AnsibleModule | None = None) -> None:
        """Replace (or remove) the file in one step, so that no reader and no crash ever sees half of it.

        A module's own move copes with files that cannot be renamed over: a container's /etc/hosts.
        """
        path = Path(self.path)
        if self.content is None:
            path.unlink(missing_ok=True)
            return
        make_directories(path.parent)
        # In the same directory: the rename must not cross file systems.
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(self.data)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(int(self.mode, 8))
            if module is None:
                Path(temporary).replace(path)
            else:
                module.atomic_move(temporary, self.path)
            os.chown(self.path, 0, 0)
            path.chmod(int(self.mode, 8))
        finally:
            Path(temporary).unlink(missing_ok=True)


def make_directories(path: Path) -> None:
    """Make a directory and those above it that are missing, readable for all whatever the umask is."""
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            directory.mkdir()
            directory.chmod(0o755)


@dataclass
class Result:
    """What a module did, in the form it returns to Ansible."""

    changed: bool = False
    changed_files: list[str] = field(default_factory=list)
    diff: list[dict[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The keys that Ansible reads: changed, changed_files and diff."""
        return {"changed": self.changed, "changed_files": self.changed_files, "diff": self.diff}


def write_all(module: AnsibleModule, files: list[File]) -> Result:
    """Bring all files to the wanted state (or, in check mode, say which would change)."""
    result = Result()
    for file in files:
        if not file.differs():
            continue
        result.changed = True
        result.changed_files.append(file.path)
        result.diff.append(file.diff())
        if not module.check_mode:
            file.write(module)
    return result
