"""All checks, in the order in which they run, and what follows from what they say of themselves.

Every module of this folder is looked through, so that a new check is one new file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from validation import checks
from validation.checks.check import Check
from validation.model.plans import RunOptions


def _found() -> Iterator[Check]:
    for module in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}."):
        if module.name != __name__:
            for one in vars(importlib.import_module(module.name)).values():
                # A class that others build upon has no id of its own.
                if isinstance(one, type) and issubclass(one, Check) and "id" in vars(one):
                    yield one()


CHECKS: dict[str, Check] = {
    check.id: check for check in sorted(_found(), key=lambda check: (check.place, check.id))
}
TESTS = tuple(CHECKS)
#: The measurements that stand for each test, the best first.
HEADLINES = {check.id: check.headline for check in CHECKS.values()}
#: What must have run on a machine with NVIDIA GPUs, unless an expectation or inventory says otherwise.
PROVE_A_GPU = tuple(check.id for check in CHECKS.values() if check.proves_a_gpu)


def in_plan(plan: str, options: RunOptions) -> tuple[str, ...]:
    """Return the tests of a plan, and those that the options of a run ask for."""
    return tuple(check.id for check in CHECKS.values() if plan in check.plans or check.asked_for(options))


def asked_for(options: RunOptions, *, required: bool = False) -> tuple[str, ...]:
    """Return the tests that the options of a run ask for; or only those that they also require."""
    return tuple(
        check.id
        for check in CHECKS.values()
        if check.asked_for(options) and (check.required_if_asked or not required)
    )
