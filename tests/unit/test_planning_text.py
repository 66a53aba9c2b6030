"""What the operator reads: the plan in a few lines, and why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from temper.plan.preflight import preflight_plan
from tests.unit.planning_nodes import (
    GPU,
    H100,
    L4,
    NVSWITCH,
    SWITCH,
    gpus,
    node,
    settled,
)
from tools.bare_node import pci

KNOWN = {"address": "192.0.2.7", "user": "ops", "today": ""}
TYPO = {"firewall_stat": "present"}


def collected(facts: dict[str, Any]) -> dict[str, Any]:
    return {"ansible_facts": {"temper": facts}}


def text(facts: dict[str, Any], **values: Any) -> list[str]:
    """The lines without the one that names what hardening waives."""
    lines = str(preflight_plan(collected(facts), values, KNOWN)["text"]).splitlines()
    return [line for line in lines if not line.startswith("hardening: ")]


def test_text_says_how_much_hardening_waives_and_what_lists_it() -> None:
    found = preflight_plan(collected(node()), {}, KNOWN)
    assert len(found["waived"]) > 1
    last = found["text"].splitlines()[-1]
    assert last.startswith(f"hardening: profile gpu, {len(found['waived'])} controls waived")
    assert "temper plan --waived" in last
    absent = preflight_plan(collected(node()), {"os_hardening_state": "absent"}, KNOWN)
    assert "hardening" not in absent["text"]


def test_text_of_a_bare_node() -> None:
    facts = node(pci=pci(*[(H100, GPU)] * 8, (SWITCH, NVSWITCH)))
    assert text(facts) == [
        "Debian GNU/Linux 12 (bookworm), kernel 6.1.0-37-amd64, 8x H100 SXM 80 GB, NVSwitch",
        "stack r580-cuda13.0 (to be installed): driver 580.178.04 (open modules, supported to 2028-06), "
        "CUDA 13.0, cuDNN 9.19.0, NCCL 2.28.9, 14 packages",
        "environment: OMP_NUM_THREADS=4 NCCL_SOCKET_IFNAME==eth0",
        "payload: torch 2.11.0 on Python 3.11",
    ]


@pytest.mark.parametrize(
    ("eth0", "networks", "why"),
    [
        (25000, ["10.1.0.0/16"], "fab (400 Gb/s) in 10.1.0.0/16, the only interface in the fleet's networks"),
        (
            2500,
            ["192.0.2.0/24", "10.1.0.0/16"],
            "fab (400 Gb/s) in 10.1.0.0/16, the fastest in the fleet's networks; next is eth0 (2.5 Gb/s) in "
            "192.0.2.0/24",
        ),
        (
            400_000,
            ["192.0.2.0/24", "10.1.0.0/16"],
            "eth0 (400 Gb/s) in 192.0.2.0/24 before fab (400 Gb/s) in 10.1.0.0/16: no slower, and its "
            "network comes first",
        ),
    ],
    ids=["only", "fastest", "first"],
)
def test_text_and_the_files_reason_say_which_interface_how_fast_and_why(
    eth0: int, networks: list[str], why: str
) -> None:
    bare = {"up": True, "mtu": 1500, "default_route": False}
    facts = node(
        interfaces=[
            bare | {"name": "eth0", "addresses": ["192.0.2.7"], "speed_mbit_s": eth0},
            bare | {"name": "fab", "addresses": ["10.1.0.7"], "speed_mbit_s": 400_000},
        ]
    )
    values = {"compute_environment_fleet_networks": networks}
    assert f"NCCL's interface: {why}" in text(facts, **values)
    role = json.loads(preflight_plan(collected(facts), values, KNOWN)["roles"]["compute_environment"])
    reasons = {setting["key"]: setting["why"] for setting in role["settings"]}
    assert reasons["/etc/nccl.conf"] == f"NCCL's interface: {why}"


def test_text_of_a_settled_node() -> None:
    assert text(settled())[1].startswith("stack r580-cuda13.0 (in place): ")


def test_text_counts_unknown_gpus_and_warns_of_them() -> None:
    lines = text(node(pci=gpus(L4, "ffff", "ffff"), interfaces=[]), preflight_unknown_gpu_ok=True)
    assert lines[0].endswith("1x L4, 2x 10de:ffff (unknown)")
    assert lines[2] == "environment: OMP_NUM_THREADS=10"
    assert lines[4].startswith("warning: GPU with PCI id 10de:ffff is in no table")


def test_text_of_a_node_that_cannot_be_planned() -> None:
    lines = text(node(architecture="riscv64", pci=[]))
    assert lines[0].endswith("kernel 6.1.0-37-amd64, no GPU")
    assert len(lines) == 2


def test_wrong_variables_and_wrong_hardware_stand_in_one_list() -> None:
    found = preflight_plan(collected(node(secure_boot="enabled")), TYPO, KNOWN)
    assert found["problems"][0].startswith("firewall_stat: no role has a variable of this name")
    assert found["problems"][1].startswith("Secure Boot")


@pytest.mark.parametrize(
    "message",
    [
        'Data could not be sent to remote host "192.0.2.7". Make sure this host can be reached over ssh: '
        "ops@192.0.2.7: Permission denied (publickey).\r\n",
        "ops@192.0.2.7:\nPermission denied (publickey)",
    ],
)
def test_an_unreachable_node_gets_a_sentence_in_the_words_of_ssh(message: str) -> None:
    result = {"unreachable": True, "msg": message}
    found = preflight_plan(result, {}, KNOWN)
    assert found["driver"] is None
    assert found["text"] == ""
    assert found["problems"] == [
        "192.0.2.7 cannot be reached over SSH as ops: ops@192.0.2.7: Permission denied (publickey). "
        "Check that it is up, and ansible_host, ansible_user, the key (ansible_ssh_private_key_file) and "
        "the known host key"
    ]


def test_an_unreachable_node_with_a_typo_has_two_problems() -> None:
    result = {"unreachable": True, "msg": "timed out"}
    assert len(preflight_plan(result, TYPO, KNOWN)["problems"]) == 2
