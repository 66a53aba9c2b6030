"""All engines: what is detected, what is refused, and that nothing is written before all of that is known.

The engines are the stand-ins of stand_ins.py.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.engines import busy, engine_settings

from tests.unit.engines.stand_ins import Node

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


def test_a_node_without_an_engine_is_left_alone(node: Node, apply: Run) -> None:
    before = node.files()
    assert apply()["changed"] is False
    assert node.files() == before


@pytest.mark.component
def test_all_problems_of_all_engines_are_named_before_anything_is_written(node: Node, apply: Run) -> None:
    node.has_docker()
    node.has_containerd()
    node.has_crio()
    node.write(node.daemon_json, "{")
    node.write(node.config, "version = 1\n")
    before = node.files()
    message = apply(engines=["docker", "containerd", "crio"])["msg"]
    assert "daemon.json is not valid JSON" in message
    assert "has version 1, expected 2 or 3: run `containerd config migrate`" in message
    assert node.files() == before


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"shm_size": "much"},
            "container_engines_shm_size: expected a size such as 1G or 512M, found 'much'",
        ),
        ({"ulimits": {"memlock": -2}}, "expected a whole number from -1 (no limit) on for memlock, found -2"),
        ({"engines": ["crio"]}, "names crio, but there is no program crio on this node"),
    ],
)
def test_a_wrong_wish_is_refused(node: Node, apply: Run, parameters: dict[str, Any], sentence: str) -> None:
    node.has_docker()
    assert sentence in apply(**parameters)["msg"]


def test_a_node_whose_plan_has_no_toolkit_keeps_its_engines_as_they_are(
    node: Node, apply: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: said.append(text))
    node.has_docker()
    node.runtime.unlink()
    before = node.files()
    assert apply(toolkit_expected=False)["changed"] is False
    assert node.files() == before
    assert "docker: left without GPUs, because the plan has no container toolkit" in said[0]


@pytest.mark.component
def test_a_toolkit_that_is_there_is_used_though_the_plan_has_none(node: Node, apply: Run) -> None:
    node.has_docker()
    assert list(apply(toolkit_expected=False)["engines"]) == ["docker"]


@pytest.mark.component
def test_an_engine_that_is_excluded_is_left_alone_though_it_is_named(node: Node, apply: Run) -> None:
    node.has_docker()
    node.has_containerd()
    assert list(
        apply(engines=["docker", "containerd", "crio"], exclude=["containerd", "crio"])["engines"]
    ) == ["docker"]
    assert not node.drop_in.exists()


@pytest.mark.component
def test_engines_that_are_gone_may_be_taken_back_again(node: Node, apply: Run) -> None:
    node.has_docker()
    node.write(node.daemon_json, '{"debug": true}\n')
    apply(engines=["docker"])
    (node.bin / "dockerd").unlink()
    assert "there is no program dockerd" in apply(engines=["docker"])["msg"]
    taken_back = apply(engines=["docker"], state="absent")
    assert "msg" not in taken_back
    assert apply(engines=["docker"], state="absent")["changed"] is False


def test_a_node_without_the_toolkit_is_refused(node: Node, apply: Run) -> None:
    node.has_docker()
    node.runtime.unlink()
    assert "the container toolkit comes with the stack" in apply()["msg"]


@pytest.mark.component
def test_a_run_that_was_cut_off_is_completed(node: Node, apply: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Stands for SIGKILL."""

    def die(*_: object) -> None:
        raise Killed

    node.has_containerd()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(engine_settings.ContainerEngines, "_settle", die)
        apply()
    again = apply()
    assert again["changed"] is True
    assert again["actions"] == ["daemon-reload"]
    assert apply()["changed"] is False


@pytest.mark.component
def test_systemd_is_not_reloaded_under_a_container_with_a_gpu(
    node: Node, apply: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.has_containerd()
    processes = [busy.GpuProcess(number, "python3") for number in range(10, 17)]
    monkeypatch.setattr(busy, "gpu_processes", lambda: processes)
    before = node.files()
    message = apply()["msg"]
    assert "containers with a GPU are running (python3 (process 10), " in message
    assert message.endswith("Drain the node, or set container_engines_busy_ok: true.")
    assert node.files() == before
    assert apply(busy_ok=True)["changed"] is True
