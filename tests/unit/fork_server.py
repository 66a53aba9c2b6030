"""Runs programs, each in a fork of a Python that has imported some modules already: as in a new process.

The arguments are the modules. Standard input has one JSON object a line: the program and its environment.
Standard output answers with the exit status and what the program wrote.
"""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


class ForkServer:
    """Such a Python, which ends with this process."""

    def __init__(self, python: str, *modules: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.unit.fork_server", *modules],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.communicate)

    def run(self, program: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        print(json.dumps({"program": program, "environment": {**environment}}), file=stdin, flush=True)
        return subprocess.CompletedProcess(program, *json.loads(stdout.readline()))


def _answer(asked: dict[str, Any]) -> tuple[int, str, str]:
    """Run one program to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            _be(asked, out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _be(asked: dict[str, Any], out: int, err: int) -> None:
    """Be the process of a program, until its end."""
    signal.alarm(TIMEOUT_S)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(old, new)
    os.environ.clear()
    os.environ.update(asked["environment"])
    # What is registered so far is of the server.
    atexit._clear()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        exec(asked["program"], vars(main))  # noqa: S102
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the process says all of it
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    """Answer until standard input ends."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
