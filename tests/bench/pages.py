"""How long the report of a large fleet takes, and how large its files are.

    python -m tests.bench.pages [--nodes 10000]

The fleet is made up (tests/unit/pages/made_up.py): eight GPUs a node, plan quick, a statement of compliance.
All nodes have the results of a few, so that making the fleet does not take longer than the report. Both the
clock and CPU time of this one process are printed, for a busy machine is no measure; nothing is asserted.
"""

import argparse
import dataclasses
import resource
import tempfile
import time
from pathlib import Path

from temper.report.inputs import Report, Validation, no_past
from temper.report.write import Pages
from tests.unit.pages import made_up
from validation.verdict.judge import judge_fleet

#: So many nodes have results of their own.
DIFFERENT = 25


def fleet(count: int) -> Report:
    """A fleet of so many nodes."""
    small = made_up.report(DIFFERENT, "quick")
    assert small.validation
    assert small.compliance
    verdicts, statements = small.validation.verdict.nodes, small.compliance.nodes
    names = [f"gpu-{number:05}" for number in range(count)]
    results = {}
    for place, name in enumerate(names):
        found = small.validation.results.get(verdicts[place % DIFFERENT].node)
        if found:
            results[name] = dataclasses.replace(found, node=name)
    verdict = judge_fleet(
        dataclasses.replace(verdicts[place % DIFFERENT], node=name) for place, name in enumerate(names)
    )
    stated = tuple(
        dataclasses.replace(statements[place % DIFFERENT], node=name) for place, name in enumerate(names)
    )
    references = dict.fromkeys(results, made_up.references())
    validation = Validation(verdict, results, references, no_past, small.validation.before, "the last report")
    return Report(validation, dataclasses.replace(small.compliance, nodes=stated), made_up.LABEL)


def main() -> None:
    """Print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10000)
    count = parser.parse_args().nodes
    report = fleet(count)
    started, cpu = time.monotonic(), time.process_time()
    pages = Pages(report)
    index = pages.index().encode()
    took, cpu = time.monotonic() - started, time.process_time() - cpu
    print(f"index of {count} nodes: {took:.1f} s, {cpu:.1f} CPU s, {len(index) / 1e6:.2f} MB", flush=True)
    started, cpu, written, size = time.monotonic(), time.process_time(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pages.nodes.texts(pages.with_page, "../report.html"):
            Path(folder, name).write_text(text, encoding="utf-8")
            written += 1
            size += len(text)
            Path(folder, name).unlink()
    took, cpu = time.monotonic() - started, time.process_time() - cpu
    print(f"pages of {written} nodes: {took:.1f} s, {cpu:.1f} CPU s, {size / written / 1e3:.0f} kB each")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"most memory: {most / 1e3:.0f} MB, with the fleet itself")


if __name__ == "__main__":
    main()
