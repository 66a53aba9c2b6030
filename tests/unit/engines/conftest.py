"""A node in a folder, and the role run on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.engines import (
    busy,
    cdi,
    containerd,
    crio,
    docker,
    engine_settings,
    toolkit_config,
)

from tests.unit.engines.stand_ins import Node
from tests.unit.settings.role_plans import item

WISH = {"shm_size": "1G", "ulimits": {"memlock": -1, "stack": 67108864}}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    machine = Node(tmp_path)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    for module, name, value in (
        (process, "SYSTEM_PATH", ""),
        (engine_settings, "STATE", tmp_path / "state.json"),
        (engine_settings, "RUNTIME", str(machine.runtime)),
        (engine_settings, "other_engines", list),
        (toolkit_config, "CONFIG", tmp_path / "toolkit/config.toml"),
        (docker, "DAEMON_JSON", machine.daemon_json),
        (docker, "SNAPS", (tmp_path / "snap/docker/current",)),
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
def apply(carry_out: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Have the engines set up as wished."""

    def run(
        *, state: str = "present", busy_ok: bool = False, check_mode: bool = False, **parameters: Any
    ) -> dict[str, Any]:
        items = [item("container_engine", *pair) for pair in {**WISH, **parameters}.items()]
        options = {"busy_ok": busy_ok, "absent": state == "absent"}
        return carry_out("container_engines", items, check_mode=check_mode, **options)

    return run
