"""MIG layouts: what is read, what fits, and what a run and the boot unit do, on the simulated nvidia-smi."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import gpu_settings, holders, mig, smi
from ansible.module_utils.temper.driver.gpu_settings import settle
from ansible.module_utils.temper.driver.gpus import GpuSettings, pending
from ansible.module_utils.temper.driver.smi import SettingsError

from temper.plan.preflight import programs
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.gpu_simulator.conftest import PACKAGES, SimulatedNode

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
FIRST = f"GPU 0 ({H100})"
# An H100 with driver 580.173.02: see module_utils/temper/driver/mig.py.
INSTANCES = """\
+---------------------------------------------------------+
| GPU instances:                                          |
| GPU   Name               Profile  Instance   Placement  |
|                            ID       ID       Start:Size |
|=========================================================|
|   0  MIG 1g.10gb           19       13          6:1     |
+---------------------------------------------------------+
|   0  MIG 3g.40gb            9        1          0:4     |
+---------------------------------------------------------+
|   0  MIG 1g.10gb+me        20       11          4:1     |
+---------------------------------------------------------+
"""
COMPUTE = """\
+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0     13       MIG 1g.10gb          0         0          0:1     |
+--------------------------------------------------------------------+
|   0      1       MIG 1c.3g.40gb       0         0          2:1     |
+--------------------------------------------------------------------+
|   0     11       MIG 1g.10gb          0         0          0:1     |
+--------------------------------------------------------------------+
"""
# The same GPU: name -> number, most, starts, size (-lgip and -lgipp).
PROFILES = {
    "1g.10gb": (19, 7, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.10gb+me": (20, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    "1g.20gb": (15, 4, (0, 2, 4, 6), 2),
    "2g.20gb": (14, 3, (0, 2, 4), 2),
    "3g.40gb": (9, 2, (0, 4), 4),
    "4g.40gb": (5, 1, (0,), 4),
    "7g.80gb": (0, 1, (0,), 8),
}


class Machine:
    """A node with simulated GPUs, whose nvidia-smi runs in this process, and a /proc of its own."""

    def __init__(self, node: SimulatedNode, calls: list[str]) -> None:
        self.node = node
        self.calls = calls

    def changes(self) -> list[str]:
        """What changed something since the last time, as `-i 0 -mig 1`."""
        lines = list(self.calls)
        self.calls.clear()
        return [line for line in lines if "query" not in line and " -l" not in line and "-pm" not in line]

    def layout(self, index: int = 0) -> list[str]:
        """The names of a GPU's instances."""
        text = self.node.smi("mig", "-i", str(index), "-lgi").stdout
        return sorted(line.split()[3] for line in text.splitlines() if " MIG " in line)

    def reboot(self) -> None:
        """What lives in memory is gone; the persistence daemon starts."""
        self.node.boot()
        self.node.smi("-pm", "1")
        gpu_settings.RECORD.unlink(missing_ok=True)

    def hold(self, *files: str, unit: str = "job.service") -> None:
        """A process has these files open."""
        folder = f"proc/{42 + len(unit)}"
        self.node.write(f"{folder}/comm", "python3\n")
        self.node.write(f"{folder}/cgroup", f"0::/system.slice/{unit}\n")
        (self.node.root / folder / "fd").mkdir()
        for number, name in enumerate(files):
            (self.node.root / folder / "fd" / str(number)).symlink_to(name)


MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeMachine:
    def make(profile: str = "hgx-h100-8", version: str = "580.178.04", flavour: str = "open") -> Machine:
        node = SimulatedNode(tmp_path / profile, profile)
        node.install(version, flavour)
        node.boot()
        node.smi("-pm", "1")
        calls: list[str] = []

        def complete(command: list[str], _timeout_s: float) -> subprocess.CompletedProcess[str]:
            assert command[0] == "nvidia-smi"
            calls.append(" ".join(command[1:]))
            return node.smi(*command[1:])

        monkeypatch.setattr(smi, "process", SimpleNamespace(complete=complete))
        monkeypatch.setattr(process, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(gpu_settings, "RECORD", tmp_path / "run" / "gpu-settings.json")
        monkeypatch.setattr(holders, "PROC", node.root / "proc")
        return Machine(node, calls)

    return make


def wish(layouts: Any, change_ok: bool = True, **more: Any) -> dict[str, Any]:
    locked = {"graphics": True, "memory": True}
    settings = {"clocks": "default", "locked_clocks": locked, "mig": layouts, "mig_change_ok": change_ok}
    return settings | more


# ---------------------------------------------------------------- what is read and what fits


def test_instances_of_a_real_gpu_are_read_with_what_is_not_their_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mig, "nvidia_smi", lambda *what, **_: INSTANCES if "-lgi" in what else COMPUTE)
    card = mig.Card(0, H100, "GPU-0", "Enabled", "Enabled")
    assert mig.present([card]) == {0: ["1g.10gb", "3g.40gb (1c.3g.40gb)", "1g.10gb+me"]}


@each(
    # H200 (driver 580.173.02), and A100 in the narrower table of older drivers (NVIDIA's MIG user guide)
    ("|   0  MIG 7g.141gb         0     0/1        140.00     No     132    7     0   |", "7g.141gb", 0, 1),
    ("|   2  MIG 1g.5gb     19     7/7        4.75       No     14     0     0   |", "1g.5gb", 19, 7),
)
def test_profiles_of_other_gpus_and_drivers_are_read(
    line: str, name: str, number: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = int(line.split()[1])
    places = f"GPU {gpu:>2} Profile ID {number:>2} Placement : {{0}}:8\n"
    monkeypatch.setattr(mig, "nvidia_smi", lambda *what, **_: places if "-lgipp" in what else line)
    assert mig.profiles() == {gpu: {name: mig.Profile(name, number, most, (0,), 8)}}


def test_profiles_are_read_with_their_places(machine: MakeMachine) -> None:
    machine()
    assert mig.profiles()[7] == {name: mig.Profile(name, *rest) for name, rest in PROFILES.items()}


def test_a_gpu_of_which_the_driver_lists_nothing_is_not_guessed(machine: MakeMachine) -> None:
    """The simulator does not know the profiles of a B200."""
    node = machine("hgx-b200-8", "580.178.04")
    with pytest.raises(SettingsError, match=r"GPU 0 .* the driver lists no MIG profile"):
        settle(wish({0: ["1g.23gb"]}))
    assert {row[0] for row in node.node.query("mig.mode.current")} == {"Disabled"}


@each(
    (["1g.10gb"] * 7, True),
    (["1g.10gb"] * 8, False),
    (["3g.40gb", "3g.40gb"], True),
    (["3g.40gb", "4g.40gb"], True),
    (["4g.40gb", "4g.40gb"], False),
    (["2g.20gb"] * 3 + ["1g.10gb"], True),
    (["1g.10gb", "2g.20gb", "3g.40gb", "1g.10gb+me"], True),
    (["1g.10gb+me", "1g.10gb+me"], False),
    (["7g.80gb", "1g.10gb"], False),
    (["3g.40gb", "2g.20gb", "1g.20gb"], True),
)
def test_what_fits_is_what_the_places_allow(layout: list[str], fits: bool) -> None:
    known = {name: mig.Profile(name, *rest) for name, rest in PROFILES.items()}
    card = mig.Card(0, H100, "GPU-0", "Enabled", "Enabled")
    if not fits:
        with pytest.raises(SettingsError, match=r"GPU 0 .* do not fit on it together; of these fit "):
            mig.arranged(card, layout, known)
        return
    found = mig.arranged(card, layout, known)
    assert sorted(one.name for one, _ in found) == sorted(layout)
    slices = [at for one, start in found for at in range(start, start + one.size)]
    assert len(slices) == len(set(slices))
    assert all(start in one.starts for one, start in found)


# ---------------------------------------------------------------- a run


def test_a_layout_is_made_once_on_the_gpus_that_are_named(machine: MakeMachine) -> None:
    node = machine()
    wanted = wish({"0": ["1g.10gb", "3g.40gb"], "3": "disabled"})
    changes = settle(wanted)
    assert changes == {FIRST: {"MIG layout": "disabled -> 1g.10gb, 3g.40gb"}}
    assert node.changes() == ["-i 0 -mig 1", "mig -i 0 -cgi 9:0,19:4 -C"]
    assert node.node.query("mig.mode.current")[:2] == [["Enabled"], ["Disabled"]]
    assert settle(wanted) == {}
    assert node.changes() == []
    assert GpuSettings(wanted).settled()


def test_an_index_counts_before_a_product_and_that_before_all(machine: MakeMachine) -> None:
    cards = [mig.Card(0, H100, "a", "Enabled", "Enabled"), mig.Card(1, H100, "b", "Enabled", "Enabled")]
    cards += [mig.Card(2, A100, "c", "Enabled", "Enabled"), mig.Card(3, "L4", "d", "[N/A]", "[N/A]")]
    wanted: dict[str, Any] = {"all": "disabled", H100: ["7g.80gb"], "1": ["3g.40gb"]}
    assert mig.layouts(wanted, cards) == {0: ["7g.80gb"], 1: ["3g.40gb"], 2: None}


def test_another_layout_replaces_the_instances(machine: MakeMachine) -> None:
    node = machine()
    settle(wish({0: ["7g.80gb"]}))
    node.changes()
    assert settle(wish({0: ["1g.10gb"] * 2}))[FIRST] == {"MIG layout": "7g.80gb -> 1g.10gb, 1g.10gb"}
    assert node.changes() == ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 19:0,19:1 -C"]


def test_disabled_takes_instances_and_mode(machine: MakeMachine) -> None:
    node = machine()
    settle(wish({0: ["7g.80gb"]}))
    node.changes()
    settle(wish({"all": "disabled"}))
    assert node.changes() == ["mig -i 0 -dci", "mig -i 0 -dgi", "-i 0 -mig 0"]
    assert {row[0] for row in node.node.query("mig.mode.current")} == {"Disabled"}


def test_an_instance_without_its_compute_instance_is_made_anew(machine: MakeMachine) -> None:
    node = machine()
    settle(wish({0: ["7g.80gb"]}))
    node.node.smi("mig", "-i", "0", "-dci")
    found = settle(wish({0: ["7g.80gb"]}))
    assert found[FIRST] == {"MIG layout": "7g.80gb (no compute instance) -> 7g.80gb"}
    assert settle(wish({0: ["7g.80gb"]})) == {}


def test_unset_leaves_somebodys_instances_alone(machine: MakeMachine) -> None:
    node = machine()
    node.node.smi("-i", "0", "-mig", "1")
    node.node.smi("mig", "-i", "0", "-cgi", "19,14", "-C")
    settle(wish(None))
    settle(wish({1: ["7g.80gb"]}))
    assert node.layout() == ["1g.10gb", "2g.20gb"]


def test_clocks_that_a_reset_took_are_locked_again(machine: MakeMachine) -> None:
    node = machine("a100-sxm-8")
    locked = wish(None) | {"clocks": {"graphics": 1200}}
    settle(locked)
    settle(locked | {"mig": {0: ["7g.40gb"]}})
    assert node.node.query("clocks.sm", "-i", "0") == [["1200"]]
    assert settle(locked | {"mig": {0: ["7g.40gb"]}}) == {}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("layouts", "complaint"),
    [
        ({0: ["1g.5gb"]}, f"{FIRST}: it has no MIG profile 1g.5gb; the nearest are "),
        (
            {0: ["4g.40gb", "4g.40gb"]},
            f"{FIRST}: the MIG instances 4g.40gb, 4g.40gb do not fit on it together",
        ),
        ({9: ["7g.80gb"]}, "gpu_settings_mig: there is no GPU 9; this node has GPU 0"),
        ({"Tesla T4": ["7g.80gb"]}, "gpu_settings_mig: none of Tesla T4 is here; this node has GPU 0"),
        ({0: []}, "gpu_settings_mig: expected for 0 a list of profiles, or disabled, found []"),
        ({0: ["3g.40gb, 3g.40gb"]}, "gpu_settings_mig: expected for 0 a list of profiles, or disabled"),
        *(
            ({key: ["7g.80gb"], 0: ["7g.80gb"]}, "gpu_settings_mig: expected the index of a GPU, a product")
            for key in ("All", "gpu1", "GPU-0f1e2d3c", "0-3", -1, "")
        ),
        (["7g.80gb"], "gpu_settings_mig: expected GPUs and layouts"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_destroyed(
    machine: MakeMachine, layouts: Any, complaint: str
) -> None:
    node = machine()
    settle(wish({0: ["2g.20gb"]}))
    node.changes()
    with pytest.raises(SettingsError) as error:
        settle(wish(layouts))
    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)
    assert (node.changes(), node.layout()) == ([], ["2g.20gb"])


def test_the_nearest_profiles_and_what_fits_are_named(machine: MakeMachine) -> None:
    machine()
    with pytest.raises(SettingsError, match=r"the nearest are 1g\.10gb, "):
        settle(wish({0: ["1g.1gb"]}))
    with pytest.raises(SettingsError, match=r"of these fit 3g\.40gb, 3g\.40gb, and it takes at most 7 x 1g"):
        settle(wish({0: ["3g.40gb", "1g.10gb", "3g.40gb"]}))


def test_a_gpu_without_mig_is_refused_layouts_and_needs_nothing_to_be_disabled(machine: MakeMachine) -> None:
    node = machine("l4-1")
    with pytest.raises(SettingsError, match=r"GPU 0 \(NVIDIA L4\): it cannot be divided"):
        settle(wish({"all": ["1g.10gb"]}))
    assert settle(wish({"all": "disabled"})) == {}
    assert node.changes() == []


def test_a_change_that_nobody_allowed_is_refused_and_shown(machine: MakeMachine) -> None:
    node = machine()
    wanted = wish({0: ["7g.80gb"]}, change_ok=False)
    with pytest.raises(SettingsError, match="set gpu_settings_mig_change_ok: true"):
        settle(wanted)
    setting = GpuSettings(wanted)
    assert "set gpu_settings_mig_change_ok: true" in (setting.obstacle() or "")
    assert [change.after for change in setting.change()] == ["7g.80gb"]
    assert node.changes() == []


def test_who_uses_the_gpu_is_named_and_nothing_changed(machine: MakeMachine) -> None:
    node = machine()
    settle(wish({0: ["7g.80gb"]}))
    node.changes()
    node.hold("/dev/nvidia0", unit="nvidia-persistenced.service")
    assert GpuSettings(wish({0: "disabled"})).obstacle() is None
    node.hold("/dev/nvidia0", unit="nvidia-dcgm.service")
    setting = GpuSettings.from_items(wish({0: "disabled"}), {"busy_ok": True})
    assert "python3 (process 61, nvidia-dcgm.service) holds /dev/nvidia0" in (setting.obstacle() or "")
    with pytest.raises(SettingsError, match=r"nvidia-dcgm\.service\) holds /dev/nvidia0, so its MIG layout"):
        settle(wish({0: "disabled"}))
    assert (node.changes(), node.layout()) == ([], ["7g.80gb"])
    settle(wish({1: ["7g.80gb"]}))
    assert node.layout(1) == ["7g.80gb"]


def test_exclusive_process_and_mig_exclude_each_other(machine: MakeMachine) -> None:
    node = machine()
    for _ in ("before MIG mode", "in MIG mode"):
        with pytest.raises(SettingsError, match=r"expected .*default"):
            settle(wish({0: ["7g.80gb"]}, compute_mode="exclusive_process"))
        node.node.smi("-i", "0", "-mig", "1")
    assert node.layout() == []


def test_profiles_that_are_known_only_with_the_mode_on_put_it_off_again(
    machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older drivers list no profiles before."""
    node = machine()
    real = smi.nvidia_smi

    def older(*arguments: str, nothing: str = "") -> str:
        off = sorted({row[0] for row in node.node.query("mig.mode.current")}) == ["Disabled"]
        return "" if off and "-lgip" in arguments else real(*arguments, nothing=nothing)

    monkeypatch.setattr(mig, "nvidia_smi", older)
    with pytest.raises(SettingsError, match=r"has no MIG profile 1g\.5gb"):
        settle(wish({0: ["1g.5gb"]}))
    assert node.changes() == ["-i 0 -mig 1", "-i 0 -mig 0"]


@each(
    ("Enabled", "Enabled", ["7g.80gb"], None),
    ("Enabled", "Enabled", "disabled", "7g.80gb -> disabled"),
    ("Enabled", "Disabled", "disabled", None),
    ("Enabled", "Disabled", ["7g.80gb"], "7g.80gb until the next reboot -> 7g.80gb"),
    ("Disabled", "Enabled", ["7g.80gb"], None),
    ("Disabled", "Enabled", "disabled", "disabled until the next reboot -> disabled"),
    ("Disabled", "Disabled", "disabled", None),
)
def test_a_mode_that_waits_for_a_reboot_counts_as_set(
    mode: str, pending: str, layout: Any, change: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {0: ["7g.80gb"]} if mode == "Enabled" else {}
    monkeypatch.setattr(mig, "present", lambda _: there)
    monkeypatch.setattr(mig, "profiles", dict)
    found = mig.differences({"all": layout}, [mig.Card(0, H100, "GPU-0", mode, pending)])
    assert [str(one) for one in found] == ([change] if change else [])


def test_a_layout_that_the_driver_would_not_make_is_completed_by_the_next_run(machine: MakeMachine) -> None:
    node = machine()
    node.node.smi("-i", "0", "-mig", "1")
    node.node.fault("compute-process")  # which no file gives away
    with pytest.raises(SettingsError, match="Failed to create GPU instances: In use by another client"):
        settle(wish({0: ["7g.80gb"]}))
    assert node.layout() == []
    node.node.fault("compute-process", "off")
    settle(wish({0: ["7g.80gb"]}))
    assert node.layout() == ["7g.80gb"]


# ---------------------------------------------------------------- reboots


def test_a_mode_that_waits_is_a_pending_reboot_after_which_the_unit_makes_the_instances(
    machine: MakeMachine,
) -> None:
    """On Ampere, a GPU that cannot be reset changes its mode with the next boot."""
    node = machine("a100-sxm-8")
    node.node.fault("compute-process")  # which no file gives away
    wanted = wish({0: ["3g.20gb", "3g.20gb"]})
    settle(wanted)
    assert settle(wanted) == {}
    assert pending() == [f"GPU 0 ({A100}): MIG mode is Disabled until the next reboot, then Enabled"]
    node.node.fault("compute-process", "off")
    node.reboot()
    assert pending() == []
    settle(wanted, again=True)
    assert node.layout() == ["3g.20gb", "3g.20gb"]


def test_the_boot_unit_makes_what_the_reboot_took(machine: MakeMachine) -> None:
    node = machine()
    wanted = wish({0: ["3g.40gb", "3g.40gb"]}, change_ok=False)
    settle(wanted | {"mig_change_ok": True})
    node.reboot()
    assert node.layout() == []
    node.changes()
    assert settle(wanted, again=True) == {FIRST: {"MIG layout": "no instances -> 3g.40gb, 3g.40gb"}}
    assert node.changes() == ["mig -i 0 -cgi 9:0,9:4 -C"]
    assert settle(wanted, again=True) == {}


def test_the_boot_unit_destroys_nothing_and_switches_no_mode(
    machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = machine()
    settle(wish({0: ["7g.80gb"]}))
    node.changes()
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wish({0: ["1g.10gb"], 1: ["7g.80gb"]})))
    monkeypatch.setattr(sys, "argv", ["gpu_settings.py", str(settings)])
    assert gpu_settings.main() == 0
    assert "left as it is (7g.80gb -> 1g.10gb)" in capsys.readouterr().err
    assert (node.changes(), node.layout()) == ([], ["7g.80gb"])


def test_a_layout_that_cannot_be_keeps_no_gpu_from_its_clocks_at_boot(
    machine: MakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU that has fallen off the bus may be one of those that were to be divided."""
    node = machine("l4-1")
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wish({"1": ["1g.10gb"]}, clocks={"graphics": 1500})))
    monkeypatch.setattr(sys, "argv", ["gpu_settings.py", str(settings)])
    assert gpu_settings.main() == 1
    assert "there is no GPU 1" in capsys.readouterr().err
    assert node.node.query("clocks.sm") == [["1500"]]


@pytest.mark.component
def test_the_installed_program_divides_without_ansible(machine: MakeMachine, tmp_path: Path) -> None:
    node = machine()
    executable(
        tmp_path / "nvidia-smi",
        f"export GPU_SIMULATOR_ROOT={node.node.root} GPU_SIMULATOR_UID=0\n"
        f'exec {sys.executable} -IS {PACKAGES}/nvidia_smi.py "$@"',
    )
    settle(wish({0: ["7g.80gb"]}))
    node.reboot()
    folder = tmp_path / "temper"
    folder.mkdir()
    for name, text in programs().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.replace('"/run/temper', f'"{tmp_path}/run/temper'))
    (folder / "settings.json").write_text(json.dumps(wish({"0": ["7g.80gb"]})))
    done = subprocess.run(
        [sys.executable, "-B", "-S", str(folder / "gpu_settings.py"), str(folder / "settings.json")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{FIRST}: MIG layout no instances -> 7g.80gb" in done.stdout
    assert node.layout() == ["7g.80gb"]
