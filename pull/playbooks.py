"""The checkout's own playbooks, run on this node by itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pull.configuration import Configuration
from pull.result import Control, from_statement
from pull.shared import PROGRAMS, EndedError, run

#: Roles of which the whole work can be done without a reboot, a new connection, another driver, or the end of
#: a job. The role's argument spec has the same choices.
REPAIRABLE = ("compute_environment", "gpu_settings", "monitoring", "os_tuning")
PLAY_TIMEOUT_S = 1800.0
#: Of what Ansible wrote, where it has no better reason.
LAST_LINES = 3
#: What no inventory can make of a node that pulls: a repair disturbs no job, and leaves the driver alone.
FIXED = {
    # The fleet's jump hosts are those of the inventory's own ways.
    "__preflight_ways_by": "ssh",
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


class Playbooks:
    """The playbooks of one checkout, for one node, with a folder for what they leave behind."""

    def __init__(self, checkout: Path, scratch: Path, configuration: Configuration) -> None:
        self.checkout = checkout
        self.scratch = scratch
        self.wanted = configuration

    def check(self) -> tuple[tuple[Control, ...], str]:
        """Compare the node with its plan; return the controls that differ, and why it has none, if so.

        Raises PlaybookError where there is no statement of it.
        """
        reports = Path(tempfile.mkdtemp(dir=self.scratch))
        _, said = self.play("compliance", {"compliance_reports_directory": str(reports)})
        try:
            statement = json.loads((reports / "latest/statement.json").read_text(encoding="utf-8"))
            return from_statement(statement, self.wanted.node)
        except (OSError, ValueError) as error:
            raise PlaybookError(
                f"The compliance check left no statement of {self.wanted.node} ({error}): {said}"
            ) from error

    def repair(self, roles: tuple[str, ...]) -> str:
        """Have roles make what differs; return why that did not work, empty where it did."""
        status, said = self.play("tune", {}, "--tags", ",".join(roles))
        return f"The repair failed: {said}" if status else ""

    def play(self, name: str, variables: dict[str, str], *options: str) -> tuple[int, str]:
        """Run a playbook for this node alone; return its status, and why it failed where it did.

        Raises:
            PlaybookError: it cannot be started, or did not end. systemd ends what is left of it.
        """
        wanted, python = self.wanted, Path(self.wanted.python)
        extra = json.dumps({**FIXED, "gpu_validation_reports_directory": str(self.scratch), **variables})
        if not python.is_file():
            raise PlaybookError(
                f"pull_python: expected the Python of a virtual environment with ansible-core at {python}, "
                "found none. Make it from requirements/controller.txt (docs/operate/pull.md)."
            )
        reasons = Path(tempfile.mkdtemp(dir=self.scratch)) / "reasons"
        environment = {
            "PATH": f"{python.parent}:{PROGRAMS}",
            "HOME": str(self.scratch),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(self.checkout / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.scratch / ".ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_NO_TARGET_SYSLOG": "1",
            "TEMPER_REASONS_FILE": str(reasons),
        }
        program = str(python.with_name("ansible-playbook"))
        command = [str(python), program, f"playbooks/{name}.yml"]
        command += ["--inventory", wanted.inventory, "--limit", wanted.node, "--extra-vars", extra, *options]
        try:
            done = run(command, PLAY_TIMEOUT_S, environment, folder=str(self.checkout))
        except EndedError as error:
            raise PlaybookError(f"playbooks/{name}.yml {error}.") from error
        output = done.stdout + done.stderr
        print(output, flush=True)
        return done.returncode, told(reasons) or last_words(output)


def told(reasons: Path) -> str:
    """Return what the checkout's callback has written of refusals and failures, in one line."""
    try:
        found = [json.loads(line) for line in reasons.read_text(encoding="utf-8").splitlines()]
        return " ".join(" ".join(f"{one['task']} {one['text']}" for one in found).split())
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def last_words(output: str) -> str:
    """Return the end of what Ansible wrote, in one line, where it gives no reason."""
    lines = [line for line in output.splitlines() if line.strip()]
    return " ".join(" ".join(lines[-LAST_LINES:]).split()) or "Ansible said nothing"
