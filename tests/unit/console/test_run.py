"""What a run is told of, and the lines that it makes of that."""

from temper.base.outcome import FinalVerdict
from temper.output.run import MOST_CHARACTERS, MOST_GROUPS, Note, Run, Stage, before_verdict
from tests.unit.each import each


def stage(name: str = "Tune", *, check: bool = False) -> Stage:
    return Stage(name, 100.0, check)


def noted(run: Run, where: Stage, *notes: Note) -> list[str]:
    for note in notes:
        run.note(where, note)
    return [block.text for block in run.blocks([*where.notes, *where.changes], check=where.check)]


def test_nodes_with_the_same_changes_are_one_block_for_all_tasks() -> None:
    notes = [Note("changed", node, task, "x: 1 -> 2") for task in "AB" for node in ("n2", "n1", "n3")]
    assert noted(Run(), stage(), *notes) == [
        "changed: 3 nodes: n1-n3\n  A\n    x: 1 -> 2\n  B\n    x: 1 -> 2"
    ]


def test_of_a_fleet_without_two_alike_some_changes_are_shown_and_all_names() -> None:
    notes = [Note("changed", f"n{number:03}", "A", f"{number} -> x") for number in range(200)]
    blocks = noted(Run(), stage(), *notes)
    assert len(blocks) == MOST_GROUPS + 1
    assert "n008-n199" in blocks[-1]


def test_the_words_of_one_node_do_not_fill_the_terminal() -> None:
    endless = "x" * (3 * MOST_CHARACTERS)
    (text,) = noted(Run(), stage(), Note("failed", "n1", "A", endless))
    assert len(text) < 1.1 * MOST_CHARACTERS
    assert noted(Run(), stage(), Note("said", "", "A", endless)) == [endless]


def test_a_warning_is_shown_once_for_a_node_in_a_run() -> None:
    run = Run()
    warn = [Note("warning", node, task, "mind it") for task in ("A", "B") for node in ("n1", "n2")]
    assert noted(run, stage(), *warn) == ["warning: 2 nodes: n1, n2\n  mind it"]
    assert noted(run, stage("Harden"), *warn) == []


@each(
    ([("", "the plan")], "the plan"),
    ([("n1", "n1 is not measured")], "n1 is not measured"),
    ([("n1", "port 80")], "n1:\n  port 80"),
    ([("n1", "n1 waits"), ("n2", "n2 waits")], "2 nodes: n1, n2:\n  NODE waits"),
)
def test_a_text_for_the_operator_says_whom_it_is_about(notes: list[tuple[str, str]], said: str) -> None:
    assert noted(Run(), stage(), *(Note("said", node, "Show", text) for node, text in notes)) == [said]


def test_counts_are_of_the_worst_that_a_node_came_to() -> None:
    run, where = Run(), stage()
    for node in ("n1", "n2", "n3", "n4", "n5"):
        run.settle(where, node, "ok")
    noted(
        run,
        where,
        Note("changed", "n1", "A", ""),
        Note("changed", "n2", "A", ""),
        Note("failed", "n2", "B", "no"),
        Note("refused", "n3", "B", "no"),
        Note("unreachable", "n4", "B", "no"),
    )
    run.settle(where, "n2", "ok")
    assert where.counts(141.0) == "5 nodes: 1 ok, 1 changed, 1 refused, 1 failed, 1 unreachable; 41 s"


def test_the_outcome_names_those_that_need_a_human_and_where() -> None:
    run, first, second = Run(), stage("Preflight"), stage("Harden")
    for node in ("n1", "n2", "n3", "n4", "n5"):
        run.settle(first, node, "ok")
    noted(run, first, Note("refused", "n3", "Refuse", "no"), Note("ignored", "n1", "A", "no"))
    noted(run, second, Note("changed", "n1", "B", ""), Note("failed", "n4", "B", "no"))
    noted(run, second, Note("changed", "n2", "B", ""), Note("failed", "n5", "B", "no"))
    assert run.outcome() == [
        ("changed", "changed: 2"),
        ("refused", "refused: 1: n3 (Preflight)"),
        ("failed", "failed: 2: n4, n5 (Harden)"),
        ("ignored", "went on after an error: 1: n1"),
    ]


def test_a_failure_of_what_is_done_once_is_that_of_all_nodes() -> None:
    run, where = Run(), Stage("Validate", 100.0, members=("n1", "n2"))
    run.settle(where, "n1", "ok")
    assert noted(run, where, Note("failed", "", "End", "fail\nmore")) == [
        "failed: all nodes\n  End\n    fail\n    more"
    ]
    assert run.outcome() == [("failed", "failed: 2: n1, n2 (Validate)")]
    assert where.counts(100.0) == "2 nodes: 2 failed; 0 s"


def test_a_verdict_is_on_the_nodes_that_it_names() -> None:
    run, where = Run(), stage("Validate")
    for node in ("n1", "n2", "n3"):
        run.settle(where, node, "ok")
    run.conclude(
        where, FinalVerdict("Verdict: fail.", False, {"n2": "failed", "n3": "not checked"}, "r.html")
    )
    assert where.counts(100.0) == "3 nodes: 1 ok, 1 not checked, 1 failed; 0 s"
    assert [line for _, line in run.last_lines()] == [
        "ok: 1",
        "not checked: 1: n3 (Validate)",
        "failed: 1: n2 (Validate)",
        "Verdict: fail.",
        "Report: r.html",
        "Next: the report says for each node what to do.",
    ]


def test_every_judge_has_the_last_word() -> None:
    run, where = Run(), stage("Check")
    run.conclude(where, FinalVerdict("Verdict: pass.", True, {"n1": "ok"}, "a.html"))
    run.conclude(where, FinalVerdict("Verdict: not-compliant.", False, {"n1": "failed"}, "b.html"))
    said = [line for _, line in run.last_lines()]
    assert said[1:-1] == ["Verdict: pass.", "Report: a.html", "Verdict: not-compliant.", "Report: b.html"]
    assert said[-1].startswith("Next: ")


@each(
    ("a\n\nReport: r.html\n\nVerdict: pass.\n", "a"),
    ("a\n\nVerdict: pass.\nReport: r.html", "a"),
    ("a\n\nReport: other.html\nVerdict: pass.", "a\n\nReport: other.html"),
    ("Verdict: pass.", ""),
    ("a", "a"),
)
def test_what_the_outcome_says_is_not_said_before_it(text: str, left: str) -> None:
    assert before_verdict(text, FinalVerdict("Verdict: pass.", True, {}, "r.html")) == left


def test_what_most_nodes_changed_alike_stands_once() -> None:
    changes = {"n1": ("a", "b"), "n2": ("a", "c"), "n3": ("a", "b")}
    notes = [Note("changed", node, "A", text) for node, texts in changes.items() for text in texts]
    assert noted(Run(), stage(), *notes) == [
        "changed: 3 nodes: n1-n3\n  A\n    a",
        "changed: 2 nodes: n1, n3\n  A\n    b",
        "changed: n2\n  A\n    c",
    ]


def test_check_mode_says_what_would_change() -> None:
    run, where = Run(check=True), stage(check=True)
    assert noted(run, where, Note("changed", "n1", "A", "x")) == ["would change: n1\n  A\n    x"]
    assert where.counts(100.0) == "1 node: 1 would change; 0 s"
    assert "check mode" in where.title
    assert run.outcome() == [("changed", "would change: 1")]


def test_a_nodes_words_cannot_move_the_cursor() -> None:
    (block,) = noted(Run(), stage(), Note("failed", "n1", "A", "\x1b[2Jgone"))
    assert "\x1b" not in block


def test_reasons_that_refused_nodes_share_stand_once() -> None:
    run, stage = Run(), Stage("Preflight", 0)
    for node, text in (("gpu01", "- a"), ("gpu01", "- gpu01 b"), ("gpu02", "- a"), ("gpu03", "- a")):
        run.note(stage, Note("refused", node, "Refuse", text))
    assert [block.text for block in run.blocks(stage.notes)] == [
        "refused: 3 nodes: gpu01-gpu03\n  Refuse\n    - a",
        "refused: gpu01\n  Refuse\n    - gpu01 b",
    ]
