"""Libraries are loaded and asked in a process of their own: what they answer, and what if they do not."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible.module_utils.temper.driver import runtime

from tests.lab.gpu_simulator import libraries
from tests.unit.executables import executable

pytestmark = pytest.mark.component

NCCL = ("libnccl", "libnccl.so.2", "2.28.9", 22809)


@pytest.fixture
def libdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the children's loader looks first."""
    directory = tmp_path / "lib"
    directory.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(directory))
    return directory


def install(libdir: Path, source: str, soname: str, version: str, code: int) -> Path:
    path = libdir / f"{soname.partition('.so')[0]}.so.{version}"
    path.write_bytes(libraries.shared_library(source, soname, version, code))
    (libdir / soname).symlink_to(path.name)
    return path


def compile_library(libdir: Path, soname: str, source: str) -> None:
    command = ["gcc", "-x", "c", "-shared", "-fPIC", "-nostdlib", "-o", str(libdir / soname), "-"]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.mark.parametrize(
    ("decode", "number", "version"),
    [
        (runtime.decode_cudnn, 91900, "9.19.0"),
        (runtime.decode_cudnn, 91002, "9.10.2"),
        (runtime.decode_cudnn, 8907, "8.9.7"),
        (runtime.decode_nccl, 22809, "2.28.9"),
        (runtime.decode_nccl, 20905, "2.9.5"),
        (runtime.decode_nccl, 2804, "2.8.4"),
        (runtime.decode_cuda, 13000, "13.0"),
        (runtime.decode_cuda, 12090, "12.9"),
    ],
)
def test_numbers_are_decoded_as_the_headers_encode_them(
    decode: Callable[[int], str], number: int, version: str
) -> None:
    assert decode(number) == version


def test_libraries_of_the_planned_versions_pass(libdir: Path) -> None:
    cudnn = install(libdir, "libcudnn", "libcudnn.so.9", "9.19.0", 91900)
    nccl = install(libdir, *NCCL)
    versions, problem = runtime.prove({"cudnn": "9.19.0", "nccl": "2.28.9"})
    assert problem == ""
    assert versions == {
        "cudnn": {"expected": "9.19.0", "found": "9.19.0", "file": str(cudnn)},
        "nccl": {"expected": "2.28.9", "found": "2.28.9", "file": str(nccl)},
    }


def test_what_the_plan_does_not_have_is_not_asked(libdir: Path) -> None:
    assert runtime.prove({"cudnn": "", "nccl": None}) == ({}, "")


def test_another_version_is_said_with_the_file_that_was_loaded(libdir: Path) -> None:
    path = install(libdir, "libnccl", "libnccl.so.2", "2.27.5", 22705)
    versions, problem = runtime.prove({"nccl": "2.28.9"})
    assert f"NCCL: expected 2.28.9, found 2.27.5 in {path}" in problem
    assert versions == {"nccl": {"expected": "2.28.9", "found": "2.27.5", "file": str(path)}}


@pytest.mark.parametrize(("expected", "ok"), [("12.9", True), ("13.0", True), ("13.2", False)])
def test_a_driver_speaks_every_cuda_up_to_its_own(libdir: Path, expected: str, ok: bool) -> None:
    install(libdir, "libcuda", "libcuda.so.1", "580.178.04", 13000)
    _, problem = runtime.prove({"cuda_driver": expected})
    assert (problem == "") == ok


def test_every_problem_is_in_one_message(libdir: Path) -> None:
    install(libdir, "libcudnn", "libcudnn.so.9", "9.18.1", 91801)
    _, message = runtime.prove({"cudnn": "9.19.0", "nccl": "2.28.9"})
    assert "cuDNN: expected 9.19.0, found 9.18.1" in message
    assert "NCCL could not be asked: libnccl.so.2: cannot open shared object file" in message


def test_a_crash_is_a_sentence(libdir: Path) -> None:
    crash = "int ncclGetVersion(int *v) { (void)v; __builtin_trap(); }"
    compile_library(libdir, "libnccl.so.2", crash)
    _, message = runtime.prove({"nccl": "2.28.9"})
    assert "NCCL crashed with SIGILL when asked for its version; expected 2.28.9" in message


def test_a_hang_is_a_sentence(libdir: Path) -> None:
    compile_library(libdir, "libnccl.so.2", "int ncclGetVersion(int *v) { (void)v; for (;;); }")
    _, message = runtime.prove({"nccl": "2.28.9"}, timeout_s=1)
    assert "NCCL did not answer within 1 s; expected 2.28.9" in message


def test_a_refusal_is_said_with_its_number(libdir: Path) -> None:
    compile_library(libdir, "libcuda.so.1", "int cuDriverGetVersion(int *v) { (void)v; return 34; }")
    _, message = runtime.prove({"cuda_driver": "13.0"})
    assert "could not tell its version: cuDriverGetVersion returned status 34" in message


def test_a_library_without_the_function_is_another_library(libdir: Path) -> None:
    compile_library(libdir, "libnccl.so.2", "int f(void) { return 1; }")
    _, message = runtime.prove({"nccl": "2.28.9"})
    assert "undefined symbol: ncclGetVersion" in message


NVML = """
int nvmlInit_v2(void) {{ return {init}; }}
int nvmlShutdown(void) {{ return 0; }}
const char *nvmlErrorString(int e) {{ return e == 18 ? "Driver/library version mismatch" : "other"; }}
int nvmlSystemGetDriverVersion(char *b, unsigned n) {{
    const char *v = "580.178.04"; for (unsigned i = 0; i < n && (b[i] = v[i]); i++); return 0;
}}
"""


def test_nvml_tells_the_version_of_the_loaded_driver(libdir: Path) -> None:
    compile_library(libdir, "libnvidia-ml.so.1", NVML.format(init=0))
    versions, problem = runtime.prove({"driver": "580.178.04"})
    assert (versions["driver"]["found"], problem) == ("580.178.04", "")


def test_a_driver_of_another_version_is_said_in_nvmls_words(libdir: Path) -> None:
    compile_library(libdir, "libnvidia-ml.so.1", NVML.format(init=18))
    _, message = runtime.prove({"driver": "580.178.04"})
    assert "NVML could not tell its version: Driver/library version mismatch" in message


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("echo 'Fabric Manager version is : 580.178.04'", ""),
        ("echo 'Fabric Manager version is : 580.126.09'", "expected 580.178.04, found 580.126.09 in"),
        ("echo hello", "tells no version"),
        ("echo broken >&2; exit 3", "could not be asked: broken"),
        (None, "has no program nv-fabricmanager"),
    ],
)
def test_the_fabric_manager_is_asked_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, outcome: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        executable(tmp_path / "nv-fabricmanager", script)
    versions, problem = runtime.prove({"fabric_manager": "580.178.04"})
    if outcome:
        assert outcome in problem
    else:
        assert (versions["fabric_manager"]["found"], problem) == ("580.178.04", "")
