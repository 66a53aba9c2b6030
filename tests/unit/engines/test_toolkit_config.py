"""The container toolkit's own file: what cannot work is found and set, the rest stays as it is."""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.engines import engine_settings, toolkit_config
from ansible.module_utils.temper.engines.engine_settings import ContainerEngines
from ansible.module_utils.temper.engines.others import OtherEngine
from ansible.module_utils.temper.engines.toolkit_config import (
    CONTAINER_LDCONFIG,
    LDCONFIG,
    MODE,
    NO_CGROUPS,
    OPTIONS,
    ROOT,
    Situation,
    decide,
    edited,
    parse,
)
from ansible.module_utils.temper.settings.base import RefusedError

from tests.unit.each import each
from tests.unit.engines.stand_ins import Node

Run = Callable[..., dict[str, Any]]

# As the packages of version 1.20.0 write it (TestTomlSave in NVIDIA/nvidia-container-toolkit).
PACKAGED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime.modes.legacy]
cuda-compat-mode = "ldconfig"

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
ROOTLESS = PACKAGED.replace("#no-cgroups = false", "no-cgroups = true # rootless")
SPREAD = """\
nvidia-container-cli.no-cgroups = true
runtimes = [
  "runc", # [
  "crun",
]
text = '''
[nvidia-container-runtime]
mode = "legacy"
'''
"nvidia-container-runtime" . mode = 'cdi'
"""
ROOTFUL = Situation(rootful=True, rootless=False, cdi=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin/ldconfig").touch()
    library = tmp_path / "opt/driver/usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "libnvidia-ml.so.1").touch()
    return tmp_path


def flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The keys by their full names, as a reader of the standard library has them."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


@each(PACKAGED, ROOTLESS, SPREAD, "", "a = 1\r\n[b]\r\nc = true\r\n")
def test_keys_are_read_as_the_standard_library_reads_them(text: str) -> None:
    read, wanted = parse(text), flat(tomllib.loads(text))
    assert read.keys.keys() == wanted.keys()
    simple = {key: value for key, value in wanted.items() if isinstance(value, bool)}
    assert {key: read.value(key) for key in simple} == {key: str(simple[key]).lower() for key in simple}


@each(PACKAGED, ROOTLESS, SPREAD, "", "[nvidia-container-cli]", "a = 1")
@each(NO_CGROUPS, MODE, OPTIONS["accept_envvar"])
def test_a_key_is_set_and_nothing_else_changes(key: str, text: str) -> None:
    after = edited(text, {key: "false"})
    assert flat(tomllib.loads(after)) == flat(tomllib.loads(text)) | {key: False}
    assert set(text.splitlines()) - set(after.splitlines()) <= {
        line for line in text.splitlines() if line.split("=")[0].strip(' "').endswith(key.rpartition(".")[2])
    }


@each(NO_CGROUPS, OPTIONS["accept_envvar"])
def test_a_key_that_is_taken_out_again_leaves_the_file_as_it_was(key: str) -> None:
    assert edited(edited(PACKAGED, {key: "true"}), {key: None}) == PACKAGED


@each("nvidia-container-cli = { no-cgroups = true }\n", "no equals sign\n")
def test_a_form_that_is_not_edited_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(RefusedError, match=r"nvidia-ctk config --config-file=.* --in-place"):
        edited(text, {NO_CGROUPS: "false"})


@pytest.mark.parametrize(
    ("values", "wished", "node", "changes", "said"),
    [
        ({}, {}, ROOTFUL, {}, ""),
        ({NO_CGROUPS: "true"}, {}, ROOTFUL, {NO_CGROUPS: "false"}, ""),
        (
            {NO_CGROUPS: "true"},
            {},
            Situation(rootful=True, rootless=True, cdi=True),
            {},
            "Users' own engines",
        ),
        ({NO_CGROUPS: "true"}, {}, Situation(rootful=False, rootless=True, cdi=True), {}, ""),
        ({}, {}, Situation(rootful=False, rootless=True, cdi=False), {}, "no_cgroups: true"),
        ({NO_CGROUPS: "true"}, {"no_cgroups": True}, ROOTFUL, {}, ""),
        ({}, {"no_cgroups": True}, ROOTFUL, {NO_CGROUPS: "true"}, ""),
        ({}, {"no_cgroups": False}, ROOTFUL, {}, ""),
        ({MODE: '"legacy"'}, {}, ROOTFUL, {}, "mode = legacy"),
        ({MODE: '"legacy"'}, {}, Situation(rootful=True, rootless=False, cdi=False), {}, ""),
        ({MODE: '"legacy"'}, {"mode": "auto"}, ROOTFUL, {MODE: '"auto"'}, ""),
        ({MODE: '"fast"'}, {}, ROOTFUL, {}, "expected one of auto"),
        ({ROOT: '"/run/nvidia/driver"'}, {}, ROOTFUL, {ROOT: '"/"'}, ""),
        ({ROOT: '"/opt/driver"'}, {}, ROOTFUL, {}, "not the node's"),
        ({ROOT: '"/"'}, {}, ROOTFUL, {}, ""),
        ({LDCONFIG: '"@/sbin/ldconfig.real"'}, {}, ROOTFUL, {}, ""),
        ({LDCONFIG: '"@/run/nvidia/driver/sbin/ldconfig"'}, {}, ROOTFUL, {LDCONFIG: '"@/sbin/ldconfig"'}, ""),
        ({LDCONFIG: '"/sbin/ldconfig"'}, {}, ROOTFUL, {LDCONFIG: '"@/sbin/ldconfig"'}, ""),
        ({LDCONFIG: '"/sbin/ldconfig"', CONTAINER_LDCONFIG: "true"}, {}, ROOTFUL, {}, ""),
        (
            {"nvidia-container-cli.path": '"/usr/local/nvidia/toolkit/nvidia-container-cli"'},
            {},
            ROOTFUL,
            {"nvidia-container-cli.path": '"/usr/bin/nvidia-container-cli"'},
            "",
        ),
        ({OPTIONS["accept_envvar"]: "false"}, {}, ROOTFUL, {}, ""),
        ({OPTIONS["accept_envvar"]: "false"}, {"accept_envvar": None}, ROOTFUL, {}, ""),
        ({}, {"accept_envvar": False}, ROOTFUL, {OPTIONS["accept_envvar"]: "false"}, ""),
        ({}, {"accept_volume_mounts": False}, ROOTFUL, {}, ""),
    ],
)
def test_a_value_stays_unless_it_cannot_work_or_another_is_wished(
    root: Path,
    values: dict[str, str],
    wished: dict[str, Any],
    node: Situation,
    changes: dict[str, str],
    said: str,
) -> None:
    found, warnings = decide(parse(edited(PACKAGED, values)), wished, node, root)
    assert found == changes
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


# ---------------------------------------------------------------- as a part of the setting

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


@pytest.fixture
def config(node: Node, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a node with Docker."""
    node.has_docker()
    path = node.path / "config.toml"
    monkeypatch.setattr(toolkit_config, "CONFIG", path)
    path.write_text(ROOTLESS)
    return path


@pytest.mark.component
def test_what_kept_containers_from_gpus_is_set_and_returns_with_absent(config: Path, apply: Run) -> None:
    assert apply()["changed"] is True
    assert tomllib.loads(config.read_text())["nvidia-container-cli"]["no-cgroups"] is False
    assert config.read_text() == ROOTLESS.replace("no-cgroups = true", "no-cgroups = false")
    assert apply()["changed"] is False
    assert apply(state="absent")["changed"] is True
    assert config.read_text() == ROOTLESS


@pytest.mark.component
def test_check_mode_shows_the_change_and_makes_none(config: Path, apply: Run) -> None:
    assert str(config) in apply(check_mode=True)["changed_files"]
    assert config.read_text() == ROOTLESS


@pytest.mark.component
def test_a_wish_that_is_given_up_returns_to_what_was_found(config: Path, apply: Run) -> None:
    apply(toolkit={"mode": "cdi", "accept_envvar": False})
    found = tomllib.loads(config.read_text())
    assert found["nvidia-container-runtime"]["mode"] == "cdi"
    assert found["accept-nvidia-visible-devices-envvar-when-unprivileged"] is False
    apply()
    assert config.read_text() == ROOTLESS.replace("no-cgroups = true", "no-cgroups = false")


@pytest.mark.component
def test_a_file_that_the_toolkits_packages_write_anew_is_still_as_wished(config: Path, apply: Run) -> None:
    apply(toolkit={"mode": "cdi"})
    before = tomllib.loads(config.read_text())
    lines = [line for line in config.read_text().splitlines() if line and not line.startswith("#")]
    config.write_text("\n".join(lines).replace(" # rootless", ""))
    assert tomllib.loads(config.read_text()) == before
    assert apply(toolkit={"mode": "cdi"})["changed"] is False
    apply(state="absent")
    assert tomllib.loads(config.read_text()) == tomllib.loads(ROOTLESS)


@pytest.mark.component
def test_a_value_that_somebody_changes_is_found_and_a_kept_one_stays_theirs(config: Path, apply: Run) -> None:
    apply(toolkit={"mode": "cdi"})
    config.write_text(edited(config.read_text(), {MODE: '"legacy"'}))
    assert ContainerEngines({"toolkit": {"mode": "cdi"}}).settled() is False
    apply(state="absent")
    assert parse(config.read_text()).value(MODE) == "legacy"


@pytest.mark.component
def test_the_last_engine_takes_the_file_back(config: Path, node: Node, apply: Callable[..., Any]) -> None:
    node.has_containerd()
    apply(engines=["docker", "containerd"])
    apply(engines=["docker"], state="absent")
    assert parse(config.read_text()).value(NO_CGROUPS) == "false"
    apply(engines=["containerd"], state="absent")
    assert config.read_text() == ROOTLESS


@pytest.mark.component
@pytest.mark.parametrize("strange", ["no equals sign\n", "link"])
def test_a_strange_file_stops_only_who_wishes_something_of_it(config: Path, strange: str) -> None:
    if strange == "link":
        config.rename(config.with_name("elsewhere"))
        config.symlink_to("elsewhere")
    else:
        config.write_text(strange)
    unasked = ContainerEngines({})
    assert unasked.obstacle() is None
    assert any(str(config) in warning for warning in unasked.warnings())
    assert str(config) in str(ContainerEngines({"toolkit": {"mode": "auto"}}).obstacle())


@pytest.mark.component
def test_restoring_leaves_no_trace(config: Path) -> None:
    setting = ContainerEngines({})
    state = json.loads(json.dumps(setting.read()))
    setting.apply()
    assert config.read_text() != ROOTLESS
    ContainerEngines({}).restore(state)
    assert config.read_text() == ROOTLESS


@pytest.mark.parametrize(("kind", "changed"), [("rke2", True), ("rootless", False)])
def test_an_engine_that_is_not_set_up_here_counts_by_whose_containers_it_has(
    config: Path, node: Node, monkeypatch: pytest.MonkeyPatch, kind: str, changed: bool
) -> None:
    (node.bin / "dockerd").unlink()
    found = [OtherEngine(kind, "/where", runs=True, ready=False)]
    monkeypatch.setattr(engine_settings, "other_engines", lambda: found)
    setting = ContainerEngines({})
    assert (setting.obstacle(), setting.settled()) == (None, not changed)
    assert setting.result()["others"] == [found[0]._asdict()]
