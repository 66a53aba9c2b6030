"""Values of the kernel in /sys are set, compared and taken back, in a folder that stands for /sys."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from ansible.module_utils.temper.settings import observe, record, sysfs
from ansible.module_utils.temper.settings.base import SettingError
from ansible.module_utils.temper.settings.sysfs import SysfsValue, choices, chosen

from temper.plan.convert import plain
from tests.unit.each import each
from tests.unit.planning_roles.plans import planned
from tests.unit.settings.role_plans import carried_out, item, role_plan

Run = Callable[..., dict[str, Any]]

POLICIES = "devices/system/cpu/cpufreq/policy*/scaling_governor"
GOVERNOR = "devices/system/cpu/cpufreq/policy{}/scaling_governor"
READ_AHEAD = "block/nvme0n1/queue/read_ahead_kb"
SCHEDULER = "block/nvme0n1/queue/scheduler"


class Tree:
    """Two CPUs with their governors, below a folder in the place of /sys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for number in (0, 1):
            self.write(GOVERNOR.format(number), "schedutil\n")

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def governors(self) -> list[str]:
        return [path.read_text().strip() for path in sorted(self.path.glob(POLICIES))]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(sysfs, "SYS", tmp_path / "sys")
    monkeypatch.setattr(record, "RECORDS", tmp_path / "records")
    return Tree(tmp_path / "sys")


def governors(value: str) -> dict[str, Any]:
    return role_plan("os_tuning", [item("sysfs", POLICIES, value)])


@each(
    ("always [madvise] never\n", "madvise", ["always", "madvise", "never"]),
    ("[always] defer defer+madvise\n", "always", ["always", "defer", "defer+madvise"]),
    ("schedutil\n", "schedutil", ["schedutil"]),
    ("128\n", "128", ["128"]),
    ("", "", []),
)
def test_the_word_in_brackets_is_the_value(text: str, value: str, offers: list[str]) -> None:
    assert (chosen(text), choices(text)) == (value, offers)


def test_all_files_that_match_get_the_value_and_the_second_run_changes_nothing(
    run_module: Run, tree: Tree
) -> None:
    first = carried_out(run_module, governors("performance"))
    assert (first["changed"], tree.governors()) == (True, ["performance", "performance"])
    assert f"sysfs:{GOVERNOR.format(0)}: schedutil -> performance" in first["actions"]
    assert not carried_out(run_module, governors("performance"))["changed"]


def test_check_mode_says_it_and_writes_nothing(run_module: Run, tree: Tree) -> None:
    result = carried_out(run_module, governors("performance"), check_mode=True)
    assert (result["changed"], tree.governors()) == (True, ["schedutil", "schedutil"])


def test_each_file_returns_to_what_it_was(run_module: Run, tree: Tree) -> None:
    tree.write(GOVERNOR.format(1), "powersave\n")
    carried_out(run_module, governors("performance"))
    carried_out(run_module, governors("schedutil"))
    assert carried_out(run_module, role_plan("os_tuning", []))["changed"]
    assert tree.governors() == ["schedutil", "powersave"]
    assert not carried_out(run_module, role_plan("os_tuning", []))["changed"]


def test_what_somebody_has_set_since_is_left_alone(run_module: Run, tree: Tree) -> None:
    carried_out(run_module, governors("performance"))
    tree.write(GOVERNOR.format(1), "powersave\n")
    back = carried_out(run_module, role_plan("os_tuning", []))
    assert (len(back["actions"]), tree.governors()) == (1, ["schedutil", "powersave"])
    assert "expected performance, found powersave" in str(back["warnings"])


def test_what_is_gone_when_it_is_taken_back_is_given_up(run_module: Run, tree: Tree) -> None:
    carried_out(run_module, governors("performance"))
    (tree.path / GOVERNOR.format(1)).unlink()
    carried_out(run_module, role_plan("os_tuning", []))
    assert tree.governors() == ["schedutil"]
    assert not carried_out(run_module, role_plan("os_tuning", []))["changed"]
    assert observe.observe(role_plan("os_tuning", [])) == []


def test_a_platform_without_such_files_has_nothing_to_set(run_module: Run, tree: Tree) -> None:
    for path in tree.path.glob(POLICIES):
        path.unlink()
    assert not carried_out(run_module, governors("performance"))["changed"]


@pytest.mark.parametrize(("text", "settled"), [("none\n", True), ("[mq-deadline] none\n", False)])
def test_a_device_without_a_choice_of_schedulers_is_settled(tree: Tree, text: str, settled: bool) -> None:
    tree.write(SCHEDULER, text)
    assert SysfsValue(SCHEDULER, "kyber").settled() is settled


def test_a_value_that_the_kernel_refuses_is_named(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree.write("kernel/mm/transparent_hugepage/enabled", "[always] never\n")

    def refuse(*_arguments: object, **_options: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(type(path), "write_text", refuse)
    setting = SysfsValue("kernel/mm/transparent_hugepage/enabled", "sometimes")
    with pytest.raises(SettingError, match=r"'sometimes' for .*enabled: Invalid argument"):
        setting.apply()


def refusing(tree: Tree, number: int) -> AbstractContextManager[object]:
    """Have the kernel take no value, with an error of this number."""
    return patch.object(type(tree.path), "write_text", side_effect=OSError(number, os.strerror(number)))


def test_a_former_value_that_the_kernel_no_longer_knows_is_given_up(run_module: Run, tree: Tree) -> None:
    """As of a governor after another driver of the CPUs' clocks came with another kernel."""
    carried_out(run_module, governors("performance"))
    with refusing(tree, errno.EINVAL):
        carried_out(run_module, role_plan("os_tuning", []))
    assert tree.governors() == ["performance", "performance"]
    assert not carried_out(run_module, role_plan("os_tuning", []))["changed"]


def test_a_former_value_that_cannot_be_written_for_another_reason_is_kept_for_the_next_run(
    run_module: Run, tree: Tree
) -> None:
    carried_out(run_module, governors("performance"))
    with refusing(tree, errno.EROFS), pytest.raises(SettingError, match="Read-only file system"):
        SysfsValue(GOVERNOR.format(0), "performance").restore("schedutil")
    carried_out(run_module, role_plan("os_tuning", []))
    assert tree.governors() == ["schedutil", "schedutil"]


def test_a_value_that_the_kernel_passes_over_in_silence_is_named(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.write(SCHEDULER, "[none] kyber\n")
    monkeypatch.setattr(type(path), "write_text", lambda *_arguments, **_options: 0)
    setting = SysfsValue(SCHEDULER, "kyber")
    with pytest.raises(SettingError, match=r"'kyber' for .*scheduler and made 'none' of it"):
        setting.apply()


def test_a_value_that_the_kernel_rounds_is_named_and_the_former_one_is_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.write(READ_AHEAD, "128\n")

    def whole_pages(to: Path, text: str, encoding: str) -> int:
        return to.write_bytes(f"{int(text) // 4 * 4}\n".encode(encoding))

    monkeypatch.setattr(type(path), "write_text", whole_pages)
    with pytest.raises(SettingError, match=r"'1001' for .*read_ahead_kb and made '1000' of it"):
        SysfsValue(READ_AHEAD, "1001").apply()
    assert path.read_text() == "128\n"


def test_compliance_finds_what_somebody_has_changed_since(run_module: Run, tree: Tree) -> None:
    carried_out(run_module, governors("performance"))
    tree.write(GOVERNOR.format(1), "powersave\n")
    found = {one["key"]: one for one in observe.observe(governors("performance"))}
    assert found[f"sysfs:{GOVERNOR.format(0)}"]["state"] == "pass"
    wrong = found[f"sysfs:{GOVERNOR.format(1)}"]
    assert wrong["state"] == "fail"
    assert [(change["before"], change["after"]) for change in wrong["changes"]] == [
        ("powersave", "performance")
    ]


def test_compliance_finds_what_nobody_asks_for_any_more(run_module: Run, tree: Tree) -> None:
    carried_out(run_module, governors("performance"))
    found = observe.observe(role_plan("os_tuning", []))
    assert [(one["key"], one["state"]) for one in found] == [
        (f"sysfs:{GOVERNOR.format(number)}", "fail") for number in (0, 1)
    ]


def test_compliance_reads_these_settings_from_a_nodes_plan(run_module: Run, tree: Tree) -> None:
    part = json.loads(json.dumps(plain(planned("os_tuning", os_tuning_shm="75%"))))
    part["settings"] = [one for one in part["settings"] if one["kind"] in ("sysfs", "tmpfs")]
    found = {one["key"]: one["state"] for one in observe.observe(part)}
    assert found.pop("tmpfs:/dev/shm") in ("pass", "fail", "not-applicable")  # as this machine has it
    assert found == {f"sysfs:{GOVERNOR.format(number)}": "fail" for number in (0, 1)}
    carried_out(run_module, {**part, "settings": [one for one in part["settings"] if one["kind"] == "sysfs"]})
    found = {one["key"]: one["state"] for one in observe.observe(part)}
    assert {state for key, state in found.items() if key.startswith("sysfs:")} == {"pass"}
