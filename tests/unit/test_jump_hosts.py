"""Which nodes are jump hosts, in which order they are hardened, and what their plans keep."""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from plugins.action import commit_confirm, nodes_behind
from pull.playbooks import FIXED
from temper.plan.jump_hosts import JumpHost, SshNode, jump_hosts, problems
from temper.plan.preflight import preflight_plan
from temper.plan.role_variables import typed_variables
from temper.plan.ssh_client import Look
from temper.plan.ssh_ways import Hop, Way
from tests.unit.ansible_commands import ansible
from tests.unit.each import each
from tests.unit.planning_nodes import DEFAULTS, node

ADDRESSES = {"bastion.example": ["192.0.2.1"], "gpu3": ["192.0.2.3"]}
BEHIND = JumpHost(("gpu2",), 1, (22,), ("ops",))


def resolve(names: Collection[str]) -> Mapping[str, Collection[str]]:
    return {name: ADDRESSES.get(name, [name] if name[0].isdigit() else []) for name in names}


def fleet(ways: dict[str, tuple[Hop, ...]], **ports: int) -> dict[str, SshNode]:
    """Nodes gpu1 .. gpu9 at 192.0.2.1 and so on, gpu3 by its name, with these ways."""
    names = [f"gpu{number}" for number in range(1, 10)]
    return {
        name: SshNode(
            frozenset({name} if name == "gpu3" else {name, f"192.0.2.{name[-1]}"}),
            Way(f"192.0.2.{name[-1]}", ports.get(name, 22), ways.get(name, ())),
        )
        for name in names
    }


def ssh(name: str, port: int = 22, user: str = "ops") -> Hop:
    return Hop((name,), port, user, forwards=True)


@each(
    ("gpu1", "gpu1"),
    ("192.0.2.1", "gpu1"),
    ("GPU1", "gpu1"),
    ("bastion.example", "gpu1"),
    ("192.0.2.3", "gpu3"),
    ("elsewhere.example", None),
    ("203.0.113.1", None),
    ("gpu2", None),
)
def test_a_jump_host_is_a_node_by_name_or_address(name: str, jump: str | None) -> None:
    """The last one is the node itself."""
    found = jump_hosts(fleet({"gpu2": (ssh(name),)}), resolve)
    assert found == ({jump: BEHIND} if jump else {})


def test_a_proxy_of_another_kind_needs_no_forwarding_of_sshd() -> None:
    found = jump_hosts(fleet({"gpu2": (Hop(("nc", "gpu1", "3128", "192.0.2.2")),)}), resolve)
    assert found == {"gpu1": JumpHost(("gpu2",), 1)}
    assert not found["gpu1"].forwards


def test_nodes_that_share_an_address_are_told_apart_by_their_ports() -> None:
    nodes = fleet({"gpu2": (ssh("203.0.113.1", 2204),)}, gpu4=2204, gpu5=2205)
    for name in ("gpu4", "gpu5"):
        nodes[name] = SshNode(frozenset({name, "203.0.113.1"}), nodes[name].way)
    assert list(jump_hosts(nodes, resolve)) == ["gpu4"]


def test_machine_whose_address_nodes_share_is_none_of_them() -> None:
    nat = "nat.example"
    nodes = {
        f"gpu{port}": SshNode(frozenset({f"gpu{port}", nat}), Way(nat, port, (ssh(nat),)))
        for port in range(2000, 2010)
    }
    assert jump_hosts(nodes, resolve) == {}


def test_more_nodes_one_behind_the_other_than_calls_may_be() -> None:
    names = [f"gpu{number}" for number in range(sys.getrecursionlimit() + 1)]
    hops = ((), *((ssh(name),) for name in names))
    nodes = {
        name: SshNode(frozenset({name}), Way(name, 22, hop)) for name, hop in zip(names, hops, strict=False)
    }
    assert {one.level for one in jump_hosts(nodes, resolve).values()} == {1, 2, 3}


@each(
        ({"gpu2": ("gpu1",), "gpu4": ("gpu1",)}, {"gpu1": 1}),
        ({"gpu2": ("gpu1",), "gpu4": ("gpu1", "gpu2")}, {"gpu1": 2, "gpu2": 1}),
        ({"gpu2": ("gpu1",), "gpu1": ("gpu2",)}, {"gpu1": 3, "gpu2": 3}),
        ({f"gpu{number}": (f"gpu{number - 1}",) for number in range(2, 7)},
         {"gpu1": 3, "gpu2": 3, "gpu3": 3, "gpu4": 2, "gpu5": 1}),
    )  # fmt: skip
def test_order(ways: dict[str, tuple[str, ...]], levels: dict[str, int]) -> None:
    """One behind the other, in a circle, and deeper than there are plays."""
    hops = {name: tuple(map(ssh, through)) for name, through in ways.items()}
    assert {name: one.level for name, one in jump_hosts(fleet(hops), resolve).items()} == levels


def test_connection_of_another_kind_has_no_way() -> None:
    nodes = {"gpu1": SshNode(frozenset({"gpu1"}), None), **fleet({"gpu2": (ssh("gpu1"),)})}
    nodes["gpu1"] = SshNode(frozenset({"gpu1"}), None)
    assert list(jump_hosts(nodes, resolve)) == ["gpu1"]


def test_sample_spans_the_nodes_behind() -> None:
    assert len(JumpHost(tuple(f"gpu{number:03}" for number in range(8)), 1).sample) == 8
    many = JumpHost(tuple(f"gpu{number:03}" for number in range(800)), 1).sample
    assert [name[-3:] for name in many] == ["000", "100", "200", "300", "400", "500", "600", "700"]


@each(
    ({}, []),
    ({"ssh_hardening_tcp_forwarding": "local"}, []),
    ({"ssh_hardening_tcp_forwarding": "no"}, ["ssh_hardening_tcp_forwarding"]),
    ({"ssh_hardening_tcp_forwarding": "remote"}, ["ssh_hardening_tcp_forwarding"]),
    ({"ssh_hardening_extra_options": {"allowtcpforwarding": False}}, ["AllowTcpForwarding"]),
    ({"ssh_hardening_extra_options": {"AllowTcpForwarding": "local"}}, []),
    ({"ssh_hardening_extra_options": {"DisableForwarding": True}}, ["DisableForwarding"]),
    ({"ssh_hardening_extra_options": {"DisableForwarding": ["yes"]}}, ["DisableForwarding"]),
    ({"ssh_hardening_extra_options": {"AllowTcpForwarding": ["no"]}}, ["AllowTcpForwarding"]),
    ({"ssh_hardening_ports": [2222]}, ["ssh_hardening_ports"]),
    ({"ssh_hardening_ports": [22, 2222]}, []),
    ({"ssh_hardening_allow_users": ["alice"]}, ["ssh_hardening_allow_users"]),
    ({"ssh_hardening_allow_users": ["alice", "op*@192.0.2.*"]}, []),
    ({"ssh_hardening_tcp_forwarding": "no", "ssh_hardening_state": "absent"}, []),
)
def test_what_would_cut_others_off_is_refused_by_its_name(given: dict[str, Any], named: list[str]) -> None:
    wish = typed_variables(DEFAULTS | given).ssh_hardening
    found = list(problems(BEHIND, wish, given))
    assert [name for name, sentence in zip(named, found, strict=True) if name in sentence] == named
    assert all("gpu2" in sentence for sentence in found)
    assert not list(problems(JumpHost(("gpu2",), 1), wish, given))


def plan(jumps: dict[str, Any], **given: Any) -> dict[str, Any]:
    own = {
        "firewall_ssh_ports": [22],
        "ssh_hardening_penalty_exempt_networks": [],
        "inventory_hostname": "gpu1",
    }
    known = {"address": "192.0.2.1", "user": "ops", "today": "2026-11-26", "jump_hosts": jumps}
    return preflight_plan({"ansible_facts": {"temper": node()}}, own | given, known)


def forwarding(made: dict[str, Any]) -> tuple[str, str]:
    settings = {one["key"]: one for one in json.loads(made["roles"]["ssh_hardening"])["settings"]}
    one = settings["AllowTcpForwarding"]
    assert settings["AllowStreamLocalForwarding"]["wanted"]["value"] == "no"
    return one["wanted"]["value"], one["why"]


def test_a_jump_hosts_plan_forwards_and_says_to_whom() -> None:
    made = plan({"gpu1": {"behind": ["gpu2"], "level": 1, "ports": [22], "users": ["ops"]}})
    assert forwarding(made) == ("local", "It is the way to gpu2")
    assert "jump host of gpu2" in made["text"]
    assert not made["problems"]


def test_a_jump_host_lets_one_source_open_connections_for_all_behind() -> None:
    def limits(jumps: dict[str, Any], **given: Any) -> tuple[object, ...]:
        parts = plan(jumps, **given)["roles"]
        settings = [
            one for role in ("firewall", "ssh_hardening") for one in json.loads(parts[role])["settings"]
        ]
        found = {one["key"]: one["wanted"] for one in settings}
        return found["ssh_new_per_minute"], found["ssh_connections"], found["MaxStartups"]["value"]

    jumps = {"gpu1": {"behind": [f"n{number}" for number in range(100)], "level": 1}}
    assert limits({}) == (120, 64, "30:30:100")
    assert limits(jumps) == (720, 264, "130:30:200")
    assert limits(jumps, firewall_ssh_new_per_minute=0)[0] == 0


@each(
    {},
    {"gpu1": {"behind": ["gpu2"], "level": 1}},
    {"gpu9": {"behind": ["gpu2"], "level": 1, "ports": [22]}},
)
def test_other_plans_forward_nothing(jumps: dict[str, Any]) -> None:
    assert forwarding(plan(jumps))[0] == "no"


def test_a_jump_host_that_is_told_not_to_forward_is_refused() -> None:
    jumps = {"gpu1": {"behind": ["gpu2"], "level": 1, "ports": [22], "users": ["ops"]}}
    (problem,) = plan(jumps, ssh_hardening_tcp_forwarding="no")["problems"]
    assert "ssh_hardening_tcp_forwarding" in problem
    assert "gpu2" in problem


class Confirmation:
    """The action on a jump host, with ways that are as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.executed: list[str] = []
        self.looks: dict[str, Look] = {}
        self.lets_in = True
        monkeypatch.setattr("plugins.action.commit_confirm.ActionBase.run", lambda *_: {})
        monkeypatch.setattr(commit_confirm, "look_at", self.look_at)
        monkeypatch.setattr(nodes_behind, "look_at", self.look_at)
        monkeypatch.setattr(commit_confirm, "look_on_the_way", self.look_on_the_way)

    def look_at(self, names: Collection[str], *_: object) -> dict[str, Look]:
        return {name: self.looks[name] for name in names}

    def look_on_the_way(self, name: str, jumps: Mapping[str, JumpHost], *_: object) -> tuple[list[str], Look]:
        return [*jumps], Look(reached=False, forbidden=name == "gpu2")

    def low_level(self, _command: str) -> None:
        if not self.lets_in:
            raise AnsibleConnectionFailure("closed")

    def execute(self, module: str, _arguments: object, task_vars: object) -> dict[str, Any]:
        self.low_level("")
        self.executed.append(module)
        return {"changed": True, "add_host": {"host_name": "evil"}}

    def run(self, name: str = "gpu1", reached: list[str] | None = None) -> dict[str, Any]:
        action = object.__new__(commit_confirm.ActionModule)
        action._task = SimpleNamespace(args={"name": "ssh"})
        action._templar = None
        action._execute_module = self.execute
        action._low_level_execute_command = self.low_level
        ways = {"gpu1": {"behind": ["gpu2", "gpu3"], "level": 1, "ports": [22], "users": ["ops"]}}
        variables = {"inventory_hostname": name, "__preflight_ways": {"jump_hosts": ways}}
        if reached is not None:
            variables["__nodes_behind"] = {"reached": reached}
        result: dict[str, Any] = action.run(task_vars=variables)
        return result


@pytest.fixture
def confirmation(monkeypatch: pytest.MonkeyPatch) -> Confirmation:
    return Confirmation(monkeypatch)


REACHED, AWAY = Look(reached=True), Look(reached=False, said="timed out")
CLOSED = Look(reached=False, forbidden=True, said="administratively prohibited")


@pytest.mark.parametrize(
    ("now", "before", "cause"),
    [
        (REACHED, ["gpu2", "gpu3"], None),
        (AWAY, ["gpu3"], None),  # nor was it before
        (AWAY, ["gpu2", "gpu3"], "cut-off"),
        (CLOSED, ["gpu2", "gpu3"], "forwarding-forbidden"),
        (AWAY, None, None),  # in a playbook that did not look before
        (CLOSED, None, "forwarding-forbidden"),
    ],
)
def test_a_change_is_confirmed_once_those_behind_are_reached(
    confirmation: Confirmation, now: Look, before: list[str] | None, cause: str | None
) -> None:
    confirmation.looks = {"gpu2": now, "gpu3": REACHED}
    result = confirmation.run(reached=before)
    assert result.get("cause") == cause
    assert bool(result.get("failed")) == bool(cause)
    assert confirmation.executed == ([] if cause else ["commit_confirm"])
    assert result.get("nodes", ["gpu2"]) == ["gpu2"]
    assert "add_host" not in result


def test_a_jump_host_that_lets_nobody_in_is_unreachable_itself(confirmation: Confirmation) -> None:
    confirmation.lets_in = False
    with pytest.raises(AnsibleConnectionFailure):
        confirmation.run(reached=["gpu2"])


def test_a_node_behind_learns_who_keeps_it_from_being_reached(confirmation: Confirmation) -> None:
    confirmation.lets_in = False
    assert confirmation.run("gpu2")["cause"] == "forwarding-forbidden"
    with pytest.raises(AnsibleConnectionFailure):
        confirmation.run("gpu7")


def test_a_look_before_the_change_names_what_it_cannot_prove(confirmation: Confirmation) -> None:
    confirmation.looks = {"gpu2": AWAY, **{f"n{number}": REACHED for number in range(15)}}
    action = object.__new__(nodes_behind.ActionModule)
    action._templar = None
    ways = {"gpu1": {"behind": [*confirmation.looks], "level": 1}}
    found = action.run(task_vars={"inventory_hostname": "gpu1", "__preflight_ways": {"jump_hosts": ways}})
    assert found["reached"] == ["n1", "n3", "n5", "n7", "n9", "n11", "n13"]
    away, some = found["warnings"]
    assert "gpu2" in away
    assert "16" in some


INVENTORY = {
    "gpu01": {"ansible_host": "192.0.2.1"},
    "gpu02": {"ansible_ssh_common_args": "-J ops@{{ hostvars['gpu01'].ansible_host }}"},
    "gpu03": {"ansible_ssh_extra_args": "-F {folder}/config", "ansible_host": "third"},
    "gpu04": {"ansible_ssh_common_args": "-o ProxyCommand='ssh -W %h:%p -l ops -J ops@gpu01 gpu03'"},
    "gpu05": {"ansible_connection": "local", "ansible_ssh_common_args": "-J gpu04"},
    "gpu06": {"ansible_ssh_common_args": "-J {{ missing }}"},
    "gpu07": {"ansible_ssh_common_args": "-J bastion.invalid"},
}
FOUND = {
    "gpu01": {
        "behind": ["gpu02", "gpu03", "gpu04"],
        "level": 2,
        "ports": [22, 2222],
        "users": ["jump", "ops"],
    },
    "gpu03": {"behind": ["gpu04"], "level": 1, "ports": [22], "users": ["ops"]},
}


@pytest.mark.component
@pytest.mark.parametrize("pulls", [False, True])
def test_ways_of_an_inventory_with_templates_and_files(tmp_path: Path, pulls: bool) -> None:
    """Of all nodes, although the run is for one; ssh goes by its own files too."""
    (tmp_path / "config").write_text(
        "Host third\n HostName 192.0.2.3\n ProxyJump way\n"
        "Host way\n HostName 192.0.2.1\n User jump\n Port 2222\n"
    )
    hosts = json.loads(json.dumps(INVENTORY).replace("{folder}", str(tmp_path)))
    if pulls:
        del hosts["gpu05"]  # there, the inventory's local connections are not told from its own
    (tmp_path / "hosts.json").write_text(
        json.dumps({"gpu_nodes": {"hosts": hosts, "vars": {"ansible_user": "ops"}}})
    )
    write = {"content": "{{ ways.jump_hosts }}", "dest": f"{tmp_path}/found.json"}
    once = {"run_once": True}
    tasks = [
        {"fleet_ways": {"nodes": []}, "register": "ways", **once},
        {
            "ansible.builtin.copy": write,
            "delegate_to": "localhost",
            "vars": {"ansible_connection": "local"},
            **once,
        },
    ]
    (tmp_path / "play.yml").write_text(
        json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": tasks}])
    )
    words = ["-i", str(tmp_path / "hosts.json"), "--limit=gpu02", str(tmp_path / "play.yml")]
    done = ansible("playbook", *words, *(["--extra-vars", json.dumps(FIXED)] if pulls else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "found.json").read_text()) == FOUND
