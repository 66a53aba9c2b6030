"""What dnf's output means, without a dnf: what a real one does is tested in the lab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible.module_utils.packaging.dnf import Dnf
from ansible.module_utils.packaging.packages import Package, PackageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PLUGINS = Path("/tmp/temper-dnf-abc")
# As dnf 4 writes it without a terminal: a column that is too wide ends its line.
TABLE = """\
Dependencies resolved.
================================================================================
 Package                   Arch   Version            Repository            Size
================================================================================
Installing:
 nvidia-container-toolkit-base
                           x86_64 1.20.0-1           temper-nvidia-container-toolkit
                                                                          5.8 M
 libnccl                   x86_64 2.28.9-1+cuda13.0  temper-nvidia-cuda   200 M
     replacing  libnccl-old.x86_64 2.0-1
Removing dependent packages:
 gnome-shell-extension-common-and-long
                           noarch 40.7-15.el9        @app                 1.2 M

Transaction Summary
================================================================================
Install  2 Packages
Remove   1 Package
"""
HISTORY = """\
ID     | Command line             | Date and time    | Action(s)      | Altered
-------------------------------------------------------------------------------
    12 | -y install editor        | 2026-11-21 10:01 | Install        |    1
    11 | -y --setopt=pluginconfpa | 2026-11-21 10:00 | Install        |    2 EE
    10 | update                   | 2026-11-20 09:00 | Upgrade        |   30
"""
COMMANDS = {
    "12": "-y install editor",
    "11": f"-y --setopt=pluginconfpath={PLUGINS} install x",
    "10": "update",
}


class Scripted(Dnf):
    """A dnf whose history is given; the packages differ from those of before."""

    def query(self) -> dict[str, Package]:
        return {"editor": Package("editor", "1", "install", "installed")}

    def dnf(self, arguments: Sequence[str], plugins: Path | None = None) -> tuple[int, str, str]:
        self.saved[Path(" ".join(arguments))] = None
        if arguments[:2] == ["history", "info"]:
            return 0, f"Command Line   : {COMMANDS[arguments[2]]}\n", ""
        return 0, HISTORY, ""


def undone(manager: Dnf) -> list[str]:
    return [str(command) for command in manager.saved if str(command).startswith("history undo")]


def test_only_our_own_transaction_is_undone() -> None:
    manager = Scripted()
    assert "The transaction was undone" in manager.undo({}, PLUGINS)
    assert undone(manager) == ["history undo 11"]


def test_where_none_of_ours_ran_nothing_is_undone() -> None:
    manager = Scripted()
    assert "Nothing was installed" in manager.undo({}, Path("/elsewhere"))
    assert undone(manager) == []


def test_rows_that_dnf_breaks_are_read_whole() -> None:
    transaction = Scripted().parse(TABLE)
    assert [(change.name, change.version, change.architecture) for change in transaction.install] == [
        ("nvidia-container-toolkit-base", "1.20.0-1", "x86_64"),
        ("libnccl", "2.28.9-1+cuda13.0", "x86_64"),
    ]
    assert transaction.remove == (
        ("libnccl-old", "2.0-1"),
        ("gnome-shell-extension-common-and-long", "40.7-15.el9"),
    )


def test_a_row_that_nobody_understands_is_not_passed_over() -> None:
    with pytest.raises(PackageError, match="unknown row: kernel-core x86_64"):
        Scripted().parse("Installing:\n kernel-core  x86_64\n")


class Offering(Dnf):
    """A dnf whose repositories offer these names for any pattern."""

    def offered(self, names: Iterable[str]) -> dict[str, list[str]]:
        assert list(names) == ["nvidia-*", "libnvidia-*"]
        return {
            "nvidia-driver-cuda": ["3:595.91.07-1.el9", "3:580.178.04-1.el9"],
            "libnvidia-ml": ["3:580.178.04-1.el9"],
            "nvidia-container-toolkit": ["1.20.0-1"],
        }


def test_pins_become_locks_of_names() -> None:
    """A lock on nvidia-* would bar the container toolkit, which has no such version."""
    pin = {"packages": "nvidia-* libnvidia-*", "version": "580.178.04-1.el9"}
    assert Offering(pins=[pin]).pinned() == [
        "nvidia-driver-cuda-580.178.04-1.el9.*",
        "libnvidia-ml-580.178.04-1.el9.*",
    ]
