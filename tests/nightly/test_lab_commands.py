"""What the documentation prints for operators runs as it is printed, on the lab that `make site` has left."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.nightly.__main__ import ROOT
from tests.nightly.test_documents import BIN, FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.skipif(os.environ.get("LAB_NAME") != "nightly", reason="no lab of `make nightly` (LAB_NAME)"),
    pytest.mark.usefixtures("_written"),
]

#: In the order of a first day; each ends with 0.
COMMANDS = (
    "ansible-inventory --graph --vars",
    "ansible gpu_nodes -m ping",
    "temper --version",
    "temper doctor",
    "temper plan",
    "temper plan --waived",
    "ansible-playbook site.yml --check --diff",
    "ansible-playbook site.yml --limit NODE --skip-tags validate",
    "ansible-playbook playbooks/harden.yml --tags firewall",
    "ansible-playbook playbooks/compliance.yml",
    "temper compliance status",
    "temper compliance drifts",
    "temper compliance head",
    "temper compliance verify",
    "temper compliance tailoring --product debian13 --profile cis-level2 > tailoring.xml",
    "temper report --results reports/latest/results --expectations reports/latest/expectations.json "
    "--history reports/history.sqlite --output again",
    "temper pages --validation reports/latest --compliance reports/compliance/latest --output fleet",
    "temper rollout plan --stack r595-cuda13.2 --policy examples/upgrade-in-the-lab.yml",
    "ansible NODE -m node_lease -a state=query -b",
    "temper explain pcie-link-down-trained",
    "temper explain bf16_tflops=640 --gpu 'H100 SXM'",
    "temper accept NODE",
    "python3 -m validation list",
    "python3 -m validation build --output validation.pyz",
    ".venv/bin/python -m tests.lab.upgrade_campaign list",
    "ansible-playbook playbooks/validate.yml -e gpu_validation_traces=true",
)
WRITTEN = ("again", "fleet", "tailoring.xml", "validation.pyz")


@pytest.fixture(scope="module")
def _written() -> Iterator[None]:
    """Remove what the commands write into the checkout."""
    yield
    for path in (ROOT / name for name in WRITTEN):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_ends_with_zero(command: str) -> None:
    assert command in FOUND, "no page prints it"
    done = subprocess.run(
        ["bash", "-c", command.replace("NODE", "gpu01")],
        cwd=ROOT,
        env=os.environ | {"ANSIBLE_INVENTORY": "inventory/lab", "PATH": f"{BIN}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
