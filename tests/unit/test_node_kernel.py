"""A node's way to another kernel and back, with a real apt and dpkg: see grub_programs for GRUB."""

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import node_kernel
import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import module_builds
from ansible.module_utils.temper.kernel import grub, upgrade
from ansible.module_utils.temper.packaging import repositories, staging
from ansible.module_utils.temper.packaging.apt import Apt

from tests.unit.apt_machine import Archive, Machine
from tests.unit.grub_programs import Grub
from tests.unit.modules_on_disk import depmod, install_module
from tests.unit.needs import root_and

Run = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.component,
    root_and("apt-get", "dpkg-deb", "depmod"),
]
OLD, NEW, NEWER = "6.1.0-40-amd64", "6.1.0-41-amd64", "6.1.0-42-amd64"
VERSIONS = {OLD: "6.1.150-1", NEW: "6.1.160-1", NEWER: "6.1.170-1"}
DRIVER = "595.91.07"


@dataclass
class Node:
    """A node that runs a kernel."""

    machine: Machine
    grub: Grub
    archive: Archive
    run_module: Run
    release: str = OLD
    #: Why DKMS does not build, and for which kernel it builds in error.
    failure: str | None = None
    built_for: str = ""

    def step(self, step: str, **parameters: Any) -> dict[str, Any]:
        return self.run_module(node_kernel.main, step=step, driver=DRIVER, dkms="nvidia", **parameters)

    def build(self, _name: str, version: str, release: str) -> str | None:
        """What DKMS does."""
        if not self.failure:
            install_module(self.machine.root, release, version, built_for=self.built_for)
        return self.failure

    def boot(self) -> None:
        self.release = self.grub.boot()

    def publish(self, release: str) -> None:
        """A kernel as Debian packages it, and the packages that follow the newest."""
        version = VERSIONS[release]
        modules = f"$DPKG_ROOT/lib/modules/{release}"
        update = "$DPKG_ROOT/programs/update-grub"  # apt gives scripts a PATH of its own
        self.archive.add(
            f"linux-image-{release}",
            version,
            script=(
                f"mkdir -p {modules}; touch {modules}/modules.builtin $DPKG_ROOT/boot/initrd.img-{release}; "
                f"echo image >$DPKG_ROOT/boot/vmlinuz-{release}; {update}"
            ),
            removal=f"rm -rf $DPKG_ROOT/boot/*-{release} {modules}; {update}",
            Depends=f"linux-kbuild (>= {version})",
        )
        self.archive.add(f"linux-headers-{release}", version, script=f"mkdir -p {modules}/build")
        self.archive.add("linux-kbuild", version)
        for kind in ("image", "headers"):
            self.archive.add(f"linux-{kind}-amd64", version, Depends=f"linux-{kind}-{release}")

    def kernels(self) -> set[str]:
        names = self.machine.versions()
        return {name.removeprefix("linux-image-") for name in names if name.startswith("linux-image-6")}


@pytest.fixture
def node(machine: Machine, tmp_path: Path, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that runs the older of two kernels; the newer one is only offered."""
    grub_programs = Grub.install(machine.root, machine.root / "programs")
    monkeypatch.setenv("PATH", f"{grub_programs.programs}:{os.environ['PATH']}")
    monkeypatch.setattr(grub, "ROOT", machine.root)
    monkeypatch.setattr(upgrade, "RECORD", machine.root / "var/lib/temper/kernel-upgrade.json")
    monkeypatch.setattr(staging, "FORMER", tmp_path / "former-packages")
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")
    (machine.root / "boot").mkdir()
    archive = Archive(tmp_path / "kernels")
    made = Node(machine, grub_programs, archive, run_module)
    monkeypatch.setattr(platform, "release", lambda: made.release)
    monkeypatch.setattr(module_builds, "build", made.build)
    machine.use(archive)
    made.publish(OLD)
    machine.install("linux-image-amd64", "linux-headers-amd64")
    install_module(machine.root, OLD, DRIVER)
    made.publish(NEW)
    return made


def test_what_a_node_would_get_is_said_and_nothing_is_changed(node: Node) -> None:
    before = node.machine.snapshot()
    found = node.step("look")["kernel"]
    assert (found["running"], found["release"], found["version"]) == (OLD, NEW, VERSIONS[NEW])
    assert set(found["install"]) == {f"linux-image-{NEW}", f"linux-headers-{NEW}"}
    assert found["upgrade"] == ["linux-kbuild"]
    assert node.machine.snapshot() == before


def test_the_way_there_ends_with_the_new_kernel_as_default(node: Node) -> None:
    for step in ("stage", "install"):
        assert "msg" not in node.step(step)
    assert node.kernels() == {OLD, NEW}
    # Whatever happens to the node now, it boots the kernel that it has had.
    assert node.grub.boot() == OLD
    assert "msg" not in node.step("arm")
    node.boot()
    assert node.release == NEW
    assert node.grub.boot() == OLD
    assert "msg" not in node.step("confirm")
    assert node.step("keep")["said"] == ""
    assert not node.step("keep")["changed"]
    assert node.grub.boot() == NEW
    assert node.kernels() == {OLD, NEW}
    assert not upgrade.RECORD.exists()
    assert not grub.pinned()


def test_the_way_back_leaves_what_was_there(node: Node) -> None:
    before = node.machine.versions()
    node.step("stage")
    node.step("install")
    node.step("arm")
    node.boot()
    assert node.step("leave")["boots"]
    assert "Expected kernel 6.1.0-40-amd64 to run" in node.step("remove")["msg"]
    node.boot()
    assert not node.step("leave")["boots"]
    shutil.rmtree(node.archive.path)  # nobody offers the former linux-kbuild any more
    assert node.step("remove")["said"] == ""
    assert node.machine.versions() == before
    assert "msg" not in node.step("confirm", side="former")
    node.step("release")
    assert not upgrade.RECORD.exists()
    assert node.grub.boot() == OLD


def test_each_step_may_be_repeated(node: Node) -> None:
    for step in ("stage", "stage", "install", "install", "arm", "arm"):
        assert "msg" not in node.step(step)
    node.boot()
    for step in ("confirm", "confirm", "leave", "leave"):
        assert "msg" not in node.step(step)
    node.boot()
    for step in ("remove", "remove", "release", "release", "remove", "leave"):
        assert "msg" not in node.step(step)
    assert node.kernels() == {OLD}


def test_another_kernel_than_wanted_is_an_error(node: Node) -> None:
    node.step("stage")
    node.step("install")
    node.step("arm")
    node.boot()
    node.boot()  # it hung, and somebody switched it off and on
    assert node.release == OLD
    assert f"Expected kernel {NEW}, found {OLD} running" in node.step("confirm")["msg"]


def test_a_module_that_does_not_build_ends_the_way_before_any_boot(node: Node) -> None:
    node.failure = "nv-pci.c: error: too few arguments"
    node.step("stage")
    assert node.step("install")["msg"] == f"Kernel {NEW} gets no nvidia module: {node.failure}"
    assert f"Kernel {NEW} has no nvidia module." in node.step("arm")["msg"]
    assert node.grub.boot() == OLD


def test_a_module_for_another_kernel_is_not_booted(node: Node) -> None:
    node.built_for = OLD
    node.step("stage")
    assert f"The nvidia module of kernel {NEW} is built for {OLD}" in node.step("install")["msg"]


def test_a_former_kernel_without_its_module_is_no_way_back(node: Node) -> None:
    node.step("stage")
    node.step("install")
    next((node.machine.root / "lib/modules" / OLD).rglob("nvidia.ko")).unlink()
    depmod(node.machine.root, OLD)
    assert f"Kernel {OLD} has no nvidia module." in node.step("arm")["msg"]


def test_the_former_kernel_is_not_removed_automatically_meanwhile(node: Node) -> None:
    node.step("stage")
    node.machine.run("apt-mark", "auto", f"linux-image-{OLD}")
    node.step("stage")
    node.step("install")
    assert f"linux-image-{OLD}" in Apt().run(["apt-mark", "showmanual"], "").split()
    node.step("arm")
    node.boot()
    node.step("keep")
    assert f"linux-image-{OLD}" in Apt().run(["apt-mark", "showauto"], "").split()


@pytest.mark.parametrize(("wish", "words"), [("newest", "the newest kernel"), (VERSIONS[OLD], "this kernel")])
def test_a_node_that_has_it_is_settled(node: Node, wish: str, words: str) -> None:
    (node.archive.path / "Packages").unlink()
    node.publish(OLD)
    expected = f"it has {words} already: {OLD} ({VERSIONS[OLD]})"
    assert node.step("look", wish=wish)["kernel"] == {"settled": expected}
    assert node.step("stage", wish=wish)["kernel"] == {"settled": expected}


def test_a_version_is_taken_by_name(node: Node) -> None:
    node.publish(NEWER)
    assert node.step("look")["kernel"]["release"] == NEWER
    assert node.step("look", wish=VERSIONS[NEW])["kernel"]["release"] == NEW
    found = node.step("look", wish="6.1.165-1")["kernel"]["problem"]
    assert "no repository of this node offers a kernel of version 6.1.165-1" in found
    assert VERSIONS[NEW] in found


def test_an_older_kernel_in_the_menu_that_the_own_options_boot_stays_pinned(node: Node) -> None:
    """Asked for a kernel that is not the newest, the node keeps it although GRUB would take the newest."""
    node.step("stage")
    node.step("install")
    node.step("arm")
    node.boot()
    (node.machine.root / f"boot/vmlinuz-{NEWER}").touch()
    assert "keeps it as the default" in node.step("keep")["said"]
    assert node.grub.boot() == NEW


def test_ubuntus_kernels_bring_all_that_is_named_after_them(node: Node) -> None:
    """Two series of one flavour in one archive: what is installed decides which of them is followed."""
    running, new, other = "6.8.0-40-generic", "6.8.0-41-generic", "6.14.0-10-generic"
    for release, version in ((running, "6.8.0-40.40"), (new, "6.8.0-41.41"), (other, "6.14.0-10.10")):
        node.archive.add(f"linux-image-{release}", version)
        for kind in ("headers", "modules", "modules-extra"):
            node.archive.add(f"linux-{kind}-{release}", version)
    follows = "linux-image-{0}, linux-modules-extra-{0}"
    node.archive.add("linux-image-generic", "6.8.0-40.40", Depends=follows.format(running))
    node.machine.install("linux-image-generic", f"linux-headers-{running}", f"linux-modules-{running}")
    node.archive.add("linux-image-generic", "6.8.0-41.41", Depends=follows.format(new))
    node.archive.add("linux-image-generic-hwe-22.04", "6.14.0-10.10", Depends=follows.format(other))
    node.release = running
    found = node.step("look")["kernel"]
    assert (found["release"], found["version"]) == (new, "6.8.0-41.41")
    kinds = ("headers", "image", "modules", "modules-extra")
    assert sorted(found["install"]) == [f"linux-{kind}-{new}" for kind in kinds]


def refusal(node: Node) -> str:
    """Why staging is refused; nothing is noted then."""
    result = node.step("stage")
    assert result["refused"]
    assert node.step("look")["kernel"]["problem"] == result["msg"]
    assert not upgrade.RECORD.exists()
    return str(result["msg"])


def test_a_kernel_of_others_is_refused(node: Node) -> None:
    node.release = "6.18.44-fc"
    assert "is from none of the distribution's packages" in refusal(node)


def test_a_kernel_that_waits_for_a_reboot_is_refused(node: Node) -> None:
    node.machine.install(f"linux-image-{NEW}")
    assert f"kernel {NEW} is installed, and {OLD} runs" in refusal(node)


def test_a_kernel_that_would_replace_the_running_one_is_refused(node: Node) -> None:
    (node.archive.path / "Packages").unlink()
    node.archive.add(f"linux-image-{OLD}", "6.1.150-2")
    node.archive.add("linux-image-amd64", "6.1.150-2", Depends=f"linux-image-{OLD}")
    assert "would replace the running kernel" in refusal(node)


def test_a_full_boot_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    (node.machine.root / f"boot/initrd.img-{OLD}").write_bytes(b"x" * 2**20)
    os.truncate(node.machine.root / f"boot/initrd.img-{OLD}", 60 * 2**20)
    assert "/boot has 10 MiB free, and another kernel needs 121 MiB there" in refusal(node)


def test_a_kernel_that_comes_with_another_driver_is_refused(node: Node) -> None:
    node.archive.add(f"linux-modules-nvidia-580-server-{OLD}", "1", Depends="nvidia-kernel-common-580-server")
    node.archive.add("nvidia-kernel-common-580-server", "580.1")
    node.machine.install(f"linux-modules-nvidia-580-server-{OLD}")
    node.archive.add("nvidia-kernel-common-580-server", "580.2")
    name = f"linux-modules-nvidia-580-server-{NEW}"
    node.archive.add(name, "1", Depends="nvidia-kernel-common-580-server (>= 580.2)")
    assert "It comes only with another driver (nvidia-kernel-common-580-server)" in refusal(node)


def test_built_modules_that_are_not_offered_are_named(node: Node) -> None:
    node.archive.add(f"linux-modules-nvidia-580-server-{OLD}", "1")
    node.machine.install(f"linux-modules-nvidia-580-server-{OLD}")
    assert f"offers a package linux-modules-nvidia-580-server-{NEW}" in refusal(node)


def test_without_grub_it_is_refused(node: Node) -> None:
    (node.machine.root / grub.SCRIPT).unlink()
    assert "expected GRUB" in refusal(node)


def test_dnf_is_refused_in_one_sentence(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    assert refusal(node) == "Temper upgrades kernels with apt only; this node has dnf"


def test_a_step_without_an_upgrade_under_way_is_an_error_and_the_way_back_is_none(node: Node) -> None:
    assert "Expected an upgrade of the kernel under way" in node.step("install")["msg"]
    for step in ("keep", "leave", "remove", "release"):
        result = node.step(step)
        assert not result["changed"]
        assert not result["boots"]
