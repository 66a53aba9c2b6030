"""A process for each GPU: all at the same time, or in turns, but started together: starting takes long."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.checks.measured import each_gpu, failures, not_run, result, watch
from validation.processes.pool import run_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.checks.check import Check
    from validation.checks.node import Node
    from validation.model.contract import Finding, GpuIdentity, TestResult
    from validation.processes.child import Request
    from validation.processes.pool import Outcome

WAITING = "waiting for its turn"


def together(
    check: Check,
    node: Node,
    function: str,
    parameters: dict[str, Any],
    own: Callable[[GpuIdentity], dict[str, Any]] = lambda _: {},
    judge: Callable[[list[Outcome]], list[Finding]] = failures,
) -> TestResult:
    """Run `function` for all GPUs at the same time, in processes that may be kept.

    `own` are parameters of one GPU; `judge` finds what is wrong with processes and between GPUs.
    """
    if reason := node.why_no_cuda():
        return not_run(check, reason)
    started, telemetry = time.monotonic(), watch(node)
    requests = each_gpu(node, function, parameters, own)
    outcomes = run_children(requests, node.budget_s, tick=telemetry.tick, pool=node.pool)
    return result(check, started, outcomes, findings=judge(outcomes), telemetry=telemetry)


def in_turn(
    check: Check,
    node: Node,
    function: str,
    parameters: dict[str, Any],
    own: Callable[[GpuIdentity], dict[str, Any]] = lambda _: {},
) -> TestResult:
    """The same with one GPU after the other where `function` waits for its turn (my_turn)."""
    with taking_turns() as turn:
        return together(check, node, function, parameters | {"turn": turn}, own, blame)


@contextlib.contextmanager
def taking_turns() -> Iterator[str]:
    """The name of a lock file, for the parameter `turn` of the processes."""
    with tempfile.NamedTemporaryFile(prefix="temper-validation-") as lock:
        yield lock.name


@contextlib.contextmanager
def my_turn(request: Request, stage: Callable[[str], None]) -> Iterator[None]:
    """In a child: wait until nobody else measures; a process that dies gives its turn back."""
    path = request.parameters.get("turn")
    if path is None:
        yield
        return
    stage(WAITING)
    with Path(path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def blame(outcomes: list[Outcome]) -> list[Finding]:
    """A finding for each GPU that failed; those that only waited for one that hung are not to blame."""
    culprits = [outcome for outcome in outcomes if outcome.stage != WAITING]
    return failures(culprits) or failures(outcomes)
