"""What children do in the tests of processes/pool.py: all that a measuring process can do to its parent.

Each test starts some, and they import what most of them need.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

from validation.model.contract import Measured, Measurement, encode
from validation.model.not_run import NotRunError
from validation.processes.child import Request, collective_call, count_step, expect

Stage = Callable[[str], None]

FOREVER_S = 600
MOMENT_S, MANY = 0.4, 40


def hang_in_a_collective(_request: Request, stage: Stage) -> Measured:
    """A child that sleeps in its second call of a collective, on the host, until a signal comes.

    It works for a moment first, at its own pace.
    """
    stage("warming up")
    with collective_call():
        until = time.monotonic() + MOMENT_S
        while time.monotonic() < until:
            pass
    with collective_call():
        ctypes.CDLL(None).sleep(FOREVER_S)
    return Measured()


def poll_in_a_collective(_request: Request, stage: Stage) -> Measured:
    """A child that has handed its second collective over and looks for its end all the time."""
    stage("warming up")
    for _ in range(2):
        with collective_call():
            pass
    while True:
        pass


def talk_and_hang(_request: Request, stage: Stage) -> Measured:
    """A child that tells many stages within a moment, and then sleeps."""
    for count in range(MANY):
        stage(f"step {count}")
        time.sleep(MOMENT_S / MANY)
    time.sleep(FOREVER_S)
    return Measured()


def work_in(request: Request, stage: Stage) -> Measured:
    """A child that works for some seconds in one stage, and counts nothing."""
    stage(request.parameters["stage"])
    until = time.monotonic() + request.parameters["seconds"]
    while time.monotonic() < until:
        pass
    return Measured()


def expect_and_hang(request: Request, stage: Stage) -> Measured:
    """A child whose next step takes long."""
    stage("warming up")
    expect(request.parameters["seconds"])
    time.sleep(FOREVER_S)
    return Measured()


def out_of_memory_score(_request: Request, _stage: Stage) -> Measured:
    """A child that says how likely it is to go when memory runs out."""
    return Measured(details={"score": int(Path("/proc/self/oom_score_adj").read_text())})


def leave_a_folder(_request: Request, _stage: Stage) -> Measured:
    """A child that is killed while it has a temporary folder, which it writes to standard error."""
    import tempfile

    print(tempfile.mkdtemp(), file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return Measured()


def answer_and_crash(_request: Request, _stage: Stage) -> Measured:
    """A child that is killed while it answers, and has said something that makes sense already."""
    os.write(int(sys.argv[1]), b"{}")
    os.kill(os.getpid(), signal.SIGKILL)
    return Measured()


def answer(request: Request, stage: Stage) -> Measured:
    """A good child: it says what it was asked."""
    stage("answering")
    measurement = Measurement("busbw_gb_s", 1.5, 3, 0.1, request.device)
    return Measured((measurement,), details={"parameters": request.parameters, "name": request.name})


def who(_request: Request, _stage: Stage) -> Measured:
    """Say which process this is, and where it may run."""
    return Measured(details={"pid": os.getpid(), "cpus": sorted(os.sched_getaffinity(0))})


def answer_and_die(request: Request, stage: Stage) -> Measured:
    """A good answer, and the end right after it, while it gives memory back."""

    class Cuda:
        @staticmethod
        def is_initialized() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.modules["torch"] = types.ModuleType("torch")
    sys.modules["torch"].cuda = Cuda  # type: ignore[attr-defined]
    stage("answering")
    write_note(request, os.getpid())
    return Measured()


def search_path(_request: Request, _stage: Stage) -> Measured:
    """Say where it imports from."""
    return Measured(details={"folders": [str(Path(folder).resolve()) for folder in sys.path]})


def stay_on_one_cpu(_request: Request, _stage: Stage) -> Measured:
    """Bind itself, as what measures next to a GPU does."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return Measured()


def large_answer(_request: Request, _stage: Stage) -> Measured:
    """More than a pipe holds."""
    return Measured(details={"seconds": [0.125] * 100_000})


def environment(_request: Request, _stage: Stage) -> Measured:
    """Say what the environment is."""
    return Measured(details={"environment": dict(os.environ)})


def not_run(_request: Request, _stage: Stage) -> Measured:
    """Refuse."""
    raise NotRunError("no such device")


def gpu_memory_taken(_request: Request, _stage: Stage) -> Measured:
    """Find no room on the GPU, as torch says it."""

    class OutOfMemoryError(RuntimeError):
        pass

    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB")


def host_memory_taken(_request: Request, _stage: Stage) -> Measured:
    """Find no room for pinned memory, which is another class of error."""
    raise RuntimeError("CUDA error: out of memory")


def raise_words(request: Request, _stage: Stage) -> Measured:
    """End with an error of these words, which may mean that memory ran out."""
    if (free_bytes := request.parameters.get("free_bytes")) is not None:
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
            is_initialized=lambda: True, mem_get_info=lambda: (free_bytes, 80 << 30)
        )
    raise RuntimeError(request.parameters["words"])


def keep_pinned_memory(request: Request, _stage: Stage) -> Measured:
    """Say how often page-locked memory was given back since a torch began to keep it."""
    if "torch" not in sys.modules:
        given_back: list[int] = []
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].__dict__.update(
            cuda=types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: None),
            _C=types.SimpleNamespace(_host_emptyCache=lambda: given_back.append(1)),
            given_back=given_back,
        )
    return Measured(details={"given_back": len(sys.modules["torch"].__dict__["given_back"])})


def no_memory_for_an_object(_request: Request, _stage: Stage) -> Measured:
    """Find no room, as Python itself says it: without a word."""
    raise MemoryError


def die(_request: Request, stage: Stage) -> Measured:
    """End with an exception, as code with a mistake does."""
    stage("dividing")
    raise ZeroDivisionError("division by zero")


def fail_with(request: Request, _stage: Stage) -> Measured:
    """End with the words of an error, while Python could neither free its data nor end."""

    class Tensor:
        def __del__(self) -> None:
            time.sleep(FOREVER_S)

    _on_a_broken_gpu = Tensor()
    threading.Thread(target=time.sleep, args=(FOREVER_S,)).start()
    raise RuntimeError(request.parameters["message"])


def abort_with(request: Request, _stage: Stage) -> Measured:
    """End as C++ does after an error that nobody caught."""
    print(request.parameters["message"], file=sys.stderr, flush=True)
    os.abort()


def go_on(_request: Request, stage: Stage) -> Measured:
    """Tell the same stage again and again, and nothing else."""
    while True:
        stage("going on")
        time.sleep(0.1)


def count_and_hang(request: Request, stage: Stage) -> Measured:
    """Count some steps in no time, and never come back."""
    stage("counting")
    for _ in range(request.parameters["steps"]):
        count_step()
    time.sleep(FOREVER_S)
    return Measured()


def take_a_step_and_hang(_request: Request, stage: Stage) -> Measured:
    """Take a second for a step, and never come back from the next."""
    stage("counting")
    time.sleep(1.0)
    count_step()
    time.sleep(FOREVER_S)
    return Measured()


def count(request: Request, _stage: Stage) -> Measured:
    """Count some steps, and answer."""
    for _ in range(request.parameters["steps"]):
        count_step()
    return Measured()


def count_on(_request: Request, stage: Stage) -> Measured:
    """Count again and again, and tell nothing."""
    stage("counting")
    while True:
        count_step()
        time.sleep(0.1)


def read_and_hang(request: Request, stage: Stage) -> Measured:
    """Read from storage that brings nothing more once it is to be measured."""
    from validation.backends import storage
    from validation.checks import storage as storage_check

    def hang(*_: object) -> float:
        time.sleep(FOREVER_S)
        return 0.0

    storage.Source.seconds = hang  # type: ignore[assignment,method-assign]
    return storage_check.measure(request, stage)


def stop(_request: Request, stage: Stage) -> Measured:
    """Be stopped, as by somebody at a terminal."""
    stage("measuring")
    os.kill(os.getpid(), signal.SIGSTOP)
    return Measured()


def crash(_request: Request, stage: Stage) -> Measured:
    """End by a signal, as a library with a mistake does."""
    stage("reading nothing")
    ctypes.string_at(0)
    return Measured()


def kill_itself(_request: Request, _stage: Stage) -> Measured:
    """End as if the kernel had been out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Measured()


def hang(_request: Request, stage: Stage) -> Measured:
    """Never come back."""
    stage("waiting")
    time.sleep(FOREVER_S)
    return Measured()


def hang_deaf(_request: Request, stage: Stage) -> Measured:
    """Never come back, whatever one asks politely."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stage("deaf")
    time.sleep(FOREVER_S)
    return Measured()


def leave_a_grandchild(request: Request, _stage: Stage) -> Measured:
    """Start a process of its own, note its number, and hang."""
    grandchild = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"])
    write_note(request, grandchild.pid)
    time.sleep(FOREVER_S)
    return Measured()


def answer_and_leave_a_grandchild(request: Request, _stage: Stage) -> Measured:
    """Answer well, and leave a process of its own that holds on to both pipes."""
    grandchild = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"], pass_fds=[int(sys.argv[1])]
    )
    return Measured(details={"pid": grandchild.pid})


def note_and_hang(request: Request, _stage: Stage) -> Measured:
    """Note its own number and hang."""
    write_note(request, os.getpid())
    time.sleep(FOREVER_S)
    return Measured()


def measure_alone(request: Request, stage: Stage) -> Measured:
    """Come back once no other measures."""
    from validation.checks.launch import exclusive

    with exclusive(request, stage):
        return Measured()


def probe_a_tree(request: Request, stage: Stage) -> Measured:
    """Look as the product does, at the file system that $TREE names in place of the machine's own."""
    from validation.probes import machine, node_probe, topology

    root = Path(os.environ["TREE"])
    if "topology" in request.parameters:
        stage("reading the topology")
        return Measured(details=encode(topology.read(tuple(request.parameters["topology"]), root)))
    sources = node_probe.Sources(
        pci_gpus=lambda: machine.pci_gpus(root),
        nvswitch=lambda: machine.has_nvswitch(root),
        loaded_driver=lambda: machine.loaded_driver(root),
        driver_libraries=lambda: machine.driver_libraries(root),
    )
    return Measured(details=encode(node_probe.gather(sources, False, stage)))


def write_note(request: Request, pid: int) -> None:
    """Write a process id where the request says, all of it at once."""
    note = Path(request.parameters["note"])
    note.with_suffix(".new").write_text(str(pid))
    note.with_suffix(".new").rename(note)


def not_a_number(_request: Request, _stage: Stage) -> Measured:
    """A measurement that is NaN."""
    return Measured((Measurement("bf16_tflops", float("nan"), 3, 0.0),))


def nonsense(_request: Request, _stage: Stage) -> Measured:
    """Something else than a result."""
    return Measured("many")  # type: ignore[arg-type]


def noise(_request: Request, stage: Stage) -> Measured:
    """Much text on both outputs, then a good answer: it must not fill a pipe and stop."""
    stage("noise")
    for _ in range(2000):
        print("x" * 100)
        print("y" * 100, file=sys.stderr)
    return Measured(details={"said": "enough"})
