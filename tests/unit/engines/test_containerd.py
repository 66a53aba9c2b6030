"""containerd: a drop-in of nvidia-ctk under which nothing else changes, for each of its generations."""

import os
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.temper.engines import containerd

from tests.unit.engines.stand_ins import Node

Run = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


V2, V3 = containerd.PLUGINS["2"], containerd.PLUGINS["3"]


def test_a_containerd_that_serves_docker_alone_is_left_alone(node: Node, apply: Run) -> None:
    node.has_docker()
    node.has_containerd()
    assert list(apply()["engines"]) == ["docker"]
    node.program("kubelet", "#!/bin/sh\n")
    assert list(apply()["engines"]) == ["docker", "containerd"]


@pytest.mark.parametrize(
    ("style", "copied"),
    [("tables", {"cni"}), ("runtimes", {"runc", "cni"}), ("section", {"runc", "cni"})],
)
def test_the_drop_in_repeats_runc_only_where_this_containerd_would_forget_it(
    node: Node, apply: Run, style: str, copied: set[str]
) -> None:
    node.has_containerd(style)
    node.write(node.config, f'version = 2\n[plugins."{V2}".cni]\nbin_dir = "/usr/lib/cni"\n')
    apply()
    text = node.drop_in.read_text()
    assert "runtimes.nvidia" in text
    assert {name for name in ("runc", "cni") if f".{name}]" in text} == copied
    assert apply()["changed"] is False


def test_containerd_without_a_configuration_gets_one_of_its_own_version(node: Node, apply: Run) -> None:
    node.has_containerd("tables", "2.1.9", 3)
    apply()
    assert node.config.read_text() == f'imports = ["{node.drop_in}"]\nversion = 3\n'
    assert f'[plugins."{V3}".containerd.runtimes.nvidia]' in node.drop_in.read_text()
    apply(state="absent")
    assert not node.config.exists()


def test_the_runtime_has_runcs_options(node: Node, apply: Run) -> None:
    node.has_containerd("tables")
    options = f'[plugins."{V2}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    node.write(node.config, f"version = 2\n{options}")
    apply()
    cri = tomllib.loads(node.drop_in.read_text())["plugins"][V2]
    assert cri["containerd"]["runtimes"]["nvidia"]["options"] == {
        "SystemdCgroup": True,
        "BinaryName": "/usr/bin/nvidia-container-runtime",
    }


def test_the_units_limits_are_written(node: Node, apply: Run) -> None:
    node.has_containerd()
    apply()
    assert node.limits.read_text().splitlines()[1:] == [
        "[Service]",
        "LimitMEMLOCK=infinity",
        "LimitSTACK=67108864",
    ]
    assert (node.path / "log").read_text() == "daemon-reload\n"


@pytest.mark.parametrize(
    ("style", "config", "drop_in", "sentence"),
    [
        (
            "tables",
            'version = 2\ndisabled_plugins = ["cri"]\n',
            "",
            "containerd's CRI plugin is switched off",
        ),
        (
            "tables",
            "version = 2\n",
            "version = 2\n",
            "was written by somebody else (nvidia-ctk, the GPU operator)",
        ),
        (
            "tables",
            f'version = 2\n[plugins."{V2}".containerd.runtimes.nvidia.options]\nBinaryName = "/opt/n"\n',
            "",
            "containerd has a runtime nvidia already, with the program /opt/n",
        ),
        ("odd", "version = 2\n", "", "would change other settings with"),
    ],
)
def test_a_containerd_that_cannot_be_configured_is_refused(
    node: Node, apply: Run, style: str, config: str, drop_in: str, sentence: str
) -> None:
    node.has_containerd(style)
    node.write(node.config, config)
    if drop_in:
        node.write(node.drop_in, drop_in)
    before = node.files()
    assert sentence in apply()["msg"]
    assert node.files() == before


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ('imports = ["{folder}/*.toml"]\n', None),
        ('imports = ["{other}/*.toml"]\n', ["{other}/*.toml", "{folder}/*.toml"]),
        ("# theirs\n", ["{drop_in}"]),
    ],
)
def test_the_import_is_added_where_it_is_missing_and_taken_out_again(
    node: Node, apply: Run, imports: str, expected: list[str] | None
) -> None:
    names = {"folder": str(node.drop_in.parent), "drop_in": str(node.drop_in), "other": str(node.path)}
    node.has_containerd("tables")
    node.write(node.path / "other.toml", "version = 2\n")
    before = imports.format(**names) + "version = 2\n"
    node.write(node.config, before)
    apply()
    if expected is None:
        assert node.config.read_text() == before
    else:
        found = tomllib.loads(node.config.read_text())["imports"]
        assert found == [name.format(**names) for name in expected]
    assert apply()["changed"] is False
    apply(state="absent")
    assert node.config.read_text() == before
    assert not node.drop_in.exists()
