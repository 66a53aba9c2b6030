"""Which kernels a node could boot, and which nvidia module each would load."""

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.temper.driver import kernel_modules

from tests.unit.each import each
from tests.unit.modules_on_disk import Certificate, depmod, dkms_build, install_kernel, install_module

NEW, OLD = "6.1.0-56-amd64", "6.1.0-50-amd64"
VERSION = "580.178.04"


def modules(root: Path, *releases: str, signers: bool = False) -> dict[str, dict[str, str | None] | None]:
    return kernel_modules.nvidia_modules(root, list(releases), signers=signers)


def no_modinfo(paths: list[Path]) -> dict[str, dict[str, str]]:
    assert paths == [], "a module was unpacked that DKMS's record has the version of"
    return {}


def test_a_kernel_is_one_with_an_image(tmp_path: Path) -> None:
    install_kernel(tmp_path, NEW)
    install_kernel(tmp_path, OLD, headers=False)
    assert kernel_modules.installed_kernels(tmp_path, NEW) == [
        {"release": OLD, "headers_present": False},
        {"release": NEW, "headers_present": True},
    ]


@each("vmlinuz", "modules.builtin")
def test_an_image_may_lie_beside_its_modules_or_be_marked_by_its_package(mark: str, tmp_path: Path) -> None:
    (tmp_path / "lib/modules" / OLD).mkdir(parents=True)
    (tmp_path / "lib/modules" / OLD / mark).write_text("")
    releases = [kernel["release"] for kernel in kernel_modules.installed_kernels(tmp_path, NEW)]
    assert releases == [OLD, NEW]


@pytest.mark.component
def test_modules_that_outlived_their_kernel_are_no_kernel(tmp_path: Path) -> None:
    (tmp_path / "lib/modules" / OLD).mkdir(parents=True)
    install_module(tmp_path, OLD, VERSION)  # with modules.dep and the like
    releases = [kernel["release"] for kernel in kernel_modules.installed_kernels(tmp_path, NEW)]
    assert releases == [NEW]


def test_a_running_kernel_without_any_file_is_installed(tmp_path: Path) -> None:
    assert kernel_modules.installed_kernels(tmp_path, NEW) == [{"release": NEW, "headers_present": False}]


@pytest.mark.component
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("nvidia", "updates/dkms"),
        ("nvidia", "extra"),
        ("nvidia", "kernel/nvidia-580srv-open"),
        ("nvidia-current", "updates/dkms"),
        ("nvidia-current-open", "updates/dkms"),
        ("nvidia-tesla-535", "updates/dkms"),
    ],
)
def test_the_module_is_found_wherever_a_distribution_puts_it(tmp_path: Path, name: str, place: str) -> None:
    install_kernel(tmp_path, NEW)
    install_module(tmp_path, NEW, VERSION, name=name, place=place)
    assert modules(tmp_path, NEW) == {NEW: {"version": VERSION, "signer": None, "signing_key": None}}


@pytest.mark.component
def test_a_kernel_without_the_module_is_told_from_one_with_it(tmp_path: Path) -> None:
    install_kernel(tmp_path, NEW)
    install_kernel(tmp_path, OLD)
    install_module(tmp_path, NEW, VERSION)
    install_module(tmp_path, OLD, VERSION, name="nvidia-drm")
    found = modules(tmp_path, NEW, OLD)
    assert (found[NEW] is not None, found[OLD]) == (True, None)


@pytest.mark.component
def test_a_module_that_modprobe_does_not_know_is_not_there(tmp_path: Path) -> None:
    install_kernel(tmp_path, NEW)
    path = install_module(tmp_path, NEW, VERSION)
    (path.parents[2] / "modules.dep").write_text("")
    assert modules(tmp_path, NEW) == {NEW: None}


@pytest.mark.component
def test_a_file_that_is_no_module_has_no_version(tmp_path: Path) -> None:
    install_kernel(tmp_path, NEW)
    path = install_module(tmp_path, NEW, VERSION)
    path.write_text("cut off")
    assert modules(tmp_path, NEW) == {NEW: {"version": None, "signer": None, "signing_key": None}}


@pytest.mark.component
def test_the_signer_is_the_one_of_the_certificate(tmp_path: Path) -> None:
    install_kernel(tmp_path, NEW)
    certificate = Certificate.make(tmp_path, "Example machine owner key")
    install_module(tmp_path, NEW, VERSION, certificate=certificate)
    found = modules(tmp_path, NEW)[NEW]
    assert found is not None
    assert found["signer"] == "Example machine owner key"
    assert str(found["signing_key"]).replace(":", "") == certificate.serial


@pytest.mark.component
def test_where_dkms_has_a_record_the_module_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_kernel(tmp_path, NEW)
    install_module(tmp_path, NEW, VERSION)
    dkms_build(tmp_path, "nvidia", VERSION, NEW)
    monkeypatch.setattr(kernel_modules, "modinfo", no_modinfo)
    assert modules(tmp_path, NEW) == {NEW: {"version": VERSION, "signer": None, "signing_key": None}}


@pytest.mark.component
@pytest.mark.parametrize("reason", ["no record", "signers matter"])
def test_a_compressed_module_is_unpacked_where_it_has_to_be(tmp_path: Path, reason: str) -> None:
    install_kernel(tmp_path, NEW)
    certificate = Certificate.make(tmp_path, "Example")
    subprocess.run(["xz", str(install_module(tmp_path, NEW, VERSION, certificate=certificate))], check=True)
    depmod(tmp_path, NEW)
    if reason == "signers matter":
        dkms_build(tmp_path, "nvidia", VERSION, NEW)
    found = modules(tmp_path, NEW, signers=True)[NEW]
    assert found is not None
    assert (found["version"], found["signer"]) == (VERSION, "Example")


# ---------------------------------------------------------------- DKMS


def test_what_dkms_knows_of_a_module_by_kernel(tmp_path: Path) -> None:
    dkms_build(tmp_path, "nvidia", VERSION, NEW)
    dkms_build(tmp_path, "nvidia-current", "550.163.01", OLD, installed=False)
    dkms_build(tmp_path, "zfs", "2.3.0", NEW)
    fields = ("module", "version", "kernel", "architecture", "state")
    assert kernel_modules.dkms_records(tmp_path) == [
        dict(zip(fields, ("nvidia", VERSION, NEW, "x86_64", "installed"), strict=True)),
        dict(zip(fields, ("nvidia-current", "550.163.01", OLD, "x86_64", "built"), strict=True)),
    ]


def test_a_module_whose_build_failed_is_only_added(tmp_path: Path) -> None:
    dkms_build(tmp_path, "nvidia", VERSION)
    (tmp_path / "var/lib/dkms/nvidia" / VERSION / "build").mkdir()
    (record,) = kernel_modules.dkms_records(tmp_path)
    assert (record["kernel"], record["state"]) == (None, "added")


def test_of_two_built_versions_the_linked_one_is_installed(tmp_path: Path) -> None:
    dkms_build(tmp_path, "nvidia", "580.126.09", NEW, installed=False)
    dkms_build(tmp_path, "nvidia", VERSION, NEW)
    assert kernel_modules.dkms_versions(tmp_path) == {NEW: VERSION}


def test_gpudirect_storage_is_not_taken_for_the_driver(tmp_path: Path) -> None:
    dkms_build(tmp_path, "nvidia-fs", "2.29.4", NEW)
    assert kernel_modules.dkms_versions(tmp_path) == {}


def test_a_node_without_dkms_has_no_records(tmp_path: Path) -> None:
    assert kernel_modules.dkms_records(tmp_path) == []
