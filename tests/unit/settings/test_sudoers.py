"""Rules of sudo on nodes whose sudo does not know all of them.

The stand-in refuses as visudo of sudo-rs 0.2.5 does (recorded on Debian 13).
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.settings import in_place, observe, sudoers

from temper.plan.convert import plain
from temper.plan.wanted import Kind
from tests.unit.executables import executable
from tests.unit.planning_roles.plans import planned
from tests.unit.settings.role_plans import carried_out, item, role_plan

pytestmark = pytest.mark.component

VISUDO_RS = """\
#!/bin/sh
# visudo -cf FILE
if grep -qE 'umask|logfile' "$2"; then
    echo "syntax error: unknown setting: '$(sed 's/Defaults *\\([a-z_]*\\).*/\\1/' "$2")'" >&2
    exit 1
fi
"""
(WANTED,) = [
    plain(one.wanted)
    for one in planned("os_hardening", os_hardening_profile="cis-level2").settings
    if one.kind is Kind.FILE and one.key == "/etc/sudoers.d/temper-hardening"
]
CONTROLS = {control for control, _ in sudoers.lines_of_controls(WANTED["content"]) if control}


@pytest.fixture
def has_visudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Put the stand-in in the path, as a link where the node has another sudo than the first."""

    def put(link: bool) -> None:
        real = tmp_path / ("visudo-rs" if link else "bin/visudo")
        (tmp_path / "bin").mkdir()
        executable(real, VISUDO_RS)
        if link:
            (tmp_path / "bin/visudo").symlink_to(real)
        monkeypatch.setattr(process, "search_path", lambda: f"{tmp_path}/bin:{os.environ['PATH']}")

    return put


def settings(folder: Path) -> list[dict[str, Any]]:
    """The file of rules, and what else its control umask asks for."""
    path = folder / "sudoers.d/temper-hardening"
    path.parent.mkdir(exist_ok=True)
    (folder / "sudoers").write_text(f"@includedir {path.parent}\n")
    other = folder / "login.defs"
    other.write_text("UMASK 022\n")
    return [
        item("file", str(path), {**WANTED, "validate": []}, *sorted(CONTROLS)),
        item("keyword", f"{other}:UMASK", "027", "umask"),
    ]


def test_a_control_that_a_sudo_does_not_know_is_left_out_as_a_whole_and_does_not_apply(
    has_visudo: Callable[[bool], None], run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    has_visudo(True)
    assert sorted(CONTROLS) == ["sudo-environment", "sudo-log", "sudo-terminal", "sudo-timeout", "umask"]
    plan = role_plan("os_hardening", settings(tmp_path), atomic=True)
    assert "umask" in str(carried_out(run_module, plan)["warnings"])
    text = (tmp_path / "sudoers.d/temper-hardening").read_text()
    assert ("use_pty" in text, "timestamp_timeout" in text) == (True, True)
    assert ("umask" in text, "logfile" in text) == (False, False)
    assert (tmp_path / "login.defs").read_text() == "UMASK 022\n"
    states = {name: one["state"] for one in observe.observe(plan) for name in one["controls"]}
    assert states == {
        "sudo-environment": "pass",
        "umask": "not-applicable",
        "sudo-log": "not-applicable",
        "sudo-terminal": "pass",
        "sudo-timeout": "pass",
    }


def test_what_a_sudo_does_not_know_is_asked_at_each_run(
    has_visudo: Callable[[bool], None], run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Each plan has to say that the control is waived, also where another sudo took it before."""
    plan = role_plan("os_hardening", settings(tmp_path), atomic=True)
    in_place.note(plan)
    assert in_place.noted() == {"os_hardening": in_place.digest(plan)}
    has_visudo(True)
    carried_out(run_module, plan)
    assert in_place.noted() == {}


def test_the_first_sudo_is_not_asked(has_visudo: Callable[[bool], None], tmp_path: Path) -> None:
    has_visudo(False)
    planned_items = settings(tmp_path)
    assert sudoers.known_here(planned_items) == (planned_items, {})
