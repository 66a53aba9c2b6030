"""Inventories as operators write them: every form, value and way in that Ansible knows leads to plans.

One lab of two bare nodes for the whole file. Each test writes an inventory and has preflight or a check of
hardening read the nodes through it; none leaves a node changed.
"""

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.fleet import BIN, Fleet, Run, on_node
from tests.lab.settings import ADMINISTRATOR, CHECKOUT, Lab

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LAB = Lab(name="inventory")
FLEET = Fleet(LAB)
FIRST, SECOND = NODES = LAB.nodes(2)
HOSTS = {node.name: {"ansible_host": node.address} for node in NODES}
PORT = 2222
SITE, PASSWORD = "site", "Correct-Horse-9"


def shared(**changes: Any) -> dict[str, Any]:
    """The variables of the lab's own inventory; None takes one away."""
    listed = subprocess.run(
        [CHECKOUT / "inventory/lab/hosts.py"], env=FLEET.environment, capture_output=True, check=True
    )
    values = json.loads(listed.stdout)["gpu_nodes"]["vars"]
    values |= yaml.safe_load((CHECKOUT / "inventory/lab/group_vars/gpu_nodes.yml").read_text())
    return {name: value for name, value in (values | changes).items() if value is not None}


def write(folder: Path, hosts: object, values: dict[str, Any] | None = None, name: str = "hosts.yml") -> Path:
    """An inventory in a folder: its hosts, as text or as YAML, and what all nodes share."""
    (folder / "group_vars").mkdir(parents=True, exist_ok=True)
    (folder / "group_vars/gpu_nodes.yml").write_text(yaml.safe_dump(shared() if values is None else values))
    text = hosts if isinstance(hosts, str) else yaml.safe_dump(hosts)
    (folder / name).write_text(text)
    return folder


def of(hosts: dict[str, Any]) -> dict[str, Any]:
    return {"gpu_nodes": {"hosts": hosts}}


def playbook(inventory: Path, name: str, *arguments: str, **variables: Any) -> Run:
    command = ["ansible-playbook", "-i", str(inventory), f"playbooks/{name}.yml", *arguments]
    return FLEET.run([*command, "--extra-vars", json.dumps(variables)])


def planned(inventory: Path, *arguments: str, **variables: Any) -> dict[str, Any]:
    """The nodes' plans, none of which is refused. What a package manager would do is asked elsewhere."""
    path = inventory / "plan.json" if inventory.is_dir() else inventory.with_name("plan.json")
    variables |= {"preflight_plan_file": str(path), "__preflight_simulate": False}
    run = playbook(inventory, "preflight", *arguments, **variables)
    assert run.status == 0, run.output
    nodes: dict[str, Any] = json.loads(path.read_text())["nodes"]
    assert [problem for node in nodes.values() for problem in node["problems"]] == []
    return nodes


# ---------------------------------------------------------------- forms


def test_ini_with_a_range_children_and_an_address_from_another_variable(tmp_path: Path) -> None:
    addresses = json.dumps({node.name: node.address for node in NODES})
    hosts = (
        "[leaf-1]\ngpu[01:02]\n\n[gpu_nodes:children]\nleaf-1\n\n[leaf-1:vars]\n"
        f"addresses={addresses}\nansible_host={{{{ addresses[inventory_hostname] }}}}\n"
    )
    assert list(planned(write(tmp_path, hosts, name="hosts"))) == ["gpu01", "gpu02"]


def test_yaml_with_groups_below_groups_and_variables_beside_it(tmp_path: Path) -> None:
    group = {"children": {"rack1": {"hosts": {"gpu01": None}}, "rack2": {"hosts": {"gpu02": None}}}}
    inventory = write(tmp_path, {"all": {"children": {"gpu_nodes": group}}})
    (tmp_path / "host_vars").mkdir()
    for name, values in HOSTS.items():
        (tmp_path / "host_vars" / f"{name}.yml").write_text(yaml.safe_dump(values))
    (tmp_path / "group_vars/rack2.yml").write_text("os_tuning_nofile: 70000\n")
    nodes = planned(inventory)
    assert list(nodes) == ["gpu01", "gpu02"]
    assert nodes["gpu01"]["roles"]["os_tuning"] != nodes["gpu02"]["roles"]["os_tuning"]


@pytest.mark.parametrize("meta", [True, False], ids=["_meta", "--host"])
def test_a_script(tmp_path: Path, meta: bool) -> None:
    groups: dict[str, Any] = {"gpu_nodes": {"hosts": list(HOSTS)}}
    if meta:
        groups["_meta"] = {"hostvars": HOSTS}
    inventory = write(
        tmp_path,
        f"#!/usr/bin/env python3\nimport json, sys\nhosts = {HOSTS!r}\n"
        f"print(json.dumps(hosts[sys.argv[2]] if sys.argv[1] == '--host' else {groups!r}))\n",
        name="hosts.py",
    )
    (inventory / "hosts.py").chmod(stat.S_IRWXU)
    assert list(planned(inventory)) == ["gpu01", "gpu02"]


def test_a_plugin_makes_groups_and_addresses(tmp_path: Path) -> None:
    bare = {"all": {"hosts": {name: {"cloud": {"ip": node["ansible_host"]}} for name, node in HOSTS.items()}}}
    inventory = write(tmp_path, bare, name="a_hosts.yml")
    constructed = {
        "plugin": "ansible.builtin.constructed",
        "compose": {"ansible_host": "cloud.ip"},
        "groups": {"gpu_nodes": "inventory_hostname.startswith('gpu')"},
        "keyed_groups": [{"key": "cloud.ip | replace('.', '_')", "prefix": "at"}],
    }
    (tmp_path / "b_constructed.yml").write_text(yaml.safe_dump(constructed))
    assert list(planned(inventory)) == ["gpu01", "gpu02"]


def test_two_inventories_on_one_command_line(tmp_path: Path) -> None:
    one = write(tmp_path / "one", of({"gpu01": HOSTS["gpu01"]}))
    two = write(tmp_path / "two", of({"gpu02": HOSTS["gpu02"]}))
    assert list(planned(one, "-i", str(two))) == ["gpu01", "gpu02"]


# ---------------------------------------------------------------- ways in


def test_addresses_of_ipv6_alone(tmp_path: Path) -> None:
    hosts = {node.name: {"ansible_host": node.address6} for node in NODES}
    inventory = write(tmp_path, of(hosts))
    assert list(planned(inventory)) == ["gpu01", "gpu02"]
    assert all(f'"{node.address6}"' in (inventory / "plan.json").read_text() for node in NODES)


def test_a_port_of_its_own(tmp_path: Path) -> None:
    """Known by the host key's own name for it: `[address]:port`."""
    known = tmp_path / "known_hosts"
    text = LAB.known_hosts.read_text()
    for node in NODES:
        text = text.replace(f"{node.address} ", f"[{node.address}]:{PORT} ")
        text = text.replace(f"{node.address},", f"[{node.address}]:{PORT},")
    known.write_text(text)
    values = shared(ansible_port=PORT)
    values["ansible_ssh_common_args"] = values["ansible_ssh_common_args"].replace(
        str(LAB.known_hosts), str(known)
    )
    inventory = write(tmp_path / "inventory", of(HOSTS), values)
    ports = f"printf 'Port 22\\nPort {PORT}\\n'"
    for node in NODES:
        on_node(node, f"{ports} >/etc/ssh/sshd_config.d/00-port.conf; systemctl restart ssh")
    try:
        nodes = planned(inventory)
        checked = playbook(inventory, "harden", "--check")
    finally:
        for node in NODES:
            on_node(node, "rm /etc/ssh/sshd_config.d/00-port.conf; systemctl restart ssh")
    assert list(nodes) == ["gpu01", "gpu02"]
    assert checked.status == 0, checked.output


@pytest.fixture
def site_account(lab: None) -> Iterator[None]:
    """An account that becomes root with its password."""
    for node in NODES:
        on_node(
            node,
            f"useradd --create-home --shell /bin/bash {SITE}; echo '{SITE}:{PASSWORD}' | chpasswd; "
            f"cp -r /home/{ADMINISTRATOR}/.ssh /home/{SITE}/; chown -R {SITE}: /home/{SITE}/.ssh; "
            f"echo '{SITE} ALL=(ALL) ALL' >/etc/sudoers.d/site",
        )
    yield
    for node in NODES:
        # Ansible keeps its connection open.
        on_node(node, f"rm /etc/sudoers.d/site; userdel --force --remove {SITE} || true")


def vaulted(folder: Path, name: str, values: dict[str, Any]) -> list[str]:
    """Encrypt a file of variables, and return the arguments that open it."""
    word = folder.with_name("vault-password")
    word.write_text("a word\n")
    option = f"--vault-password-file={word}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values))
    subprocess.run([BIN / "ansible-vault", "encrypt", option, str(path)], check=True, capture_output=True)
    return [option]


def test_root_by_a_password_out_of_a_vault(tmp_path: Path, site_account: None) -> None:
    values = shared(ansible_user=SITE, ansible_become_password="{{ vault_become_password }}")
    inventory = write(tmp_path / "inventory", of(HOSTS))
    (inventory / "group_vars/gpu_nodes.yml").unlink()
    (inventory / "group_vars/gpu_nodes").mkdir()
    (inventory / "group_vars/gpu_nodes/main.yml").write_text(yaml.safe_dump(values))
    option = vaulted(inventory, "group_vars/gpu_nodes/vault.yml", {"vault_become_password": PASSWORD})
    planned(inventory, *option)
    checked = playbook(inventory, "harden", *option, "--check", "-vvv")
    assert checked.status == 0, checked.output
    assert PASSWORD not in checked.output
    assert PASSWORD not in (inventory / "plan.json").read_text()


def test_an_account_that_the_command_line_names(tmp_path: Path) -> None:
    """The operator knows that it may become root: nothing proposes to take that from it."""
    inventory = write(tmp_path / "inventory", of(HOSTS), shared(ansible_user=None))
    planned(inventory, "-u", ADMINISTRATOR)
    reports = tmp_path / "reports"
    on_node(FIRST, f"usermod --append --groups sudo {ADMINISTRATOR}")
    try:
        run = playbook(
            inventory,
            "compliance",
            *("-u", ADMINISTRATOR, "--limit", FIRST.name),
            compliance_reports_directory=str(reports),
            gpu_validation_reports_directory=str(reports),
            admin_accounts_users=[{"name": "alice", "keys": [key_pair(tmp_path / "alice")]}],
        )
    finally:
        on_node(FIRST, f"gpasswd --delete {ADMINISTRATOR} sudo")
    statements = [json.loads(path.read_text()) for path in reports.glob("2*/statement.json")]
    assert statements, run.output
    (control,) = [
        one for one in statements[0]["nodes"][0]["controls"] if one["id"].endswith("administrators")
    ]
    assert control["state"] == "pass", control


def key_pair(path: Path) -> str:
    """A new key, of which this is the public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


@pytest.mark.parametrize("python", ["/usr/bin/python3.{minor}", "/opt/site/python", "auto_silent"])
def test_another_interpreter(tmp_path: Path, python: str) -> None:
    minors = {FIRST.name: 11, SECOND.name: 13}
    hosts = {
        name: values | {"ansible_python_interpreter": python.format(minor=minors[name])}
        for name, values in HOSTS.items()
    }
    for node in NODES:
        on_node(node, "mkdir -p /opt/site; ln -sfn /usr/bin/python3 /opt/site/python")
    planned(write(tmp_path, of(hosts)))


# ---------------------------------------------------------------- values


def test_values_from_hosts_groups_lookups_files_and_a_vault(tmp_path: Path) -> None:
    key = key_pair(tmp_path / "alice")
    values = shared(
        scrapers="{{ groups['gpu_nodes'] | map('extract', hostvars, 'ansible_host') | list }}",
        firewall_services={"node_exporter": "{{ scrapers }}"},
        admin_accounts_users=[
            {"name": "alice", "keys": ["{{ lookup('file', inventory_dir ~ '/../alice.pub') }}"]}
        ],
        compute_environment_omp_num_threads="{{ hostvars[inventory_hostname].threads | int }}",
        site_note="{{ vault_note }} {{ playbook_dir }}",
        ssh_hardening_banner="{{ site_note }}",
    )
    hosts = {name: given | {"threads": place} for place, (name, given) in enumerate(HOSTS.items(), 3)}
    inventory = write(tmp_path / "inventory", of(hosts), values)
    option = vaulted(inventory, "group_vars/all/vault.yml", {"vault_note": "from the vault"})
    nodes = planned(inventory, *option)
    assert [node["environment"]["omp_num_threads"] for node in nodes.values()] == [3, 4]
    settings = json.dumps(json.loads((inventory / "plan.json").read_text())["settings"])
    for word in (key.split()[1], FIRST.address, SECOND.address):
        assert word in settings
