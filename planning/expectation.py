"""What validation expects of a node that was made as planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.model.expectations import Expectation, ExpectedGpus
from validation.model.gpu_models import references
from validation.model.run_options import NO_OPTIONS, RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planning.node_plan import NodePlan
    from planning.variables import Variables


def expectation(plan: NodePlan, variables: Variables, models: Mapping[str, Any]) -> Expectation | None:
    """The expectation of one node; None where no driver could be planned.

    `models` is the content of data/gpu_models.yml.
    """
    if plan.driver is None:
        return None
    gpus = [ExpectedGpus(gpu.model, gpu.name, gpu.count) for gpu in plan.gpus]
    # A GPU that no table knows can only be counted.
    gpus += [ExpectedGpus("unknown", f"10de:{device_id}", 1) for device_id in plan.unknown_gpus]
    wish = variables.gpu_settings
    clocks = wish.clocks if isinstance(wish.clocks, dict) else {}
    return Expectation(
        required_tests=required_tests(variables),
        gpus=tuple(gpus),
        undriven_gpus=plan.undriven_gpus,
        driver_version=plan.driver.version,
        nvswitch=plan.fabric != "none",
        power_limit_w=wish.power_limit_w,
        power_limit_percent=wish.power_limit_percent,
        graphics_clock_mhz=clocks.get("graphics"),
        references=references(models, [gpu.model for gpu in plan.gpus]),
    )


def required_tests(variables: Variables) -> tuple[str, ...]:
    """What must have run: a path that was named and could not be measured is no path that passed."""
    wish = variables.gpu_validation
    required = wish.required_tests
    options = RunOptions(tuple(map(Path, wish.storage_paths)))
    if options != NO_OPTIONS:
        # Only here, because it imports all checks, for each node anew.
        from validation.checks.registry import asked_for

        required = (*required, *asked_for(options, required=True))
    return tuple(dict.fromkeys(required))
