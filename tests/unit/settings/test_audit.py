"""The kernel's audit rules beside the files that should have brought them.

No node of the lab can show them: a container has no auditing. What auditctl prints is in the form that CIS
Debian 12 (6.2.3) and auditctl(8) show; a container's refusal was recorded on a node of the lab.
"""

import subprocess
from typing import Any

import pytest
from ansible.module_utils.temper.settings import audit, observe

from temper.base import DATA
from temper.plan.tables import read_yaml
from tests.unit.each import each

CONTROLS = read_yaml(DATA / "os_controls" / "audit.yml")["os_controls"]
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
            printed = (
                line.replace("auid!=unset", "auid!=-1")
                .replace("euid!=uid", "uid!=euid")
                .replace("egid!=gid", "gid!=egid")
            )
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
        #: A word of rules that it does not know.
        self.strange = "nothing"

    def __call__(
        self, command: list[str], _timeout_s: float = 0, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        if command[0] == "unshare":
            output = "".join(map(self.read, text.splitlines()))
        else:
            output = {"-s": self.status, "-l": self.rules, "-v": "auditctl version 3.0.9\n"}[command[1]]
        return subprocess.CompletedProcess(command, self.code, output, self.error)

    def read(self, line: str) -> str:
        """Return what the script says of a rule, as 3.0.9 of Debian 12 does in a user namespace."""
        number = line.removeprefix("echo ").partition(";")[0]
        unknown = f"Syscall name unknown: {self.strange}\n" if self.strange in line else ""
        return f"{number}\n{unknown}The audit system is disabled\n"


def answers(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Have auditctl answer as that of a node whose rules are loaded, but for these changes."""
    program = Auditctl()
    for name, value in changes.items():
        setattr(program, name, value)
    monkeypatch.setattr(audit, "complete", program)
    monkeypatch.setattr(audit, "run", lambda _: "")
    monkeypatch.setattr(audit, "which", lambda name: f"/usr/sbin/{name}")


def item(text: str = TEXT) -> dict[str, Any]:
    wanted = {"content": text, "mode": "0640"}
    return {"kind": "file", "key": f"{audit.RULES}temper.rules", "wanted": wanted, "controls": ["audit"]}


def seen(text: str = TEXT) -> dict[str, Any]:
    (found,) = observe.audited([item(text)])
    return found


RULES = as_printed(TEXT)
SUDOERS = "-w /etc/sudoers -p wa -k scope"
LOAD = ["load-audit-rules"]


def without(word: str) -> str:
    assert word in RULES
    return "\n".join(line for line in RULES.splitlines() if word not in line)


def status(before: str, after: str) -> str:
    assert before in STATUS
    return STATUS.replace(before, after)


@each(
    ({}, "pass", "", []),
    ({"rules": RULES.replace(f"{SUDOERS}\n", "")}, "fail", SUDOERS, [LOAD]),
    ({"rules": RULES.replace(f"{SUDOERS}\n", ""), "strange": "init_module"}, "fail", SUDOERS, [LOAD]),
    # What auditctl cannot read, the kernel need not have, however the file came by it.
    ({"rules": without("init_module"), "strange": "init_module"}, "pass", "3.0.9 does not know -a", []),
    ({"rules": without("init_module")}, "fail", "init_module", [LOAD]),
    ({"rules": f"-a never,task\n{RULES}"}, "fail", "never,task", [LOAD]),
    ({"status": status("limit 16384", "limit 64")}, "fail", "backlog_limit is 64, expected 16384", [LOAD]),
    ({"status": status("enabled 1", "enabled 0")}, "fail", "switched off", [LOAD, ["switch-audit-on"]]),
    ({"status": status("failure 1\n", "failure 2\n")}, "fail", "failure is 2, expected 1", [LOAD]),
    # Locked rules need a reboot.
    ({"status": status("enabled 1", "enabled 2"), "rules": "No rules\n"}, "fail", "reboot", []),
    # A container has no auditing that could be compared.
    ({"code": 255, "error": REFUSED}, "not-applicable", "", []),
    ({"code": 1, "error": "Error - no memory"}, "not-checked", "no memory", []),
)
def test_what_the_kernel_audits_is_held_against_the_file(
    says: dict[str, Any], state: str, reason: str, repair: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, **says)
    found = seen()
    assert (found["state"], found["controls"]) == (state, ["audit"])
    assert reason in (found.get("reason") or "")
    assert (found.get("repair") or []) == repair


def test_where_all_rules_are_gone_some_are_named_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, rules="No rules\n")
    wanted = len(audit.parse_file(TEXT).rules)
    assert wanted > audit.MOST_SHOWN
    assert f"lacks {wanted} of {wanted} rules" in seen()["reason"]
    assert f"and {wanted - audit.MOST_SHOWN} more" in seen()["reason"]


@each(
    ("-a always,exit -S all -F path=/usr/bin/chcon -F perm=x -F key=permissions", CHCON, "pass"),
    ("-a always,exit -S all -F dir=/etc/a.d -F perm=wa -F key=b", "-w /etc/a.d/ -p aw -k b", "pass"),
    (
        "-a exit,always -S mount -F auid!=4294967295 -F key=m",
        "-a always,exit -S mount -F auid!=unset -k m",
        "pass",
    ),
    # Another rule about the same path.
    ("-w /usr/bin/chcon -p r -k permissions", CHCON, "fail"),
    ("-w /usr/bin/chcon -p x -k other", CHCON, "fail"),
    ("-a never,exit -F path=/usr/bin/chcon -F perm=x -F key=permissions", CHCON, "fail"),
)
def test_one_rule_has_several_spellings(
    live: str, wanted: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, rules=live)
    assert seen(wanted)["state"] == state


def test_a_node_without_the_program_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "which", lambda _: None)
    assert seen()["state"] == "not-checked"


def test_a_file_for_another_architecture_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch)
    other = item("-w /only/there -p x -k x")
    other["wanted"]["machine"] = "sparc64"
    assert not list(observe.audited([other]))
