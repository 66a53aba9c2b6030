"""Autotune on a node whose jobs start with far too many threads: found, repaired, proven, and proposed.

No simulation but the GPUs, which say how many processes a job has: four of them, each with far more threads
than CPUs, train on the few CPUs that a machine of tests has. No GPU computes.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.lab.fleet import Fleet, on_node
from tests.lab.gpu_simulator import profiles
from tests.lab.settings import CHECKOUT, Lab
from validation.autotune import evidence as documents
from validation.autotune.evidence import Evidence
from validation.autotune.search import SearchStage
from validation.autotune.trials import OVER, TOO_SHORT

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="autotune")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
#: Of eight H100s. Each trial starts a process for each of them, and most of its time is the start of torch.
#: On a busy machine 64 threads each are often hardly slower than one with two processes; with four they are.
GPUS = 4
FAR_TOO_MANY = 64
#: A search takes 52 trials here at least: on two busy CPUs ten minutes.
MINUTES = 25
PROPOSAL = "temper-autotune.yml"
JOURNAL = "/var/lib/temper/autotune-journal.json"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """A node with fewer GPUs, and nothing left of it afterwards."""
    hardware = profiles.hardware(NODE.profile, NODE.name)
    hardware["gpus"] = hardware["gpus"][:GPUS]
    with FLEET.booted():
        on_node(NODE, f"cat >/var/lib/gpu-simulator/hardware.json <<'END'\n{json.dumps(hardware)}\nEND")
        FLEET.command("reboot", NODE.name)
        yield


def tuned(folder: Path, minutes: float) -> Evidence:
    """Run the playbook; it proposes at most, and sets nothing."""
    run = FLEET.playbook(
        "autotune",
        compute_environment_omp_num_threads=FAR_TOO_MANY,
        autotune_knobs=["omp_num_threads"],
        autotune_minutes=minutes,
        autotune_directory=str(folder),
        gpu_validation_reports_directory=str(folder / "reports"),
    )
    assert run.status == 0, run.output
    assert on_node(NODE, f"ls {JOURNAL} 2>/dev/null || true") == ""
    assert on_node(NODE, "cat /etc/temper/compute.env 2>/dev/null || true") == ""
    assert not (CHECKOUT / "inventory/lab/host_vars" / NODE.name).exists()
    return documents.read((folder / "reports/autotune" / f"{NODE.name}.json").read_bytes())


def test_a_search_with_too_little_time_has_an_answer_and_proposes_nothing(tmp_path: Path) -> None:
    """Three seconds, in which torch hardly starts: the trial is cut off, or no second one begins."""
    (knob,) = tuned(tmp_path, 0.05).decision.knobs
    assert knob.kept is None
    assert [reason for reason in (OVER, TOO_SHORT) if reason in knob.reason]
    assert not (tmp_path / PROPOSAL).exists()


def test_far_too_many_threads_are_found_and_repaired(tmp_path: Path) -> None:
    evidence = tuned(tmp_path, MINUTES)
    assert evidence.processes == GPUS
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
    proposal = yaml.safe_load((tmp_path / PROPOSAL).read_text())
    assert proposal == {"compute_environment_omp_num_threads": int(knob.kept)}
