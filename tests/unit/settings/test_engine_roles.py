"""A role's configuration converges, and what a run that was cut off left undone is done by the next one."""

import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import process
from ansible.module_utils.temper.engines import busy
from ansible.module_utils.temper.settings import system
from ansible.module_utils.temper.settings.files import WholeFile

from tests.unit.each import each
from tests.unit.settings.nodes import StandInNode
from tests.unit.settings.role_plans import carried_out, item, role_plan, with_packages

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")

# Notes that it was called; fails while there is a file `broken` beside it.
PROGRAM = """\
#!/bin/sh
echo "$*" >> "$0.log"
[ ! -e "$(dirname "$0")/broken" ] || { echo "no space left" >&2; exit 3; }
"""


ROOT = Path(__file__).resolve().parents[3]
ROLE_PLANS = sorted(
    path.stem for path in (ROOT / "temper/plan/roles").glob("*.py") if (ROOT / "roles" / path.stem).is_dir()
)


class Killed(BaseException):
    """Stands for SIGKILL."""


class Node(StandInNode):
    """It has a program `rebuild`, too."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(path, monkeypatch)
        self.program("rebuild", PROGRAM)

    def file(self, name: str, content: str | None = "text\n") -> dict[str, Any]:
        return {"path": str(self.path / "etc" / name), "content": content}

    @property
    def rebuilds(self) -> int:
        log = self.bin / "rebuild.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def snapshot(self) -> dict[str, str]:
        return {str(path): path.read_text() for path in self.path.rglob("*") if path.is_file()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@pytest.fixture
def configure(run_module: Run) -> Run:
    def run(
        files: Iterable[dict[str, Any]] = (),
        sysctls: dict[str, Any] | None = None,
        services: Iterable[str] = (),
        units: Iterable[dict[str, Any]] = (),
        on_change: Iterable[dict[str, Any]] = (),
        *,
        check_mode: bool = False,
        busy_ok: bool = False,
        role: str = "role",
    ) -> dict[str, Any]:
        items = [
            item("file", file["path"], {key: value for key, value in file.items() if key != "path"})
            for file in files
        ]
        items += [item("sysctl", name, value) for name, value in (sysctls or {}).items()]
        items += [item("unit", name, {"on": True}) for name in services]
        items += [
            item("unit", unit["name"], {"on": True, "restart_on": unit["restart_on"]}) for unit in units
        ]
        plan = role_plan(role, items, on_change, busy_ok=busy_ok)
        return carried_out(run_module, plan, check_mode=check_mode)

    return run


def rebuild_on(*files: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"paths": [file["path"] for file in files], "command": ["rebuild", "--all"]}]


# ---------------------------------------------------------------- files and commands


def test_a_certificate_is_written_in_its_binary_form(configure: Run, node: Node) -> None:
    der = bytes(range(256))
    file = node.file("mok.der", ssl.DER_cert_to_PEM_cert(der)) | {"encoding": "der", "mode": "0600"}
    assert configure(files=[file])["changed"]
    assert (node.path / "etc/mok.der").read_bytes() == der
    assert not configure(files=[file])["changed"]


@pytest.mark.component
def test_a_command_runs_when_its_file_changed(configure: Run, node: Node) -> None:
    file = node.file("nouveau.conf")
    result = configure(files=[file], on_change=rebuild_on(file))
    assert result["actions"] == [f"{file['path']}: absent -> written", "rebuild --all"]
    assert node.rebuilds == 1


@pytest.mark.component
def test_a_command_runs_when_its_file_was_removed(configure: Run, node: Node) -> None:
    configure(files=[node.file("a")])
    gone = node.file("a", None)
    configure(files=[gone], on_change=rebuild_on(gone))
    assert node.rebuilds == 1


def test_another_file_does_not_run_the_command(configure: Run, node: Node) -> None:
    configure(files=[node.file("a")], on_change=rebuild_on(node.file("b")))
    assert node.rebuilds == 0


def test_a_command_that_is_not_installed_is_left_out(configure: Run, node: Node) -> None:
    file = node.file("a")
    reaction = {"paths": [file["path"]], "command": ["update-initramfs-of-another-system"]}
    result = configure(files=[file], on_change=[reaction])
    assert (result["changed"], len(result["actions"])) == (True, 1)


@pytest.mark.component
def test_the_second_run_changes_nothing(configure: Run, node: Node) -> None:
    node.unit("a.service", "enabled", "inactive")
    parameter = node.parameter("kernel.numa_balancing", "1")
    file = node.file("a")
    everything = {
        "files": [file],
        "on_change": rebuild_on(file),
        "sysctls": {"kernel.numa_balancing": 0},
        "services": ["a"],
    }
    assert configure(**everything)["changed"]
    parameter.write_text("0\n")  # a real one ends with a line feed, whatever was written
    before = node.snapshot()
    second = configure(**everything)
    assert (second["changed"], second["actions"], second["diff"]) == (False, [], [])
    assert node.snapshot() == before


@pytest.mark.component
def test_check_mode_names_everything_and_changes_nothing(configure: Run, node: Node) -> None:
    node.unit("a.service", "disabled", "inactive")
    node.parameter("vm.swappiness", "60")
    unit = node.file("systemd/a.service")
    before = node.snapshot()
    result = configure(
        check_mode=True,
        files=[unit],
        on_change=rebuild_on(unit),
        sysctls={"vm.swappiness": 10},
        services=["a"],
    )
    assert result["actions"] == [
        "sysctl:vm.swappiness: 60 -> 10",
        f"{unit['path']}: absent -> written",
        "unit:a.service: disabled, not running -> enabled, running",
        "rebuild --all",
    ]
    assert node.snapshot() == before


# ---------------------------------------------------------------- runs that were cut off


@pytest.mark.component
def test_what_a_failed_command_left_undone_is_done_by_the_next_run(configure: Run, node: Node) -> None:
    file = node.file("a")
    (node.bin / "broken").touch()
    failed = configure(files=[file], on_change=rebuild_on(file))
    assert failed["msg"] == "`rebuild --all` failed with status 3: no space left"
    (node.bin / "broken").unlink()

    result = configure(files=[file], on_change=rebuild_on(file))
    assert (result["changed"], result["actions"]) == (True, ["rebuild --all"])
    assert not configure(files=[file], on_change=rebuild_on(file))["changed"]


@pytest.mark.component
@pytest.mark.parametrize("written", [True, False])
def test_a_run_that_was_killed_while_it_wrote_is_carried_through(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    file = node.file("a")

    def killed(setting: WholeFile) -> None:
        if written:
            setting.file.write()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(WholeFile, "apply", killed)
        with pytest.raises(Killed):
            configure(files=[file], on_change=rebuild_on(file))
    assert node.rebuilds == 0
    assert configure(files=[file], on_change=rebuild_on(file))["actions"][-1] == "rebuild --all"
    assert (node.rebuilds, configure(files=[file], on_change=rebuild_on(file))["changed"]) == (1, False)


@pytest.mark.component
def test_two_runs_that_were_cut_off_add_up(configure: Run, node: Node) -> None:
    first, second = node.file("a"), node.file("b")
    (node.bin / "broken").touch()
    configure(files=[first], on_change=rebuild_on(first))
    configure(files=[first, second], on_change=rebuild_on(second))
    (node.bin / "broken").unlink()
    reactions = [
        {"paths": [file["path"]], "command": ["rebuild", name]}
        for name, file in (("a", first), ("b", second))
    ]
    assert configure(files=[first, second], on_change=reactions)["actions"] == ["rebuild a", "rebuild b"]


@pytest.mark.component
def test_an_earlier_note_outlives_one_that_cannot_be_written(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = node.file("a"), node.file("b")
    (node.bin / "broken").touch()
    configure(files=[first], on_change=rebuild_on(first))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert "No space left" in configure(files=[first, second])["msg"]
    (node.bin / "broken").unlink()
    assert configure(files=[first], on_change=rebuild_on(first))["actions"] == ["rebuild --all"]


@pytest.mark.component
def test_check_mode_shows_what_a_cut_off_run_left_undone(configure: Run, node: Node) -> None:
    file = node.file("a")
    (node.bin / "broken").touch()
    configure(files=[file], on_change=rebuild_on(file))
    before = node.snapshot()
    for _ in range(2):
        result = configure(check_mode=True, files=[file], on_change=rebuild_on(file))
        assert (result["changed"], result["actions"]) == (True, ["rebuild --all"])
    assert node.snapshot() == before


@pytest.mark.component
def test_another_role_does_not_finish_this_one(configure: Run, node: Node) -> None:
    file = node.file("a")
    (node.bin / "broken").touch()
    configure(files=[file], on_change=rebuild_on(file))
    (node.bin / "broken").unlink()
    configure([node.file("b")], role="another")
    assert configure(files=[file], on_change=rebuild_on(file))["actions"] == ["rebuild --all"]


# ---------------------------------------------------------------- kernel parameters


def test_a_parameter_that_differs_is_set(configure: Run, node: Node) -> None:
    parameter = node.parameter("net.ipv4.tcp_rmem", "4096\t131072\t6291456")
    result = configure(sysctls={"net.ipv4.tcp_rmem": "4096 87380  16777216"})
    assert result["actions"] == ["sysctl:net.ipv4.tcp_rmem: 4096 131072 6291456 -> 4096 87380 16777216"]
    assert parameter.read_text() == "4096 87380 16777216"


def test_blanks_make_no_difference(configure: Run, node: Node) -> None:
    node.parameter("net.ipv4.tcp_rmem", "4096\t131072\t6291456")
    assert not configure(sysctls={"net.ipv4.tcp_rmem": "4096 131072 6291456"})["changed"]


def test_a_parameter_that_the_kernel_does_not_know_is_reported_and_left_out(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where Ansible sends warnings in this process depends on which of its modules are imported.
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: warnings.append(text))
    assert not configure(sysctls={"kernel.numa_balancing": 0})["changed"]
    assert warnings == ["This node's kernel has no parameter kernel.numa_balancing; it is left out."]
    assert list(node.sysctl.iterdir()) == []


def test_a_value_that_the_kernel_refuses_is_a_sentence(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.parameter("vm.overcommit_memory", "0")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    result = configure(sysctls={"vm.overcommit_memory": 7})
    assert result["msg"] == (
        "The kernel does not take '7' for its parameter vm.overcommit_memory: Invalid argument."
    )
    assert not result["refused"]


# ---------------------------------------------------------------- units


@pytest.mark.component
@pytest.mark.parametrize(
    ("enablement", "activity", "actions"),
    [
        ("enabled", "active", []),
        ("static", "active", []),
        ("disabled", "active", ["enable a.service"]),
        ("enabled", "inactive", ["start a.service"]),
        ("enabled", "failed", ["start a.service"]),
        ("disabled", "inactive", ["enable a.service", "start a.service"]),
    ],
)
def test_a_unit_is_enabled_and_running_at_the_end(
    configure: Run, node: Node, enablement: str, activity: str, actions: list[str]
) -> None:
    node.unit("a.service", enablement, activity)
    assert configure(services=["a"])["changed"] == bool(actions)
    assert node.systemctl_calls == [
        action.replace("enable", "enable --quiet --no-reload") for action in actions
    ]
    assert not configure(services=["a"])["changed"]


@pytest.mark.component
def test_a_unit_may_be_of_another_kind(configure: Run, node: Node) -> None:
    node.unit("a.timer", "enabled", "inactive")
    assert configure(services=["a.timer"])["changed"]
    assert node.systemctl_calls == ["start a.timer"]


@pytest.mark.component
def test_each_unit_gets_what_it_lacks(configure: Run, node: Node) -> None:
    for name, state in {
        "a": ("enabled", "active"),
        "b": ("disabled", "active"),
        "c": ("enabled", "failed"),
    }.items():
        node.unit(f"{name}.service", *state)
    configure(services=["a", "b", "c"])
    assert node.systemctl_calls == ["enable --quiet --no-reload b.service", "start c.service"]


@pytest.mark.component
def test_a_unit_is_restarted_when_one_of_its_files_changed(configure: Run, node: Node) -> None:
    node.unit("a.service", "enabled", "active")
    mine, other = node.file("a.json"), node.file("b.json")
    units = [{"name": "a", "restart_on": [mine["path"]]}]
    configure(files=[other], units=units)
    assert node.systemctl_calls == []
    actions = configure(files=[mine, other], units=units)["actions"]
    assert actions[-1] == "unit:a.service: enabled, running -> restarted"
    assert node.systemctl_calls == ["restart a.service"]


@pytest.mark.component
def test_a_unit_that_runs_without_its_file_is_stopped_before_the_file_comes_back(
    configure: Run, node: Node
) -> None:
    node.unit("a.service", "lost", "active")
    unit = node.file("systemd/a.service")
    configure(files=[unit], units=[{"name": "a", "restart_on": [unit["path"]]}])
    assert node.systemctl_calls == [
        "stop -- a.service",
        "enable --quiet --no-reload a.service",
        "restart a.service",
    ]


@pytest.mark.component
def test_a_new_unit_is_started_without_having_systemd_read_all_others(configure: Run, node: Node) -> None:
    node.unit("a.service", "disabled", "inactive")
    unit = node.file("systemd/a.service")
    configure(files=[unit], units=[{"name": "a", "restart_on": [unit["path"]]}])
    assert node.systemctl_calls == ["enable --quiet --no-reload a.service", "restart a.service"]


@pytest.mark.component
def test_systemd_reads_a_new_drop_in_of_a_unit_that_it_knows(configure: Run, node: Node) -> None:
    node.unit("a.service", "disabled", "active")
    actions = configure(files=[node.file("systemd/a.service.d/temper.conf")])["actions"]
    assert (actions[1:], node.systemctl_calls) == (["systemctl daemon-reload"], ["daemon-reload"])


@pytest.mark.component
def test_a_drop_in_of_a_unit_that_is_to_be_installed_is_read_with_it(configure: Run, node: Node) -> None:
    configure(files=[node.file("systemd/a.service.d/temper.conf")])
    assert node.systemctl_calls == []


@pytest.mark.component
@pytest.mark.parametrize("content", ["other\n", None])
def test_systemd_reads_a_unit_that_changed_or_went(configure: Run, node: Node, content: str | None) -> None:
    configure(files=[node.file("systemd/a.service")])
    result = configure(files=[node.file("systemd/a.service", content)])
    assert result["actions"][1:] == ["systemctl daemon-reload"]
    assert node.systemctl_calls == ["daemon-reload"]


def test_a_parameter_that_a_later_file_sets_again_at_boot_is_said(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, later = node.file("sysctl.d/95-own.conf"), node.file("sysctl.d/99-site.conf")
    folder = Path(own["path"]).parent
    folder.mkdir(parents=True)
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", (str(folder),))
    node.parameter("vm.swappiness", "60")
    Path(later["path"]).write_text("vm.swappiness = 60\n")
    (warning,) = configure(files=[own], sysctls={"vm.swappiness": 10})["warnings"]
    assert f"vm.swappiness ({later['path']})" in str(warning)
    Path(later["path"]).write_text("# Managed by Temper.\nvm.swappiness = 60\n")
    assert configure(files=[own], sysctls={"vm.swappiness": 10})["warnings"] == []


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_file_of_somebody_else_is_replaced_with_a_warning_once(
    configure: Run, node: Node, check_mode: bool
) -> None:
    nccl, other = node.file("nccl.conf"), node.file("other.conf")
    Path(nccl["path"]).parent.mkdir()
    Path(nccl["path"]).write_text("NCCL_TOPO_FILE=/opt/topology.xml\n")
    Path(other["path"]).write_text("# Managed by Temper.\nof an earlier version\n")
    (warning,) = configure(files=[nccl, other], check_mode=check_mode)["warnings"]
    assert f"{nccl['path']} was there before" in str(warning)
    configure(files=[nccl, other])
    assert configure(files=[{**nccl, "content": "new\n"}, other])["warnings"] == []
    configure()
    assert Path(nccl["path"]).read_text() == "NCCL_TOPO_FILE=/opt/topology.xml\n"


# ---------------------------------------------------------------- parameters and files


def test_a_file_waits_for_the_parameter_that_it_needs_and_goes_before_it(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, most = node.file("limits.conf"), node.parameter("fs.nr_open", "1048576")

    def interrupted(_setting: system.Sysctl) -> None:
        raise Killed

    with monkeypatch.context() as cut_off:
        cut_off.setattr(system.Sysctl, "apply", interrupted)
        with pytest.raises(Killed):
            configure(files=[limits], sysctls={"fs.nr_open": 2097152})
    assert not Path(limits["path"]).exists()
    configure(files=[limits], sysctls={"fs.nr_open": 2097152})
    assert Path(limits["path"]).exists()
    with monkeypatch.context() as cut_off:
        cut_off.setattr(system.Sysctl, "restore", lambda _setting, _state: interrupted(_setting))
        with pytest.raises(Killed):
            configure()
    assert not Path(limits["path"]).exists()
    configure()
    assert most.read_text().strip() == "1048576"


# ---------------------------------------------------------------- containers with GPUs


@pytest.fixture
def container(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has a GPU runs on the node."""
    monkeypatch.setattr(busy, "gpu_processes", lambda: [busy.GpuProcess(10, "python3")])


def change_of_a_unit(configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What makes systemd read its units anew, with what it needs in place."""
    with monkeypatch.context() as quiet:
        quiet.setattr(busy, "gpu_processes", list)
        configure(files=[node.file("systemd/a.service")])
    return {"files": [node.file("systemd/a.service", "other\n")]}


def change_of_its_settings(_configure: Run, node: Node, _monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    file = node.file("system.conf")
    return {
        "files": [file],
        "on_change": [{"paths": [file["path"]], "command": ["systemctl", "daemon-reexec"]}],
    }


@pytest.mark.component
@pytest.mark.usefixtures("container")
@pytest.mark.parametrize("change", [change_of_a_unit, change_of_its_settings])
def test_systemd_reads_nothing_anew_under_a_container_with_a_gpu(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch, change: Callable[..., dict[str, Any]]
) -> None:
    node.unit("daemon-reexec", "", "")  # the stand-in takes the last word for a unit
    wanted = change(configure, node, monkeypatch)
    before = node.snapshot()
    assert configure(**wanted)["msg"] == (
        "Containers with a GPU are running (python3 (process 10)), and systemd has to read its units anew, "
        "which can take their GPUs away. Nothing was changed. Drain the node, or set role_busy_ok: true."
    )
    assert node.snapshot() == before
    assert "A run would be refused: containers" in str(configure(check_mode=True, **wanted)["warnings"])
    assert configure(**wanted, busy_ok=True)["changed"]
    assert configure(**wanted)["changed"] is False


@pytest.mark.component
@pytest.mark.usefixtures("container")
def test_a_new_unit_asks_no_container(configure: Run, node: Node) -> None:
    node.unit("a.service", "disabled", "inactive")
    unit = node.file("systemd/a.service")
    assert configure(files=[unit], units=[{"name": "a", "restart_on": [unit["path"]]}])["changed"]


@pytest.mark.component
@pytest.mark.usefixtures("container")
def test_no_unit_is_taken_back_under_a_container_with_a_gpu(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.unit("a.service", "disabled", "inactive")
    with monkeypatch.context() as quiet:
        quiet.setattr(busy, "gpu_processes", list)
        configure(services=["a"])
    before = node.systemctl_calls
    assert "set role_busy_ok: true" in configure()["msg"]
    assert node.systemctl_calls == before
    assert configure(busy_ok=True)["changed"]
    assert not configure()["changed"]


@pytest.mark.usefixtures("container")
def test_no_package_is_installed_under_a_container_with_a_gpu(
    run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch, "atop")
    wanted = [item("package", name, {"version": "", "held": False}) for name in ("atop", "sysstat")]
    there = [item("package", "atop", {"version": "", "held": False})]
    assert not carried_out(run_module, role_plan("role", there))["changed"]
    assert "set role_busy_ok: true" in carried_out(run_module, role_plan("role", wanted))["msg"]
    warned = carried_out(run_module, role_plan("role", wanted), check_mode=True)["warnings"]
    assert "A run would be refused" in str(warned)
    assert manager.calls == []
    assert carried_out(run_module, role_plan("role", wanted, busy_ok=True))["changed"]
    assert manager.calls == [{"sysstat": ""}]


@each(*ROLE_PLANS)
def test_a_role_with_units_gives_the_operator_the_variable_that_a_refusal_names(role: str) -> None:
    source = (ROOT / "temper/plan/roles" / f"{role}.py").read_text()
    templates = "".join(path.name for path in (ROOT / "roles" / role).glob("templates/*"))
    if any(
        word in source + templates for word in ("/etc/systemd/system", "daemon-reexec", "package(", "unit(")
    ):
        assert f"{role}_busy_ok:" in (ROOT / "roles" / role / "defaults/main.yml").read_text()
        assert f"busy_ok=context.variables.{role}.busy_ok" in source or "busy_ok=wish.busy_ok" in source


# ---------------------------------------------------------------- what systemctl answers


@pytest.mark.component
def test_a_unit_that_does_not_exist_is_a_sentence(configure: Run, node: Node) -> None:
    assert configure(services=["a"])["msg"] == (
        "`systemctl enable --quiet --no-reload a.service` failed with status 5: Unit a.service not found."
    )


@pytest.mark.component
def test_a_unit_has_longer_to_start_than_systemd_gives_it(
    configure: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.unit("a.service", "enabled", "inactive")
    limits = {}

    def observed(command: list[str], timeout_s: float = 0) -> str:
        limits[command[1]] = timeout_s
        return process.run(command)

    monkeypatch.setattr(system, "run", observed)
    configure(services=["a"])
    # The fabric manager's unit and our own for the GPUs have up to five minutes.
    assert limits["start"] > 300


@pytest.mark.component
def test_a_systemctl_that_does_not_answer_is_a_sentence(configure: Run, node: Node) -> None:
    node.program("systemctl", "#!/bin/sh\necho 'Failed to connect to bus: Host is down' >&2\nexit 1\n")
    assert "failed with status 1: Failed to connect to bus" in configure(services=["a"])["msg"]
