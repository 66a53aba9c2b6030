"""A run of the program: what it does, what it leaves alone, what it says: real git, no real Ansible."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.module_utils import lease

from console.run import Note, Run, Stage
from pull import delivery, files
from pull.agent import Agent, LockedError, Paths, StoppedError, locked
from pull.playbooks import FIXED
from pull.result import MOST_CONTROLS, Control, Result
from tests.unit.pull.origin import Origin, configuration, key, line, origin

if TYPE_CHECKING:
    from pull.configuration import Configuration

#: Writes the statement of a node on which the controls in the file `drift` fail, and repairs as `tune` does.
PLAYBOOK = """
import json, pathlib, sys
home = pathlib.Path({home!r})
playbook = sys.argv[1]
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with (home / "calls").open("a") as calls:
    calls.write(json.dumps([playbook, options, str(pathlib.Path.cwd())]) + "\\n")
variables = json.loads(options["--extra-vars"])
drift = (home / "drift").read_text().split() if (home / "drift").exists() else []
if playbook.endswith("tune.yml"):
    if (home / "stuck").exists():
        print((home / "stuck").read_text())
        sys.exit(2)
    kept = [one for one in drift if one.split("/")[0] not in options["--tags"].split(",")]
    (home / "drift").write_text(" ".join(kept))
else:
    folder = pathlib.Path(variables["compliance_reports_directory"], "latest")
    folder.mkdir(parents=True)
    controls = [dict(id=one, state="fail", reason="it drifted") for one in drift]
    controls += [dict(id="os_tuning/x", state="pass"), dict(id="validation/last", state="not-checked")]
    nodes = [dict(node="gpu01", controls=controls)]
    (folder / "statement.json").write_text(json.dumps(dict(nodes=nodes)))
    sys.exit(1)
"""


class World:
    """A node, its operator, and what the stand-in was asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source: Origin = origin(folder)
        self.ada = key(folder, "ada")
        (folder / "keyring").write_text(line("ada", self.ada))
        programs = folder / "environment" / "bin"
        programs.mkdir(parents=True)
        (programs / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (programs / "python3").chmod(0o755)
        (programs / "ansible-playbook").write_text(PLAYBOOK.format(home=str(folder)))
        self.wanted: Configuration = configuration(folder, self.source, python=str(programs / "python3"))
        self.paths = Paths(folder / "state", folder / "lease.json")
        self.commit = self.source.commit(self.ada, "inventory/mine/hosts.yml")

    def run(self, **values: Any) -> Result:
        result, self.undelivered = Agent(replace(self.wanted, **values), self.paths).run()
        assert json.loads(self.paths.result.read_text())["state"] == result.state
        return result

    def drift(self, *controls: str) -> None:
        (self.folder / "drift").write_text(" ".join(controls))

    @property
    def calls(self) -> list[tuple[str, dict[str, str], str]]:
        path = self.folder / "calls"
        return [tuple(json.loads(call)) for call in path.read_text().splitlines()] if path.exists() else []

    @property
    def playbooks(self) -> list[str]:
        return [Path(name).stem for name, _, _ in self.calls]

    @property
    def kept(self) -> tuple[str, Path]:
        """What the node takes for its configuration."""
        return self.paths.accepted.read_text(), self.paths.current.readlink()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_node_as_it_should_be_is_compliant(world: World) -> None:
    result = world.run()
    assert (result.state, result.verdict, result.left, result.repaired) == ("checked", "compliant", (), ())
    assert (result.commit, result.ref, result.signer) == (world.commit, "main", "ada")
    assert world.paths.current.resolve() == world.paths.commits / world.commit
    assert world.playbooks == ["compliance"]


def test_the_checkouts_playbook_runs_for_this_node_alone_and_by_itself(world: World) -> None:
    world.run()
    ((_, options, folder),) = world.calls
    assert (options["--limit"], options["--inventory"]) == ("gpu01", "inventory/mine")
    assert folder == str(world.paths.commits / world.commit)
    variables = json.loads(options["--extra-vars"])
    assert (variables["ansible_connection"], variables["ansible_become"]) == ("local", False)
    assert variables["nvidia_stack_reboot_ok"] is False
    assert not any(value for name, value in variables.items() if name.endswith("_busy_ok"))


def test_no_variable_that_disturbs_jobs_is_the_inventorys() -> None:
    roles = Path(__file__).parents[3] / "roles"
    found = {name for path in roles.glob("*/defaults/main.yml") for name in yaml.safe_load(path.read_text())}
    names = [name for name in found if name.endswith(("_busy_ok", "_reboot_ok", "_change_ok"))]
    assert len(names) > 5
    assert {name: FIXED.get(name) for name in names} == dict.fromkeys(names, False)


def test_without_leave_drift_is_reported_and_left(world: World) -> None:
    world.drift("os_tuning/sysctl:x", "firewall/firewall")
    result = world.run()
    assert (result.verdict, result.repaired) == ("not-compliant", ())
    assert [one.id for one in result.left] == ["os_tuning/sysctl:x", "firewall/firewall"]
    assert world.playbooks == ["compliance"]


def test_drift_of_a_role_that_may_be_repaired_is(world: World) -> None:
    world.drift("os_tuning/sysctl:x", "monitoring/unit:y", "firewall/firewall")
    result = world.run(repair=("os_tuning", "firewall", "nvidia_stack"))
    assert result.repaired == ("os_tuning/sysctl:x",)
    assert [one.id for one in result.left] == ["monitoring/unit:y", "firewall/firewall"]
    assert world.playbooks == ["compliance", "tune", "compliance"]
    assert world.calls[1][1]["--tags"] == "os_tuning"


def test_a_repair_that_fails_is_told_and_the_node_given_back(world: World) -> None:
    world.drift("os_tuning/sysctl:x")
    (world.folder / "stuck").write_text("[ERROR]: the disk is full")
    result = world.run(repair=("os_tuning",))
    assert result.repair_problem == "The repair failed: [ERROR]: the disk is full"
    assert (result.repaired, result.left_count) == ((), 1)
    assert lease.read(world.paths.lease).owner == ""


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_why_a_repair_failed_is_told_in_the_words_of_its_task(world: World, kind: str) -> None:
    """Not the recap and the outcome that follow, which say only where it failed."""
    run, stage = Run(), Stage("Tune", 0.0)
    run.note(stage, Note("warning", "gpu01", "os_tuning: Tune", "a mirror is slow"))
    run.note(stage, Note(kind, "gpu01", "os_tuning: Tune", "gpu01 cannot:\n\n- 1 file is busy"))
    blocks = [block.text for block in run.blocks(stage.notes)]
    outcome = [f"{line}\n" for _, line in run.outcome()]
    recap = [stage.counts(1.0), "PLAY RECAP ***", "gpu01 : ok=4 failed=1\n", "== Outcome", *outcome]
    (world.folder / "stuck").write_text("\n".join(["\n== Tune", *blocks, *recap]))
    world.drift("os_tuning/sysctl:x")
    result = world.run(repair=("os_tuning",))
    assert result.repair_problem == "The repair failed: os_tuning: Tune gpu01 cannot: - 1 file is busy"


def test_many_controls_are_counted_and_the_result_stays_small(world: World) -> None:
    world.drift(*(f"os_hardening/{number}" for number in range(MOST_CONTROLS + 50)))
    result = world.run()
    assert (len(result.left), result.left_count) == (MOST_CONTROLS, MOST_CONTROLS + 50)


@pytest.mark.parametrize("offer", ["unsigned", "bad-signature", "older"])
def test_what_is_refused_leaves_everything_as_it_was(world: World, offer: str) -> None:
    second = world.source.commit(world.ada)
    world.run()
    before, calls = world.kept, world.calls
    if offer == "older":
        world.source.git("reset", "--quiet", "--hard", world.commit)
    else:
        world.source.commit(None if offer == "unsigned" else key(world.folder, "mallory"))
    result = world.run()
    assert (result.state, result.code, result.commit) == ("refused", offer, second)
    assert (world.kept, world.calls) == (before, calls)


def test_where_the_repository_is_away_the_last_commit_is_kept_to(world: World) -> None:
    world.run()
    (world.source.folder / ".git").rename(world.folder / "away")
    world.drift("os_tuning/sysctl:x")
    result = world.run(repair=("os_tuning",))
    assert (result.state, result.commit, result.repaired) == (
        "checked",
        world.commit,
        ("os_tuning/sysctl:x",),
    )
    assert result.code == "not-fetched"
    assert "fetched" in result.reason


def test_a_node_that_has_fetched_says_nothing_of_it(world: World) -> None:
    assert world.run().code == ""


def test_a_repository_without_a_tag_that_counts_has_nothing_newer(world: World) -> None:
    """It answers, but a node cannot tell from it what is the newest."""
    world.source.tag("fleet-1", world.ada)
    world.run(tags="fleet-*")
    world.source.git("tag", "--delete", "fleet-1")
    result = world.run(tags="fleet-*")
    assert (result.state, result.code, result.ref) == ("checked", "not-fetched", "fleet-1")


def test_tags_are_kept_to_where_the_repository_is_away(world: World) -> None:
    world.source.tag("fleet-1", world.ada)
    world.run(tags="fleet-*")
    (world.source.folder / ".git").rename(world.folder / "away")
    result = world.run(tags="fleet-*")
    assert (result.state, result.ref) == ("checked", "fleet-1")


def test_a_tag_that_counts_for_nothing_is_told(world: World) -> None:
    for name in ("fleet-1", "fleet-2-hotfix"):
        world.source.tag(name, world.ada)
    result = world.run(tags="fleet-*")
    assert (result.state, result.ref) == ("checked", "fleet-1")
    assert "fleet-2-hotfix" in result.reason


def test_another_tag_of_the_same_commit_does_not_keep_a_node_from_its_own(world: World) -> None:
    """Whoever may push can name the commit once more, without a signature."""
    world.source.tag("fleet-1", None)
    world.source.tag("fleet-2", world.ada)
    world.run(tags="fleet-*")
    result = world.run(tags="fleet-*", url="file:///nowhere")
    assert (result.state, result.ref, result.signer) == ("checked", "fleet-2", "ada")


def test_a_key_that_is_removed_ends_the_last_commit_too(world: World) -> None:
    world.run()
    (world.source.folder / ".git").rename(world.folder / "away")
    (world.folder / "keyring").write_text(line("grace", key(world.folder, "grace")))
    assert world.run().code == "bad-signature"
    assert world.playbooks == ["compliance"]


def test_the_first_run_without_a_repository_says_so(world: World) -> None:
    (world.source.folder / ".git").rename(world.folder / "away")
    assert (world.run().state, world.playbooks) == ("failed", [])


def test_while_somebody_holds_the_node_nothing_is_even_fetched(world: World) -> None:
    lease.acquire("roll-out 7", 3600, path=world.paths.lease)
    result = world.run()
    assert (result.state, world.paths.repository.exists()) == ("held", False)
    assert "roll-out 7" in result.reason


def test_a_lease_that_has_expired_holds_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lease.acquire("roll-out 7", 1, path=world.paths.lease)
    now = lease.Now.read()
    monkeypatch.setattr(lease.Now, "read", lambda: replace(now, boottime_s=now.boottime_s + 100))
    world.drift("os_tuning/sysctl:x")
    assert world.run(repair=("os_tuning",)).repaired


def test_a_run_that_was_killed_in_a_repair_does_not_hold_the_node(world: World) -> None:
    lease.acquire("pull on gpu01", 3600, path=world.paths.lease)
    assert world.run().state == "checked"
    assert lease.read(world.paths.lease).owner == ""


def test_a_lease_that_nobody_can_read_holds_the_node(world: World) -> None:
    world.paths.lease.write_text("{")
    assert (world.run().state, world.playbooks) == ("failed", [])


def test_a_second_run_at_the_same_time_does_nothing(world: World) -> None:
    with locked(world.paths.state), pytest.raises(LockedError):
        world.run()
    assert not world.paths.result.exists()
    assert world.run().state == "checked"


def test_a_damaged_record_lets_no_commit_in(world: World) -> None:
    """Without it an older commit could come back."""
    world.run()
    world.paths.accepted.write_text('{"commit": "')
    assert (world.run().state, world.playbooks) == ("failed", ["compliance"])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"commit": "%s", "schema_version": 2, "tags": {}}' % ("0" * 40), "[1]", "1e999", ""],
    ids=["deep", "newer", "list", "number", "empty"],
)
def test_a_record_that_this_program_cannot_read_stays_as_it_is(world: World, text: str) -> None:
    world.run()
    world.paths.accepted.write_text(text)
    result = world.run()
    assert (result.state, result.code) == ("failed", "state")
    assert str(world.paths.accepted) in result.reason
    assert world.paths.accepted.read_text() == text


def test_a_record_of_the_version_before_is_read(world: World) -> None:
    world.run()
    known = json.loads(world.paths.accepted.read_text())
    del known["schema_version"]
    world.paths.accepted.write_text(json.dumps(known))
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
    second = world.source.commit(world.ada)
    half = world.paths.commits / f".{second}.unfinished"
    half.mkdir()
    (half / "file").write_text("half")
    (world.paths.state / ".current.new").symlink_to("nowhere")
    (world.paths.state / "check-abc").mkdir()
    result = world.run()
    assert (result.state, result.commit) == ("checked", second)
    assert [path.name for path in world.paths.commits.iterdir()] == [second]
    assert not (world.paths.state / "check-abc").exists()


def test_an_accepted_commit_is_noted_before_its_playbooks_run(world: World) -> None:
    world.wanted = replace(world.wanted, python="/nonexistent/python3")
    result = world.run()
    assert (result.state, result.code) == ("failed", "ansible")
    assert "pull_python" in result.reason
    assert json.loads(world.paths.accepted.read_text())["commit"] == world.commit


def test_an_inventory_outside_of_the_repository_is_none(world: World) -> None:
    assert "pull_inventory" in world.run(inventory="../../..").reason
    assert world.playbooks == []


def test_a_result_that_is_not_taken_is_told_and_the_next_one_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    def away(text: str, wanted: Configuration) -> None:
        raise delivery.DeliveryError("the server is away")

    monkeypatch.setattr(delivery, "deliver", away)
    world.run()
    assert "away" in world.undelivered
    monkeypatch.setattr(delivery, "deliver", lambda text, wanted: taken.append(text))
    result = world.run()
    assert world.undelivered == ""
    assert (result.delivery_problem, taken) == ("the server is away", [result.text()])
    assert world.run().delivery_problem == ""


class FullDisk:
    """Takes no file of these names, and has what was sent to the controller."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, away: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        real = files.replace

        def replaced(path: Path, text: str, mode: int = 0o600) -> None:
            if path.name in names:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            real(path, text, mode)

        def deliver(text: str, wanted: Configuration) -> None:
            self.sent.append(json.loads(text))
            if away:
                raise delivery.DeliveryError("the server is away")

        monkeypatch.setattr(files, "replace", replaced)
        monkeypatch.setattr(delivery, "deliver", deliver)


def test_a_result_that_the_disk_does_not_take_is_handed_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the operator sees a silent node, and not why."""
    disk = FullDisk(monkeypatch, "result.json")
    with pytest.raises(OSError, match="No space left"):
        world.run()
    (sent,) = disk.sent
    assert (sent["state"], sent["code"]) == ("failed", "disk")
    assert "No space left" in sent["reason"]
    assert sent["finished_at"]


def test_a_disk_that_became_read_only_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As file systems do at an error. Nothing can be written then, no lock either."""
    world.run()
    sent: list[Any] = []
    monkeypatch.setattr(delivery, "deliver", lambda text, _: sent.append(json.loads(text)))
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(world.paths.state)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(OSError, match="Read-only"):
        world.run()
    assert [(one["state"], one["code"]) for one in sent] == [("failed", "disk")]


def test_a_full_disk_does_not_hide_that_a_commit_was_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.source.commit(None)
    disk = FullDisk(monkeypatch, "result.json")
    with pytest.raises(OSError, match="No space left"):
        world.run()
    assert [(one["state"], one["code"]) for one in disk.sent] == [("refused", "unsigned")]
    assert "No space left" in disk.sent[0]["reason"]


def test_a_full_disk_and_a_server_that_is_away_are_both_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, "result.json", "undelivered", away=True)
    with pytest.raises(OSError, match=r"No space left.*the server is away"):
        world.run()


def test_why_a_result_was_not_taken_is_told_where_it_cannot_be_noted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, "undelivered", away=True)
    assert world.run().state == "checked"
    assert "the server is away" in world.undelivered


def test_a_result_is_never_longer_than_the_controller_takes() -> None:
    control = Control("c" * 100, "fail", "r" * 400)
    result = Result("n", "checked", "", left=(control,) * MOST_CONTROLS, repaired=("c" * 100,) * 500)
    assert len(result.text()) < 1 << 18
