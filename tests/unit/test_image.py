"""The tree of an image: what is planned, what must not stay in it, and who is refused."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import image, process
from ansible.module_utils.temper.driver import module_builds
from ansible.module_utils.temper.driver.module_builds import KernelModules
from ansible.module_utils.temper.packaging import services
from ansible.module_utils.temper.settings.system import Unit

from temper.plan.facts import NodeFacts
from temper.plan.image import LIVE, as_image
from temper.plan.preflight import preflight_plan
from temper.plan.refusals import Refusal, advice, refusal
from temper.plan.role_variables import typed_variables
from temper.plan.tables import load_tables
from temper.plan.variables import PreflightImageGpu
from temper.plan.wanted import Kind
from tests.unit.each import each
from tests.unit.modules_on_disk import depmod, dkms_build, install_kernel, install_module
from tests.unit.planning_nodes import DEFAULTS, node
from tests.unit.tables import ROOT

TABLES = load_tables(ROOT / "data")
H100S = [{"gpu": "h100_sxm_80gb", "count": 8}]
KNOWN = {
    "address": "192.0.2.7",
    "user": "ops",
    "today": "2026-11-23",
    "fleet": {"addresses": [], "unknown": []},
}
KERNEL = "6.1.0-56-amd64"
VERSION = "580.178.04"


def plan(facts: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
    """The plan of a tree without a GPU."""
    values = {
        "preflight_image": True,
        "preflight_image_gpus": H100S,
        "firewall_management_networks": ["192.0.2.0/24"],
        **given,
    }
    read = {"ansible_facts": {"temper": facts or node(pci=[])}}
    return preflight_plan(read, values, KNOWN)


def parts(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {role: json.loads(text) for role, text in made["roles"].items()}


def of_image(*gpus: PreflightImageGpu, **changes: Any) -> tuple[NodeFacts, list[Refusal]]:
    wish = typed_variables(DEFAULTS | {"preflight_image_gpus": [vars(gpu) for gpu in gpus]}).preflight
    return as_image(NodeFacts.from_dict(node(**changes)), wish, TABLES, "")


# ---------------------------------------------------------------- the plan


def test_the_plan_is_for_the_gpus_that_the_operator_names() -> None:
    made = plan()
    assert made["problems"] == []
    assert [(gpu["model"], gpu["count"]) for gpu in made["gpus"]] == [("h100_sxm_80gb", 8)]
    assert made["image"]


def test_no_role_of_an_image_is_live() -> None:
    for role, part in parts(plan(os_tuning_shm="75%")).items():
        assert not part["options"]["live"], role
        assert {setting["kind"] for setting in part["settings"]}.isdisjoint(LIVE), role
        assert not any(reaction["live"] for reaction in part["reactions"]), role


def test_an_initramfs_is_rebuilt_in_an_image_too() -> None:
    assert parts(plan())["nvidia_stack"]["reactions"]


def test_a_node_is_live_and_keeps_all_kinds() -> None:
    found = parts(plan(node(), preflight_image=False))
    assert all(part["options"]["live"] for part in found.values())
    assert Kind.SYSCTL in {setting["kind"] for setting in found["os_hardening"]["settings"]}


def test_the_builders_machine_decides_nothing() -> None:
    other = node(
        pci=[],
        secure_boot="enabled",
        memory_bytes=2**30,
        tunables={**node()["tunables"], "cpu_governors": ["performance"], "rdma": True},
        interfaces=[],
    )
    assert plan(other)["roles"] == plan()["roles"]


def test_the_driver_of_an_image_has_the_kernel() -> None:
    settings = parts(plan())["nvidia_stack"]["settings"]
    (driver,) = [setting for setting in settings if setting["kind"] == "driver"]
    assert driver["wanted"]["kernel"] == node()["kernel"]["release"]


def test_what_depends_on_the_machine_is_left_to_it() -> None:
    assert parts(plan())["compute_environment"]["settings"] == []
    # Its first run has to come in, by any of its interfaces and from any disk.
    for is_image, waived in ((True, {"usb-storage", "reverse-path"}), (False, set())):
        made = plan(None if is_image else node(), preflight_image=is_image, os_hardening_profile="cis-level1")
        by_node = {one["id"] for one in made["waived"] if one["by"] == "what the node does"}
        assert by_node == waived


@each("h100_sxm_80gb", "H100 SXM 80 GB", "10de:2330", "2330", "0x2330")
def test_a_gpu_is_named_by_key_name_or_id(gpu: str) -> None:
    facts, problems = of_image(PreflightImageGpu(gpu, 2))
    assert ([device.device_id for device in facts.pci], problems) == (["2330", "2330"], [])


def test_a_gpu_that_no_table_knows_is_refused_with_a_hint() -> None:
    _, (problem,) = of_image(PreflightImageGpu("h100_sxm_80g"))
    meant = advice("did-you-mean", name="h100_sxm_80gb")
    assert problem == refusal("image-gpu-unknown", meant, gpu="h100_sxm_80g")


def test_an_image_for_no_gpu_is_refused_once() -> None:
    (problem,) = plan(preflight_image_gpus=[])["problems"]
    assert "preflight_image_gpus names no GPU" in problem


def test_a_number_below_one_is_refused() -> None:
    _, (problem,) = of_image(PreflightImageGpu("l4", 0))
    assert problem == refusal("image-gpu-count", gpu="l4", found=0)


def test_a_running_server_is_refused() -> None:
    made = plan(node(image_refusal="this is a running machine"))
    assert "this is a running machine" in made["problems"]


# ---------------------------------------------------------------- the tree


@pytest.fixture
def detected(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have systemd-detect-virt answer this."""
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")

    def answer(word: str) -> None:
        done = subprocess.CompletedProcess(image.DETECT, 0, f"{word}\n", "")
        monkeypatch.setattr(process, "complete", lambda *_: done)

    return answer


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A booted tree with a kernel and with all that a builder leaves."""
    install_kernel(tmp_path, KERNEL)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name in (
        "etc/ssh/ssh_host_rsa_key",
        "etc/ssh/ssh_host_rsa_key.pub",
        "etc/ssh/sshd_config",
        "etc/machine-id",
        "etc/hostname",
        "var/lib/dbus/machine-id",
        "var/lib/dhcp/dhclient.leases",
        "var/lib/systemd/random-seed",
        "var/lib/dkms/mok.key",
        "var/lib/apt/lists/deb.example.org_Packages",
        "var/cache/apt/archives/a.deb",
        "var/log/auth.log",
        "var/log/journal/0123/system.journal",
        "var/lib/temper/lease.json",
        "var/lib/temper/module-signing/mok.key",
        "var/lib/temper/settings/firewall.json",
        "var/lib/temper/unproven-packages",
        "home/ops/.bash_history",
        "home/ops/.ssh/authorized_keys",
        "tmp/left",
        "tmp/ansible_payload/here",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    return tmp_path


def test_a_server_a_container_without_systemd_and_one_with_gpus_are_refused(
    tree: Path, detected: Callable[[str], None]
) -> None:
    detected("none")
    assert "no container" in image.refusal(tree, KERNEL)
    detected("systemd-nspawn")
    assert image.refusal(tree, KERNEL) == ""
    (tree / "dev").mkdir()
    (tree / "dev/nvidiactl").touch()
    assert "has GPUs" in image.refusal(tree, KERNEL)
    (tree / "run/systemd/system").rmdir()
    assert "no systemd" in image.refusal(tree, KERNEL)


def test_a_kernel_that_is_not_installed_is_refused(tree: Path, detected: Callable[[str], None]) -> None:
    detected("systemd-nspawn")
    assert KERNEL in image.refusal(tree, "6.1.0-57-amd64")


def test_the_newest_kernel_is_the_images_unless_one_is_named(tmp_path: Path) -> None:
    assert image.kernel_of(tmp_path, "") == ""
    for release in ("6.12.9-amd64", "6.12.57-amd64", "6.1.0-56-amd64"):
        install_kernel(tmp_path, release)
    assert image.kernel_of(tmp_path, "") == "6.12.57-amd64"
    assert image.kernel_of(tmp_path, "6.12.9-amd64") == "6.12.9-amd64"


def test_a_seal_takes_what_is_personal_and_leaves_the_rest(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    sealed = image.seal(tree, check=False)
    assert sealed.left == []
    left = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() and path.stat().st_size}
    assert left == {
        "etc/ssh/sshd_config",
        f"etc/systemd/system/{image.FIRST_BOOT}",
        "home/ops/.ssh/authorized_keys",
        "tmp/ansible_payload/here",
        "var/lib/temper/settings/firewall.json",
        "var/lib/temper/unproven-packages",
    }
    assert (tree / "etc/machine-id").read_bytes() == b""
    assert (tree / "var/log/auth.log").exists()
    assert sealed.changed


PERSONAL = (
    # Where update-secureboot-policy of Ubuntu makes the pair that DKMS signs with there.
    "var/lib/shim-signed/mok/MOK.priv",
    "var/lib/systemd/coredump/core.sshd.0.zst",
    "var/crash/_usr_sbin_sshd.0.crash",
    "root/.python_history",
    "home/ops/.zsh_history",
    "var/lib/wtmpdb/wtmp.db",
    "var/lib/lastlog/lastlog2.db",
    # Docker's and containerd's ids are to be those of one machine.
    "var/lib/docker/engine-id",
    "etc/docker/key.json",
    "var/lib/containerd/io.containerd.grpc.v1.introspection/uuid",
    # What the builder measured of itself, a machine would serve as its own.
    "var/lib/prometheus/node-exporter/apt.prom",
    "efi/loader/random-seed",
    "etc/ssh/.temper-first-boot",
)


def test_a_signing_key_memory_and_histories_stay_in_no_image(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    for name in PERSONAL:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("secret")
    image.seal(tree, check=False)
    assert [name for name in PERSONAL if (tree / name).exists()] == []


def first_boot(folder: Path, lines: int | None = None) -> bool:
    """Whether the unit runs where /etc/ssh is this folder; then so many of its commands, or all, do."""
    text = image.FIRST_BOOT_TEXT.replace("/etc/ssh", str(folder / "etc/ssh"))
    conditions = [line for line in text.splitlines() if line.startswith("Condition")]
    if subprocess.run(["systemd-analyze", "condition", *conditions], capture_output=True).returncode:
        return False
    for line in [line for line in text.splitlines() if line.startswith("ExecStart=")][:lines]:
        command = line.removeprefix("ExecStart=").split()
        where = ["-f", str(folder)] if "ssh-keygen" in command[0] else []
        subprocess.run([*command, *where], check=True, capture_output=True)
    return True


@pytest.mark.component
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd reads its own conditions")
def test_a_first_boot_that_is_cut_off_is_made_up_for_and_no_key_is_made_twice(tmp_path: Path) -> None:
    """With one key of several, or an empty one, nobody would ever reach such a machine."""
    folder = tmp_path / "etc/ssh"
    folder.mkdir(parents=True)
    assert first_boot(tmp_path, lines=1)
    (folder / "ssh_host_rsa_key").write_text("made before the power went")
    (folder / "ssh_host_ed25519_key").write_text("")  # its name reached the disk, and its content did not
    assert first_boot(tmp_path)
    keys = {path.name: path.read_bytes() for path in folder.glob("ssh_host_*_key")}
    assert keys["ssh_host_rsa_key"] == b"made before the power went"
    assert keys["ssh_host_ed25519_key"].startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert not first_boot(tmp_path)
    (folder / "ssh_host_rsa_key").unlink()
    assert not first_boot(tmp_path)  # what an operator takes away stays away
    assert keys["ssh_host_ed25519_key"] == (folder / "ssh_host_ed25519_key").read_bytes()


def test_no_image_has_a_name_for_iscsi_and_debians_makes_one_for_each_machine(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the file its daemon does not start; with this word in it, it makes one at its first start."""
    monkeypatch.setattr(process, "which", lambda _: None)
    (tree / image.ISCSI_NAME).parent.mkdir(parents=True)
    (tree / image.ISCSI_NAME).write_text("InitiatorName=iqn.1994-05.com.redhat:abcdef\n")
    image.seal(tree, check=False)
    assert not (tree / image.ISCSI_NAME).exists()
    (tree / image.DEBIANS_ISCSI).parent.mkdir(parents=True)
    for name in (image.ISCSI_NAME, image.DEBIANS_ISCSI):
        (tree / name).write_text("InitiatorName=iqn.1993-08.org.debian:01:abcdef\n")
    assert image.seal(tree, check=False).left == []
    assert (tree / image.ISCSI_NAME).read_text() == "GenerateName=yes\n"
    assert not image.seal(tree, check=False).changed


@pytest.mark.parametrize(("text", "stays"), [(services.TEXT, False), (b"#!/bin/sh\nexit 101\n", True)])
def test_a_policy_of_a_run_that_was_cut_off_is_in_no_image(
    text: bytes, stays: bool, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it no package would ever start a service on the machines; somebody else's is meant to be there."""
    monkeypatch.setattr(process, "which", lambda _: None)
    policy = tree / "usr/sbin/policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_bytes(text)
    assert image.seal(tree, check=False).left == []
    assert policy.exists() is stays


def test_a_second_seal_changes_nothing_and_logs_are_no_change(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    image.seal(tree, check=False)
    (tree / "var/log/auth.log").write_text("one more line")
    assert not image.seal(tree, check=False).changed


def test_a_check_says_what_a_seal_would_take_and_takes_nothing(tree: Path) -> None:
    before = sorted(tree.rglob("*"))
    sealed = image.seal(tree, check=True)
    assert "/etc/ssh/ssh_host_rsa_key" in sealed.removed["SSH host keys"]
    assert sorted(tree.rglob("*")) == before


def test_what_cannot_be_taken_away_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    monkeypatch.setattr(image, "discard", lambda *_: None)
    assert "/etc/machine-id" in image.seal(tree, check=False).left


BOUND = "36 25 254:1 /srv/{0} {1} rw,relatime shared:1 - {2} /dev/vda1 rw\n"
ROOT_MOUNT = "25 1 254:1 /srv/tree / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"


def mounted(tree: Path, point: str, kind: str = "ext4") -> None:
    (tree / "proc/self").mkdir(parents=True, exist_ok=True)
    (tree / "proc/self/mountinfo").write_text(ROOT_MOUNT + BOUND.format("mine", point, kind))


#: The last one is within a folder that would be removed as a whole.
HOLDING = (
    *("/home/ops", "/home", "/var/cache/apt/archives", "/var/log", "/var/log/journal/0123", "/etc/hostname"),
    "/var/lib/temper/module-signing/keys",
)


def test_what_the_builder_mounts_over_something_personal_is_refused_by_its_name(tree: Path) -> None:
    found = {}
    for point in (*HOLDING, "/srv/data", "/home/ops/.ssh", "/opt/a\\040b"):
        mounted(tree, point)
        found[point] = image.foreign(tree)
    assert {point: names for point, names in found.items() if names} == {
        point: [f"{point} (ext4)"] for point in HOLDING
    }


def test_a_mount_behind_a_link_is_refused(tree: Path) -> None:
    mounted(tree, "/srv/people")
    (tree / "srv/people/ada").mkdir(parents=True)
    (tree / "srv/people/ada/.bash_history").touch()
    (tree / "home/ada").symlink_to("../srv/people/ada")
    assert image.foreign(tree) == ["/srv/people (ext4)"]


def test_what_is_temporary_in_memory_is_not_the_images(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    mounted(tree, "/tmp", "tmpfs")
    assert image.foreign(tree) == []
    image.seal(tree, check=False)
    assert (tree / "tmp/left").exists()


def test_a_run_that_was_cut_off_keeps_the_tree_from_being_sealed(tree: Path) -> None:
    assert image.unfinished(tree) == []
    for record in ('{"pending": ["file:/etc/x"]}', "{", "[]"):
        (tree / "var/lib/temper/settings/os_tuning.json").write_text(record)
        assert image.unfinished(tree) == ["os_tuning"], record


# ---------------------------------------------------------------- what is written, and not in force


@pytest.mark.component
def test_a_module_for_another_kernel_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_builds, "ROOT", tmp_path)
    install_kernel(tmp_path, KERNEL)
    install_module(tmp_path, KERNEL, VERSION, built_for="6.1.0-50-amd64")
    depmod(tmp_path, KERNEL)
    dkms_build(tmp_path, "nvidia", VERSION, KERNEL)
    found = KernelModules(VERSION, "nvidia", "", "apt", KERNEL)
    assert found.lacking() == {KERNEL: "its nvidia module is built for kernel 6.1.0-50-amd64"}


@pytest.mark.component
def test_the_module_of_the_named_kernel_is_enough_whatever_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_builds, "ROOT", tmp_path)
    monkeypatch.setattr("platform.release", lambda: "5.10.0-builder")
    install_kernel(tmp_path, KERNEL)
    install_module(tmp_path, KERNEL, VERSION)
    depmod(tmp_path, KERNEL)
    assert KernelModules(VERSION, "nvidia", "", "apt", KERNEL).settled()


@each(("enabled", "inactive"), ("enabled", "active"))
def test_a_unit_of_an_image_has_only_to_be_enabled(enabled: str, active: str) -> None:
    unit = known_unit(True, enabled, active)
    assert unit.settled()
    assert unit._steps() == []


def test_a_unit_of_an_image_is_enabled_and_not_started() -> None:
    assert known_unit(True, "disabled", "inactive")._steps() == ["enable"]


def test_a_unit_that_runs_in_the_tree_is_switched_off_for_the_machine_alone() -> None:
    assert known_unit(False, "enabled", "active")._steps() == ["disable"]
    assert known_unit(False, "disabled", "active").settled()


def known_unit(on: bool, enabled: str, active: str) -> Unit:
    unit = Unit("some", on=on)
    unit.live = False
    unit.know(
        {
            "LoadState": "loaded",
            "UnitFileState": enabled,
            "ActiveState": active,
            "ConditionResult": "no",
            "ConditionTimestampMonotonic": "0",
        }
    )
    return unit


@pytest.mark.component
def test_packages_start_no_service_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(services, "POLICY", policy)
    monkeypatch.setattr(services, "which", lambda _: "/usr/bin/dpkg")
    with pytest.raises(RuntimeError), services.services_left_alone():
        assert subprocess.run([policy], check=False).returncode == 101
        raise RuntimeError
    assert not policy.exists()


def test_somebody_elses_policy_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    policy.write_text("#!/bin/sh\n")
    monkeypatch.setattr(services, "POLICY", policy)
    with services.services_left_alone():
        pass
    assert policy.read_text() == "#!/bin/sh\n"
