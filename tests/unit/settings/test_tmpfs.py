"""The size of a file system in memory, on a real one in a mount namespace of its own."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.settings import observe, tmpfs
from ansible.module_utils.temper.settings.tmpfs import GIB, TmpfsSize, size_bytes

from tests.unit.each import each
from tests.unit.planning_roles.plans import contents, planned
from tests.unit.settings.role_plans import item, role_plan

UNSHARE = ["unshare", "--mount", "--propagation=private"]
MIB = 2**20
can_mount = pytest.mark.skipif(
    subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "x", "/mnt"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="only root may mount",
)
# Mounts a tmpfs of 64 MiB, does what the test says, and tells what the kernel has after each step.
PROGRAM = """
import json, subprocess, sys
import ansible.module_utils
ansible.module_utils.__path__.append(sys.argv[1])
from ansible.module_utils.temper.settings.base import SettingError
from ansible.module_utils.temper.settings.tmpfs import TmpfsSize
from ansible.module_utils.temper.mounts import mounts
path, told, said = sys.argv[2], [], ""
options = "size=64M,nosuid,nodev,noexec,mode=1777"
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "x", path], check=True)
for step in sys.argv[3:]:
    verb, _, size = step.partition(" ")
    setting = TmpfsSize(path, size if verb in ("look", "apply") and size else "100%")
    if verb == "fill":
        with open(path + "/file", "wb") as file:
            file.write(bytes(int(size) * 2**20))
    elif verb == "apply":
        setting.apply()
    elif verb == "restore":
        try:
            setting.restore(int(size))
        except SettingError as error:
            said = str(error)
    elif verb == "run":
        subprocess.run(size, shell=True, check=True)
    flags = next(mount.options for mount in mounts() if mount.point == path)
    told.append([setting.read(), flags, setting.obstacle() or said])
print(json.dumps(told))
"""


def on_a_real_one(folder: Path, steps: Sequence[str]) -> list[Any]:
    """Size, options of the mount point and obstacle after each step."""
    utils = str(Path(tmpfs.__file__).parents[2])
    command = [*UNSHARE, sys.executable, "-c", PROGRAM, utils, str(folder), *steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


@each(("75%", 48 * GIB), ("512M", 512 * MIB), ("2T", 2048 * GIB))
def test_sizes_are_of_the_memory_or_absolute(size: str, found: int) -> None:
    assert size_bytes(size, 64 * GIB) == found


@each("", "75", "7.5G", "G", "-1G", "75 %")
def test_what_is_no_size_is_named(size: str) -> None:
    with pytest.raises(ValueError, match="such as 75%"):
        size_bytes(size, GIB)


@pytest.mark.component
@can_mount
def test_the_size_changes_and_returns_and_options_of_the_mount_point_stay(tmp_path: Path) -> None:
    first, made, back = on_a_real_one(tmp_path, ["look", "apply 128M", f"restore {64 * MIB}"])
    assert [first[0], made[0], back[0]] == [64 * MIB, 128 * MIB, 64 * MIB]
    assert first[1] == made[1] == back[1]
    assert {"nosuid", "nodev", "noexec"} <= set(first[1].split(","))


@pytest.mark.component
@can_mount
def test_a_size_in_percent_is_the_kernels_own_percentage(tmp_path: Path) -> None:
    ((size, _, _),) = on_a_real_one(tmp_path, ["apply 10%"])
    assert size == pytest.approx(size_bytes("10%", tmpfs.memory_bytes()), rel=tmpfs.TOLERANCE)


@pytest.mark.component
@can_mount
def test_less_than_is_in_it_is_an_obstacle_before_anything_is_changed(tmp_path: Path) -> None:
    _, enough, too_little = on_a_real_one(tmp_path, ["fill 48", "look 49M", "look 32M"])
    assert not enough[2]
    assert "os_tuning_shm: 32M" in too_little[2]


@pytest.mark.component
@can_mount
def test_a_former_size_that_is_less_than_is_in_it_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    _, _, back = on_a_real_one(tmp_path, ["apply 128M", "fill 96", f"restore {64 * MIB}"])
    assert back[0] == 128 * MIB
    assert all(words in back[2] for words in (str(tmp_path), "0.1 GiB", "run again"))


@pytest.mark.component
@can_mount
def test_the_unit_that_sets_it_at_boot_does_the_same(tmp_path: Path) -> None:
    text = contents(planned("os_tuning", os_tuning_shm="10%"))["/etc/systemd/system/temper-os-tuning.service"]
    (line,) = re.findall(r"^ExecStart=(/bin/sh -c .*)$", text or "", re.MULTILINE)
    # As systemd does it: systemd.service(5), "Command lines".
    command = shlex.split(line.replace("%%", "%").replace("$$", "$"))[-1].replace("/dev/shm", str(tmp_path))
    first, booted = on_a_real_one(tmp_path, ["look", f"run {command.removeprefix('exec ')}"])
    assert booted[0] == pytest.approx(size_bytes("10%", tmpfs.memory_bytes()), rel=tmpfs.TOLERANCE)
    assert booted[1] == first[1]


def test_a_folder_that_is_no_tmpfs_needs_nothing(tmp_path: Path) -> None:
    setting = TmpfsSize(str(tmp_path), "75%")
    assert (setting.read(), setting.settled()) == (None, True)
    plan = role_plan("os_tuning", [item("tmpfs", str(tmp_path), "75%")])
    assert [found["state"] for found in observe.observe(plan)] == ["not-applicable"]


def test_compliance_tells_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TmpfsSize, "read", lambda _: GIB)
    monkeypatch.setattr(tmpfs, "memory_bytes", lambda: 64 * GIB)
    (found,) = observe.observe(role_plan("os_tuning", [item("tmpfs", "/dev/shm", "75%")]))
    assert found["state"] == "fail"
    assert [(one["before"], one["after"]) for one in found["changes"]] == [("1.0 GiB", "48.0 GiB")]
