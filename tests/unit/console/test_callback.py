"""Runs of ansible-playbook with Temper's own callback, on "nodes" that are this machine."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.unit import ansible_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = str(Path(sys.executable).with_name("ansible-playbook"))
NODES = [f"n{number:02}" for number in range(1, 11)]
TIMEOUT_S = 180
# Warns, from a process of its own on the node, as modules do.
MODULE = """\
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({})
module.warn("Mind the fan")
module.deprecate("use another", version="9.9", collection_name="temper.none")
module.exit_json()
"""
# Returns what it is told to, as a module of Temper's would.
ACTION = """\
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, **self._task.args}
"""
ACTIONS = {
    "changed": True,
    "actions": ["nofile: 1 -> 2", "daemon-reexec"],
    "controls": ["core"],
}
STAGES = f"""\
- name: Preflight
  hosts: all
  gather_facts: false
  tasks:
    - name: Read the node
      warns:
      when: inventory_hostname in ['n08', 'n09', 'n10', 'lost']
    - name: Note who could not be reached
      stub: {{reached: "{{{{ inventory_hostname != 'n05' }}}}"}}
    - name: Show the plans
      ansible.builtin.debug: {{msg: "the plan\\n  of all nodes"}}
      run_once: true
    - name: Refuse a node that cannot become what was asked for
      refuse: {{msg: "{{{{ inventory_hostname }}}} is refused.\\n- It has no GPU."}}
      when: inventory_hostname in ['n03', 'n04', 'n05']
    - name: Ask it
      stub:
- name: Tune
  hosts: all
  gather_facts: false
  strategy: ansible.builtin.host_pinned
  tasks:
    - name: Set limits
      stub: {ACTIONS}
    - name: Write a file
      stub:
        changed: true
        diff:
          before: ""
          after: "size = {{{{ 1 if inventory_hostname < 'n08' else 2 }}}}\\n"
          after_header: "/etc/{{{{ inventory_hostname }}}}.conf"
    - name: Compile
      ansible.builtin.command: sh -c "echo compiling; echo no space >&2; exit 3"
      when: inventory_hostname in ['n06', 'n07']
      changed_when: false
    - name: Load the rules
      stub: {{failed: true, refused: true, msg: "Nothing was changed: docker runs."}}
      when: inventory_hostname == 'n08'
- name: Validate
  hosts: all
  gather_facts: false
  tasks:
    - name: Look
      ansible.builtin.command: "false"
      changed_when: false
      ignore_errors: true
      when: inventory_hostname == 'n01'
    - name: Measure
      when: inventory_hostname == 'n02'
      block:
        - name: Start
          ansible.builtin.include_tasks: inner.yml
      rescue:
        - name: Go on
          ansible.builtin.debug: {{msg: "{{{{ inventory_hostname }}}} goes on"}}
    - name: Use a password
      ansible.builtin.command: "sh -c 'echo {{{{ item }}}}; exit 1'"
      loop: [hunter2, hunter3]
      no_log: true
      when: inventory_hostname == 'n09'
    - name: End with the verdict
      verdict:
        sentence: "Verdict: fail."
        good: false
        states: {{n01: ok, n02: failed, n10: not checked}}
      run_once: true
"""
WAITS = """\
- name: Measure
  hosts: n01,n02
  gather_facts: false
  tasks:
    - name: Change something
      stub: {changed: true, actions: [something new]}
    - name: Wait until the tests are over
      ansible.builtin.command: "sh -c 'echo 40 percent; test -e {{ playbook_dir }}/through'"
      register: waited
      until: waited.rc == 0
      retries: "{{ 2 * 100 }}"
      delay: 0.1
      changed_when: false
"""


# Another callback beside it.
OTHER = """\
from ansible.plugins.callback import CallbackBase
class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "notification", "other"
    def v2_runner_retry(self, result):
        self._display.warning("Mind the fan")
"""


class Runner:
    """Runs playbooks in a folder of its own, with the checkout's ansible.cfg."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        # Nobody listens there. With pipelining Ansible loses what ssh says where that ends before it reads.
        lost = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
        lost["ansible_pipelining"] = False
        hosts: dict[str, dict[str, Any]] = {**{name: {} for name in NODES}, "lost": lost}
        inventory = {"all": {"vars": variables, "hosts": hosts}}
        (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
        for path, code in (("library/warns.py", MODULE), ("action_plugins/stub.py", ACTION)):
            (folder / path).parent.mkdir()
            (folder / path).write_text(code)
        (folder / "inner.yml").write_text("- {name: Begin, ansible.builtin.fail: {msg: no torch}}\n")

    def command(self, playbook: str, *arguments: str) -> list[str]:
        path = self.folder / "play.yml"
        path.write_text(playbook)
        return [PLAYBOOK, f"--inventory={self.folder / 'inventory.yml'}", str(path), *arguments]

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        return {**kept, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8", **changes}

    def __call__(self, playbook: str, *arguments: str, **environment: str) -> str:
        """What a run says that has no terminal."""
        done = ansible_commands.run(self.command(playbook, *arguments), env=self.environment(**environment))
        return done.stdout + done.stderr

    @contextmanager
    def begin(self, playbook: str) -> Iterator[subprocess.Popen[str]]:
        """A run that is under way; it ends in time whatever becomes of it."""
        process = subprocess.Popen(
            self.command(playbook),
            cwd=ROOT,
            env=self.environment(TEMPER_PROGRESS_INTERVAL_S="0.1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        limit = threading.Timer(TIMEOUT_S, process.kill)
        limit.start()
        with process:
            yield process
        limit.cancel()

    def on_terminal(self, playbook: str, **environment: str) -> str:
        """What a run writes to a terminal; `through` is made once it waits."""
        terminal, other_end = pty.openpty()
        process = subprocess.Popen(
            self.command(playbook),
            cwd=ROOT,
            env=self.environment(**{"TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1", **environment}),
            stdin=subprocess.DEVNULL,
            stdout=other_end,
            stderr=other_end,
        )
        os.close(other_end)
        said = b""
        with process, suppress(OSError):  # Linux says so where the other end is closed
            while part := os.read(terminal, 65536):
                said += part
                if b"40 percent" in said:
                    (self.folder / "through").touch()
        os.close(terminal)
        return said.decode()


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all stages say on a pipe, with --diff."""
    return Runner(tmp_path_factory.mktemp("run"))(STAGES, "--diff")


def stage(said: str, name: str) -> str:
    return said.partition(f"== {name}\n")[2].partition("\n== ")[0]


def test_every_stage_has_its_counts(said: str) -> None:
    assert re.findall(r"^\d+ nodes?: .*; ", said, flags=re.MULTILINE) == [
        "11 nodes: 7 ok, 2 refused, 2 unreachable; ",
        "7 nodes: 4 changed, 1 refused, 2 failed; ",
        "4 nodes: 1 ok, 1 not checked, 2 failed; ",
    ]


def test_the_plans_are_shown_as_they_are(said: str) -> None:
    assert "\nthe plan\n  of all nodes\n" in stage(said, "Preflight")


def test_the_program_that_has_started_the_run_gets_each_reason(run: Runner, tmp_path: Path) -> None:
    play = (
        "- hosts: n01,n02\n  gather_facts: false\n  tasks:\n"
        "    - name: Stop\n      refuse: {msg: It has no GPU.}\n      when: inventory_hostname == 'n01'\n"
        "    - name: Go on\n      ansible.builtin.fail: {msg: no room}\n"
    )
    run(play, TEMPER_REASONS_FILE=str(tmp_path / "reasons"))
    found = [json.loads(line) for line in (tmp_path / "reasons").read_text().splitlines()]
    assert [(one["kind"], one["node"], one["text"]) for one in found] == [
        ("refused", "n01", "It has no GPU."),
        ("failed", "n02", "no room"),
    ]


def test_a_refusal_stands_once_for_all_nodes(said: str) -> None:
    assert "refused: 2 nodes: n03, n04\n  Refuse a node" in stage(said, "Preflight")
    assert said.count("NODE is refused.\n    - It has no GPU.") == 1
    assert "refused: n08\n  Load the rules\n    Nothing was changed: docker runs." in stage(said, "Tune")


def test_unreachable_nodes_are_named_with_the_reason(said: str) -> None:
    shown = stage(said, "Preflight").partition("unreachable: lost\n")[2]
    assert "127.0.0.1 port 1: Connection refused" in shown
    assert "unreachable: n05\n" in shown


def test_a_failure_stands_once_and_in_full(said: str) -> None:
    shown = stage(said, "Tune").partition("failed: 2 nodes: n06, n07\n")[2]
    for part in ("Compile", "play.yml:", "rc: 3", "stderr: no space", "stdout: compiling"):
        assert part in shown
    assert said.count("stderr: no space") == 1


def test_warnings_and_deprecations_stand_once(said: str) -> None:
    assert "warning: 3 nodes: n08-n10\n  Mind the fan" in said
    assert said.count("Mind the fan") == 1
    assert said.count("use another") == 1


def test_changes_stand_once_for_nodes_that_changed_alike(said: str) -> None:
    shown = stage(said, "Tune")
    assert "changed: 7 nodes: n01, n02, n06-n10\n  Set limits\n    nofile: 1 -> 2\n" in shown
    assert shown.count("daemon-reexec") == shown.count("controls: 1") == 1
    assert re.findall(
        r"changed: 4 nodes: n01, n02, n06, n07\n  Write a file\n(?:.*\n){3}    \+size = 1", shown
    )
    assert re.findall(r"changed: 3 nodes: n08-n10\n  Write a file\n(?:.*\n){3}    \+size = 2", shown)


def test_errors_that_ended_nothing_are_no_failures(said: str) -> None:
    shown = stage(said, "Validate")
    assert "ignored: n01\n  Look" in shown
    assert "rescued: n02\n  Begin\n    no torch\nn02 goes on" in shown
    assert "went on after an error: 2: n01, n02\n" in said


def test_what_no_log_hides_is_nowhere(said: str) -> None:
    assert "failed: n09\n  Use a password" in said
    assert "hunter" not in said


def test_outcome_verdict_and_next_step_come_last_with_the_numbers_of_the_stages(said: str) -> None:
    lines = said.partition("== Outcome\n")[2].splitlines()
    assert lines[:7] == [
        "changed: 1",
        "not checked: 1: n10 (Validate)",
        "refused: 3: n03, n04 (Preflight); n08 (Tune)",
        "failed: 4: n06, n07 (Tune); n02, n09 (Validate)",
        "unreachable: 2: lost, n05 (Preflight)",
        "went on after an error: 2: n01, n02",
        "Verdict: fail.",
    ]
    assert lines[7].startswith("Next: ")
    assert "--limit lost,n03,n04,n05,n08 " in lines[7]
    # Nothing else counts nodes.
    assert "PLAY RECAP" not in said


def test_only_the_action_verdict_concludes_and_only_for_nodes_of_its_play(run: Runner) -> None:
    forged = "{sentence: All is well., good: true, states: {n01: ok, n02: failed}}"
    play = (
        "- name: Tune\n  hosts: n01,n02\n  gather_facts: false\n  tasks:\n"
        f"    - name: Set limits\n      stub: {{failed: true, msg: broken, verdict: {forged}}}\n"
        "      when: inventory_hostname == 'n01'\n"
        f"    - name: Look\n      stub: {{verdict: {forged}}}\n"
        "    - name: Judge\n"
        "      verdict: {sentence: It is so., good: true, states: {n02: changed, n03: failed}}\n"
    )
    said = run(play)
    assert "failed: n01\n  Set limits" in said
    lines = said.partition("== Outcome\n")[2].splitlines()
    assert lines[:3] == ["changed: 1", "failed: 1: n01 (Tune)", "It is so."]


def program(path: str) -> dict[str, str]:
    """The difference of a file of 99 lines that was not there."""
    return {"before": "", "after": "#!x\n" * 99, "before_header": path, "after_header": path}


def test_a_quiet_run_says_what_went_wrong_and_a_verbose_one_all(run: Runner) -> None:
    diff = [program(path) for path in ("/usr/local/lib/temper/mig.py", "/etc/temper.conf")]
    many = [f"a{number}" for number in range(40)]
    stop = {"name": "Stop", "refuse": {"msg": "No GPU."}, "when": "inventory_hostname == 'n02'"}
    tasks: dict[str, list[dict[str, Any]]] = {
        "Tune": [
            {"name": "Set many", "stub": {"changed": True, "actions": many}},
            {"name": "Write", "stub": {"changed": True, "diff": diff}},
            stop,
        ],
        "Empty": [{"meta": "noop"}],
    }
    plays = [
        {"name": name, "hosts": "n01,n02", "gather_facts": False, "tasks": found}
        for name, found in tasks.items()
    ]
    playbook = yaml.safe_dump(plays)
    levels = {level: run(playbook, "--diff", TEMPER_OUTPUT=level) for level in ("normal", "quiet", "verbose")}
    assert {level: len(re.findall(r"\n    a\d", said)) for level, said in levels.items()} == {
        "normal": 12,
        "quiet": 0,
        "verbose": 40,
    }
    assert "and 28 more (TEMPER_OUTPUT=verbose" in levels["normal"]
    assert levels["quiet"].splitlines()[:3] == ["refused: n02", "  Stop", "    No GPU."]
    assert "changed: 1" in levels["quiet"]
    # A heading with nothing below it.
    assert "== Empty" not in levels["verbose"]
    # A program of Temper is one line of a difference.
    line = "    /usr/local/lib/temper/mig.py: a program of Temper, absent -> 99 lines"
    assert line in levels["normal"]
    assert [levels[level].count("+#!x") for level in ("normal", "verbose")] == [99, 198]


ONE = """\
- name: Tune
  hosts: n01,n02
  gather_facts: false
  serial: 1
  tasks:
    - name: Write a file
      ansible.builtin.lineinfile: {path: "{{ playbook_dir }}/file", line: new, create: true}
"""


def test_check_mode_says_what_would_change_in_the_colours_that_are_asked_for(run: Runner) -> None:
    coloured = run(ONE, "--check", "--diff", ANSIBLE_FORCE_COLOR="1")
    assert "\x1b[0;32m    +new\x1b[0m" in coloured
    said = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "== Tune (check mode: nothing is changed)" in said
    assert "would change: n01\n  Write a file" in said
    assert "+new" in said
    # A batch has one node.
    assert said.count("\n1 node: 1 would change; ") == 2
    assert "\nwould change: 2\nNext: the same command without --check" in said
    assert not (run.folder / "file").exists()


def test_each_of_several_playbooks_has_the_counts_of_its_batches_without_colours_on_a_pipe(
    run: Runner,
) -> None:
    (run.folder / "file").write_text("new\n")
    said = run(ONE, str(run.folder / "play.yml"))
    assert re.findall(r"1 node: 1 (\w+); ", said) == ["ok"] * 4
    assert said.rstrip().endswith("== Outcome\nok: 2")
    assert "\x1b" not in said


@pytest.mark.parametrize("asked", ["-v", pytest.param("ANSIBLE_STDOUT_CALLBACK", marks=pytest.mark.nightly)])
def test_ansibles_own_output_comes_back_where_it_is_asked_for(asked: str, run: Runner) -> None:
    said = run(ONE, "-v") if asked == "-v" else run(ONE, ANSIBLE_STDOUT_CALLBACK="default")
    assert "TASK [Write a file]" in said
    assert "changed: [n01]" in said
    assert "== " not in said


def test_an_error_in_the_callback_ends_no_run(run: Runner) -> None:
    plugins = run.folder / "callback_plugins"
    plugins.mkdir()
    code = (ROOT / "plugins/callback/temper.py").read_text()
    where = '        """Note the result of a task on a node."""\n'
    assert code.count(where) == 1
    (plugins / "temper.py").write_text(code.replace(where, f"{where}        raise ValueError('broken')\n"))
    said = run(ONE, ANSIBLE_CALLBACK_PLUGINS=str(plugins), PYTHONPATH=str(ROOT))
    assert "Callback temper failed (ValueError: broken)" in said
    assert "changed: [n01]" in said
    assert "ok: [n02]" in said
    assert "PLAY RECAP" in said


def until(process: subprocess.Popen[str], words: str) -> str:
    """What a process says up to a line with these words, or to its end."""
    said = ""
    assert process.stdout
    for line in process.stdout:
        said += line
        if words in line:
            break
    return said


def test_while_it_waits_a_pipe_gets_lines_that_say_for_what(run: Runner) -> None:
    with run.begin(WAITS) as process:
        said = until(process, "(40 percent)")
        (run.folder / "through").touch()
        rest = until(process, "no such words")
    assert re.search(
        r"Measure: Wait until the tests are over: .*; waiting for n01, n02, at most .* more", said
    )
    assert "RETRYING" not in said + rest
    assert "\r" not in said + rest
    assert "== Outcome\nchanged: 2\n" in rest


def test_a_run_that_is_interrupted_says_what_it_has_changed(run: Runner) -> None:
    # Ansible ends its workers with a signal. A worker that is sending a result then keeps Ansible's lock, and
    # the run hangs. So both workers sleep between two attempts.
    with run.begin(WAITS.replace("delay: 0.1", "delay: 600")) as process:
        until(process, "(40 percent)")
        for _ in range(10):
            until(process, "waiting for n01, n02")
        process.send_signal(signal.SIGINT)
        rest = until(process, "no such words")
    assert "changed: 2 nodes: n01, n02\n  Change something\n    something new\n" in rest
    assert "The run was interrupted" in rest
    # What goes on there, and how to go on.
    assert "  Wait until the tests are over: 2 nodes: n01, n02\nNext: the same command" in rest


def test_a_run_that_an_error_ends_was_not_interrupted(run: Runner) -> None:
    (run.folder / "group_vars").mkdir()
    (run.folder / "group_vars/all.yml").write_text("a:\n\tb: c\n")
    with run.begin(ONE) as process:
        assert process.stdout is not None
        ended = process.stdout.read()
    before, _, after = ended.partition("The run ended with the error above.\n")
    assert "group_vars/all.yml:2" in before
    assert "Next: correct the error; then the same command" in after
    assert "interrupted" not in ended


def displayed(written: str) -> list[str]:
    """The lines that stand on a terminal in the end."""
    return [line.rstrip("\r").rpartition("\r\x1b[K")[2] for line in written.split("\n")]


def test_a_terminal_has_one_line_that_moves_and_goes(run: Runner) -> None:
    written = run.on_terminal(WAITS)
    assert "\r\x1b[KMeasure: Wait until the tests are over" in written
    assert "waiting for" not in "\n".join(displayed(written))
    assert "\x1b[0" not in written
    assert displayed(written)[-2:] == ["changed: 2", ""]


@pytest.mark.nightly
def test_what_others_display_is_not_written_into_the_line(run: Runner) -> None:
    (run.folder / "callback_plugins").mkdir()
    (run.folder / "callback_plugins/other.py").write_text(OTHER)
    shown = [line for line in displayed(run.on_terminal(WAITS)) if "Mind the fan" in line]
    assert shown == ["[WARNING]: Mind the fan"]


@pytest.mark.nightly
def test_a_terminal_that_can_move_nothing_gets_lines(run: Runner) -> None:
    written = run.on_terminal(WAITS, TERM="dumb", TEMPER_PROGRESS_INTERVAL_S="0.1")
    assert "waiting for n01, n02" in written
    assert "\x1b" not in written
