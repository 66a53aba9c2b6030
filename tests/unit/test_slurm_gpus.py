"""Slurm's configuration of a node's GPUs: types, device files, cores beside them, and what is refused."""

from typing import Any

from temper.plan.facts import Socket
from temper.plan.role_variables import role_variables
from temper.plan.slurm import SlurmGpu, cores_beside, gres, gres_lines, kind, ranges
from tests.unit.each import each
from tests.unit.planning_nodes import H100, assert_says, gpus, node
from tests.unit.planning_roles.plans import contents, planned, whole_plan
from tests.unit.tables import specs

ROLE = "compute_environment"
TWO = (Socket(48, (0,)), Socket(48, (1,)))
FILE = "/etc/slurm/gres.conf"


def server(devices: list[dict[str, Any]], **cpu: Any) -> dict[str, Any]:
    """A node with these GPUs and processors."""
    facts = node(pci=devices)
    return facts | {"cpu": facts["cpu"] | cpu}


def hgx(minors: list[int] | None = None) -> dict[str, Any]:
    """Eight H100, four on each of two sockets."""
    devices = [
        device | {"numa_node": index // 4, "minor": minors[index] if minors else None}
        for index, device in enumerate(gpus(*[H100] * 8))
    ]
    sockets = [{"cores": 48, "numa_nodes": [number]} for number in (0, 1)]
    return server(devices, sockets=sockets)


def with_a_guest() -> dict[str, Any]:
    """The same, of which a virtual machine has the first one."""
    facts = hgx()
    facts["pci"][0]["driver"] = "vfio-pci"
    return facts


NVML: dict[str, Any] = {f"{ROLE}_slurm_gpus": "nvml"}
EIGHT = "Name=gpu Type=h100_sxm_80_gb File=/dev/nvidia"


def lines(facts: dict[str, Any], **given: Any) -> list[str]:
    """What gres.conf says, without its comments."""
    given = {f"{ROLE}_slurm_gpus": "devices", **given}
    text = contents(planned(ROLE, facts, **given))[FILE] or ""
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_gpus_are_listed_with_the_cores_of_their_socket() -> None:
    assert lines(hgx()) == [
        "AutoDetect=off",
        "Name=gpu Type=h100_sxm_80_gb File=/dev/nvidia[0-3] Cores=0-47",
        "Name=gpu Type=h100_sxm_80_gb File=/dev/nvidia[4-7] Cores=48-95",
    ]


def test_a_gpu_that_the_loaded_driver_does_not_know_gets_no_number_of_another() -> None:
    facts = hgx([1, 2, 3, 4, 5, 6, 7, 8])
    facts["pci"][4]["minor"] = None
    found = " ".join(lines(facts))
    assert "/dev/nvidia[1-4]" in found
    assert "/dev/nvidia[0,6-8]" in found


def test_what_slurm_conf_needs_is_in_the_file_and_in_the_plan() -> None:
    given: dict[str, Any] = {f"{ROLE}_slurm_gpus": "devices"}
    plan = whole_plan(hgx(), **given)
    assert_says(contents(plan.role(ROLE))[FILE] or "", "GresTypes=gpu", "Gres=gpu:h100_sxm_80_gb:8 ")
    assert "GresTypes=gpu, and Gres=gpu:h100_sxm_80_gb:8 in the line of this node" in plan.text


def test_slurmd_may_ask_the_driver_instead() -> None:
    given: dict[str, Any] = {f"{ROLE}_slurm_gpus": "nvml"}
    assert lines(hgx(), **given) == ["AutoDetect=nvml"]
    assert "Gres=gpu:8 in the line" in whole_plan(hgx(), **given).text


def test_of_divided_gpus_the_number_is_what_slurmd_finds() -> None:
    plan = whole_plan(hgx(), **NVML, gpu_settings_mig={"all": ["3g.40gb"] * 2})
    for text in (plan.text, contents(plan.role(ROLE))[FILE] or ""):
        assert_says(text, "Gres=gpu:NUMBER", "slurmd -G")
        assert "gpu:8" not in text


def test_without_it_nothing_is_said_of_slurm_and_no_daemon_is_restarted_for_it() -> None:
    plan = whole_plan(hgx())
    assert not [path for path in contents(plan.role(ROLE)) if "slurm" in path]
    assert "slurm" not in plan.text
    given: dict[str, Any] = {f"{ROLE}_slurm_gpus": "devices"}
    assert not [one for one in planned(ROLE, hgx(), **given).reactions if "slurm" in str(one)]
    assert "slurm.conf" not in whole_plan(hgx(), **given | {f"{ROLE}_state": "absent"}).text


def test_control_groups_are_as_the_operator_says_with_words_for_booleans() -> None:
    given: dict[str, Any] = {
        f"{ROLE}_slurm_cgroup": {
            "ConstrainDevices": True,
            "ConstrainSwapSpace": False,
            "AllowedRAMSpace": 95,
        },
        f"{ROLE}_slurm_directory": "/etc/slurm-llnl",
    }
    text = contents(planned(ROLE, hgx(), **given))["/etc/slurm-llnl/cgroup.conf"] or ""
    assert text.splitlines()[1:] == ["ConstrainDevices=yes", "ConstrainSwapSpace=no", "AllowedRAMSpace=95"]


@each(
    ("slurm_cgroup", {"ConstrainDevices": None}, "None for ConstrainDevices"),
    ("slurm_cgroup", {"ConstrainDevices": ["yes"]}, "for ConstrainDevices"),
    ("slurm_cgroup", {"A=b\nC": "d"}, "for A=b"),
    ("slurm_directory", "etc/slurm", "absolute path"),
    ("slurm_directory", "", "absolute path"),
)
def test_what_slurmd_could_not_start_with_is_refused(name: str, value: object, words: str) -> None:
    (problem,) = role_variables({f"{ROLE}_{name}": value}, specs())["problems"]
    assert_says(problem, f"{ROLE}_{name}", words)


def test_whole_gpus_that_are_divided_are_refused_with_the_way_out() -> None:
    given: dict[str, Any] = {f"{ROLE}_slurm_gpus": "devices", "gpu_settings_mig": {"0": ["3g.40gb"]}}
    (problem,) = role_variables(given, specs())["problems"]
    assert_says(problem, "slurm_gpus: devices", "gpu_settings_mig", "slurm_gpus: nvml")
    for fine in ({f"{ROLE}_slurm_gpus": "nvml"}, {"gpu_settings_mig": {"all": "disabled"}}):
        assert role_variables(given | fine, specs())["problems"] == []


@each(
    (0, TWO, "0-47"),
    (1, TWO, "48-95"),
    (None, TWO, ""),  # the firmware does not say
    (7, TWO, ""),  # memory of a GPU's own
    (0, TWO[:1], ""),  # all cores are as good
    (3, (Socket(32, (0, 1)), Socket(32, (2, 3))), "32-63"),
    (0, (), ""),
)
def test_cores_are_those_of_the_whole_socket(
    numa_node: int | None, sockets: tuple[Socket, ...], cores: str
) -> None:
    assert cores_beside(numa_node, sockets) == cores


@each(([0], "0"), ([3, 1, 2], "1-3"), ([0, 1, 4, 6, 7], "0-1,4,6-7"), ([], ""))
def test_numbers_are_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_types_have_no_signs_of_slurm_s() -> None:
    assert kind("RTX PRO 6000 Blackwell (Max-Q), 96 GB") == "rtx_pro_6000_blackwell_max_q_96_gb"
    assert kind("10de 2901") == "10de_2901"


def test_lines_and_counts_are_of_the_same_gpus() -> None:
    found = [SlurmGpu("l4", 0, 0), SlurmGpu("t4", 1, 1)]
    assert gres(found, typed=True, divided=False) == "gpu:l4:1,gpu:t4:1"
    assert len(gres_lines(found, TWO)) == len(found)
