"""A run of the program: what it does, what it leaves alone, what it says: real git, no real Ansible."""

import errno
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.temper import files, lease

from pull import agent, delivery
from pull.agent import Agent, StoppedError
from pull.configuration import Configuration
from pull.playbooks import FIXED
from pull.result import MOST_CONTROLS, Control, Result
from temper.output.run import Note
from temper.plan.preflight import programs
from temper.plan.roles.pull import BESIDE
from tests.unit.pull.world import World

pytestmark = pytest.mark.component


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_node_as_it_should_be_is_compliant(world: World) -> None:
    result = world.run()
    assert (result.state, result.verdict, result.left, result.repaired) == ("checked", "compliant", (), ())
    assert (result.commit, result.ref, result.signer) == (world.commit, "main", "ada")
    assert json.loads((world.state / "result.json").read_text()) == json.loads(result.text())


def test_what_is_installed_on_a_node_runs_there_alone(world: World) -> None:
    """With the node's own Python and nothing of this checkout: what is missing would be seen at night."""
    for name, text in programs().items():
        if name.startswith("pull/") or name in BESIDE:
            path = world.folder / "installed" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    wanted = world.folder / "pull.json"
    wanted.write_text(json.dumps(asdict(world.wanted)))
    script = f"""
import pathlib, sys
from pull import __main__, agent
__main__.PATH = pathlib.Path({str(wanted)!r})
agent.Agent.__init__.__defaults__ = pathlib.Path({str(world.state)!r}), pathlib.Path({str(world.lease)!r})
sys.exit(__main__.main())
"""
    python = shutil.which("python3", path="/usr/bin") or "python3"
    command = ["env", "-i", f"PYTHONPATH={world.folder}/installed", python, "-B", "-c", script]

    def status() -> int:
        return subprocess.run(command, cwd="/", check=False).returncode

    assert status() == 0
    assert world.accepted["commit"] == world.commit
    (world.state / "accepted.json").write_text("damaged")
    assert status() == 1
    assert json.loads((world.state / "result.json").read_text())["code"] == "state"
    wanted.write_text("damaged")
    assert status() == 1


def test_the_checkouts_playbook_runs_for_this_node_alone_and_by_itself(world: World) -> None:
    world.run()
    ((_, options, folder),) = world.calls
    assert (options["--limit"], options["--inventory"]) == ("gpu01", "inventory/mine")
    assert folder == str(world.state / "checkout")
    variables = json.loads(options["--extra-vars"])
    assert (variables["ansible_connection"], variables["ansible_become"]) == ("local", False)


def test_no_variable_that_disturbs_jobs_is_the_inventorys() -> None:
    roles = Path(__file__).parents[3] / "roles"
    found = {name for path in roles.glob("*/defaults/main.yml") for name in yaml.safe_load(path.read_text())}
    names = [name for name in found if name.endswith(("_busy_ok", "_reboot_ok", "_change_ok"))]
    assert len(names) > 5
    assert {name: FIXED.get(name) for name in names} == dict.fromkeys(names, False)


@pytest.mark.parametrize(
    ("repair", "repaired", "playbooks"),
    [
        ((), [], ["compliance"]),
        (("firewall", "nvidia_stack"), [], ["compliance"]),
        (("os_tuning", "firewall"), ["os_tuning/sysctl:x"], ["compliance", "tune", "compliance"]),
    ],
)
def test_only_what_may_be_repaired_is(
    world: World, repair: tuple[str, ...], repaired: list[str], playbooks: list[str]
) -> None:
    drift = ["os_tuning/sysctl:x", "monitoring/unit:y", "firewall/firewall"]
    world.drift(*drift)
    result = world.run(repair=repair)
    assert (result.verdict, list(result.repaired)) == ("not-compliant", repaired)
    assert [one.id for one in result.left] == [one for one in drift if one not in repaired]
    assert world.playbooks == playbooks
    assert all(options.get("--tags", "os_tuning") == "os_tuning" for _, options, _ in world.calls)


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_why_a_repair_failed_is_told_in_the_words_of_its_task(world: World, kind: str) -> None:
    """Not the recap and the outcome that follow, which say only where it failed."""
    note = Note(kind, "gpu01", "os_tuning: Tune", "gpu01 cannot:\n\n- 1 file is busy")
    (world.folder / "stuck").write_text(f"{json.dumps(asdict(note))}\n")
    world.drift("os_tuning/sysctl:x")
    result = world.run(repair=("os_tuning",))
    assert result.repair_problem == "The repair failed: os_tuning: Tune gpu01 cannot: - 1 file is busy"
    assert (result.repaired, result.left_count) == ((), 1)
    assert lease.read(world.lease).owner == ""


def test_many_controls_are_counted_and_the_result_stays_small(world: World) -> None:
    world.drift(*(f"os_hardening/{number}" for number in range(MOST_CONTROLS + 50)))
    result = world.run()
    assert (len(result.left), result.left_count) == (MOST_CONTROLS, MOST_CONTROLS + 50)
    control = Control("c" * 100, "fail", "r" * 400)
    largest = Result("n", "checked", "", left=(control,) * MOST_CONTROLS, repaired=("c" * 100,) * 500)
    assert len(largest.text()) < 1 << 18


def test_where_the_repository_is_away_the_last_commit_is_kept_to(world: World) -> None:
    assert world.run().code == ""
    world.away()
    world.drift("os_tuning/sysctl:x")
    result = world.run(repair=("os_tuning",))
    assert (result.state, result.code, result.commit) == ("checked", "not-fetched", world.commit)
    assert result.repaired == ("os_tuning/sysctl:x",)


def test_the_first_run_without_a_repository_says_so(world: World) -> None:
    world.away()
    result = world.run()
    assert (result.state, result.code, world.playbooks) == ("failed", "repository", [])


def test_while_somebody_holds_the_node_nothing_is_even_fetched(world: World) -> None:
    lease.acquire("roll-out 7", 3600, path=world.lease)
    result = world.run()
    assert (result.state, [path.name for path in world.state.iterdir()]) == ("held", ["result.json"])
    assert "roll-out 7" in result.reason
    assert world.state.stat().st_mode & 0o777 == 0o700


def test_a_lease_that_has_expired_holds_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease.acquire("roll-out 7", 1, path=world.lease)
    now = lease.Now.read()
    monkeypatch.setattr(lease.Now, "read", lambda: replace(now, boottime_s=now.boottime_s + 100))
    world.drift("os_tuning/sysctl:x")
    assert world.run(repair=("os_tuning",)).repaired


def test_a_run_that_was_killed_in_a_repair_does_not_hold_the_node(world: World) -> None:
    lease.acquire("pull on gpu01", 3600, path=world.lease)
    assert world.run().state == "checked"
    assert lease.read(world.lease).owner == ""


def test_a_lease_that_nobody_can_read_holds_the_node(world: World) -> None:
    world.lease.write_text("{")
    result = world.run()
    assert (result.state, result.code, world.playbooks) == ("failed", "state", [])


@pytest.mark.parametrize(
    "text",
    [
        '{"commit": "',
        "[" * 100_000,
        '{"commit": "%s", "schema_version": 2, "tags": {}}' % ("0" * 40),
        '{"commit": "main", "tags": {}}',
        "{}",
        "[1]",
        "1e999",
        "",
    ],
    ids=["cut off", "deep", "newer", "no object", "nothing", "list", "number", "empty"],
)
def test_a_record_that_this_program_cannot_read_stays_and_lets_no_commit_in(world: World, text: str) -> None:
    """Without it an older commit could come back."""
    world.run()
    path = world.state / "accepted.json"
    path.write_text(text)
    result = world.run()
    assert (result.state, result.code, world.playbooks) == ("failed", "state", ["compliance"])
    assert str(path) in result.reason
    assert path.read_text() == text


def test_a_record_of_the_first_version_is_read(world: World) -> None:
    world.run()
    known = world.accepted
    del known["schema_version"]
    (world.state / "accepted.json").write_text(json.dumps(known))
    assert world.run().state == "checked"


@pytest.mark.parametrize(
    ("error", "code"), [(ZeroDivisionError("x"), "fault"), (StoppedError("SIGTERM"), "stopped")]
)
def test_a_run_that_ends_in_any_other_way_has_a_result(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    """A node without one looks silent."""

    def broken(_: object) -> None:
        raise error

    monkeypatch.setattr(Agent, "holder", broken)
    result = world.run()
    assert (result.state, result.code) == ("failed", code)


def test_a_run_that_was_cut_off_anywhere_is_gone_on_from(world: World) -> None:
    world.run()
    for name in ("checkout", "scratch", "repository.git.new"):
        (world.state / name / "half").mkdir(parents=True)
    (world.state / ".result.json.abcdefgh").write_text("half")
    second = world.source.commit(world.ada)
    result = world.run()
    assert (result.state, result.commit) == ("checked", second)
    assert not list(world.state.glob("*/half"))
    assert not list(world.state.glob(".*"))


def test_an_accepted_commit_is_noted_before_its_playbooks_run(world: World) -> None:
    result = world.run(python="/nonexistent/python3")
    assert (result.state, result.code) == ("failed", "ansible")
    assert "pull_python" in result.reason
    assert world.accepted["commit"] == world.commit


def test_a_result_that_is_not_taken_is_told_and_the_next_one_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def away(text: str, wanted: Configuration) -> None:
        raise delivery.DeliveryError("the server is away")

    monkeypatch.setattr(agent, "deliver", away)
    world.run()
    assert "away" in world.problem
    monkeypatch.setattr(agent, "deliver", lambda text, wanted: taken.append(text))
    result = world.run()
    assert world.problem == ""
    assert (result.delivery_problem, taken) == ("the server is away", [result.text()])
    assert world.run().delivery_problem == ""


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_a_result_that_the_disk_does_not_take_is_handed_back(
    world: World, monkeypatch: pytest.MonkeyPatch, refused: bool, away: bool
) -> None:
    """Else the operator sees a silent node, and not why. That a commit was refused matters more."""
    if refused:
        world.source.commit(None)
    sent: list[dict[str, Any]] = []
    kept = files.replace_file

    def full(path: Path, *more: Any) -> None:
        if path.name in ("result.json", "undelivered"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        kept(path, *more)

    def deliver(text: str, wanted: Configuration) -> None:
        sent.append(json.loads(text))
        if away:
            raise delivery.DeliveryError("the server is away")

    monkeypatch.setattr(files, "replace_file", full)
    monkeypatch.setattr(agent, "deliver", deliver)
    world.run()
    (result,) = sent
    assert (result["state"], result["code"]) == (("refused", "unsigned") if refused else ("failed", "disk"))
    assert "No space left" in result["reason"]
    assert "No space left" in world.problem
    assert ("the server is away" in world.problem) is away


def test_a_disk_that_became_read_only_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As file systems do at an error."""
    world.run()
    sent: list[Any] = []
    monkeypatch.setattr(agent, "deliver", lambda text, _: sent.append(json.loads(text)))
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(world.state)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    world.run()
    assert "Read-only" in world.problem
    assert [(one["state"], one["code"]) for one in sent] == [("failed", "disk")]


def test_a_full_tmp_makes_no_signature_a_bad_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit names a folder of the service's own."""
    own = world.folder / "run"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert world.run().signer == "ada"
