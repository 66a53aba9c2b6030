"""A policy file: what it says, and one sentence for each thing that is wrong with it."""

import json
from datetime import date, time
from pathlib import Path
from typing import Any

import pytest

from temper.base import ROOT
from temper.cli.rollout import drainer
from temper.rollout.drain.kubernetes import Kubernetes
from temper.rollout.policy import Policy, PolicyError, Share, aim, as_document, load, read
from temper.rollout.windows import Exclusion, Window
from tests.unit.each import each

FULL = """
canaries: 2
soak_minutes: 120
waves: [5 %, 50%, 100 %]
wave_soak_minutes: 10
max_unavailable: 4
failure_budget: 1 %
refusal_budget: 3
group_limits: {"rack*": 1}
windows:
  - {days: [mon-thu, sun], start: 22:00, end: "04:30", zone: Europe/Berlin, groups: [batch]}
  - {days: sat, start: "00:00", end: "24:00", zone: UTC}
exclusions:
  - {from: 2026-12-24, to: 2027-01-06, zone: Europe/Berlin, reason: holidays}
drain: slurm
stage_minutes: 10
drain_minutes: 240
work_minutes: 50
way_back_minutes: 40
measure_minutes: 20
snapshot: commands
snapshot_commands:
  check: [cloud, snapshots, "{node}"]
snapshot_max_age_minutes: 1440
"""


@pytest.fixture
def full(tmp_path: Path) -> Policy:
    (tmp_path / "policy.yml").write_text(FULL)
    return load(tmp_path / "policy.yml")


def test_every_key_is_read(full: Policy) -> None:
    assert full.waves == (Share(5, True), Share(50, True), Share(100, True))
    assert full.max_unavailable == Share(4)
    assert full.windows == (
        # YAML takes an unquoted 22:00 for a number.
        Window(frozenset({0, 1, 2, 3, 6}), time(22), time(4, 30), "Europe/Berlin", frozenset({"batch"})),
        Window(frozenset({5}), time(0), time(0), "UTC"),
    )
    assert full.exclusions == (Exclusion(date(2026, 12, 24), date(2027, 1, 6), "Europe/Berlin", "holidays"),)


def test_options_of_kubectls_drain_reach_it_and_are_kept() -> None:
    policy = read({"drain": "kubernetes", "drain_options": ["delete-emptydir-data", "force"]})
    assert read(json.loads(json.dumps(as_document(policy)))) == policy
    cluster = drainer(policy, "night-7")
    assert isinstance(cluster, Kubernetes)
    assert cluster.options == ("--delete-emptydir-data", "--force")


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "policy.yml").write_text("---\n")
    assert load(tmp_path / "policy.yml") == Policy()


@each(
    # Of two lists of exclusions, YAML would take the last, and nodes would start in the holidays.
    ("failure_budget: 0\ncanaries: 2\nfailure_budget: 5\n", r"policy\.yml.*line 3.*failure_budget twice"),
    (
        "exclusions: [{from: 2027-02-30, to: 2027-03-01, zone: UTC}]\n",
        r"policy\.yml: expected a policy.*day is out of range",
    ),
    ("a: [", r"policy\.yml"),
)
def test_a_file_that_is_no_policy_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yml").write_text(text)
    with pytest.raises(PolicyError, match=said):
        load(tmp_path / "policy.yml")


def test_days_may_be_written_out() -> None:
    window = {"days": ["Monday", "thurs - Saturday"], "start": "1:00", "end": "2:00", "zone": "UTC"}
    assert read({"windows": [window]}).windows[0].days == {0, 3, 4, 5}


def test_what_the_store_keeps_is_the_policy(full: Policy) -> None:
    assert read(json.loads(json.dumps(as_document(full)))) == full
    assert read(json.loads(json.dumps(as_document(Policy())))) == Policy()


@each(
    ({"canarys": 1}, ["canarys", "did you mean canaries?"]),
    ({"canaries": "many"}, ["canaries", "'many'"]),
    ({"canaries": True}, ["canaries", "True"]),
    ({"soak_minutes": -1}, ["soak_minutes", "-1"]),
    ({"max_unavailable": 0}, ["max_unavailable", "found 0"]),
    ({"max_unavailable": "120 %"}, ["max_unavailable", "120 %"]),
    ({"waves": ["40 %", "10 %"]}, ["waves", "grow"]),
    ({"waves": []}, ["waves"]),
    ({"drain": "kubectl"}, ["drain", "kubernetes"]),
    ({"drain": "slurm", "drain_options": ["force"]}, ["drain_options", "kubernetes", "slurm"]),
    ({"drain": "kubernetes", "drain_options": ["--force"]}, ["drain_options", "delete-emptydir-data"]),
    ({"group_limits": {"rack*": 0}}, ["group_limits"]),
    ({"work_minutes": 20, "measure_minutes": 15}, ["work_minutes", "measure_minutes"]),
    ({"windows": [{"days": ["mon"], "start": "22:00", "end": "04:00"}]}, ["windows", "zone"]),
    ({"windows": [{"days": ["mo"], "start": "1:00", "end": "2:00", "zone": "UTC"}]}, ["days", "mon"]),
    (
        {"windows": [{"days": "mon, wed", "start": "1:00", "end": "2:00", "zone": "UTC"}]},
        ["days", "found 'mon, wed'"],
    ),
    ({"windows": [{"days": ["monkey"], "start": "1:00", "end": "2:00", "zone": "UTC"}]}, ["days"]),
    ({"windows": [{"days": "mon", "start": 22, "end": "2:00", "zone": "UTC"}]}, ["start", "found 22"]),
    (
        {"windows": [{"days": "mon", "start": "1:00", "end": "2:00", "zone": "Europe/Berlinn"}]},
        ["zone", "did you mean Europe/Berlin?"],
    ),
    ({"windows": [{"days": "mon", "start": "1:00", "end": "1:00", "zone": "UTC"}]}, ["never open"]),
    ({"exclusions": [{"from": "2027-01-02", "to": "2027-01-01", "zone": "UTC"}]}, ["2027-01-02"]),
    ({"exclusions": [{"from": "Christmas", "to": "2027-01-01", "zone": "UTC"}]}, ["Christmas"]),
    ({"snapshot": "btr"}, ["snapshot", "btrfs", "'btr'"]),
    ({"snapshot_gib": 0}, ["snapshot_gib", "found 0"]),
    ({"snapshot": "commands"}, ["snapshot_commands", "0 commands"]),
    ({"snapshot": "lvm", "snapshot_commands": {"check": ["c"]}}, ["snapshot_commands", "lvm"]),
    ({"snapshot": "commands", "snapshot_commands": {"take": ["t"]}}, ["snapshot_commands", "check"]),
    ({"snapshot": "commands", "snapshot_commands": {"check": ["c"]}}, ["snapshot_max_age_minutes"]),
    (
        {
            "snapshot": "commands",
            "snapshot_commands": {"check": ["c"], "remove": ["r"]},
            "snapshot_max_age_minutes": 5,
        },
        ["`remove` with `take`"],
    ),
    ("canaries", ["mapping"]),
)
def test_what_is_wrong_is_said(content: Any, facts: list[str]) -> None:
    with pytest.raises(PolicyError) as raised:
        read(content)
    assert [fact for fact in facts if fact not in str(raised.value)] == []


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(PolicyError) as raised:
        read({"canaries": -1, "soak": 3, "drain": 4})
    assert len(raised.value.problems) == 3


@each((Share(5, True), 1000, 50), (Share(5, True), 10, 1), (Share(29, True), 100, 29), (Share(7), 3, 7))
def test_a_share_is_rounded_down_and_at_least_the_least(share: Share, total: int, number: int) -> None:
    assert share.of(total, 1) == number


@each("newest", "6.1.160-1", "6.8.0-40.40~22.04.3", "")
def test_a_kernel_is_newest_or_a_version(kernel: str) -> None:
    policy = read({"kernel": kernel})
    assert policy.kernel == kernel
    assert read(as_document(policy)) == policy


@each("latest", "linux-image-amd64", 6.1, "6.1 160")
def test_another_word_for_a_kernel_is_refused(kernel: object) -> None:
    with pytest.raises(PolicyError, match="kernel: expected newest, or the version"):
        read({"kernel": kernel})


@each(
    ("r595", "", "r595"),
    ("", "newest", "the newest kernel"),
    ("r595", "6.1.160-1", "r595 with kernel 6.1.160-1"),
)
def test_what_a_roll_out_is_for_is_said(stack: str, kernel: str, words: str) -> None:
    assert aim(stack, kernel) == words


def test_the_policy_of_the_exercise_in_the_lab_lets_no_number_decide() -> None:
    policy = load(ROOT / "examples" / "upgrade-in-the-lab.yml")
    assert policy.gate_numbers == ()
    assert read(as_document(policy)) == policy


@each({"gate_numbers": "gpu_*"}, {"gate_accepted": [5]})
def test_what_the_gate_goes_by_is_a_list_of_names(given: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=next(iter(given))):
        read(given)
