"""The kernel's audit rules beside the files that should have brought them.

No node of the lab can show them: a container has no auditing. What auditctl prints is in the form that CIS
Debian 12 (6.2.3) and auditctl(8) show; a container's refusal was recorded on a node of the lab.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml
from ansible.module_utils.temper.settings import audit, observe

from temper.plan.preflight import DATA

CONTROLS = yaml.safe_load((DATA / "os_controls" / "audit.yml").read_text())["os_controls"]
FILES: dict[str, str] = CONTROLS["audit"]["profiles"]["gpu"]["files"]
TEXT = FILES[f"{audit.RULES}temper.rules"]
STATUS = """\
enabled 1
failure 1
pid 523
rate_limit 0
backlog_limit 16384
lost 0
backlog 0
backlog_wait_time 0
backlog_wait_time_actual 0
loginuid_immutable 0 unlocked
"""
REFUSED = "Error sending status request (Operation not permitted)"
CHCON = "-w /usr/bin/chcon -p x -k permissions"


def as_printed(text: str) -> str:
    """The rules as `auditctl -l` prints them: calls in another order, the key last, -1 for unset."""
    lines = []
    for line in text.splitlines():
        if line.startswith("-w"):
            lines.append(line)
        elif line.startswith("-a"):
            printed = line.replace("auid!=unset", "auid!=-1").replace("euid!=uid", "uid!=euid")
            words = printed.replace("-k ", "-F key=").split()
            if "-S" not in words:
                words[2:2] = ["-S", "all"]
            where = words.index("-S") + 1
            words[where] = ",".join(sorted(words[where].split(",")))
            lines.append(" ".join(words))
    return "\n".join(lines)


class Auditctl:
    """Answers as the program does."""

    def __init__(self) -> None:
        self.status, self.rules, self.code, self.error = STATUS, as_printed(TEXT), 0, ""

    def __call__(self, command: list[str], _timeout_s: float) -> subprocess.CompletedProcess[str]:
        output = {"-s": self.status, "-l": self.rules}[command[1]]
        return subprocess.CompletedProcess(command, self.code, output, self.error)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Auditctl:
    program = Auditctl()
    monkeypatch.setattr(audit, "complete", program)
    monkeypatch.setattr(audit, "which", lambda name: f"/usr/sbin/{name}")
    return program


def item(text: str = TEXT) -> dict[str, Any]:
    wanted = {"content": text, "mode": "0640"}
    return {"kind": "file", "key": f"{audit.RULES}temper.rules", "wanted": wanted, "controls": ["audit"]}


def seen(text: str = TEXT) -> dict[str, Any]:
    (found,) = observe.audited([item(text)])
    return found


def test_rules_that_the_kernel_holds_in_its_own_words_are_those_of_the_file(kernel: Auditctl) -> None:
    assert (seen()["state"], seen()["controls"]) == ("pass", ["audit"])


def test_a_rule_that_somebody_has_deleted_live_is_named_with_the_command_that_loads_it(
    kernel: Auditctl,
) -> None:
    kernel.rules = kernel.rules.replace("-w /etc/sudoers -p wa -k scope\n", "")
    found = seen()
    assert found["state"] == "fail"
    assert "-w /etc/sudoers -p wa -k scope" in found["reason"]
    assert found["repair"] == [["load-audit-rules"]]


def test_where_all_rules_are_gone_some_are_named_and_all_are_counted(kernel: Auditctl) -> None:
    kernel.rules = "No rules\n"
    wanted = len(audit.parse_file(TEXT).rules)
    assert wanted > audit.MOST_SHOWN
    assert f"lacks {wanted} of {wanted} rules" in seen()["reason"]
    assert f"and {wanted - audit.MOST_SHOWN} more" in seen()["reason"]


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ("-a always,exit -S all -F path=/usr/bin/chcon -F perm=x -F key=permissions", CHCON),
        ("-a always,exit -S all -F dir=/etc/a.d -F perm=wa -F key=b", "-w /etc/a.d/ -p aw -k b"),
        (
            "-a exit,always -S mount -F auid!=4294967295 -F key=m",
            "-a always,exit -S mount -F auid!=unset -k m",
        ),
    ],
)
def test_one_rule_has_several_spellings(kernel: Auditctl, live: str, wanted: str) -> None:
    kernel.rules = live
    assert seen(wanted)["state"] == "pass"


@pytest.mark.parametrize(
    "live",
    [
        "-w /usr/bin/chcon -p r -k permissions",
        "-w /usr/bin/chcon -p x -k other",
        "-a never,exit -F path=/usr/bin/chcon -F perm=x -F key=permissions",
    ],
)
def test_another_rule_about_the_same_path_is_another_rule(kernel: Auditctl, live: str) -> None:
    kernel.rules = live
    assert seen(CHCON)["state"] == "fail"


@pytest.mark.parametrize(
    ("before", "after", "words", "repair"),
    [
        ("limit 16384", "limit 64", "backlog_limit is 64, expected 16384", [["load-audit-rules"]]),
        ("enabled 1", "enabled 0", "switched off", [["load-audit-rules"], ["switch-audit-on"]]),
        ("failure 1\n", "failure 2\n", "failure is 2, expected 1", [["load-audit-rules"]]),
    ],
)
def test_settings_of_the_kernel_count_as_well(
    kernel: Auditctl, before: str, after: str, words: str, repair: list[list[str]]
) -> None:
    kernel.status = STATUS.replace(before, after)
    assert (words in seen()["reason"], seen()["repair"]) == (True, repair)


def test_a_rule_that_lets_no_process_be_audited_is_found(kernel: Auditctl) -> None:
    kernel.rules = f"-a never,task\n{kernel.rules}"
    assert "never,task" in seen()["reason"]


def test_locked_rules_need_a_reboot_and_no_command_is_offered(kernel: Auditctl) -> None:
    kernel.status, kernel.rules = STATUS.replace("enabled 1", "enabled 2"), "No rules\n"
    assert ("reboot" in seen()["reason"], seen()["repair"]) == (True, [])


def test_in_a_container_there_is_no_auditing_that_could_be_compared(kernel: Auditctl) -> None:
    kernel.code, kernel.error = 255, REFUSED
    assert seen()["state"] == "not-applicable"


def test_a_program_that_fails_otherwise_was_not_asked(kernel: Auditctl) -> None:
    kernel.code, kernel.error = 1, "Error - no memory"
    assert (seen()["state"], "no memory" in seen()["reason"]) == ("not-checked", True)


def test_a_node_without_the_program_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "which", lambda _: None)
    assert seen()["state"] == "not-checked"


def test_a_file_for_another_architecture_is_not_asked_for(kernel: Auditctl) -> None:
    other = item("-w /only/there -p x -k x")
    other["wanted"]["machine"] = "sparc64"
    assert not list(observe.audited([other]))
