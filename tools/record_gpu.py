"""Record what this machine's GPUs say and do, without what tells one machine from another.

    python3 -m tools.record_gpu > h100-580.126.09.xml
    python3 -m tools.record_gpu FOLDER [--python PYTHON] [--minutes 10]

Without a folder it prints `nvidia-smi -q -x`. With one it also runs the payload there, with a Python that has
torch: the quick plan twice, which shows what differs from run to run, the bench against plain torch, and the
standard plan. What the minutes do not suffice for is left out, and said; `page.md` in the folder says
what was found. It reads and measures; no setting of a GPU is touched.

UUIDs and host names are numbered alike in all files, serial numbers and what is derived from them become N/A,
processes and the time are left out; all else stays as it was printed, for the simulator of the lab and for
tests to be held against.

Exit status: 0 all was recorded, 1 a part is missing, 2 there is nothing to record.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validation.model.contract import ContractError, Digest, Measurement, NodeResult, TestResult, loads

Key = tuple[str, str, int | None, str]

COMMAND = ["nvidia-smi", "-q", "-x"]
#: What else a driver says in words; a card answers "Not Supported" where it has nothing of it.
TABLES = (
    ["-L"],
    ["topo", "-m"],
    ["nvlink", "--status"],
    ["-q", "-d", "SUPPORTED_CLOCKS"],
    ["mig", "--list-gpu-instance-profiles"],
)
TIMEOUT_S = 60
UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
#: Elements whose text is one machine's own. The PDI is the number that a UUID is made of.
OWN = re.compile(
    r"<((?:\w+_)?serial(?:_number)?|pdi|cluster_?uuid|(?:\w+_)?guid)>[^<]*</\1>",
    re.IGNORECASE,
)
PROCESSES = re.compile(r"<(processes|accounted_processes)>.*?</\1>", re.DOTALL)
TIME = re.compile(r"<timestamp>[^<]*</timestamp>")
ROOT = Path(__file__).resolve().parents[1]
#: Plans by the file that a run of them leaves, most telling first.
RUNS = {"quick": "quick", "quick-again": "quick", "standard": "standard"}


@dataclass
class Sanitiser:
    """Takes out of texts what is one machine's own, and numbers alike what is alike."""

    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """Return the text of nvidia-smi, or of a result, without it."""

        def numbered(found: re.Match[str]) -> str:
            number = self.numbers.setdefault(found[0].lower(), len(self.numbers))
            return f"{found[1]}-00000000-0000-0000-0000-{number:012x}"

        text = PROCESSES.sub(r"<\1></\1>", text)
        text = TIME.sub("<timestamp>N/A</timestamp>", text)
        text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "gpu-node", text)
        return UUID.sub(numbered, OWN.sub(r"<\1>N/A</\1>", text))


@dataclass
class Recording:
    """A folder that is filled until a moment (time.monotonic, seconds), and what was not recorded."""

    folder: Path
    until: float
    sanitised: Sanitiser = field(default_factory=Sanitiser)
    missing: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.until - time.monotonic())

    def keep(self, name: str, text: str) -> None:
        """Write a file of the recording."""
        (self.folder / name).write_text(self.sanitised(text), encoding="utf-8")

    def run(self, what: str, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a program of this checkout in a session of its own; with its time, all that it started ends."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TEMPER_PAYLOAD_PYTHON": command[0]}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # As Ctrl-C does: the payload ends its own children first.
            os.killpg(process.pid, signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
            self.missing.append(f"{what}: not done after {timeout_s:.0f} s")
        return subprocess.CompletedProcess(list(command), process.returncode, output)


def sanitised(report: str) -> str:
    """Return the report of `nvidia-smi -q -x` without what is one machine's own."""
    return Sanitiser()(report)


def reported() -> str:
    """Return what nvidia-smi says.

    Raises OSError or subprocess.SubprocessError, with what it said instead.
    """
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = f"`{' '.join(COMMAND)}` ended with {done.returncode}: {done.stdout.strip()}"
        raise subprocess.SubprocessError(said)
    return done.stdout


def record(report: str, python: str, recording: Recording) -> None:
    """Fill the folder: the driver's words, the payload's results, the bench, the page."""
    recording.keep("nvidia-smi.xml", report)
    tables = []
    for arguments in TABLES:
        done = recording.run(" ".join(arguments), ["nvidia-smi", *arguments], TIMEOUT_S)
        tables.append(f"$ nvidia-smi {' '.join(arguments)}\n{done.stdout}")
    recording.keep("nvidia-smi.txt", "\n".join(tables))
    results: dict[str, NodeResult] = {}
    for name, plan in RUNS.items():
        if name == "standard":
            bench(python, recording)
        if result := measure(name, python, plan, recording):
            results[name] = result
        recording.keep("page.md", "\n".join(page(results, recording)) + "\n")


def measure(name: str, python: str, plan: str, recording: Recording) -> NodeResult | None:
    """Run a plan of the payload and keep its result; None where it left none."""
    file = recording.folder / f"{name}.json"
    command = [python, "-m", "validation", "run", "--plan", plan, "--node", "gpu-node", "--output", str(file)]
    if not recording.left_s:
        recording.missing.append(f"{name}: no time was left")
        return None
    print(f"{name}: {recording.left_s:.0f} s are left", file=sys.stderr, flush=True)
    done = recording.run(name, command, recording.left_s)
    try:
        recording.keep(file.name, file.read_text(encoding="utf-8"))
        return loads(NodeResult, file.read_bytes())
    except (OSError, ContractError) as error:
        last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
        recording.missing.append(f"{name}: no result ({error}); it said last: {recording.sanitised(last)}")
        return None


def bench(python: str, recording: Recording) -> None:
    """Measure the payload's numbers beside plain torch, in a third of the time that is left."""
    if not recording.left_s:
        recording.missing.append("bench: no time was left")
        return
    done = recording.run("bench", [python, "-m", "tests.bench.payload"], recording.left_s / 3)
    recording.keep("bench.txt", done.stdout)


def page(results: dict[str, NodeResult], recording: Recording) -> Iterator[str]:
    """Yield what was found, in Markdown.

    Machines, states, durations, the two quick runs beside each other.
    """
    for name, result in results.items():
        machine = result.machine
        states = Counter(test.state for test in result.tests)
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        yield f"## Plan {name}: {told}; {result.duration_s:.0f} s\n"
        gpus = Counter(gpu.name for gpu in result.gpus)
        cards = ", ".join(f"{count} x {gpu}" for gpu, count in gpus.items()) or "no GPU"
        yield (
            f"{cards}; driver {machine.driver}, torch {machine.torch}, Python {machine.python}, "
            f"{machine.system}, kernel {machine.kernel}.\n"
        )
        yield "| Test | State | s | Why |\n|---|---|--:|---|"
        for test in result.tests:
            why = "; ".join([test.reason, *(finding.text for finding in test.findings)]).strip("; ")
            yield f"| `{test.id}` | {test.state} | {test.duration_s:.1f} | {why.replace('|', '/')} |"
        yield ""
    if len(first_two := [results[name] for name in ("quick", "quick-again") if name in results]) == 2:
        yield from compared(*first_two)
    if recording.missing:
        yield "## Missing\n"
        yield from (f"- {sentence}" for sentence in recording.missing)


def compared(first: NodeResult, second: NodeResult) -> Iterator[str]:
    """Yield the numbers of two runs beside each other, and whether their checksums are the same."""

    def numbers(result: NodeResult) -> dict[Key, Measurement]:
        return {key_of(test, one): one for test in result.tests for one in test.measurements}

    def digests(result: NodeResult) -> dict[Key, str]:
        return {key_of(test, one): one.value for test in result.tests for one in test.digests}

    yield "## The quick plan twice\n"
    yield "| Test | Number | GPU | First | Again | Ratio | Spread |\n|---|---|--:|--:|--:|--:|--:|"
    again = numbers(second)
    for key, one in numbers(first).items():
        if key in again and one.value:
            test, name, device, conditions = key
            value = again[key].value
            yield (
                f"| `{test}` | {name} ({conditions}) | {'' if device is None else device} | {one.value:.4g} "
                f"| {value:.4g} | {value / one.value:.3f} | {one.spread:.3f} |"
            )
    before, after = digests(first), digests(second)
    same = sum(value == after.get(key) for key, value in before.items())
    yield f"\n{same} of {len(before)} checksums are the same in both runs.\n"


def key_of(test: TestResult, one: Measurement | Digest) -> Key:
    """Test, name, GPU and conditions of a number or a checksum."""
    conditions = ", ".join(f"{name} {value}" for name, value in sorted(one.conditions.items()))
    return test.id, one.name, one.device, conditions


def main(arguments: list[str] | None = None) -> int:
    """Print or keep the recording."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.record_gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, help="measure, too, and leave all here: a new folder")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch (this one)")
    parser.add_argument("--minutes", type=float, default=10, help="how long it may take (10)")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        report = reported()
        if not options.folder:
            sys.stdout.write(sanitised(report))
            return 0
        options.folder.mkdir(parents=True)
    except FileExistsError:
        print(f"{options.folder} is there already: name a new folder.", file=sys.stderr)
        return 2
    except (OSError, subprocess.SubprocessError) as error:
        print(f"`{' '.join(COMMAND)}` gave nothing to record: {error}", file=sys.stderr)
        return 2
    recording = Recording(options.folder.absolute(), begun + options.minutes * 60)
    record(report, options.python, recording)
    print((options.folder / "page.md").read_text(encoding="utf-8"))
    return 1 if recording.missing else 0


if __name__ == "__main__":
    sys.exit(main())
