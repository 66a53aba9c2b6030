"""The CDI specification: for the loaded driver, with all GPUs, made again by the toolkit's own units."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.engines import cdi

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.engines.stand_ins import Node

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


def test_podman_needs_the_specification_alone(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
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
    node: Node,
    apply: Callable[..., dict[str, Any]],
    specification: str | None,
    reason: str,
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


def test_the_toolkits_units_are_switched_on_and_off_again(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
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


def test_a_toolkit_without_the_units_is_refused(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    node.refresh.write_text("UnitFileState=\n\nUnitFileState=\n")
    assert "has no unit nvidia-cdi-refresh.path: expected version 1.18 or newer" in apply()["msg"]


def test_the_specification_is_where_the_environment_file_says(node: Node) -> None:
    (node.path / "refresh.env").write_text("# X\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/nvidia.yaml\n")
    assert cdi.output() == Path("/etc/cdi/nvidia.yaml")
