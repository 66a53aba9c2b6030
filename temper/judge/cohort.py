"""The rest of the fleet as a judge of each node: its numbers, and the bits of its products."""

from __future__ import annotations

from collections.abc import Mapping

from temper.judge import fleet_checksums
from validation.model.contract import NodeResult
from validation.verdict import cohort
from validation.verdict.baseline import NOTHING, Comparison


def compare(results: Mapping[str, NodeResult]) -> dict[str, dict[str, Comparison]]:
    """Compare the nodes of a fleet; return what is said of each test that measured something, by node."""
    said = cohort.compare(results)
    for (name, test), comparison in fleet_checksums.compare(results).items():
        said[name][test] = said[name].get(test, NOTHING) + comparison
    return said
