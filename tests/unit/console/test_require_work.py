"""What the callback `require_work` decides of Ansible's own playbooks, and how whole runs end with it."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import ansible.context as context
import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.plugins.loader import init_plugin_loader
from ansible.utils.context_objects import CLIArgs
from ansible.vars.manager import VariableManager

from tests.unit.ansible_commands import ROOT, ansible

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    #: Of the command line, as Ansible keeps them.
    Options = dict[str, tuple[str, ...] | str | None]

PLAY = """\
- name: Check
  hosts: {hosts}
  gather_facts: false
  tasks:
    - name: Ask
      ansible.builtin.command: "true"
      tags: [{tag}]
"""
INVENTORY = {
    "all": {
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        "hosts": {"n01": {}, "n02": {}},
    },
    "gpunodes": {"hosts": {"n01": {}}},
    "empty": {"hosts": {}},
}
NO_TASK = "No task was carried out on any node"


def play(hosts: str = "n01", tag: str = "ask") -> str:
    return PLAY.format(hosts=hosts, tag=tag)


ONE, EMPTY = play(), play("empty")


def command_line(folder: Path, *playbooks: str) -> list[str]:
    """Write an inventory and these playbooks; return the arguments that name them."""
    (folder / "hosts.yml").write_text(yaml.safe_dump(INVENTORY))
    (folder / "tasks.yml").write_text('- ansible.builtin.command: "true"\n  tags: [inner]\n')
    paths = [folder / f"{number}.yml" for number in range(len(playbooks))]
    for path, text in zip(paths, playbooks, strict=True):
        path.write_text(text)
    return ["-i", str(folder / "hosts.yml"), *map(str, paths)]


@pytest.fixture
def require_work() -> ModuleType:
    spec = importlib.util.spec_from_file_location("require_work", ROOT / "plugins/callback/require_work.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def decides(
    require_work: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[bool, str]]:
    """A function: whether a run is ended, and what is said. `did`: in which playbooks a node does a task."""
    init_plugin_loader()

    def run(playbooks: tuple[str, ...], options: Options, did: tuple[bool, ...]) -> tuple[bool, str]:
        _, source, *paths = command_line(tmp_path, *playbooks)
        none: Options = {"tags": (), "skip_tags": (), "extra_vars": (), "subset": None}
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({**none, **options, "args": paths}))
        loader = DataLoader()
        inventory = InventoryManager(loader, [source])
        inventory.subset(context.CLIARGS["subset"])
        variables = VariableManager(loader, inventory)
        said: list[str] = []
        callback = require_work.CallbackModule()
        callback._display = SimpleNamespace(
            error=lambda text, wrap_text: said.append(text), warning=said.append
        )
        processed: dict[str, int] = {}
        try:
            for path, worked in zip(paths, did, strict=True):
                callback.v2_playbook_on_start(Playbook.load(path, variables, loader))
                processed |= {"n01": 1} if worked else {}
                callback.v2_playbook_on_stats(SimpleNamespace(processed=processed))
        except SystemExit as end:
            assert end.code == require_work.STATUS
            return True, said[0]
        return False, "".join(said)

    return run


def test_a_run_ends_where_nothing_can_be_done_and_goes_on_where_something_may(
    decides: Callable[..., tuple[bool, str]], tmp_path: Path
) -> None:
    template = play('"{{ target }}"')
    late = ONE + f"    - ansible.builtin.include_tasks: {tmp_path}/tasks.yml\n      tags: [always]\n"
    # Playbooks, options, in which of them a node does a task, whether the run is ended, words.
    table: tuple[tuple[tuple[str, ...], Options, tuple[bool, ...], bool, str], ...] = (
        ((ONE,), {}, (True,), False, ""),
        ((play("gpu_nodes"),), {}, (False,), True, "did you mean gpu_nodes where it has gpunodes?"),
        (
            (play("gpunodes"),),
            {"subset": "n02"},
            (False,),
            True,
            "--limit n02 matches no node of the group",
        ),
        # Whatever else the limit has: a node that was excluded would be changed.
        ((ONE,), {"subset": "n01,n03"}, (True,), True, "has the name n03;"),
        ((ONE,), {"subset": "all:!n3"}, (True,), True, "has the name n3;"),
        ((ONE + "    - group_by: {key: made}\n",), {"subset": "all:!made"}, (True,), False, "the name made;"),
        ((ONE,), {"extra_vars": ("a=1", "target n01")}, (True,), True, "-e ...: expected name=value"),
        ((ONE,), {"extra_vars": ("", "a-b=1")}, (True,), False, ""),
        ((ONE,), {"subset": "n01,x*"}, (True,), False, ""),
        ((ONE,), {"tags": ("aks",)}, (False,), True, "did you mean ask?"),
        ((ONE,), {"skip_tags": ("ask",)}, (False,), True, NO_TASK),
        ((ONE,), {"skip_tags": ("aks",)}, (True,), False, "did you mean ask?"),
        ((EMPTY + template,), {"extra_vars": ("target=n01",)}, (True,), False, ""),
        ((late,), {"tags": ("inner",)}, (True,), False, ""),
        ((play(tag="first"), ONE), {"tags": ("ask",)}, (False, True), False, ""),
        ((ONE, play(tag="last")), {"tags": ("ask",)}, (True, False), False, ""),
        ((ONE, ONE), {"tags": ("none",)}, (False, False), True, NO_TASK),
        ((ONE, EMPTY), {}, (True, False), True, "The group empty of"),
    )
    wrong = []
    for playbooks, options, did, ended, words in table:
        found, said = decides(playbooks, options, did)
        # Where a playbook has ended, it is not known that nothing was done.
        begun = words == NO_TASK or len(playbooks) > 1
        expected = (ended, bool(words), ended and not begun)
        if (found, bool(said), "Nothing was done" in said) != expected or words not in said:
            wrong.append((playbooks, options, found, said))
    assert wrong == []


@pytest.mark.component
@pytest.mark.parametrize("callback", ["temper", pytest.param("default", marks=pytest.mark.nightly)])
def test_nothing_is_green_on_nothing(tmp_path: Path, callback: str) -> None:
    # Playbooks, arguments, status, words.
    table = (
        ((play("gpunodes"),), ("--limit=n02",), 1, "--limit n02 matches no node of the group gpunodes"),
        ((ONE, ONE), ("--tags=none",), 1, NO_TASK),
        ((play(tag="first"), ONE), ("--tags=ask",), 0, ""),
    )
    wrong = []
    for playbooks, arguments, status, words in table:
        environment = {"ANSIBLE_STDOUT_CALLBACK": callback}
        done = ansible("playbook", *command_line(tmp_path, *playbooks), *arguments, environment=environment)
        if done.returncode != status or words not in done.stderr:
            wrong.append((playbooks, arguments, done.stdout + done.stderr))
    assert wrong == []


def test_all_playbooks_of_temper_are_known(require_work: ModuleType) -> None:
    assert {ROOT / "site.yml", *ROOT.glob("playbooks/*.yml")} == require_work.OWN
