"""Autotune on a node whose jobs start with far too many threads: found, repaired, proven, and proposed.

No simulation but the GPUs, which say how many processes a job has: eight of them, each with a thread for
every CPU, train on the few CPUs that a machine of tests has. No GPU computes.
"""

import json
from pathlib import Path

import pytest
import yaml

from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import CHECKOUT, Lab
from validation.autotune import evidence as documents
from validation.autotune.search import SearchStage

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="autotune")
FLEET = Fleet(LAB, size=1, timeout_s=4 * 3600)
(NODE,) = LAB.nodes(1)  # eight H100
FAR_TOO_MANY = 64
JOURNAL = "/var/lib/temper/autotune-journal.json"


def test_far_too_many_threads_are_found_and_repaired(tmp_path: Path) -> None:
    with FLEET.booted():
        run = FLEET.playbook(
            "autotune",
            compute_environment_omp_num_threads=FAR_TOO_MANY,
            autotune_knobs=["omp_num_threads"],
            autotune_minutes=120,
            autotune_directory=str(tmp_path / "proposal"),
            gpu_validation_reports_directory=str(tmp_path / "reports"),
        )
        assert run.status == 0, run.output
        left = on_node(NODE, f"ls {JOURNAL} 2>/dev/null || true")
        threads_on_node = on_node(NODE, "cat /etc/temper/compute.env 2>/dev/null || true")
    evidence = documents.read((tmp_path / "reports/autotune" / f"{NODE.name}.json").read_bytes())
    assert evidence.processes == 8
    (knob,) = evidence.decision.knobs
    assert knob.start == str(FAR_TOO_MANY)
    assert knob.kept is not None, json.dumps(knob.reason)
    assert int(knob.kept) < FAR_TOO_MANY
    # It was chosen, confirmed and proven by trials of its own.
    assert [one.stage for one in knob.tried if one.value == knob.kept] == [
        SearchStage.SCREEN,
        SearchStage.CONFIRM,
    ]
    (final,) = evidence.decision.final
    assert final.low is not None
    assert final.low > 0
    proposal = yaml.safe_load((tmp_path / "proposal/temper-autotune.yml").read_text())
    assert proposal == {"compute_environment_omp_num_threads": int(knob.kept)}
    # It proposes, and sets nothing.
    assert (left, threads_on_node) == ("", "")
    assert not (CHECKOUT / "inventory/lab/host_vars" / NODE.name).exists()
