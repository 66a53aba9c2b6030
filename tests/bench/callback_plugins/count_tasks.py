"""Count what a playbook run does, beside whatever prints it.

Enabled with ANSIBLE_CALLBACKS_ENABLED=count_tasks; writes a JSON object to the file that TEMPER_COUNTS names.
"""

import collections
import json
import os
from pathlib import Path

from ansible.executor.stats import AggregateStats
from ansible.executor.task_result import CallbackTaskResult
from ansible.playbook.task import Task
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: count_tasks
type: aggregate
short_description: Count tasks and their results
description: Writes the number of tasks, and of results by state, to the file that TEMPER_COUNTS names.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no type information
    """Counts tasks once, however many nodes run them, and each node's result."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "count_tasks"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._counts: collections.Counter[str] = collections.Counter(tasks=0, changed=0, skipped=0)

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        """Count a task."""
        self._counts["tasks"] += 1

    def v2_playbook_on_handler_task_start(self, task: Task) -> None:
        """Count a handler that runs as a task."""
        self._counts["tasks"] += 1

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        """Count a node's change."""
        self._counts["changed"] += result.is_changed()

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        """Count a task that a node skipped."""
        self._counts["skipped"] += 1

    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:
        """Write the counts at the end of the run."""
        Path(os.environ["TEMPER_COUNTS"]).write_text(json.dumps(self._counts))
