"""Run every check that there is, also those that `make test` leaves out.

    python3 -m tests.nightly               run all steps
    python3 -m tests.nightly bench fuzz    run the steps that have one of these words; a word may be FILE=...
    python3 -m tests.nightly --list        print them
    python3 -m tests.nightly --continue    complete the newest run of this commit: what has not passed runs

A step that fails does not end the run. reports/nightly/START-COMMIT/ gets the output of each and summary.txt,
a table of steps, seconds and status. Exit status: 0 if none failed, 1 if one failed, 2 for an unknown word.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.lab.cuda.environment import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "reports" / "nightly"
# A test that hangs must not keep the rest from running.
LIMIT_S = 4 * 3600
#: Each is a step, so that a run can go on after the last one that passed.
SLOW_TESTS = [
    f"slow-test FILE={path.relative_to(ROOT)}"
    for path in sorted((ROOT / "tests" / "lab").glob("test_*.py"))
    if "mark.slow" in path.read_text(encoding="utf-8")
]

#: make's targets with small counts. What is cheap comes first, and what others need.
STEPS = (
    "lint",
    "documents",
    "site-docs",
    "generated",
    "unit",
    "component",
    "thorough",
    "help",
    # The lab tests start from the nodes that this keeps.
    "molecule",
    "molecule STEP=check",
    "lab-up LAB_NAME=nightly",
    "lab-status LAB_NAME=nightly",
    "lab-down LAB_NAME=nightly",
    "lab-smoke",
    "lab-test",
    "site LAB_NAME=nightly",
    "lab-commands",
    "lab-down LAB_NAME=nightly",
    "fuzz",
    "mock-nvml",
    "rollout-simulation COUNT=20 NODES=200",
    "bench",
    "cutoff-test COUNT=3",
    "compliance-campaign COUNT=8",
    "upgrade-campaign ARGS='--part 1/8'",
    "upgrade-campaign RUN=fleet COUNT=4",
    "fleet-campaign COUNT=3",
    *SLOW_TESTS,
    "cuda-test",
)
#: Documented targets that no step runs, and why.
LEFT_OUT = {
    "test": "its parts are steps",
    "nightly": "it is this program",
    "setup": "other targets do it first",
    "setup-dev": "likewise",
    "docs": "`generated` runs it and looks at the result",
    "requirements": "renews pins: a change that a person has to look at",
    "torch-requirements": "renews pins, too",
    "scan": "it is a slow test",
    "os-values": "changes this machine's own settings, and needs one without other work",
    "screenshots": "writes new pictures, for a person to look at",
    "clean": "removes what the next steps need",
}
#: Steps that are no targets: what they run.
COMMANDS = {
    "documents": ".venv/bin/pytest tests/nightly -q",
    # NVIDIA's nvidia-smi over a mock NVML that somebody built: TEMPER_MOCK_NVML.
    "mock-nvml": ".venv/bin/pytest tests/nightly/test_mock_nvml.py -q",
    # On the nodes that `site` has made.
    "lab-commands": "LAB_NAME=nightly .venv/bin/pytest tests/nightly/test_lab_commands.py -q",
    # What `make docs` writes is committed.
    "generated": 'before=$(git diff | sha256sum) && make docs && test "$before" = "$(git diff | sha256sum)"',
}
#: Steps that need something of others, and the command that looks whether it can be had.
NEEDS = {
    "lab-commands": "make lab-status LAB_NAME=nightly | grep running",
    "cuda-test": f"echo torch=={VERSIONS[-1]} | .venv/bin/uv pip compile --quiet --no-deps -",
    "mock-nvml": ".venv/bin/python -m tests.nightly.test_mock_nvml",
}
#: What `make nightly` was given is not for the targets that it starts.
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


def targets() -> list[str]:
    """The targets that `make help` lists."""
    return re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@dataclass(frozen=True)
class StepResult:
    """How a step ended."""

    step: str
    seconds: float
    status: str


def run(command: str, log: Path) -> int:
    """Run a shell command to its end or its time limit, and keep its output; return its exit status."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    # As Ctrl-C does, so that tests take their labs down.
    limited = ["timeout", "--signal=INT", "--kill-after=300", f"{LIMIT_S}", "sh", "-c", command]
    with log.open("ab") as output:
        done = subprocess.run(limited, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    return done.returncode


def perform(step: str, log: Path) -> StepResult:
    """Run a step, unless what it needs is missing."""
    print(f"{datetime.now(UTC):%H:%M:%S} {step} ...", flush=True)
    started = time.monotonic()
    if step in NEEDS and run(NEEDS[step], log) != 0:
        status = f"skipped: what it needs cannot be had: {log}"
    elif (code := run(COMMANDS.get(step, f"make {step}"), log)) == 0:
        status = "passed"
    else:
        status = f"failed ({f'not finished after {LIMIT_S} s' if code == 124 else code}): {log}"
    return StepResult(step, time.monotonic() - started, status)


def table(results: Iterable[StepResult]) -> str:
    """Write what ran, how long it took, and how it ended."""
    rows = [f"{result.step:<56} {result.seconds:8.0f}  {result.status}\n" for result in results]
    return f"{'STEP':<56}  SECONDS  STATUS\n{''.join(rows)}"


def commit() -> str:
    """Name the commit that is checked out, and say whether files differ from it."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, check=True, text=True, capture_output=True).stdout.strip()


def folder_of(revision: str, *, newest: bool) -> Path:
    """Return a new folder for a run of this commit, or the newest one that there is."""
    if newest and (found := sorted(REPORTS.glob(f"*-{revision}-*"))):
        return found[-1]
    REPORTS.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}-{revision}-", dir=REPORTS))


def passed(folder: Path) -> dict[int, StepResult]:
    """Read what passed in an earlier part of this run, by the step's number."""
    file = folder / "results.json"
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {int(number): StepResult(**row) for number, row in results.items() if row["status"] == "passed"}


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.nightly", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the steps, and run nothing")
    parser.add_argument("--continue", dest="goes_on", action="store_true", help="run what has not passed yet")
    parser.add_argument("words", nargs="*", help="run only the steps with one of these words")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.words).difference(*map(str.split, STEPS))):
        parser.error(f"no step has the word {', '.join(unknown)}; --list prints the steps")
    # A step's number stays its own, also where only some are run.
    steps = {
        number: step
        for number, step in enumerate(STEPS, 1)
        if not options.words or not set(options.words).isdisjoint(step.split())
    }
    if options.list:
        print("\n".join(steps.values()))
        return 0
    folder = folder_of(commit(), newest=options.goes_on)
    results = passed(folder)
    for number, step in steps.items():
        if number in results:
            continue
        results[number] = perform(step, folder / f"{number:02d}-{step.split()[0]}.log")
        print(f"  {results[number].status}, {results[number].seconds:.0f} s", flush=True)
        rows = dict(sorted(results.items()))
        kept = json.dumps({number: asdict(row) for number, row in rows.items()}, indent=1)
        (folder / "results.json").write_text(kept, encoding="utf-8")
        (folder / "summary.txt").write_text(table(rows.values()), encoding="utf-8")
    print(f"\n{table(dict(sorted(results.items())).values())}\n{os.path.relpath(folder, ROOT)}")
    return int(any(result.status.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
