"""A transaction is simulated with what the node is to get, and the node stays as it is."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import package_preview
import pytest
from ansible.module_utils.temper.packaging import (
    apt,
    apt_preview,
    packages,
    repositories,
    signing_keys,
    staging,
)

from tests.unit import openpgp_keys
from tests.unit.apt_machine import Archive, Machine
from tests.unit.each import each
from tests.unit.needs import root_and
from tests.unit.openpgp_keys import KeyRing
from tests.unit.planning_nodes import assert_says
from tests.unit.serving import Files, serving_files
from tests.unit.settings.role_plans import item, role_plan

Run = Callable[..., dict[str, Any]]

pytestmark = [
    pytest.mark.component,
    root_and("apt-get", "dpkg-deb", "gpgv"),
]
DRIVER = {"nvidia-driver-cuda": "580-1"}
PINS = [{"packages": "libcuda1 nvidia-*", "version": "580-1"}]


@pytest.fixture
def node(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that knows only its distribution, and has neither pins nor NVIDIA's repository."""
    distribution = Archive(tmp_path / "distribution")
    distribution.add("linux-headers-amd64", "6.1")
    distribution.add("desktop", "1")
    machine.use(distribution)
    machine.run("apt-get", "-q", "update")
    (machine.root / "etc/apt/preferences.d/temper-nvidia").unlink()
    monkeypatch.setattr(repositories, "APT", machine.root / "etc/apt")
    return machine


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, key_ring: KeyRing) -> Path:
    """NVIDIA's repository, signed, with its key beside it."""
    archive = Archive(tmp_path_factory.mktemp("published"))
    for version in ("550-1", "580-1", "595-1"):
        archive.add("libcuda1", version, **{"Installed-Size": "2048"})
        archive.add("nvidia-driver-cuda", version, Depends=f"libcuda1 (= {version})")
    archive.add("dkms", "3.2")
    archive.add("nvidia-kernel-dkms", "580-1", Depends="dkms")
    archive.add("nvidia-needs-kernel", "1", Depends="linux-image-6.99")
    archive.add("linux-image-6.99", "6.99")
    archive.add("nvidia-hates-desktop", "1", Conflicts="desktop")
    archive.add("nvidia-impossible", "1", Depends="libcuda1 (= 999-1)")
    archive.sign(key_ring, "ed25519")
    (archive.path / "key").write_bytes(key_ring.export("ed25519"))
    return archive.path


@pytest.fixture
def nvidia(tmp_path: Path, published: Path) -> Archive:
    """A copy of it, which a test may change."""
    return Archive(shutil.copytree(published, tmp_path / "nvidia"))


@pytest.fixture
def repository(nvidia: Archive, key_ring: KeyRing) -> dict[str, Any]:
    return {
        "name": "nvidia",
        "uri": f"file:{nvidia.path}",
        "suite": "./",
        "key_url": f"file://{nvidia.path}/key",
        "fingerprints": [key_ring.keys["ed25519"]],
    }


@pytest.fixture
def preview(run_module: Run, node: Machine, repository: dict[str, Any]) -> Run:
    """Run the module, and prove that it has changed nothing on the node."""

    def run(wanted: dict[str, str], **parameters: Any) -> dict[str, Any]:
        wish = {"packages": wanted, "repositories": [repository], "pins": PINS, **parameters}
        before = node.snapshot()
        result = run_module(package_preview.main, **wish)
        assert node.snapshot() == before
        assert not result.get("failed"), result
        return result

    return run


def install(node: Machine, nvidia: Archive, *arguments: str) -> None:
    """Install packages of NVIDIA's repository; afterwards the node does not know the repository any more."""
    sources = node.root / "etc/apt/sources.list"
    before = sources.read_text()
    node.use(nvidia)
    node.install(*arguments)
    sources.write_text(before)


def names(changes: list[dict[str, Any]]) -> dict[str, str]:
    return {change["name"]: change["version"] for change in changes}


def test_the_transaction_is_what_the_repositories_and_pins_to_come_would_give(preview: Run) -> None:
    result = preview(DRIVER, present={"linux-headers-amd64": ""})
    assert result["problems"] == []
    expected = DRIVER | {"libcuda1": "580-1", "linux-headers-amd64": "6.1"}
    assert names(result["transaction"]["install"]) == expected
    assert result["resolved"] == {"linux-headers-amd64": "6.1"}


def test_every_package_has_its_address_size_and_checksum(preview: Run, nvidia: Archive) -> None:
    transaction = preview({"libcuda1": "580-1"})["transaction"]
    file = nvidia.path / "libcuda1_580-1.deb"
    assert transaction["install"] == [
        {
            "name": "libcuda1",
            "version": "580-1",
            "architecture": "all",
            "uri": f"file:{nvidia.path}/./{file.name}",
            "size_bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
    ]
    assert transaction["download_bytes"] == file.stat().st_size
    assert transaction["disk_bytes"] == 2 * 2**20


def test_without_a_version_it_says_what_is_offered(preview: Run) -> None:
    result = preview({"dkms": "", "libcuda1": ""}, pins=[])
    assert result["resolved"] == {"dkms": "3.2", "libcuda1": "595-1"}


def test_check_mode_simulates_too(preview: Run) -> None:
    assert names(preview(DRIVER, check_mode=True)["transaction"]["install"])


def test_a_settled_node_has_nothing_to_do(preview: Run, node: Machine, nvidia: Archive) -> None:
    install(node, nvidia, "nvidia-driver-cuda=580-1", "libcuda1=580-1")
    result = preview(DRIVER)
    assert result["transaction"]["install"] == []
    assert result["transaction"]["download_bytes"] == 0


@pytest.mark.parametrize(("version", "kind"), [("550-1", "downgrade"), ("595-1", "upgrade")])
def test_the_way_to_another_version_is_shown(
    preview: Run, node: Machine, nvidia: Archive, version: str, kind: str
) -> None:
    install(node, nvidia, "nvidia-driver-cuda=580-1", "libcuda1=580-1")
    result = preview(
        {"nvidia-driver-cuda": version}, pins=[{"packages": "libcuda1 nvidia-*", "version": version}]
    )
    moved = {change["name"]: (change["from"], change["to"]) for change in result["transaction"][kind]}
    assert moved == dict.fromkeys(("libcuda1", "nvidia-driver-cuda"), ("580-1", version))
    assert result["transaction"]["disk_bytes"] == 0


def test_from_bare_the_family_and_what_it_brought_are_part_of_it(
    preview: Run, node: Machine, nvidia: Archive
) -> None:
    install(node, nvidia, "nvidia-kernel-dkms=580-1")
    wanted = {"nvidia-kernel-dkms": "580-1"}
    assert preview(wanted)["transaction"]["install"] == []
    result = preview(wanted, from_bare=True)
    assert result["problems"] == []
    transaction = result["transaction"]
    assert names(transaction["install"]) == wanted | {"dkms": "3.2"}


@pytest.fixture
def desktop(node: Machine) -> None:
    node.install("desktop")


@each(
    (
        {"libcuda1": "580-7"} | DRIVER,
        "No repository of this node offers libcuda1 580-7; nearest are 580-1, 595-1, 550-1.",
    ),
    (
        {"nvidia-driver-cudo": "580-1"},
        "No repository of this node offers a package nvidia-driver-cudo; "
        "offered are, for instance, nvidia-driver-cuda.",
    ),
    ({"nvidia-impossible": "1"}, "nvidia-impossible : Depends: libcuda1 (= 999-1)"),
    ({"nvidia-hates-desktop": "1"}, "The transaction is refused, because it would remove desktop."),
    ({"nvidia-needs-kernel": "1"}, "because it would install another kernel (linux-image-6.99)."),
)
def test_a_wish_that_cannot_be_or_is_a_danger_is_a_problem(
    wanted: dict[str, str], said: str, preview: Run, desktop: None
) -> None:
    (problem,) = preview(wanted)["problems"]
    assert said in problem


def test_somebodys_hold_is_a_problem(preview: Run, node: Machine, nvidia: Archive) -> None:
    install(node, nvidia, "libcuda1=550-1")
    node.run("apt-mark", "hold", "libcuda1")
    assert preview(DRIVER)["problems"] == [
        "The transaction is refused, because it would change libcuda1, which somebody holds."
    ]


def test_our_own_hold_is_none(preview: Run, node: Machine, nvidia: Archive) -> None:
    install(node, nvidia, "libcuda1=550-1")
    node.run("apt-mark", "hold", "libcuda1")
    packages.record_holds({"libcuda1"})
    assert preview(DRIVER)["problems"] == []


def test_a_repository_that_cannot_be_reached_is_named(preview: Run, repository: dict[str, Any]) -> None:
    repository["uri"] = "file:/nowhere"
    (problem,) = preview(DRIVER)["problems"]
    assert problem.startswith("Repository nvidia cannot be used: ")
    assert "/nowhere" in problem


def test_a_repository_that_another_key_signed_is_a_problem(
    preview: Run, nvidia: Archive, key_ring: KeyRing
) -> None:
    nvidia.sign(key_ring, "rsa4096")
    (problem,) = preview(DRIVER)["problems"]
    assert problem.startswith("Repository nvidia cannot be used: ")
    assert f"NO_PUBKEY {key_ring.keys['rsa4096'][-16:]}" in problem


@each(
    "Date: Fri, 20 Nov 2099 00:00:00 UTC",
    "Date: Fri, 20 Nov 2020 00:00:00 UTC\nValid-Until: Fri, 27 Nov 2020 00:00:00 UTC",
)
def test_a_repository_of_another_time_leads_to_the_nodes_clock(
    dated: str, preview: Run, nvidia: Archive, key_ring: KeyRing
) -> None:
    nvidia.sign(key_ring, "ed25519", dated)
    (problem,) = preview(DRIVER)["problems"]
    assert problem.startswith("Repository nvidia cannot be used: Release file for ")
    assert "date -u" in problem


class KeepsOpen(Files):
    """Keeps connections open, as real web servers do."""

    protocol_version = "HTTP/1.1"


@pytest.fixture
def web(nvidia: Archive, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address at which a web server offers NVIDIA's repository."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving_files(nvidia.path, KeepsOpen) as url:
        yield url


def test_a_repository_that_refuses_connections_is_a_problem_soon(
    preview: Run, repository: dict[str, Any], web: str
) -> None:
    # apt itself would wait for ever to try again, because both are on one host.
    repository["uri"] = web
    other = repository | {"name": "other", "uri": "http://127.0.0.1:1/debian"}
    signal.alarm(60)
    try:
        problems = preview(DRIVER, repositories=[repository, other])["problems"]
    finally:
        signal.alarm(0)
    assert any(problem.startswith("Repository other cannot be used: ") for problem in problems), problems


def test_a_keyring_that_its_owner_has_extended_since_is_renewed(
    preview: Run, node: Machine, nvidia: Archive, repository: dict[str, Any]
) -> None:
    with openpgp_keys.made("ed25519") as ring:
        repository["fingerprints"] = [ring.keys["ed25519"]]
        keyring = node.root / "etc/apt/keyrings/temper-nvidia.asc"
        keyring.parent.mkdir()
        keyring.write_text(signing_keys.armour(ring.export("ed25519", armour=False)))
        # Signed from now on with a subkey that the node's keyring does not have.
        add = ("--quick-add-key", ring.keys["ed25519"], "ed25519", "sign", "never")
        ring.gpg("--passphrase", "", *add)
        listing = ring.gpg("--with-colons", "--list-keys").decode().splitlines()
        subkey = [line.split(":")[9] for line in listing if line.startswith("fpr:")][-1]
        ring.keys["subkey"] = f"{subkey}!"
        nvidia.sign(ring, "subkey")
        (nvidia.path / "key").write_bytes(ring.export("ed25519"))
    assert preview(DRIVER)["problems"] == []


def test_a_key_that_is_not_the_pinned_one_is_a_problem(
    preview: Run, nvidia: Archive, key_ring: KeyRing
) -> None:
    (nvidia.path / "key").write_bytes(key_ring.export("rsa4096"))
    (problem,) = preview(DRIVER)["problems"]
    assert f"has fingerprint {key_ring.keys['rsa4096']}" in problem


def test_the_same_repository_configured_by_somebody_is_no_conflict(
    preview: Run, node: Machine, repository: dict[str, Any]
) -> None:
    source = node.root / "etc/apt/sources.list.d/cuda.list"
    source.write_text(f"deb [signed-by=/another/key.gpg] {repository['uri']} ./\n")
    assert preview(DRIVER)["problems"] == []


def test_a_repository_needs_a_key_to_fetch_or_a_keyring(run_module: Run) -> None:
    nowhere = {"name": "x", "uri": "http://mirror.example/"}
    result = run_module(package_preview.main, packages=DRIVER, repositories=[nowhere])
    assert "one of the following is required: key_url, signed_by" in result["msg"]


def test_a_full_disk_is_a_problem(preview: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 2**20))
    (problem,) = preview({"libcuda1": "580-1"})["problems"]
    assert "has 1 MiB free, and the transaction needs 3 MiB there" in problem


FULL = "E: Write error - write (28: No space left on device)"


@each((FULL, ""), ("", FULL))
def test_a_place_for_temporary_files_that_is_full_is_named(said: str, failed: str, preview: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apt_preview.Root, "update", lambda *_: said)
        patch.setattr(apt.Apt, "simulate", lambda *_: failing(failed))
        (problem,) = preview(DRIVER)["problems"]
    assert problem.startswith(f"{tempfile.gettempdir()} is full (")


def failing(said: str) -> None:
    raise packages.PackageError(said)


@each("", 'DPkg::Pre-Invoke { "mount -o remount,exec /var"; };')
def test_a_folder_in_which_no_script_of_a_package_may_run_is_a_problem(
    hook: str, preview: Run, node: Machine
) -> None:
    mounted = os.statvfs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: noexec(mounted(path)))
        (node.root / "etc/apt/apt.conf.d/50site").write_text(f"{hook}\n")
        problems = preview(DRIVER)["problems"]
        assert [f"{node.root}/var/lib/dpkg/info" in one and "noexec" in one for one in problems] == (
            [] if hook else [True]
        )


def noexec(found: os.statvfs_result) -> os.statvfs_result:
    return os.statvfs_result((*found[:8], found.f_flag | os.ST_NOEXEC, found.f_namemax))


@pytest.fixture
def without_lists(node: Machine) -> None:
    for path in (node.root / "var/lib/apt/lists").iterdir():
        if path.is_file():
            path.unlink()


@pytest.mark.usefixtures("without_lists")
def test_a_node_without_any_lists_gets_private_ones(preview: Run) -> None:
    assert preview(DRIVER, present={"linux-headers-amd64": ""})["problems"] == []


@pytest.mark.usefixtures("without_lists")
def test_a_dead_repository_of_somebody_else_is_named_only_where_something_is_not_offered(
    preview: Run, node: Machine, repository: dict[str, Any]
) -> None:
    sources = node.root / "etc/apt/sources.list"
    sources.write_text(f"{sources.read_text()}deb [trusted=yes] copy:/nowhere ./\n")
    assert preview(DRIVER, present={"linux-headers-amd64": ""})["problems"] == []
    result = preview(DRIVER, present={"vendors": ""})
    unread, lacking = result["problems"]
    assert "/nowhere" in unread
    assert "vendors" in lacking
    repository["uri"] = "file:/nowhere-ours"
    assert any(one.startswith("Repository nvidia cannot be used: ") for one in preview(DRIVER)["problems"])


def test_old_lists_of_the_node_are_read_anew_in_private(preview: Run, node: Machine) -> None:
    Archive(node.root / "distribution").add("linux-headers-6.2", "6.2")
    assert preview(DRIVER, present={"linux-headers-6.2": ""})["problems"] == []


def test_another_apt_that_holds_the_lock_does_not_matter(preview: Run, node: Machine) -> None:
    with (node.root / "var/lib/dpkg/lock-frontend").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert preview(DRIVER)["problems"] == []


def test_the_real_transaction_is_the_simulated_one(
    preview: Run, node: Machine, nvidia: Archive, settle: Run
) -> None:
    transaction = preview(DRIVER)["transaction"]
    node.use(nvidia)
    node.pin("580-1")
    assert settle(DRIVER)["installed"] == names(transaction["install"])


def test_engines_that_would_take_their_settings_are_left_as_they_are(preview: Run, tmp_path: Path) -> None:
    wanted = tmp_path / "engine.conf"
    part = json.dumps(role_plan("container_engines", [item("file", str(wanted), {"content": "x\n"})]))
    assert preview(DRIVER, engines=part)["refused"] == []
    assert not wanted.exists()


def test_what_an_engine_refuses_is_told_beside_the_transaction(preview: Run) -> None:
    part = json.dumps(role_plan("container_engines", [item("nonsense", "docker", {})]))
    found = preview(DRIVER, engines=part)
    assert "nonsense" in found["refused"][0]
    assert found["transaction"]["install"]


# ---------------------------------------------------------------- preferences of the node's owner

AWAY = "Explanation: ours\nPackage: *libcuda1*\nPin: release *\nPin-Priority: -1\n"
OTHER = "Package: desktop\nPin: release *\nPin-Priority: -1\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"preferences.d/keep": AWAY}, ["preferences.d/keep:1 (Package: *libcuda1*", "Pin-Priority: -1"]),
        ({"preferences.d/keep.pref": f"# of the site\n\n{OTHER}\n{AWAY}"}, ["preferences.d/keep.pref:7 ("]),
        ({"preferences": f"{OTHER}\n\n{AWAY}"}, ["/preferences:6 ("]),
        (
            {"preferences.d/keep": "Package: libcuda1\nPin: version 550-1\nPin-Priority: 2000\n"},
            ["keep:1", "version 550-1", "2000"],
        ),
        (dict.fromkeys(("preferences.d/one", "preferences.d/two"), AWAY), ["d/one:1", "d/two:1"]),
    ],
)
def test_pins_that_keep_a_dependency_away_are_named(
    preview: Run, node: Machine, files: dict[str, str], said: list[str]
) -> None:
    for name, text in files.items():
        (node.root / "etc/apt" / name).write_text(text)
    result = preview(DRIVER)
    assert not result["unresolved"]
    (problem,) = result["problems"]
    assert_says(problem, f"{node.root}/etc/apt", *said)
    assert "desktop" not in problem


@pytest.mark.parametrize("name", ["keep.bak", "other"])
def test_a_pin_that_is_not_the_reason_is_not_named(preview: Run, node: Machine, name: str) -> None:
    (node.root / "etc/apt/preferences.d" / name).write_text(OTHER if name == "other" else AWAY)
    assert preview(DRIVER)["problems"] == []
    failed = preview({"nvidia-impossible": ""})
    assert failed["unresolved"]
    assert name not in "".join(failed["problems"])


def test_a_source_of_the_site_is_as_private_beside_the_preview(tmp_path: Path) -> None:
    source, private = tmp_path / "site.list", tmp_path / "private"
    source.write_bytes(b"# gr\xfc\xdfe\ndeb https://me:secret@example.com/ /\n")
    source.chmod(0o600)
    private.mkdir()
    apt_preview.Root(private, {}).take_source(source, private / "site.list", [])
    assert (private / "site.list").read_bytes() == source.read_bytes()
    assert stat.S_IMODE((private / "site.list").stat().st_mode) == 0o600


def test_engines_that_the_node_cannot_have_are_refused_by_name(preview: Run) -> None:
    part = role_plan("container_engines", [], obstacle="there is no engine for it")
    assert "there is no engine for it" in preview(DRIVER, engines=json.dumps(part))["refused"][0]


def test_a_disk_that_is_full_is_a_sentence(run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/cache/temper")

    monkeypatch.setattr(staging, "stage", full)
    message = run_module(package_preview.main, packages=DRIVER, stage=True)["msg"]
    assert "No space left on device: '/var/cache/temper'" in message
