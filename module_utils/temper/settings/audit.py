"""The rules of auditd as the kernel holds them, compared with the files that should have brought them."""

from __future__ import annotations

import contextlib
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, NamedTuple

from ansible.module_utils.temper.process import (
    CommandError,
    OutputError,
    complete,
    printable,
    run,
    shown,
    which,
)
from ansible.module_utils.temper.settings.strictness import EXACTLY, as_strict

RULES = "/etc/audit/rules.d/"
# What auditctl(8) calls them in a file, and in its status.
STATUS_OF = {"-b": "backlog_limit", "-f": "failure", "--backlog_wait_time": "backlog_wait_time"}
# An audit id that nobody has set: as rules write it, and as auditctl prints it.
UNSET = re.compile(r"^(auid|sessionid)(!=|=)(unset|4294967295|-1)$")
# The kernel's answer to whoever is not in its first namespaces, and that of a kernel without auditing.
NO_AUDITING = re.compile(r"Operation not permitted|Connection refused|Protocol not supported|not in kernel")
# What auditctl says of a rule that it cannot read (errormsg.h of audit 4.0.2), else it is of the kernel.
UNKNOWN = re.compile(r"unknown|unrecognized|invalid option", re.IGNORECASE)
MOST_SHOWN = 5
TIMEOUT_S = 20


class AuditError(Exception):
    """The kernel's rules cannot be read; the message says why."""


class NoAuditError(Exception):
    """There is no auditing here: in a container, or in a kernel that was built without."""


class Rule(NamedTuple):
    """One rule, in whichever way it was written: a watch (-w) is a rule about a path, too."""

    action: str
    conditions: frozenset[str]
    calls: frozenset[str]


@dataclass(frozen=True)
class Wanted:
    """What files of rules say: rules with the words of their lines, and settings by auditctl's option."""

    rules: dict[Rule, str]
    settings: dict[str, str]


def parse_rule(words: list[str]) -> Rule | None:
    """Return a rule from the words of its line; None for a line that is none."""
    action, conditions, calls = "", set(), set()
    for option, value in zip(words, words[1:]):  # noqa: B905, RUF007 - both are not in Python 3.9
        if option in ("-a", "-A"):
            action = ",".join(sorted(value.split(",")))
        elif option == "-w":
            action = "always,exit"
            conditions.add(f"path={value.rstrip('/')}")
        elif option == "-p":
            conditions.add(f"perm={''.join(sorted(value))}")
        elif option == "-k":
            conditions.add(f"key={value}")
        elif option == "-S":
            calls |= {*value.split(",")} - {"all"}
        elif option == "-C":
            # The kernel compares either way, and auditctl prints it its own way.
            conditions.add("compare " + "!=".join(sorted(value.split("!="))))
        elif option == "-F":
            conditions.add(condition(value))
    return Rule(action, frozenset(conditions), frozenset(calls)) if action else None


def condition(text: str) -> str:
    """Return a field as one writes it, in the form in which all are compared."""
    text = UNSET.sub(r"\1\2unset", text)
    name, equals, value = text.partition("=")
    if equals and name in ("path", "dir"):
        return f"path={value.rstrip('/')}"
    return f"perm={''.join(sorted(value))}" if equals and name == "perm" else text


def parse_file(text: str) -> Wanted:
    """Return the rules and settings of a file of /etc/audit/rules.d. Raises AuditError."""
    rules, settings = {}, {}
    for line in text.splitlines():
        try:
            words = shlex.split(line, comments=True)
            if words and words[0] in STATUS_OF:
                settings[words[0]] = words[1]
            elif rule := parse_rule(words):
                rules[rule] = " ".join(words)
        except (ValueError, IndexError) as error:
            raise AuditError(f"a rule for auditd cannot be read ({error}): {shown(line)}") from error
    return Wanted(rules, settings)


def parse_live(listing: str) -> list[Rule]:
    """Return what `auditctl -l` prints."""
    return [rule for line in listing.splitlines() if (rule := parse_rule(line.split()))]


def parse_status(text: str) -> dict[str, str]:
    """Return what `auditctl -s` prints."""
    lines = [line.split(None, 1) for line in text.splitlines()]
    return {line[0]: line[1].strip() for line in lines if len(line) == 2}


def ask(option: str) -> str:
    """Return what auditctl prints. Raises AuditError, NoAuditError."""
    if not which("auditctl"):
        raise AuditError("auditctl is not installed")
    try:
        done = complete(["auditctl", option], TIMEOUT_S)
    except OutputError as error:
        raise AuditError(str(error)) from error
    words = " ".join((done.stderr or done.stdout).split())
    if done.returncode and NO_AUDITING.search(words):
        raise NoAuditError(f"this kernel audits nothing here: {words}")
    if done.returncode:
        raise AuditError(f"`auditctl {option}` failed with status {done.returncode}: {words}")
    return done.stdout


def applies(item: Mapping[str, Any]) -> bool:
    """Return whether a setting is a file of rules for this machine."""
    if item["kind"] != "file" or not item["key"].startswith(RULES) or not item["wanted"]:
        return False
    return item["wanted"].get("machine") in (None, platform.machine())


def known_here(items: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the settings of a role without rules that this node's auditctl cannot read, and why, each.

    With one of them, no load of the rules would succeed. Those that are in place are not asked about: each
    costs a process.

    Raises AuditError, CommandError, OSError, TimeoutExpired.
    """
    new = {rule for item in items if applies(item) for rule in absent(item["key"], item["wanted"]["content"])}
    left = unknown(sorted(new))
    if not left:
        return list(items), []

    def without(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        lines = wanted["content"].splitlines(keepends=True)
        return {**wanted, "content": "".join(line for line in lines if spaced(line) not in left)}

    kept = [{**item, "wanted": without(item["wanted"])} if applies(item) else item for item in items]
    return kept, [*left.values()]


def readable_here(items: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the same; where auditctl cannot be asked, all of them."""
    try:
        return known_here(items)
    except (AuditError, CommandError, OSError, TimeoutExpired):
        return list(items), []


def absent(path: str, text: str) -> Iterable[str]:
    """Return the rules of a file that are not in place. Raises AuditError, OSError."""
    there = Path(path).read_text(encoding="utf-8", errors="replace") if Path(path).is_file() else ""
    return {*parse_file(text).rules.values()} - {*map(spaced, there.splitlines())}


def spaced(line: str) -> str:
    """Return a rule as `parse_file` writes it, one blank between its words."""
    return " ".join(line.split())


def unknown(rules: Sequence[str]) -> dict[str, str]:
    """Return the rules with a call or a field that this node's auditctl lacks, and a sentence on each.

    It reads them in a user namespace, from which the kernel takes none.

    Raises CommandError, OSError, TimeoutExpired.
    """
    if not rules or not which("auditctl"):
        return {}
    alone = ["unshare", "--user", "--map-root-user"]
    run([*alone, "true"])
    version = printable(complete(["auditctl", "-v"]).stdout.strip())
    script = "".join(
        f"echo {number}; auditctl {' '.join(map(shlex.quote, rule.split()))} 2>&1\n"
        for number, rule in enumerate(rules)
    )
    numbers = {str(number): rule for number, rule in enumerate(rules)}
    asked, found = "", dict[str, str]()
    for line in complete([*alone, "sh", "-s"], text=script).stdout.split("\n"):
        if line in numbers:
            asked = numbers[line]
        elif asked and UNKNOWN.search(line):
            found.setdefault(asked, f"{version} does not know {asked}: {printable(line)}")
    return found


def differences(
    wanted: Wanted, status: dict[str, str], live: list[Rule], orders: Mapping[str, str]
) -> list[str]:
    """Return what the kernel does not have of what files say, a sentence's end each.

    `orders` are those of the settings: what a site sets more strictly is in force in the place of ours.
    """
    found = []
    if status.get("enabled") == "0":
        found.append("auditing is switched off (enabled 0)")
    # Such a rule comes before all others: a process that starts under it is never looked at.
    if any(rule.action == "never,task" and not rule.conditions for rule in live):
        found.append("a rule of somebody else keeps every new process from being audited (-a never,task)")
    held = set(live)
    lacking = [text for rule, text in wanted.rules.items() if rule not in held]
    if lacking:
        more = f" and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        some = "; ".join(lacking[:MOST_SHOWN])
        found.append(f"the kernel lacks {len(lacking)} of {len(wanted.rules)} rules: {some}{more}")
    for option, value in wanted.settings.items():
        now = status.get(STATUS_OF[option])
        if now is not None and not as_strict(orders.get(option, EXACTLY), now, value):
            found.append(f"{STATUS_OF[option]} is {now}, expected {value}")
    return found


def compare(files: Iterable[str], orders: Mapping[str, str]) -> tuple[str, list[list[str]], list[str]]:
    """Return why the kernel's rules differ from these files ("" if they do not), and repairs that load them.

    The third are sentences on rules that auditctl cannot read, and that the kernel need not have.

    Raises AuditError, NoAuditError, OSError, subprocess.TimeoutExpired.
    """
    parsed = [parse_file(text) for text in files]
    wanted = Wanted(
        {rule: text for one in parsed for rule, text in one.rules.items()},
        {option: value for one in parsed for option, value in one.settings.items()},
    )
    status, live = parse_status(ask("-s")), parse_live(ask("-l"))
    left: dict[str, str] = {}
    with contextlib.suppress(CommandError, TimeoutExpired):  # then they are lacking like others
        left = unknown([text for rule, text in wanted.rules.items() if rule not in live])
    wanted = replace(wanted, rules={rule: text for rule, text in wanted.rules.items() if text not in left})
    found, said = differences(wanted, status, live, orders), [*left.values()]
    if not found:
        return "", [], said
    if status.get("enabled") == "2":
        return f"{'; '.join(found)}; rules are locked, and only a reboot loads those of the files", [], said
    switch_on = [["switch-audit-on"]] if status.get("enabled") == "0" else []
    return "; ".join(found), [["load-audit-rules"], *switch_on], said
