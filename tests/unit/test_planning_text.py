"""What the operator reads: the plan in a few lines, and why there is none."""

from __future__ import annotations

import json
from typing import Any

from temper.plan.preflight import preflight_plan
from tests.unit.each import each
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
    assert last.startswith(
        "hardening: profile gpu, by CIS Debian Linux 12 Benchmark 1.1.0, "
        f"{len(found['waived'])} controls waived"
    )
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
        "reboot: none is due",
        "GPU settings: clocks max",
        "SSH afterwards: by key only, from every address, because firewall_management_networks is not set",
        "firewall: opens nothing else",
        "validation: plan quick (under a minute), requires health, gpu_matmul, gpu_transfer",
    ]


@each(
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
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert warnings[0].startswith("warning: GPU with PCI id 10de:ffff is in no table")
    assert lines[-len(warnings) :] == warnings


def test_text_of_a_node_that_cannot_be_planned() -> None:
    lines = text(node(architecture="riscv64", pci=[]))
    assert lines[0].endswith("kernel 6.1.0-37-amd64, no GPU")
    assert len(lines) == 2


def test_wrong_variables_and_wrong_hardware_stand_in_one_list() -> None:
    found = preflight_plan(collected(node(secure_boot="enabled")), TYPO, KNOWN)
    assert found["problems"][0].startswith("firewall_stat: no role has a variable of this name")
    assert found["problems"][1].startswith("Secure Boot")


#: What ssh and Ansible say, and the words and commands that the operator gets for it.
SAID = [
    (False, "ops@192.0.2.7: Permission denied (publickey).\r\n", ["ssh-add -l", "ssh-copy-id ops@192.0.2.7"]),
    (
        False,
        "ops@192.0.2.7:\nPermission denied (publickey)",
        ["ops@192.0.2.7: Permission denied (publickey);"],
    ),
    (
        False,
        "ssh: connect to host 192.0.2.7 port 22: No route to host",
        ["No route to host; check that it is up"],
    ),
    (
        False,
        "No ED25519 host key is known for 192.0.2.7 and you have requested strict checking.\r\n"
        "Host key verification failed.",
        ["ssh-keyscan 192.0.2.7 >", "ssh-keygen -lf", "compare the fingerprint", "known_hosts"],
    ),
    (
        False,
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nHost key verification failed.",
        ["ssh-keygen -R 192.0.2.7", "compare the fingerprint"],
    ),
    (
        False,
        f"{'@' * 59}\n@    WARNING: UNPROTECTED PRIVATE KEY FILE!    @\n{'@' * 59}\n"
        "Permissions 0644 for '/k' are too open.\nIt is required that your private key files are NOT "
        'accessible by others.\nThis private key will be ignored.\nLoad key "/k": bad permissions\n'
        "ops@192.0.2.7: Permission denied (publickey).",
        ["WARNING: UNPROTECTED PRIVATE KEY FILE! Permissions 0644", "; type chmod 600 /k"],
    ),
    (
        False,
        "no such identity: /a/k: No such file or directory\nPermission denied",
        ["private_key_file, or put"],
    ),
    (False, "ssh: Could not resolve hostname n: Name or service not known", ["correct ansible_host"]),
    (
        False,
        "ssh: connect to host 192.0.2.7 port 22: Connection refused",
        ["its SSH server runs", "ansible_port"],
    ),
    (False, "command-line line 0: Bad port '70000'.", ["ansible_port", "65535"]),
    (False, "/c: line 2: Bad configuration option: proxycomand", ["correct this file or option of ssh"]),
    (
        False,
        "ssh: connect to host 192.0.2.9 port 22: No route to host\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535",
        ["jump host or proxy", "ansible_ssh_common_args"],
    ),
    (
        False,
        "ada@bastion: Permission denied (publickey).\r\n"
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535",
        ["; ada@bastion on the way is up and does not let this account in", "ssh-add -l"],
    ),
    (
        False,
        "Permission denied (publickey).\r\nstdio forwarding failed",
        ["; a jump host on the way is up and does not let this account in"],
    ),
    (
        False,
        "No ED25519 host key is known for bastion and you have requested strict checking.\r\n"
        "Host key verification failed.\r\nkex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535",
        ["host key is known for bastion", "; ssh does not know the host key of a jump host"],
    ),
    (
        False,
        "Received disconnect from 192.0.2.7 port 22:2: Too many authentication failures\nDisconnected",
        ["ansible_ssh_private_key_file", "IdentitiesOnly=yes", "ssh-add -D"],
    ),
    (
        False,
        "System is booting up. Unprivileged users are not permitted to log in yet. For technical details, "
        "see pam_nologin(8).\nConnection closed by 192.0.2.7 port 22",
        ["run again once it has booted", "/run/nologin"],
    ),
    (True, "Ansible works there as user 1000, not as root", ["ansible_become"]),
    (True, "ops is not in the sudoers file.", ["ansible_user", "ssh -t ops@192.0.2.7 sudo -l"]),
    (True, "Missing sudo password", ["--ask-become-pass (-K)", "ansible_become_password", "ansible-vault"]),
    (True, "Incorrect sudo password", ["--ask-become-pass (-K)"]),
    (
        False,
        "Timeout (22s) waiting for privilege escalation prompt: ",
        ["ssh -t ops@192.0.2.7 sudo -v", "firewall"],
    ),
    (
        True,
        "The module interpreter '/usr/bin/python3' was not found.",
        ["ansible gpu01 -b -m ansible.builtin.raw", "install -y python3", "ansible_python_interpreter"],
    ),
    (
        True,
        "sudo: unable to resolve host gpu01\nTraceback (most recent call last):\n  File x\n    tempfile()\n"
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp']\n",
        ["unable to resolve host gpu01 FileNotFoundError: [Errno 2]", "findmnt /", "df -i /"],
    ),
    (True, "sudo: sorry, you must have a tty to run sudo", ["requiretty", "visudo"]),
    (True, "something else", ["something else; correct that"]),
]


def test_a_node_that_cannot_be_asked_gets_the_cause_and_what_to_type() -> None:
    wrong = []
    for reached, message, words in SAID:
        start = (
            'Data could not be sent to remote host "192.0.2.7". Make sure this host can be reached over ssh: '
        )
        result = {"unreachable": not reached, "msg": message if reached else start + message}
        found = preflight_plan(result, {"inventory_hostname": "gpu01"}, KNOWN)
        (problem,) = found["problems"]
        if not all(word in problem for word in words) or start in problem or found["text"]:
            wrong.append((message, problem))
    assert not wrong


def test_commands_name_the_account_only_where_it_is_known() -> None:
    wrong = []
    for user, login in (("ops", "ops@192.0.2.7"), ("", "192.0.2.7")):
        known = KNOWN | {"user": user}
        for message, command in (
            ("Permission denied (publickey)", "ssh-copy-id {} "),
            ("Timeout (12s) waiting for privilege escalation prompt: ", "ssh -t {} sudo"),
        ):
            result = {"unreachable": True, "msg": message}
            (problem,) = preflight_plan(result, {"inventory_hostname": "gpu01"}, known)["problems"]
            if command.format(login) not in problem or " as :" in problem:
                wrong.append((user, problem))
    assert not wrong


def test_an_address_that_is_more_than_one_is_told_to_stand_alone() -> None:
    said = {"unreachable": True, "msg": "ssh: Could not resolve hostname X: Name or service not known"}
    addresses = ("[fd00::7]", "192.0.2.7 ", "192.0.2.7:2222", "", "gpu01", "fd00::7", "fe80::7%eth0")
    texts = {
        address: preflight_plan(said, {"inventory_hostname": "gpu01"}, KNOWN | {"address": address})
        for address in addresses
    }
    odd = [address for address, found in texts.items() if "address alone into" in found["problems"][0]]
    assert odd == [*addresses[:4]]
    assert texts[""]["problems"][0].startswith("gpu01 cannot be reached")


#: What ssh says, and what to type to a node behind another port.
OTHER_PORT = [
    ("Permission denied (publickey)", ["ssh-copy-id -p 2222 ops@192.0.2.7 "]),
    ("Timeout (12s) waiting for privilege escalation prompt: ", ["ssh -t -p 2222 ops@192.0.2.7 sudo -v"]),
    ("Host key verification failed.", ["ssh-keyscan -p 2222 192.0.2.7 >"]),
    (
        "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
        ["ssh-keyscan -p 2222 192.0.2.7 |", "ssh-keygen -R '[192.0.2.7]:2222')"],
    ),
]


def test_commands_name_the_port_where_it_is_not_22() -> None:
    wrong = []
    for message, commands in OTHER_PORT:
        for port in (2222, "2222", 22, None):
            result = {"unreachable": True, "msg": message}
            variables = {"inventory_hostname": "gpu01"}
            (problem,) = preflight_plan(result, variables, KNOWN | {"port": port})["problems"]
            other = str(port) == "2222"
            named = all(command in problem for command in commands) if other else " -p " in problem
            if named != other:
                wrong.append((port, problem))
    assert not wrong


def test_an_unreachable_node_with_a_typo_has_two_problems() -> None:
    result = {"unreachable": True, "msg": "timed out"}
    assert len(preflight_plan(result, TYPO, KNOWN)["problems"]) == 2
