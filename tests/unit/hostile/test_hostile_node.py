"""A taken-over node answers the real playbooks: nothing runs here, nobody else changes, and it is named.

The nodes are played by a connection plugin, which answers each module; all else is Ansible's and ours.
"""

import json
import re
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ansible.constants import INTERNAL_RESULT_KEYS, RESTRICTED_RESULT_KEYS

from temper.plan.roles import ROLES
from tests.unit.ansible_commands import ansible
from tests.unit.planning_nodes import gpus, node
from tests.unit.validation.samples import node_result, one_test
from validation.model.contract import State, encode

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[3]
EVIL, GOOD = "192.0.2.11", "192.0.2.12"
NAMES = {EVIL: "node01", GOOD: "node02"}
SETTLED = {
    "changed": False,
    "actions": [],
    "controls": [],
    "diff": [],
    "results": {"port": None, "report": []},
    "needs": {},
}
SELF_REPORT = {"client": "192.0.2.1", "listening": [22], "accounts": ["ops"], "host_keys": [], "methods": "x"}
JOB = {"started": 1, "finished": 0, "ansible_job_id": "j1.1", "results_file": "/run/temper-jobs/j1.1"}
LEASE = {"owner": "test", "fencing": 3, "attempt": 0, "expires_at": "2026-11-20T12:00:00+00:00"}
CONNECTION = {
    "ansible_connection": "local",
    "ansible_host": "192.0.2.66",
    "ansible_port": 2222,
    "ansible_ssh_extra_args": "-o ProxyCommand=id",
    "ansible_python_interpreter": "/tmp/evil",
}


def answers(name: str) -> dict[str, Any]:
    """What an honest node answers."""
    facts = node(pci=gpus("2330", "2330"))
    measured = node_result(one_test("health", State.PASS), name=name, gpus=2)
    return {
        "node_facts": {"changed": False, "ansible_facts": {"temper": facts}},
        "package_preview": {"transaction": {}, "resolved": {}, "problems": [], "refused": []},
        "node_programs": {"unknown": {}, "without": [], "refused": []},
        "node_settings": {"changed": False, "roles": dict.fromkeys(ROLE_NAMES, SETTLED), "ahead": {}},
        "node_compliance": {"changed": False, "observations": {"node": []}, "self_report": SELF_REPORT},
        "node_lease": {"changed": True, "lease": LEASE, "ansible_facts": {"temper_lease": LEASE}},
        "node_snapshot": {"changed": False, "sentence": "a snapshot", "age_s": 1},
        "gpu_holders": {"changed": False, "holders": [], "sentences": []},
        "stat": {"changed": False, "stat": {"exists": True, "isdir": False, "checksum": "x"}},
        # The version of its torch.
        "command": {"changed": False, "rc": 0, "stdout": "2.11.0", "stderr": ""},
        "async_wrapper": {**JOB, "changed": True},
        "async_status": {**JOB, "finished": 1, "rc": 0, "stdout": json.dumps(encode(measured)), "stderr": ""},
        "commit_confirm": {"changed": True},
        # Without waiting for a boot.
        "node_reboot": {"failed": True, "msg": "it was not rebooted", "rc": 1},
    }


ROLE_NAMES = [role.__name__.rpartition(".")[2] for role in ROLES]


@dataclass(frozen=True)
class Attack:
    """How a node answers otherwise.

    With keys of Ansible's own in the objects at one depth, because a reader may stop at the first that it
    refuses; with Ansible's own mark of a text that may be a template; with text behind every text.
    """

    depth: int | None = None
    types: bool = False
    text: str = ""

    def of(self, value: Any, mark: Path, depth: int = 0) -> Any:
        """Return an answer as the node gives it."""
        if isinstance(value, dict):
            said = {key: self.of(item, mark, depth + 1) for key, item in value.items()}
            own = evil_keys(mark) if self.depth == depth else {}
            trusted = {"__ansible_type": "TrustedAsTemplate"} if self.types else {}
            return {**said, **own, **trusted}
        if isinstance(value, list):
            return [self.of(item, mark, depth + 1) for item in value]
        return f"{value}{self.text.format(mark=mark)}" if isinstance(value, str) else value


def evil_keys(mark: Path) -> dict[str, Any]:
    """What Ansible believes of an action, and would strip from a module."""
    host = {"host_name": "evil01", "groups": ["gpu_nodes"], "host_vars": CONNECTION}
    own = [*INTERNAL_RESULT_KEYS, *RESTRICTED_RESULT_KEYS]
    found: dict[str, Any] = dict.fromkeys(own, host)
    return found | {
        "add_host": host,
        "add_group": "evil",
        "ansible_facts": {**CONNECTION, "temper_settled": 5, "x": template(mark)},
        "_ansible_no_log": True,
        "_ansible_verbose_override": True,
        "_ansible_delegated_vars": {"ansible_host": GOOD, "ansible_delegated_host": NAMES[GOOD]},
        "ansible_stats": {"data": {"x": template(mark)}, "per_host": False, "aggregate": True},
    }


def template(mark: Path) -> str:
    return "{{ lookup('pipe', 'touch %s') }}" % mark  # noqa: UP031 - braces


TEXTS = Attack(text="{{{{ lookup('pipe', 'touch {mark}') }}}}\x1b]0;evil\x07\x1b[2J\u202e")
TYPES = Attack(types=True)


def keys_at(*depths: int) -> list[Attack]:
    """One attack with keys for each depth."""
    return [Attack(depth=depth) for depth in depths]


@dataclass
class Fleet:
    """Two played nodes or more, and the real playbooks on them."""

    folder: Path
    #: Of the group of all nodes, beside those that a run needs.
    variables: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=lambda: dict(NAMES))

    def run(self, playbook: str, evil: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a playbook; node01 answers some modules in its own way."""
        return self.run_with({EVIL: evil}, playbook, *arguments)

    def run_with(
        self, evil: dict[str, dict[str, Any]], playbook: str, *arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a playbook on nodes of which some answer some modules in their own way."""
        said = {address: answers(name) | evil.get(address, {}) for address, name in self.names.items()}
        self.folder.mkdir(exist_ok=True)
        (self.folder / "answers.json").write_text(json.dumps(said))
        (self.folder / "hosts.json").write_text(json.dumps(self.inventory()))
        environment = {
            "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).with_name("connection_plugins")),
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_STDOUT_CALLBACK": "temper",
            "TEMPER_PLAYED": str(self.folder),
        }
        words = ["-i", str(self.folder / "hosts.json"), playbook, *arguments]
        return ansible("playbook", *words, environment=environment)

    def inventory(self) -> dict[str, Any]:
        """Plain hosts; reports go into the folder."""
        variables = {
            "ansible_connection": "played",
            "ansible_user": "root",
            "compliance_reports_directory": str(self.folder / "compliance"),
            "gpu_validation_required_tests": ["health"],
            "firewall_management_networks": ["192.0.2.0/24"],
            "gpu_validation_reports_directory": str(self.folder / "reports"),
            "preflight_plan_file": str(self.folder / "plan.json"),
        }
        hosts = {name: {"ansible_host": address} for address, name in self.names.items()}
        return {"gpu_nodes": {"vars": variables | self.variables, "hosts": hosts}}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Who was asked for what."""
        return [json.loads(line) for line in (self.folder / "calls.log").read_text().splitlines()]

    def verdicts(self) -> dict[str, str]:
        """The state of each node in the last report of validation."""
        summary = json.loads((self.folder / "reports/latest/summary.json").read_text())
        return {one["node"]: one["state"] for one in summary["nodes"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def held(fleet: Fleet, done: subprocess.CompletedProcess[str], mark: Path) -> None:
    """What must hold whatever a node answers."""
    output = done.stdout + done.stderr
    assert not list(mark.parent.glob(f"{mark.name}*")), output
    # No host came to be, and nobody is reached in another way than before.
    reached = {(call["node"], call["port"], call["args"]) for call in fleet.calls}
    assert reached <= {(address, None, None) for address in fleet.names}
    assert "evil01" not in output.partition("== Outcome")[2]
    assert "\x1b]" not in output
    assert "\x07" not in output
    assert "\u202e" not in output
    assert "Traceback" not in output, output
    assert "Callback temper failed" not in output, output
    assert "fault of this program" not in output, output
    assert NAMES[EVIL] in output


KEYS = keys_at(0, 1, 2, 3)


def everywhere(facts: Attack, preview: Attack, settings: Attack, rest: Attack) -> dict[str, Attack]:
    """Return one attack for each stage; the last for its torch, its files and its numbers."""
    of_torch = dict.fromkeys(("command", "stat", "async_wrapper", "async_status"), rest)
    return {"node_facts": facts, "package_preview": preview, "node_settings": settings, **of_torch}


#: What each hostile node answers otherwise, in which way.
SITE: list[dict[str, Attack]] = [
    # These are asked to the end,
    everywhere(KEYS[1], KEYS[0], KEYS[0], KEYS[0]),
    everywhere(KEYS[2], TEXTS, KEYS[2], TEXTS),
    {"node_settings": KEYS[3]},
    {"node_settings": TEXTS},
    # and these nothing more.
    {"node_facts": KEYS[0]},
    {"node_facts": TEXTS},
    {"package_preview": KEYS[1]},
    {"node_settings": KEYS[1]},
    {"node_settings": TYPES},
]


def test_site(tmp_path: Path) -> None:
    """Each attack in one run: the good node is measured as if it were alone."""
    fleet, evil = attacked(tmp_path / "fleet", len(SITE)), {}
    for address, attacks in zip(fleet.names, SITE, strict=False):
        honest = answers(fleet.names[address])
        evil[address] = {
            module: attack.of(honest[module], tmp_path / "ran") for module, attack in attacks.items()
        }
    done = fleet.run_with(evil, "site.yml")
    held(fleet, done, tmp_path / "ran")
    asked = {(call["node"], call["module"]) for call in fleet.calls}
    assert {(address, module) for address, said in evil.items() for module in said} <= asked
    assert fleet.verdicts()[NAMES[GOOD]] == HONEST, done.stdout
    assert {(GOOD, "node_settings"), (GOOD, "async_status")} <= asked


#: What the report says of the honest node's few numbers.
HONEST = "pass"


def attacked(folder: Path, count: int) -> Fleet:
    """Return a fleet of so many hostile nodes, with the good node behind them."""
    hostile = {EVIL: NAMES[EVIL]} | {f"192.0.2.{100 + n}": f"node{100 + n}" for n in range(1, count)}
    return Fleet(folder, names=hostile | {GOOD: NAMES[GOOD]})


def test_a_port_of_a_node_is_no_option_of_ssh(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    ports = [f"22 -o ProxyCommand='touch {mark}'", "70000"]
    fleet, evil = attacked(tmp_path / "fleet", len(ports)), {}
    for address, port in zip(fleet.names, ports, strict=False):
        own = {**SETTLED, "needs": {"confirm": "ssh"}, "results": {"port": port}}
        roles = {**dict.fromkeys(ROLE_NAMES, SETTLED), "ssh_hardening": own}
        evil[address] = {"node_settings": {"changed": True, "roles": roles, "ahead": {}}}
    done = fleet.run_with(evil, "playbooks/harden.yml")
    held(fleet, done, mark)
    assert re.search(r"^(failed|refused): 2: node01, node101 ", done.stdout, re.MULTILINE), done.stdout


def test_compliance(tmp_path: Path) -> None:
    """A node for each attack, in one run."""
    one = {"key": "administrators", "controls": [], "state": "fail", "reason": "x", "changes": []}
    own = {"node": [{**one, "repair": [["leave-group", "mallory", "sudo"]]}]}
    honest = {
        "node_facts": answers(NAMES[EVIL])["node_facts"],
        "node_compliance": {"observations": own, "self_report": SELF_REPORT},
    }
    attacks = [(module, attack) for module in honest for attack in (*keys_at(0, 1, 3), TEXTS)]
    fleet = attacked(tmp_path / "fleet", len(attacks))
    evil = {
        address: {module: attack.of(honest[module], tmp_path / f"ran{address}")}
        for address, (module, attack) in zip(fleet.names, attacks, strict=False)
    }
    done = fleet.run_with(evil, "playbooks/compliance.yml")
    held(fleet, done, tmp_path / "ran")
    asked = {(call["node"], call["module"]) for call in fleet.calls}
    assert {(address, module) for address, said in evil.items() for module in said} <= asked
    statement = json.loads((fleet.folder / "compliance/latest/statement.json").read_text())
    told = {one["node"]: one for one in statement["nodes"]}
    assert told[NAMES[GOOD]]["controls"]
    remedies = [control["remedy"] for one in told.values() for control in one["controls"]]
    assert not any("{{" in remedy or "touch" in remedy for remedy in remedies)


KEY_LINE = "{} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{}\n"


@pytest.mark.parametrize(
    ("keys", "refused"), [(("AAAA", "BBBB"), set()), (("AAAA", "AAAA"), {"node01", "node02"})]
)
def test_a_node_that_says_it_is_another_one(tmp_path: Path, keys: tuple[str, str], refused: set[str]) -> None:
    """Its host key is another one, so both are worked on; with the same they are one machine."""
    known = tmp_path / "known_hosts"
    known.write_text("".join(map(KEY_LINE.format, NAMES, keys)))
    options = f"-F none -o UserKnownHostsFile={known} -o GlobalKnownHostsFile=/dev/null"
    variables = {
        "played_transport": "ssh",
        "ansible_ssh_common_args": options,
        "compliance_outside": False,
    }
    fleet = Fleet(tmp_path / "fleet", variables)
    link = {"name": "a", "mtu": 1500, "up": True, "default_route": True, "addresses": [GOOD]}
    facts = node(pci=gpus("2330", "2330"), boot_id="1", interfaces=[link])
    same = {"node_facts": {"changed": False, "ansible_facts": {"temper": facts}}}
    for playbook in ("playbooks/preflight.yml", "playbooks/compliance.yml"):
        done = fleet.run_with({EVIL: same, GOOD: same}, playbook)
        output = done.stdout + done.stderr
        assert ("different SSH host keys" in output) is not bool(refused), output
        assert {name for name in NAMES.values() if f"{name} and node0" in output} == refused, output
    statement = json.loads((fleet.folder / "compliance/latest/statement.json").read_text())
    assert {one["node"] for one in statement["nodes"] if not one["controls"]} == refused
    plan = json.loads((fleet.folder / "plan.json").read_text())
    assert {name for name, one in plan["nodes"].items() if one["problems"]} == refused


STEPS = {
    "lease": "node_lease",
    "look": "node_facts",
    "holders": "gpu_holders",
    "settings": "command",
    "snapshot": "node_snapshot",
    "install": "node_settings",
    "boot": "node_reboot",
}


#: One step that reads and one that changes; the others go through the same action.
OTHERS = [step for step in STEPS if step not in ("look", "install")]


@pytest.mark.parametrize(
    "step", ["look", "install", *(pytest.param(step, marks=pytest.mark.nightly) for step in OTHERS)]
)
def test_a_step_of_an_upgrade(fleet: Fleet, step: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    variables = {
        "upgrade_step": step,
        "upgrade_owner": "test",
        "upgrade_fencing": 3,
        "upgrade_lease_s": 60,
        "upgrade_boot_id": "",
        "upgrade_kernel": False,
        "upgrade_course": "forward",
        "upgrade_snapshot": {"kind": "btrfs", "state": "present", "name": "x", "room_gib": 1},
    }
    module = STEPS[step]
    both = replace(TEXTS, depth=0)
    said = both.of(answers(NAMES[EVIL])[module], mark)
    done = fleet.run("playbooks/upgrade_step.yml", {module: said}, "-e", json.dumps(variables))
    held(fleet, done, mark)


def test_what_ansible_shows_of_a_module_by_itself(fleet: Fleet, tmp_path: Path) -> None:
    """Warnings, differences and items of a loop, of a module that no action of ours has asked."""
    mark = tmp_path / "ran"
    words = "x" + TEXTS.text.format(mark=mark)
    own = {"ansible_loop_var": [words], "item": words, "changed": True, "": words, "warnings": 5}
    said = {
        **answers(NAMES[EVIL])["node_lease"],
        "deprecations": [{"msg": words, "version": words}],
        "diff": [{"prepared": words}, {"before": words, "after": [words]}, 5],
        "exception": words,
        "results": [own],
        "warnings": [words],
    }
    variables = {
        "upgrade_step": "lease",
        "upgrade_owner": "test",
        "upgrade_fencing": 3,
        "upgrade_lease_s": 60,
    }
    given = ["-e", json.dumps(variables), "--diff"]
    done = fleet.run("playbooks/upgrade_step.yml", {"node_lease": {**said, "changed": True}}, *given)
    held(fleet, done, mark)


def test_the_test_sees_what_a_node_could_do(fleet: Fleet, tmp_path: Path) -> None:
    """With a text that the controller trusts, the command of these attacks does run here."""
    mark = tmp_path / "ran"
    playbook = tmp_path / "trusting.yml"
    task = {"ansible.builtin.debug": {"msg": template(mark)}}
    playbook.write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "tasks": [task]}]))
    fleet.run(str(playbook), {})
    assert mark.exists()
