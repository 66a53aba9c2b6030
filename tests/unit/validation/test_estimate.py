"""The quick plan takes less than a minute on eight GPUs: arithmetic on the plan's own numbers."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.unit.each import each
from tools import check_docs
from validation.checks.registry import CHECKS
from validation.model.plans import PLANS, Timing

QUICK = PLANS["quick"]


def total(**changes: object) -> float:
    plan = dataclasses.replace(QUICK, **changes)  # type: ignore[arg-type]
    return sum(seconds for seconds, _ in check_docs.rows(plan).values())


def test_the_quick_plan_takes_less_than_a_minute_on_eight_gpus() -> None:
    assert total() < 60


def test_every_test_of_the_quick_plan_is_in_the_sum() -> None:
    assert list(check_docs.rows(QUICK)) == [check.id for check in CHECKS.values() if "quick" in check.plans]


@each(
    ({"gpu": Timing(QUICK.gpu.warm_up_s, QUICK.gpu.measure_s + 1)}, 5.0),
    ({"gpu_copy": Timing(QUICK.gpu_copy.warm_up_s, QUICK.gpu_copy.measure_s + 1)}, 8 * 2 + 2.0),
    ({"cpu": Timing(QUICK.cpu.warm_up_s, QUICK.cpu.measure_s + 1)}, 2.0),
    ({"all_reduce_s": QUICK.all_reduce_s + 1}, 2.6),
    ({"gpu_directions": ("h2d",)}, -8 * (0.2 + 0.005)),
)
def test_the_sum_follows_the_plan(changes: dict[str, object], more_s: float) -> None:
    assert total(**changes) - total() == pytest.approx(more_s)


@each((4, 4), (60, 10))
def test_a_write_of_storage_is_bounded_but_for_the_file_that_is_read(plan_s: float, write_s: float) -> None:
    found, none = (
        check_docs.rows(dataclasses.replace(PLANS["standard"], storage_write_s=seconds))
        for seconds in (plan_s, 0)
    )
    expected = {"storage_read": plan_s, "storage_write": write_s, "storage_random_read": write_s}
    assert {test: found[test][0] - none[test][0] for test in expected} == pytest.approx(expected)


def test_the_standard_plan_says_how_long_it_takes() -> None:
    seconds = {test: cost for test, (cost, _) in check_docs.rows(PLANS["standard"]).items()}
    storage_s = sum(cost for test, cost in seconds.items() if test.startswith("storage"))
    said = [int(number) for number in re.findall(r"\d+", PLANS["standard"].summary)]
    assert said == [pytest.approx((sum(seconds.values()) - storage_s) / 60, abs=2), round(storage_s / 60)]
