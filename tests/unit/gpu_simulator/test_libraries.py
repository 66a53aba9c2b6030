"""The simulated shared libraries: a program loads them by the name it knows, and they tell their versions."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.gpu_simulator import deb, libraries, nvidia_packages, repository

pytestmark = pytest.mark.component

LOAD = "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); value = ctypes.c_int(); "
BY_REFERENCE = "getattr(library, sys.argv[2])(ctypes.byref(value)); print(value.value)"
BY_RETURN = "print(getattr(library, sys.argv[2])())"


def every_package() -> dict[tuple[str, str], deb.Package]:
    arch = repository.architecture()
    drivers = [
        package
        for version in nvidia_packages.DRIVERS
        for package in nvidia_packages.driver_packages(version, arch)
    ]
    found = [*drivers, *nvidia_packages.cuda_packages(arch)]
    return {(package.name, package.version): package for package in found}


def unpack(package: deb.Package, root: Path) -> None:
    (root / "package.deb").write_bytes(deb.build(package))
    subprocess.run(["dpkg-deb", "-x", str(root / "package.deb"), str(root)], check=True)


@pytest.mark.parametrize(
    ("name", "version", "soname", "function", "call", "expected"),
    [
        ("libcudnn9-cuda-13", "9.19.0.56-1", "libcudnn.so.9", "cudnnGetVersion", BY_RETURN, "91900"),
        ("libcudnn9-cuda-12", "9.10.2.21-1", "libcudnn.so.9", "cudnnGetVersion", BY_RETURN, "91002"),
        ("libnccl2", "2.28.9-1+cuda13.0", "libnccl.so.2", "ncclGetVersion", BY_REFERENCE, "22809"),
        ("libcuda1", "580.178.04-1", "libcuda.so.1", "cuDriverGetVersion", BY_REFERENCE, "13000"),
        ("libcuda1", "595.91.07-1", "libcuda.so.1", "cuDriverGetVersion", BY_REFERENCE, "13020"),
    ],
)
def test_a_library_tells_its_version(
    tmp_path: Path, name: str, version: str, soname: str, function: str, call: str, expected: str
) -> None:
    unpack(every_package()[name, version], tmp_path)
    (path,) = tmp_path.rglob(soname)
    answer = subprocess.run(
        [sys.executable, "-c", LOAD + call, str(path), function], capture_output=True, text=True, timeout=30
    )
    assert (answer.stdout.strip(), answer.stderr) == (expected, "")


def test_nvml_says_that_no_driver_is_loaded(tmp_path: Path) -> None:
    unpack(every_package()["libnvidia-ml1", "580.178.04-1"], tmp_path)
    (path,) = tmp_path.rglob("libnvidia-ml.so.1")
    # This machine's own /sys is read; a machine with a driver has it loaded, of another version.
    code = LOAD + "print(library.nvmlInit_v2())"
    answer = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=30
    )
    assert answer.stdout.strip() in ("9", "18")


def test_a_library_asks_for_no_executable_stack(tmp_path: Path) -> None:
    """Debian 13's C library loads none that does."""
    unpack(every_package()["libnccl2", "2.28.9-1+cuda13.0"], tmp_path)
    (path,) = tmp_path.rglob("libnccl.so.2")
    headers = subprocess.run(["readelf", "-lW", str(path)], capture_output=True, text=True, check=True).stdout
    (stack,) = [line.split() for line in headers.splitlines() if "GNU_STACK" in line]
    assert stack[6] == "RW"


def test_a_source_that_does_not_compile_is_said_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libbroken.c").write_text("int f(void) { return @CODE@ }\n")
    monkeypatch.setattr(libraries, "FILES", tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)gcc does not compile libbroken\.c: .*expected"):
        libraries.shared_library("libbroken", "libbroken.so.1", "1", 1)
