"""Real runs of Ansible on this machine: none goes on without the controller that asked for it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from temper.rollout.playbooks import CHECKOUT, Ansible, Played
from tests.unit.ansible_commands import ansible
from tests.unit.executables import executable
from tests.waiting import wait_until

pytestmark = pytest.mark.component

NODE = "gpu01"
SCRIPT = """
import asyncio, sys
from pathlib import Path
from temper.rollout.playbooks import Ansible
logs, inventory, name = sys.argv[1:]
asyncio.run(Ansible(Path(logs), [inventory]).playbook(name, "gpu01", "step", {}))
"""


@pytest.fixture
def arguments(tmp_path: Path) -> tuple[str, str, str]:
    """The logs, the inventory and the playbook of a run that waits on its node for minutes."""
    inventory, playbook = tmp_path / "hosts.yml", tmp_path / "waits.yml"
    inventory.write_text(f"gpu_nodes: {{hosts: {{{NODE}: {{ansible_connection: local}}}}}}\n")
    playbook.write_text(
        "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n"
        f"    - ansible.builtin.shell: exec tail -s 600 -f {inventory} >{os.devnull}\n"
    )
    name = os.path.relpath(playbook, CHECKOUT / "playbooks").removesuffix(".yml")
    return str(tmp_path / "logs"), str(inventory), name


def processes(folder: Path) -> dict[int, str]:
    """The processes that work for a test, Ansible's and the node's, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_bytes().decode().replace("\0", " ")
            if str(folder) in words and "-c" not in words.split():
                found[int(path.parent.name)] = words
    return found


def begun(folder: Path) -> bool:
    """Whether the node's process is there."""
    return any(words.startswith("tail ") for words in processes(folder).values())


def guards(folder: Path) -> list[int]:
    """The process that waits, and the one that works."""
    return sorted(pid for pid, words in processes(folder).items() if "temper.rollout.guard" in words)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_ends_with_its_controller(
    arguments: tuple[str, str, str], number: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], cwd=CHECKOUT) as controller:
        wait_until(lambda: begun(tmp_path), "its process is there", 300)
        controller.send_signal(number)
    wait_until(lambda: not processes(tmp_path), "its processes end", 300)


def in_a_run(
    arguments: tuple[str, str, str], tmp_path: Path, act: Callable[[asyncio.Task[Played]], object]
) -> Played:
    """What a run comes to on whose node a process waits, when somebody acts."""
    logs, inventory, name = arguments

    async def run() -> Played:
        task = asyncio.create_task(Ansible(Path(logs), [inventory]).playbook(name, NODE, "step", {}))
        await asyncio.to_thread(wait_until, lambda: begun(tmp_path), "its process is there", 300)
        act(task)
        return await task

    return asyncio.run(run())


def test_a_run_that_is_cancelled_leaves_nothing_behind(
    arguments: tuple[str, str, str], tmp_path: Path
) -> None:
    with pytest.raises(asyncio.CancelledError):
        in_a_run(arguments, tmp_path, lambda task: task.cancel())
    # Nobody needs to wait: whoever works on the node next is alone there.
    assert not processes(tmp_path)


@pytest.mark.parametrize("which", [0, 1], ids=["the one that waits", "the one that works"])
def test_a_run_one_of_whose_guards_is_killed_has_failed_and_leaves_nothing_behind(
    arguments: tuple[str, str, str], which: int, tmp_path: Path
) -> None:
    played = in_a_run(arguments, tmp_path, lambda _: os.kill(guards(tmp_path)[which], signal.SIGKILL))
    assert not played.ok
    assert "Ansible ended with" in played.said
    wait_until(lambda: not processes(tmp_path), "its processes end", 300)


def test_a_run_that_ends_by_itself_says_what_it_came_to(
    arguments: tuple[str, str, str], tmp_path: Path
) -> None:
    logs, inventory, name = arguments
    Path(tmp_path, "waits.yml").write_text(
        "- hosts: gpu_nodes\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.set_fact: {temper: {boot_id: b-1}, cacheable: true}\n"
        "    - name: Report\n      step_result: {fencing: 7}\n"
        "    - name: Look\n      ansible.builtin.fail: {msg: GPU 3 is gone}\n"
        "      when: upgrade_step == 'load'\n"
    )
    runs = [
        asyncio.run(Ansible(Path(logs), [inventory]).playbook(name, NODE, step, {"upgrade_step": step}))
        for step in ("look", "load")
    ]
    assert [(run.ok, run.said, run.reported.fencing, run.reported.boot_id) for run in runs] == [
        (True, "", 7, "b-1"),
        (False, "GPU 3 is gone", 7, "b-1"),
    ]
    assert "Report" in Path(logs, NODE, "load.log").read_text()


def test_an_inventory_that_cannot_be_read_now_is_no_failure_of_the_node(tmp_path: Path) -> None:
    """One that asks a server which is away: the node was taken back for it."""
    inventory = executable(tmp_path / "hosts.sh", "echo the server is away >&2\nexit 1")
    played = asyncio.run(Ansible(tmp_path, [str(inventory)]).playbook("upgrade_step", NODE, "step", {}))
    assert (played.ok, played.refused, played.unreachable) == (False, False, True)
    assert "step.log" in played.said


@pytest.mark.parametrize(
    ("playbook", "command"),
    [
        ("upgrade_step", "temper rollout run"),
        ("upgrade_settle", "temper rollout run"),
        ("release", "temper fleet abort"),
    ],
)
def test_a_playbook_that_a_command_starts_names_that_command(
    playbook: str, command: str, arguments: tuple[str, str, str]
) -> None:
    done = ansible("playbook", "-i", arguments[1], f"playbooks/{playbook}.yml")
    assert done.returncode == 2
    assert command in " ".join(done.stdout.split())
