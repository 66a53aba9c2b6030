"""Waivers as an inventory gives them: what is no waiver is refused with a sentence."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

from temper.base.nodes import utc
from temper.compliance import waivers
from tests.unit.each import each

NODES = {"gpu01", "gpu_nodes"}
WHOLE: dict[str, Any] = {
    "control": "aslr",
    "reason": "jobs need it",
    "owner": "ada",
    "approver": "grace",
    "ticket": "OPS-7",
    "expires": "2027-03-31T00:00:00Z",
}


def problem(**changes: Any) -> str:
    (found,) = waivers.read([WHOLE | changes], NODES)[1]
    return found


@each("2027-03-31T00:00:00Z", "2027-03-31T02:00:00+02:00", "2027-03-30 20:00:00-04:00")
def test_an_end_is_an_instant_whatever_its_zone(text: str) -> None:
    (found,), problems = waivers.read([WHOLE | {"expires": text}], NODES)
    assert not problems
    assert found.expires == datetime(2027, 3, 31, tzinfo=UTC)


def test_yaml_may_have_read_the_instant_already() -> None:
    moment = datetime(2027, 3, 31, 2, tzinfo=timezone(timedelta(hours=2)))
    (found,), _ = waivers.read([WHOLE | {"expires": moment}], NODES)
    assert utc(found.expires) == "2027-03-31T00:00:00Z"


@each(
    "2027-03-31",
    date(2027, 3, 31),
    "2027-03-31T00:00:00",
    datetime(2027, 3, 31),
    "31.03.2027",
    "next year",
    20270331,
    True,
)
def test_an_end_without_an_hour_and_a_zone_is_refused(value: Any) -> None:
    found = problem(expires=value)
    assert "entry 1 (aslr)" in found
    assert "expires" in found
    assert "2027-03-31T00:00:00Z" in found


@each("control", "reason", "owner", "approver", "ticket", "expires")
def test_each_of_these_is_required(name: str) -> None:
    assert name in problem(**{name: None})
    assert name in problem(**{name: ""})


@each(
    ({"expire": "2027"}, "expire"),
    ({"nodes": "gpu01"}, "nodes"),
    ({"nodes": 5}, "nodes"),
    ({"nodes": ["gpu77"]}, "gpu77"),
    ({"reason": 7}, "reason"),
    ({"valid_from": "2027-04-01T00:00:00Z"}, "before it begins"),
    ({"valid_from": "soon"}, "valid_from"),
)
def test_what_is_wrong_is_named(changes: dict[str, Any], word: str) -> None:
    assert word in problem(**changes)


def test_all_that_is_wrong_with_an_entry_is_named_at_once() -> None:
    # YAML has numbers for names, too.
    _, (found,) = waivers.read(
        [WHOLE | {"ticket": "", "expires": "2027-03-31", "until": "2027", 2027: 1, "nodes": ["gpu77"]}], NODES
    )
    assert all(word in found for word in ("ticket", "expires: expected an instant", "2027, until", "gpu77"))


def test_an_entry_that_is_no_mapping_is_refused() -> None:
    _, (found,) = waivers.read(["aslr"], NODES)
    assert "entry 1" in found


def test_all_wrong_entries_are_named_at_once() -> None:
    assert len(waivers.read([{}, WHOLE, {"control": "x"}], NODES)[1]) == 2


CONTROLS = ("os_hardening/umask", "os_hardening/aslr", "ssh_hardening/sshd", "firewall/firewall")


@each(
    ("ssh_hardening/sshd", "ssh_hardening/sshd", "ssh_hardening/sshd"),
    # As controls of the hardening were called before.
    ("umask", "os_hardening/umask", "os_hardening/umask"),
    ("os_hardenin/umask", "os_hardenin/umask", "os_hardening/umask"),
    ("umsk", "os_hardening/umsk", "os_hardening/umask"),
    ("sshd", "os_hardening/sshd", "ssh_hardening/sshd"),
    ("firewal/firewal", "firewal/firewal", "firewall/firewall"),
    ("nothing/alike-at-all", "nothing/alike-at-all", ""),
)
def test_a_control_is_called_by_its_role_and_name_and_a_typo_is_guessed(
    written: str, means: str, meant: str
) -> None:
    ((one,), problems) = waivers.read([{**WHOLE, "control": written}], NODES)
    assert (one.control, problems) == (means, [])
    assert waivers.nearest(one.control, CONTROLS) == meant
