"""What the plan says of a run before it begins, and which nodes it shows together."""

from typing import Any

from temper.plan.fleet import grouped, unlike
from temper.plan.preflight import preflight_plan, reaches
from tests.unit.each import each
from tests.unit.planning_nodes import node, settled, system

KNOWN = {"address": "192.0.2.7", "user": "ops", "today": "2026-11-26", "installs": True}
DRIVER = "580.178.04"


def planned(
    facts: dict[str, Any], *, installs: bool = True, hardens: bool = False, **values: Any
) -> dict[str, Any]:
    values = {"inventory_hostname": "gpu01", **values}
    known = KNOWN | {"installs": installs, "hardens": hardens}
    return preflight_plan({"ansible_facts": {"temper": facts}}, values, known)


def with_driver(facts: dict[str, Any], loaded: str | None, driver: str, busy: list[str]) -> dict[str, Any]:
    """The node with this driver loaded, and this kernel driver on its GPUs."""
    pci = [device | {"driver": driver} for device in facts["pci"]]
    nvidia = facts["nvidia"] | {"loaded_version": loaded, "compute_processes": busy}
    return facts | {"pci": pci, "nvidia": nvidia | {"nouveau_loaded": driver == "nouveau"}}


def codes(plan: dict[str, Any]) -> list[str]:
    return [one["code"] for one in plan["refusals"]]


ALLOWED = {"nvidia_stack_reboot_ok": True}
#: The node, the loaded driver, who has the GPUs, processes there, variables: why a reboot is due, refusals.
REBOOTS: list[tuple[str, str | None, str, list[str], dict[str, Any], str, list[str]]] = [
    ("bare", None, "", [], {}, "", []),
    ("bare", None, "nouveau", [], {}, "nouveau holds the GPUs", ["reboot-forbidden"]),
    ("bare", None, "nouveau", [], ALLOWED, "nouveau holds the GPUs", []),
    ("bare", None, "nouveau", [], {"nvidia_stack_reboot_ok": "yes"}, "nouveau holds the GPUs", []),
    ("bare", "575.1", "nvidia", [], {}, "driver 575.1 is loaded", ["reboot-forbidden"]),
    ("bare", "575.1", "nvidia", ["job"], ALLOWED, "driver 575.1 is loaded", ["gpus-busy"]),
    ("settled", DRIVER, "nvidia", [], {}, "", []),
    ("settled", DRIVER, "nvidia", ["job"], {}, "", []),
    ("settled", "575.1", "nvidia", [], {}, "driver 575.1 is loaded", ["reboot-forbidden"]),
    ("settled", "575.1", "nvidia", ["job"], ALLOWED, "driver 575.1 is loaded", ["reboot-busy"]),
    (
        "settled",
        "575.1",
        "nvidia",
        ["job"],
        ALLOWED | {"nvidia_stack_busy_ok": True},
        "driver 575.1 is loaded",
        [],
    ),
]


def test_a_reboot_is_foretold_and_refused_where_it_is_not_allowed() -> None:
    wrong = []
    for state, loaded, driver, busy, values, reason, refusals in REBOOTS:
        facts = with_driver({"bare": node, "settled": settled}[state](), loaded, driver, busy)
        plan = planned(facts, **values)
        line = next(line for line in plan["text"].splitlines() if line.startswith("reboot: "))
        said = reason in line if reason else line == "reboot: none is due"
        if (plan["reboot"], codes(plan)) != (reason, refusals) or not said:
            wrong.append((state, loaded, driver, values, plan["reboot"], plan["problems"], line))
    assert not wrong


def test_the_refusal_says_what_to_type() -> None:
    allow, by_hand = "nvidia_stack_reboot_ok=true", "ansible gpu01 -b -m ansible.builtin.reboot"
    blacklist = "echo blacklist nouveau > /etc/modprobe.d/blacklist-nouveau.conf; "
    busy = ALLOWED, ["pid 7"]
    #: The node, what its GPUs have, variables, processes, what is said and what is not.
    rows: list[tuple[dict[str, Any], str, dict[str, Any], list[str], list[str], list[str]]] = [
        (
            node(),
            "nouveau",
            {},
            [],
            [f"--limit gpu01 -e {allow}", f"{blacklist}update-initramfs -u; reboot"],
            [by_hand],
        ),
        (system("rocky", "9.6"), "nouveau", {}, [], [f"{blacklist}dracut --force; reboot"], [by_hand]),
        # A reboot by hand would load the same driver again.
        (
            node(),
            "nvidia",
            {},
            [],
            [f"--limit gpu01 -e {allow}", "loads 575.1 again"],
            [by_hand, "blacklist"],
        ),
        (settled(), "nvidia", {}, [], [by_hand, allow], ["blacklist"]),
        (settled(), "nvidia", *busy, ["only by a reboot", "1 process(es)", "pid 7"], ["would change", allow]),
        (node(), "nvidia", *busy, ["driver would change", "pid 7"], ["only by a reboot"]),
    ]
    wrong = []
    for facts, driver, values, processes, said, unsaid in rows:
        loaded = "575.1" if driver == "nvidia" else None
        (problem,) = planned(with_driver(facts, loaded, driver, processes), **values)["problems"]
        if not all(word in problem for word in said) or any(word in problem for word in unsaid):
            wrong.append((driver, values, problem))
    assert not wrong


def test_a_run_that_does_not_install_the_stack_needs_no_reboot() -> None:
    facts = with_driver(node(), None, "nouveau", [])
    plan = planned(facts, installs=False)
    assert codes(plan) == []
    assert "reboot: due" in plan["text"]
    tags = {
        (("all",), ()): True,
        (("provision",), ()): True,
        (("nvidia_stack", "harden"), ()): True,
        (("harden",), ()): False,
        (("all",), ("validate",)): True,
        (("all",), ("provision",)): False,
        (("all",), ("nvidia_stack",)): False,
    }
    assert {case: reaches("nvidia_stack", *case) for case in tags} == tags


REMEDIES = ["os_hardening_state: absent", "--skip-tags os_hardening"]


def test_a_run_that_hardens_a_system_without_controls_is_refused_before_it_begins() -> None:
    """The node, the run's tags (None: it has no such stage), variables, and the system that is refused."""
    old, without = system("debian", "11"), {"nvidia_stack_state": "absent"}
    rocky = system("rocky", "9.6")
    rows: list[tuple[dict[str, Any], tuple[tuple[str, ...], tuple[str, ...]] | None, dict[str, Any], str]]
    rows = [
        (old, (("harden",), ()), without, "debian-11"),
        (old, (("os_hardening", "tune"), ()), without, "debian-11"),
        (old, (("all",), ("os_hardening",)), without, ""),
        (old, (("all",), ("harden",)), without, ""),
        (old, (("provision", "firewall"), ()), without, ""),
        (old, (("all",), ()), {**without, "os_hardening_state": "absent"}, ""),
        (rocky, (("all",), ()), {}, ""),
        (rocky, (("all",), ("os_hardening",)), {}, ""),
        (rocky, (("all",), ()), {"os_hardening_state": "absent"}, ""),
        (node(), (("all",), ()), {}, ""),
        # No system that a stack is planned for: nothing else would refuse these.
        *(
            (system(*name.split("-")), (("all",), ()), {"nvidia_stack_state": "absent"}, name)
            for name in ("ubuntu-20.04", "debian-11", "linuxmint-21", "sles-15.6")
        ),
        (system("", ""), (("all",), ()), {"nvidia_stack_state": "absent"}, "unknown"),
        (system("debian", "11"), None, {"nvidia_stack_state": "absent"}, ""),
        (node(architecture="riscv64"), (("all",), ()), {"nvidia_stack_state": "absent"}, ""),
    ]
    wrong = []
    for facts, tags, values, refused in rows:
        hardens = tags is not None and reaches("os_hardening", *tags)
        plan = planned(facts, hardens=hardens, **values)
        found = [one for one in plan["problems"] if "os_hardening" in one]
        remedies = [f"this node's {refused};", *REMEDIES] if refused else []
        said = [word for one in found for word in remedies if word in one]
        warned = [line for line in plan["text"].splitlines() if "warning" in line and "os_hardening" in line]
        unproven = facts is rocky and hardens and not values
        if ("hardening-system" in codes(plan), said, len(warned)) != (bool(refused), remedies, unproven):
            wrong.append((tags, values, refused, plan["problems"], warned))
    assert not wrong


@each(
    ("debian-12", False),
    ("debian-13", False),
    ("ubuntu-22.04", True),
    ("ubuntu-24.04", True),
    ("ubuntu-26.04", False),
    ("rhel-9", True),
)
def test_a_stig_is_for_systems_that_have_one(name: str, measured: bool) -> None:
    wish: dict[str, Any] = {"nvidia_stack_state": "absent", "os_hardening_profile": "stig"}
    facts = system(*name.split("-"))
    plan = planned(facts, hardens=True, **wish)
    assert ("hardening-profile" in codes(plan)) != measured
    assert ("hardening: profile stig" in plan["text"]) == measured
    assert all(name in one and "ubuntu-24.04" in one for one in plan["problems"] if "os_hardening" in one)
    assert "hardening-profile" not in codes(planned(facts, hardens=True, **wish, os_hardening_state="absent"))


#: Options of sshd that the operator sets, Match blocks that he accepts, and by what an account then logs in.
LOGINS: list[tuple[dict[str, Any], list[str], str]] = [
    ({}, [], "by key only,"),
    ({"PasswordAuthentication": True, "PermitListen": [8080, "localhost:9090"]}, [], "by key only,"),
    ({"passwordauthentication": "yes", "AuthenticationMethods": "any"}, [], "by key or password,"),
    (
        {"AuthenticationMethods": "publickey,keyboard-interactive", "KbdInteractiveAuthentication": "yes"},
        [],
        "by key and keyboard-interactive,",
    ),
    (
        {"authenticationmethods": "publickey password", "PasswordAuthentication": True},
        [],
        "by key or password,",
    ),
    ({"AuthenticationMethods": "publickey,password"}, [], "by no method that is on,"),
    ({}, ["Group sftponly"], "Match Group sftponly, as ssh_hardening_accepted_matches allows"),
]


def test_the_line_on_ssh_names_the_methods_of_a_login() -> None:
    wrong = []
    for options, matches, words in LOGINS:
        plan = planned(node(), ssh_hardening_extra_options=options, ssh_hardening_accepted_matches=matches)
        (line,) = (line for line in plan["text"].splitlines() if line.startswith("SSH afterwards: "))
        if words not in line:
            wrong.append((options, matches, line))
    assert not wrong


#: Variables, and the line that the plan has for them.
LINES: list[tuple[dict[str, Any], str]] = [
    ({}, "SSH afterwards: by key only, from every address, because firewall_management_networks is not set"),
    (
        {"firewall_management_networks": ["192.0.2.0/24"], "ssh_hardening_allow_groups": ["ops"]},
        "SSH afterwards: by key only, from 192.0.2.0/24, the fleet's nodes, as group ops",
    ),
    (
        {
            "firewall_management_networks": [],
            "firewall_peer_addresses": [],
            "firewall_trusted_interfaces": ["wg0"],
            "ssh_hardening_ports": [2222],
        },
        "SSH afterwards: by key only, from wg0, port 2222",
    ),
    (
        {"firewall_management_networks": ["192.0.2.0/24", "::/0"]},
        "SSH afterwards: by key only, from every address, because firewall_management_networks allows it",
    ),
    (
        {"firewall_state": "absent", "ssh_hardening_state": "absent"},
        "SSH afterwards: from every address, because firewall_state is absent",
    ),
    ({"container_engines_install": ["docker.io", "podman"]}, "container engines: docker.io, podman"),
    (
        {"profiling_tools_install": True},
        "profilers: cuda-nsight-systems-13-0, cuda-nsight-compute-13-0, linux-perf, atop, sysstat",
    ),
    (
        {"monitoring_enabled": True, "monitoring_scrapers": ["192.0.2.9"]},
        "firewall: opens node_exporter from 192.0.2.9",
    ),
    ({"monitoring_enabled": True}, "monitoring: prometheus-node-exporter, every 300 s"),
    (
        {"firewall_rules": [{"name": "web", "sources": ["192.0.2.0/24"], "ports": ["443"]}]},
        "firewall: opens web (tcp 443) from 192.0.2.0/24",
    ),
    (
        {"admin_accounts_users": [{"name": "bob", "state": "absent"}]},
        "accounts: revoked: bob",
    ),
    (
        {"firewall_management_networks": ["10.0.0.0/33"]},
        "SSH afterwards: by key only, from addresses that are not known, because "
        "firewall_management_networks is wrong",
    ),
    ({"gpu_settings_clocks": {"graphics": 1410}}, "GPU settings: clocks graphics: 1410"),
    ({"gpu_settings_power_limit_w": 650}, "GPU settings: clocks max, power limit 650 W"),
    (
        {"gpu_validation_plan": "burn-in", "gpu_validation_hours": 24, "gpu_validation_timeout_s": 200_000},
        "validation: plan burn-in (24 h, at most 1.73 kWh by the GPUs), requires health, "
        "gpu_matmul, gpu_transfer",
    ),
    ({"group_names": ["gpu_nodes", "profile_training"]}, "profile: training"),
    (
        {"nvidia_stack_reboot_ok": True},
        "reboot: due, because nouveau holds the GPUs; allowed, at most 30 min",
    ),
    ({}, "reboot: due, because nouveau holds the GPUs; not allowed (nvidia_stack_reboot_ok)"),
]


def test_the_plan_says_what_the_run_does_and_needs() -> None:
    facts = with_driver(node(), None, "nouveau", [])
    wrong = []
    for values, line in LINES:
        lines = planned(facts, **values)["text"].splitlines()
        if lines.count(line) != 1:
            wrong.append((line, lines))
    assert not wrong


def test_nodes_are_shown_together_only_where_all_is_alike() -> None:
    training: dict[str, Any] = {"group_names": ["profile_training"], "gpu_settings_clocks": "max"}
    development: dict[str, Any] = {"group_names": ["profile_development"]}
    plans = {
        "gpu01": planned(node(), **training),
        "gpu02": planned(node(), **development),
        "gpu03": planned(node(), **training),
        # Alike in all lines, and not in what is set.
        "gpu04": planned(node(), **training, os_tuning_nofile=5000),
    }
    texts, parts = ({name: plan[key] for name, plan in plans.items()} for key in ("text", "roles"))
    shown = grouped(texts, parts)
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["gpu01, gpu03, gpu04:", "gpu02:"]
    assert "\n  other settings of os_tuning on gpu04\n" in shown
    assert shown.count("other settings") == 1


def test_a_node_s_own_name_makes_its_settings_no_other_ones() -> None:
    """What is set on the nodes, by the name of each, and whose settings are said to differ."""
    rows: list[tuple[dict[str, str], str]] = [
        ({"gpu1": '"gpu1"', "gpu2": '"gpu2"', "gpu10": '"gpu10"'}, ""),
        ({"gpu1": "gpu1 a", "gpu2": "gpu2 a", "gpu3": "gpu3 b"}, "gpu3"),
        # A name that is a part of another, and a list that is the same on all.
        ({"gpu1": "gpu1, gpu2", "gpu2": "gpu1, gpu2"}, ""),
        ({"gpu1": "gpu10", "gpu2": "gpu20", "gpu3": "gpu20"}, "gpu1"),
        ({"gpu1": "x-gpu1", "gpu2": "x-gpu2", "gpu3": "x-gpu2"}, "gpu1"),
    ]
    wrong = []
    for texts, other in rows:
        found = [*unlike({name: {"pull": text} for name, text in texts.items()})]
        if found != ([f"other settings of pull on {other}"] if other else []):
            wrong.append((texts, found))
    assert not wrong
    signer = {
        "name": "a",
        "key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
    }
    pull: dict[str, Any] = {
        "pull_enabled": True,
        "pull_url": "https://git.example.org/fleet.git",
        "pull_signers": [signer],
        "pull_python": "/opt/ansible/bin/python3",
        "pull_inventory": "inventory",
    }
    plans = {name: planned(node(), **pull, inventory_hostname=name) for name in ("gpu01", "gpu02")}
    texts, parts = ({name: plan[key] for name, plan in plans.items()} for key in ("text", "roles"))
    assert parts["gpu01"]["pull"] != parts["gpu02"]["pull"]
    assert "other settings" not in grouped(texts, parts)


def test_a_reboot_that_waits_for_the_counters_is_said() -> None:
    facts = with_driver(settled(), DRIVER, "nvidia", [])
    facts["nvidia"] |= {"counters_restricted": True}
    lines = {
        counters: planned(facts, profiling_tools_install=True, profiling_tools_gpu_counters=counters)["text"]
        for counters in (True, False)
    }
    assert {counters: "counters changes at the next" in text for counters, text in lines.items()} == {
        True: True,
        False: False,
    }


def test_what_forbids_an_installation_is_a_warning_only_where_the_driver_stays() -> None:
    """A roll-out installs, too, although it asks for no reboot before it begins."""
    full = node(disks=[{"path": "/", "total_bytes": 1 << 40, "free_bytes": 1 << 30}])
    wrong = []
    for known, refused in (
        ({"installs": True}, True),
        ({"installs": False}, True),
        ({"leaves_driver": True}, False),
    ):
        plan = preflight_plan({"ansible_facts": {"temper": full}}, {}, KNOWN | {"installs": False} | known)
        warned = any("leaves the driver as it is" in warning for warning in plan["warnings"])
        if (("disk-full" in codes(plan)), warned) != (refused, not refused):
            wrong.append((known, codes(plan), plan["warnings"]))
    assert not wrong
