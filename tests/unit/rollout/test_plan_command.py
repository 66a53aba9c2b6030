"""`temper rollout plan`: from an inventory and preflight's plans to waves, times, and reasons."""

import argparse
import asyncio
import contextlib
import errno
import getpass
import io
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jinja2
import pytest
import yaml

from temper.base import ROOT
from temper.cli import rollout as command
from temper.cli.main import main as temper
from temper.output.rollout import Terminal, line
from temper.plan.inventory import InventoryError, groups_of
from temper.plan.inventory import ansible as run_ansible
from temper.rollout import fleet
from temper.rollout.engine import Ending, Engine
from temper.rollout.fleet import candidates, proposal
from temper.rollout.forecast import forecast, plan_text
from temper.rollout.model import Mode, NodeState, Step
from temper.rollout.policy import Drain, Policy, Share
from temper.rollout.store import RolloutStore, StoreError
from temper.rollout.windows import Window
from tests.unit.each import each
from tests.unit.rollout.fleets import NOW, begin, having, nodes

pytestmark = pytest.mark.usefixtures("forked_ansible")

STACK = "r595-cuda13.2"
INVENTORY = """
gpu_nodes:
  children:
    rack1: {hosts: {node1: {ansible_host: 127.0.0.1, ansible_port: 1}}}
    rack2: {hosts: {node2: {ansible_host: 127.0.0.1, ansible_port: 1}, node3: {}}}
"""


def document(name: str = "H100", former: str = "580.1-1", **more: Any) -> dict[str, Any]:
    """A node of preflight's file."""
    change = {"name": "nvidia-driver-cuda", "from_": former, "from": former, "to": "595.1-1"}
    transaction = {"upgrade": [change], "download_bytes": 2**30, "disk_bytes": 2**30}
    return {
        "problems": [],
        "stack": STACK,
        "settled": False,
        "system": "debian-12",
        "gpus": [{"name": name, "count": 8}],
        "driver": {"version": "595.1", "package_version": "595.1-1"},
        "transaction": transaction,
        **more,
    }


def preflight_leaves(monkeypatch: pytest.MonkeyPatch, plans: dict[str, Any]) -> list[dict[str, Any]]:
    """Preflight itself is not run: only what it leaves is there. Returns the variables that it is given."""
    asked = []

    def ansible(program: str, _: Any, *arguments: str, **_more: str) -> subprocess.CompletedProcess[str]:
        variables = json.loads(arguments[arguments.index("-e") + 1])
        assert variables["nvidia_stack_busy_ok"], "a node with work is drained, not left out"
        asked.append(variables)
        Path(variables["preflight_plan_file"]).write_text(json.dumps({"nodes": plans}))
        return subprocess.CompletedProcess([program], 0, "", "")

    monkeypatch.setattr(fleet, "ansible", ansible)
    return asked


def test_cohorts_are_of_the_same_gpus_system_and_change_of_driver() -> None:
    documents = {
        "a": document(),
        "b": document(),
        "c": document(former="570.1-1"),
        "d": document("L4"),
        "e": document(system="debian-13"),
    }
    found = {node.name: node.cohort for node in candidates(documents, {})}
    assert found["a"] == found["b"]
    assert len(set(found.values())) == 4
    assert found["a"] == "8x H100, debian-12, 580.1-1 -> 595.1-1"


def test_each_reason_why_a_node_is_left_out_is_kept() -> None:
    documents = {
        "refused": document(problems=["Tesla V100 needs branch 580", "the disk is full"]),
        "done": document(settled=True),
        "silent": {"problems": ["no plan was made"]},
        "fine": document(),
    }
    rollout = proposal(candidates(documents, {}), Policy(), STACK, NOW)
    reasons = {name: record.reason for name, record in rollout.records.items()}
    assert {name for name, record in rollout.records.items() if record.state is NodeState.PENDING} == {"fine"}
    assert "V100" in reasons["refused"]
    assert "disk" in reasons["refused"]
    assert STACK in reasons["done"]
    assert rollout.records["fine"].wave == 0


def test_a_node_with_the_name_of_a_group_of_others_is_left_out() -> None:
    """To `--limit` it is the group: the others would be upgraded, and nobody has drained them."""
    plans = {"gpu01": document(), "gpu02": document()}
    (first, second) = candidates(plans, {"gpu01": ("gpu01", "rack"), "gpu02": ("gpu01",)})
    assert "group of other hosts" in first.problems[0]
    assert not second.problems
    (alone,) = candidates({"gpu01": document()}, {"gpu01": ("gpu01",), "gpu02": ("rack",)})
    assert not alone.problems


@each(
    Policy(group_limits={"rak*": 1}),
    Policy(windows=(Window(frozenset({0}), time(1), time(2), "UTC", frozenset({"rak1"})),)),
)
def test_a_policy_for_groups_that_no_node_is_in_is_refused(policy: Policy) -> None:
    with pytest.raises(InventoryError, match="rak"):
        proposal(candidates({"a": document()}, {"a": ["rack1"]}), policy, STACK, NOW)


@pytest.mark.component
def test_one_node_takes_the_policy_of_the_whole_fleet(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups are not all that the policy names."""
    preflight_leaves(monkeypatch, {"node1": document()})
    (tmp_path / "policy.yml").write_text(
        "group_limits: {rack2: 1}\n"
        "windows: [{days: [mon-sun], start: '00:00', end: '24:00', zone: UTC, groups: [gpu_nodes, rack2]}]\n"
    )
    assert run("-i", str(inventory), "--policy", str(tmp_path / "policy.yml"), "--limit", "node1") == 0
    assert "1 of 1 nodes" in capsys.readouterr().out


def test_the_forecast_is_the_planners_own_way() -> None:
    policy = Policy(max_unavailable=Share(2), waves=(Share(100, True),))
    seen = forecast(begin(nodes(5), policy), NOW)
    # A node takes 15 + 30 + 60 minutes, the canary soaks for 60, and two nodes go at a time.
    assert [(wave.number, len(wave.nodes)) for wave in seen.waves] == [(0, 1), (1, 4)]
    assert seen.waves[0].ends == NOW + timedelta(minutes=105)
    assert seen.waves[1].begins == NOW + timedelta(minutes=165)
    assert seen.waves[1].ends == NOW + timedelta(minutes=165 + 2 * 105)


def test_the_forecast_keeps_to_windows() -> None:
    night = Window(frozenset(range(7)), time(22), time(1), "UTC")
    policy = Policy(windows=(night,), waves=(Share(100, True),), max_unavailable=Share(100, True))
    seen = forecast(begin(nodes(3), policy), NOW)
    assert [wave.begins for wave in seen.waves] == [
        datetime.combine(date(2027, 3, day), time(22), UTC) for day in (1, 2)
    ]


def test_the_plan_says_waves_times_transactions_and_who_is_left_out() -> None:
    found = candidates({"n1": document(), "n2": document(), "n3": document(problems=["no GPU"])}, {})
    text = plan_text(proposal(found, Policy(), STACK, NOW), found, NOW)
    assert f"Stack {STACK}: 2 of 3 nodes" in text
    assert "canaries: n1; 2027-03-01 12:00 UTC to 2027-03-01 13:45 UTC" in text
    assert "2 nodes: n1, n2: 8x H100" in text
    assert "1.0 GiB to download" in text
    assert "left out: n3: no GPU" in text


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    return tmp_path / "hosts.yml"


@pytest.mark.component
def test_groups_are_those_of_ansible(inventory: Path) -> None:
    assert groups_of([str(inventory)]) == {
        "node1": ("gpu_nodes", "rack1"),
        "node2": ("gpu_nodes", "rack2"),
        "node3": ("gpu_nodes", "rack2"),
    }


@pytest.mark.component
def test_a_rack_may_be_a_variable_of_a_node_also_as_a_template(tmp_path: Path) -> None:
    hosts = {"n1": {"rack": 12}, "n2": {"racks": ["R7"]}, "n3": {"rack": "{{ 'r' ~ 3 }}"}, "n4": {}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    assert groups_of([str(tmp_path / "hosts.yml")]) == {
        "n1": ("gpu_nodes", "rack_12"),
        "n2": ("gpu_nodes", "rack_R7"),
        "n3": ("gpu_nodes", "rack_r3"),
        "n4": ("gpu_nodes",),
    }


@pytest.mark.component
@pytest.mark.parametrize("own", [{"rack": "r{{ nowhere.number }}"}, {"racks": ["{{ nowhere }}"]}])
def test_a_rack_that_cannot_be_resolved_is_refused_by_name(tmp_path: Path, own: dict[str, Any]) -> None:
    hosts = {"n1": own, "n2": {"rack": "{{ unset | default('') }}"}, "n3": {}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    with pytest.raises(InventoryError, match=f"variable {next(iter(own))} of (n1|the nodes)"):
        groups_of([str(tmp_path / "hosts.yml")])


def test_the_plan_names_nodes_that_a_limit_of_racks_does_not_reach() -> None:
    groups = {"a": ["rack1"], "b": ["gpu_nodes"], "c": [], "gone": []}
    found = candidates(
        {name: document(problems=["no GPU"] if name == "gone" else []) for name in groups}, groups
    )

    def said(limits: dict[str, int]) -> list[str]:
        text = plan_text(proposal(found, Policy(group_limits=limits), STACK, NOW), found, NOW)
        return [line for line in text.splitlines() if "group_limits" in line]

    (line,) = said({"rack*": 1, "gpu_*": 9})
    assert "rack*" in line
    assert "2 nodes: b, c" in line
    # One rack of several is not meant for all nodes.
    assert said({"rack1": 1}) == said({}) == []


def run(*arguments: str) -> int:
    return command.main(["plan", "--stack", STACK, *arguments])


@pytest.mark.component
def test_a_wrong_inventory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-i", str(tmp_path / "nowhere.yml")) == 2
    assert "nowhere.yml" in capsys.readouterr().err


def test_a_wrong_policy_is_named_before_any_node_is_asked(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    (tmp_path / "policy.yml").write_text("canarys: 3\n")
    assert run("-i", str(inventory), "--policy", str(tmp_path / "policy.yml")) == 2
    assert "did you mean canaries?" in capsys.readouterr().err


@pytest.mark.component
@pytest.mark.parametrize(("problems", "status"), [([], 0), (["no answer"], 1)])
def test_the_command_prints_the_plan(
    inventory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    problems: list[str],
    status: int,
) -> None:
    names = ("node1", "node2", "node3")
    asked = preflight_leaves(monkeypatch, {name: document(problems=problems) for name in names})
    assert run("-i", str(inventory), "--json") == status
    shown = json.loads(capsys.readouterr().out)
    assert shown["nodes"]["node1"]["problems"] == problems
    assert sorted(name for wave in shown["waves"] for name in wave["nodes"]) == ([] if problems else [*names])
    asked.clear()
    assert run("-i", str(inventory)) == status
    assert [variables["nvidia_stack_name"] for variables in asked] == [STACK]
    assert "node1" in capsys.readouterr().out


def preview(**kernel: Any) -> dict[str, Any]:
    """What module node_kernel says of a node."""
    found = {
        "running": "6.1.0-40-amd64",
        "release": "6.1.0-41-amd64",
        "version": "6.1.160-1",
        "install": ["linux-image-6.1.0-41-amd64"],
        "upgrade": [],
        "download_bytes": 2**26,
        "warning": "",
    }
    return {"kernel": kernel or found}


def test_each_node_says_what_its_kernel_would_be() -> None:
    documents = {
        "gets": document(settled=True),
        "has": document(settled=True),
        "cannot": document(settled=True),
        "silent": document(settled=True),
        "refused": document(problems=["no GPU"]),
    }
    previews = {
        "gets": preview(),
        "has": preview(settled="it has the newest kernel already"),
        "cannot": preview(problem="expected GRUB, found none"),
    }
    found = {node.name: node for node in candidates(documents, {}, previews, only_kernel=True)}
    assert found["gets"].cohort == "8x H100, debian-12, 6.1.0-40-amd64 -> 6.1.0-41-amd64"
    assert "64 MiB to download" in found["gets"].transaction[0]
    assert {name: node.problems for name, node in found.items()} == {
        "gets": (),
        "has": ("it has the newest kernel already",),
        "cannot": ("expected GRUB, found none",),
        "silent": ("it has not said which kernel it gets",),
        "refused": ("no GPU",),
    }
    rollout = proposal(list(found.values()), Policy(kernel="newest"), "", NOW)
    assert "The newest kernel: 1 of 5 nodes" in plan_text(rollout, list(found.values()), NOW)


@each(
    5,
    {"release": "6.1.0-41-amd64", "download_bytes": "x"},
    {"release": ["x"]},
    {"release": "6.1.0-41-amd64", "install": [{}]},
    {"release": "6.1.0-41-amd64", "download_bytes": 10**400},
    {"release": "x" * (1 << 20)},
)
def test_a_node_that_says_its_kernel_in_another_form_is_left_out_alone(kernel: object) -> None:
    documents = {name: document(settled=True) for name in ("evil", "good")}
    previews = {"evil": {"kernel": kernel}, "good": preview()}
    found = {node.name: node for node in candidates(documents, {}, previews, only_kernel=True)}
    assert "in another form" in found["evil"].problems[0]
    assert found["good"].problems == ()


def test_a_kernel_with_a_stack_is_one_change() -> None:
    documents = {
        "both": document(),
        "kernel": document(settled=True),
        "stack": document(),
        "none": document(settled=True),
    }
    has = preview(settled="it has the newest kernel already")
    previews = {"both": preview(), "kernel": preview(), "stack": has, "none": has}
    found = {node.name: node for node in candidates(documents, {}, previews)}
    assert found["both"].cohort.endswith("580.1-1 -> 595.1-1, 6.1.0-40-amd64 -> 6.1.0-41-amd64")
    assert found["kernel"].cohort == "8x H100, debian-12, 6.1.0-40-amd64 -> 6.1.0-41-amd64"
    assert found["stack"].cohort == "8x H100, debian-12, 580.1-1 -> 595.1-1"
    assert [bool(node.problems) for node in found.values()] == [False, False, True, False]
    rollout = proposal(list(found.values()), Policy(kernel="newest"), STACK, NOW)
    assert f"Stack {STACK} with the newest kernel: 3 of 4" in plan_text(rollout, list(found.values()), NOW)


def test_a_kernel_that_the_distributions_driver_does_not_know_is_left_out() -> None:
    newer = preview()
    newer["kernel"]["release"] = "6.16.3+deb12-amd64"
    (node,) = candidates({"a": document(source="distro")}, {}, {"a": newer}, only_kernel=True)
    assert "known to build for kernels up to 6.12" in node.problems[0]
    (node,) = candidates({"a": document(source="nvidia")}, {}, {"a": newer}, only_kernel=True)
    assert node.problems == ()


def test_a_roll_out_of_nothing_is_refused(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["run", "-i", str(inventory)]) == 2
    assert "expected --stack, --kernel, or both" in capsys.readouterr().err
    assert command.main(["plan", "-i", str(inventory), "--kernel", "latest"]) == 2
    assert "kernel: expected newest, or the version of a kernel's package" in capsys.readouterr().err


@pytest.mark.component
def test_the_command_asks_the_nodes_for_their_kernels(
    inventory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ansible(program: str, _: Any, *arguments: str, **_more: str) -> subprocess.CompletedProcess[str]:
        variables = json.loads(arguments[arguments.index("-e") + 1])
        assert "nvidia_stack_name" not in variables
        assert "playbooks/kernel_preview.yml" in arguments
        assert variables["kernel_preview_wish"] == "6.1.160-1"
        names = ("node1", "node2", "node3")
        plans = {"nodes": {name: document(settled=True) for name in names}}
        Path(variables["preflight_plan_file"]).write_text(json.dumps(plans))
        Path(variables["kernel_preview_file"]).write_text(json.dumps({name: preview() for name in names}))
        return subprocess.CompletedProcess([program], 0, "", "")

    monkeypatch.setattr(fleet, "ansible", ansible)
    assert command.main(["plan", "-i", str(inventory), "--kernel", "6.1.160-1"]) == 0
    said = capsys.readouterr().out
    assert "Kernel 6.1.160-1: 3 of 3 nodes" in said
    assert "3 nodes: node1-node3: 8x H100, debian-12, 6.1.0-40-amd64 -> 6.1.0-41-amd64" in said


def test_a_kernel_is_not_rolled_back_by_the_command(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RolloutStore(tmp_path / "rollouts.sqlite")
    rollout = begin(nodes(1), Policy(kernel="newest"))
    store.create("", rollout.policy, rollout.nodes, rollout.records, NOW)
    assert command.main(["rollback", "--yes", "-i", str(inventory), "--folder", str(tmp_path)]) == 2
    assert "`rollback` brings stacks only" in capsys.readouterr().err
    assert command.main(["status", "--folder", str(tmp_path)]) == 3
    assert "Roll-out 1 to the newest kernel: running" in capsys.readouterr().out


@pytest.mark.component
@pytest.mark.parametrize("given", [False, True])
def test_a_way_back_takes_the_policy_of_the_way_there(
    inventory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: bool,
) -> None:
    policy = Policy(drain=Drain.SLURM, max_unavailable=Share(2), group_limits={"rack*": 1})
    facts = {"former_stack": "r580-cuda13.0"}
    there = having(begin(nodes(2), policy), gpu0={"state": NodeState.RETURNED, "facts": facts})
    store = RolloutStore(tmp_path / "rollouts.sqlite")
    store.create(there.stack, policy, there.nodes, there.records, NOW)
    store.stop(1, "alice", "slower", NOW)
    preflight_leaves(monkeypatch, {"node1": document()})
    monkeypatch.setattr(command, "_carry_out", lambda *_: 0)
    (tmp_path / "policy.yml").write_text("max_unavailable: 7\n")
    more = ["--policy", str(tmp_path / "policy.yml")] if given else []
    assert command.main(["rollback", "--yes", "-i", str(inventory), "--folder", str(tmp_path), *more]) == 0
    back = store.load(2)
    assert back
    assert back.policy == (Policy(max_unavailable=Share(7)) if given else policy)
    said = f"Policy: {tmp_path}/policy.yml." if given else "Policy: that of roll-out 1, which is rolled back."
    assert said in capsys.readouterr().out


@pytest.mark.component
def test_the_names_of_a_large_fleet_go_to_ansible_in_a_file(
    inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes 128 KiB for one word of a command line."""
    real, given = run_ansible, []

    def ansible(
        program: str, sources: list[str], *arguments: str, **_: str
    ) -> subprocess.CompletedProcess[str]:
        given.append(Path(arguments[arguments.index("--limit") + 1].removeprefix("@")).read_text())
        return real(program, sources, "--list-hosts", *arguments)

    monkeypatch.setattr(fleet, "ansible", ansible)
    with pytest.raises(InventoryError, match="made no plans"):  # --list-hosts makes none
        fleet.preflight([str(inventory)], STACK, "node1\nnode3")
    assert given == ["node1\nnode3"]


def test_ctrl_c_before_the_first_step_is_one_sentence(
    inventory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "preflight", interrupted)
    assert temper(["rollout", "plan", "-i", str(inventory), "--stack", STACK]) == 130
    (said,) = capsys.readouterr().err.splitlines()
    assert "temper rollout: interrupted; no node was changed" in said


def test_a_program_finds_nothing_but_reasons_among_the_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "groups_of", lambda _: {"node1": ["gpu_nodes"]})
    preflight_leaves(monkeypatch, {"node1": document(problems=["no disk"])})
    assert command.main(["plan", "-i", "mine", "--stack", STACK]) == 1
    said = capsys.readouterr()
    assert "no disk" in said.out
    assert not said.err


@pytest.mark.component
def test_a_pipe_that_closes_is_no_error_of_the_program(tmp_path: Path) -> None:
    rollout = begin(nodes(2000))
    RolloutStore(tmp_path / "rollouts.sqlite").create(
        rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW
    )
    words = [sys.executable, "-m", "temper", "rollout", "report", "--json", "--folder", str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as said:
        assert said.stdout
        assert said.stderr
        said.stdout.close()
        assert said.stderr.read() == ""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a roll-out that nobody works on."""
    rollout = begin(nodes(1))
    RolloutStore(tmp_path / "rollouts.sqlite").create(
        rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW, ["mine"]
    )
    monkeypatch.setattr(command, "groups_of", lambda _: {name: ["gpu_nodes"] for name in rollout.nodes})
    return tmp_path


@each(False, True)
def test_a_closed_terminal_ends_nothing_under_nohup(
    ignored: bool, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hang_up(*_: object) -> Ending:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        return Ending(Mode.DONE, "")

    monkeypatch.setattr(Engine, "run", hang_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert temper(["rollout", "resume", "--folder", str(begun)]) == (0 if ignored else 130)
        again = f"temper rollout resume --folder {begun}"
        assert (again in capsys.readouterr().err) is not ignored
    finally:
        signal.signal(signal.SIGHUP, before)


@each(StoreError("no space"), OSError(errno.ENOSPC, "no space"))
def test_a_roll_out_that_this_machine_ends_is_left_to_a_person(
    error: Exception, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes are on their way: it is not as if nothing had been carried out."""
    monkeypatch.setattr(Engine, "run", Mock(side_effect=error))
    assert command.main(["resume", "--folder", str(begun)]) == 1
    said = capsys.readouterr().err
    assert all(fact in said for fact in ("no space", f"temper rollout resume --folder {begun}"))


def test_without_a_roll_out_a_command_says_how_one_begins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in (
        ["status"],
        ["report"],
        ["hold", "--reason", "x"],
        ["retry", "gpu01"],
        ["resume", "-i", "x"],
    ):
        assert command.main([*arguments, "--folder", str(tmp_path)]) == 2
        assert "has no roll-out: `temper rollout run` begins one" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


@each(
    (False, "", [], 2, False),
    (False, "", ["--yes"], 0, True),
    (True, "yes", [], 0, True),
    (True, "no", [], 2, False),
    (True, None, [], 2, False),
    (True, "", ["--yes"], 0, True),
)
def test_nothing_begins_before_somebody_has_agreed_to_the_plan(
    terminal: bool,
    answer: str | None,
    options: list[str],
    status: int,
    begun: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(question: str) -> str:
        assert "node1" in question
        assert "canaries: node1" in capsys.readouterr().out
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: terminal)
    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(command, "groups_of", lambda _: {"node1": ["gpu_nodes"]})
    monkeypatch.setattr(command, "_carry_out", lambda *_: 0)
    preflight_leaves(monkeypatch, {"node1": document()})
    words = ["run", "-i", "mine", "--stack", STACK, "--folder", str(tmp_path), *options]
    assert command.main(words) == status
    store = RolloutStore(tmp_path / "rollouts.sqlite")
    assert store.path.exists() is begun
    if begun:
        assert store.inventory(1) == [str(Path("mine").resolve())]
    elif not terminal:
        assert "--yes" in capsys.readouterr().err


def test_ctrl_c_at_the_question_says_once_that_nothing_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: str) -> str:
        capsys.readouterr()
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(command, "groups_of", lambda _: {"node1": ["gpu_nodes"]})
    preflight_leaves(monkeypatch, {"node1": document()})
    words = ["rollout", "run", "-i", "mine", "--stack", STACK, "--folder", str(tmp_path)]
    assert temper(words) == 130
    assert capsys.readouterr().err.strip() == "temper rollout: interrupted; nothing was changed"
    assert not (tmp_path / "rollouts.sqlite").exists()


def test_a_roll_out_begins_when_somebody_has_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question may stand for hours."""
    answered: list[datetime] = []

    def ask(_: str) -> str:
        answered.append(datetime.now(UTC))
        return "yes"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(command, "groups_of", lambda _: {"node1": ["gpu_nodes"]})
    monkeypatch.setattr(command, "_carry_out", lambda *_: 0)
    preflight_leaves(monkeypatch, {"node1": document(), "node2": document(problems=["no disk"])})
    words = ["run", "-i", "mine", "--stack", STACK, "--folder", str(tmp_path)]
    assert command.main(words) == 0
    begun = RolloutStore(tmp_path / "rollouts.sqlite").load()
    assert begun
    assert len(begun.records) == 2
    assert [name for name, record in begun.records.items() if record.since < answered[0]] == []


def test_a_roll_out_goes_on_with_the_inventory_that_it_was_begun_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def carry_out(given: argparse.Namespace, *_: object) -> int:
        asked.append(command._inventory(given))
        return 0

    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    monkeypatch.setattr(command, "_carry_out", carry_out)
    monkeypatch.setattr(command, "groups_of", lambda _: {"gpu0": ["gpu_nodes"]})
    store, rollout = RolloutStore(tmp_path / "rollouts.sqlite"), begin(nodes(1))
    for inventory in ((), ("/etc/fleet",)):
        number = store.create(rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW, inventory)
        status = command.main(["resume", "--folder", str(tmp_path)])
        assert status == (0 if inventory else 2)
        store.stop(number, "ann", "enough", NOW)
    assert "expected -i INVENTORY" in capsys.readouterr().err
    assert asked == [["/etc/fleet"]]


def test_the_moving_line_says_steps_and_end() -> None:
    fields = {"state": NodeState.DRAINED, "step": Step.BASELINE, "step_since": NOW}
    rollout = having(begin(nodes(3)), gpu0=fields, gpu2=NodeState.RETURNED)
    said = line(rollout, NOW + timedelta(minutes=2), NOW + timedelta(hours=3))
    assert said == (
        "1 of 3 nodes done, end expected at 2027-03-01 15:00 UTC: step 4 of 10, baseline: 2 min; waiting for "
        "gpu0, at most 13 min more"
    )


def test_the_line_moves_on_a_terminal_alone_and_makes_room_for_others() -> None:
    class Stream(io.StringIO):
        terminal = True

        def isatty(self) -> bool:
            return self.terminal

    fields = {"state": NodeState.SETTLED, "step": Step.PROVE, "step_since": NOW}
    rollout = having(begin(nodes(1)), gpu0=fields)
    shown = Stream()
    terminal = Terminal(dict, shown)
    terminal.show(rollout, NOW)
    terminal.say("wave 1 starts")
    assert "step 9 of 10, prove" in shown.getvalue()
    assert shown.getvalue().endswith("\r\x1b[Kwave 1 starts\n")
    plain = Stream()
    plain.terminal = False
    other = Terminal(dict, plain)
    other.show(rollout, NOW)
    other.say("wave 1 starts")
    assert plain.getvalue() == "wave 1 starts\n"


def test_the_end_is_forecast_from_the_steps_under_way_and_the_times_so_far() -> None:
    fields = {"state": NodeState.SETTLED, "step": Step.PROVE, "step_since": NOW - timedelta(minutes=5)}
    rollout = having(begin(nodes(1)), gpu0=fields)
    assert forecast(rollout, NOW).ends == NOW + timedelta(minutes=10)
    assert forecast(rollout, NOW, {Step.PROVE: 7.0, Step.RETURN: 1.0}).ends == NOW + timedelta(minutes=3)


def test_progress_goes_on_in_the_log_when_the_terminal_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as gone:  # noqa: PTH123 - any write fails
        monkeypatch.setattr(sys, "stdout", gone)
        command._logged(tmp_path / "progress.log", Terminal(dict).say)("gpu01: now drained")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            gone.close()
    assert (tmp_path / "progress.log").read_text().endswith(" gpu01: now drained\n")


def test_progress_is_on_the_terminal_and_in_a_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "1" / "progress.log"
    for text in ("wave 1: gpu01 starts", "done: 1 returned"):
        command._logged(log, Terminal(dict).say)(text)
    assert capsys.readouterr().out.splitlines() == ["wave 1: gpu01 starts", "done: 1 returned"]
    lines = log.read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["wave 1: gpu01 starts", "done: 1 returned"]
    assert all(datetime.fromisoformat(line.partition(" ")[0]).tzinfo for line in lines)


def test_a_timer_does_nothing_where_nobody_has_begun(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["resume", "--scheduled", "-i", "x", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_timer_names_the_inventory_and_never_resumes_what_a_person_has_held(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main(["schedule", "-i", str(tmp_path / "a b"), "--folder", str(tmp_path)]) == 0
    service = capsys.readouterr().out
    assert f"\nUser={getpass.getuser()}\n" in service  # root has neither the keys nor the records of others
    assert f"rollout resume --scheduled -i '{tmp_path}/a b' --folder {tmp_path}" in service
    assert command.main(["schedule", "--cron", "-i", "x", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("*/15 * * * * ")


@each(
    (0, "a warning of Python", "", "The roll-out ended well"),
    (0, "", "", "The roll-out ended well"),
    (1, "", "", "temper rollout status"),
    (1, "preflight: 2 nodes\nwhy it ended\n", "", "why it ended"),
    (0, "a warning of Python", "check", "The plan above"),
    (2, "no stack\n", "check", "no stack"),
)
def test_the_playbook_ends_with_an_error_only_where_there_is_one(
    status: int, stderr: str, mode: str, expected: str
) -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text())[0]["tasks"]
    (verdict,) = (task["verdict"] for task in tasks if "verdict" in task)
    ended = {"rc": status, "stderr": stderr}
    said = jinja2.Template(verdict["sentence"]).render(__upgrade=ended, ansible_check_mode=bool(mode))
    assert expected in said
