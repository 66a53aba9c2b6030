"""Records on a node: read as they were written, and left alone where nobody can read them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import node_settings
import pytest
from ansible.module_utils.temper import lease, records
from ansible.module_utils.temper.access import accounts, other_firewall
from ansible.module_utils.temper.engines import engine_settings
from ansible.module_utils.temper.kernel import upgrade
from ansible.module_utils.temper.lease import LeaseError
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings import record

from tests.unit.each import each
from tests.unit.settings.role_plans import item, role_plan

DAMAGED = {
    "empty": b"",
    "cut off": b'{"originals": {"sysctl:a":',
    "NUL after a power cut": b"\0" * 300,
    "no UTF-8": b'{"a": "\xff"}',
    "a list": b"[]",
    "deeply nested": b"[" * 100_000,
    "too many digits": b'{"ttl_s": ' + b"9" * 5000 + b"}",
    "more than a number holds": b'{"ttl_s": 1e400}',
    "no number": b'{"ttl_s": NaN}',
    "newer": b'{"version": 999}',
    "version as text": b'{"version": "1.0"}' + b" ",
    "version of no kind": b'{"version": true}',
}
#: What readers are given besides, each of the types that another one has.
MISTYPED = b'{"originals": [], "records": [], "ttl_s": [], "name": [], "former": [], "alice": []}'

Readers = dict[Path, "Callable[[], object]"]


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Readers:
    """The readers of all records, and which file each reads."""
    for module, name in (
        (accounts, "RECORD"),
        (other_firewall, "ENDED"),
        (engine_settings, "STATE"),
        (upgrade, "RECORD"),
    ):
        monkeypatch.setattr(module, name, tmp_path / module.__name__)
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    monkeypatch.setattr(record, "FORMER", {})
    return {
        tmp_path / "os_tuning.json": lambda: record.Record("os_tuning").save(),
        accounts.RECORD: lambda: accounts.AccountsRecord(accounts.RECORD).write(),
        other_firewall.ENDED: other_firewall.ended,
        engine_settings.STATE: lambda: engine_settings._store_state({"pending": ["docker"]}),
        upgrade.RECORD: upgrade.noted,
        tmp_path / "lease.json": lambda: lease.acquire("me", 60.0, path=tmp_path / "lease.json"),
    }


@pytest.mark.parametrize("content", [*DAMAGED.values(), MISTYPED], ids=[*DAMAGED, "mistyped"])
def test_record_that_cannot_be_read_is_named_and_left_alone(readers: Readers, content: bytes) -> None:
    for path, read in readers.items():
        path.write_bytes(content)
        with pytest.raises((RecordError, LeaseError), match=str(path)):
            read()
        assert path.read_bytes() == content


@each(5, [5], [["text"]], [[384, "text"]], {"a": []})
def test_account_that_could_not_be_given_back_is_damage(keys: object, tmp_path: Path) -> None:
    known = {"created": False, "present": True, "sudo": True, "groups": [], "shadow": ["", "", ""]}
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"version": 2, "accounts": {"ada": {**known, "keys": keys}}}))
    with pytest.raises(RecordError, match=str(path)):
        accounts.AccountsRecord(path)


def test_damaged_field_of_a_part_that_may_be_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"after of config as str, found 5\b"):
        records.expect(tmp_path, "config", {"after": 5}, ({"after": str}, ...))


@each("link", "pipe", "folder")
def test_record_that_is_no_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    (tmp_path / "other").write_text("{}")
    makers: dict[str, Callable[[], None]] = {
        "link": lambda: path.symlink_to("other"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }
    makers[kind]()
    with pytest.raises(RecordError, match=str(path)):
        records.load(path, {})


def test_records_without_a_version_are_read_as_they_were_written(readers: Readers, tmp_path: Path) -> None:
    """Texts that the last Temper without versions has written."""
    original = {"spec": {"name": "kernel.kptr_restrict", "value": "2"}, "state": "0"}
    (tmp_path / "os_tuning.json").write_text(
        '{\n "originals": {\n  "sysctl:kernel.kptr_restrict": {\n   "spec": {\n    "name": '
        '"kernel.kptr_restrict",\n    "value": "2"\n   },\n   "state": "0"\n  }\n },\n "pending": []\n}'
    )
    known = {"created": True, "present": True, "sudo": False}
    accounts.RECORD.write_text('{\n  "version": {"created": true, "present": true, "sudo": false}\n}\n')
    other_firewall.ENDED.write_text('{"name": "ufw", "at_boot": true}')
    engine_settings.STATE.write_text('{\n "records": {"podman": {"managed": true}}\n}\n')
    upgrade.RECORD.write_text(
        '{"former": "6.1.0-1", "release": "6.1.0-2", "version": "6.1.2-1", "packages": '
        '{"linux-image-6.1.0-2": "6.1.2-1"}, "added": ["linux-image-6.1.0-2"], "back": {}, "automatic": []}'
    )
    (tmp_path / "lease.json").write_text(
        '{\n "owner": "night-1@ctl",\n "fencing": 7,\n "ttl_s": 60.0,\n "since": "",\n "heartbeat": "",\n '
        '"boot_id": "",\n "beat_s": 1.5,\n "attempt": 0,\n "former": ""\n}\n'
    )
    assert record.Record("os_tuning").originals == {"sysctl:kernel.kptr_restrict": original}
    assert accounts.AccountsRecord(accounts.RECORD).accounts == {"version": known}
    assert other_firewall.ended() == other_firewall.known("ufw", at_boot=True)
    assert engine_settings.load_state() == {"records": {"podman": {"managed": True}}}
    noted = upgrade.noted()
    assert noted
    assert (noted.version, noted.added) == ("6.1.2-1", ["linux-image-6.1.0-2"])
    assert lease.read(tmp_path / "lease.json").fencing == 7
    noted.write()
    accounts.AccountsRecord(accounts.RECORD).write()
    assert upgrade.noted() == noted
    assert accounts.AccountsRecord(accounts.RECORD).accounts == {"version": known}


def test_lease_is_written_without_a_field_that_older_programs_refuse(tmp_path: Path) -> None:
    lease.acquire("me", 60.0, path=tmp_path / "lease.json")
    assert "version" not in records.load(tmp_path / "lease.json", {})[1]


@each(float("nan"), float("inf"), 0.0, -1.0)
def test_lease_that_would_never_end_is_refused(ttl_s: float, tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match="time to live"):
        lease.acquire("me", ttl_s, path=tmp_path / "lease.json")


def test_only_drafts_of_writers_that_are_gone_are_removed(tmp_path: Path) -> None:
    old, live, other = (
        tmp_path / name for name in (".a.json.abcdefgh", ".a.json.12345678", ".b.json.abcdefgh")
    )
    for draft in (old, live, other):
        draft.write_text("{")
    for draft in (old, other):
        os.utime(draft, (0, time.time() - 2 * records.DRAFT_MAX_AGE_S))
    records.store(tmp_path / "a.json", {})
    assert (old.exists(), live.exists(), other.exists()) == (False, True, True)


@pytest.mark.parametrize("later", ["roles", "ahead"])
def test_no_role_is_begun_where_the_record_of_a_later_one_is_damaged(
    readers: Readers, tmp_path: Path, run_module: Callable[..., dict[str, Any]], later: str
) -> None:
    (tmp_path / "os_tuning.json").write_text("{")
    new = role_plan("compute_environment", [item("file", str(tmp_path / "new"), {"content": "x\n"})])
    parts = {"roles": [new], "ahead": []}
    parts[later].append(role_plan("os_tuning", []))
    result = run_module(node_settings.main, **{name: json.dumps(plans) for name, plans in parts.items()})
    assert result["failed"]
    assert result["refused"]
    assert str(tmp_path / "os_tuning.json") in result["msg"]
    assert not (tmp_path / "new").exists()
