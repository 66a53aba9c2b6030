"""The operating system's tuning on a real node: made once, back after a reboot, and all of it taken back.

/sys of a node is the host's and read-only, so that a node as it is has neither governor nor huge pages to
choose. File systems in memory lie over these two folders here, with files in the kernel's form: what is
written there reaches no kernel, and the host's /sys is never written to.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.hardening import wait_until
from tests.lab.settings import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="ostune"), size=1)
(NODE,) = FLEET.lab.nodes(1)
UNIT = "temper-os-tuning.service"
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
WANTED: dict[str, Any] = {
    "os_tuning_cpu_governor": "performance",
    "os_tuning_transparent_hugepages": "never",
    "os_tuning_network_buffer_mib": 64,
    "os_tuning_shm": "30%",
}
PLATFORM_UNIT = "/etc/systemd/system/platform.service"
# Stands for the platform, at every boot: before anything of Temper's, and with what the kernel starts with.
PLATFORM = f"""\
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=systemd-tmpfiles-setup.service sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'mount -t tmpfs platform /sys/devices/system/cpu/cpufreq; \\
    mkdir {GOVERNOR.rpartition("/")[0]}; echo schedutil >{GOVERNOR}; \\
    echo performance schedutil >{GOVERNOR.rpartition("/")[0]}/scaling_available_governors; \\
    mount -t tmpfs platform {HUGEPAGES.rpartition("/")[0]}; echo "always [madvise] never" >{HUGEPAGES}'

[Install]
WantedBy=sysinit.target
"""
PARAMETERS = "net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.ipv4.neigh.default.gc_thresh3 kernel.numa_balancing"
SHOW = (
    f"for file in {GOVERNOR} {HUGEPAGES}; do echo $(cat $file); done; "
    f"for name in {PARAMETERS}; do echo $(sysctl --values $name); done; df --output=size /dev/shm | tail -n 1"
)
FILES = (
    "ls -d /etc/tmpfiles.d/temper* /etc/systemd/system/temper-os* /etc/sysctl.d/*temper-tuning* "
    "/etc/security/limits.d/*temper* /etc/systemd/system.conf.d/*temper* /etc/systemd/logind.conf.d/*temper* "
    "2>/dev/null || true"
)


def tune(*options: str, **variables: Any) -> Run:
    command = ["ansible-playbook", "playbooks/tune.yml", "--tags", "os_tuning", *options, "--extra-vars"]
    return FLEET.run([*command, json.dumps({**WANTED, **variables})])


def shown() -> list[str]:
    """Governor, huge pages, kernel parameters and the size of /dev/shm."""
    return [" ".join(line.split()) for line in on_node(NODE, SHOW).splitlines()]


def shm_share() -> float:
    """How much of the memory /dev/shm may take."""
    size, memory = on_node(
        NODE,
        "df --output=size /dev/shm | tail -n 1; sed -n 's/^MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo",
    ).split()
    return int(size) / int(memory)


@pytest.fixture(scope="module")
def bare() -> Iterator[list[str]]:
    """What a node was before anything was tuned."""
    with FLEET.booted():
        on_node(NODE, f"cat >{PLATFORM_UNIT} <<'END'\n{PLATFORM}END\nsystemctl enable --quiet --now platform")
        yield shown()


@pytest.fixture(scope="module")
def tuned(bare: list[str]) -> list[str]:
    """What it is after the first run."""
    said = tune("--check")
    assert said.status == 0, said.output
    assert shown() == bare
    run = tune()
    assert run.status == 0, run.output
    return shown()


def test_values_are_in_force_and_the_second_run_changes_nothing(tuned: list[str]) -> None:
    assert tuned[:2] == ["performance", "never"]
    assert tuned[2:4] == ["4096 131072 67108864", "4096 16384 67108864"]
    assert shm_share() == pytest.approx(0.3, rel=0.02)
    assert tune().changed(NODE) == 0


@pytest.mark.usefixtures("tuned")
def test_options_of_the_mount_point_stay() -> None:
    assert {"nosuid", "nodev"} <= set(
        on_node(NODE, "findmnt -nro VFS-OPTIONS -M /dev/shm").strip().split(",")
    )


@pytest.mark.usefixtures("tuned")
def test_compliance_finds_what_somebody_has_changed(tmp_path: Path) -> None:
    on_node(NODE, f"echo schedutil >{GOVERNOR}; mount --options remount,size=10% /dev/shm")
    run = FLEET.playbook("compliance", None, compliance_reports_directory=str(tmp_path), **WANTED)
    statement = json.loads((tmp_path / "latest" / "statement.json").read_text())
    states = {control["id"]: control["state"] for control in statement["nodes"][0]["controls"]}
    path = GOVERNOR.removeprefix("/sys/")
    assert states[f"os_tuning/sysfs:{path}"] == "fail", run.output
    assert states["os_tuning/tmpfs:/dev/shm"] == "fail"
    assert tune().changed(NODE) == 1


def test_all_of_it_is_there_again_after_a_reboot(tuned: list[str]) -> None:
    # What is written over the start of a file in memory leaves the rest of it: so this one is empty then.
    on_node(NODE, f"sed -i 's|echo \"always.*\" >|: >|' {PLATFORM_UNIT}; systemctl daemon-reload")
    labs.reboot(NODE)
    wait_until(
        lambda: on_node(NODE, f"systemctl show --value --property=ActiveState {UNIT}").strip() == "active",
        f"{UNIT} has ended",
    )
    assert shown()[:-1] == tuned[:-1]
    assert shm_share() == pytest.approx(0.3, rel=0.02)
    assert tune().changed(NODE) == 0


@pytest.mark.usefixtures("tuned")
def test_bad_input_is_refused_before_anything_is_changed() -> None:
    before = shown()
    for variable, value, words in (
        ("os_tuning_cpu_governor", "powersave", "this node offers performance, schedutil"),
        ("os_tuning_shm", "120%", "1% to 100%"),
    ):
        run = tune(**{variable: value})
        assert run.status != 0
        assert words in run.said, run.output
    assert shown() == before


@pytest.mark.usefixtures("tuned")
def test_taken_back_the_node_is_what_it_was(bare: list[str]) -> None:
    run = tune(os_tuning_state="absent")
    assert run.status == 0, run.output
    now = shown()
    # What a file in memory was told is a word without brackets.
    assert [now[0], now[1], *now[2:]] == [bare[0], "madvise", *bare[2:]]
    assert on_node(NODE, FILES).strip() == ""
    assert tune(os_tuning_state="absent").changed(NODE) == 0
