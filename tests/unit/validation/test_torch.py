"""The payload with the torch that nodes get: real numbers, real ranks, and checks that find what is wrong.

They need a Python with torch, which Temper's own environment does not have: TEMPER_PAYLOAD_PYTHON names it.
"""

import functools
import json
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.fork_server import ForkServer
from tests.unit.needs import TORCH_PYTHON, needs_torch
from validation.cli import main
from validation.model.contract import State, node_result

pytestmark = [pytest.mark.component, needs_torch]


#: Threads of OpenMP that wait for one another burn no CPU, of which a busy machine has none to spare.
PATIENT = {"OMP_WAIT_POLICY": "passive"}
#: The second takes as long as the first, and every training step imports it.
MODULES = ("torch", "torch._dynamo", "validation.backends.training")


@functools.cache
def server() -> ForkServer:
    """A Python that has imported torch."""
    return ForkServer(TORCH_PYTHON, *MODULES, environment={**os.environ, **PATIENT})


def there(program: str) -> Any:
    """Run a program in the Python with torch; what it assigned to `answer`."""
    code = textwrap.dedent(program) + "\nimport json\nprint(json.dumps(answer))\n"
    done = server().run(code, {**os.environ, **PATIENT})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The quick plan, run from the one-file build."""
    folder: Path = tmp_path_factory.mktemp("payload")
    payload, output = folder / "temper-validation.pyz", folder / "result.json"
    assert main.main(["build", f"--output={payload}"]) == 0
    command = [TORCH_PYTHON, str(payload), "run", "--plan=quick", "--node=here", f"--output={output}"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **PATIENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return node_result(json.loads(output.read_text()))


@pytest.mark.parametrize(
    ("test", "name"),
    [("cpu_matmul", "fp32_gflops"), ("cpu_copy", "copy_gb_s"), ("cpu_all_reduce", "busbw_gb_s")],
)
def test_a_cpu_measures_for_real(result: Any, test: str, name: str) -> None:
    (found,) = [found for found in result.tests if found.id == test]
    measurement = found.measurements[0]
    assert (found.state, measurement.name) == (State.PASS, name)
    assert measurement.value > 0
    assert measurement.samples >= 5


def test_every_rank_of_a_collective_is_in_the_result(result: Any) -> None:
    (found,) = [found for found in result.tests if found.id == "cpu_all_reduce"]
    ranks = found.measurements[0].conditions["ranks"]
    assert ranks >= 2
    assert {len(medians) for medians in found.details["rank_median_s"].values()} == {ranks}


def test_a_right_product_has_an_error_that_rounding_explains() -> None:
    errors = there("""
        from validation.backends.cpu import CpuBackend
        from validation.model.shapes import MatmulShape
        shapes = [(64, 64, 64), (256, 64, 1024), (64, 1024, 256), (1024, 1024, 1024)]
        answer = [CpuBackend().matmul("fp32", MatmulShape(*shape)).error() for shape in shapes]
    """)
    assert all(0 < error < 1e-5 for error in errors), errors


@each("c[3, 5] = 2 * c[3, 5] + 1", "c[3, 5] = float('nan')", "c[7].zero_()", "c.t_()")
def test_a_wrong_product_is_found(damage: str) -> None:
    measured = there(f"""
        from validation.backends.cpu import CpuBackend
        from validation.backends.operations import Matmul
        from validation.checks import matmul
        from validation.processes.child import Request
        from validation.model.contract import encode

        class Damaged(Matmul):
            def run(self):
                super().run()
                c = self._c
                {damage}

        class Backend(CpuBackend):
            def matmul(self, dtype, shape, *, cold):
                return Damaged(self._device, dtype, shape, cold=cold)

        parameters = dict(products=dict(fp32=[256, 256, 512]), unit="gflops", scale=1e9)
        parameters["timing"] = dict(warm_up_s=0, measure_s=0, least=1)
        request = Request("the CPU", "", "cpu", parameters=parameters)
        answer = encode(matmul.multiply(Backend(), request, lambda stage: None))
    """)
    assert [finding["code"] for finding in measured["findings"]] == ["wrong-result"]


def test_one_changed_number_in_a_copy_is_found() -> None:
    errors = there("""
        import torch
        from validation.backends.operations import Copy, pattern

        class Damaged(Copy):
            def run(self):
                super().run()
                self._target[-1] += 1

        source = pattern(8 << 20)
        answer = [kind(source, torch.empty_like(source)).error() for kind in (Copy, Damaged)]
    """)
    assert errors[0] == 0
    assert errors[1] > 0


def test_a_pattern_is_position_times_an_odd_constant_at_every_length() -> None:
    assert there("""
        import torch
        from validation.backends.operations import ODD, ROW, pattern
        count = 2 * ROW + 17
        right = (torch.arange(count, dtype=torch.int64) * ODD).to(torch.int32)
        answer = torch.equal(pattern(4 * count), right)
    """)


def test_variables_that_distort_a_measurement_do_not_reach_torch() -> None:
    assert (
        there("""
        import os
        from validation.backends.factory import DISTORTING, make
        os.environ.update(dict.fromkeys(DISTORTING, "1"))
        make("cpu", 0, lambda _: None)
        answer = [name for name in DISTORTING if name in os.environ]
    """)
        == []
    )


def test_ranks_agree_on_the_highest_value() -> None:
    assert there("""
        import tempfile
        from validation.backends.cpu import CpuBackend
        backend = CpuBackend()
        with tempfile.TemporaryDirectory() as folder:
            backend.join(0, 1, folder + "/store", 60)
            answer = [backend.highest(value) for value in (0.25, 0.0, 7.0)]
    """) == [0.25, 0.0, 7.0]


def test_a_pattern_does_not_repeat_between_blocks() -> None:
    unique = there("""
        from validation.backends.operations import pattern
        blocks = pattern(64 << 20).split(1 << 18)
        answer = len({tuple(block[:64].tolist()) for block in blocks})
    """)
    assert unique == 64


COLLECTIVE = """
    import dataclasses
    import os
    from validation.checks import check, collectives
    from validation.checks.node import Node
    from validation.model.contract import encode
    from validation.model.expectations import Expectation
    from validation.model.plans import PLANS

    check.LEAST_PATIENCE_S = {patience_s}
    plan = dataclasses.replace(PLANS["quick"], budget_s={budget_s}, cpu_all_reduce_bytes=4 << 20)
    run_children = collectives.run_children

    def with_a_bad_rank(requests, *arguments, **options):
        bad = dataclasses.replace(requests[1], function="tests.unit.validation.torch_children:{function}")
        return run_children([requests[0], bad, *requests[2:]], *arguments, **options)

    collectives.run_children = with_a_bad_rank
    os.getloadavg = lambda: (0.0, 0.0, 0.0)
    answer = encode(collectives.CpuAllReduce().run(Node(plan, Expectation())))
"""


def test_the_gpu_tests_run_on_each_device_with_the_cpu_in_its_place() -> None:
    """From the check through its processes to one result: all but the device is what a GPU node runs."""
    found = there("""
        import dataclasses
        from tests.unit.validation import samples
        from validation.checks import collectives, launch, matmul
        from validation.model import shapes
        from validation.model.contract import encode
        from validation.model.expectations import References
        from validation.model.plans import Timing

        shapes.FORMATS, shapes.TILE, shapes.DEPTHS = ("fp32",), (1, 2), (16, 32)

        def on_the_cpu(module):
            run_children = module.run_children

            def run(requests, *arguments, **options):
                requests = [dataclasses.replace(request, backend="cpu") for request in requests]
                return run_children(requests, *arguments, **options)

            module.run_children = run

        on_the_cpu(collectives)
        on_the_cpu(launch)
        matmul.GpuMatmul.function = "tests.unit.validation.torch_children:multiply"
        of = dict(sustained=dict(any=dict(shape=[256, 512, 128])), best=dict(fp32=dict(shape=[64, 128, 512])))
        references = References(dict(h100=samples.H100), {}, dict(hopper=dict(matmul=of)))
        node = samples.node(expectation=samples.expectation(references=references))
        small = dict(gpu=Timing(0, 0.1), gpu_best=Timing(0, 0.1), gpu_search=Timing(0, 0.01))
        small["gpu_all_reduce_bytes"] = (4 << 20, 8 << 20)
        node = dataclasses.replace(node, plan=dataclasses.replace(node.plan, **small))
        import torch
        answer = [encode(check.run(node)) for check in (matmul.GpuMatmul(), collectives.GpuAllReduce())]
        answer.append(torch.__version__)
    """)
    product, reduction, torch_version = found
    assert (product["state"], reduction["state"]) == ("pass", "pass")
    measured = [(m["name"], m["conditions"]["m"]) for m in product["measurements"]]
    found = [one for one in measured if one[0] == "fp32_found_tflops"]
    assert len(found) == 2
    assert [one for one in measured if one not in found] == [
        ("fp32_tflops", 256),
        ("fp32_peak_tflops", 256),
        ("fp32_best_tflops", 64),
    ] * 2
    evidence = product["details"]["GPU 0"]["searched"]["fp32"]
    assert len(evidence) == 8
    best = next(m for m in product["measurements"] if m["name"] == "fp32_found_tflops")["conditions"]
    assert evidence[f"{best['m']} x {best['n']} x {best['k']}"] >= 0.99 * max(evidence.values())
    assert product["details"]["GPU 0"]["shapes_of"] == "architecture hopper"
    assert [(d["name"], d["conditions"]["torch"]) for d in product["digests"]] == [
        ("fp32", torch_version),
        ("fp32_best", torch_version),
        ("fp32_found", torch_version),
    ] * 2
    assert len({d["value"] for d in product["digests"] if d["name"] != "fp32_found"}) == 2
    sizes = [m["conditions"] for m in reduction["measurements"]]
    assert sizes == [{"size_bytes": size, "ranks": 2} for size in (4 << 20, 8 << 20)]
    assert {len(medians) for medians in reduction["details"]["rank_median_s"].values()} == {2}


def test_a_rank_that_dies_is_named() -> None:
    found = there(COLLECTIVE.format(budget_s=120, patience_s=120, function="die_after_joining"))
    assert found["state"] == "fail"
    (finding,) = found["findings"]
    assert finding["code"] == "process-died"
    assert finding["text"].startswith("rank 1 was killed by SIGKILL")
    assert found["duration_s"] < 100


def test_a_rank_that_hangs_is_named() -> None:
    found = there(COLLECTIVE.format(budget_s=600, patience_s=20, function="hang_after_joining"))
    (finding,) = found["findings"]
    assert found["duration_s"] < 300
    assert finding["code"] == "rank-hung"
    assert finding["text"].startswith("rank 1 (in hang_after_joining, torch_children.py line ")
    assert "hung in stage: meeting the other ranks" in finding["text"]


def test_a_rank_that_is_stopped_is_named_long_before_the_budget_is_spent() -> None:
    """It has got as far as the others, which wait for it."""
    found = there(COLLECTIVE.format(budget_s=600, patience_s=20, function="stop_while_measuring"))
    (finding,) = found["findings"]
    assert finding["code"] == "rank-hung"
    assert finding["text"].startswith(
        "rank 1 (stopped by a signal) hung in stage: measuring all-reduce of 4 MiB"
    )
    assert found["duration_s"] < 300


def test_a_rank_that_hangs_before_a_run_that_the_others_wait_in_is_named() -> None:
    """Runs, and no clock, tell it from the others: all are in the same stage."""
    found = there(COLLECTIVE.format(budget_s=600, patience_s=20, function="hang_before_a_run"))
    (finding,) = found["findings"]
    assert finding["code"] == "rank-hung"
    assert finding["text"].startswith("rank 1 (in hang, torch_children.py line ")
    assert "hung in stage: measuring all-reduce of 4 MiB, after run 7, and" in finding["text"]
    assert (
        "; the others waited in run 8; torch's flight recorder agrees: rank 1 did not call" in finding["text"]
    )
    # A run is a barrier and an all-reduce; either may be the one that rank 1 did not call.
    assert re.search(r" collective [0-9]+, gloo:(barrier|all_reduce)$", finding["text"])


def test_of_ranks_that_hang_in_the_same_run_the_one_that_does_not_enter_the_collective_is_named() -> None:
    found = there(COLLECTIVE.format(budget_s=600, patience_s=20, function="hang_in_a_run"))
    (finding,) = found["findings"]
    assert finding["code"] == "rank-hung"
    assert finding["text"].startswith("rank 1 (in hang, torch_children.py line ")
    assert "hung in stage: measuring all-reduce of 4 MiB, and" in finding["text"]


def test_a_gpu_counts_what_it_began_and_ended_after_all_was_queued() -> None:
    """On a GPU that hangs in its third run: events of what comes later never complete."""
    assert (
        there("""
        import torch
        from validation.backends.cuda import CudaBackend

        said = []

        class Copy:
            def prepare(self):
                pass

            def run(self):
                said.append("queued")

        class Event:
            made = 0

            def __init__(self, enable_timing):
                self.number, Event.made = Event.made, Event.made + 1

            def record(self):
                pass

            def synchronize(self):
                if self.number == 5:
                    raise TimeoutError

        import validation.backends.cuda as module
        module.Copy, torch.cuda.Event = Copy, Event
        backend = object.__new__(CudaBackend)
        try:
            backend.seconds(Copy(), 4, lambda: said.append("step"))
        except TimeoutError:
            answer = said
    """)
        == ["queued"] * 4 + ["step"] * 5
    )


FABRIC = """
    import dataclasses
    import json
    import socket
    from concurrent.futures import ThreadPoolExecutor
    from validation.checks.node import Node
    from validation.fabric import groups, measure
    from validation.fabric.groups import Attempt, Member, Order
    from validation.model.contract import FABRIC_VERSION, encode
    from validation.model.expectations import Expectation
    from validation.model.plans import PLANS

    measure.LEAST_PATIENCE_S, measure.PATIENCE = 20, 1
    run_children = measure.run_children

    def with_a_bad_rank(requests, *arguments, **options):
        function = "tests.unit.validation.torch_children:{function}"
        requests = [
            dataclasses.replace(one, function=function) if one.name.startswith("b ") else one
            for one in requests
        ]
        return run_children(requests, *arguments, **options)

    measure.run_children = with_a_bad_rank
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = ("a", "b", "c")
    group = tuple(Member(name, "127.0.0.1", 1) for name in names)
    # Far longer than the test may take: what ends the ranks is that they make no progress.
    plan = dataclasses.replace(PLANS["quick"], fabric_budget_s=3000, fabric_gloo_bytes=(4 << 20,))

    def take_part(name):
        order = Order(FABRIC_VERSION, name, group, port, "gloo", "quick", "now", 3)
        return measure.run_part(order, Node(plan, Expectation()))

    measure.longest_run_s = lambda _: 0
    with ThreadPoolExecutor(3) as threads:
        parts = list(threads.map(take_part, names))
    attempts = {{name: Attempt(names, part) for name, part in zip(names, parts)}}
    (found,) = groups.groups_of(attempts)
    answer = [found.suspects, [rank.ending for part in parts for rank in part.ranks]]
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("hang_before_a_run", "), after run 7"),
        pytest.param("stop_while_measuring", "(stopped by a signal)", marks=pytest.mark.nightly),
    ],
)
def test_a_node_whose_rank_hangs_is_named_long_before_the_budget_is_spent(function: str, words: str) -> None:
    """Three nodes of a rank each, between which a collective is run over loopback."""
    suspects, endings = there(FABRIC.format(function=function))
    assert list(suspects) == ["b"]
    assert words in suspects["b"]
    assert "made no progress for" in suspects["b"]
    assert "done" not in endings


MEETING = """
    import socket
    from validation.processes.child import Request
    from validation.processes.pool import run_children

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    def rank(number, run, gives, timeout_s=120, address="{address}"):
        parameters = {{
            "rank": number,
            "world_size": 2,
            "store": f"tcp://{{address}}:{{port}}/{{run}}",
            "timeout_s": timeout_s,
            "gives": gives,
        }}
        function = "tests.unit.validation.torch_children:add_up"
        environment = {{"GLOO_SOCKET_IFNAME": "lo"}}
        return Request(f"{{run}} {{number}}", function, "cpu", parameters=parameters, environment=environment)

    outcomes = run_children([{ranks}], 120)
    answer = [[one.ending, one.measured.details.get("total"), one.problem] for one in outcomes]
"""


@each("127.0.0.1", "[::1]")
def test_ranks_meet_by_the_rendezvous_of_torchrun(address: str) -> None:
    found = there(MEETING.format(address=address, ranks='rank(0, "now", 1), rank(1, "now", 2)'))
    assert found == [["done", 3.0, ""]] * 2


def test_a_port_that_a_user_has_is_no_fault_of_the_node() -> None:
    held = MEETING.replace("with socket", "held = socket").replace(" as taken:", "\n    if taken := held:")
    program = held.replace("one.problem", "one.measured.not_run")
    ((_, _, reason),) = there(program.format(address="127.0.0.1", ranks='rank(0, "now", 1)'))
    assert "another program of this node has port" in reason


def test_ranks_of_two_runs_do_not_meet_at_the_same_port() -> None:
    ranks = 'rank(1, "earlier", 100, timeout_s=5), rank(0, "now", 1, timeout_s=5)'
    found = there(MEETING.format(address="127.0.0.1", ranks=ranks))
    assert [ending for ending, _, _ in found] == ["died", "died"]


def test_a_rank_of_an_earlier_run_is_in_nobodys_way() -> None:
    ranks = 'rank(1, "earlier", 100, timeout_s=20), rank(0, "now", 1), rank(1, "now", 2)'
    late, *met = there(MEETING.format(address="127.0.0.1", ranks=ranks))
    assert met == [["done", 3.0, ""]] * 2
    assert late[0] == "died"


def test_a_rank_that_nobody_comes_to_gives_up_in_time() -> None:
    found = there(MEETING.format(address="127.0.0.1", ranks='rank(1, "now", 1, timeout_s=3)'))
    assert found[0][0] == "died"
    assert "timed out" in found[0][2].lower()


def test_a_reduction_has_the_size_that_it_says() -> None:
    """Also one below the row that its numbers repeat after, with which groups of nodes begin."""
    assert there("""
        import tempfile
        from validation.backends.cpu import CpuBackend
        backend = CpuBackend()
        with tempfile.TemporaryDirectory() as folder:
            backend.join(0, 1, folder + "/store", 60)
            made = [backend.collective("all_reduce", size) for size in (4, 1 << 20, 4 << 20, 12 << 20)]
            answer = [[one.work, one._buffer.nbytes] for one in made]
    """) == [[size, size] for size in (4, 1 << 20, 4 << 20, 12 << 20)]


CUDA = """
    import torch
    from validation.backends.factory import make
    from validation.model.not_run import NotRunError

    def busy(*_):
        raise RuntimeError(
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\\nCUDA kernel errors might be ..."
        )

    calls = []
    torch.version.cuda = "13.0"
    torch.cuda.init = lambda: None
    torch.cuda.get_device_capability = lambda _: {capability}
    torch.cuda.get_device_name = lambda _: "Tesla V100-SXM2-32GB"
    torch.cuda.get_arch_list = lambda: {built}
    torch.cuda.set_device = lambda _: calls.append("set")
    torch.cuda.mem_get_info = {memory}
    try:
        make("cuda", 0, lambda _: None)
        answer = "a GPU"
    except NotRunError as error:
        answer = str(error)
"""


@each(
    ((8, 0), ["sm_80"], "lambda _: (1, 1)", "a GPU"),
    ((7, 0), [], "lambda _: (1, 1)", "a GPU"),
    (
        (7, 0),
        ["sm_75", "sm_80"],
        "None",
        "has no code for Tesla V100-SXM2-32GB (compute capability 7.0), only for sm_75, sm_80",
    ),
    (
        (8, 0),
        ["sm_80"],
        "busy",
        "CUDA cannot be initialised: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
)
def test_a_gpu_that_is_taken_or_that_torch_has_no_code_for_is_not_run_when_it_is_made(
    capability: tuple[int, int], built: list[str], memory: str, answer: str
) -> None:
    """Asking for memory makes a context: torch before 2.8 made none until something was allocated."""
    said = there(CUDA.format(capability=capability, built=built, memory=memory))
    assert said.endswith(answer)


@each(
    ("CUDA error: peer mapping resources exhausted\\nSearch for ...", "PeerLimitError"),
    ("CUDA error: an illegal memory access was encountered", "RuntimeError"),
)
def test_one_peer_too_many_is_told_from_other_errors_of_a_copy(words: str, kind: str) -> None:
    """Where torch says it: at the first copy, in which it maps the peer."""
    assert there(f"""
        import torch
        from validation.backends.cuda import CudaBackend

        class Tensor:
            def copy_(self, _):
                raise RuntimeError("{words}")

        torch.empty = lambda *_, **__: Tensor()
        backend = object.__new__(CudaBackend)
        backend._device = torch.device("cuda", 0)
        try:
            backend.copy("peer_1", 4)
        except Exception as error:
            answer = [type(error).__name__, str(error).splitlines()[0]]
    """) == [kind, words.partition("\\n")[0]]


@each(
    ("lambda: 91900", [91900, ""]),
    ("refuse", [None, "cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0)"]),
)
def test_a_cudnn_that_torch_refuses_is_told_in_its_words(version: str, answer: list[Any]) -> None:
    found = there(f"""
        import torch
        from validation.checks.frameworks import cudnn_version

        def refuse():
            # torch/backends/cudnn/__init__.py
            raise RuntimeError(
                "cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime "
                "version (8, 9, 2). PyTorch already comes bundled with cuDNN."
            )

        torch.backends.cudnn.is_available = lambda: True
        torch.backends.cudnn.version = {version}
        answer = cudnn_version()
    """)
    assert found[0] == answer[0]
    assert found[1].startswith(answer[1])


def test_a_torch_without_cuda_is_said_to_be_one() -> None:
    reason = there("""
        import torch
        from validation.backends.factory import make
        from validation.model.not_run import NotRunError
        try:
            make("cuda", 0, lambda _: None)
            answer = "a GPU"
        except NotRunError as error:
            answer = str(error)
    """)
    assert "is built without CUDA" in reason or "CUDA cannot be initialised" in reason or reason == "a GPU"


def test_torch_says_what_it_is_and_what_it_cannot_do() -> None:
    """The child itself, on the torch that is here: without a GPU, all of it but the GPUs."""
    said = there("""
        from validation.checks import frameworks
        from validation.model.contract import dumps, loads
        measured = frameworks.gather(None, lambda stage: None)
        loads(type(measured), dumps(measured))
        answer = measured.details["facts"]
    """)
    assert said["torch"].startswith("2.")
    assert said["available"] or said["problem"]
    assert len(said["devices"]) == 0 or said["available"]


def test_a_convolution_and_a_sum_are_checked_for_real() -> None:
    assert there("""
        from validation.checks import frameworks
        answer = [frameworks._compute("cpu"), frameworks._convolve("cpu")]
    """) == ["", ""]


def test_eight_bit_products_and_checksums_are_right_for_real() -> None:
    error, digests, other = there("""
        import torch
        from validation.model.shapes import MatmulShape
        from validation.backends.operations import Matmul, checksum
        product = Matmul(torch.device("cpu"), "fp8", MatmulShape(256, 256, 256))
        matrix = torch.randn(64, 64)
        changed = matrix.clone()
        changed[5, 7] = torch.nextafter(changed[5, 7], torch.tensor(9.0))
        swapped = matrix.flip(0)
        answer = [
            product.error(),
            [product.digest(), product.digest()],
            [checksum(matrix), checksum(changed), checksum(swapped)],
        ]
    """)
    assert 0 < error < 2e-2
    assert digests[0] == digests[1]
    assert len(set(other)) == 3


def test_a_changed_word_in_memory_and_a_wrong_triad_are_found() -> None:
    right, wrong = there("""
        import torch
        from validation.backends.operations import MemoryPattern, Triad

        class Forgetful(MemoryPattern):
            def _write(self, inverted):
                super()._write(inverted)
                if inverted:
                    self._blocks[2][17] ^= 4

        class Damaged(Triad):
            def run(self):
                super().run()
                self._a[3] += 1

        cpu = torch.device("cpu")
        answer = [
            [MemoryPattern(cpu, 8 << 20, 1 << 20).error(), Triad(cpu, 8 << 20).error()],
            [Forgetful(cpu, 8 << 20, 1 << 20).error(), Damaged(cpu, 8 << 20).error()],
        ]
    """)
    assert right == [0, 0]
    assert wrong[0] == 1
    assert wrong[1] > 0


def test_the_parts_of_a_collective_begin_at_multiples_of_16_bytes_and_fill_its_size() -> None:
    parts = there("""
        from validation.backends.exchange import part_elements
        sizes = (1 << 20, 64 << 20, 1 << 30)
        answer = [(size, ranks, 4 * part_elements(size, ranks)) for size in sizes for ranks in range(2, 65)]
    """)
    assert all(part % 16 == 0 for _, _, part in parts)
    assert all(size - 16 * ranks < part * ranks <= size for size, ranks, part in parts)


def test_every_collective_is_exact_between_real_ranks() -> None:
    found = there("""
        import dataclasses
        from validation.checks import collectives
        from validation.checks.node import Node
        from validation.model.contract import encode
        from validation.model.expectations import Expectation
        from validation.model.plans import PLANS

        kinds = PLANS["standard"].collectives
        plan = dataclasses.replace(PLANS["quick"], collectives=kinds, cpu_all_reduce_bytes=5 << 20)
        answer = encode(collectives.CpuAllReduce().run(Node(plan, Expectation())))
    """)
    assert (found["state"], found["findings"]) == ("pass", [])
    assert [m["name"] for m in found["measurements"]] == [
        "busbw_gb_s",
        "all_gather_busbw_gb_s",
        "reduce_scatter_busbw_gb_s",
        "all_to_all_busbw_gb_s",
    ]


@each("all_gather", "reduce_scatter", "all_to_all")
def test_a_collective_of_many_ranks_takes_memory_by_its_size_not_by_their_number(kind: str) -> None:
    """Two buffers, and one row at a time: a fixed 4 MiB for each of 64 ranks were 256 times its size."""
    largest, held, wrong = there(f"""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from validation.backends.exchange import Exchange

        class Largest(TorchDispatchMode):
            size_bytes = 0

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                made = function(*args, **(kwargs or {{}}))
                if isinstance(made, torch.Tensor):
                    self.size_bytes = max(self.size_bytes, made.untyped_storage().nbytes())
                return made

        class Alone(Exchange):
            def run(self):
                for part, numbers in zip(self._target.split(self._part), self._expected(), strict=True):
                    part.copy_(numbers)

        torch.distributed.get_rank, torch.distributed.get_world_size = (lambda: 5), (lambda: 64)
        with Largest() as seen:
            exchange = Alone(torch.device("cpu"), "{kind}", 1 << 20)
            wrong = exchange.error()
        kept = [value if isinstance(value, list) else [value] for value in vars(exchange).values()]
        tensors = [one for values in kept for one in values if isinstance(one, torch.Tensor)]
        answer = [seen.size_bytes, sum(one.untyped_storage().nbytes() for one in tensors), wrong]
    """)
    assert largest <= 1 << 20
    assert held <= 2 << 20
    assert wrong == 0


@each(
    ("operations", "AllReduce", "", "_buffer[0, 7]"),
    *(
        ("exchange", "Exchange", f"'{kind}', ", "_target[-1]")
        for kind in ("all_gather", "reduce_scatter", "all_to_all")
    ),
)
def test_one_changed_number_of_a_collective_is_found(module: str, name: str, kind: str, place: str) -> None:
    errors = there(f"""
        import tempfile
        from validation.backends.cpu import CpuBackend
        from validation.backends.{module} import {name}

        class Damaged({name}):
            def run(self):
                super().run()
                self.{place} += 1

        backend = CpuBackend()
        with tempfile.TemporaryDirectory() as folder:
            backend.join(0, 1, folder + "/store", 60)
            answer = [kind(backend._device, {kind}5 << 20).error() for kind in ({name}, Damaged)]
    """)
    assert errors[0] == 0
    assert errors[1] > 0
