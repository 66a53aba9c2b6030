"""The file with all plans: replaced at one go, and the play that writes it runs in step."""

import json
from pathlib import Path

import pytest
import yaml

from plugins.action import fleet_plan
from tests.unit.ansible_commands import ansible

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_is_replaced_with_the_mode_it_had(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("a longer text than the new one")
    path.chmod(0o640)
    fleet_plan.write_whole(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_that_has_the_file_open_keeps_the_whole_old_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    with path.open() as reader:
        fleet_plan.write_whole(path, "new")
        assert reader.read() == "old"


def test_what_is_no_regular_file_is_never_replaced() -> None:
    fleet_plan.write_whole(Path("/dev/null"), "gone")
    assert Path("/dev/null").is_char_device()


# Nobody listens there, which preflight says as it says all that is wrong; nothing could be changed.
NOBODY = {"ansible_host": "127.0.0.1", "ansible_port": 1}
INVENTORY = {"gpu_nodes": {"hosts": {"one": NOBODY, "two": NOBODY}}}


@pytest.mark.component
@pytest.mark.parametrize(
    ("stage", "tags"),
    [
        ("harden", []),
        pytest.param("harden", ["--tags=ssh_hardening"], marks=pytest.mark.nightly),
        pytest.param("provision", ["--tags=never"], marks=pytest.mark.nightly),
        pytest.param("tune", ["--tags=never"], marks=pytest.mark.nightly),
        ("validate", ["--tags=never"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_stage_alone_plans_all_nodes_together_and_refuses(
    tmp_path: Path, stage: str, tags: list[str]
) -> None:
    inventory, plans = tmp_path / "inventory.yml", tmp_path / "plan.json"
    inventory.write_text(yaml.safe_dump(INVENTORY))
    words = [f"--inventory={inventory}", f"--extra-vars=preflight_plan_file={plans}", *tags]
    run = ansible("playbook", f"playbooks/{stage}.yml", *words)
    said = run.stdout + run.stderr
    assert said.count("0 of 2 nodes planned, 2 not: one, two") == 1, said
    assert "two is refused; nothing was changed on it." in said
    assert sorted(json.loads(plans.read_text())["nodes"]) == ["one", "two"]


@pytest.mark.component
@pytest.mark.parametrize("wrong", [{"ansible_port": "ssh"}, {"ansible_user": "{{ nobody_knows }}"}])
def test_a_wrong_connection_of_the_first_node_fails_that_node_alone(
    wrong: dict[str, str], tmp_path: Path
) -> None:
    inventory, plans = tmp_path / "inventory.yml", tmp_path / "plan.json"
    nodes = {"one": NOBODY | wrong, "two": NOBODY}
    inventory.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": nodes}}))
    words = [f"--inventory={inventory}", f"--extra-vars=preflight_plan_file={plans}"]
    run = ansible("playbook", "playbooks/preflight.yml", *words)
    said = run.stdout + run.stderr
    assert ("'port'" in said) or ("nobody_knows" in said), said
    found = json.loads(plans.read_text())["nodes"]
    assert "cannot be reached over SSH" in found["two"]["problems"][0], said
