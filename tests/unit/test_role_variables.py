"""Variables that are misspelt or of the wrong kind are found before anything is planned."""

import re
from collections import UserDict
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleUndefinedVariable
from ansible.parsing.dataloader import DataLoader

from temper.plan.role_variables import role_variables, unknown_variables
from tests.unit.each import each
from tests.unit.tables import specs


def spec(**options: dict[str, Any]) -> dict[str, Any]:
    return {"firewall": {"argument_specs": {"main": {"options": options}}}}


SPEC = spec(
    firewall_state={"type": "str", "choices": ["present", "absent"], "default": "present"},
    firewall_log={"type": "bool", "default": False},
    firewall_rate={"type": "int", "default": 5},
    firewall_ssh_port={"type": "int"},
    firewall_buffer_size={"type": "str"},
    firewall_ports={"type": "list", "elements": "int", "default": []},
    firewall_management_networks={"type": "list", "elements": "str", "default": []},
    firewall_raw={"type": "raw"},
    firewall_items={
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "protocol": {"type": "str", "choices": ["tcp", "udp"], "default": "tcp"},
        },
    },
)


def problems(variables: Any) -> list[str]:
    found: list[str] = role_variables(variables, SPEC)["problems"]
    return found


def values(**variables: Any) -> dict[str, Any]:
    found: dict[str, Any] = role_variables(variables, SPEC)["values"]
    return found


# ---------------------------------------------------------------- logins


@each(
    ("nvidia_stack_cuda_repository_url", "https://ops:s3cret@mirror.example/cuda"),
    ("nvidia_stack_cuda_key_url", "http://s3cret@mirror.example/key"),
    ("nvidia_stack_container_repository_url", "HTTPS://ops:s3cret@x@mirror.example/cuda"),
    ("gpu_validation_pip_args", "--pre --index-url https://ops:s3cret@mirror.example/simple"),
    ("pull_url", "ssh://git:s3cret@git.example.org/fleet.git"),
    ("os_tuning_sysctls", {"kernel.x": "https://ops:s3cret@mirror.example"}),
)
def test_a_login_in_an_address_is_refused_and_never_repeated(name: str, value: Any) -> None:
    found = role_variables({name: value}, specs())
    assert any(problem.startswith(f"{name}: expected an address without") for problem in found["problems"])
    assert "s3cret" not in str(found)


@each("ssh://git@git.example.org/fleet.git", "https://git.example.org/a@b", "https://[::1]:8080/x")
def test_an_address_without_a_password_is_taken(value: str) -> None:
    found = role_variables({"pull_url": value}, specs())
    assert found["values"]["pull_url"] == value
    assert not found["problems"]


# ---------------------------------------------------------------- names


@each(
    ("firewall_itmes", "; did you mean firewall_items?"),
    ("firewall_xyzzy", "; see the README of the role for its variables"),
)
def test_a_name_that_no_role_has_gets_the_likeliest_one_or_the_readme(name: str, remedy: str) -> None:
    assert problems({name: []}) == [f"{name}: no role has a variable of this name{remedy}"]


def test_all_typos_are_found_at_once() -> None:
    assert len(problems({"firewall_stat": 1, "firewall_lgo": 1, "firewall_rat": 1})) == 3


@each("ansible_host", "firewalls", "firewall", "__firewall_internal", "my_firewall_x")
def test_a_name_without_the_prefix_of_a_role_is_none_of_our_business(name: str) -> None:
    assert problems({name: "x"}) == []


# ---------------------------------------------------------------- values


@each(
    ("firewall_log", "maybe", "firewall_log: expected true or false, found 'maybe'"),
    ("firewall_rate", "five", "firewall_rate: expected a whole number, found 'five'"),
    ("firewall_rate", True, "firewall_rate: expected a whole number, found True"),
    ("firewall_ports", "22,a", "firewall_ports: expected a list of whole numbers, found '22,a'"),
    ("firewall_ssh_port", 0, "firewall_ssh_port: expected a port number from 1 to 65535, found 0"),
    (
        "firewall_ssh_port",
        65536,
        "firewall_ssh_port: expected a port number from 1 to 65535, found 65536",
    ),
    (
        "firewall_buffer_size",
        "much",
        "firewall_buffer_size: expected a size such as 1G or 512M, found 'much'",
    ),
    ("firewall_ports", [22, -1], "firewall_ports: expected a port number from 1 to 65535, found -1"),
    (
        "firewall_management_networks",
        ["10.0.0.0/8", "10.0.0.1/8"],
        "firewall_management_networks: expected a network such as 192.0.2.0/24 or 2001:db8::/32, "
        "found '10.0.0.1/8'; its network is 10.0.0.0/8",
    ),
    (
        "firewall_management_networks",
        ["office"],
        "firewall_management_networks: expected a network such as 192.0.2.0/24 or 2001:db8::/32, "
        "found 'office'",
    ),
)
def test_a_value_of_another_kind_is_named_with_what_was_expected(name: str, value: Any, problem: str) -> None:
    assert problems({name: value}) == [problem]


ALL_SPECS = specs()
OF_ANY_KIND: list[Any] = [
    "x",
    "",
    1,
    -1,
    1.5,
    True,
    None,
    [],
    [1],
    ["x"],
    [[1]],
    [{"x": 1}],
    {},
    {"x": [1]},
    [None],
]


@each(*OF_ANY_KIND)
def test_no_value_of_any_variable_ends_in_a_traceback(value: Any) -> None:
    for role, content in ALL_SPECS.items():
        for name in content["argument_specs"]["main"]["options"]:
            found = role_variables({name: value}, {role: content})
            assert all(name in problem for problem in found["problems"])


def test_a_variable_without_a_value_is_named_where_it_needs_one() -> None:
    assert problems({"firewall_state": None}) == [
        "firewall_state: expected a text, found no value; give it one, or leave it out"
    ]
    assert problems({"firewall_ssh_port": None}) == []


def test_a_list_in_the_place_of_options_is_named() -> None:
    found = role_variables({"container_engines_ulimits": [1]}, ALL_SPECS)
    assert found["problems"] == ["container_engines_ulimits: expected a dictionary, found [1]"]


def test_a_choice_that_there_is_not_lists_the_choices() -> None:
    (problem,) = problems({"firewall_state": "presen"})
    assert problem.startswith("firewall_state: ")
    assert "must be one of: present, absent, got: presen" in problem


@each(
    ({"name": "metrics", "protocl": "udp"}, "protocl"),
    ({"name": "metrics", "protocol": "icmp"}, "must be one of: tcp, udp"),
    ({"protocol": "udp"}, "missing required arguments: name"),
)
def test_a_suboption_is_checked_like_an_option(rule: dict[str, str], words: str) -> None:
    (problem,) = problems({"firewall_items": [rule]})
    assert problem.startswith("firewall_items: ")
    assert words in problem


@each(
    ("firewall_ssh_port", 1),
    ("firewall_ssh_port", 65535),
    ("firewall_ssh_port", "2222"),
    ("firewall_ssh_port", None),
    ("firewall_ports", []),
    ("firewall_buffer_size", "512m"),
    ("firewall_buffer_size", ""),
    ("firewall_management_networks", ["192.0.2.0/24", "2001:db8::/32", "192.0.2.7"]),
    ("firewall_raw", {"any": ["thing"]}),
    ("firewall_items", [{"name": "metrics"}]),
)
def test_a_good_value_is_no_problem(name: str, value: Any) -> None:
    assert problems({name: value}) == []


def test_a_value_that_cannot_be_evaluated_is_a_problem_of_its_own_variable() -> None:
    class HostVars(UserDict[str, Any]):
        """Evaluates on access, as Ansible's do."""

        def __getitem__(self, name: str) -> Any:
            if name == "firewall_rate":
                raise AnsibleUndefinedVariable("'site_rate' is undefined")
            return super().__getitem__(name)

    (problem,) = problems(HostVars({"firewall_rate": "{{ site_rate }}", "firewall_log": True}))
    assert problem.startswith("firewall_rate: its value cannot be evaluated: ")
    assert "'site_rate' is undefined" in problem


# ---------------------------------------------------------------- what the plan is made with


def test_values_are_those_of_the_inventory_converted() -> None:
    found = values(firewall_log="yes", firewall_rate="7", firewall_ports="22,2222")
    assert (found["firewall_log"], found["firewall_rate"], found["firewall_ports"]) == (True, 7, [22, 2222])


def test_values_are_the_defaults_where_the_inventory_sets_none() -> None:
    found = values()
    assert found.keys() == SPEC["firewall"]["argument_specs"]["main"]["options"].keys()
    assert (found["firewall_state"], found["firewall_ssh_port"]) == ("present", None)


def test_suboptions_get_their_defaults() -> None:
    assert values(firewall_items=[{"name": "a"}])["firewall_items"] == [{"name": "a", "protocol": "tcp"}]


def test_a_wrong_value_is_replaced_so_that_planning_finds_the_other_problems() -> None:
    assert values(firewall_rate="five", firewall_ports=[0])["firewall_rate"] == 5
    assert values(firewall_ports=[0])["firewall_ports"] == []


# ---------------------------------------------------------------- the real roles


def test_the_roles_own_defaults_are_of_their_own_types() -> None:
    real = specs()
    effective = role_variables({}, real)["values"]
    # A template is evaluated by Ansible, not here.
    defaults = {name: value for name, value in effective.items() if "{{" not in str(value)}
    assert role_variables(defaults, real)["problems"] == []


def test_a_typo_in_the_role_s_name_is_found_too_and_a_variable_of_the_operator_s_own_left_alone() -> None:
    given = ["nvidia_stak_name", "site_name", "rack"]
    assert unknown_variables(given, ["nvidia_stack_name"], ["nvidia_stack"]) == [
        "nvidia_stak_name: no role has a variable of this name; did you mean nvidia_stack_name?"
    ]


# ---------------------------------------------------------------- what a module would refuse on the node


@each(
    (
        "firewall_rules",
        [{"name": "web", "ports": [70000], "sources": ["192.0.2.0/24"]}],
        "rule 1 (web), ports: expected a port from 1 to 65535",
    ),
    ("firewall_services", {"slurmx": ["192.0.2.7"]}, "service slurmx: expected one of"),
    ("firewall_peer_addresses", ["192.0.2.7/24"], "its network is 192.0.2.0/24"),
    ("admin_accounts_users", [{"name": "alice", "keys": []}], "expected at least one key, found none"),
    ("ssh_hardening_user_ca_keys", ["-----BEGIN OPENSSH PRIVATE KEY-----"], "it is a private key"),
    ("os_hardening_waivers", [{"id": "core-dump", "reason": "x"}], "did you mean core-dumps?"),
    ("os_hardening_waivers", [{"id": "core-dumps", "reason": ""}], "expected a reason, found none"),
    ("gpu_settings_clocks", "fast", "expected max, default, efficient, or graphics and memory in MHz"),
    ("gpu_settings_clocks", {"graphics": True}, "in MHz, found {'graphics': True}"),
    ("gpu_settings_clocks", {"graphics": 0}, "in MHz, found {'graphics': 0}"),
    ("gpu_settings_compute_mode", "prohibited", "would let no program use the GPUs"),
    ("gpu_settings_mig", {"all": []}, "expected for all a list of profiles, or disabled, found []"),
    ("gpu_settings_mig", {"0": "7g.80gb"}, "expected for 0 a list of profiles, or disabled"),
    ("gpu_settings_power_limit_percent", 0, "expected more than 0 % of the GPU's default, found 0"),
    ("gpu_validation_hours", -1, "expected hours, 0 (what the plan says) to 1000, found -1"),
    ("gpu_validation_hours", float("nan"), "found nan"),
    ("gpu_validation_pip_args", "--no-binary :all:", "--no-binary has no place here"),
    ("gpu_validation_storage_floor_gb_s", -1, "expected GB/s, 0 (no floor) or above, found -1"),
    ("gpu_validation_fabric_floor_gb_s", -1, "expected GB/s, 0 (no floor) or above, found -1"),
    ("gpu_validation_fabric_floor_gb_s", "fast", "expected a number (GB/s), found 'fast'"),
    ("gpu_validation_fabric_pair_rounds", 0, "expected 1 or more"),
    ("gpu_validation_fabric_pairs", True, "must be one of: auto, always, never, got: True"),
    (
        "gpu_validation_storage_floor_gb_s",
        float("nan"),
        "expected GB/s, 0 (no floor) or above, found nan",
    ),
    ("gpu_validation_storage_floor_gb_s", 3, "gpu_validation_storage_paths is empty; name a path"),
    ("ssh_hardening_revoked_keys", ["ssh-dss AAAA"], "revoked keys, key 1: it is a DSA key"),
)
def test_what_a_module_would_refuse_is_found_before_anything_is_changed(
    name: str, value: Any, problem: str
) -> None:
    (found,) = role_variables({name: value}, specs())["problems"]
    assert found.startswith(f"{name}: ")
    assert problem in found


#: Of each kind of value that a module looks at itself.
DOCUMENTED = """
- gpu_settings_clocks: {graphics: 1755}
- gpu_settings_clocks: {graphics: 1410, memory: 1593}
- gpu_settings_clocks: efficient
- gpu_settings_power_limit_percent: 80
- gpu_settings_compute_mode: exclusive_process
- gpu_settings_mig: {all: [3g.40gb, 3g.40gb]}
- gpu_settings_mig: {0: [1g.10gb, 1g.10gb, 2g.20gb], 1: disabled}
- gpu_settings_mig: {"NVIDIA A100-SXM4-40GB": [3g.20gb, 3g.20gb]}
- compute_environment_fleet_networks: [10.1.0.0/16, "fd00:1::/64"]
- compute_environment_nccl: {NCCL_IB_TC: 106}
- compute_environment_omp_num_threads: 8
- compute_environment_slurm_cgroup: {ConstrainDevices: true, ConstrainCores: true, ConstrainRAMSpace: true}
- firewall_rules: [{name: web, ports: [80, 443], sources: [192.0.2.0/24]}]
- firewall_services: {slurmd: [192.0.2.7]}
- firewall_peer_addresses: [10.1.0.0/16]
- gpu_validation_hours: 0.5
- gpu_validation_fabric_pair_rounds: 3
- os_hardening_waivers: [{id: core-dumps, reason: a debugger needs them}]
- os_tuning_memlock: unlimited
- os_tuning_network_buffer_mib: 64
- os_tuning_nofile: 1048576
- os_tuning_nvme_read_ahead_kb: 1024
- os_tuning_shm: 75%
- os_tuning_stack_kib: 8192
- os_tuning_sysctls: {vm.swappiness: 10}
"""


@each(*DataLoader().load(DOCUMENTED))
def test_values_are_taken_as_ansible_reads_them_from_a_file(given: dict[str, Any]) -> None:
    """Its numbers and texts are of types of its own."""
    assert role_variables(given, specs())["problems"] == []


# ---------------------------------------------------------------- together


def test_a_burn_in_that_would_be_cut_off_is_refused() -> None:
    wishes: dict[str, Any] = {"gpu_validation_plan": "burn-in"}
    (problem,) = role_variables(wishes, specs())["problems"]
    assert "measures for 14400 s and is given 3600; set it to 18000 or more" in problem
    assert not role_variables(wishes | {"gpu_validation_timeout_s": "18000"}, specs())["problems"]


def test_hours_of_the_operators_own_count_instead_of_the_plans() -> None:
    short = {"gpu_validation_plan": "burn-in", "gpu_validation_hours": 0.5}
    assert not role_variables(short, specs())["problems"]
    long = {"gpu_validation_plan": "quick", "gpu_validation_hours": 2}
    (problem,) = role_variables(long, specs())["problems"]
    assert (
        "quick measures for 7200 s (gpu_validation_hours) and is given 3600; set it to 9000 or more"
        in problem
    )


# ---------------------------------------------------------------- yes and no


def test_a_no_from_the_command_line_is_a_no_wherever_a_role_asks() -> None:
    """`-e name=false` is the text "false", which Jinja takes for true: a node would reboot that must not."""
    root = Path(__file__).resolve().parents[2]
    names = [
        name
        for role in specs().values()
        for name, option in role["argument_specs"]["main"]["options"].items()
        if option["type"] == "bool"
    ]
    # A whole value goes to a module, which converts it; `name: true` is in messages, `'name'` is a key.
    asked = re.compile(rf"(?<![\w'])({'|'.join(names)})\b(?!')(?! ?:)(?!\s*\}}\}}\")")
    converted = re.compile(r"(\s*\|\s*default\(false\))?\s*\|\s*bool\b")
    files = [*root.glob("playbooks/*.yml"), *root.glob("roles/*/templates/*")]
    files += [
        file for folder in ("tasks", "vars", "handlers") for file in root.glob(f"roles/*/{folder}/*.yml")
    ]
    found = [(file, match) for file in files for match in asked.finditer(file.read_text())]
    assert found
    texts = [
        f"{file.name}: {match[1]}" for file, match in found if not converted.match(match.string, match.end())
    ]
    assert not texts


def test_of_two_power_limits_one_has_to_go() -> None:
    given = {"gpu_settings_power_limit_w": 300, "gpu_settings_power_limit_percent": 80}
    (problem,) = role_variables(given, specs())["problems"]
    assert "keep one of them" in problem


@each(None, [])
def test_peers_may_be_left_to_the_role_or_be_none(value: Any) -> None:
    found = role_variables({"firewall_peer_addresses": value}, specs())
    assert (found["problems"], found["values"]["firewall_peer_addresses"]) == ([], value)


def test_a_storage_floor_with_a_path_to_compare_is_accepted() -> None:
    variables = {"gpu_validation_storage_floor_gb_s": 3, "gpu_validation_storage_paths": ["/data"]}
    assert role_variables(variables, specs())["problems"] == []
