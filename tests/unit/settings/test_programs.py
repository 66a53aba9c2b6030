"""What the node's own programs say of a plan: stand-ins of programs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.settings import audit, programs

from tests.unit.settings.role_plans import item, role_plan

pytestmark = pytest.mark.component

RULES = "-a always,exit -F arch=b64 -S open -k x\n-a always,exit -F fresh=1 -S open -k y\n"
#: As auditctl 4.0.2 answers in a user namespace (recorded on Debian 13).
AUDITCTL = """\
case "$*" in -v) echo auditctl version 4.0.2; exit 0;; *fresh*) echo "-F unknown field: fresh" >&2;; esac
echo "Cannot open netlink audit socket" >&2
exit 1
"""
UNSHARE = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"\n'
VISUDO = """\
if grep -q broken "$2"; then echo "$2:2:1: syntax error" >&2; exit 1; fi
"""


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put stand-ins into the path, before all other programs."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def put(**scripts: str) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}")
            (folder / name).chmod(0o755)
        monkeypatch.setattr(process, "search_path", lambda: f"{folder}:{os.environ['PATH']}")

    return put


def file(path: str, content: str) -> dict[str, Any]:
    return item("file", path, {"content": content}, "audit")


def asked(*items: dict[str, Any], **options: Any) -> programs.ProgramAnswers:
    return programs.ask([role_plan("os_hardening", list(items), atomic=True, **options)])


def test_a_rule_that_auditctl_does_not_know_is_named_and_others_are_not(put: Callable[..., None]) -> None:
    put(auditctl=AUDITCTL, unshare=UNSHARE)
    (said,) = asked(file("/etc/audit/rules.d/temper.rules", RULES)).without
    assert said.startswith("auditctl version 4.0.2 does not know")
    assert "unknown field: fresh" in said
    assert "-k y" in said


def test_rules_that_are_in_place_are_not_asked_again(
    put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(auditctl=AUDITCTL, unshare=UNSHARE)
    monkeypatch.setattr(audit, "RULES", f"{tmp_path}/")
    rules = tmp_path / "temper.rules"
    assert len(asked(file(str(rules), RULES)).without) == 1
    rules.write_text(RULES)
    rules.chmod(0o644)
    assert asked(file(str(rules), RULES)).without == []


def test_where_no_namespace_can_be_made_auditctl_is_not_asked(put: Callable[..., None]) -> None:
    put(auditctl="echo called >&2; exit 1\n", unshare="echo 'unshare failed' >&2; exit 1\n")
    assert asked(file("/etc/audit/rules.d/temper.rules", RULES)) == programs.ProgramAnswers()


def test_what_visudo_refuses_for_another_reason_is_a_refusal_in_its_words(put: Callable[..., None]) -> None:
    put(visudo=VISUDO)
    good, bad = file("/etc/sudoers.d/x", "Defaults use_pty\n"), file("/etc/sudoers.d/x", "broken\n")
    assert asked(good).refused == []
    (said,) = asked(bad).refused
    assert "syntax error" in said
    assert "/etc/sudoers.d/x" in said
    assert asked(bad, absent=True).refused == []


def test_without_the_rights_of_root_nothing_is_asked(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(visudo=VISUDO)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert asked(file("/etc/sudoers.d/x", "broken\n")) == programs.ProgramAnswers()
