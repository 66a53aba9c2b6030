"""Packages and repositories as settings: items fold, dpkg is asked once, and what is undone."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from ansible.module_utils.temper.driver import loaded_state
from ansible.module_utils.temper.packaging import node, packages, signing_keys
from ansible.module_utils.temper.packaging.node import PackageState
from ansible.module_utils.temper.packaging.package_settings import PackageSet
from ansible.module_utils.temper.packaging.packages import Package, Wish
from ansible.module_utils.temper.packaging.repository_settings import Repositories
from ansible.module_utils.temper.settings import brought, engine
from ansible.module_utils.temper.settings.base import SettingError
from ansible.module_utils.temper.settings.brought import BroughtPackages

from tests.unit.apt_machine import Archive

if TYPE_CHECKING:
    from pathlib import Path

    from ansible.module_utils.temper.settings.record import Record

    from tests.unit.apt_machine import Machine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("apt-get", "dpkg-deb"))),
    reason="needs root and Debian's package tools",
)
ITEMS: dict[str, Any] = {
    "package:libcuda1": {"version": "580-1", "held": True},
    "package:desktop": {"version": "", "held": False},
    "hold_version:580-1": True,
    "pin:libcuda1 nvidia-*": {"version": "580-1"},
}


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    node.NODE.forget()
    node.NODE.lists_outdated = False


def made(items: dict[str, Any]) -> PackageSet:
    setting = PackageSet.from_items(items, {})
    if not setting.settled():
        setting.apply()
    return setting


@pytest.mark.component
def test_items_fold_into_one_transaction(machine: Machine) -> None:
    result = made(ITEMS).result()
    assert result["installed"] == machine.versions() == {"libcuda1": "580-1", "desktop": "1"}
    assert machine.held() == result["held"] == ["libcuda1"]


def test_a_package_of_another_version_is_told_with_the_one_that_is_there() -> None:
    known = {
        "a": Package("a", "2", "install", "installed"),
        "b": Package("b", "", "deinstall", "not-installed"),
    }

    class Known(PackageState):
        def installed(self) -> dict[str, Package]:
            return known

    class Manager:
        def required(self) -> list[str]:
            return []

        def prepared(self) -> bool:
            return True

    setting = PackageSet(Wish({"a": "1", "b": "1"}, {}), manager=Manager(), state=Known())  # type: ignore[arg-type]
    (packages_, *_) = setting.change()
    assert packages_.before == "a=2\n"
    assert "a=1" in packages_.after
    assert "b=1" in packages_.after


def test_pins_and_module_streams_are_for_dnf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("ansible.module_utils.temper.process.SYSTEM_PATH", str(tmp_path))
    stream = {"name": "nvidia-driver", "stream": "580-open"}
    manager = PackageSet.from_items(ITEMS | {"module_stream:nvidia-driver": stream}, {}).manager
    assert getattr(manager, "pins", None) == [{"packages": "libcuda1 nvidia-*", "version": "580-1"}]
    assert getattr(manager, "streams", None) == [stream]


@pytest.mark.component
def test_settled_sets_of_one_execution_ask_dpkg_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(ITEMS)
    asked: list[str] = []
    query = packages.query

    def counted() -> packages.Packages:
        asked.append("dpkg-query")
        return query()

    monkeypatch.setattr(packages, "query", counted)
    node.NODE.forget()
    for _ in range(3):
        setting = PackageSet.from_items(ITEMS, {})
        assert (setting.settled(), setting.read()["libcuda1"]["held"]) == (True, True)
    assert len(asked) == 1


@pytest.mark.component
def test_a_set_sees_what_another_one_has_installed(machine: Machine) -> None:
    later = PackageSet.from_items({"package:desktop": {"version": "", "held": False}}, {})
    assert not later.settled()
    made(ITEMS)
    assert later.settled()


@pytest.mark.component
def test_a_role_with_the_programs_it_needs_lets_somebody_elses_broken_package_be(
    machine: Machine, tmp_path: Path
) -> None:
    programs = {"package:desktop": ITEMS["package:desktop"]}
    made(programs)
    others = Archive(tmp_path / "others")
    others.add("database", "1", script="exit 1")
    machine.run("dpkg", "--unpack", str(others.path / "database_1.deb"))
    node.NODE.forget()
    assert PackageSet.from_items(programs, {}).settled()
    assert not PackageSet.from_items(ITEMS, {}).settled()


@pytest.mark.component
def test_libraries_are_to_be_proven_after_a_change_of_theirs(machine: Machine) -> None:
    made({"package:desktop": {"version": "", "held": False}})
    assert not node.unproven().exists()
    made(ITEMS)
    assert node.unproven().exists()


@pytest.mark.component
def test_packages_that_must_not_be_there_are_the_operators_to_remove(machine: Machine) -> None:
    obstacle = str(PackageSet.from_items({"package:desktop": None}, {}).obstacle())
    assert "desktop" in obstacle
    assert "by hand" in obstacle


# ---------------------------------------------------------------- taken back


class Noted:
    """A set of packages that is made, and what its record has then."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.state: dict[str, str | None] = {}
        setting = PackageSet.from_items(items, {})
        setting.note = self.note
        if not setting.settled():
            setting.apply()

    def note(self, former: dict[str, str | None], failed: bool = False) -> None:
        for name, version in former.items():
            if failed:
                self.state.pop(name, None)
            else:
                self.state.setdefault(name, version)

    def back(self, *, engines: bool = False, holds: bool = True) -> BroughtPackages:
        node.NODE.forget()
        setting = BroughtPackages(engines, holds)
        setting.recall({setting.key: {"spec": {}, "state": self.state}})
        return setting


def mode(*, check: bool) -> Any:
    """What a setting reads of the module that it begins in."""
    return SimpleNamespace(check_mode=check)


@pytest.fixture
def no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root without a driver, processes and containers."""
    root = tmp_path / "node"
    root.mkdir()
    monkeypatch.setattr(brought, "ROOT", root)
    monkeypatch.setattr(loaded_state, "gpu_users", lambda _root: (["python train.py"], None))
    return root


def load_driver(root: Path) -> None:
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/version").write_text("580.95.05\n")


@pytest.mark.component
def test_what_transactions_have_brought_is_purged_and_nothing_else(machine: Machine, no_gpus: Path) -> None:
    machine.install("linux-headers-amd64")
    noted = Noted({**ITEMS, "package:nvidia-driver-cuda": {"version": "580-1", "held": True}})
    setting = noted.back()
    (packages_,) = setting.taken_back()
    assert packages_.before.split() == ["desktop", "libcuda1", "nvidia-driver-cuda"]
    assert (setting.obstacle(), setting.warnings()) == (None, [])
    setting.restore(noted.state)
    assert machine.versions() == {"linux-headers-amd64": "6.1"}
    assert (machine.held(), packages.recorded_holds()) == ([], set())
    assert noted.back().is_at(noted.state)


@pytest.mark.component
def test_what_others_need_stays_and_is_named(machine: Machine, no_gpus: Path) -> None:
    noted = Noted(ITEMS)
    machine.install("nvidia-driver-cuda=580-1")
    setting = noted.back()
    assert ["stays: libcuda1" in word for word in setting.warnings()] == [True]
    setting.restore(noted.state)
    assert machine.versions() == {"libcuda1": "580-1", "nvidia-driver-cuda": "580-1"}
    assert machine.held() == []
    assert noted.back().is_at(noted.state)


@pytest.mark.component
def test_what_others_recommend_stays_and_nothing_that_nobody_needs_goes(
    machine: Machine, no_gpus: Path, tmp_path: Path
) -> None:
    archive = Archive(tmp_path / "others")
    archive.add("whois", "1")
    archive.add("fail2ban", "1", Recommends="whois")
    archive.add("leaf", "1")
    machine.use(archive)
    machine.install("leaf")
    machine.run("apt-mark", "auto", "leaf")
    noted = Noted({"package:whois": {"version": "", "held": False}})
    machine.install("fail2ban")
    configuration = machine.root / "apt.conf"
    configuration.write_text(f'{configuration.read_text()}APT::Get::AutomaticRemove "true";\n')
    assert any("stays: whois" in word for word in noted.back().warnings())
    assert not any("apt-get" in word for word in noted.back().warnings()), "it would take fail2ban along"
    noted.back().restore(noted.state)
    assert set(machine.versions()) == {"whois", "fail2ban", "leaf"}
    early = noted.back()
    early.earlier = frozenset(["fail2ban"])
    assert (early.leaving, early.warnings()) == (["whois"], []), "it did without"
    noted.state["fail2ban"] = None
    noted.back().restore(noted.state)
    assert set(machine.versions()) == {"leaf"}


@pytest.mark.component
def test_no_command_is_given_that_would_lock_out_or_unprotect(
    machine: Machine, no_gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways in, kernels, and a firewall whose removal flushes the rules of others, stay without one."""
    monkeypatch.setattr(brought, "rules_stand", lambda: True)
    archive = Archive(tmp_path / "never")
    names = ("linux-image-6.1.0-1-amd64", "nftables", "openssh-server", "python3", "sudo")
    for name in names:
        archive.add(name, "1")
    machine.use(archive)
    noted = Noted({f"package:{name}": {"version": "", "held": False} for name in names})
    said = noted.back().warnings()
    assert all(any(name in word for word in said) for name in names)
    assert not any(command in word for word in said for command in ("apt-get", "dnf", "purge"))
    noted.back().restore(noted.state)
    assert set(machine.versions()) == set(names)


@pytest.mark.component
def test_what_was_there_before_records_and_images_are_not_purged(
    machine: Machine, no_gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site's configuration, and what Debian's packages delete in a purge."""
    monkeypatch.setattr(brought, "rules_stand", lambda: False)
    archive, log = Archive(tmp_path / "recorders"), tmp_path / "purged"
    names = ("auditd", "chrony", "atop", "nftables", "docker.io", "recorder", "former", "inherited")
    for name in names:
        archive.add(name, "1", removal=f'[ "$1" != purge ] || echo {name} >> {log}')
    machine.use(archive)
    machine.install("former")
    machine.run("dpkg", "--remove", "former")
    node.NODE.forget()
    noted = Noted({f"package:{name}": {"version": "", "held": False} for name in names})
    assert noted.state == {name: packages.CONFIGURATION if name == "former" else None for name in names}
    setting = noted.back()
    setting.only_removed = frozenset(["inherited"])
    (said,) = [word for word in setting.warnings() if "configuration and data" in word]
    assert all(name in said for name in names if name != "recorder")
    assert "recorder" not in said
    assert said.endswith("apt-get purge atop auditd chrony docker.io former inherited nftables.")
    setting.restore(noted.state)
    assert machine.versions() == {}
    assert log.read_text().split() == ["recorder"]
    again = noted.back()
    again.only_removed = setting.only_removed
    assert again.is_at(noted.state)


@pytest.mark.component
def test_a_transaction_that_failed_leaves_the_former_configuration(machine: Machine, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "failing")
    archive.add("former", "1", removal="exit 0")
    archive.add("former", "2", script="exit 1", removal="exit 0")
    machine.use(archive)
    machine.install("former=1")
    machine.run("dpkg", "--remove", "former")
    node.NODE.forget()
    state: dict[str, str | None] = {}
    setting = PackageSet.from_items({"package:former": {"version": "2", "held": False}}, {})

    def note(former: dict[str, str | None], failed: bool = False) -> None:
        for name, version in former.items():
            state[name] = version
            if failed:
                del state[name]

    setting.note = note
    with pytest.raises(packages.PackageError):
        setting.apply()
    assert state == {}
    assert packages.query()["former"].status == packages.CONFIGURATION


@pytest.mark.component
def test_what_was_there_before_stays_and_its_hold_goes(machine: Machine, no_gpus: Path) -> None:
    machine.install("libcuda1=550-1", "desktop")
    machine.run("apt-mark", "hold", "desktop")
    noted = Noted(ITEMS)
    setting = noted.back()
    assert noted.state == {"libcuda1": "550-1"}
    assert any("libcuda1 580-1 (was 550-1)" in word for word in setting.warnings())
    setting.restore(noted.state)
    assert machine.versions() == {"libcuda1": "580-1", "desktop": "1"}
    assert machine.held() == ["desktop"]


@pytest.mark.component
def test_a_transaction_that_failed_has_brought_nothing(machine: Machine, no_gpus: Path) -> None:
    state: dict[str, str | None] = {}

    def note(former: dict[str, str | None], failed: bool = False) -> None:
        for name in former:
            if failed:
                del state[name]
            else:
                state[name] = None

    setting = PackageSet.from_items({"package:nvidia-fails": {"version": "", "held": True}}, {})
    setting.note = note
    with pytest.raises(packages.PackageError):
        setting.apply()
    assert state == {}


@pytest.mark.component
def test_a_kernel_stays(machine: Machine, no_gpus: Path) -> None:
    noted = Noted({"package:linux-image-6.99": {"version": "", "held": True}})
    assert any("linux-image-6.99" in word for word in noted.back().warnings())
    noted.back().restore(noted.state)
    assert "linux-image-6.99" in machine.versions()


@pytest.mark.component
def test_a_driver_in_use_is_not_removed_unless_that_is_allowed(machine: Machine, no_gpus: Path) -> None:
    noted = Noted(ITEMS)
    assert noted.back().obstacle() is None
    load_driver(no_gpus)
    setting = noted.back()
    assert "python train.py" in str(setting.obstacle())
    setting.busy_ok = True
    assert setting.obstacle() is None
    tools = Noted({"package:linux-headers-amd64": {"version": "", "held": False}})
    assert tools.back().obstacle() is None


@pytest.mark.component
def test_the_driver_of_another_role_stays_loaded(
    machine: Machine, no_gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profilers have names of NVIDIA's family; a driver that stays has its files."""
    profilers = Archive(tmp_path / "profilers")
    profilers.add("cuda-nsight-systems-13-0", "1")
    machine.use(profilers)
    noted = Noted({"package:cuda-nsight-systems-13-0": {"version": "", "held": False}})
    load_driver(no_gpus)
    done: list[list[str]] = []
    monkeypatch.setattr("ansible.module_utils.temper.process.succeeds", done.append)
    setting = noted.back(holds=False)
    assert setting.obstacle() is None
    assert noted.back(holds=True).obstacle() is None
    setting.restore(noted.state)
    assert (machine.versions(), done, setting.after()) == ({}, [], [])
    library = no_gpus / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
    library.parent.mkdir(parents=True)
    library.touch()
    library.with_name("libnvidia-ml.so.1").symlink_to(library.name)
    setting.unload()
    assert done == []
    library.with_name("libnvidia-ml.so.1").unlink()
    setting.unload()
    assert done == [["rmmod", "nvidia"]]


@pytest.mark.component
def test_a_gpu_is_looked_at_again_before_its_driver_goes(
    machine: Machine, no_gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted(ITEMS)
    load_driver(no_gpus)
    users: list[str] = []
    monkeypatch.setattr(loaded_state, "gpu_users", lambda _root: (users, None))
    setting = noted.back()
    assert setting.obstacle() is None
    users.append("python train.py")
    with pytest.raises(packages.PackageError, match=r"python train\.py"):
        setting.restore(noted.state)
    assert "libcuda1" in machine.versions()


@pytest.mark.component
def test_ways_in_are_never_removed_nor_a_firewall_while_rules_stand(
    machine: Machine, no_gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = ("sudo", "sudo-rs", "sudo-ldap", "openssh-server", "ca-certificates", "python3-apt", "python3")
    archive = Archive(tmp_path / "ways")
    names = (*ways, "nftables", "sudoku", "python3-dbus")
    for name in names:
        archive.add(name, "1")
    machine.use(archive)
    noted = Noted({f"package:{name}": {"version": "", "held": False} for name in names})
    monkeypatch.setattr(brought, "rules_stand", lambda: True)
    setting = noted.back()
    said = " ".join(setting.warnings())
    assert "stays: ca-certificates, openssh-server" in said
    assert "stays: nftables, because rules" in said
    setting.restore(noted.state)
    assert set(machine.versions()) == {*ways, "nftables"}
    monkeypatch.setattr(brought, "rules_stand", lambda: False)
    noted.back().restore(noted.state)
    assert set(machine.versions()) == set(ways)


def test_rules_stand_where_a_table_is_not_tempers(no_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"": False, "table inet temper\n": False, "table inet temper\ntable ip nat\n": True}
    monkeypatch.setattr("ansible.module_utils.temper.process.which", lambda _program: "/usr/sbin/nft")
    for text, stand in listed.items():
        for status in (0, 1):
            done = subprocess.CompletedProcess(["nft"], status, text, "")
            monkeypatch.setattr(
                "ansible.module_utils.temper.process.complete", lambda _command, done=done: done
            )
            assert brought.rules_stand() is (stand or bool(status))
    (no_gpus / "proc/net").mkdir(parents=True)
    (no_gpus / "proc/net/ip_tables_names").write_text("filter\n")
    assert brought.rules_stand()


@pytest.mark.component
def test_a_driver_that_stays_loaded_is_said_to_need_a_reboot(machine: Machine, no_gpus: Path) -> None:
    noted = Noted(ITEMS)
    load_driver(no_gpus)
    setting = noted.back()
    setting.busy_ok = True
    setting.restore(noted.state)
    assert any("reboot required" in word for word in setting.after())


@pytest.mark.component
def test_an_engine_with_containers_is_not_removed(machine: Machine, no_gpus: Path, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "engines")
    for name in ("docker.io", "podman", "containerd"):
        archive.add(name, "1")
    machine.use(archive)
    noted = Noted({"package:docker.io": {"version": "", "held": False}})
    (no_gpus / "var/lib/containers/storage/overlay-containers/0123/userdata").mkdir(parents=True)
    (no_gpus / "run/containerd/io.containerd.runtime.v2.task/k8s.io/4567").mkdir(parents=True)
    assert noted.back(engines=True).obstacle() is None
    for name in ("containerd", "podman"):
        noted.state |= Noted({f"package:{name}": {"version": "", "held": False}}).state
    assert "4567" in str(noted.back(engines=True).obstacle())
    (no_gpus / "run/containerd/io.containerd.runtime.v2.task/k8s.io/4567").rmdir()
    assert "0123" in str(noted.back().obstacle())
    (no_gpus / "home/a/.local/share/docker/containers/89").mkdir(parents=True)
    assert "containers/89" in str(noted.back(engines=True).obstacle())


@pytest.mark.component
@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize(
    "cut_off_in", ["install ok installed", "purge ok half-installed", "purge ok config-files"]
)
def test_a_removal_that_was_cut_off_is_completed(
    machine: Machine, no_gpus: Path, tmp_path: Path, cut_off_in: str, journal: bool
) -> None:
    """Its script makes dpkg keep the package's configuration until the purge."""
    archive = Archive(tmp_path / "recorders")
    archive.add("recorder", "1", removal="exit 0")
    machine.use(archive)
    noted = Noted({"package:recorder": {"version": "", "held": False}})
    if "config-files" in cut_off_in:
        machine.run("dpkg", "--remove", "recorder")
    status = machine.root / "var/lib/dpkg/status"
    status.write_text(re.sub(r"^Status: .*", f"Status: {cut_off_in}", status.read_text(), flags=re.MULTILINE))
    if journal:
        (status.parent / "updates/0000").write_text(status.read_text())
    setting = noted.back()
    setting.begin(mode(check=False))
    setting.restore(noted.state)
    assert packages.query() == {}
    assert noted.back().is_at(noted.state)


@pytest.mark.component
def test_a_removal_that_the_journal_alone_knows_keeps_no_package_back(
    machine: Machine, no_gpus: Path, tmp_path: Path
) -> None:
    """The recorder is gone and leaves its configuration. In the status that apt reads it is installed."""
    archive = Archive(tmp_path / "recorders")
    archive.add("library", "1")
    archive.add("atop", "1", removal="exit 0", Depends="library")
    machine.use(archive)
    noted = Noted({"package:atop": {"version": "", "held": False}})
    status = machine.root / "var/lib/dpkg/status"
    before = status.read_text()
    machine.run("dpkg", "--remove", "atop")
    (stanza,) = [one for one in status.read_text().split("\n\n") if "Package: atop" in one]
    status.write_text(before)
    (status.parent / "updates/0000").write_text(f"{stanza}\n")
    setting = noted.back()
    setting.begin(mode(check=True))
    assert packages.query()["atop"].status == packages.CONFIGURATION
    setting.begin(mode(check=False))
    assert (setting.leaving, setting.needed) == (["library"], [])
    setting.restore(noted.state)
    assert machine.versions() == {}


# ---------------------------------------------------------------- repositories


REPOSITORY = {"uri": "http://example.org/debian/", "signed_by": "/usr/share/keyrings/x.gpg", "exclude": ["x"]}


def written(apt: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in apt.rglob("*") if path.is_file()}


def test_an_item_needs_only_what_is_not_the_default(apt: Path) -> None:
    setting = Repositories.from_items({"gpu": REPOSITORY}, {})
    setting.apply()
    assert "Suites: /\n" in written(apt)["temper-gpu.sources"]
    assert setting.settled()
    assert node.NODE.lists_outdated


def test_a_repository_that_is_not_wanted_any_more_leaves_nothing(apt: Path) -> None:
    Repositories.from_items({"gpu": REPOSITORY}, {}).apply()
    Repositories.from_items({"gpu": None}, {}).apply()
    assert written(apt) == {}


def test_the_files_of_before_come_back(apt: Path) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    source.write_text("deb http://example.org/debian/ /\n")
    source.chmod(0o640)
    before = written(apt)
    setting = Repositories.from_items({"gpu": REPOSITORY | {"signed_by": "", "key_url": None}}, {})
    state = setting.read()
    setting.apply()
    setting.restore(state)
    assert written(apt) == before


OTHER = "deb https://me:secret@example.com/ /\n"


@pytest.fixture
def own_key(monkeypatch: pytest.MonkeyPatch) -> Repositories:
    """A repository whose sources of others give way to ours."""
    monkeypatch.setattr(signing_keys, "keyring", lambda *_: signing_keys.Keyring("key\n"))
    key: dict[str, Any] = {"signed_by": None, "key_url": "https://example.org/key", "fingerprints": []}
    return Repositories.from_items({"gpu": REPOSITORY | key}, {})


def test_what_else_a_source_of_the_site_has_stays_as_private_as_it_is(
    apt: Path, own_key: Repositories
) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    kept = b"# gr\xfc\xdfe\n" + OTHER.encode()
    source.write_bytes(kept + b"deb http://example.org/debian/ /\n")
    source.chmod(0o600)
    own_key.apply()
    assert source.read_bytes() == kept
    assert stat.S_IMODE(source.stat().st_mode) == 0o600


def test_a_source_that_the_site_has_made_private_since_comes_back_as_private(
    apt: Path, own_key: Repositories
) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    before = OTHER + "deb http://example.org/debian/ /\n"
    source.write_text(before)
    state = own_key.read()
    own_key.apply()
    source.chmod(0o600)
    own_key.restore(state)
    assert (source.read_text(), stat.S_IMODE(source.stat().st_mode)) == (before, 0o600)


def test_a_source_that_the_site_has_changed_since_is_left_alone_and_named(
    apt: Path, own_key: Repositories
) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    before = "deb http://example.org/debian/ /\n"
    source.write_text(before)
    state = own_key.read()
    own_key.apply()
    for since, said in ((OTHER, [str(source)]), (OTHER + before, [])):
        source.write_text(since)
        own_key.left.clear()
        own_key.restore(state)
        assert written(apt) == {"cuda.list": since}
        assert [word.split()[1].rstrip(",") for word in own_key.after()] == said
    source.unlink()
    own_key.restore(state)
    assert written(apt) == {"cuda.list": before}


@pytest.mark.parametrize("since", [None, "", "# none\n"])
def test_a_repository_that_the_site_has_taken_out_since_does_not_return(
    apt: Path, own_key: Repositories, since: str | None
) -> None:
    source = apt / "sources.list.d/cuda.list"
    source.parent.mkdir(parents=True)
    source.write_text("deb http://example.org/debian/ /\n" + OTHER)
    state = own_key.read()
    own_key.apply()
    source.unlink()
    if since is not None:
        source.write_text(since)
    own_key.restore(state)
    assert written(apt) == ({} if since is None else {"cuda.list": since})
    assert [word.split(" without ")[1].split(",")[0] for word in own_key.after()] == [
        "http://example.org/debian"
    ]


def test_a_later_change_adds_to_the_record_and_orders_it_no_other_way() -> None:
    noted: dict[str, Any] = {"repository:sources": {"spec": {}, "state": {"a": "first", "b": None}}}
    role = object.__new__(engine.Role)
    role.record = cast("Record", SimpleNamespace(originals=noted, pending={}))
    role.remember(Repositories(), {"c": None, "b": "ours", "a": "ours"})
    assert list(noted["repository:sources"]["state"].items()) == [("a", "first"), ("b", None), ("c", None)]


def test_a_key_that_cannot_be_had_is_an_obstacle_unless_offline(apt: Path) -> None:
    unreachable = {
        "gpu": {"uri": "http://example.org/", "key_url": "file:///nowhere/key", "fingerprints": ["A" * 40]}
    }
    setting = Repositories.from_items(unreachable, {})
    assert "cannot be fetched" in str(setting.obstacle())
    assert not setting.settled()
    with pytest.raises(SettingError, match="cannot be fetched"):
        setting.apply()
    offline = Repositories.from_items(unreachable, {"check_mode": True})
    assert (offline.obstacle(), offline.settled()) == (None, False)
