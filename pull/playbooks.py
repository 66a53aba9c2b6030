"""The checkout's own playbooks, run on this node by itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pull.processes import PROGRAMS, OutputError, run
from pull.result import Control, from_statement

if TYPE_CHECKING:
    from pull.configuration import Configuration

#: Roles of which the whole work can be done without a reboot, a new connection, another driver, or the end of
#: a job. The role's argument spec has the same choices.
REPAIRABLE = ("compute_environment", "gpu_settings", "monitoring", "os_tuning")
OLDEST_ANSIBLE = (2, 19)
PLAY_TIMEOUT_S = 1800
VERSION_TIMEOUT_S = 120
#: What the checkout's callback displays of a refusal or failure: whom it is about, then why, indented.
COMPLAINT = re.compile(r"^(?:refused|failed|unreachable): .*\n((?:(?:  .*)?\n)+)", re.MULTILINE)
#: What is kept of each of Ansible's streams, at least.
MOST_WORDS = 1 << 20
#: Of what Ansible wrote, where it has no better reason.
LAST_LINES = 3
#: What no inventory can make of a node that pulls: a repair disturbs no job, and leaves the driver alone.
FIXED = {
    "ansible_connection": "local",
    "ansible_become": False,
    "compliance_metrics_directory": "",
    "compliance_signing_key": "",
    "compute_environment_busy_ok": False,
    "container_engines_busy_ok": False,
    "firewall_busy_ok": False,
    "gpu_settings_busy_ok": False,
    "gpu_settings_mig_change_ok": False,
    "monitoring_busy_ok": False,
    "nvidia_stack_busy_ok": False,
    "nvidia_stack_reboot_ok": False,
    "os_hardening_busy_ok": False,
    "os_tuning_busy_ok": False,
    "preflight_plan_file": "",
    "profiling_tools_busy_ok": False,
    "pull_busy_ok": False,
}


class PlaybookError(Exception):
    """A playbook could not be run, or has not said what it should; the message is a sentence."""


@dataclass(frozen=True)
class Checked:
    """What the compliance check found. `unread` says why a node has no controls."""

    controls: tuple[Control, ...]
    unread: str


class Playbooks:
    """The playbooks of one checkout, for one node, with a folder for what they leave behind."""

    def __init__(self, checkout: Path, state: Path, configuration: Configuration) -> None:
        self.checkout = checkout
        self.state = state
        self.wanted = configuration

    def require(self) -> None:
        """Refuse a node without ansible-core, or a checkout without its inventory. Raises PlaybookError."""
        python = Path(self.wanted.python)
        if not python.is_file():
            raise PlaybookError(
                f"pull_python: expected the Python of a virtual environment with ansible-core at {python}, "
                "found none. Make it from requirements/controller.txt (docs/pull.md)."
            )
        code = "from ansible.release import __version__; print(__version__)"
        try:
            answer = run([str(python), "-c", code], self.environment(), VERSION_TIMEOUT_S)
        except (OSError, OutputError, subprocess.TimeoutExpired) as error:
            raise PlaybookError(f"pull_python: {python} cannot be run: {error}.") from error
        version = re.match(r"(\d+)\.(\d+)", answer.stdout.decode(errors="replace"))
        if not version or (int(version[1]), int(version[2])) < OLDEST_ANSIBLE:
            raise PlaybookError(
                f"pull_python: expected ansible-core {OLDEST_ANSIBLE[0]}.{OLDEST_ANSIBLE[1]} or newer in the "
                f"environment of {python}, found {version[0] if version else 'none'}. Install "
                "requirements/controller.txt there (docs/pull.md)."
            )
        inventory = (self.checkout / self.wanted.inventory).resolve()
        if not inventory.exists() or not inventory.is_relative_to(self.checkout.resolve()):
            raise PlaybookError(
                f"pull_inventory: expected an inventory at {self.wanted.inventory} in the "
                "repository, found none."
            )

    def check(self) -> Checked:
        """Compare the node with its plan. Raises PlaybookError where there is no statement of it."""
        with tempfile.TemporaryDirectory(prefix="check-", dir=self.state) as folder:
            said = self.play("compliance", {"compliance_reports_directory": f"{folder}/compliance"}, folder)
            path = Path(folder, "compliance", "latest", "statement.json")
            try:
                statement: Any = json.loads(path.read_text(encoding="utf-8"))
                controls, unread = from_statement(statement, self.wanted.node)
            except (OSError, ValueError) as error:
                raise PlaybookError(
                    f"The compliance check left no statement of {self.wanted.node} ({error}): {said[1]}"
                ) from error
        return Checked(controls, unread)

    def repair(self, roles: tuple[str, ...]) -> str:
        """Have roles make what differs; returns why that did not work, empty where it did."""
        with tempfile.TemporaryDirectory(prefix="repair-", dir=self.state) as folder:
            status, said = self.play("tune", {}, folder, "--tags", ",".join(roles))
        return f"The repair failed: {said}" if status else ""

    def play(self, name: str, variables: dict[str, Any], folder: str, *options: str) -> tuple[int, str]:
        """Run a playbook for this node alone; returns its status, and why it failed where it did.

        Raises:
            PlaybookError: it cannot be started, or did not end.
        """
        extra = {**FIXED, "gpu_validation_reports_directory": folder, **variables}
        program = Path(self.wanted.python).with_name("ansible-playbook")
        command = [
            *(
                self.wanted.python,
                str(program),
                f"playbooks/{name}.yml",
                "--inventory",
                self.wanted.inventory,
            ),
            *("--limit", self.wanted.node, "--extra-vars", json.dumps(extra), *options),
        ]
        try:
            answer = run(
                command,
                self.environment(),
                PLAY_TIMEOUT_S,
                cwd=self.checkout,
                # A repair is not ended halfway for its words.
                most=MOST_WORDS,
                tail=True,
            )
        except OSError as error:
            raise PlaybookError(f"{program} cannot be run: {error}.") from error
        except subprocess.TimeoutExpired as error:
            raise PlaybookError(f"playbooks/{name}.yml did not end within {PLAY_TIMEOUT_S} s.") from error
        output = (answer.stdout + answer.stderr).decode("utf-8", "backslashreplace")
        print(output, flush=True)
        return answer.returncode, reason(output)

    def environment(self) -> dict[str, str]:
        """What Ansible finds: nothing of the node's own configuration."""
        home = self.state / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        return {
            "PATH": f"{Path(self.wanted.python).parent}:{PROGRAMS}",
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(self.checkout / "ansible.cfg"),
            "ANSIBLE_HOME": str(home / ".ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_NO_TARGET_SYSLOG": "1",
        }

    def forget(self) -> None:
        """Remove what Ansible has left in its home, such as a file of a run that was killed."""
        shutil.rmtree(self.state / "home", ignore_errors=True)
        for leftover in (*self.state.glob("check-*"), *self.state.glob("repair-*")):
            shutil.rmtree(leftover, ignore_errors=True)


def reason(output: str) -> str:
    """Why a run failed, of what Ansible has written, in one line; its last lines where it says no reason."""
    lines = [line for line in output.splitlines() if line.strip()]
    said = " ".join(" ".join(COMPLAINT.findall(output)).split())
    return said or " ".join(" ".join(lines[-LAST_LINES:]).split()) or "Ansible said nothing"
