"""What validation expects of a node that was made as planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from temper.plan.node_plan import NodePlan
from temper.plan.role_variables import EFFICIENT_SHARE
from temper.plan.variables import GpuSettings, Variables
from validation.model.expectations import Expectation, ExpectedGpus
from validation.model.gpu_models import references
from validation.model.plans import NO_OPTIONS, REQUIRED, RunOptions


def expectation(plan: NodePlan, variables: Variables, models: Mapping[str, Any]) -> Expectation | None:
    """Return the expectation of one node; None where no driver could be planned.

    `models` is the content of data/gpu_models.yml.
    """
    if plan.driver is None:
        return None
    gpus = [ExpectedGpus(gpu.model, gpu.name, gpu.count) for gpu in plan.gpus]
    # A GPU that no table knows can only be counted.
    gpus += [ExpectedGpus("unknown", f"10de:{device_id}", 1) for device_id in plan.unknown_gpus]
    wish = variables.gpu_settings
    clocks = wish.clocks if isinstance(wish.clocks, dict) else {}
    found = references(models, [gpu.model for gpu in plan.gpus])
    found = replace(found, models={key: as_limited(model, wish) for key, model in found.models.items()})
    return Expectation(
        required_tests=required_tests(variables),
        gpus=tuple(gpus),
        undriven_gpus=plan.undriven_gpus,
        given_gpus=plan.given_gpus,
        driver_version=plan.driver.version,
        nvswitch=plan.fabric != "none",
        power_limit_w=wish.power_limit_w,
        power_limit_percent=wish.power_limit_percent,
        graphics_clock_mhz=clocks.get("graphics"),
        lower_clocks=wish.clocks == "efficient" or bool(clocks),
        references=found,
    )


def as_limited(model: Mapping[str, Any], wish: GpuSettings) -> Mapping[str, Any]:
    """Return a model's row with floors that also hold where the inventory gives its GPUs less clock or power.

    What a GPU computes falls at most in proportion to its clock; memory and links keep their own. With less
    power it falls less than that at first and more in the end, so that no floor is known.
    """
    floors = dict(model.get("floor", {}))
    computed = [name for name in floors if name.endswith("_tflops")]
    if not computed:
        return model
    clock_share = 1.0
    if wish.clocks == "efficient":
        clock_share = EFFICIENT_SHARE
    elif isinstance(wish.clocks, dict) and "graphics" in wish.clocks:
        clock_share = min(1.0, wish.clocks["graphics"] / model["sm_clock_mhz"]["value"])
    less_power = (wish.power_limit_percent or 100) < 100 or (
        wish.power_limit_w is not None and wish.power_limit_w < model["tdp_w"]["value"]
    )
    for name in computed:
        entry = floors.pop(name)
        if not less_power:
            limit = {"limit": f"at {clock_share:.0%} of its clock"} if clock_share < 1 else {}
            floors[name] = {**entry, "value": round(entry["value"] * clock_share, 1), **limit}
    return {**model, "floor": floors}


def required_tests(variables: Variables) -> tuple[str, ...]:
    """Return what must have run: what was named and could not be measured has not passed."""
    wish = variables.gpu_validation
    required = REQUIRED.get(wish.plan, wish.required_tests)
    tensorflow = Path(wish.tensorflow_python) if wish.tensorflow_python else None
    options = RunOptions(
        tuple(map(Path, wish.storage_paths)), tensorflow=tensorflow, graphics=variables.nvidia_stack.graphics
    )
    if options != NO_OPTIONS:
        # Only here, because it imports all checks, for each node anew.
        from validation.checks.registry import asked_for

        required = (*required, *asked_for(options, required=True))
    return tuple(dict.fromkeys(required))
