"""Numbers that a test owes: a degraded one as one that passed; a failed one has said enough."""

from tests.unit.each import each
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import Measurement, State
from validation.model.expectations import References
from validation.verdict import sanity

NOTHING: tuple[Measurement, ...] = ()
OF_ONE_GPU = (measurement(),)


@each(
    (State.PASS, NOTHING, [("no-number", None)]),
    (State.DEGRADED, NOTHING, [("no-number", None)]),
    (State.FAIL, NOTHING, []),
    (State.NOT_RUN, NOTHING, []),
    (State.PASS, OF_ONE_GPU, [("gpu-not-measured", 1)]),
    (State.DEGRADED, OF_ONE_GPU, [("gpu-not-measured", 1)]),
    (State.FAIL, OF_ONE_GPU, []),
)
def test_a_test_that_ended_well_owes_a_number_of_each_gpu(
    state: State, brought: tuple[Measurement, ...], missing: list[tuple[str, int | None]]
) -> None:
    test = one_test("gpu_matmul", state, *brought)
    found = sanity.findings(test, node_result(test, gpus=2), References(), measures=True)
    assert [(finding.code, finding.device) for finding in found] == missing
    assert {finding.state for finding in found} <= {State.FAIL}


def test_a_test_without_numbers_owes_none() -> None:
    test = one_test("health")
    assert sanity.findings(test, node_result(test), References(), measures=False) == []
