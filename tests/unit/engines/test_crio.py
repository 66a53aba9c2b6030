"""CRI-O: the drop-in beside those of others."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.engines.stand_ins import Node

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


def test_crio_keeps_the_limits_that_others_have_set(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_crio()
    node.write(node.crio / "10-site.conf", '[crio.runtime]\ndefault_ulimits = ["stack=1:1"]\n')
    apply(default_runtime=True)
    assert 'default_ulimits = ["stack=1:1", "memlock=-1:-1"]' in (node.crio / "99-temper.toml").read_text()
    assert 'default_runtime = "nvidia"' in (node.crio / "99-nvidia.toml").read_text()
    assert apply(default_runtime=True)["changed"] is False


def test_a_drop_in_of_crio_that_somebody_else_wrote_is_refused(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_crio()
    node.write(node.crio / "99-nvidia.toml", "[crio]\n")
    assert "was written by somebody else" in apply()["msg"]
    assert apply(state="absent")["changed"] is False
