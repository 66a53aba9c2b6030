"""GPU settings are set, read back and set again when the driver forgot them, with an nvidia-smi made here."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.driver import gpu_settings, holders, smi
from ansible.module_utils.temper.driver.gpu_settings import settle
from ansible.module_utils.temper.driver.gpus import GpuSettings
from ansible.module_utils.temper.driver.smi import SettingsError

from temper.plan.preflight import programs
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.settings.role_plans import item

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.component

# Answers queries from gpus.json and keeps what is set there. A setter named in `unsupported` is refused in
# nvidia-smi's way, with status 0 and words; one named in `ignored` does nothing and says nothing.
NVIDIA_SMI = """\
#!{python} -IS
import json, sys
PATH = "{state}"
with open(PATH) as file:
    state = json.load(file)
arguments = sys.argv[1:]
with open(PATH + ".log", "a") as log:
    log.write(" ".join(arguments) + "\\n")
if state["failure"]:
    print(state["failure"])
    sys.exit(9)
gpus = state["gpus"]
if arguments[0].startswith("--query-gpu="):
    for gpu in gpus:
        print(", ".join(str(gpu[field]) for field in arguments[0].partition("=")[2].split(",")))
    sys.exit()
if arguments[0].startswith("--query-supported-clocks="):
    for gpu in gpus:
        for memory, graphics in gpu["supported"].items():
            for clock in graphics:
                print(gpu["uuid"], memory, clock, sep=", ")
    sys.exit()
_, index, setter, *value = arguments
gpu = gpus[int(index)]
if setter in state["unsupported"]:
    print(setter, "is not supported for GPU 00000000:0A:00.0.")
    print("Treating as warning and moving on.\\nAll done.")
elif setter in state.get("forbidden", []):
    print("The current user does not have permission to change clocks for GPU 00000000:0A:00.0.")
    print("Terminating early due to previous errors.")
    sys.exit(4)
elif state.get("scope") and setter == "-pl":
    print(state["scope"], "All done.", sep="\\n")
elif setter not in state["ignored"]:
    if setter == "-pm":
        gpu["persistence_mode"] = "Enabled"
    elif setter == "-pl":
        gpu["power.limit"] = value[0]
    elif setter == "-lgc":
        gpu["clocks.current.graphics"] = value[0].split(",")[0]
    elif setter == "-ac":
        gpu["clocks.applications.memory"], gpu["clocks.applications.graphics"] = value[0].split(",")
    elif setter == "-c":
        gpu["compute_mode"] = {{"0": "Default", "3": "Exclusive_Process"}}[value[0]]
    elif setter == "-e":
        gpu["ecc.mode.pending"] = {{"0": "Disabled", "1": "Enabled"}}[value[0]]
    elif setter == "-rac":
        for kind in ("memory", "graphics"):
            gpu["clocks.applications." + kind] = gpu["clocks.default_applications." + kind]
    print("All done.")
    with open(PATH, "w") as file:
        json.dump(state, file)
"""
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "persistence_mode": "Disabled",
    "power.limit": "700.00",
    "power.min_limit": "200.00",
    "power.max_limit": "700.00",
    "power.default_limit": "700.00",
    "clocks.current.graphics": "345",
    "clocks.max.graphics": "1980",
    "clocks.max.memory": "2619",
    "clocks.applications.graphics": "1980",
    "clocks.applications.memory": "2619",
    "clocks.default_applications.graphics": "1980",
    "clocks.default_applications.memory": "2619",
    "clocks_throttle_reasons.active": "0x0000000000000001",
    "compute_mode": "Default",
    "ecc.mode.current": "Enabled",
    "ecc.mode.pending": "Enabled",
    "mig.mode.current": "Disabled",
    "mig.mode.pending": "Disabled",
    "supported": {"2619": list(range(1980, 344, -15)), "1593": list(range(1980, 344, -15))},
}
P100 = H100 | {
    "name": "Tesla P100-PCIE-16GB",
    "power.limit": "250.00",
    "power.min_limit": "125.00",
    "power.max_limit": "250.00",
    "power.default_limit": "250.00",
    "clocks.max.graphics": "1328",
    "clocks.max.memory": "715",
    "clocks.applications.graphics": "1189",
    "clocks.applications.memory": "715",
    "clocks.default_applications.graphics": "1189",
    "clocks.default_applications.memory": "715",
    "supported": {"715": [1328, 1316, 1303, 1189, 936, 923, 911, 544], "405": [544]},
}
HOPPER = {"graphics": True, "memory": True}
VOLTA = {"graphics": True, "memory": False}
PASCAL = {"graphics": False, "memory": False}


class Driver:
    """The state of the nvidia-smi on PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path / "gpus.json"
        self.log = path / "gpus.json.log"
        self.state: dict[str, Any] = {"gpus": [], "unsupported": [], "ignored": [], "failure": ""}

    def boot(self, *gpus: dict[str, Any]) -> None:
        """Start with these GPUs and nothing set, as after a reboot."""
        self.state["gpus"] = [
            {"index": str(index), "uuid": f"GPU-{index}"} | gpu for index, gpu in enumerate(gpus)
        ]
        self.store()
        gpu_settings.RECORD.unlink(missing_ok=True)

    def store(self) -> None:
        self.path.write_text(json.dumps(self.state))

    def change(self, **state: Any) -> None:
        """Change how the driver behaves."""
        self.state = json.loads(self.path.read_text()) | state
        self.store()

    def change_gpu(self, index: int, **values: str) -> None:
        """Change a GPU's state behind Temper's back; `_` in a field's name stands for a dot."""
        self.state = json.loads(self.path.read_text())
        self.state["gpus"][index] |= {name.replace("__", "."): value for name, value in values.items()}
        self.store()

    def setters(self) -> list[str]:
        """The setters that were called since the last time."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.removeprefix("-i ") for line in lines if not line.startswith("--query")]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(tmp_path)
    monkeypatch.setattr(gpu_settings, "RECORD", tmp_path / "run" / "gpu-settings.json")
    binary = executable(
        tmp_path / "bin" / "nvidia-smi", NVIDIA_SMI.format(python=sys.executable, state=driver.path)
    )
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    driver.boot(H100)
    return driver


def wish(
    clocks: Any = "default",
    power_limit_w: float | None = None,
    locked: dict[str, bool] = HOPPER,
    **more: Any,
) -> dict[str, Any]:
    return {"clocks": clocks, "power_limit_w": power_limit_w, "locked_clocks": locked, **more}


NAME = f"GPU 0 ({H100['name']})"


# ---------------------------------------------------------------- the way to the wanted settings


WITHOUT_LIMIT = H100 | {field: "[N/A]" for field in H100 if field.startswith("power.")}
ON = "0 -pm 1"


@each(
    ([H100], wish("default"), [ON]),
    ([H100], wish("max"), [ON, "0 -lgc 1980,1980"]),  # the memory clock is left alone
    # Persistence comes first.
    (
        [H100],
        wish({"graphics": 1410, "memory": 1593}, 500),
        [ON, "0 -pl 500", "0 -lgc 1410,1410", "0 -lmc 1593,1593"],
    ),
    ([H100 | {"persistence_mode": "Enabled"}, H100], wish("default"), ["1 -pm 1"]),
    ([WITHOUT_LIMIT], wish("default"), [ON]),
    ([H100], wish() | {"power_limit_w": "500"}, [ON, "0 -pl 500"]),  # from a file
    (
        [P100 | {"clocks.applications.memory": "405"}],
        wish({"graphics": 1189, "memory": 715}, locked=PASCAL),
        [ON, "0 -ac 715,1189"],
    ),
    ([H100 | {"compute_mode": "Exclusive_Process", "ecc.mode.pending": "Disabled"}], wish(), [ON]),
    ([H100, P100], wish(power_limit_percent=80), [ON, "0 -pl 560", "1 -pm 1", "1 -pl 200"]),
    ([H100 | {"supported": {}}], wish({"graphics": 1400}), [ON, "0 -lgc 1400,1400"]),
)
def test_what_differs_from_the_wish_is_set_and_nothing_else(
    gpus: list[dict[str, Any]], wanted: dict[str, Any], setters: list[str], driver: Driver
) -> None:
    driver.boot(*gpus)
    settle(wanted)
    assert driver.setters() == setters


@pytest.mark.parametrize("locked", [HOPPER, PASCAL], ids=["locked clocks", "application clocks"])
def test_the_second_run_only_looks(driver: Driver, locked: dict[str, bool]) -> None:
    wanted = wish({"graphics": 1410, "memory": 1593}, 500, locked)
    settle(wanted)
    driver.setters()
    assert settle(wanted) == {}
    assert driver.setters() == []


def test_looking_changes_nothing(driver: Driver) -> None:
    before = driver.path.read_text()
    assert settle(wish("max"), only_look=True)[NAME]["graphics clock"] == "default -> 1980 MHz"
    assert driver.path.read_text() == before
    assert not gpu_settings.RECORD.exists()


def test_from_locked_to_default(driver: Driver) -> None:
    settle(wish({"graphics": 1410, "memory": 1593}, 500))
    driver.setters()
    changes = settle(wish("default"))
    assert changes[NAME] == {
        "power limit": "500 -> 700 W",
        "graphics clock": "1410 -> default MHz",
        "memory clock": "1593 -> default MHz",
    }
    assert driver.setters() == ["0 -pl 700", "0 -rgc", "0 -rmc"]


# ---------------------------------------------------------------- application clocks


def test_application_clocks_where_clocks_cannot_be_locked(driver: Driver) -> None:
    driver.boot(P100)
    changes = settle(wish("max", locked=PASCAL))
    assert changes["GPU 0 (Tesla P100-PCIE-16GB)"]["application clocks"] == "715,1189 -> 715,1328 MHz"
    assert driver.setters() == ["0 -pm 1", "0 -ac 715,1328"]
    assert not gpu_settings.RECORD.exists()


def test_application_clocks_return_to_the_default(driver: Driver) -> None:
    driver.boot(P100)
    settle(wish("max", locked=PASCAL))
    driver.setters()
    settle(wish("default", locked=PASCAL))
    assert driver.setters() == ["0 -rac"]


@pytest.mark.parametrize(("clocks", "said"), [("default", 0), ("max", 1)])
def test_a_gpu_without_application_clocks_keeps_its_own_and_says_so(
    driver: Driver, clocks: str, said: int
) -> None:
    """GeForce before Volta: "Setting applications clocks is not supported"."""
    driver.boot(NO_CLOCKS)
    wanted = wish(clocks, locked=PASCAL)
    settle(wanted)
    assert driver.setters() == ["0 -pm 1"]
    assert len(gpu_settings.look(wanted).notes) == said


# ---------------------------------------------------------------- what the driver forgets


@pytest.mark.parametrize(
    ("since", "setters"),
    [
        ({"clocks__current__graphics": "1980"}, ["0 -lgc 1410,1410"]),
        # The note of a lock is worth nothing without persistence, or of another GPU.
        (
            {"persistence_mode": "Disabled", "clocks__current__graphics": "345"},
            ["0 -pm 1", "0 -lgc 1410,1410"],
        ),
        ({"uuid": "GPU-of-the-spare-part"}, ["0 -lgc 1410,1410"]),
    ],
)
def test_a_lock_that_is_no_longer_in_force_is_set_again(
    driver: Driver, since: dict[str, str], setters: list[str]
) -> None:
    settle(wish({"graphics": 1410}))
    driver.setters()
    driver.change_gpu(0, **since)
    settle(wish({"graphics": 1410}))
    assert driver.setters() == setters


@pytest.mark.parametrize("clock", ["345", "1410", "1425", "[N/A]"])
def test_a_clock_at_or_below_the_lock_is_no_deviation(driver: Driver, clock: str) -> None:
    settle(wish({"graphics": 1410}))
    driver.change_gpu(0, clocks__current__graphics=clock)
    assert settle(wish({"graphics": 1410})) == {}
    driver.change_gpu(0, clocks__current__graphics="1980")
    assert settle(wish({"graphics": 1410}))[NAME] == {"graphics clock": "1980 -> 1410 MHz"}


def test_a_note_that_cannot_be_read_is_none(driver: Driver) -> None:
    settle(wish({"graphics": 1410}))
    driver.setters()
    for text in ("{", "[]", '{"GPU-0": 5}', '{"GPU-0": ["1410", null]}', '{"GPU-0": [1410]}'):
        gpu_settings.RECORD.write_text(text)
        settle(wish({"graphics": 1410}))
        assert driver.setters() == ["0 -lgc 1410,1410"], text


# ---------------------------------------------------------------- what a GPU refuses


@pytest.mark.parametrize("setter", ["-pl", "-lgc", "-lmc"])
def test_a_refusal_with_status_0_is_an_error(driver: Driver, setter: str) -> None:
    driver.change(unsupported=[setter])
    with pytest.raises(SettingsError, match=f"{NAME[:5]}.*{setter} .* is not supported for GPU"):
        settle(wish({"graphics": 1410, "memory": 1593}, 500))


def test_a_cloud_that_lets_nobody_change_a_limit_is_quoted(driver: Driver) -> None:
    words = "Changing power management limit is not supported in current scope for GPU: 00000000:06:00.0."
    driver.change(scope=words)
    with pytest.raises(SettingsError, match="not supported in current scope"):
        settle(wish("default", 500))


@pytest.mark.parametrize("behaviour", ["forbidden", "unsupported"])
@pytest.mark.parametrize(
    ("setter", "clocks", "locked"),
    [
        ("-lgc", "max", HOPPER),
        ("-lmc", {"memory": 1593}, HOPPER),
        ("-ac", {"graphics": 1410, "memory": 2619}, PASCAL),
    ],
)
def test_where_nobody_may_set_clocks_the_way_out_is_named(
    driver: Driver, behaviour: str, setter: str, clocks: Any, locked: dict[str, bool]
) -> None:
    driver.change(**{behaviour: [setter]})
    with pytest.raises(SettingsError, match=f"{setter}.* GPU 0000.*gpu_settings_clocks: default") as error:
        settle(wish(clocks, locked=locked))
    assert "\n" not in str(error.value)
    assert settle(wish("default", locked=locked)) == {}


def test_only_a_refusal_of_clocks_names_the_clocks_way_out(driver: Driver) -> None:
    driver.change(unsupported=["-pl"])
    with pytest.raises(SettingsError) as error:
        settle(wish("default", 500))
    assert "gpu_settings_clocks" not in str(error.value)


def test_what_was_done_before_a_refusal_is_noted(driver: Driver) -> None:
    driver.boot(H100, H100)
    driver.change(unsupported=["-lmc"])
    with pytest.raises(SettingsError, match="GPU 0"):
        settle(wish({"graphics": 1410, "memory": 1593}))
    driver.change(unsupported=[])
    settle(wish({"graphics": 1410, "memory": 1593}))
    assert json.loads(gpu_settings.RECORD.read_text()) == {"GPU-0": [1410, 1593], "GPU-1": [1410, 1593]}


@pytest.mark.parametrize(
    ("ignored", "locked", "complaint"),
    [
        ("-pm", HOPPER, "persistence mode did not take (Disabled -> Enabled)"),
        ("-pl", HOPPER, "power limit did not take (700 -> 500 W)"),
        ("-ac", PASCAL, "application clocks did not take (2619,1980 -> 2619,1410 MHz)"),
    ],
)
def test_a_setting_that_silently_did_not_take_is_an_error(
    driver: Driver, ignored: str, locked: dict[str, bool], complaint: str
) -> None:
    driver.change(ignored=[ignored])
    with pytest.raises(SettingsError) as error:
        settle(wish({"graphics": 1410}, 500, locked))
    assert str(error.value) == f"{NAME}: {complaint}; nvidia-smi reported no error"


def test_a_lock_that_the_live_clock_exceeds_is_an_error(driver: Driver) -> None:
    driver.boot(H100 | {"clocks.current.graphics": "1980"})
    driver.change(ignored=["-lgc"])
    with pytest.raises(SettingsError, match=r"graphics clock did not take \(1980 -> 1410 MHz\)"):
        settle(wish({"graphics": 1410}))


NO_CLOCKS = P100 | {field: "[N/A]" for field in P100 if "applications" in field}
NO_ECC = H100 | {"ecc.mode.current": "[N/A]", "ecc.mode.pending": "[N/A]"}
NOT_A_CLOCK = "expected a graphics clock that it has, found"
RANGE = "expected a power limit from 29 to 100 % of 700 W (200 to 700 W), found"


@each(
    (H100, wish({"graphics": 1981}), f"{NAME}: {NOT_A_CLOCK} 1981 MHz; nearest: 1980 MHz"),
    (H100, wish({"graphics": 1400}), f"{NAME}: {NOT_A_CLOCK} 1400 MHz; nearest: 1395 and 1410 MHz"),
    (H100, wish({"memory": 2620}), "expected a memory clock that it has, found 2620 MHz; nearest: 2619 MHz"),
    (H100, wish({"memory": 1593}, locked=VOLTA), "its memory clock cannot be locked (Ampere and newer only)"),
    (H100, wish("max", 701), "expected a power limit from 200 to 700 W, found 701 W"),
    (H100, wish("max", 199), "expected a power limit from 200 to 700 W, found 199 W"),
    (H100, wish(power_limit_percent=120), f"{RANGE} 120 %"),
    (H100, wish(power_limit_percent=28), f"{RANGE} 28 %"),
    (H100 | {"supported": {}}, wish({"graphics": 1981}), "up to 1980 MHz, found 1981 MHz"),
    (H100 | {"supported": {}}, wish("efficient"), "lists no supported clocks"),
    (H100, wish(compute_mode="prohibited"), "would let no program"),
    (H100, wish(compute_mode="shared"), "found shared"),
    (NO_ECC, wish(ecc=True), f"{NAME}: it has no ECC mode to set"),
    (WITHOUT_LIMIT, wish() | {"power_limit_w": 80}, "has no power limit to set"),
    (WITHOUT_LIMIT, wish() | {"power_limit_percent": 80}, "has no power limit to set"),
    (P100, wish({"memory": 715}, locked=PASCAL), "set in pairs; add `graphics`"),
    (NO_CLOCKS, wish("efficient", locked=PASCAL), "neither be locked nor set as application clocks"),
    (NO_CLOCKS, wish({"graphics": 1189}, locked=PASCAL), "neither be locked nor set as application clocks"),
    # A wish that cannot be understood does not mean default.
    *(
        (H100, wish(clocks), "gpu_settings_clocks: expected max, default")
        for clocks in (
            "maximum",
            "",
            None,
            1410,
            {},
            {"graphic": 1410},
            {"graphics": "1410"},
            {"graphics": 0},
            {"graphics": True},
            {"memory": -1},
        )
    ),
)
def test_what_a_gpu_cannot_have_is_refused_before_anything_is_set(
    gpu: dict[str, Any], wanted: dict[str, Any], complaint: str, driver: Driver
) -> None:
    driver.boot(gpu)
    with pytest.raises(SettingsError) as error:
        settle(wanted)
    assert complaint in str(error.value)
    assert driver.setters() == []


# ---------------------------------------------------------------- efficient clocks, power in percent


@pytest.mark.parametrize(
    ("gpu", "locked", "setter"), [(H100, HOPPER, "0 -lgc 1380,1380"), (P100, PASCAL, "0 -ac 715,923")]
)
def test_efficient_is_the_highest_clock_up_to_the_share(
    driver: Driver, gpu: dict[str, Any], locked: dict[str, bool], setter: str
) -> None:
    driver.boot(gpu)
    settle(wish("efficient", locked=locked))
    assert driver.setters() == ["0 -pm 1", setter]
    assert settle(wish("efficient", locked=locked)) == {}


# ---------------------------------------------------------------- modes


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Processes that have files open, in a /proc of our own, in which GPU-0 is /dev/nvidia0."""
    proc = tmp_path / "proc"
    folder = proc / "driver/nvidia/gpus/0000:1b:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("GPU UUID:\t GPU-0\nDevice Minor:\t 0\n")
    monkeypatch.setattr(holders, "PROC", proc)

    def add(*files: str, unit: str = "job.service") -> None:
        process = proc / "42"
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text("python3\n")
        (process / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        for number, path in enumerate(files):
            (process / "fd" / str(number)).symlink_to(path)

    return add


def test_modes_are_set_once_and_ecc_waits_for_the_reboot(driver: Driver, user: Callable[..., None]) -> None:
    wanted = wish(compute_mode="exclusive_process", ecc=False)
    assert settle(wanted)[NAME] == {
        "persistence mode": "Disabled -> Enabled",
        "compute mode": "Default -> Exclusive_Process",
        "ECC mode at the next boot": "Enabled -> Disabled",
    }
    assert driver.setters() == ["0 -pm 1", "0 -c 3", "0 -e 0"]
    assert settle(wanted) == {}
    setting = GpuSettings(wanted)
    assert setting.settled()
    assert setting.warnings() == [f"{NAME}: ECC mode is Enabled until the next reboot, then Disabled."]


@pytest.mark.parametrize(
    ("unsupported", "ignored", "complaint"),
    [(["-e"], [], "-e is not supported"), ([], ["-c"], r"compute mode did not take \(Default -> Exclusive")],
)
def test_a_mode_that_did_not_take_is_an_error(
    driver: Driver, user: Callable[..., None], unsupported: list[str], ignored: list[str], complaint: str
) -> None:
    driver.change(unsupported=unsupported, ignored=ignored)
    with pytest.raises(SettingsError, match=complaint):
        settle(wish(compute_mode="exclusive_process", ecc=False))


def test_modes_of_a_gpu_that_computes_change_only_where_that_is_allowed(
    driver: Driver, user: Callable[..., None]
) -> None:
    user("/dev/nvidia0", "/dev/nvidia-uvm")
    wanted = wish(ecc=False)
    with pytest.raises(SettingsError) as error:
        settle(wanted)
    assert GpuSettings(wanted).obstacle() == str(error.value)
    assert str(error.value) == (
        f"{NAME}: python3 (process 42, job.service) holds /dev/nvidia-uvm, /dev/nvidia0, "
        "so its ECC mode at the next boot stays Enabled; drain the node, or set gpu_settings_busy_ok: true"
    )
    assert driver.setters() == []
    assert GpuSettings.from_items(wanted, {"busy_ok": True}).obstacle() is None
    settle(wanted, busy_ok=True)
    assert "0 -e 0" in driver.setters()


@pytest.mark.parametrize(
    ("files", "unit"),
    [
        (["/dev/nvidia0"], "nvidia-dcgm.service"),
        (["/dev/nvidia1", "/dev/nvidia-uvm"], "job.service"),
        (["/dev/nvidia0", "/dev/nvidia-uvm"], "nvidia-persistenced.service"),
    ],
)
def test_who_only_watches_or_uses_another_gpu_is_no_obstacle(
    driver: Driver, user: Callable[..., None], files: list[str], unit: str
) -> None:
    user(*files, unit=unit)
    settle(wish(ecc=False))
    assert "0 -e 0" in driver.setters()


def test_what_power_or_heat_keeps_below_its_clock_is_said(driver: Driver) -> None:
    settle(wish("max"))
    driver.change_gpu(0, clocks__current__graphics="1200", clocks_throttle_reasons__active="0x4")
    assert GpuSettings(wish("max")).warnings() == [
        f"{NAME}: power or heat keeps it at 1200 MHz, below its clock of 1980 MHz."
    ]


# ---------------------------------------------------------------- nvidia-smi itself


def test_a_failing_nvidia_smi_is_quoted(driver: Driver) -> None:
    driver.change(failure="NVIDIA-SMI has failed because it couldn't\ncommunicate with the NVIDIA driver.")
    with pytest.raises(
        SettingsError, match="failed with status 9: NVIDIA-SMI has failed because it couldn't c"
    ):
        settle(wish())


def test_without_nvidia_smi_the_driver_is_the_remedy(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SettingsError, match="not installed; install the driver first"):
        settle(wish())


def test_an_nvidia_smi_that_hangs_is_stopped(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smi, "COMMAND_TIMEOUT_S", 0)
    with pytest.raises(SettingsError, match="did not answer within 0 s"):
        settle(wish())


def test_an_answer_of_another_shape_is_an_error() -> None:
    with pytest.raises(SettingsError, match="answered 3 values where 21 were asked for: '0, GPU-0, Tesla'"):
        gpu_settings.parse_gpus("0, GPU-0, Tesla\n")


# ---------------------------------------------------------------- the role and the program


def run(carry_out: Run, clocks: Any = "max", check_mode: bool = False) -> dict[str, Any]:
    items = [item("gpu", *pair) for pair in wish(clocks).items()]
    return carry_out("gpu_settings", items, check_mode=check_mode)


def test_role_changes_once(carry_out: Run, driver: Driver) -> None:
    first = run(carry_out)
    assert (first["changed"], list(first["changes"])) == (True, [NAME])
    assert not run(carry_out)["changed"]


def test_role_says_what_failed(carry_out: Run, driver: Driver) -> None:
    driver.change(failure="No devices were found")
    assert run(carry_out)["msg"].endswith("failed with status 9: No devices were found.")


def test_check_mode_only_looks(carry_out: Run, driver: Driver) -> None:
    assert run(carry_out, check_mode=True)["changed"]
    assert driver.setters() == []


def test_check_mode_works_before_the_driver_is_installed(
    carry_out: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = run(carry_out, check_mode=True)
    assert (result["changed"], result["changes"]) == (True, {})


@pytest.mark.parametrize("locked", [HOPPER, PASCAL], ids=["locked clocks", "application clocks"])
def test_settings_return_to_those_of_before(driver: Driver, locked: dict[str, bool]) -> None:
    settle(wish({"graphics": 1200, "memory": 1593}, 400, locked))
    setting = GpuSettings.from_items(wish({"graphics": 1410, "memory": 2619}, 500, locked), {})
    before = setting.read()
    setting.apply()
    driver.setters()
    setting.restore(before)
    assert setting.read() == before
    clocks = ["0 -lgc 1200,1200", "0 -lmc 1593,1593"] if locked == HOPPER else ["0 -ac 1593,1200"]
    assert driver.setters() == ["0 -pl 400", *clocks]


def test_clocks_return_in_the_way_in_which_they_were_recorded() -> None:
    """A GPU whose clocks cannot be locked has joined those that can."""
    first, now = GpuSettings(wish(locked=HOPPER)), GpuSettings(wish(locked=PASCAL))
    assert (first.locked, now.locked) == (True, False)
    now.recall({now.key: {"spec": first.as_made(), "state": {}}})
    assert GpuSettings(**now.as_made()).locked


def test_a_driver_without_settings_gets_its_defaults_back(driver: Driver) -> None:
    setting = GpuSettings(wish("max", 500))
    before = setting.read()
    setting.apply()
    driver.setters()
    setting.restore(before)
    assert driver.setters() == ["0 -pl 700", "0 -rgc"]


def test_a_driver_that_does_not_answer_does_not_keep_its_settings_from_being_taken_back(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = GpuSettings(wish("max", 500))
    before = setting.read()
    setting.apply()
    assert not setting.is_at(before)

    def fallen_off(*_: object) -> None:
        raise SettingsError("GPU 0 is lost")

    monkeypatch.setattr(gpu_settings, "settle_back", fallen_off)
    setting.restore(before)
    assert ["GPU 0 is lost" in word for word in setting.after()] == [True]
    # Those of a GPU that is gone are nobody's.
    assert setting.is_at({"GPU-gone": {"graphics_mhz": 1000, "memory_mhz": None, "power_w": 300}})


def program(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_settings.py", *map(str, arguments)])
    return gpu_settings.main()


def test_program_applies_a_file(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wish({"graphics": 1410})))
    assert program(monkeypatch, settings) == 0
    assert capsys.readouterr().out == (
        f"{NAME}: persistence mode Disabled -> Enabled, graphics clock default -> 1410 MHz\n"
    )


def test_program_needs_nothing_of_ansible(driver: Driver, tmp_path: Path) -> None:
    for name, text in programs().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    settings = tmp_path / "settings.json"
    # No lock of clocks: that would be noted under /run of this machine.
    settings.write_text(json.dumps(wish(locked=PASCAL)))
    isolated = (
        "import runpy, sys; sys.modules['ansible'] = None; sys.path.insert(0, sys.argv[1]); "
        "sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [
        sys.executable,
        "-c",
        isolated,
        str(tmp_path),
        str(tmp_path / "gpu_settings.py"),
        str(settings),
    ]
    completed = subprocess.run(command, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert driver.setters() == ["0 -pm 1"]


def test_program_sets_what_the_driver_may_have_forgotten(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the persistence daemon leaves no trace but the clocks that are gone."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wish({"graphics": 1410, "memory": 1593})))
    program(monkeypatch, settings)
    driver.setters()
    program(monkeypatch, settings)
    assert driver.setters() == ["0 -lgc 1410,1410", "0 -lmc 1593,1593"]


def test_program_resets_what_is_not_wanted_any_more(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(wish({"graphics": 1410}))
    driver.setters()
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(wish("default")))
    program(monkeypatch, settings)
    assert driver.setters() == ["0 -rgc"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [(None, "No such file"), ("{", "Expecting property name"), (json.dumps(wish("maxi")), "'maxi'")],
)
def test_program_says_why_it_failed(
    driver: Driver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    complaint: str,
) -> None:
    settings = tmp_path / "settings.json"
    if text is not None:
        settings.write_text(text)
    assert program(monkeypatch, settings) == 1
    message = capsys.readouterr().err
    assert message.startswith("GPU settings were not applied: ")
    assert complaint in message


def test_program_wants_one_argument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(monkeypatch) == 2
    assert "usage: gpu_settings.py SETTINGS.json" in capsys.readouterr().err
