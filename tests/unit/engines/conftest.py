"""A node in a folder, and the module run on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import container_engine
import pytest
from ansible.module_utils import process
from ansible.module_utils.engines import busy, cdi, containerd, crio, docker, engine_settings

from tests.unit.engines.stand_ins import Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WISH = {"shm_size": "1G", "ulimits": {"memlock": -1, "stack": 67108864}}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    machine = Node(tmp_path)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    for module, name, value in (
        (process, "SYSTEM_PATH", ""),
        (engine_settings, "STATE", tmp_path / "state.json"),
        (engine_settings, "RUNTIME", str(machine.runtime)),
        (docker, "DAEMON_JSON", machine.daemon_json),
        (containerd, "CONFIG", machine.config),
        (containerd, "DROP_IN", machine.drop_in),
        (containerd, "LIMITS", machine.limits),
        (crio, "DIRECTORY", machine.crio),
        (crio, "CONFIG", tmp_path / "crio.conf"),
        (cdi, "ENVIRONMENT", tmp_path / "refresh.env"),
        (cdi, "DEFAULT_OUTPUT", tmp_path / "nvidia.yaml"),
        (cdi, "LOADED_VERSION", tmp_path / "version"),
        (cdi, "DEV", tmp_path / "dev"),
        (busy, "PROC", tmp_path / "no-processes"),
    ):
        monkeypatch.setattr(module, name, value)
    (tmp_path / "no-processes/self/root").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "nvidia.yaml").write_text("---\n")
    return machine


@pytest.fixture
def apply(run_module: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    def run(**parameters: Any) -> dict[str, Any]:
        return run_module(container_engine.main, **{**WISH, **parameters})

    return run
