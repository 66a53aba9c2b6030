"""Numbers that a test owes: a degraded one as one that passed; a failed one has said enough."""

from __future__ import annotations

from tests.unit.each import each
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import State
from validation.model.expectations import References
from validation.verdict import sanity

BROUGHT_NOTHING = {
    State.PASS: ["no-number"],
    State.DEGRADED: ["no-number"],
    State.FAIL: [],
    State.NOT_RUN: [],
}
LEFT_ONE_OUT = {State.PASS: ["gpu-not-measured"], State.DEGRADED: ["gpu-not-measured"], State.FAIL: []}


@each(*BROUGHT_NOTHING.items())
def test_a_test_that_ended_well_owes_a_number(state: State, codes: list[str]) -> None:
    test = one_test("gpu_matmul", state)
    found = sanity.findings(test, node_result(test), References(), measures=True)
    assert [(finding.code, finding.state) for finding in found] == [(code, State.FAIL) for code in codes]


@each(*LEFT_ONE_OUT.items())
def test_a_test_that_ended_well_owes_a_number_of_each_gpu(state: State, codes: list[str]) -> None:
    test = one_test("gpu_matmul", state, measurement())
    found = sanity.findings(test, node_result(test, gpus=2), References(), measures=True)
    assert [(finding.code, finding.state, finding.device) for finding in found] == [
        (code, State.FAIL, 1) for code in codes
    ]


def test_a_test_without_numbers_owes_none() -> None:
    test = one_test("health")
    assert sanity.findings(test, node_result(test), References(), measures=False) == []
