"""What a helper can send: streams as ansible-runner makes them, with archives that it would follow."""

import base64
import io
import itertools
import json
import stat
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from ansible_runner.utils.streaming import stream_dir  # type: ignore[import-untyped]  # it ships no types

from temper.fleet import stream
from temper.fleet.stream import Received, StreamError
from temper.plan.fleet import FleetPlan
from tests.unit.each import each
from validation.model.contract import EXPECTATIONS_VERSION

NODES = ("gpu01", "gpu02")


#: As preflight hands plans over: nodes name settings by their digests.
PLAN = FleetPlan.from_dict({"gpu01": {"problems": [], "roles": {"x": '{"a": ["\\u00e4", 1.5]}'}}}).part()


def received(folder: Path, lines: Iterable[bytes]) -> Received:
    folder.mkdir(exist_ok=True)
    reader = Received(folder, NODES, lambda event: None)
    for line in lines:
        reader.line(line.rstrip(b"\n"))
    return reader


def sent(archive: bytes) -> list[bytes]:
    """The lines of an archive, as a worker sends them."""
    return [
        json.dumps({"zipfile": len(archive)}).encode(),
        base64.b64encode(archive) + b'{"eof": true}',
    ]


def packed(*entries: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    memory = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, content in entries:
            archive.writestr(name, content)
    return memory.getvalue()


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.create_system, made.external_attr = 3, mode << 16
    return made


def test_what_ansible_runner_sends_of_a_folder_arrives(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "collected").mkdir(parents=True)
    (source / "collected" / "plan.json").write_text(json.dumps(PLAN))
    (source / "stdout").write_text("ok")
    (source / "rc").write_text("0")
    output = io.BytesIO()
    output.name = "output"
    stream_dir(str(source), output)
    output.write(b'{"eof": true}\n')
    reader = received(tmp_path / "folder", output.getvalue().splitlines())
    assert reader.whole
    found = {str(path.relative_to(tmp_path / "folder")) for path in (tmp_path / "folder").rglob("*")}
    assert found == {"stdout", "collected", "collected/plan.json"}
    assert stat.S_IMODE((tmp_path / "folder" / "stdout").stat().st_mode) == 0o600


def test_a_link_that_ansible_runner_sends_is_refused(tmp_path: Path) -> None:
    """Its own reader makes the link, and writes the next file behind it."""
    source, aim = tmp_path / "source", tmp_path / "authorized_keys"
    (source / "collected").mkdir(parents=True)
    (source / "collected" / "plan.json").symlink_to(aim)
    aim.write_text("mine")
    output = io.BytesIO()
    output.name = "output"
    stream_dir(str(source), output)
    with pytest.raises(StreamError, match="a link or a device"):
        received(tmp_path / "folder", output.getvalue().splitlines())
    assert aim.read_text() == "mine"
    assert list((tmp_path / "folder").iterdir()) == []


RESULTS = b'{"document": {"expectations": {"nodes": {}}, "results": {"gpu03": {}}}}'
EXPECTED = b'{"schema_version": %d, "nodes": {"gpu01": 5}}' % EXPECTATIONS_VERSION
EVIL = {
    "expectations of another form": packed(
        ("collected/validation.json", b'{"document": {"expectations": %b, "results": {}}}' % EXPECTED)
    ),
    "results of which nothing is expected": packed(
        (
            "collected/validation.json",
            b'{"document": {"expectations": {"schema_version": %d, "nodes": {}}, "results": {"gpu01": {}}}}'
            % EXPECTATIONS_VERSION,
        )
    ),
    "a name twice": packed(("collected/plan.json", b'{"x": 1, "x": 2, %b' % json.dumps(PLAN).encode()[1:])),
    "answers, deep": packed(
        ("collected/compliance.json", b'{"nodes": [], "answers": %b}' % (b"[" * 100 + b"]" * 100))
    ),
    "plan, deep": packed(
        ("collected/plan.json", b'{"x": %b, %b' % (b"[" * 100 + b"]" * 100, json.dumps(PLAN).encode()[1:]))
    ),
    "link": packed((entry("collected", stat.S_IFLNK | 0o777), b"/tmp")),
    "pipe": packed((entry("stdout", stat.S_IFIFO | 0o600), b"")),
    "setuid": packed((entry("stdout", stat.S_IFREG | stat.S_ISUID | 0o755), b"x")),
    "setgid": packed((entry("rc", stat.S_IFREG | stat.S_ISGID | 0o755), b"x")),
    "above": packed(("../stdout", b"x")),
    "above, hidden": packed(("collected/../../x", b"x")),
    "absolute": packed(("/tmp/x", b"x")),
    "twice": packed(("stdout", b"x"), ("stdout", b"y")),
    "many": packed(*((f"collected/{number}", b"") for number in range(200))),
    "very many": packed(*((f"job_events/{number}", b"") for number in range(10_001))),
    "plan of others": packed(("collected/plan.json", b'{"nodes": {"gpu03": {}}}')),
    "statement of others": packed(("collected/compliance.json", b'{"nodes": [{"name": "gpu03"}]}')),
    "results of others": packed(("collected/validation.json", RESULTS)),
    "settings of others": packed(
        ("collected/plan.json", b'{"nodes": {}, "settings": {"0123456789abcdef": {}}, "waived": {}}')
    ),
    "deep": packed(("collected/plan.json", b"[" * 100_000)),
    "another form": packed(("collected/plan.json", b"[]")),
    "no archive": b"no archive",
}


@each(*EVIL.values())
def test_an_evil_archive_writes_nothing_outside_of_its_folder(evil: bytes, tmp_path: Path) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(StreamError):
        received(tmp_path / "folder", sent(evil))
    assert {path.name for path in tmp_path.iterdir()} == before | {"folder"}
    assert not [path for path in (tmp_path / "folder").rglob("*") if path.is_symlink()]


@pytest.mark.parametrize(
    "lines",
    [sent(packed(("stdout", b"0" * 10_000_000))), itertools.repeat(b'{"event": "keepalive"}')],
    ids=["an archive that unpacks to much more", "a stream without an end"],
)
def test_what_is_more_than_a_slice_can_have_is_refused(
    lines: Iterable[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MOST_BYTES", 100_000)
    monkeypatch.setattr(stream, "MOST_BYTES_A_NODE", 0)
    with pytest.raises(StreamError, match="more than a slice"):
        received(tmp_path / "folder", lines)


@each(
    b"[]",
    b"1",
    b"\xff",
    b"[" * 100_000,
    b'{"zipfile": -1}',
    b'{"zipfile": 1e9}',
    b'{"zipfile": true}',
    b"{",
)
def test_a_line_of_another_form_is_one_sentence(line: bytes, tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="is no run of Ansible"):
        received(tmp_path / "folder", [line])


def test_nothing_that_was_there_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "stdout").symlink_to(tmp_path / "aim")
    with pytest.raises(OSError, match="File exists"):
        received(tmp_path / "folder", sent(packed(("stdout", b"x"))))
    assert not (tmp_path / "aim").exists()
