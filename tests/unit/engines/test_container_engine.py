"""The module: what it detects, what it refuses, and that nothing is written before all of that is known.

The engines here are stand-ins that answer as the real ones do; the lab has the real ones.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import container_engine
import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.engines import base, busy, cdi, containerd, crio, docker, toml

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")

ROOT = Path(__file__).resolve().parents[3]
WISH = {"shm_size": "1G", "ulimits": {"memlock": -1, "stack": 67108864}}
V2, V3 = containerd.PLUGINS[2], containerd.PLUGINS[3]
# Merges drop-ins as one generation of containerd does: `tables` (2.x), `runtimes` (1.7) or `section` (1.6).
CONTAINERD = """\
#!{python}
import sys, tomllib
import ansible.module_utils
ansible.module_utils.__path__.append({module_utils!r})
from ansible.module_utils.engines import toml
style, version, plugin = {style!r}, {version}, {plugin!r}
runc = {{"containerd": {{"runtimes": {{"runc": {{"runtime_type": "io.containerd.runc.v2"}}}}}}, "zero": ""}}
default = {{"version": version, "imports": [], "plugins": {{plugin: runc}}}}
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("containerd github.com/containerd/containerd {number}")
    sys.exit()
if arguments == ["config", "default"]:
    print(toml.render(default))
    sys.exit()
main = tomllib.loads(open(arguments[1]).read())
result = toml.combined(default, main)
for name in main.get("imports", []):
    above = tomllib.loads(open(name).read())
    if style == "tables":
        result = toml.combined(result, above)
    elif style == "section":
        result["plugins"] = {{**result["plugins"], **above["plugins"]}}
    elif style == "runtimes":
        merged = toml.combined(result, above)
        runtimes = above["plugins"][plugin]["containerd"]["runtimes"]
        merged["plugins"][plugin]["containerd"]["runtimes"] = runtimes
        result = merged
    else:
        result = toml.combined(result, {{**above, "oom_score": 7}})
print(toml.render(result))
"""
CRIO = """\
#!{python}
import pathlib, sys, tomllib
import ansible.module_utils
ansible.module_utils.__path__.append({module_utils!r})
from ansible.module_utils.engines import toml
if sys.argv[1:] == ["--version"]:
    print("crio version 1.30.2")
    sys.exit()
result = {{}}
for path in sorted(pathlib.Path(sys.argv[1].partition("=")[2]).iterdir()):
    result = toml.combined(result, tomllib.loads(path.read_text()))
print(toml.render(result))
"""
SYSTEMCTL = """\
#!/bin/sh
[ "$1" = show ] || {{ echo "$*" >>{log}; exit 0; }}
case "$2" in
    *UnitFileState*) cat {refresh} ;;
    *) shift 3
       for unit; do
           echo LoadState=loaded
           echo ActiveState=inactive
           echo MainPID=0
           echo "ExecStart={{ path=/usr/bin/x ; argv[]=/usr/bin/x $(cat {options}) ; pid=0 }}"
           echo
       done ;;
esac
"""


class Node:
    """A node in a folder: its engines' files, and programs on PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bin = path / "bin"
        self.bin.mkdir()
        self.daemon_json = path / "docker/daemon.json"
        self.config = path / "containerd/config.toml"
        self.drop_in = path / "containerd/conf.d/99-nvidia.toml"
        self.limits = path / "system/50-temper.conf"
        self.crio = path / "crio.conf.d"
        self.options = path / "options"
        self.options.write_text("")
        self.refresh = path / "refresh"
        self.refresh.write_text("UnitFileState=enabled\n\nUnitFileState=enabled\n")
        self.runtime = path / "nvidia-container-runtime"
        self.runtime.touch()
        self.program(
            "systemctl",
            SYSTEMCTL.format(log=path / "log", refresh=self.refresh, options=self.options),
        )

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def has_docker(self, version: str = "26.1.5") -> None:
        self.program("dockerd", f"#!/bin/sh\n[ $1 = --version ] && echo Docker version {version}; exit 0\n")

    def has_containerd(self, style: str = "runtimes", number: str = "1.7.24", version: int = 2) -> None:
        self.program(
            "containerd",
            CONTAINERD.format(
                python=sys.executable,
                module_utils=str(ROOT / "module_utils"),
                style=style,
                number=number,
                version=version,
                plugin=containerd.PLUGINS[version],
            ),
        )

    def has_crio(self) -> None:
        self.crio.mkdir()
        self.program("crio", CRIO.format(python=sys.executable, module_utils=str(ROOT / "module_utils")))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self) -> dict[str, str]:
        return {str(file): file.read_text() for file in self.path.rglob("*") if file.is_file()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    machine = Node(tmp_path)
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    for module, name, value in (
        (base, "SBIN", ""),
        (container_engine, "STATE", tmp_path / "state.json"),
        (container_engine, "RUNTIME", str(machine.runtime)),
        (docker, "DAEMON_JSON", machine.daemon_json),
        (containerd, "CONFIG", machine.config),
        (containerd, "DROP_IN", machine.drop_in),
        (containerd, "LIMITS", machine.limits),
        (crio, "DIRECTORY", machine.crio),
        (crio, "DROP_IN", machine.crio / "99-nvidia.toml"),
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


def test_a_node_without_an_engine_is_left_alone(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    before = node.files()
    assert apply()["changed"] is False
    assert node.files() == before


def test_docker_is_configured_once(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    first, second = apply(), apply()
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["engines"] == {"docker": {"version": "26.1.5", "cdi": True}}
    assert list(json.loads(node.daemon_json.read_text())) == [
        "runtimes",
        "features",
        "default-shm-size",
        "default-ulimits",
    ]


def test_check_mode_shows_the_difference_and_writes_nothing(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_docker()
    before = node.files()
    result = apply(check_mode=True)
    assert result["changed"] is True
    assert '"default-shm-size": "1G"' in result["diff"][0]["after"]
    assert node.files() == before


def test_an_old_docker_gets_the_runtime_and_a_warning(
    node: Node, apply: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # Ansible keeps warnings for the whole process, and drops one that it has had before.
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: said.append(text))
    node.has_docker("20.10.24")
    apply()
    assert ["Docker 20.10.24 does not read CDI" in text for text in said] == [True]
    assert "features" not in json.loads(node.daemon_json.read_text())


def test_absent_leaves_no_trace(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    node.has_containerd()
    node.write(node.config, "version = 2\n# theirs\n")
    everything = ["docker", "containerd"]
    before = node.files()
    apply(engines=everything)
    assert apply(engines=everything, state="absent")["changed"] is True
    assert apply(engines=everything, state="absent")["changed"] is False
    after = node.files()
    after.pop(str(node.path / "log"), None)
    assert after == before


def test_absent_leaves_a_file_that_somebody_has_extended(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_docker()
    apply()
    document = json.loads(node.daemon_json.read_text())
    node.daemon_json.write_text(json.dumps({**document, "debug": True}))
    apply(state="absent")
    assert json.loads(node.daemon_json.read_text()) == {"debug": True}


def test_all_problems_of_all_engines_are_named_before_anything_is_written(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
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


def test_what_dockerd_does_not_accept_is_refused(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    node.program(
        "dockerd",
        "#!/bin/sh\n[ $1 = --version ] && echo Docker version 26.1.5 && exit\n"
        'echo "the following directives don\'t match any configuration option: bogus" >&2; exit 1\n',
    )
    node.write(node.daemon_json, '{"bogus": 1}')
    assert "dockerd does not accept" in apply()["msg"]
    assert node.daemon_json.read_text() == '{"bogus": 1}'


@pytest.mark.parametrize("options", ["--default-shm-size=2G", "--default-shm-size 2G -H fd://"])
def test_an_option_in_the_unit_is_refused(
    node: Node, apply: Callable[..., dict[str, Any]], options: str
) -> None:
    node.has_docker()
    node.options.write_text(options)
    message = apply()["msg"]
    assert "docker.service starts dockerd with --default-shm-size=2G" in message
    assert not node.daemon_json.exists()
    assert apply(shm_size="")["changed"] is True


def test_a_link_is_refused(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    node.write(node.path / "theirs.json", "{}")
    node.daemon_json.parent.mkdir()
    node.daemon_json.symlink_to(node.path / "theirs.json")
    assert "is a link to" in apply()["msg"]


def test_docker_may_read_another_file(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    other = node.path / "other.json"
    node.options.write_text(f"--config-file={other}")
    apply()
    assert "runtimes" in other.read_text()


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
def test_a_wrong_wish_is_refused(
    node: Node, apply: Callable[..., dict[str, Any]], parameters: dict[str, Any], sentence: str
) -> None:
    node.has_docker()
    assert sentence in apply(**parameters)["msg"]


def test_a_node_whose_plan_has_no_toolkit_keeps_its_engines_as_they_are(
    node: Node, apply: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: said.append(text))
    node.has_docker()
    node.runtime.unlink()
    before = node.files()
    assert apply(toolkit_expected=False)["changed"] is False
    assert node.files() == before
    assert "docker: left without GPUs, because the plan has no container toolkit" in said[0]


def test_a_toolkit_that_is_there_is_used_though_the_plan_has_none(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_docker()
    assert list(apply(toolkit_expected=False)["engines"]) == ["docker"]


def test_a_python_without_toml_takes_containerd_only_as_excluded(
    node: Node, apply: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toml, "_loads", None)
    node.has_containerd()
    before = node.files()
    assert "container_engines_exclude: [containerd, crio]" in apply()["msg"]
    assert apply(exclude=["containerd", "crio"])["changed"] is False
    assert node.files() == before


def test_an_engine_that_is_excluded_is_left_alone_though_it_is_named(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_docker()
    node.has_containerd()
    assert list(
        apply(engines=["docker", "containerd", "crio"], exclude=["containerd", "crio"])["engines"]
    ) == ["docker"]
    assert not node.drop_in.exists()


def test_a_node_without_the_toolkit_is_refused(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_docker()
    node.runtime.unlink()
    assert "the container toolkit comes with the stack" in apply()["msg"]


def test_a_containerd_that_serves_docker_alone_is_left_alone(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_docker()
    node.has_containerd()
    assert list(apply()["engines"]) == ["docker"]
    node.program("kubelet", "#!/bin/sh\n")
    assert list(apply()["engines"]) == ["docker", "containerd"]


@pytest.mark.parametrize(
    ("style", "copied"),
    [("tables", set()), ("runtimes", {"runc"}), ("section", {"runc", "cni"})],
)
def test_the_drop_in_has_no_more_than_this_containerd_would_forget(
    node: Node, apply: Callable[..., dict[str, Any]], style: str, copied: set[str]
) -> None:
    node.has_containerd(style)
    node.write(node.config, f'version = 2\n[plugins."{V2}".cni]\nbin_dir = "/usr/lib/cni"\n')
    apply()
    text = node.drop_in.read_text()
    assert "runtimes.nvidia" in text
    assert {name for name in ("runc", "cni") if f".{name}]" in text} == copied
    assert apply()["changed"] is False


def test_containerd_without_a_configuration_gets_one_of_its_own_version(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_containerd("tables", "2.1.9", 3)
    apply()
    assert node.config.read_text() == f'imports = ["{node.drop_in}"]\nversion = 3\n'
    assert f'[plugins."{V3}".containerd.runtimes.nvidia]' in node.drop_in.read_text()
    apply(state="absent")
    assert not node.config.exists()


def test_the_runtime_has_runcs_options(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_containerd("tables")
    options = f'[plugins."{V2}".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    node.write(node.config, f"version = 2\n{options}")
    apply()
    assert (
        'SystemdCgroup = true\nBinaryName = "/usr/bin/nvidia-container-runtime"' in node.drop_in.read_text()
    )


def test_the_units_limits_are_written(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
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
    node: Node, apply: Callable[..., dict[str, Any]], style: str, config: str, drop_in: str, sentence: str
) -> None:
    node.has_containerd(style)
    node.write(node.config, config)
    if drop_in:
        node.write(node.drop_in, drop_in)
    before = node.files()
    assert sentence in apply()["msg"]
    assert node.files() == before


def test_crio_keeps_the_limits_that_others_have_set(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.has_crio()
    node.write(node.crio / "10-site.conf", '[crio.runtime]\ndefault_ulimits = ["stack=1:1"]\n')
    apply(default_runtime=True)
    text = (node.crio / "99-nvidia.toml").read_text()
    assert 'default_ulimits = ["stack=1:1", "memlock=-1:-1"]' in text
    assert 'default_runtime = "nvidia"' in text
    assert apply(default_runtime=True)["changed"] is False


def test_a_drop_in_of_crio_that_somebody_else_wrote_is_refused(
    node: Node, apply: Callable[..., dict[str, Any]]
) -> None:
    node.has_crio()
    node.write(node.crio / "99-nvidia.toml", "[crio]\n")
    assert "was written by somebody else" in apply()["msg"]
    assert apply(state="absent")["changed"] is False


def test_podman_needs_the_specification_alone(node: Node, apply: Callable[..., dict[str, Any]]) -> None:
    node.program("podman", "#!/bin/sh\necho podman version 5.4.2\n")
    before = node.files()
    result = apply()
    assert result["engines"] == {"podman": {"version": "5.4.2", "cdi": True}}
    assert result["changed"] is False
    assert node.files().keys() - before.keys() == {str(node.path / "state.json")}


def test_a_run_that_was_cut_off_is_completed(
    node: Node, apply: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for SIGKILL."""

    def die(*_: object) -> None:
        raise Killed

    node.has_containerd()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(container_engine.Node, "_settle", die)
        apply()
    again = apply()
    assert again["changed"] is True
    assert again["actions"] == ["daemon-reload"]
    assert apply()["changed"] is False


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


def test_systemd_is_not_reloaded_under_a_container_with_a_gpu(
    node: Node, apply: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
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


def test_a_docker_that_does_not_answer_is_named() -> None:
    unit = base.Unit("docker.service", exists=True, active=True, command=("dockerd", "-H", "unix:///nowhere"))
    with pytest.raises(base.EngineError, match="does not answer at /nowhere"):
        docker.ask(unit, "/info")


def test_a_program_that_is_missing_has_failed() -> None:
    assert base.run(["no-such-program"]).returncode == 127
