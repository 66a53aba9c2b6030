"""What the proofs about whole nodes take for a difference, a change and a failure."""

from tests.lab import cutoff
from tests.lab.fleet import Run
from tests.lab.node_state import Exemption, compare

RECAP = """
PLAY RECAP *********************************************************************
gpu01                      : ok=3    changed=1    unreachable=0    failed={failed}    skipped=0
gpu02                      : ok=3    changed=2    unreachable={unreachable}    failed=0    skipped=0
"""
RUN = """
TASK [firewall : Apply the rules] **********************************************
changed: [gpu02]
ok: [gpu01]

TASK [os_hardening : Make the settings] ****************************************
changed: [gpu01] => (item=a)
changed: [gpu02]
"""
FILE = "-rw------- 0:0 "


def names(before: dict[str, str], after: dict[str, str], *exemptions: Exemption) -> list[str]:
    return [difference.name for difference in compare(before, after, exemptions)]


def test_new_gone_and_changed_facts_are_differences() -> None:
    assert names({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1"}) == ["a", "b", "d"]


def test_exemption_is_for_the_whole_name() -> None:
    logs = Exemption("file /var/log(/.*)?", "logs")
    both = {"file /var/log/dpkg.log": "2", "file /var/logs": "2", "file /srv/var/log": "2"}
    assert names({}, both, logs) == ["file /srv/var/log", "file /var/logs"]


def test_exempt_content_exempts_neither_absence_nor_mode() -> None:
    keys = Exemption("file /key.", "made anew", only="content")
    before = {"file /key1": FILE + "a", "file /key2": FILE + "a", "file /key3": FILE + "a"}
    after = {"file /key1": FILE + "b", "file /key2": "-rw-r--r-- 0:0 b"}
    assert names(before, after, keys) == ["file /key2", "file /key3"]


def test_changed_tasks_are_named_with_their_nodes() -> None:
    changed = cutoff.changes(Run(0, RUN))
    assert changed == {
        "firewall : Apply the rules": ["gpu02"],
        "os_hardening : Make the settings": ["gpu01", "gpu02"],
    }


def test_run_without_a_recap_or_with_a_node_that_failed_did_not_complete() -> None:
    assert cutoff.failure(Run(0, RECAP.format(failed=0, unreachable=0))) is None
    assert cutoff.failure(Run(0, RECAP.format(failed=1, unreachable=0)))
    assert cutoff.failure(Run(0, RECAP.format(failed=0, unreachable=1)))
    assert cutoff.failure(Run(0, RUN))
    reason = cutoff.failure(Run(2, "[ERROR]: Task failed: no space left on device\n" + RECAP))
    assert reason is not None
    assert "no space left on device" in reason


def test_seed_gives_the_same_moments_again_within_the_duration() -> None:
    first, again, other = (list(cutoff.moments("bare", 20, seed, 60)) for seed in (1, 1, 2))
    assert first == again != other
    assert all(0 <= moment.after_s <= 60 for moment in first)
    assert {moment.cut for moment in first} == set(cutoff.CUTS)
