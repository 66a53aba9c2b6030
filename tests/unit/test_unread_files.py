"""Files of variables that Ansible would ignore are asked about, with what may be meant."""

import shutil
from pathlib import Path

from temper.plan import unread_files
from tests.unit.tables import ROOT

GROUPS = {"all", "ungrouped", "gpu_nodes", "h100", "profile_training"}
HOSTS = {"gpu01", "gpu02.example.com"}
#: Files beside an inventory, and words of the one question about them; none where Ansible reads all of them.
BESIDE: list[tuple[list[str], list[str]]] = [
    (["group_vars/all.yml", "group_vars/ungrouped", "group_vars/gpu_nodes.yaml", "host_vars/gpu01.json"], []),
    (["group_vars/gpu_nodes/firewall.yml", "host_vars/gpu02.example.com", "hosts.yml"], []),
    (["host_vars/gpu02.example.com.yml", "group_vars/README.md", "group_vars/.git/x", "group_vars/h~"], []),
    (["group_vars/gpu_node.yml"], ["gpu_node.yml belongs to no group", "did you mean gpu_nodes?"]),
    (["group_vars/gpu-nodes/firewall.yml"], ["gpu-nodes belongs to no group", "did you mean gpu_nodes?"]),
    (["group_vars/gpus.yml"], ["gpus.yml belongs to no group", "rename it, or remove it"]),
    (["host_vars/gpu1.yml"], ["host_vars/gpu1.yml belongs to no host", "did you mean gpu01?"]),
    (["host_vars/gpu02.exmaple.com.yml"], ["did you mean gpu02.example.com?"]),
    # What has a file of its own is not what another one means.
    (["group_vars/h100.yml", "group_vars/h200.yml"], ["h200.yml belongs to no group", "remove it"]),
    (["group_vars/h100/a.yml", "group_vars/h100.yml"], ["h100.yml: Ansible ignores it", "reads ", "h100;"]),
    (["group_vars/h100.yml", "group_vars/h100.json"], ["h100.json: Ansible ignores it", "h100.yml;"]),
    (["groups_vars/h100.yml"], ["groups_vars: Ansible reads no folder of this name", "group_vars?"]),
]


def test_what_ansible_ignores_is_asked_about(tmp_path: Path) -> None:
    wrong = []
    for number, (files, words) in enumerate(BESIDE):
        for file in files:
            path = tmp_path / str(number) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("a: 1\n")
        for source in (tmp_path / str(number), tmp_path / str(number) / "hosts.yml"):
            found = list(unread_files.questions([str(source)], GROUPS, HOSTS))
            if len(found) != bool(words) or not all(word in found[0] for word in words):
                wrong.append((files, found))
    assert wrong == []


def test_an_unchanged_file_of_the_example_is_no_question_unless_a_group_is_nearly_called_so(
    tmp_path: Path,
) -> None:
    shutil.copytree(ROOT / "inventory/example", tmp_path, dirs_exist_ok=True)
    own = {"gpu_nodes", "profile_training"}
    assert list(unread_files.questions([str(tmp_path)], own, HOSTS)) == []
    (found,) = unread_files.questions([str(tmp_path)], {"gpu_nodes", "profile_trainning"}, HOSTS)
    assert "profile_training.yml belongs to no group" in found
    assert found.endswith("did you mean profile_trainning?")
    (tmp_path / "group_vars/h100.yml").write_text("gpu_settings_power_limit_w: 600\n")
    (found,) = unread_files.questions([str(tmp_path)], own, HOSTS)
    assert "h100.yml" in found


def test_the_files_of_a_former_fleet_are_a_few_questions(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    for number in range(100):
        (tmp_path / f"host_vars/old{number}.yml").touch()
    assert len(list(unread_files.questions([str(tmp_path)], GROUPS, HOSTS))) == unread_files.MOST_QUESTIONS


def test_lists_of_hosts_and_folders_that_are_not_there_are_no_question(tmp_path: Path) -> None:
    sources = ["gpu01,gpu02", str(tmp_path / "none/hosts.yml")]
    assert list(unread_files.questions(sources, GROUPS, HOSTS)) == []


def test_a_folder_of_several_inventories_is_asked_only_about_names_that_are_nearly_right(
    tmp_path: Path,
) -> None:
    (tmp_path / "group_vars").mkdir()
    for name in ("prod.yml", "staging.yml", "group_vars/staging.yml", "group_vars/gpu_node.yml"):
        (tmp_path / name).touch()
    prod = [str(tmp_path / "prod.yml")]
    (found,) = unread_files.questions(prod, GROUPS, HOSTS)
    assert "gpu_node.yml belongs to no group" in found
    # To compare the names of a whole fleet takes longer than the run's first tasks.
    for number in range(unread_files.MOST_COMPARED):
        (tmp_path / f"group_vars/gpu_nodes{number}.yml").touch()
    assert list(unread_files.questions(prod, GROUPS, HOSTS)) == []


def test_variables_of_this_machine_need_no_entry_in_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/localhost.yml").touch()
    assert list(unread_files.questions([str(tmp_path)], GROUPS, HOSTS)) == []
