"""Temper's modules that this program uses: installed beside it, as the node's own Python has no Ansible."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible.module_utils import files, lease, process, records
else:
    try:
        from ansible.module_utils import files, lease, process, records
    except ImportError:
        import files
        import lease
        import process
        import records

__all__ = ["clean", "files", "lease", "process", "records"]

PROGRAMS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def clean(folder: str = "/", **variables: str) -> list[str]:
    """Return the beginning of a command that runs in a folder and has nothing else in its environment."""
    return ["env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in variables.items())]
