"""The driver as a setting: what is loaded is told from what is installed, and proven after a change."""

from pathlib import Path

import pytest
from ansible.module_utils.temper.driver import loaded_state, module_builds, runtime
from ansible.module_utils.temper.driver.loaded import LoadedDriver
from ansible.module_utils.temper.packaging import node, packages
from ansible.module_utils.temper.settings.base import SettingError

from tests.unit.modules_on_disk import install_kernel, install_module

pytestmark = pytest.mark.component

KERNEL = "6.1.0-56-amd64"
VERSION, OLDER = "580.178.04", "580.126.09"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with one kernel that has the module, and libraries of the same version."""
    root = tmp_path / "root"
    root.mkdir()
    install_kernel(root, KERNEL)
    install_module(root, KERNEL, VERSION)
    library = root / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.symlink_to(f"libnvidia-ml.so.{VERSION}")
    monkeypatch.setattr(module_builds, "ROOT", root)
    monkeypatch.setattr("platform.release", lambda: KERNEL)
    monkeypatch.setattr(packages, "HOLD_RECORD", root / "var/lib/temper/held-packages")
    monkeypatch.setattr(loaded_state, "compute_processes", lambda: ([], None))
    monkeypatch.setattr(loaded_state, "DRIVER_POLL_S", 0.01)
    return root


def load(root: Path, version: str) -> None:
    path = root / "sys/module/nvidia/version"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{version}\n")


def answer(monkeypatch: pytest.MonkeyPatch, problem: str = "") -> list[str]:
    """Let libraries answer; returns the versions of the driver that they were asked for."""
    asked: list[str] = []

    def prove(expected: dict[str, str]) -> tuple[runtime.Versions, str]:
        asked.append(expected["driver"])
        return {}, problem

    monkeypatch.setattr(runtime, "prove", prove)
    return asked


def setting(after_boot_s: float = 0) -> LoadedDriver:
    wanted = {"version": VERSION, "dkms": "nvidia", "package_manager": "apt", "mok_certificate": ""}
    return LoadedDriver.from_items({"nvidia": wanted}, {"after_boot_s": after_boot_s})


def test_the_planned_driver_is_settled_without_asking_anybody(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(root, VERSION)
    asked = answer(monkeypatch)
    assert setting().settled()
    assert asked == []


@pytest.mark.parametrize("loaded", [OLDER, None])
def test_another_driver_needs_a_reboot_and_says_who_uses_the_gpus(
    root: Path, monkeypatch: pytest.MonkeyPatch, loaded: str | None
) -> None:
    if loaded:
        load(root, loaded)
    (root / "sys/module/nouveau").mkdir(parents=True)
    monkeypatch.setattr(loaded_state, "compute_processes", lambda: (["4242 python3"], None))
    asked, driver = answer(monkeypatch), setting()
    driver.apply()
    result = driver.result()
    assert (driver.reboot_due, result["reboot_due"], result["loaded_version"]) == (True, True, loaded)
    assert (result["nouveau_loaded"], result["compute_processes"]) == (True, ["4242 python3"])
    assert asked == []


def test_a_virtual_machine_with_a_gpu_is_named_before_a_reboot(root: Path) -> None:
    guest = root / "proc/4711"
    (guest / "fd").mkdir(parents=True)
    (guest / "fd/9").symlink_to("/dev/vfio/13")
    (guest / "comm").write_text("qemu-system-x86\n")
    (guest / "cgroup").write_text("0::/machine.slice/machine-vm7.scope\n")
    driver = setting()
    driver.apply()
    (user,) = driver.result()["compute_processes"]
    assert "qemu-system-x86 (process 4711" in user


def test_after_the_reboot_the_driver_is_proven(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch)
    setting().apply()
    load(root, VERSION)
    assert not setting().settled()
    setting(after_boot_s=0.05).apply()
    assert (asked, setting().settled()) == ([VERSION], True)


def test_changed_packages_are_proven_though_the_driver_is_loaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(root, VERSION)
    node.mark_unproven()
    asked = answer(monkeypatch)
    assert not setting().settled()
    setting().apply()
    assert (asked, setting().settled()) == ([VERSION], True)


def test_what_could_not_be_proven_stays_to_be_proven(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(root, VERSION)
    node.mark_unproven()
    answer(monkeypatch, "NCCL: expected 2.28.9, found 2.27.5")
    with pytest.raises(SettingError, match="NCCL: expected"):
        setting().apply()
    assert not setting().settled()


@pytest.mark.parametrize("complaint", ["No devices were found", None])
def test_a_driver_that_does_not_answer_after_a_boot_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, complaint: str | None
) -> None:
    load(root, VERSION if complaint else OLDER)
    monkeypatch.setattr(loaded_state, "compute_processes", lambda: ([], complaint))
    answer(monkeypatch)
    with pytest.raises(SettingError) as error:
        setting(after_boot_s=0.05).apply()
    assert f"Expected driver {VERSION}" in str(error.value)
    assert f"({complaint or 'nvidia-smi reports no error'})" in str(error.value)


def test_libraries_of_another_version_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(root, VERSION)
    link = root / "usr/lib64/libnvidia-ml.so.1"
    link.unlink()
    link.symlink_to(f"libnvidia-ml.so.{OLDER}")
    answer(monkeypatch)
    assert not setting().settled()
    with pytest.raises(SettingError, match=f"libraries of {OLDER} on kernel {KERNEL}"):
        setting().apply()


def test_a_kernel_without_the_module_is_not_left(root: Path) -> None:
    load(root, VERSION)
    install_kernel(root, "6.1.0-50-amd64", headers=False)
    assert not setting().settled()
    with pytest.raises(SettingError, match=r"Kernel 6\.1\.0-50-amd64 would boot without the driver"):
        setting().apply()


def test_there_is_no_way_back_to_another_driver(root: Path) -> None:
    load(root, OLDER)
    before = setting().read()
    setting().restore(before)
    load(root, VERSION)
    with pytest.raises(SettingError, match=f"no way back to driver {OLDER}"):
        setting().restore(before)
