"""A stage's roles in one call: in their order, up to where the controller must act, and on from there."""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import node_settings
import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.access.commit_confirm import Change, ConfirmedSetting
from ansible.module_utils.temper.driver.loaded import LoadedDriver
from ansible.module_utils.temper.packaging.packages import PackageError
from ansible.module_utils.temper.settings import brought, in_place, kinds, record, system
from ansible.module_utils.temper.settings.base import Difference, RefusedError, Setting, SettingError, WayIn

from tests.unit.executables import executable
from tests.unit.settings.role_plans import PackageManager, carried_out, item, role_plan, with_packages

Run = Callable[..., dict[str, Any]]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


class World:
    """What stand-ins for folded kinds have made, and what makes them fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / "records"
        self.log: list[str] = []
        self.made: set[str] = set()
        self.absent: set[str] = set()
        self.broken: set[str] = set()
        self.obstacles: dict[str, str] = {}
        self.warned: dict[str, list[str]] = {}
        self.undriven = False

    def file(self, name: str, content: str | None = "text\n", **more: Any) -> dict[str, Any]:
        return item("file", str(self.path / name), {"content": content, **more})


class StandIn(Setting):
    """A folded kind: made or not."""

    world: World

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.absent = options["absent"]
        self.spec = {}

    @classmethod
    def from_items(cls, items: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return cls(options)

    def read(self) -> bool:
        return self.key in self.world.made

    def settled(self) -> bool:
        return self.read() is not self.absent

    def change(self) -> list[Difference]:
        return [Difference(self.key, "", "made")]

    def apply(self) -> None:
        self.world.log.append(self.key)
        if self.key in self.world.broken:
            raise SettingError(f"{self.key} is stuck")
        if self.absent:
            self.world.made.discard(self.key)
        else:
            self.world.made.add(self.key)

    def obstacle(self) -> str | None:
        return self.world.obstacles.get(self.key)

    def warnings(self) -> list[str]:
        late = ["now it is made"] if self.read() else []
        return [*self.world.warned.get(self.key, []), *late] if self.key in self.world.warned else []

    def result(self) -> dict[str, Any]:
        return {f"{self.key}_made": self.read()}


class Unguarded(Change):
    """A change without a timer."""

    @contextlib.contextmanager
    def armed(self, *_: Any) -> Iterator[None]:
        yield


class Door(StandIn, ConfirmedSetting[str]):
    """A way in."""

    change_name = "door"
    subject = "the door"
    rollback_after_s = 60
    login = None

    @property
    def pending(self) -> Unguarded:
        return Unguarded("door", "the door", self.world.path / "rollback")

    def obstacle(self) -> str | None:
        return StandIn.obstacle(self)

    def way_in(self) -> WayIn | None:
        return WayIn("door", "the door")


class Driver(StandIn, LoadedDriver):
    """A driver that a reboot loads."""

    def settled(self) -> bool:
        return StandIn.settled(self) and not self.reboot_due

    @property
    def reboot_due(self) -> bool:
        return self.world.undriven

    def make(self) -> dict[str, Any]:
        return LoadedDriver.make(self)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)

    def class_of(kind: str) -> type[StandIn]:
        base = {"sshd": Door, "driver": Driver}.get(kind, StandIn)
        return type(kind, (base,), {"key": kind, "world": world})

    monkeypatch.setattr(kinds, "folded_class", class_of)
    monkeypatch.setattr(record, "RECORDS", world.records)
    monkeypatch.setattr(record, "FORMER", {"os_hardening": tmp_path / "os_hardening.json"})
    monkeypatch.setattr(system, "PROC_SYS", tmp_path / "proc-sys")
    monkeypatch.setattr(system, "SYSCTL_DIRECTORIES", ())
    return world


@pytest.fixture
def settle_all(run_module: Run) -> Run:
    """The module's whole result for some roles' plans."""

    def run(*plans: dict[str, Any], check_mode: bool = False, **parameters: Any) -> dict[str, Any]:
        return run_module(node_settings.main, check_mode=check_mode, roles=json.dumps(plans), **parameters)

    return run


# ---------------------------------------------------------------- order


def test_kinds_are_made_in_their_order_and_items_in_theirs(world: World) -> None:
    wanted = {"keyword": "x", "pam": {"stack": "s", "words": []}, "access": {"mode": "0600"}, "sysctl": "1"}
    wanted |= {"mount": {"options": []}, "unit": {"on": True}, "package": {"version": "1", "held": True}}
    # The key of one in /sys is a pattern.
    items = [
        item(
            kind,
            "kernel" if kind == "sysfs" else f"/{kind}:b",
            wanted.get(kind),
        )
        for kind in reversed(kinds.ORDER)
    ]
    items += [world.file("b"), world.file("a")]
    built = [setting.key for setting, _ in kinds.build("role", items, {"absent": False, "atomic": False}, {})]
    found = [key.partition(":")[0] for key in built]
    assert list(dict.fromkeys(found)) == list(kinds.ORDER)
    assert [key for key in built if str(world.path) in key] == [f"file:{world.path}/{x}" for x in "ba"]


@pytest.mark.component
def test_what_files_cause_comes_behind_them_and_before_packages(
    world: World, run_module: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(world.path / "bin/seen", f"cat {world.path}/nouveau >{world.path}/caused")
    monkeypatch.setenv("PATH", f"{world.path}/bin:{os.environ['PATH']}")
    world.broken = {"package"}
    file = world.file("nouveau")
    reaction = {"paths": [file["key"]], "command": ["seen"]}
    items = [item("package", "nvidia", {"version": "1", "held": True}), file, item("repository", "cuda", {})]
    assert carried_out(run_module, role_plan("nvidia_stack", items, [reaction]))["failed"]
    assert world.log == ["repository", "package"]
    assert (world.path / "caused").read_text() == "text\n"


def test_programs_come_before_what_works_with_them(
    world: World, manager: PackageManager, run_module: Run
) -> None:
    world.obstacles["firewall"] = "there is no nft"
    manager.brings = world.obstacles.clear
    plan = role_plan(
        "firewall",
        [item("firewall", "rules", []), item("package", "nftables", {"version": "", "held": False})],
    )
    # What nftables would be asked is not known before it is there.
    assert carried_out(run_module, plan, check_mode=True)["changed"]
    result = carried_out(run_module, plan)
    assert (manager.calls, world.log) == ([{"nftables": ""}], ["firewall"])
    assert (result["firewall_made"], result["installed"]) == (True, {"nftables": "1"})
    assert not carried_out(run_module, plan)["changed"]


# ---------------------------------------------------------------- packages that came


@pytest.fixture
def manager(world: World, monkeypatch: pytest.MonkeyPatch) -> PackageManager:
    """A node with bash, on which packages are those of the engine."""
    from ansible.module_utils.temper.packaging.package_settings import PackageSet

    found, other = with_packages(monkeypatch, "bash"), kinds.folded_class
    monkeypatch.setattr(kinds, "folded_class", lambda kind: PackageSet if kind == "package" else other(kind))
    return found


def with_package(role: str, *names: str, **options: Any) -> dict[str, Any]:
    return role_plan(
        role, [item("package", name, {"version": "", "held": False}) for name in names], **options
    )


def test_packages_go_with_their_role_alone(world: World, manager: PackageManager, run_module: Run) -> None:
    carried_out(run_module, with_package("monitoring", "exporter", "bash"))
    # For a time the role has no use for them: a node may have lost the hardware that they are for.
    assert not carried_out(run_module, with_package("monitoring"))["changed"]
    assert set(manager.known) == {"bash", "exporter"}
    shown = carried_out(run_module, with_package("monitoring", absent=True), check_mode=True)
    assert (shown["actions"], set(manager.known)) == (["packages: removed exporter"], {"bash", "exporter"})
    assert carried_out(run_module, with_package("monitoring", absent=True))["actions"] == shown["actions"]
    assert set(manager.known) == {"bash"}
    assert not carried_out(run_module, with_package("monitoring", absent=True))["changed"]
    assert not world.records.exists()


def test_what_a_role_needs_that_goes_later_in_this_run_goes_with_it(
    world: World, manager: PackageManager, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's images stay all the same, whichever role removes it."""
    settle_all(with_package("container_engines", "runtime", "toolkit"), with_package("pull", "git"))

    def removable(names: Sequence[str], _ours: Collection[str]) -> list[str]:
        return [name for name in names if name != "runtime" or "git" in names]

    monkeypatch.setattr(manager, "removable", removable)
    said = settle_all(*(with_package(role, absent=True) for role in ("container_engines", "pull")))
    assert not [one for one in said["warnings"] if "need them" in str(one)]
    assert (set(manager.known), manager.purged) == ({"bash"}, ["git"])
    assert not world.records.exists()


def test_what_packages_of_before_only_recommend_goes(
    world: World, manager: PackageManager, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that came after Temper's may have come to use it."""
    settle_all(with_package("container_engines", "runtime"))
    manager.add("later")
    settle_all(with_package("container_engines", "runtime", "toolkit"), with_package("pull", "git"))
    asked: list[tuple[list[str], set[str]]] = []

    def removable(names: Sequence[str], ours: Collection[str]) -> list[str]:
        asked.append((list(names), {*ours}))
        return [name for name in names if name != "runtime"]

    monkeypatch.setattr(manager, "removable", removable)
    settle_all(*(with_package(role, absent=True) for role in ("container_engines", "pull")))
    ours = {"bash", "runtime", "toolkit", "git"}
    assert [one for names, one in asked if "runtime" in names and "later" in one] == []
    assert asked[0] == (["runtime", "toolkit"], ours)
    assert ["git", "runtime"] in [names for names, _ in asked]


def test_what_a_role_needs_that_a_later_call_takes_back_goes_with_it(
    world: World, manager: PackageManager, settle_all: Run
) -> None:
    settle_all(with_package("container_engines", "runtime", "library"), with_package("pull", "git"))
    manager.needed = {"library"}
    said = settle_all(with_package("container_engines", absent=True), later=["pull"])
    assert not [one for one in said["warnings"] if "need them" in str(one)]
    assert set(manager.known) == {"bash", "library", "git"}
    manager.needed = set()
    settle_all(with_package("pull", absent=True))
    assert set(manager.known) == {"bash"}
    assert not world.records.exists()


def test_what_a_role_needs_that_stays_is_said_and_not_handed_over(
    world: World, manager: PackageManager, settle_all: Run
) -> None:
    settle_all(with_package("monitoring", "exporter", "library"), with_package("pull", "git"))
    manager.needed = {"library"}
    said = settle_all(with_package("monitoring", absent=True), with_package("pull", "git"))["warnings"]
    assert ["stays: library" in str(one) for one in said] == [True]
    manager.needed = set()
    settle_all(with_package("pull", absent=True))
    assert set(manager.known) == {"bash", "library"}
    assert not world.records.exists()


def test_packages_stay_until_a_new_connection_has_confirmed(
    world: World, manager: PackageManager, run_module: Run
) -> None:
    door = item("sshd", "door", [])
    plan = with_package("ssh_hardening", "nft")
    carried_out(run_module, {**plan, "settings": [*plan["settings"], door]})
    world.made.add("sshd")
    back = with_package("ssh_hardening", absent=True)
    first = carried_out(run_module, back)
    assert (first["needs"], first["left"]) == ({"confirm": "door"}, ["package:set"])
    assert "nft" in manager.known
    second = carried_out(run_module, back)
    assert (second["needs"], second["actions"]) == ({}, ["packages: removed nft"])
    assert "nft" not in manager.known


def test_packages_that_cannot_go_keep_all_roles_as_they_are(
    world: World, manager: PackageManager, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_all(with_package("monitoring", "exporter"), with_package("container_engines", "docker.io"))
    (world.path / "var/lib/docker/containers/0123").mkdir(parents=True)
    monkeypatch.setattr(brought, "ROOT", world.path)
    refused = settle_all(*(with_package(role, absent=True) for role in ("monitoring", "container_engines")))
    assert (refused["failed"], refused["refused"]) == (True, True)
    assert "containers/0123" in refused["msg"]
    assert set(manager.known) == {"bash", "exporter", "docker.io"}


def test_a_package_manager_that_cannot_say_what_would_go_keeps_all_roles_as_they_are(
    world: World, manager: PackageManager, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_all(with_package("pull", "git"), with_package("monitoring", "exporter"))

    def removable(names: Sequence[str], _ours: Collection[str]) -> list[str]:
        if "exporter" in names:
            raise PackageError("Simulating the removal failed: E: Unmet dependencies.")
        return list(names)

    monkeypatch.setattr(manager, "removable", removable)
    refused = settle_all(*(with_package(role, absent=True) for role in ("pull", "monitoring")))
    assert (refused["failed"], refused["refused"]) == (True, True)
    assert "Unmet dependencies" in refused["msg"]
    assert set(manager.known) == {"bash", "exporter", "git"}


# ---------------------------------------------------------------- several roles


def test_roles_are_settled_in_their_order_and_each_has_its_own_result(world: World, settle_all: Run) -> None:
    plans = [
        role_plan("container_engines", [item("container_engine", "cdi", "auto")]),
        role_plan("profiling_tools", [world.file("sysstat")]),
    ]
    result = settle_all(*plans)
    assert list(result["roles"]) == ["container_engines", "profiling_tools"]
    assert [role["changed"] for role in result["roles"].values()] == [True, True]
    assert result["roles"]["container_engines"]["results"]["container_engine_made"]
    assert "container_engine_made" not in result["roles"]["profiling_tools"]["results"]
    second = settle_all(*plans)
    assert (second["changed"], [role["diff"] for role in second["roles"].values()]) == (False, [[], []])


def test_a_later_role_that_fails_is_part_of_the_result(world: World, settle_all: Run) -> None:
    world.broken = {"container_engine"}
    plans = [
        role_plan("nvidia_stack", [world.file("a")]),
        role_plan("container_engines", [item("container_engine", "cdi", "auto")]),
        role_plan("profiling_tools", [world.file("b")]),
    ]
    result = settle_all(*plans)
    assert result["changed"]
    assert not result.get("failed")
    assert list(result["roles"]) == ["nvidia_stack", "container_engines"]
    assert result["roles"]["container_engines"]["failed"]
    assert result["roles"]["container_engines"]["msg"] == "container_engine is stuck"
    assert not (world.path / "b").exists()


def test_an_obstacle_of_what_has_nothing_to_make_is_heard(world: World, run_module: Run) -> None:
    """An engine without the toolkit has no plan that could differ."""
    world.made = {"container_engine"}
    world.obstacles["container_engine"] = "the toolkit is missing"
    plan = role_plan("container_engines", [item("container_engine", "cdi", "auto")])
    assert carried_out(run_module, plan)["msg"] == "Nothing was changed: the toolkit is missing."


def test_a_refusal_of_the_first_look_is_the_roles_failure(
    world: World, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: StandIn) -> bool:
        raise RefusedError("this would lock Ansible out")

    monkeypatch.setattr(Door, "settled", refuse)
    result = settle_all(role_plan("ssh_hardening", [item("sshd", "Port", {"value": 22})]))
    assert result["roles"]["ssh_hardening"]["msg"] == "this would lock Ansible out"


# ---------------------------------------------------------------- where the controller must act


def harden_plans(world: World) -> list[dict[str, Any]]:
    return [
        role_plan("ssh_hardening", [item("sshd", "Port", {"value": 22}), world.file("banner")]),
        role_plan("os_hardening", [world.file("new")], atomic=True),
    ]


def test_a_change_of_a_way_in_ends_the_call_and_the_next_one_does_the_rest(
    world: World, settle_all: Run
) -> None:
    plans = harden_plans(world)
    first = settle_all(*plans)
    assert list(first["roles"]) == ["ssh_hardening"]
    assert first["roles"]["ssh_hardening"]["needs"] == {"confirm": "door"}
    assert in_place.noted() == {"ssh_hardening": in_place.digest(plans[0])}
    assert not (world.path / "new").exists()
    second = settle_all(*plans)
    assert [role["changed"] for role in second["roles"].values()] == [False, True]
    assert (world.path / "new").exists()
    assert not settle_all(*plans)["changed"]


def test_check_mode_goes_through_all_roles(world: World, settle_all: Run) -> None:
    result = settle_all(*harden_plans(world), check_mode=True)
    assert [(role["changed"], role["needs"]) for role in result["roles"].values()] == [(True, {})] * 2
    assert (world.log, list(world.path.iterdir())) == ([], [])


def test_a_change_that_was_undone_is_made_again(world: World, settle_all: Run) -> None:
    plans = harden_plans(world)
    settle_all(*plans)
    world.made.clear()  # nobody confirmed it
    assert settle_all(*plans)["roles"]["ssh_hardening"]["needs"] == {"confirm": "door"}


def test_a_setting_that_nobody_wants_is_restored_once_where_a_call_ends_early(
    world: World, settle_all: Run
) -> None:
    settle_all(role_plan("ssh_hardening", [world.file("banner")]))
    plan = role_plan("ssh_hardening", [item("sshd", "Port", {"value": 22})])
    assert f"{world.path}/banner: restored" in settle_all(plan)["roles"]["ssh_hardening"]["actions"]
    assert not settle_all(plan)["changed"]


def stack_plan(world: World) -> dict[str, Any]:
    return role_plan(
        "nvidia_stack",
        [
            item("package", "nvidia-driver", {"version": "1", "held": True}),
            item("driver", "nvidia", {"version": "1"}),
            item("container_engine", "after", "it"),
        ],
    )


def test_a_driver_that_only_a_reboot_loads_ends_the_call_and_the_next_one_goes_on(
    world: World, settle_all: Run
) -> None:
    world.undriven = True
    plans = [stack_plan(world), role_plan("profiling_tools", [world.file("a")])]
    first = settle_all(*plans)
    assert first["roles"]["nvidia_stack"]["needs"] == {"driver": {"driver_made": True}}
    assert list(first["roles"]) == ["nvidia_stack"]
    assert world.log == ["package", "driver"]
    # Shown is what was done: neither the driver that is not loaded, nor what comes after it.
    assert first["roles"]["nvidia_stack"]["actions"] == ["package: unset -> made"]
    assert first["roles"]["nvidia_stack"]["changed"]
    world.undriven = False
    assert list(settle_all(*plans, after_boot_s=60)["roles"]) == ["nvidia_stack", "profiling_tools"]
    assert world.log == ["package", "driver", "container_engine"]


def test_a_driver_is_proven_anew_once_its_packages_have_changed(world: World, run_module: Run) -> None:
    world.made = {"driver", "container_engine"}

    def installed(setting: StandIn) -> None:
        StandIn.apply(setting)
        world.made.discard("driver")

    other = kinds.folded_class
    classes = {"package": type("Packages", (other("package"),), {"apply": installed})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds, "folded_class", lambda kind: classes.get(kind) or other(kind))
        carried_out(run_module, stack_plan(world))
    assert world.log == ["package", "driver"]


# ---------------------------------------------------------------- stages to come


def three_plans(world: World) -> list[dict[str, Any]]:
    return [role_plan(role, [world.file(role)]) for role in ("nvidia_stack", "os_tuning", "os_hardening")]


def test_roles_of_later_stages_are_read_up_to_the_first_that_has_something_to_do(
    world: World, settle_all: Run
) -> None:
    plans = three_plans(world)
    settle_all(*plans)
    ahead = json.dumps(plans[1:])
    first = settle_all(plans[0], ahead=ahead)
    # The same result as from an execution of their own.
    assert first["ahead"] == settle_all(*plans[1:])["roles"]
    (world.path / "os_hardening").write_text("drifted\n")
    assert list(settle_all(plans[0], ahead=ahead)["ahead"]) == ["os_tuning"]
    assert (world.path / "os_hardening").read_text() == "drifted\n"
    (world.path / "os_tuning").unlink()
    assert settle_all(plans[0], ahead=ahead)["ahead"] == {}
    assert not (world.path / "os_tuning").exists()


@pytest.mark.parametrize("check_mode", [True, False], ids=["check mode", "run"])
def test_behind_a_change_no_later_stage_is_read(world: World, settle_all: Run, check_mode: bool) -> None:
    plans = three_plans(world)
    settle_all(*plans[1:])
    assert settle_all(plans[0], ahead=json.dumps(plans[1:]), check_mode=check_mode)["ahead"] == {}


def test_what_a_cut_off_run_left_of_a_later_stage_is_left_to_that_stage(
    world: World, settle_all: Run
) -> None:
    plans = three_plans(world)
    settle_all(*plans)
    kept = record.Record("os_tuning")
    kept.pending = [plans[1]["settings"][0]["kind"] + ":" + plans[1]["settings"][0]["key"]]
    kept.save()
    assert settle_all(plans[0], ahead=json.dumps(plans[1:]))["ahead"] == {}
    assert settle_all(*plans[1:])["changed"]


def test_a_later_stage_that_cannot_be_read_says_so_itself(
    world: World, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: StandIn) -> bool:
        raise RefusedError("this would lock Ansible out")

    monkeypatch.setattr(Door, "settled", refuse)
    plan = role_plan("ssh_hardening", [item("sshd", "Port", {"value": 22})])
    result = settle_all(role_plan("os_tuning", []), ahead=json.dumps([plan]))
    assert (result["ahead"], result["roles"]["os_tuning"]["changed"]) == ({}, False)


def test_a_role_that_a_node_cannot_have_keeps_the_roles_before_it_from_changing_anything(
    world: World, run_module: Run
) -> None:
    plans = three_plans(world)
    plans[2]["options"]["obstacle"] = "this node has Rocky Linux 9"
    result = run_module(node_settings.main, roles=json.dumps(plans))
    assert result["refused"]
    assert "Rocky Linux 9" in result["msg"]
    assert not (world.path / "nvidia_stack").exists()


# ---------------------------------------------------------------- what is said, kept and taken back


def test_a_warning_is_shown_once_also_one_that_only_the_change_makes_true(
    world: World, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: warnings.append(text))
    world.warned = {"firewall": ["everybody may use SSH"], "container_engine": ["everybody may use SSH"]}
    plan = role_plan("firewall", [item("firewall", "rules", []), item("container_engine", "cdi", "auto")])
    settle_all(plan)
    assert warnings == ["everybody may use SSH", "now it is made"]


def test_a_secret_is_in_no_result_and_no_record(world: World, settle_all: Run) -> None:
    key = world.file("mok.key", None, secret=True, mode="0600", source="/controller/mok.key")
    plan = role_plan("nvidia_stack", [key])
    for check_mode in (True, False):
        result = settle_all(plan, secrets={key["key"]: "PRIVATE"}, check_mode=check_mode)
        assert result["changed"]
        assert "PRIVATE" not in json.dumps(result)
    assert (world.path / "mok.key").read_text() == "PRIVATE"
    assert not list(world.records.glob("*"))
    # Nor is one kept that another one replaces.
    result = settle_all(plan, secrets={key["key"]: "NEWER"})
    assert result["changed"]
    assert "PRIVATE" not in json.dumps(result) + "".join(p.read_text() for p in world.records.glob("*"))


def test_a_secret_that_goes_is_in_no_result_and_no_record(world: World, settle_all: Run) -> None:
    path = world.path / "mok.key"
    path.write_text("PRIVATE")
    path.chmod(0o600)
    plan = role_plan("nvidia_stack", [world.file("mok.key", None, secret=True, mode="0600")])
    result = settle_all(plan)
    assert result["changed"]
    assert not path.exists()
    assert "PRIVATE" not in json.dumps(result) + "".join(p.read_text() for p in world.records.glob("*"))


@pytest.mark.parametrize(("role", "kind"), kinds.TAKEN_BACK.items())
def test_what_keeps_its_own_record_is_taken_back_where_the_role_is_absent(
    world: World, settle_all: Run, role: str, kind: str
) -> None:
    settle_all(role_plan(role, [item(kind, "key", {"value": 1})]))
    assert world.made == {kind}
    absent = role_plan(role, [], absent=True)
    assert settle_all(absent)["changed"]
    assert world.made == set()
    assert not settle_all(absent)["changed"]


def test_accounts_are_looked_at_where_nobody_is_listed_any_more(
    world: World, settle_all: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, warning: warnings.append(warning))
    world.warned = {"account": ["ada is no longer listed, and still let in"]}
    settle_all(role_plan("admin_accounts", []))
    assert warnings[:1] == world.warned["account"]


def test_the_record_of_an_earlier_version_is_taken_over(world: World, settle_all: Run) -> None:
    file = world.path / "login"
    file.write_text("ours\n")
    original = {"spec": {"path": str(file), "content": "", "directories": []}, "state": None}
    former = world.path / "os_hardening.json"
    former.write_text(json.dumps({"originals": {f"file:{file}": original}, "pending": []}))
    settle_all(role_plan("os_hardening", [world.file("other")], atomic=True))
    assert not file.exists()
    assert not former.exists()
    assert list(json.loads((world.records / "os_hardening.json").read_text())["originals"]) == [
        f"file:{world.path}/other"
    ]


def test_no_part_of_a_plan_makes_results_unreadable(world: World, settle_all: Run) -> None:
    """Ansible takes the value of a parameter that it must not log out of all results, however short it is."""
    (diff,) = settle_all(role_plan("os_tuning", [world.file("list", "[]\n")]))["roles"]["os_tuning"]["diff"]
    assert diff["after"] == "[]\n"
