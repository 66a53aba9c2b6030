"""The CDI specification: for the loaded driver, with all GPUs, made again by the toolkit's own units."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.driver import gpu_settings, holders
from ansible.module_utils.temper.engines import cdi

from tests.unit.engines.stand_ins import Node

Run = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


def test_podman_needs_the_specification_alone(node: Node, apply: Run) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    before = node.files()
    result = apply()
    assert result["engines"] == {"podman": {"version": "5.4.2", "cdi": True}}
    assert result["changed"] is False
    assert node.files() == before


@pytest.mark.parametrize(
    ("specification", "reason"),
    [
        (None, "is missing"),
        ("libcuda.so.535.1\n/dev/nvidia0\n", "is not for the loaded driver 580.178.04"),
        ("libcuda.so.580.178.04\n/dev/nvidia0\n", "lacks nvidia1"),
    ],
)
def test_an_old_specification_is_renewed(
    node: Node, apply: Run, specification: str | None, reason: str
) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    (node.path / "version").write_text("580.178.04\n")
    for number in range(2):
        (node.path / f"dev/nvidia{number}").touch()
    path = node.path / "nvidia.yaml"
    path.write_text(specification) if specification else path.unlink()
    planned = apply(check_mode=True)
    assert reason in planned["actions"][0]
    # The stand-in for systemctl writes none.
    assert reason in apply()["msg"]
    assert "restart nvidia-cdi-refresh.service" in (node.path / "log").read_text()


def test_the_toolkits_units_are_switched_on_and_off_again(node: Node, apply: Run) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    node.refresh.write_text("UnitFileState=disabled\n\nUnitFileState=enabled\n")
    assert apply()["actions"] == ["enable nvidia-cdi-refresh.path"]
    node.refresh.write_text("UnitFileState=enabled\n\nUnitFileState=enabled\n")
    node.has_docker()
    apply(engines=["docker"])
    apply(engines=["docker"], state="absent")
    assert (
        node.path / "log"
    ).read_text() == "enable nvidia-cdi-refresh.path\nstart nvidia-cdi-refresh.path\n"
    apply(state="absent")
    log = (node.path / "log").read_text().splitlines()
    assert log[0] == "enable nvidia-cdi-refresh.path"
    assert log[-1] == "disable --now nvidia-cdi-refresh.path"


def test_a_toolkit_without_the_units_is_refused(node: Node, apply: Run) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    node.refresh.write_text("UnitFileState=\n\nUnitFileState=\n")
    assert "has no unit nvidia-cdi-refresh.path: expected version 1.18 or newer" in apply()["msg"]


def test_the_specification_is_where_the_environment_file_says(node: Node) -> None:
    (node.path / "refresh.env").write_text("# X\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n")
    assert cdi.output() == Path("/etc/cdi/nvidia.yaml")


# Two GPUs in MIG mode, the second as a reboot leaves it; the lists of `nvidia-smi mig` as mig.py reads them.
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
--query-gpu=*)
    for index in 0 1; do
        echo "$index, GPU-$index, NVIDIA A100, Enabled@REST@, Enabled, Enabled"
    done ;;
*-lgi) echo "|   0  MIG 7g.80gb            0        0          0:8     |" ;;
*-lci) echo "|   0      0       MIG 7g.80gb          0         0          0:7     |" ;;
esac
""".replace("@REST@", ", [N/A]" * (len(gpu_settings.FIELDS) - 6))


@pytest.mark.parametrize(
    ("specification", "reason"),
    [
        ("libcuda.so.580.178.04\n/dev/nvidia3\n", ""),
        ("libcuda.so.580.178.04\n", "lacks nvidia3"),
        ("libcuda.so.535.1\n/dev/nvidia3\n", "not for the loaded driver"),
    ],
)
def test_a_gpu_in_mig_mode_without_instances_is_in_no_specification(
    node: Node, monkeypatch: pytest.MonkeyPatch, specification: str, reason: str
) -> None:
    node.program("nvidia-smi", NVIDIA_SMI)
    monkeypatch.setattr(holders, "PROC", node.path / "proc")
    (node.path / "version").write_text("580.178.04\n")
    # The numbers of device files are the driver's.
    for index, minor in ((0, 3), (1, 2)):
        (node.path / f"dev/nvidia{minor}").touch()
        information = node.path / f"proc/driver/nvidia/gpus/{index}/information"
        information.parent.mkdir(parents=True)
        information.write_text(f"GPU UUID: \t GPU-{index}\nDevice Minor: \t {minor}\n")
    (node.path / "nvidia.yaml").write_text(specification)
    assert reason in cdi.stale()
    assert bool(cdi.stale()) is bool(reason)


def test_where_no_gpu_is_divided_yet_no_specification_is_missed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.program("nvidia-smi", NVIDIA_SMI.replace("0 1", "1"))
    monkeypatch.setattr(holders, "PROC", node.path / "proc")
    information = node.path / "proc/driver/nvidia/gpus/1/information"
    information.parent.mkdir(parents=True)
    information.write_text("GPU UUID: \t GPU-1\nDevice Minor: \t 0\n")
    (node.path / "dev/nvidia0").touch()
    (node.path / "nvidia.yaml").unlink()
    assert cdi.stale() == ""
    (node.path / "dev/nvidia1").touch()
    assert "is missing" in cdi.stale()
