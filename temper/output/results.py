"""What the result of a task says to the operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from temper.base.nodes import number_of
from temper.plan.origin import with_vault_remedy

Dump = Callable[[Mapping[str, Any]], str]

CENSORED = "(censored due to no_log)"
#: What of a failure is shown in another way, is Ansible's bookkeeping, or differs between any two nodes.
ASIDE = frozenset(
    """
    ansible_facts ansible_index_var ansible_loop ansible_loop_var attempts changed delta deprecations diff end
    exception failed failed_when_result invocation item msg refused results retries skipped start
    stderr_lines stdout_lines unreachable warnings
    """.split()  # noqa: SIM905 - a list has a line for each
)
#: Files that are Temper's own programs, in the name of a difference.
OWN_PROGRAM = re.compile(r"(^|\s)/usr/local/(lib/temper|bin/temper-)")
#: Lines of the texts of a difference, on both sides together: to compare them costs the square.
MOST_LINES = 4000
TOO_LONG = {"prepared": f"diff skipped: it has more than {MOST_LINES} lines, or another form than expected\n"}


def items(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the items of a loop with their labels; a task without a loop is one item without a label."""
    results = result.get("results")
    if not isinstance(results, list) or not all(isinstance(item, dict) for item in results):
        yield "", result
        return
    for item in results:
        # A module that no loop runs may say the same.
        name = str(item.get("ansible_loop_var", "item"))
        label = item.get("_ansible_item_label", item.get(name, ""))
        yield f"({name}={CENSORED if item.get('_ansible_no_log') else label}) ", item


def complaint(result: Mapping[str, Any], dump: Dump) -> str:
    """Return why a task failed: its message in full, and what else it says."""
    bad = [pair for pair in items(result) if pair[1].get("failed") or pair[1].get("unreachable")]
    said = "\n".join(f"{label}{_complaint(item, dump)}" for label, item in bad or [("", result)])
    return with_vault_remedy(said)


def _complaint(result: Mapping[str, Any], dump: Dump) -> str:
    if censored := result.get("censored"):
        return str(censored)
    said = str(result.get("msg") or "").strip()
    aside = {*ASIDE, str(result.get("ansible_loop_var"))}
    rest = {
        key: value
        for key, value in result.items()
        if key not in aside and not key.startswith("_") and value not in (None, "", [], {})
    }
    return "\n".join(filter(None, [said, dump(rest) if rest else ""])) or "It gave no reason."


def changes(result: Mapping[str, Any], *, whole: bool = True) -> list[str]:
    """Return what a task has changed, or would: what action `settle` lists, or the items of a loop.

    Controls are named where the `whole` list is asked for, and counted where not.
    """
    actions, controls = (result.get(key) for key in ("actions", "controls"))
    lines = list(map(str, actions)) if isinstance(actions, list) else []
    if controls and isinstance(controls, list):
        names = ", ".join(map(str, controls))
        lines.append(f"controls: {names if whole else len(controls)}")
    return lines + [label.strip() for label, item in items(result) if label and item.get("changed")]


def differences(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the differences of a result, in a form that Ansible can show, and soon.

    A node may have said them.
    """
    found = result["diff"] if isinstance(result["diff"], list) else [result["diff"]]
    texts = [text for one in found if isinstance(one, dict) for text in one.values() if isinstance(text, str)]
    if sum(text.count("\n") + 1 for text in texts) > MOST_LINES:
        return [TOO_LONG]
    return [one if _is_difference(one) else TOO_LONG for one in found if one]


def _is_difference(one: object) -> bool:
    if not isinstance(one, dict):
        return False
    sides = (one.get("before"), one.get("after"))
    larger = (one.get("src_larger", 0), one.get("dst_larger", 0))
    return (
        isinstance(one.get("prepared", ""), str)
        and all(side is None or isinstance(side, str | dict) for side in sides)
        and all(isinstance(number, int) for number in larger)
    )


def program(difference: Mapping[str, Any]) -> str | None:
    """Return one line for a difference of one of Temper's own programs; None for any other.

    Their sources are read in the checkout; in a difference they hide the settings.
    """
    name = str(difference.get("after_header", ""))
    before, after = difference.get("before"), difference.get("after")
    if not OWN_PROGRAM.search(name) or not isinstance(before, str) or not isinstance(after, str):
        return None
    sizes = (number_of(text.count("\n"), "line") if text else "absent" for text in (before, after))
    return f"{name}: a program of Temper, {' -> '.join(sizes)} (TEMPER_OUTPUT=verbose shows its source)"


def messages(result: Mapping[str, Any], dump: Dump) -> Iterator[str]:
    """Yield what a task has to say whatever it did, as `debug` and actions that ask for it do."""
    for label, item in items(result):
        if item.get("_ansible_verbose_always") is not True or item.get("skipped"):
            continue
        said = item.get("msg")
        if isinstance(said, list) and all(isinstance(line, str) for line in said):
            yield "\n".join(f"- {line}" for line in said)
        elif isinstance(said, str):
            yield said
        else:
            rest = {
                key: value
                for key, value in item.items()
                if key not in ASIDE - {"msg"} and not key.startswith("_")
            }
            yield f"{label}{dump(rest)}"


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Return what a task warns of, each once."""
    lists = [item.get("warnings") for item in (*(item for _, item in items(result)), result)]
    return list(dict.fromkeys(str(one) for found in lists if isinstance(found, list) for one in found))


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return the reasons of a refusal, where it names them one by one."""
    found = result.get("problems")
    return [f"- {problem}" for problem in found] if refused(result) and isinstance(found, list) else []


def refused(result: Mapping[str, Any]) -> bool:
    """Return whether a failure is a refusal: nothing was changed. Modules and action `refuse` say so."""
    return result.get("refused") is True
