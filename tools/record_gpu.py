"""Record what nvidia-smi says of this machine's GPUs, without what tells one machine from another.

    python3 -m tools.record_gpu > h100-580.126.09.xml

It only reads. UUIDs are numbered, serial numbers and what is derived from them become N/A, processes and the
time are left out; all else stays as it was printed, for the simulator of the lab to be held against.
"""

from __future__ import annotations

import re
import subprocess
import sys

COMMAND = ["nvidia-smi", "-q", "-x"]
TIMEOUT_S = 60
UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
#: Elements whose text is one machine's own. The PDI is the number that a UUID is made of.
OWN = re.compile(
    r"<((?:\w+_)?serial(?:_number)?|pdi|cluster_?uuid|(?:\w+_)?guid)>[^<]*</\1>",
    re.IGNORECASE,
)
PROCESSES = re.compile(r"<(processes|accounted_processes)>.*?</\1>", re.DOTALL)
TIME = re.compile(r"<timestamp>[^<]*</timestamp>")


def sanitised(report: str) -> str:
    """The report of `nvidia-smi -q -x` without what is one machine's own."""
    numbers: dict[str, int] = {}

    def numbered(found: re.Match[str]) -> str:
        number = numbers.setdefault(found[0].lower(), len(numbers))
        return f"{found[1]}-00000000-0000-0000-0000-{number:012x}"

    text = PROCESSES.sub(r"<\1></\1>", report)
    text = TIME.sub("<timestamp>N/A</timestamp>", text)
    return UUID.sub(numbered, OWN.sub(r"<\1>N/A</\1>", text))


def main() -> int:
    """Print the recording."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"`{' '.join(COMMAND)}` gave nothing to record: {error}", file=sys.stderr)
        return 2
    if done.returncode != 0:
        print(f"`{' '.join(COMMAND)}` ended with {done.returncode}: {done.stdout}", file=sys.stderr)
        return 2
    sys.stdout.write(sanitised(done.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
