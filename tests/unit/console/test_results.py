"""What single results say to the operator."""

import json
from collections.abc import Mapping
from typing import Any

from temper.output.results import (
    CENSORED,
    MOST_LINES,
    changes,
    complaint,
    differences,
    messages,
    refused,
    warnings,
)
from tests.unit.each import each


def dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def test_a_failure_is_shown_in_full_without_bookkeeping() -> None:
    result = {
        "msg": "it broke",
        "rc": 3,
        "stdout": "out",
        "stdout_lines": ["out"],
        "stderr": "",
        "changed": False,
        "delta": "0:00:01",
        "_ansible_no_log": False,
        "attempts": 3,
    }
    assert complaint(result, dump) == 'it broke\n{"rc": 3, "stdout": "out"}'


def test_of_a_loop_only_items_that_failed_are_shown() -> None:
    results = [
        {"item": "a", "changed": True},
        {"item": "b", "failed": True, "msg": "no"},
        {"part": "c", "ansible_loop_var": "part", "failed": True, "msg": "neither"},
    ]
    assert (
        complaint({"msg": "One or more items failed", "results": results}, dump)
        == "(item=b) no\n(part=c) neither"
    )


def test_what_no_log_hides_stays_hidden() -> None:
    hidden = {
        "censored": "the output has been hidden",
        "failed": True,
        "_ansible_no_log": True,
        "item": "secret",
    }
    said = complaint({"results": [hidden], "msg": "One or more items failed"}, dump)
    assert said == f"(item={CENSORED}) the output has been hidden"
    assert complaint(hidden, dump) == "the output has been hidden"


def test_a_failure_without_a_word_says_so() -> None:
    assert complaint({"changed": False}, dump)


def test_changes_are_the_actions_and_controls_of_settle() -> None:
    result = {
        "changed": True,
        "actions": ["a: 1 -> 2", "daemon-reload"],
        "controls": ["core_dumps"],
    }
    assert changes(result) == ["a: 1 -> 2", "daemon-reload", "controls: core_dumps"]
    assert changes(result, whole=False)[-1] == "controls: 1"


def test_changes_of_a_loop_are_its_items() -> None:
    results = [{"item": "a", "changed": True}, {"item": "b", "changed": False}]
    assert changes({"changed": True, "results": results}) == ["(item=a)"]


@each({"actions": "none"}, {"controls": 3}, {"results": "x"}, {"results": ["x"]})
def test_keys_of_other_modules_that_have_the_same_names_are_no_error(result: dict[str, Any]) -> None:
    assert changes(result) == []


@each({"ansible_loop_var": ["x"]}, {"ansible_loop_var": {"a": 1}}, {"": 5}, {"warnings": 7})
def test_what_a_node_says_in_keys_of_loops_is_no_error(item: dict[str, Any]) -> None:
    bad = {**item, "failed": True, "changed": True, "_ansible_verbose_always": True}
    for result in (bad, {"results": [bad], "failed": True}):
        assert complaint(result, dump)
        assert list(messages(result, dump))
        assert warnings(result) == []


@each(
    5,
    "text",
    [5],
    {"prepared": 5},
    {"before": "a", "after": [1]},
    {"before": "", "after": "", "src_larger": "x"},
    {"before": "a\n" * MOST_LINES, "after": "b\n"},
    [{"before": "a\n" * (MOST_LINES // 4), "after": "b\n"}] * 4,
)
def test_a_difference_of_another_form_or_endless_is_not_compared(diff: object) -> None:
    assert all(list(one) == ["prepared"] for one in differences({"diff": diff}))


def test_a_difference_is_shown_as_it_is() -> None:
    diff = [{"before": "a\n", "after": {"b": 1}, "before_header": "/etc/x"}, {"prepared": "+c"}]
    assert differences({"diff": diff}) == diff
    assert differences({"diff": diff[0]}) == diff[:1]


@each(
    ({"msg": "hello"}, ["hello"]),
    ({"msg": ["one", "two"]}, ["- one\n- two"]),
    ({"x.y": 3, "changed": False, "_ansible_no_log": False}, ['{"x.y": 3}']),
    ({"results": [{"_ansible_verbose_always": True, "msg": "a"}, {"skipped": True}]}, ["a"]),
)
def test_debug_says_what_it_was_given(result: dict[str, Any], said: list[str]) -> None:
    shown = result if "results" in result else {**result, "_ansible_verbose_always": True}
    assert list(messages(shown, dump)) == said
    assert list(messages({**result, "results": []}, dump)) == []


def test_warnings_of_items_and_of_the_task_are_one_each() -> None:
    assert warnings({"warnings": ["a"], "results": [{"warnings": ["a", "b"]}, {}]}) == ["a", "b"]


@each(({"refused": True}, True), ({"refused": False}, False), ({}, False))
def test_a_refusal_says_so(result: dict[str, Any], expected: bool) -> None:
    assert refused(result) == expected
