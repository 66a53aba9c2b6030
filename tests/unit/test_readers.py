"""Readers of other programs: a text that is cut off, foreign or huge is a sentence, never a traceback."""

from pathlib import Path

import pytest
from ansible.module_utils.temper import mounts
from ansible.module_utils.temper.packaging import packages
from ansible.module_utils.temper.process import OutputError


def test_line_in_the_way_is_named() -> None:
    with pytest.raises(OutputError, match=r"dpkg-query.*'cut off'"):
        packages.parse_dpkg("libc6\t2.36\tinstall\tinstalled\ncut off\n")


def test_mount_of_a_user_forges_none_and_breaks_nothing(tmp_path: Path) -> None:
    """Names that FUSE lets a user choose: no encoding, and all that Python takes for a blank or an end."""
    table = tmp_path / "mountinfo"
    names = [
        b"\xff",
        "\u2028 1 1 0:1 / / rw - btrfs /dev/sda rw".replace(" ", "\\040").encode(),
        b"a\x0cb\x1c\x85",
    ]
    table.write_bytes(
        b"".join(b"9 1 0:9 / /home/eve/" + name + b" rw - fuse.x /dev/sda1 rw\n" for name in names)
        + b"29 1 8:1 / / rw,nodev shared:1 - ext4 /dev/sda2 rw\n"
    )
    found = mounts.mounts(table)
    assert [one.point for one in found if one.point == "/"] == ["/"]
    assert len(found) == 4
    assert found[-1].options == "rw,nodev"
