"""Check an inventory's variables against the argument specs of all roles, before anything is planned."""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleError

# On a node Ansible merges module_utils/ into its own package of that name; `__path__` does the same here.
ROOT = Path(__file__).resolve().parents[2]
MODULE_UTILS = str(ROOT / "module_utils")
if MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(MODULE_UTILS)
from ansible.module_utils.temper.access.administrators import parse_users
from ansible.module_utils.temper.access.nftables_rules import interfaces, networks, parse_rule, parse_service
from ansible.module_utils.temper.access.ssh_keys import public_keys
from ansible.module_utils.temper.access.sshd_settings import merge
from ansible.module_utils.temper.driver import gpu_settings, mig
from ansible.module_utils.temper.driver.smi import SettingsError
from ansible.module_utils.temper.settings import tmpfs
from ansible.module_utils.temper.settings.base import RefusedError

from temper.plan import fleet_networks
from temper.plan.contradictions import instance_problems, profile_problems, slurm_problems
from temper.plan.convert import build
from temper.plan.origin import place, place_of, place_of_error
from temper.plan.os_controls import load_controls, waiver_problems
from temper.plan.pip_options import configuration
from temper.plan.tables import read_yaml
from temper.plan.value_types import validated
from temper.plan.variables import Variables
from validation.model.plans import MOST_HOURS, PLANS

#: Of the highest clock, what gpu_settings_clocks: efficient locks.
EFFICIENT_SHARE = gpu_settings.EFFICIENT_SHARE
#: `75%` or `512G`, and the memory, to bytes.
size_bytes = tmpfs.size_bytes
PLAN = "preflight_plan"  # the fact that this is about to make, which a run may make more than once
LAST_PORT = 65535
#: The kernel's own soft limit of open files, and a stack with which every program still starts: with less,
#: nobody can log in, root and Ansible included.
LEAST_NOFILE = 1024
LEAST_STACK_KIB = 1024
LONGEST_SLIP = 2  # characters that a typo adds or leaves out


def is_network(value: Any) -> bool:
    """Return whether a value is an IPv4 or IPv6 network (or an address) in CIDR form, without host bits."""
    try:
        ipaddress.ip_network(value)
    except ValueError:
        return False
    return isinstance(value, str)


# Argument specs know types but no ranges; a variable's name says what it holds.
CONVENTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "port": (
        lambda value: isinstance(value, int) and 1 <= value <= LAST_PORT,
        f"a port number from 1 to {LAST_PORT}",
    ),
    "network": (is_network, "a network such as 192.0.2.0/24 or 2001:db8::/32"),
    "size": (
        lambda value: isinstance(value, str) and bool(re.fullmatch(r"(?i)[0-9]+ ?[kmgt]?(i?b)?|", value)),
        "a size such as 1G or 512M",
    ),
}


def within(holds: Callable[[Any], bool], expected: str) -> Callable[[Any], None]:
    """Return a check that refuses a value for which `holds` is false."""

    def check(value: Any) -> None:
        if not holds(value):
            raise RefusedError(f"expected {expected}, found {value!r}")

    return check


def check_waivers(waivers: list[Mapping[str, Any]]) -> None:
    """Refuse waivers that name no control or give no reason."""
    if problems := waiver_problems(load_controls(ROOT / "data" / "os_controls"), waivers):
        raise RefusedError("; ".join(problems))


def check_pip_args(arguments: str) -> None:
    """Refuse what pip's configuration file cannot say."""
    try:
        configuration(arguments)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def check_shm(size: str) -> None:
    """Refuse a size of /dev/shm that no memory has."""
    try:
        if size and not 0 < size_bytes(size, 100) <= (100 if size.endswith("%") else math.inf):
            raise RefusedError(f"expected 1% to 100% of the memory, or a size above 0, found {size}")
    except ValueError as error:
        raise RefusedError(str(error)) from error


def check_sysctls(values: Mapping[str, object]) -> None:
    """Refuse what is no line of a file of sysctl.d; YAML reads yes, no, on and off as booleans."""
    for name, value in values.items():
        if isinstance(value, bool):
            raise RefusedError(f"expected a number or text for {name}, found {value}; write {int(value)}")
        text = str(value) if isinstance(value, (str, int, float)) else ""
        if not re.fullmatch(r"[\w.*/:@-]+", str(name)) or not text or "\n" in text:
            raise RefusedError(f"expected one line of text or a number for {name}, found {value!r}")


def check_nccl(values: Mapping[str, object]) -> None:
    """Refuse what NCCL would pass over in its file; YAML reads yes, no, on and off as booleans."""
    for name, value in values.items():
        if isinstance(value, bool):
            raise RefusedError(f"expected a number or text for {name}, found {value}; write {int(value)}")
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name), re.ASCII):
            raise RefusedError(f"expected names of variables such as NCCL_IB_TC, found {name!r}")
        if not isinstance(value, (str, int, float)) or "\n" in str(value):
            raise RefusedError(f"expected one line of text or a number for {name}, found {value!r}")


def check_fleet_networks(texts: list[str]) -> None:
    """Refuse networks that cannot join nodes."""
    if problem := fleet_networks.list_problem(texts):
        raise RefusedError(problem)


def check_cgroup(values: Mapping[str, object]) -> None:
    """Refuse what is no line of cgroup.conf: slurmd would not start with it."""
    for name, value in values.items():
        text = str(value) if isinstance(value, (str, int, float)) else ""
        if not re.fullmatch(r"\w+", str(name)) or not text or "\n" in text:
            raise RefusedError(f"expected a word or number for each parameter, found {value!r} for {name}")


def check_signers(signers: list[Mapping[str, Any]]) -> None:
    """Refuse a signer whom the keyring could not hold."""
    for signer in signers:
        name = str(signer["name"])
        if not re.fullmatch(r"[\w.@+-]+", name, re.ASCII):
            raise RefusedError(f"expected a name of letters, digits and . @ + - _, found {name!r}")
        (key,) = public_keys(f"key of {name}", [str(signer["key"])])
        if key.options:
            raise RefusedError(f"{name}: expected a public key alone, found options before it")
        for day in (signer.get("valid_from"), signer.get("valid_until")):
            try:
                if day is not None and date.fromisoformat(day).isoformat() != day:
                    raise ValueError
            except ValueError:
                raise RefusedError(f"{name}: expected a day such as 2026-12-01, found {day!r}") from None


def pull_problems(values: Mapping[str, Any]) -> list[str]:
    """Return what a node that pulls cannot do without, and addresses that it could not use."""
    if not values.get("pull_enabled"):
        return []
    needed = ("pull_url", "pull_signers", "pull_python", "pull_inventory")
    problems = [f"{name}: pull_enabled needs it, found none" for name in needed if not values.get(name)]
    schemes = {"pull_url": ("https", "ssh", "file"), "pull_report_to": ("https", "ssh")}
    for name, known in schemes.items():
        text = values.get(name) or ""
        if text and not re.fullmatch(rf"({'|'.join(known)})://[^\s\x00-\x1f]+", text):
            problems.append(f"{name}: expected {', '.join(f'{one}://' for one in known)}..., found {text!r}")
    if not str(values.get("pull_python") or "/").startswith("/"):
        problems.append(f"pull_python: expected a path of the node, found {values['pull_python']!r}")
    if str(values.get("pull_inventory") or "").startswith("/") or ".." in (
        values.get("pull_inventory") or ""
    ):
        problems.append("pull_inventory: expected a path in the repository")
    return problems


#: A default that is another role's variable. Ansible evaluates it for the role's tasks, and nobody does here.
FALLBACK = re.compile(r"\{\{ (\w+) \| default\(\[\]\) \}\}")
#: More digits than Python makes a number of.
MANY_DIGITS = re.compile(r"^\s*[-+]?[0-9]{1000}")

FLOOR = within(lambda floor: 0 <= floor < math.inf, "GB/s, 0 (no floor) or above")
#: What git would take for an option, or for more than one place of a pattern, is no name.
REF = within(
    lambda name: (
        not name or bool(re.fullmatch(r"[\w.*][\w./*-]*", name) and ".." not in name and name.count("*") <= 1)
    ),
    "a name of git's with at most one *",
)

# What the modules would refuse on the node, in the middle of a run, as far as it does not depend on the node.
CONTENTS: dict[str, Callable[[Any], object]] = {
    "admin_accounts_users": parse_users,
    "compute_environment_fleet_networks": check_fleet_networks,
    "compute_environment_nccl": check_nccl,
    "compute_environment_nccl_socket_ifname": within(
        lambda text: not re.search(r"\s", text), "names of interfaces with commas and no blanks"
    ),
    "compute_environment_omp_num_threads": within(
        lambda count: count >= 0, "1 or more, or 0 for physical cores divided by GPUs"
    ),
    "compute_environment_slurm_cgroup": check_cgroup,
    "compute_environment_slurm_directory": within(lambda path: path.startswith("/"), "an absolute path"),
    "firewall_peer_addresses": lambda items: networks("peers", items or []),
    "firewall_rules": lambda rules: [parse_rule(index, rule) for index, rule in enumerate(rules)],
    "firewall_services": lambda services: [parse_service(*service) for service in services.items()],
    "firewall_trusted_interfaces": interfaces,
    "firewall_unchecked_tunnels": lambda names: interfaces(names, "unchecked tunnels"),
    "gpu_settings_clocks": gpu_settings.check_clocks,
    "gpu_settings_compute_mode": gpu_settings.check_compute_mode,
    "gpu_settings_mig": mig.check,
    # Whether a GPU takes it, the node knows.
    "gpu_settings_power_limit_percent": within(
        lambda percent: percent is None or 0 < percent < math.inf, "more than 0 % of the GPU's default"
    ),
    "gpu_validation_hours": within(
        lambda hours: 0 <= hours <= MOST_HOURS, f"hours, 0 (what the plan says) to {MOST_HOURS}"
    ),
    "gpu_validation_fabric_floor_gb_s": FLOOR,
    "gpu_validation_fabric_pair_rounds": within(
        lambda count: count >= 1, "1 or more (gpu_validation_fabric_pairs says whether there are any)"
    ),
    "gpu_validation_pip_args": check_pip_args,
    "gpu_validation_storage_floor_gb_s": FLOOR,
    "pull_branch": REF,
    "pull_signers": check_signers,
    "pull_tags": REF,
    "os_hardening_waivers": check_waivers,
    "ssh_hardening_extra_options": merge,
    # Anything else is passed over by pam_limits and systemd.
    "os_tuning_memlock": within(
        lambda text: bool(re.fullmatch(r"unlimited|[0-9]+", text)), "unlimited, or KiB as a number"
    ),
    # The kernel counts the bytes of a buffer in 31 bits.
    "os_tuning_network_buffer_mib": within(lambda mib: 0 <= mib <= 2047, "MiB, 0 (the kernel's) to 2047"),
    "os_tuning_nofile": within(
        lambda count: count >= LEAST_NOFILE, f"{LEAST_NOFILE} or more, because with fewer logins fail"
    ),
    # The kernel counts the read-ahead in pages of 4 KiB.
    "os_tuning_nvme_read_ahead_kb": within(
        lambda kib: kib is None or (0 <= kib <= 65536 and kib % 4 == 0), "KiB in steps of 4, 0 to 65536"
    ),
    "os_tuning_shm": check_shm,
    "os_tuning_stack_kib": within(
        lambda kib: kib >= LEAST_STACK_KIB, f"KiB, {LEAST_STACK_KIB} or more, because with less logins fail"
    ),
    "os_tuning_sysctls": check_sysctls,
    "ssh_hardening_revoked_keys": lambda texts: public_keys("revoked keys", texts),
    "ssh_hardening_user_ca_keys": lambda texts: public_keys("user CA keys", texts),
}


# A login in an address: a name and a password, or, over HTTP, a name alone, which may be a token.
LOGIN = re.compile(r"(?i)(?<=://)(?:(?<=http://)|(?<=https://)|(?=[^/\s@]*:))[^/\s]+@")
# How a login is given instead, by what the names of variables begin with.
INSTEAD = {
    "gpu_validation_pip_args": "in root's ~/.netrc on the node, which pip reads",
    "nvidia_stack_": "on the node, in /etc/apt/auth.conf.d (apt_auth.conf) or as username and password in "
    "/etc/dnf/dnf.conf; a key is no secret, and its address needs none",
    "pull_report_to": "as pull_report_token_file, or with ssh:// and pull_report_ssh_key",
    "pull_url": "with ssh:// and pull_ssh_key",
}


def without_logins(value: Any) -> Any:
    """Return the value with logins taken out of all addresses in it; the same object where there are none."""
    if isinstance(value, str):
        return LOGIN.sub("", value) if LOGIN.search(value) else value
    if not isinstance(value, dict | list | tuple):
        return value
    items = list(value.values() if isinstance(value, dict) else value)
    found = [without_logins(item) for item in items]
    if all(one is other for one, other in zip(found, items, strict=True)):
        return value
    return dict(zip(value, found, strict=True)) if isinstance(value, dict) else found


def login_problems(name: str) -> list[str]:
    """Return the sentence about a login in an address, which does not repeat it."""
    way = next((way for start, way in INSTEAD.items() if name.startswith(start)), "in a file of the node")
    return [
        f"{name}: expected an address without a login, found one with a name or password, which plans and "
        f"files on the node would show to everybody; give it {way}"
    ]


def number_problems(name: str, value: Any) -> list[str]:
    """Return a sentence about a number that is not finite, or has thousands of digits."""
    if isinstance(value, Mapping | list | tuple):
        items = [*value.values(), *value] if isinstance(value, Mapping) else value
        return next(filter(None, (number_problems(name, item) for item in items)), [])
    if isinstance(value, int | float) and not abs(value) < 2**63:
        return [f"{name}: expected a number of at most 63 bits, found a larger one, or none"]
    if isinstance(value, str) and MANY_DIGITS.search(value):
        return [
            f"{name}: expected a number of at most 63 bits, found {value[:20]}... ({len(value)} characters)"
        ]
    return []


def content_problems(name: str, value: Any) -> list[str]:
    """Return the sentence with which a module would refuse a value, if it would."""
    try:
        CONTENTS.get(name, lambda _: None)(value)
    except (RefusedError, SettingsError) as error:
        return [f"{name}: {str(error).removeprefix(f'{name}: ')}".removesuffix(".")]
    return []


def convention_problems(name: str, value: Any, where: str) -> list[str]:
    """Return sentences about values of the right type that are not what the variable's name promises."""
    for word, (valid, expected) in CONVENTIONS.items():
        if name.endswith((f"_{word}", f"_{word}s")) and value is not None:
            items = value if isinstance(value, list) else [value]
            return [
                f"{name}: expected {expected}, found {item!r}{hint(word, item)}{place(item) or where}"
                for item in items
                if not valid(item)
            ]
    return []


def hint(word: str, item: Any) -> str:
    """Return what was probably meant: the network of an address that stands in its place."""
    try:
        return f"; its network is {ipaddress.ip_network(item, strict=False)}" if word == "network" else ""
    except ValueError:
        return ""


def floor_problems(values: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return a floor for storage that nothing would be compared with."""
    if values.get("gpu_validation_storage_floor_gb_s") and not given.get("gpu_validation_storage_paths"):
        return [
            "gpu_validation_storage_floor_gb_s: nothing would be compared with it, because "
            "gpu_validation_storage_paths is empty; name a path, or leave the floor out"
        ]
    return []


def power_problems(values: Mapping[str, Any]) -> list[str]:
    """Return two power limits for the same GPUs."""
    names = ("gpu_settings_power_limit_w", "gpu_settings_power_limit_percent")
    if all(values.get(name) is not None for name in names):
        return [f"{names[0]}: there is also {names[1]}; keep one of them"]
    return []


def unknown_variables(names: Iterable[str], known: Iterable[str], roles: Iterable[str]) -> list[str]:
    """Return sentences about names that are no variable of a role but carry its prefix, or nearly are one.

    Without them a typo would be silently ignored.
    """
    prefixes = tuple(f"{role}_" for role in roles)
    known = sorted(known)
    problems = []
    for name in sorted(set(names) - set(known) - {PLAN}):
        if name.startswith("ansible_"):  # most names of a node, and none that could be alike
            continue
        if name.startswith(prefixes):
            # Stricter than difflib's default: the role's prefix alone makes all its variables look alike.
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        else:
            # A typo in the prefix itself; anything less alike is a variable of the operator's own.
            similar = [other for other in known if abs(len(other) - len(name)) <= LONGEST_SLIP]
            close = difflib.get_close_matches(name, similar, n=1, cutoff=0.92)
            if not close:
                continue
        hint = f"did you mean {close[0]}?" if close else "see the README of the role for its variables"
        problems.append(f"{name}: no role has a variable of this name; {hint}{place_of(name)}")
    return problems


def is_used(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether a template in another variable's value names this variable."""
    template = re.compile(rf"\{{[{{%][^}}]*\b{re.escape(name)}\b")
    return any(template.search(str(value)) for other, value in values.items() if other != name)


def unprefixed_variables(names: Iterable[str], specs: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    """Return a question about each name that is nearly a role's variable without the role's prefix.

    Any single word may be the operator's own variable. One that a template in the `raw` values names is.
    """
    short: dict[str, list[str]] = {}
    for role, spec in specs.items():
        for name in spec["argument_specs"]["main"]["options"]:
            if "_" in (rest := name.removeprefix(f"{role}_")):
                short.setdefault(rest, []).append(name)
    questions = []
    for name in sorted(names):
        if "_" not in name or name.startswith(("_", "ansible_", *(f"{role}_" for role in specs))):
            continue
        similar = [rest for rest in short if abs(len(rest) - len(name)) <= LONGEST_SLIP]
        close = difflib.get_close_matches(name, similar, n=1, cutoff=0.92)
        if close and not is_used(name, raw):
            meant = " or ".join(short[close[0]])
            questions.append(f"{name} is no variable of Temper's; did you mean {meant}?{place_of(name)}")
    return questions


def time_problems(values: Mapping[str, Any]) -> list[str]:
    """Return a sentence where the measurement would be ended before its plan is over."""
    plan, given_s = PLANS.get(values.get("gpu_validation_plan", "")), values.get("gpu_validation_timeout_s")
    if not plan or given_s is None:
        return []
    hours = values.get("gpu_validation_hours") or 0
    duration_s = hours * 3600 or plan.duration_s
    if given_s > duration_s:
        return []
    return [
        f"gpu_validation_timeout_s: the plan {plan.name} measures for {duration_s:.0f} s"
        f"{' (gpu_validation_hours)' if hours else ''} and is given {given_s}; set it to "
        f"{duration_s * 1.25:.0f} or more"
    ]


def role_variables(host_variables: Mapping[str, Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effective value of every public variable of every role for a node, and what is wrong.

    `specs` maps role names to the content of their meta/argument_specs.yml. Returns `values` (name -> value
    after type conversion, the spec's default where the inventory sets none), `problems` and `warnings` (one
    sentence each).
    """
    roles = list(specs)
    options: dict[str, Mapping[str, Any]] = {}
    for spec in specs.values():
        options |= spec["argument_specs"]["main"]["options"]
    problems = unknown_variables(host_variables, options, roles)
    raw: Mapping[str, Any] = getattr(host_variables, "raw", host_variables)  # as of node_action.TaskValues
    warnings = unprefixed_variables(set(host_variables) - options.keys(), specs, raw)
    given: dict[str, Any] = {}
    for name in sorted(options.keys() & set(host_variables)):
        try:
            given[name] = host_variables[name]
        except AnsibleError as error:
            # Only a value that is not evaluated by the look itself says where it stands.
            where = place_of_error(error) or (place(raw.get(name)) if raw is not host_variables else "")
            problems.append(f"{name}: its value cannot be evaluated: {error}{where}")
    keys = {str(name): name for name in host_variables}
    values: dict[str, Any] = {}
    for name, spec in options.items():
        if name not in given:
            values[name] = spec.get("default")
            continue
        where = place(given[name], keys[name])
        found = without_logins(given[name])
        if found is not given[name]:
            problems += [f"{one}{where}" for one in login_problems(name)]
        # What a float may be, its own check says better.
        is_float = spec.get("type") == "float" and isinstance(found, float)
        values[name], wrong = spec.get("default"), [] if is_float else number_problems(name, found)
        errors: list[str] = []
        if wrong:
            given[name] = values[name]
        else:
            values[name], errors = validated(name, found, spec, keys[name])
        if not errors and not wrong:
            errors = convention_problems(name, values[name], where)
        if not errors and not wrong:
            wrong = content_problems(name, values[name]) or number_problems(name, values[name])
        errors += [f"{one}{where}" for one in wrong]
        if errors:
            # The plan is made with the default, only so that all other problems are found in the same run.
            values[name] = spec.get("default")
        elif isinstance(found, str) and spec.get("type") == "list":
            warnings.append(
                f"{name}: expected a list, found the text {found!r}, which is read as {values[name]!r}{where}"
            )
        problems += errors
    problems += time_problems(values) + floor_problems(values, given) + power_problems(values)
    problems += pull_problems(values)
    node = str(host_variables.get("inventory_hostname", "this node"))
    problems += profile_problems(node, host_variables.get("group_names") or ())
    layouts, graphics = values.get("gpu_settings_mig") or {}, values.get("nvidia_stack_graphics")
    problems += instance_problems(layouts, graphics=bool(graphics))
    problems += slurm_problems(layouts, devices=values.get("compute_environment_slurm_gpus") == "devices")
    return {"values": values, "problems": problems, "warnings": warnings}


def typed_variables(values: Mapping[str, Any]) -> Variables:
    """Return the typed variables of what function role_variables returns as `values`.

    Name -> converted value.
    """
    roles: dict[str, dict[str, Any]] = {}
    for role, spec in argument_specs().items():
        roles[role] = {}
        for name, option in spec["argument_specs"]["main"]["options"].items():
            value = values[name]
            if isinstance(value, str) and option["type"] == "list":
                value = values[FALLBACK.sub(r"\1", value)]
            roles[role][name.removeprefix(f"{role}_")] = value
    return build(Variables, roles, "variables")


@cache
def argument_specs(roles: Path = ROOT / "roles") -> dict[str, Any]:
    """Return the content of each role's meta/argument_specs.yml by the role's name."""
    return {path.parts[-3]: read_yaml(path) for path in sorted(roles.glob("*/meta/argument_specs.yml"))}


@cache
def planned_variables() -> frozenset[str]:
    """Return the names of variables that reach a role by the plan alone: its tasks do not read them."""
    read_by_tasks = ("preflight", "gpu_validation", "compliance")
    specs = {role: spec for role, spec in argument_specs().items() if role not in read_by_tasks}
    return frozenset(name for spec in specs.values() for name in spec["argument_specs"]["main"]["options"])
