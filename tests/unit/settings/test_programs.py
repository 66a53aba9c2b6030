"""What the node's own programs say of a plan: stand-ins of programs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.access import sshd
from ansible.module_utils.temper.settings import audit, enterprise_linux, observe, programs

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.settings.role_plans import carried_out, item, role_plan

pytestmark = pytest.mark.component

RULES = "-a always,exit -F arch=b64 -S open -k x\n-a always,exit -F fresh=1 -S open -k y\n"
#: As auditctl 4.0.2 answers in a user namespace (recorded on Debian 13).
AUDITCTL = """\
case "$*" in
    -v) echo auditctl version 4.0.2; exit 0;;
    -s) echo enabled 1; exit 0;;
    -l) echo "-a always,exit -F arch=b64 -S open -F key=x"; exit 0;;
    *fresh*) echo "-F unknown field: fresh" >&2;;
esac
echo "Cannot open netlink audit socket" >&2
exit 1
"""
#: Likewise 3.0.9 of Debian 12, of a call.
OLDER = """\
case "$*" in
    -v) echo auditctl version 3.0.9; exit 0;;
    *fresh*) echo "Syscall name unknown: fresh" >&2;;
esac
echo "The audit system is disabled" >&2
"""
#: As util-linux 2.41 where a container must make no namespace.
NO_UNSHARE = "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1\n"
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
        for name, script in scripts.items():
            executable(folder / name, script)
        monkeypatch.setattr(process, "search_path", lambda: f"{folder}:{os.environ['PATH']}")

    return put


def file(path: str, content: str) -> dict[str, Any]:
    return item("file", path, {"content": content}, "audit")


def asked(*items: dict[str, Any], **options: Any) -> programs.ProgramAnswers:
    return programs.ask([role_plan("os_hardening", list(items), atomic=True, **options)])


@each((AUDITCTL, "4.0.2", "unknown field: fresh"), (OLDER, "3.0.9", "Syscall name unknown: fresh"))
def test_a_rule_that_auditctl_does_not_know_is_named_and_others_are_not(
    auditctl: str, version: str, words: str, put: Callable[..., None]
) -> None:
    put(auditctl=auditctl, unshare=UNSHARE)
    (said,) = asked(file("/etc/audit/rules.d/temper.rules", RULES)).without
    assert said.startswith(f"auditctl version {version} does not know")
    assert words in said
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


def test_a_rule_that_auditctl_does_not_know_is_left_out_and_is_no_drift(
    put: Callable[..., None],
    run_module: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(auditctl=AUDITCTL, unshare=UNSHARE)
    monkeypatch.setattr(audit, "RULES", f"{tmp_path}/")
    rules = tmp_path / "temper.rules"
    plan = role_plan("os_hardening", [file(str(rules), RULES)], atomic=True)
    first = carried_out(run_module, plan)
    assert first["changed"]
    assert "unknown field: fresh" in str(first["warnings"])
    known = RULES.splitlines(keepends=True)[0]
    assert rules.read_text() == known
    assert not carried_out(run_module, plan)["changed"]
    for text in (known, RULES):  # as an earlier Temper has left it
        rules.write_text(text)
        states = {one["key"]: one for one in observe.observe(plan)}
        found = states["audit:rules"]
        assert (found["state"], "unknown field: fresh" in found["reason"]) == ("pass", True)
        assert states[f"file:{rules}"]["state"] == "pass"
    put(unshare=NO_UNSHARE)
    rules.unlink()
    carried_out(run_module, plan)
    assert rules.read_text() == RULES


def test_where_no_namespace_can_be_made_auditctl_is_not_asked(put: Callable[..., None]) -> None:
    put(auditctl="echo -F unknown field >&2; exit 1\n", unshare=NO_UNSHARE)
    found = asked(file("/etc/audit/rules.d/temper.rules", RULES))
    assert (list(found.unasked), found.without) == (["auditctl"], [])
    assert "not permitted" in found.unasked["auditctl"]


def test_an_auditctl_that_prints_anything_gives_one_answer_a_rule_at_most(put: Callable[..., None]) -> None:
    many = "".join(f"-a always,exit -F fresh={number} -S open -k x\n" for number in range(50))
    for said, rules, most in (
        ("yes '0\nunknown' | head -n 200000", RULES, 1),
        ("printf '7\nunknown\n\\262\nunknown\n'", RULES, 2),
        ("echo unknown", many, programs.MOST_SENTENCES + 1),
    ):
        put(auditctl=f'[ "$1" = -v ] || {said}\n', unshare=UNSHARE)
        found = asked(file("/etc/audit/rules.d/temper.rules", rules))
        assert 1 <= len(found.without) <= most, said
        assert found.unasked == {}


def test_what_visudo_refuses_for_another_reason_is_a_refusal_in_its_words(put: Callable[..., None]) -> None:
    put(visudo=VISUDO)
    good, bad = file("/etc/sudoers.d/x", "Defaults use_pty\n"), file("/etc/sudoers.d/x", "broken\n")
    assert asked(good).refused == []
    (refused,) = asked(bad).refused
    assert refused["role"] == "os_hardening"
    assert "syntax error" in refused["said"]
    assert "/etc/sudoers.d/x" in refused["said"]
    assert asked(bad, absent=True).refused == []


def test_without_the_rights_of_root_nothing_is_asked(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(visudo=VISUDO)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert asked(file("/etc/sudoers.d/x", "broken\n")) == programs.ProgramAnswers()


NFT = """\
case "$*" in
    *list*table*) [ -z "$LIVE" ] || echo "table inet temper {}"; exit 0;;
    *-c*) echo "checked" >>"$CALLS"; if [ -n "$BAD" ]; then echo "$3:2:1: syntax error" >&2; exit 1; fi;;
esac
"""


@pytest.fixture
def nft(put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the calls of a stand-in of nft, which has our table loaded."""
    put(nft=NFT, unshare=UNSHARE)
    monkeypatch.setattr(programs, "MODULES", tmp_path / "absent")
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("LIVE", "1")
    return calls


def firewall() -> dict[str, Any]:
    package = item("package", "nftables", {"version": "", "held": False})
    return role_plan("firewall", [package, item("firewall", "management_networks", ["192.0.2.0/24"])])


#: As firewalld and authselect answer, and systemctl of a node on which firewalld runs.
FIREWALLD = {
    "firewalld": "",
    "firewall-cmd": """\
case "$*" in
    --get-default-zone|--get-active-zones) echo public;;
    --info-zone=public) printf 'public (active)\\n  services: ssh\\n  masquerade: yes\\n';;
    *) exit 2;;
esac
""",
    "systemctl": "exit 0\n",
}
AUTHSELECT = """\
case "$1" in check) exit "$INVALID";; list-features) echo with-mkhomedir;; esac
"""


def test_what_a_role_cannot_be_carried_out_for_is_known_before_any_role_is(
    put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with what to do, so that nothing is added to it."""
    profile = tmp_path / "authselect.conf"
    profile.write_text("")
    monkeypatch.setattr(enterprise_linux, "AUTHSELECT", profile)
    monkeypatch.setattr(programs, "MODULES", tmp_path / "absent")
    monkeypatch.setenv("INVALID", "0")
    put(authselect=AUTHSELECT, **FIREWALLD)

    def found(plan: dict[str, Any]) -> str:
        (one,) = programs.ask([plan]).refused
        assert (one["role"], one["advises"]) == (plan["role"], True)
        return str(one["said"])

    filters = firewall()
    assert "firewall_disable_other: true" in found(filters)
    filters["settings"].append(item("firewall", "disable_other", True))
    assert "zone public (masquerade)" in found(filters)
    assert programs.ask([role_plan("firewall", filters["settings"], absent=True)]).refused == []
    faillock = item("authselect", "with-faillock", {}, "failed-logins")
    settings = role_plan("os_hardening", [faillock], atomic=True)
    words = "or waive the control failed-logins (os_hardening_waivers)"
    for lines, invalid, said in (
        ("", "0", "names no profile"),
        ("minimal", "0", "has no feature with-faillock"),
        ("minimal", "3", "authselect check"),
    ):
        profile.write_text(lines)
        monkeypatch.setenv("INVALID", invalid)
        assert said in found(settings)
        assert found(settings).endswith(words)
    profile.write_text("minimal\nwith-faillock\n")
    assert programs.ask([settings]) == programs.ProgramAnswers()


def sudoers(content: str) -> dict[str, Any]:
    return role_plan("os_hardening", [file("/etc/sudoers.d/x", content)])


def test_nft_refuses_in_its_own_words(nft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs.ask([firewall()]) == programs.ProgramAnswers()
    assert nft.read_text() == "checked\n"
    monkeypatch.setenv("BAD", "1")
    (refused,) = programs.ask([firewall()]).refused
    assert refused["role"] == "firewall"
    assert "syntax error" in refused["said"]


def test_nft_is_not_asked_where_the_kernel_would_load_modules(
    nft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.touch()
    for name, value in (("MODULES", modules), ("NF_TABLES", tmp_path / "absent")):
        monkeypatch.setattr(programs, name, value)
    assert list(programs.ask([firewall()]).unasked) == ["nft"]
    monkeypatch.setattr(programs, "NF_TABLES", modules)
    monkeypatch.delenv("LIVE")
    assert list(programs.ask([firewall()]).unasked) == ["nft"]
    assert not nft.exists()


def test_a_program_that_cannot_be_asked_takes_no_word_from_the_others(
    nft: Path, put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(visudo=VISUDO)

    def late(command: list[str], *_: Any, **__: Any) -> Any:
        if "-c" in command:
            raise subprocess.TimeoutExpired(command, 90)
        return process.complete(command)

    def found() -> tuple[list[str], list[str]]:
        said = programs.ask([firewall(), sudoers("broken\n")])
        return list(said.unasked), [one["role"] for one in said.refused]

    with monkeypatch.context() as patched:
        patched.setattr(programs, "complete", late)
        assert found() == (["nft"], ["os_hardening"])
    put(unshare=NO_UNSHARE)
    assert found() == (["nft"], ["os_hardening"])
    (tmp_path / "bin/unshare").unlink()
    (tmp_path / "bin/grep").symlink_to("/bin/grep")
    monkeypatch.setattr(process, "search_path", lambda: str(tmp_path / "bin"))
    assert found() == (["nft"], ["os_hardening"])


SSHD = """\
if [ -n "$LACKS" ]; then echo "Missing privilege separation directory: /run/sshd" >&2; exit 255; fi
if grep -qs Sound "$3"; then echo "$3: line 1: Bad configuration option: Sound" >&2; exit 255; fi
echo port 22
"""


def test_sshd_refuses_in_its_own_words_and_gets_no_folder(
    put: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(sshd=SSHD)
    main, folder = tmp_path / "sshd_config", tmp_path / "run"
    monkeypatch.setattr(sshd, "MAIN", main)
    monkeypatch.setattr(sshd, "DROP_IN", tmp_path / "sshd_config.d/00-temper.conf")
    monkeypatch.setattr(sshd, "PRIVILEGE_SEPARATION", folder)
    main.write_text("Sound on\n")
    plan = role_plan("ssh_hardening", [])
    (refused,) = programs.ask([plan]).refused
    assert refused["role"] == "ssh_hardening"
    assert "Sound" in refused["said"]
    monkeypatch.setenv("LACKS", "1")
    found = programs.ask([plan])
    assert (list(found.unasked), found.refused) == (["sshd"], [])
    assert not folder.exists()
