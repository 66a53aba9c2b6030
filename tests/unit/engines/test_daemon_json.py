"""Our keys in somebody's daemon.json: merged, never overwritten, taken out again without a trace."""

import json
from typing import Any

import pytest
from ansible.module_utils.temper.engines.daemon_json import (
    DockerRecord,
    WantedKey,
    merge,
    parse,
    remove,
    render,
    size_bytes,
)
from ansible.module_utils.temper.settings.base import RefusedError

from tests.unit.each import each

RUNTIME = {"path": "nvidia-container-runtime", "args": []}
MEMLOCK = {"Name": "memlock", "Soft": -1, "Hard": -1}
SETTINGS = [
    WantedKey(("runtimes", "nvidia"), RUNTIME, "leave docker out"),
    WantedKey(("default-shm-size",), "1G", "set container_engines_shm_size"),
    WantedKey(("default-ulimits", "memlock"), MEMLOCK, "leave memlock out"),
]
WHERE = "/etc/docker/daemon.json"


def nothing() -> DockerRecord:
    return DockerRecord([], [], created=False)


def merged(text: str) -> dict[str, Any]:
    return merge(parse(text, WHERE), SETTINGS, nothing(), WHERE)[0]


def refusal(text: str) -> str:
    with pytest.raises(RefusedError) as error:
        merged(text)
    return str(error.value)


def test_other_keys_and_their_order_are_kept() -> None:
    document = merged('{"log-driver": "json-file", "runtimes": {"kata": {"path": "/k"}}, "debug": true}')
    assert list(document) == ["log-driver", "runtimes", "debug", "default-shm-size", "default-ulimits"]
    assert list(document["runtimes"]) == ["kata", "nvidia"]


def test_merging_again_changes_nothing() -> None:
    document, record = merge({"debug": True}, SETTINGS, nothing(), WHERE)
    assert merge(document, SETTINGS, record, WHERE) == (document, record)


@each("", " \n", "{}")
def test_an_empty_file_is_an_empty_object_as_for_docker(text: str) -> None:
    assert merged(text)["runtimes"] == {"nvidia": RUNTIME}


@each(
    ("{", "is not valid JSON (Expecting property name"),
    ('{"debug": true,}', "is not valid JSON"),
    ("[]", "expected a JSON object, found list"),
    ('{"debug": true, "debug": false}', "debug stands twice; Docker takes the last"),
    ('{"runtimes": []}', "expected an object as runtimes, found []"),
    (
        '{"runtimes": {"nvidia": {"path": "/opt/nvidia-container-runtime"}}}',
        'runtimes.nvidia is {"path": "/opt/nvidia-container-runtime"}, set by somebody else',
    ),
    (
        '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": ["--debug"]}}}',
        "runtimes.nvidia is",
    ),
    (
        '{"default-shm-size": "2G"}',
        'default-shm-size is "2G", set by somebody else; expected "1G". Remove it there, or set '
        "container_engines_shm_size",
    ),
    (
        '{"default-ulimits": {"memlock": {"Name": "memlock", "Soft": 64, "Hard": 64}}}',
        "default-ulimits.memlock is",
    ),
)
def test_what_is_refused(text: str, sentence: str) -> None:
    assert sentence in refusal(text)
    assert refusal(text).startswith(WHERE)


@each(
    {"path": "nvidia-container-runtime", "args": []},
    {"path": "/usr/bin/nvidia-container-runtime"},
    {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []},
)
def test_the_runtime_in_another_spelling_is_left_as_it_is(runtime: dict[str, Any]) -> None:
    document = {"runtimes": {"nvidia": runtime}, "default-shm-size": "1024m"}
    result, record = merge(document, SETTINGS, nothing(), WHERE)
    assert result["runtimes"]["nvidia"] == runtime
    assert result["default-shm-size"] == "1024m"
    assert [path for path, _ in record.keys] == [("default-ulimits", "memlock")]


def test_our_own_value_follows_the_variable() -> None:
    document, record = merge({}, SETTINGS, nothing(), WHERE)
    bigger = [WantedKey(("default-shm-size",), "2G", "")]
    document, record = merge(document, bigger, record, WHERE)
    assert document == {"default-shm-size": "2G"}
    assert record.keys == [(("default-shm-size",), "2G")]


def test_removal_leaves_what_was_there_before() -> None:
    before = {"debug": True, "runtimes": {}, "default-ulimits": {"nofile": {"Name": "nofile"}}}
    document, record = merge(before, SETTINGS, nothing(), WHERE)
    assert remove(document, DockerRecord.load(json.loads(json.dumps(record.dump())))) == before


def test_removal_leaves_what_somebody_has_changed_since() -> None:
    document, record = merge({}, SETTINGS, nothing(), WHERE)
    document["default-shm-size"] = "8G"
    document["runtimes"]["kata"] = {"path": "/k"}
    assert remove(document, record) == {"default-shm-size": "8G", "runtimes": {"kata": {"path": "/k"}}}


@each(
    ('{\n  "a": 1\n}\n', '{\n  "a": "ü"\n}\n'),
    ('{\n\t"a": 1\n}', '{\n\t"a": "ü"\n}'),
    ('{"a": 1}', '{\n    "a": "ü"\n}'),
    ("", '{\n    "a": "ü"\n}\n'),
)
def test_the_files_own_indentation_is_kept(before: str, expected: str) -> None:
    assert render({"a": "ü"}, before) == expected


@each(("1G", 1 << 30), ("1024m", 1 << 30), ("64MB", 64 << 20), ("1 GiB", 1 << 30), ("12", 12), ("1.5G", None))
def test_sizes_as_docker_writes_them(text: str, size: int | None) -> None:
    assert size_bytes(text) == size
