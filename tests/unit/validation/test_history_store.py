"""The history's file: what is written is there, once, and one that cannot be used stays as it was."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from temper.base import store
from temper.base.store import HistoryError, Part, Store
from temper.judge.history import Past, PastDigest, PastNumber, PastRun
from temper.judge.history_store import History
from temper.judge.own_past import take_over
from validation.model.contract import encode

ROOT = Path(__file__).resolve().parents[3]


def run(day: int = 1, node: str = "gpu01", value: float = 50.0) -> PastRun:
    return PastRun(
        node,
        f"2026-11-{day:02}T12:00:00+00:00",
        "quick",
        "2.9.0",
        None,
        (
            PastNumber("gpu_matmul", 1, "fp32_tflops", "GPU-0", value, {"size": 8192, "layout": "nt"}),
            PastNumber("cpu_matmul", 2, "fp32_gflops", "", value, {}),
        ),
        (PastDigest("gpu_matmul", 1, "bf16", "GPU-0", "00ff", {"torch": "2.9.0"}),),
    )


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(store, "PATIENCE_S", 0.1)
    return History(tmp_path / "reports" / "history.sqlite")


def runs(history: History, node: str = "gpu01") -> tuple[PastRun, ...]:
    return dict(history.past([node]))[node].runs


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Another process that writes to the history which is its first argument."""
    begin = """
        import os, resource, signal, sys
        from pathlib import Path
        from tests.unit.validation.test_history_store import History, HistoryError, run, runs
        from temper.base import store
        store.PATIENCE_S = 0.1
        history = History(Path(sys.argv[1]))
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_what_was_added_is_there_in_its_order_and_once(history: History) -> None:
    assert history.append([run(2), run(1), run(1, "gpu02", 40.0)]) == 3
    assert history.append([run(1, value=1.0)]) == 0
    assert dict(history.past(["gpu01", "gpu02", "gpu03"])) == {
        "gpu01": Past((run(1), run(2))),
        "gpu02": Past((run(1, "gpu02", 40.0),)),
        "gpu03": Past(),
    }


def test_runs_that_the_operator_puts_behind_stay_and_do_not_count(history: History) -> None:
    history.append([run(1), run(2), run(1, "gpu02")])
    assert history.accept("gpu01") == 2
    assert (runs(history), len(runs(history, "gpu02"))) == ((), 1)
    assert history.append([run(1), run(3)]) == 1
    assert runs(history) == (run(3),)
    with sqlite3.connect(history.path) as connection:
        assert connection.execute("SELECT count(*) FROM run WHERE node = 'gpu01'").fetchone() == (3,)


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Files of an earlier form: five runs of two nodes, and three lines that are none."""
    folder = tmp_path / "reports" / "history"
    folder.mkdir(parents=True)
    lines = [json.dumps({"schema_version": 3} | encode(run(day))) for day in (1, 2, 3)]
    old = {"schema_version": 2} | encode(run(4))
    del old["digests"]
    newer = {"schema_version": 9} | encode(run(5))
    (folder / "gpu01.jsonl").write_bytes(
        "\n".join([*lines, json.dumps(old), json.dumps(newer), "[]", '{"schema_version": 3, "no']).encode()
        + b"\xff\n"
    )
    (folder / "gpu02.jsonl").write_text(json.dumps({"schema_version": 3} | encode(run(1, "gpu02"))) + "\n")
    return folder


def test_files_of_an_earlier_form_are_taken_over_once_and_kept(history: History, former: Path) -> None:
    before = {path.name: path.read_bytes() for path in former.iterdir()}
    found = take_over(history, former)
    assert (found.runs, found.files) == (5, 2)
    assert [problem.partition(": ")[0] for problem in found.problems] == [
        f"{former / 'gpu01.jsonl'}, line {number}" for number in (5, 6, 7)
    ]
    assert "version 9" in found.problems[0]
    text = found.text(history.path)
    assert "5 runs from 2 files" in text
    assert all(problem in text for problem in found.problems)
    assert [one.started_at[8:10] for one in runs(history)] == ["01", "02", "03", "04"]
    assert [len(one.digests) for one in runs(history)] == [1, 1, 1, 0]
    assert runs(history, "gpu02") == (run(1, "gpu02"),)
    again = take_over(history, former)
    assert (again.runs, again.files, again.text(history.path)) == (0, 0, "")
    assert {path.name: path.read_bytes() for path in former.iterdir()} == before


def test_many_lines_that_are_none_do_not_drown_the_report(history: History, former: Path) -> None:
    (former / "gpu03.jsonl").write_text("x\n" * 1000)
    text = take_over(history, former).text(history.path)
    assert len(text.splitlines()) < 20
    assert "more lines" in text


def test_a_file_that_cannot_be_read_is_named_and_tried_again(history: History, former: Path) -> None:
    (former / "gpu03.jsonl").mkdir()
    found = take_over(history, former)
    assert found.runs == 5
    assert "gpu03.jsonl" in found.problems[-1]
    (former / "gpu03.jsonl").rmdir()
    (former / "gpu03.jsonl").write_text(json.dumps({"schema_version": 3} | encode(run(1, "gpu03"))) + "\n")
    assert (take_over(history, former).runs, len(runs(history, "gpu03"))) == (1, 1)


@pytest.mark.parametrize("pragma", ["PRAGMA user_version = 99", "UPDATE part SET version = 99"])
def test_a_newer_version_is_refused_and_left_alone(history: History, pragma: str) -> None:
    history.append([run(1)])
    with sqlite3.connect(history.path) as connection:
        connection.execute(pragma)
    before = history.path.read_bytes()
    for use in (lambda: history.append([run(2)]), lambda: runs(history)):
        with pytest.raises(HistoryError, match=r"version 99.*take a newer Temper"):
            use()
    assert history.path.read_bytes() == before


@pytest.mark.parametrize("kind", ["text", "somebody's database", "damaged"])
def test_what_is_no_history_is_refused_and_left_alone(history: History, kind: str) -> None:
    if kind == "damaged":
        history.append([run(day) for day in range(1, 29)])
        content = history.path.read_bytes()
        history.path.write_bytes(content[:8192] + b"\xa5" * (len(content) - 8192))
    elif kind == "text":
        history.path.parent.mkdir()
        history.path.write_text("something else, and long enough not to be taken for an empty file\n" * 20)
    else:
        history.path.parent.mkdir()
        with sqlite3.connect(history.path) as connection:
            connection.execute("CREATE TABLE number (telephone TEXT)")
    before = history.path.read_bytes()
    for use in (lambda: history.append([run(2)]), lambda: runs(history)):
        with pytest.raises(HistoryError, match=str(history.path)) as caught:
            use()
        assert "\n" not in str(caught.value)
        assert "move it away" in str(caught.value)
    assert history.path.read_bytes() == before


def test_two_parts_share_the_file_and_do_not_disturb_each_other(history: History) -> None:
    other = Store(history.path, Part("other", 1, ("CREATE TABLE mine (value TEXT)",)))
    with other.reading() as nothing:
        assert nothing is None
    history.append([run(1)])
    with other.reading() as nothing:
        assert nothing is None
    with other.writing() as connection:
        connection.execute("INSERT INTO mine VALUES ('x')")
    assert runs(history) == (run(1),)
    with sqlite3.connect(history.path) as connection:
        connection.execute("UPDATE part SET version = 2 WHERE name = 'other'")
    assert history.append([run(2)]) == 1
    with pytest.raises(HistoryError, match="its part other in version 2"), other.writing():
        pass


def test_a_second_writer_waits_and_then_says_so(history: History) -> None:
    history.append([run(1)])
    with History(history.path)._store.writing():
        with pytest.raises(HistoryError, match=r"in use.*nothing was recorded"):
            history.append([run(2)])
        # Who only reads waits for nobody.
        assert runs(history) == (run(1),)
    assert history.append([run(2)]) == 1


@pytest.mark.component
def test_writers_at_once_lose_nothing(history: History) -> None:
    code = """
        history = History(Path(sys.argv[1]))
        for day in range(1, 11):
            history.append([run(day, sys.argv[2])])
    """
    begin = "import sys\nfrom pathlib import Path\nfrom tests.unit.validation.test_history_store import *\n"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", begin + textwrap.dedent(code), str(history.path), f"gpu{number}"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [len(runs(history, f"gpu{number}")) for number in range(3)] == [10, 10, 10]


def test_several_may_begin_a_history_at_once(tmp_path: Path) -> None:
    """Each waits for the others; none takes a file that is being made for a stranger's."""
    for attempt in range(25):
        begun = History(tmp_path / f"{attempt}.sqlite")
        together = Barrier(4)

        def write(number: int, begun: History = begun, together: Barrier = together) -> int:
            together.wait()
            return begun.append([run(1, f"gpu{number}")])

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(write, range(4))) == [1, 1, 1, 1]
        assert [len(runs(begun, f"gpu{number}")) for number in range(4)] == [1, 1, 1, 1]


@pytest.mark.component
def test_a_writer_that_is_killed_leaves_what_was_there(history: History) -> None:
    """Also for a reader of a copy that nobody may write to: the log of the killed one is not passed over."""
    history.append([run(1)])
    killed = python(
        """
        import temper.judge.history_store as store
        def place(self, uuid):
            # What was done so far is on the disk, but for the transaction's end.
            os.kill(os.getpid(), signal.SIGKILL)
        store._Writer._place = place
        history.append([run(2)])
        """,
        history.path,
    )
    assert killed.returncode == -signal.SIGKILL
    assert runs(history) == (run(1),)
    assert history.append([run(2)]) == 1


@pytest.mark.component
def test_a_disk_that_is_full_is_said_and_nothing_is_lost(history: History) -> None:
    history.append([run(1)])
    size = history.path.stat().st_size
    done = python(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
        try:
            history.append([run(day, f"gpu{node}") for day in range(2, 29) for node in range(100)])
        except HistoryError as error:
            print(error)
        print(len(runs(history)))
        """,
        history.path,
        size + 40_000,
    )
    assert done.returncode == 0, done.stderr
    sentence, left = done.stdout.splitlines()
    assert f"the history {history.path} cannot be written" in sentence
    assert "nothing was recorded" in sentence
    assert sentence.endswith("has space left")
    assert left == "1"
    assert runs(history) == (run(1),)
    assert history.append([run(2)]) == 1


READ_AND_WRITE = """
import sys
from tests.unit.validation.test_history_store import *
history = History(Path(sys.argv[1]))
try:
    print(len(runs(history)))
except HistoryError as error:
    print(error)
try:
    history.append([run(2)])
except HistoryError as error:
    print(error)
"""


@pytest.fixture
def on_a_medium(history: History) -> Callable[[], list[str]]:
    """A function that reads and writes with the folder mounted read-only, as on a medium; what that says."""
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(history.path.parent)]
    history.append([run(1)])
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine mounts nothing for tests")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [*command, sys.executable, "-c", READ_AND_WRITE, str(history.path)]
    return lambda: subprocess.check_output(words, cwd=ROOT, env=environment, text=True).splitlines()


@pytest.mark.component
def test_a_folder_that_is_read_only_is_read_and_a_writer_says_so(
    history: History, on_a_medium: Callable[[], list[str]]
) -> None:
    count, sentence = on_a_medium()
    assert count == "1"
    assert f"the history {history.path} cannot be written" in sentence
    assert f"see that {history.path.parent} can be written to" in sentence


@pytest.mark.component
def test_a_log_that_cannot_be_read_along_is_not_passed_over(
    history: History, on_a_medium: Callable[[], list[str]]
) -> None:
    """A killed writer leaves it; without it the newest run would be missing."""
    code = """
        history.append([run(3)])
        with history._store.reading():
            # What this reader sees keeps the log of the next writer from being merged.
            other = History(history.path)
            other.append([run(4)])
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert python(code, history.path).returncode == -signal.SIGKILL
    assert history.path.with_name("history.sqlite-wal").stat().st_size
    assert "copy both files to another folder" in on_a_medium()[0]
