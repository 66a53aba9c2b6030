"""Records on a node whose fields have other types, or are missing: named as damaged, whatever reads them."""

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import lease
from ansible.module_utils.temper.access import accounts, other_firewall, selinux_ports
from ansible.module_utils.temper.engines import engine_settings, toolkit_config
from ansible.module_utils.temper.kernel import upgrade
from ansible.module_utils.temper.lease import LeaseError
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings import record
from ansible.module_utils.temper.settings.kinds import RECORDED

from pull import agent

Document = dict[str, Any]
Place = tuple[str | int, ...]

ODD: tuple[Any, ...] = (None, True, 5, 1.5, "text", [], {})

FILE = {"content": "eA==", "mode": 420, "uid": 0, "gid": 0}
KEYWORD = {"path": "/etc/login.defs", "keyword": "UMASK", "value": "027"}
ACCESS = {"path": "/etc/crontab", "mode": "0600", "groups": ["root"]}
CLOCKS = {"graphics_mhz": 1980, "memory_mhz": 2619, "power_w": 700.0}
#: By the key of each setting what the record has of it: several, where a value may have several types.
ORIGINALS: dict[str, list[Document]] = {
    "file:/etc/a": [
        {"spec": {"path": "/etc/a", "content": "", "directories": ["/etc"]}, "state": state}
        for state in (FILE, {"link": "b"}, None)
    ],
    "keyword:/etc/login.defs:UMASK": [
        {"spec": KEYWORD, "state": ["UMASK 022"], "former": [KEYWORD]},
        {"spec": KEYWORD, "state": None},
    ],
    "pam:temper": [
        {"spec": {"name": "temper", "stack": "common-auth", "words": ["pam_faillock.so"]}, "state": False}
    ],
    "authselect:with-faillock": [{"spec": {"feature": "with-faillock"}, "state": False}],
    "access:/etc/crontab": [
        {"spec": ACCESS, "state": {"mode": 420, "uid": 0, "gid": 0}, "former": [ACCESS]},
        {"spec": ACCESS, "state": None},
    ],
    "sysctl:vm.swappiness": [
        {"spec": {"name": "vm.swappiness", "value": "10"}, "state": "60", "given": True},
        {"spec": {"name": "vm.swappiness", "value": "10"}, "state": None},
    ],
    "sysfs:a/b": [{"spec": {"path": "a/b", "value": "1"}, "state": state} for state in ("0", None)],
    "mount:/tmp": [
        {"spec": {"path": "/tmp", "options": ["nodev"]}, "state": state} for state in (["nosuid"], None)
    ],
    "tmpfs:/dev/shm": [{"spec": {"path": "/dev/shm", "size": "75%"}, "state": state} for state in (1, None)],
    "unit:ssh.service": [
        {"spec": {"name": "ssh.service", "on": True}, "state": state}
        for state in ({"enabled": "enabled", "active": True}, None)
    ],
    "repository:sources": [
        {"spec": {}, "state": {"/etc/a": state}} for state in ({"content": "eA==", "mode": "0644"}, None)
    ],
    "package:set": [
        {
            "spec": {"engines": False, "holds": True, "only_removed": ["a"], "earlier": ["b"]},
            "state": {"a": version},
        }
        for version in ("1", None)
    ],
    "gpu:settings": [
        {"spec": {"wanted": {"locked_clocks": {"graphics": "max"}}}, "state": {"GPU-1": state}}
        for state in (CLOCKS, {**CLOCKS, "power_w": 700}, dict.fromkeys(CLOCKS))
    ],
}
SETTINGS: list[Document] = [
    {"originals": {key: original}, "pending": [key]}
    for key, originals in ORIGINALS.items()
    for original in originals
]
GIVEN = {"present": True, "sudo": True, "given": ["sudo"], "revoked": False}
FILES = [["ssh-ed25519 AAAA", 384], ["", 384, "/etc/keys"]]
BEFORE = {"groups": ["sudo"], "shadow": ["1", "", ""]}
ACCOUNTS: list[Document] = [
    {"version": 2, "accounts": {name: {**GIVEN, **BEFORE, "created": created, "keys": files}}}
    for name, created in (("ada", False), ("bob", True))
    for files in (FILES, [None, None], *([None] if created else []))
]
ENGINES: list[Document] = [
    {
        "records": {
            "docker": {"keys": [[["runtimes", "nvidia"], "x"]], "objects": [["runtimes"]], "created": True},
            "containerd": {"config": {"before": before, "after": "x"}, "created": True, "managed": True},
            toolkit_config.NAME: {"keys": {"a.b": [before, '"y"']}, "created": True},
            "podman": {"managed": True},
        },
        "pending": ["docker"],
        "cdi_units": ["nvidia-cdi-refresh.path"],
    }
    for before in ("x", None)
]
NUMBERS: Document = {"fencing": 7, "attempt": 1, "ttl_s": 600.0, "beat_s": 7.5}
WORDS: Document = {"owner": "me", "since": "x", "heartbeat": "x", "boot_id": "b", "former": ""}
UPGRADE: Document = {
    "former": "6.1.0-41-amd64",
    "release": "6.1.0-42-amd64",
    "version": "6.1.1",
    "packages": {"linux-image": "6.1.1"},
    "added": ["linux-image"],
    "back": {"linux-image": "6.1.0"},
    "automatic": ["linux-headers"],
}

#: What a record of each kind looks like, in all its forms.
RECORDS: dict[str, list[Document]] = {
    "settings": SETTINGS,
    "accounts": ACCOUNTS,
    "engines": ENGINES,
    "firewall": [{"name": "ufw", "at_boot": True}],
    "ports": [{"ports": ["2222"]}],
    "upgrade": [{"version": 2, "upgrade": UPGRADE}],
    "lease": [{**NUMBERS, **WORDS}, {**NUMBERS, **WORDS, "ttl_s": 600, "beat_s": 7}],
    "pull": [{"commit": "a" * 40, "tags": {"v1": "b" * 40}, "schema_version": 1}],
}
#: What may be anything: a value in daemon.json, and how clocks are locked, of which only whether they are.
ANY: list[Place] = [
    ("records", "docker", "keys", 0, 1),
    ("originals", "gpu:settings", "spec", "wanted", "locked_clocks", "graphics"),
]
#: A version of another type is a field of its own in a record without one.
VERSION: Place = ("version",)


def places(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield every value in a document but the whole, with its place."""
    if at:
        yield at, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*at, name))


def changed(document: Document, place: Place, *value: Any) -> Document:
    """Return the document with another value there, or with none."""
    result = copy.deepcopy(document)
    parent: Any = result
    for name in place[:-1]:
        parent = parent[name]
    if value:
        parent[place[-1]] = value[0]
    else:
        del parent[place[-1]]
    return result


def mistyped(documents: list[Document]) -> Iterator[tuple[Place, Document]]:
    """Yield the documents with one value of a type that none of them has there."""
    types: dict[Place, set[type]] = defaultdict(set)
    first: dict[Place, Document] = {}
    for document in documents:
        for place, value in places(document):
            types[place].add(type(value))
            first.setdefault(place, document)
    for place in types.keys() - {*ANY, VERSION}:
        for odd in ODD:
            if type(odd) not in types[place]:
                yield place, changed(first[place], place, odd)


def lacking(documents: list[Document]) -> Iterator[tuple[Place, Document]]:
    """Yield the documents without one of their values."""
    for document in documents:
        for place, _ in places(document):
            yield place, changed(document, place)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Document], object]:
    """Read a record of a kind from a document."""
    path = tmp_path / "record.json"
    for module, name in (
        (other_firewall, "ENDED"),
        (engine_settings, "STATE"),
        (selinux_ports, "NOTE"),
        (upgrade, "RECORD"),
    ):
        monkeypatch.setattr(module, name, path)
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    readers: dict[str, Callable[[], object]] = {
        "settings": lambda: record.Record("record"),
        "accounts": lambda: accounts.AccountsRecord(path),
        "engines": engine_settings.load_state,
        "firewall": other_firewall.ended,
        "ports": selinux_ports.noted,
        "upgrade": upgrade.noted,
        "lease": lambda: lease.read(path),
        "pull": lambda: agent.accepted_in(path),
    }

    def read_one(kind: str, document: Document) -> object:
        path.write_text(json.dumps(document))
        return readers[kind]()

    return read_one


def test_every_kind_of_setting_with_a_record_is_here() -> None:
    assert [key.partition(":")[0] for key in ORIGINALS] == list(RECORDED)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_read_in_all_its_forms(kind: str, read: Callable[[str, Document], object]) -> None:
    for document in RECORDS[kind]:
        assert read(kind, document)


@pytest.mark.parametrize("kind", RECORDS)
def test_a_field_of_another_type_is_damage(kind: str, read: Callable[[str, Document], object]) -> None:
    taken = []
    for place, document in mistyped(RECORDS[kind]):
        try:
            read(kind, document)
        except (RecordError, LeaseError) as error:
            assert "record.json is damaged" in str(error)
        except Exception as error:
            raise AssertionError(f"{place} in {document}") from error
        else:
            taken.append((place, document))
    assert taken == []


@pytest.mark.parametrize("kind", RECORDS)
def test_a_field_that_is_missing_is_no_traceback(kind: str, read: Callable[[str, Document], object]) -> None:
    for place, document in lacking(RECORDS[kind]):
        try:
            read(kind, document)
        except (RecordError, LeaseError):
            continue
        except Exception as error:
            raise AssertionError(f"{place} in {document}") from error
