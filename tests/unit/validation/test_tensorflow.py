"""TensorFlow's check. No TensorFlow is installed here: a small module openly stands in for it."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import gpu_xml, node, smi_xml
from validation.checks import tensorflow
from validation.checks.registry import CHECKS, asked_for, in_plan
from validation.checks.tensorflow import Facts, Gpu
from validation.model.contract import Measured, State
from validation.model.not_run import NotRunError
from validation.model.plans import PLANS, RunOptions
from validation.probes import tensorflow_program
from validation.processes.child import Request

#: What the program uses of TensorFlow, computed in Python. FAULT makes one thing go wrong.
STAND_IN = """
import contextlib, types

FAULT = {fault!r}
__version__ = "2.20.0"
float32 = "float32"
growing, place, placing_softly = set(), "", True
policy = "float32"


class Tensor:
    def __init__(self, rows, dtype="float32"):
        if not growing and place:
            raise AssertionError("memory growth is set too late")
        self.rows, self.dtype = rows, types.SimpleNamespace(name=dtype)
        self.device = "/job:localhost/device:" + ("CPU:0" if FAULT == "host" else place.strip("/"))

    def numpy(self):
        return self

    def tolist(self):
        return self.rows

    def __getitem__(self, index):
        return self.rows[index]


def constant(rows, dtype):
    return Tensor(rows)


def ones(shape):
    return Tensor([[1.0] * shape[1]] * shape[0])


def matmul(one, other, transpose_b):
    if FAULT == "raises":
        raise ValueError("no kernel image is available for execution on the device\\nmore lines")
    found = [[sum(a * b for a, b in zip(row, column)) for column in other.rows] for row in one.rows]
    found[3][4] += FAULT == "wrong"
    return Tensor(found)


@contextlib.contextmanager
def device(name):
    global place
    place = name
    yield
    place = ""


class Dense:
    def __init__(self, units, kernel_initializer, use_bias):
        assert (units, kernel_initializer, use_bias) == (1, "ones", False)
        self.variable_dtype = "float32"

    def __call__(self, numbers):
        kind = "float32" if FAULT == "policy" else policy.removeprefix("mixed_")
        return Tensor([[sum(row)] for row in numbers.rows], kind)


def set_policy(name):
    global policy
    policy = name


def set_soft(allowed):
    global placing_softly
    placing_softly = allowed


gpus = [f"GPU:{{number}}" for number in range(1 if FAULT == "one" else 2)]
space = types.SimpleNamespace
config = space(
    list_physical_devices=lambda kind: gpus,
    set_soft_device_placement=set_soft,
    experimental=space(set_memory_growth=lambda gpu, on: growing.add(gpu) if on else None),
)
linalg = space(matmul=matmul)
test = space(is_built_with_cuda=lambda: True)
keras = space(
    mixed_precision=space(set_global_policy=set_policy),
    layers=space(Dense=Dense),
)
if FAULT == "dies":
    import os, sys
    print("Check failed: ret == 0 (11 vs. 0)", file=sys.stderr, flush=True)
    os.abort()
if FAULT == "babbles":
    print("[1, 2]")
    raise SystemExit(0)
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Measured]:
    """A function that asks a stand-in with this fault, in a process of its own."""

    def ask(fault: str) -> Measured:
        if fault == "missing":
            (tmp_path / "tensorflow.py").write_text("raise ImportError('libcudart.so.12: cannot open')\n")
        else:
            (tmp_path / "tensorflow.py").write_text(STAND_IN.format(fault=fault))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        parameters = {"python": sys.executable, "gpus": 2}
        return tensorflow.measure(Request("", "", "none", parameters=parameters), lambda _: None)

    return ask


@pytest.mark.component
def test_one_that_works_passes(asked: Callable[[str], Measured]) -> None:
    found = asked("")
    assert found.findings == ()
    assert (found.details["version"], len(found.details["gpus"])) == ("2.20.0", 2)


@pytest.mark.component
def test_nothing_is_imported_from_the_current_folder(
    asked: Callable[[str], Measured], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may write to /tmp, and a Python before 3.11 does not know PYTHONSAFEPATH."""
    folder = tmp_path / "current"
    folder.mkdir()
    (folder / "json.py").write_text("raise SystemExit('somebody else')\n")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert asked("").findings == ()


@pytest.mark.component
@pytest.mark.parametrize(
    ("fault", "code", "fact"),
    [
        ("one", "tensorflow-gpu-count", "sees 1 GPUs, nvidia-smi 2"),
        ("wrong", "tensorflow-compute", "1 of 4096 numbers"),
        (
            "raises",
            "tensorflow-compute",
            "ValueError: no kernel image is available for execution on the device",
        ),
        ("host", "tensorflow-compute", "CPU:0"),
        ("policy", "tensorflow-mixed-precision", "in float32 with weights in float32"),
        ("dies", "tensorflow-compute", "SIGABRT; it said last: Check failed"),
        ("babbles", "result-unreadable", "makes no sense"),
    ],
)
def test_one_that_does_not_is_named_with_its_fault(
    asked: Callable[[str], Measured], fault: str, code: str, fact: str
) -> None:
    first, *_ = asked(fault).findings
    assert (first.code, first.state) == (code, State.FAIL)
    assert fact in first.text


@pytest.mark.component
def test_a_fault_of_a_gpu_is_that_of_its_number(asked: Callable[[str], Measured]) -> None:
    assert [finding.device for finding in asked("wrong").findings] == [0, 1]


@pytest.mark.component
def test_a_python_without_tensorflow_is_not_run_with_its_words(asked: Callable[[str], Measured]) -> None:
    with pytest.raises(NotRunError, match=r"cannot import TensorFlow: ImportError: libcudart\.so\.12"):
        asked("missing")
    request = Request("", "", "none", parameters={"python": "/nowhere/python3", "gpus": 2})
    with pytest.raises(NotRunError, match="/nowhere/python3 cannot be started"):
        tensorflow.measure(request, lambda _: None)


@each((79, []), (None, []), (4, ["tensorflow-memory-growth"]))
def test_memory_that_does_not_grow_but_is_taken_is_degraded(after: int | None, codes: list[str]) -> None:
    facts = Facts("2.20.0", True, (Gpu("", 80, after),), "")
    found = list(tensorflow.examine(facts, 1))
    assert [finding.code for finding in found] == codes
    assert {finding.state for finding in found} <= {State.DEGRADED}


def test_a_build_for_cpus_is_told_from_one_that_cannot_use_its_gpus() -> None:
    (cpus,) = tensorflow.examine(Facts("2.20.0", False, (), ""), 8)
    (cuda,) = tensorflow.examine(Facts("2.20.0", True, (), ""), 8)
    assert "without CUDA" in cpus.text
    assert cpus.action != cuda.action


def test_without_a_driver_nobody_knows_what_memory_is_free() -> None:
    assert tensorflow_program.free_bytes(0, "libgone.so.1") is None


@each(
    ("tensorflow", RunOptions(tensorflow=Path("/opt/tf/bin/python3"))),
    ("egl", RunOptions(graphics=True)),
)
def test_what_is_asked_for_runs_and_is_required_then(test: str, options: RunOptions) -> None:
    assert test in in_plan("quick", options)
    assert not {plan for plan in PLANS if test in in_plan(plan, RunOptions())}
    assert asked_for(options, required=True) == (test,)


@pytest.mark.component
def test_in_a_run_it_has_a_process_of_its_own_and_counts_the_nodes_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow.py").write_text(STAND_IN.format(fault=""))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    options = RunOptions(tensorflow=Path(sys.executable))
    here = dataclasses.replace(node(smi_xml(gpu_xml())), run_options=options)
    result = CHECKS["tensorflow"].run(here)
    (finding,) = result.findings
    assert (finding.code, result.state) == ("tensorflow-gpu-count", State.FAIL)
    assert "sees 2 GPUs, nvidia-smi 1" in finding.text
    unnamed = CHECKS["tensorflow"].run(dataclasses.replace(here, run_options=RunOptions()))
    assert (unnamed.state, "--tensorflow" in unnamed.reason) == (State.NOT_RUN, True)


def test_the_program_answers_in_one_line_of_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    tensorflow_program.main()
    assert "missing" in json.loads(capsys.readouterr().out)
