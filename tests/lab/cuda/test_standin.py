"""The stand-in itself: what it refuses as CUDA does, and that nothing counts as done that it does not do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cuda.environment import Environment
from tests.lab.cuda.machine import Machine

MakeMachine = Callable[..., Machine]

pytestmark = pytest.mark.cuda

RUNTIME_TRIAL = Path(__file__).with_name("runtime_trial.py")
#: What the runtime answers (cudaError of driver_types.h).
ANSWERS = {
    "copy": 0,
    "copied": 0,
    "copy over the end": 1,
    "copy to freed memory": 1,
    "copy the wrong way": 1,
    "free twice": 1,
    "no such device": 101,
    "event": 0,
    "time of an event without timing": 400,
    "peer": 0,
    "peer again": 704,
    "peer of itself": 101,
    "too much memory": 2,
    "event in another GPU's stream": 400,
    "between GPUs": 0,
    "stream": 0,
    "stream that is gone": 400,
}
#: What a context takes (runtime.c).
CONTEXT_MIB = 64
COMPUTE = "import torch; a = torch.arange(4.0, device='cuda'); print(float({0}))"


def test_runtime_checks_what_it_is_given(machine: MakeMachine, environment: Environment) -> None:
    done = machine(environment, 2).start(str(RUNTIME_TRIAL), f"libcudart.so.{environment.cuda}", cpu_s=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ANSWERS


def test_results_are_computed(machine: MakeMachine, environment: Environment) -> None:
    done = machine(environment).start("-c", COMPUTE.format("(a.double() + 1).sum()"), cpu_s=60)
    assert (done.stdout, done.stderr) == ("10.0\n", "")


def test_kernel_that_is_not_computed_is_named(machine: MakeMachine, environment: Environment) -> None:
    done = machine(environment).start("-c", COMPUTE.format("a.cos().sum()"), cpu_s=60)
    assert done.returncode != 0
    assert "does not compute this kernel" in done.stderr
    assert "cos_kernel_cuda" in done.stderr


def test_library_function_that_is_missing_is_named(machine: MakeMachine, newest: Environment) -> None:
    done = machine(newest).start("-c", COMPUTE.format("torch.fft.fft(a).real.sum()"), cpu_s=60)
    assert done.returncode != 0
    assert "cuda stand-in: cufft" in done.stderr


def test_gpu_without_code_in_this_torch_is_refused(machine: MakeMachine, newest: Environment) -> None:
    done = machine(newest, major=6, minor=0).start("-c", COMPUTE.format("a.sum()"), cpu_s=60)
    assert done.returncode != 0
    assert "no kernel image is available for execution on the device" in done.stderr


def test_memory_is_shared_by_processes(machine: MakeMachine, newest: Environment) -> None:
    program = """
import subprocess, sys, torch
free = "import torch; print(torch.cuda.mem_get_info()[0] >> 20)"
subprocess.run([sys.executable, "-c", free], check=True)
held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
subprocess.run([sys.executable, "-c", free], check=True)
"""
    done = machine(newest).start("-c", program, cpu_s=60)
    first, second = map(int, done.stdout.split())
    assert first - second == 1024 + CONTEXT_MIB
