"""Write configuration files: compare first, replace atomically, say what changed."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper.process import succeeds, which
else:
    # Beside the program by which a node pulls (pull/), which needs no Ansible.
    from process import succeeds, which

#: Far more than a file of settings, of keys or of records has.
MOST_BYTES = 16 * 2**20
SELINUX = Path("/sys/fs/selinux/enforce")
HIDDEN = "(not shown: not everybody may read this file)\n"
HIDDEN_NEW = "(other content or mode, not shown)\n"


@contextlib.contextmanager
def candidate(content: bytes) -> Iterator[str]:
    """Yield the path of a file for a program that shall judge what it would say in its place."""
    with tempfile.NamedTemporaryFile(prefix="temper-") as file:
        file.write(content)
        file.flush()
        yield file.name


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
        """Return whether the file on disk has other bytes, another mode or another owner than root."""
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

    def before_and_after(self) -> tuple[str, str]:
        """Return what the file says and what it should say, for people."""
        path = Path(self.path)
        exists = path.is_file()
        private = not int(self.mode, 8) & stat.S_IROTH or (exists and not path.stat().st_mode & stat.S_IROTH)
        if private and not self.public:
            return HIDDEN if exists else "", HIDDEN_NEW if self.content is not None else ""
        return path.read_text(errors="replace") if exists else "", self.data.decode(errors="replace")

    def write(self) -> None:
        """Replace or remove the file."""
        if self.content is None:
            Path(self.path).unlink(missing_ok=True)
        else:
            replace_file(Path(self.path), self.data, int(self.mode, 8))


def replace_file(path: Path, data: bytes, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Replace a file in one step, so that no reader and no crash ever sees half of it.

    Only root can give a file to another account: who acts as somebody else writes that one's own.
    """
    new = make_directories(path.parent)
    # In the same directory, as a rename must not cross file systems. No *.conf pattern takes this name in.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            if os.geteuid() == 0:
                os.fchown(stream.fileno(), uid, gid)
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except PermissionError as error:
        hint = ": look at `lsattr` (chattr -i)" if os.geteuid() == 0 else ""
        raise PermissionError(error.errno, f"{error.strerror}{hint}", str(path)) from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_entries(path.parent)
    label(*new, path)


def label(*paths: Path) -> None:
    """Give files and directories the labels that SELinux's policy has for them, where it is on."""
    if SELINUX.exists() and (restorecon := which("restorecon")):
        # It fails where the file system has no labels (NFS, say), and nothing is amiss there.
        succeeds([restorecon, *map(str, paths)])


def read_regular(path: Path, most_bytes: int = MOST_BYTES, *, follow: bool = False) -> bytes:
    """Return the content of a file that somebody else may have put there.

    A pipe does not hold the reader up, and a sparse file of a terabyte costs nothing. A link is followed only
    where `follow` says so.

    Raises:
        OSError: it is missing, a link, no regular file, or longer than `most_bytes`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", str(path))
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"expected at most {most_bytes} bytes", str(path))
    return content


def saved(path: Path) -> dict[str, Any] | None:
    """Return a regular file as JSON can hold it, or where a link leads to; None where there is neither."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return {"link": str(path.readlink())}
    content = base64.b64encode(path.read_bytes()).decode()
    return {
        "content": content,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
    }


def put_back(path: Path, state: dict[str, Any] | None) -> None:
    """Make a file what `saved` has returned."""
    if state and "content" in state:
        replace_file(path, base64.b64decode(state["content"]), state["mode"], state["uid"], state["gid"])
        return
    path.unlink(missing_ok=True)
    if state:
        make_directories(path.parent)
        path.symlink_to(state["link"])


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_entries(directory: Path) -> None:
    try:
        sync(directory)
    except OSError as error:
        # Not every file system can (EINVAL), nor may every account read the directory that it writes in.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def make_directories(path: Path) -> list[Path]:
    """Make a directory and those above it that are missing, readable for all whatever the umask is.

    Returns those that it has made.
    """
    made = [directory for directory in (*reversed(path.parents), path) if not directory.exists()]
    for directory in made:
        directory.mkdir()
        directory.chmod(0o755)
    return made
