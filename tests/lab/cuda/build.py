"""The stand-in's libraries: as many as a CUDA build of torch wants, under the names that it wants them by.

What `native/` implements stands in for CUDA; every other function that this torch refers to becomes one that
says on standard error that it is missing, and returns its library's error for "not supported". So what is not
there is never taken for done.
"""

from __future__ import annotations

import platform
from pathlib import Path

from tests.lab.cache import digest, obtain, tree_parts
from tests.lab.process import run

NATIVE = Path(__file__).with_name("native")
#: The library of each name without a version: by how its functions begin.
PREFIXES = {
    "nccl": "libnccl.so.2",
    "cusparseLt": "libcusparseLt.so.0",
    "cuFile": "libcufile.so.0",
    "curand": "libcurand.so.10",
    "nvshmem": "libnvshmem_host.so.3",
    "cu": "libcuda.so.1",
}
#: What native/ has of each library. The first has the state that the others use.
SOURCES = {
    "libcudart.so.12": ("runtime.c", "product.c"),
    "libcuda.so.1": ("driver.c",),
    "libcublas.so.12": ("cublas.c",),
    "libcublasLt.so.12": ("cublaslt.c",),
    "libcudnn.so.9": ("cudnn.c",),
    "libnccl.so.2": ("nccl.c",),
}
#: What each library returns for "not supported"; others return 1.
NOT_SUPPORTED = {
    "libcudart.so.12": 801,
    "libcuda.so.1": 801,
    "libcublas.so.12": 15,
    "libcublasLt.so.12": 15,
    "libcudnn.so.9": 3000,
    "libnccl.so.2": 3,
}
# Sums may be made in any order, always the same one; what is no number stays none.
_NUMBERS = ["-fno-math-errno", "-fno-signed-zeros", "-fno-trapping-math", "-fassociative-math"]
COMPILER = [
    "gcc",
    "-std=gnu11",
    "-O3",
    "-march=native",
    *_NUMBERS,
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
]


def libraries(cache: Path, torch: Path, headers: Path) -> Path:
    """The folder of libraries for the torch in this package folder, compiled once. Raises LabError."""
    wanted = _wanted(torch / "lib")
    parts = [
        *tree_parts(NATIVE),
        Path(__file__).read_bytes(),
        repr(sorted(wanted.items())),
        platform.machine(),
    ]

    def fill(folder: Path) -> None:
        for name in sorted(wanted, key=lambda name: name != "libcudart.so.12"):
            _compile(folder, name, wanted[name], headers)

    return obtain(cache, f"cuda-standin-{digest(parts)}", fill)


def _wanted(folder: Path) -> dict[str, dict[str, str]]:
    """The functions that torch's libraries refer to in others, with their versions, by library."""
    found: dict[str, dict[str, str]] = {name: {} for name in SOURCES}
    for library in sorted(folder.glob("lib*.so")):
        for line in run(["readelf", "-W", "--dyn-syms", str(library)]).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[6] != "UND" or fields[3] == "OBJECT":
                continue
            name, _, version = fields[7].partition("@")
            if owner := _owner(name, version):
                found.setdefault(owner, {})[name] = version
        for line in run(["readelf", "-d", str(library)]).splitlines():
            needed = line.partition("Shared library: [")[2].rstrip("]")
            if needed in PREFIXES.values():
                found.setdefault(needed, {})
    return found


def _owner(name: str, version: str) -> str | None:
    if version == "NVSHMEM":
        return PREFIXES["nvshmem"]
    if version.startswith(("libcu", "libnv")):
        return version
    return next(
        (owner for prefix, owner in PREFIXES.items() if not version and name.startswith(prefix)), None
    )


def _compile(folder: Path, name: str, wanted: dict[str, str], headers: Path) -> None:
    sources = [NATIVE / source for source in SOURCES.get(name, ())]
    options = [*COMPILER, f"-I{headers}", f"-I{NATIVE}", f"-Wl,-soname,{name}"]
    native = folder / f"{name}.native"
    implemented: set[str] = set()
    others = [] if name == "libcudart.so.12" else [str(folder / "libcudart.so.12")]
    tail = ["-lpthread", "-ldl", "-lm", "-lrt"]
    if sources:
        run([*options, *map(str, sources), "-o", str(native), *others, *tail], timeout_s=300)
        listed = run(["nm", "-D", "--defined-only", str(native)]).splitlines()
        implemented = {line.split()[-1].partition("@")[0] for line in listed}
        native.unlink()
    code = NOT_SUPPORTED.get(name, 1)
    missing = folder / "missing.c"
    stubs = "".join(
        f'long {function}(void) {{ return standin_missing("{function}", {code}); }}\n'
        for function in sorted(wanted.keys() - implemented)
    )
    missing.write_text("int standin_missing(const char *, int);\n" + stubs)
    versions = sorted({version for version in wanted.values() if version})
    script = folder / "versions"
    script.write_text("".join(f"{version} {{ *; }};\n" for version in versions))
    scripted = [f"-Wl,--version-script={script}"] if versions else []
    # A stub takes no arguments, whatever the compiler believes of a function of that name.
    plain = [*options, *scripted, "-fno-builtin"]
    run([*plain, *map(str, sources), str(missing), "-o", str(folder / name), *others, *tail], timeout_s=300)
    missing.unlink()
    script.unlink()
