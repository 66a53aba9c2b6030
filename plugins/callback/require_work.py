"""Ends a run that can do nothing, or has done nothing, with a sentence and a status that is not 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import ansible.context as context
from ansible.inventory.manager import split_host_pattern
from ansible.playbook.role import Role
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback import CallbackBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from temper.base.selection import NOTHING_DONE, no_nodes, unknown_names, unknown_tags
from temper.plan.extra_vars import wrong_option
from temper.plan.inventory import taken_for_names
from temper.plan.unread_files import questions

DOCUMENTATION = """
name: require_work
type: aggregate
short_description: Nothing is green on nothing
description:
  - Ends a run with status 1 before its first play where no play has a node, C(-e) has no value,
    C(--limit) has a name that no node and no group has, or C(--tags) names a tag that no task has; and
    after the last playbook where no task was carried out on any node. Ansible ends all of these with
    status 0.
  - Warns of a tag in C(--skip-tags) that no task has, and of files of variables that Ansible ignores,
    because no group or host has their name.
  - It is no output. So it works with every callback for standard output, and needs not be enabled.
"""
#: As Ansible ends where its command line or inventory is wrong.
STATUS = 1
#: Temper's own playbooks: what they include during the run has no other tags than they have.
OWN = frozenset(
    Path(ROOT, name)
    for name in (
        "site.yml",
        "playbooks/autotune.yml",
        "playbooks/compliance.yml",
        "playbooks/harden.yml",
        "playbooks/image.yml",
        "playbooks/kernel_preview.yml",
        "playbooks/mirror_list.yml",
        "playbooks/preflight.yml",
        "playbooks/provision.yml",
        "playbooks/release.yml",
        "playbooks/tune.yml",
        "playbooks/uninstall.yml",
        "playbooks/upgrade.yml",
        "playbooks/upgrade_settle.yml",
        "playbooks/upgrade_step.yml",
        "playbooks/validate.yml",
    )
)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible ships no types
    """Looks at a playbook before its first play, and at the counters after its last one."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "require_work"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self) -> None:
        super().__init__()
        playbooks = context.CLIARGS.get("args")
        #: How many playbooks the command line has, and how many of them have ended.
        self.total = len(playbooks) if isinstance(playbooks, list | tuple) else 1
        self.ended = 0

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Refuse a playbook that would do nothing."""
        plays = playbook.get_plays()
        if not plays:
            return
        parts = [part for play in plays for part in parts_of(play)]
        known = {tag for part in parts for tag in part.tags}
        own = Path(str(playbook._file_name)).resolve() in OWN
        # What is included during the run may have other tags, and so may another playbook.
        certain = own or not any(map(is_included_late, parts))
        if certain and self.total == 1:
            if sentence := unknown_tags("--tags", plays[0].only_tags, known):
                self.end(sentence)
            # It takes nothing away, and the configuration may have it for other playbooks.
            if sentence := unknown_tags("--skip-tags", plays[0].skip_tags, known):
                self._display.warning(sentence)
        variables = plays[0].get_variable_manager().get_vars(play=plays[0])
        # Words without a value, which Ansible drops. A file may be a vault, and has been read by now.
        given = (
            text for text in map(str, context.CLIARGS.get("extra_vars") or ()) if text[:1] not in ("@", "{")
        )
        if sentence := wrong_option(given):
            self.end(sentence)
        groups, limit = variables["groups"], str(context.CLIARGS.get("subset") or "")
        if sentence := unknown_names(limit, split_host_pattern, {*groups, *groups["all"]}):
            # Another playbook may make the group itself.
            made_late = not certain or (not own and any(map(makes_groups, parts)))
            (self._display.warning if made_late else self.end)(sentence)
        # The pattern of a play may be a template, which has its value later; ours are for some of the nodes.
        fixed = [play for play in plays if not any("{{" in one or "{%" in one for one in patterns_of(play))]
        found = (play.get_variable_manager().get_vars(play=play) for play in fixed)
        sources = [*map(str, variables.get("ansible_inventory_sources") or ())]
        if (own or fixed == plays) and not any(one["ansible_play_hosts_all"] for one in found):
            names = [name for play in fixed for name in patterns_of(play)]
            unread = "" if groups.keys() & {*names} else taken_for_names(sources)
            self.end(f"{unread}." if unread else no_nodes(names, limit, groups, sources))
        for sentence in questions(sources, groups, groups["all"]):
            self._display.warning(sentence)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Refuse to call a run good in which no node did anything; comes after each playbook."""
        self.ended += 1
        if not stats.processed and self.ended >= self.total:
            self.end(
                "No task was carried out on any node: see --tags, --skip-tags, --start-at-task and --limit."
            )

    def end(self, sentence: str) -> NoReturn:
        """Say it, and end with a status that is not 0.

        A callback has no other way to one: Ansible turns every other exception of a callback into a warning.
        """
        done = "" if self.ended else f" {NOTHING_DONE}"
        self._display.error(f"{sentence}{done}", wrap_text=False)
        raise SystemExit(STATUS)


def patterns_of(play: Any) -> list[str]:
    """For which hosts a play is, as it says."""
    return [play.hosts] if isinstance(play.hosts, str) else list(map(str, play.hosts or []))


def parts_of(found: Any) -> Iterator[Any]:
    """Yield a play, a block or a task, and all that is in it as far as it is known before the run."""
    yield found
    if isinstance(found, Role):
        for part in (*found.get_task_blocks(), *found.get_all_dependencies()):
            yield from parts_of(part)
        return
    for name in ("pre_tasks", "roles", "tasks", "post_tasks", "block", "rescue", "always"):
        for part in getattr(found, name, None) or ():
            yield from parts_of(part)


def makes_groups(part: Any) -> bool:
    """Return whether it is a task that makes groups or hosts."""
    return str(getattr(part, "action", "")).rpartition(".")[2] in ("add_host", "group_by")


def is_included_late(part: Any) -> bool:
    """Return whether it includes tasks or a role during the run."""
    return isinstance(part, TaskInclude) and not part.statically_loaded
