"""The part of an inventory that a slice gets says of its nodes what the whole one says."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from temper.plan.inventory import Inventory, InventoryError, addresses, from_listing, groups_of, read, values
from tests.unit.ansible_commands import ansible

pytestmark = [pytest.mark.component, pytest.mark.usefixtures("forked_ansible")]

INVENTORY = """
all:
  vars: {site: north}
  children:
    gpu_nodes:
      vars: {os_tuning_nofile: 1024, secret: "{{ site }}-x"}
      hosts:
        gpu01: {ansible_host: 192.0.2.1}
        gpu02: {}
      children:
        big:
          vars: {os_tuning_nofile: 4096}
          hosts: {gpu03: {ansible_host: 192.0.2.3}}
    rack_a:
      hosts: {gpu01: {}, gpu03: {}}
      vars: {rack: a}
    login:
      hosts: {login01: {}}
"""


def listing(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ansible("inventory", "-i", str(path), "--list").stdout)
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "inventory.yml"
    path.write_text(INVENTORY)
    return path


def test_a_slice_has_the_groups_and_variables_of_its_nodes_and_no_others(
    source: Path, tmp_path: Path
) -> None:
    whole = read([str(source)])
    assert sorted(whole.nodes) == ["gpu01", "gpu02", "gpu03"]
    part = tmp_path / "slice.json"
    part.write_text(json.dumps(whole.slice(["gpu01", "gpu03"])))
    before, after = listing(source), listing(part)
    for node in ("gpu01", "gpu03"):
        assert after["_meta"]["hostvars"][node] == before["_meta"]["hostvars"][node]
    assert set(after["_meta"]["hostvars"]) == {"gpu01", "gpu03"}
    assert after["rack_a"]["hosts"] == ["gpu01", "gpu03"]
    assert after["big"]["hosts"] == ["gpu03"]
    assert "login" not in after
    assert set(after["gpu_nodes"]["children"]) == {"big"}
    # Every slice has the addresses of all.
    assert sorted(whole.addresses()) == [("gpu01", "192.0.2.1"), ("gpu02", ""), ("gpu03", "192.0.2.3")]


def test_what_the_operator_has_set_for_ansible_changes_no_listing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = read([str(source)])
    for name in ("ANSIBLE_VERBOSITY", "ANSIBLE_DEBUG", "ANSIBLE_INVENTORY_EXPORT"):
        monkeypatch.setenv(name, "1")
    assert read([str(source)]) == known
    assert groups_of([str(source)]).keys() == known.variables.keys()


def test_a_limit_chooses_nodes(source: Path) -> None:
    assert read([str(source)], "rack_a").nodes == ["gpu01", "gpu03"]
    with pytest.raises(InventoryError, match="--limit login matches no node of the group gpu_nodes"):
        read([str(source)], "login")
    for limit in ("@/nowhere", "~gpu(", "gpu_nodes[9]"):
        with pytest.raises(InventoryError, match=f"^--limit {re.escape(limit)}: "):
            read([str(source)], limit)
    with pytest.raises(InventoryError, match="absent"):
        read([str(source.with_name("absent"))], "gpu_nodes[9]")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.yml", None, "found no file or folder .*absent.yml"),
        ("empty.yml", "---\n", "empty.yml is empty"),
        ("hosts.yml", "gpu_nodes:\n  hosts\n    gpu01:\n", r"hosts.yml:3\)$"),
        ("hosts.yml", "gpu_nodes:\n  hosts:\n    - gpu01\n", r"gpu_nodes, hosts: .*list .*hosts.yml:3\)$"),
        ("hosts.yml", "all: {children: {a: {children: [b]}}}\n", r"a, children: .*hosts.yml:1\)$"),
        ("group_vars/gpu_nodes.yml", "a: 1\na: 2\n", r"duplicate .*group_vars/gpu_nodes.yml:2\)$"),
        ("group_vars/all.yml", f"$ANSIBLE_VAULT;1.1;AES256\n{'61' * 40}\n", "all.yml.*VAULT_PASSWORD_FILE"),
        ("hosts", "#!/bin/sh\necho the lab is off >&2\nexit 1\n", "ended with status 1: the lab is off"),
    ],
)
def test_an_inventory_that_is_none_is_one_sentence(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    source = tmp_path / "inventory.yml"
    source.write_text(INVENTORY)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if text is not None:
        path.write_text(text)
        path.chmod(0o755 if name == "hosts" else 0o644)
    with pytest.raises(InventoryError, match=said) as error:
        read([str(source if "/" in name else path)])
    assert "\n" not in str(error.value)


TEMPLATES = """
all:
  vars: {net: 192.0.2, gateway: "{{ hostvars['login01'].ansible_host }}"}
  children:
    gpu_nodes:
      vars:
        ansible_host: "{{ inventory_hostname }}.{{ domain }}"
        peers: "{{ groups['gpu_nodes'] | join(' ') }} {{ groups['login'] | join(' ') }}"
        marked: !unsafe "{{ net }}"
      hosts:
        gpu02: {}
        gpu01: {ansible_host: "{{ net }}.{{ 20 + 1 }}"}
        gpu03: {domain: south.example.org}
        gpu04: {ansible_host: !unsafe 192.0.2.7}
    login:
      hosts: {login01: {ansible_host: "{{ net }}.9"}}
"""
ASK = """
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - ansible.builtin.lineinfile:
        line: "{{ [ansible_host, peers, gateway, marked, group_names, groups]|to_json }}"
        path: "FOLDER/{{ inventory_hostname }}"
        create: true
      delegate_to: localhost
"""


def asked(inventory: Path, folder: Path, *options: str) -> dict[str, Any]:
    """What each node's values are in a run."""
    folder.mkdir()
    play = folder.with_suffix(".yml")
    play.write_text(ASK.replace("FOLDER", str(folder)))
    done = ansible("playbook", "-i", str(inventory), str(play), "-e", "domain=example.org", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


def test_templates_mean_in_a_slice_what_they_mean_in_one_process(tmp_path: Path) -> None:
    """The addresses of nodes, too, as what they are connected to by."""
    source, part = tmp_path / "inventory.yml", tmp_path / "slice.json"
    source.write_text(TEMPLATES)
    known = read([str(source)])
    assert known.spans(known.nodes, {})
    part.write_text(json.dumps(known.whole()))
    whole = asked(source, tmp_path / "whole")
    assert asked(part, tmp_path / "slice", "--limit", "gpu01,gpu03") == {
        node: whole[node] for node in ("gpu01", "gpu03")
    }
    # What -e says counts more than what a node says.
    variables = {"domain": "example.org", "ansible_connection": "ssh"}
    found = dict(addresses(known, [str(source)], variables))
    assert found == {node: values[0] for node, values in whole.items()}
    assert found == {
        "gpu01": "192.0.2.21",
        "gpu02": "gpu02.example.org",
        "gpu03": "gpu03.example.org",
        "gpu04": "192.0.2.7",
    }


def test_variables_that_ansible_cannot_resolve_are_one_sentence(tmp_path: Path) -> None:
    # Marked as no template, it is for Ansible to read all the same.
    known, absent = one(ansible_host={"__ansible_unsafe": "192.0.2.7"}), str(tmp_path / "absent.yml")
    with pytest.raises(InventoryError, match=r"expected variables that Ansible can resolve .*absent"):
        addresses(known, [absent], {})


def test_variables_of_a_node_are_those_that_ansible_resolves(tmp_path: Path) -> None:
    source = tmp_path / "hosts.yml"
    source.write_text(
        "gpu_nodes:\n  hosts:\n    gpu01:\n      folder: '{{ site }}/reports'\n      plain: 5\n    gpu02:\n"
    )
    known, names = read([str(source)]), ("folder", "plain", "nowhere")
    found = values(known, [str(source)], {"site": "/north"}, "gpu01", names)
    assert found == {"folder": "/north/reports", "plain": 5}
    assert values(known, [str(source)], {"plain": 6}, "gpu02", names) == {"plain": 6}


@pytest.mark.parametrize(
    ("members", "value", "refused"),
    [
        (["gpu02", "gpu03"], "{{ groups.gpu_nodes }}", True),
        (["gpu01"], "{{ groups.gpu_nodes }}", False),
        (["gpu02", "gpu03"], "plain", False),
    ],
)
def test_a_node_with_the_name_of_a_group_of_others_is_refused_where_a_slice_would_have_those(
    members: list[str], value: str, refused: bool
) -> None:
    nodes = ["gpu01", "gpu02", "gpu03"]
    known = from_listing(
        {
            "gpu_nodes": {"hosts": nodes},
            "gpu01": {"hosts": members},
            "_meta": {"hostvars": {"gpu01": {"peers": value}}},
        }
    )
    with pytest.raises(InventoryError, match="gpu01") if refused else contextlib.nullcontext():
        known.require_same(nodes, {}, helpers=False)


def one(**variables: Any) -> Inventory:
    return from_listing({"gpu_nodes": {"hosts": ["gpu01"]}, "_meta": {"hostvars": {"gpu01": variables}}})


@pytest.mark.parametrize(
    ("value", "others"),
    [
        ("{{ site }}-x", False),
        ("groups and hostvars", False),
        ({"__ansible_unsafe": "{{ groups }}"}, False),
        ([{"a": "{{ groups.login | first }}"}], True),
        ("{% for one in query('inventory_hostnames', 'all') %}{% endfor %}", True),
        ("{{ group_names }}", False),
    ],
)
def test_a_slice_gets_other_hosts_only_where_a_template_names_them(value: Any, others: bool) -> None:
    assert one(value=value).spans(["gpu01"], {}) is others
    assert one().spans(["gpu01"], {"value": value}) is others


def test_a_slice_gets_other_hosts_where_the_environment_has_a_jump_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANSIBLE_SSH_COMMON_ARGS", "-J gpu01")
    assert one().spans(["gpu01"], {})


@pytest.mark.parametrize(("option", "others"), [("ProxyJump gpu09", True), ("User ops", False)])
def test_a_slice_gets_other_hosts_where_sshs_files_may_go_through_them(
    tmp_path: Path, option: str, others: bool
) -> None:
    """A slice of the jump host alone would close it to nodes of other slices."""
    (tmp_path / "config").write_text(f"Host gpu*\n {option}\n")
    known = one(ansible_ssh_common_args=f"-F {tmp_path}/config")
    assert known.spans(["gpu01"], {"ansible_ssh_args": f"-F {tmp_path}/config"}) is others


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ("-J ops@gpu01:22", True),
        ("-o ProxyCommand='ssh -W %h:%p 192.0.2.1'", True),
        ("-J ops@[fd00::9]:22,bastion", True),
        ("-o ProxyJump=fd00::9", True),
        ("-J fd00::8", False),
        ("-J bastion", False),
        ("-i gpu02", False),
    ],
)
def test_a_slice_gets_the_nodes_that_are_reached_through_its_own(arguments: str, *, others: bool) -> None:
    known = from_listing(
        {
            "gpu_nodes": {"hosts": ["gpu01", "gpu02", "gpu09"]},
            "_meta": {
                "hostvars": {
                    "gpu01": {"ansible_host": "192.0.2.1"},
                    "gpu09": {"ansible_host": "fd00::9"},
                    "gpu02": {"ansible_ssh_common_args": arguments},
                }
            },
        }
    )
    assert known.spans(known.nodes, {}) is others


@pytest.mark.parametrize(
    ("value", "helpers"),
    [
        ("{{ inventory_dir }}/keys/fleet", False),
        ({"a": ["{{ ansible_play_hosts_all | length }}"]}, False),
        ("{{ hostvars.gpu02.ansible_facts.temper }}", False),
        ("{{ lookup('env', 'USER') }}", True),
        ("{{ query( 'ansible.builtin.password', '/dev/null') }}", True),
    ],
)
def test_what_a_slice_cannot_know_is_refused_in_one_sentence(value: Any, helpers: bool) -> None:
    with pytest.raises(InventoryError, match=r"gpu01: ansible_user is a template of .*\.$"):
        one(ansible_user=value).require_same(["gpu01"], {}, helpers=helpers)
    with pytest.raises(InventoryError, match="-e: ansible_user is a template of"):
        one().require_same(["gpu01"], {"ansible_user": value}, helpers=helpers)
    # On this machine the environment is the one that the operator has.
    if helpers:
        one(ansible_user=value).require_same(["gpu01"], {}, helpers=False)
