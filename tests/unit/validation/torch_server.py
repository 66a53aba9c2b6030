"""Runs programs in a Python that has imported torch already: each in a fork, as in a process of its own.

Standard input has one JSON object a line: the program and its environment. Standard output answers with the
exit status and what the program wrote.
"""

import json
import os
import signal
import sys
import tempfile
import types
from typing import Any

TIMEOUT_S = 300


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one program to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            _be(asked, out.fileno(), err.fileno())
        _, status = os.waitpid(pid, 0)
        texts = {}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            texts[name] = file.read().decode(errors="replace")
    return {"status": os.waitstatus_to_exitcode(status), **texts}


def _be(asked: dict[str, Any], out: int, err: int) -> None:
    """Be the process of a program, until its end."""
    signal.alarm(TIMEOUT_S)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(old, new)
    os.environ.clear()
    os.environ.update(asked["environment"])
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(asked["program"], vars(main))  # noqa: S102
    except BaseException:  # noqa: BLE001 - the process says all of it
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def serve() -> None:
    """Answer until standard input ends."""
    import torch  # noqa: F401 - what the programs find imported

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
