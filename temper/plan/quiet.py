"""Which roles of a stage have nothing to say in this run: their tasks need not begin.

Ansible forks a process for each node's task. Where the first task of a stage has found that nothing differs
for the others, and there is nothing to report, their roles end before that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

#: Fact of a node: the run, the roles of the present stage, and which of them have nothing to say.
QUIET = "temper_quiet"
#: Names this run. Workers inherit it; a fact of an earlier run, which a cache may have kept, has another.
RUN = uuid.uuid4().hex
#: What a role's result may have that somebody waits for, or that is displayed.
SAID = ("changed", "failed", "refused", "actions", "diff", "needs", "msg", "output")


def is_quiet(result: Mapping[str, object]) -> bool:
    """Return whether a role's result changes, says and asks for nothing."""
    results = result.get("results")
    further = [results.get("report"), results.get("port")] if isinstance(results, dict) else []
    return not any([*(result.get(key) for key in SAID), *further])


def marked(roles: Iterable[str], stage: Sequence[str]) -> dict[str, object]:
    """Return the fact for a stage: all its roles, as the play lists them, and the quiet ones among them."""
    return {QUIET: {"run": RUN, "stage": [*stage], "roles": [*roles]}}


def in_fact(role: str, stage: Sequence[str], fact: object) -> bool:
    """Return whether the fact is of this run and this stage, and has the role.

    A play that is no stage of these roles, such as one of a site, has another list or none. A stage
    that begins again replaces the fact with its first role, which is never quiet.
    """
    return (
        isinstance(fact, dict)
        and fact.get("run") == RUN
        and role in stage
        and fact.get("stage") == [*stage]
        and isinstance(fact.get("roles"), list)
        and role in fact["roles"]
    )
