"""The stand-in's libraries: as many as a CUDA build of torch wants, under the names that it wants them by.

What `native/` implements stands in for CUDA; every other function that this torch refers to becomes one that
says on standard error that it is missing, and returns its library's error for "not supported". So what is not
there is never taken for done.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Native:
    """What native/ has of a library, and what the library returns for "not supported"."""

    sources: tuple[str, ...] = ()
    not_supported: int = 1


#: By name without the release. The first has the state that the others use.
LIBRARIES = {
    "libcudart": Native(("runtime.c", "product.c"), 801),
    "libcuda": Native(("driver.c",), 801),
    "libcublas": Native(("cublas.c",), 15),
    "libcublasLt": Native(("cublaslt.c",), 15),
    "libcudnn": Native(("cudnn.c",), 3000),
    "libnccl": Native(("nccl.c",), 3),
    "libcupti": Native(("cupti.c",), 27),
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


def libraries(cache: Path, torch: Path, headers: Path, cuda: str) -> Path:
    """The folder of libraries for the torch in this package folder, compiled once. Raises LabError.

    Args:
        cache: where it is kept.
        torch: the package's folder.
        headers: those of the CUDA runtime.
        cuda: the major release of the CUDA that this torch is built for.
    """
    runtime = f"libcudart.so.{cuda}"
    wanted = _wanted(torch / "lib", runtime)
    parts = [
        *tree_parts(NATIVE),
        Path(__file__).read_bytes(),
        repr(sorted(wanted.items())),
        platform.machine(),
    ]

    def fill(folder: Path) -> None:
        for name in sorted(wanted, key=lambda name: name != runtime):
            others = [] if name == runtime else [str(folder / runtime)]
            _compile(folder, name, wanted[name], [f"-I{headers}", f"-I{NATIVE}"], others)

    return obtain(cache, f"cuda-standin-{digest(parts)}", fill)


def _wanted(folder: Path, runtime: str) -> dict[str, dict[str, str]]:
    """What torch's libraries refer to in others, with its version, by library. Variables end in a star."""
    found: dict[str, dict[str, str]] = {runtime: {}, PREFIXES["cu"]: {}}
    for library in sorted(folder.glob("lib*.so")):
        for line in run(["readelf", "-W", "--dyn-syms", str(library)]).splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[6] != "UND":
                continue
            name, _, version = fields[7].partition("@")
            variable = fields[3] == "OBJECT"
            if (version or not variable) and (owner := _owner(name, version)):
                found.setdefault(owner, {})[name + "*" * variable] = version
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


def _compile(folder: Path, name: str, wanted: dict[str, str], include: list[str], others: list[str]) -> None:
    own = LIBRARIES.get(name.partition(".so")[0], Native())
    sources = [NATIVE / source for source in own.sources]
    options = [*COMPILER, *include, f"-Wl,-soname,{name}"]
    native = folder / f"{name}.native"
    implemented: set[str] = set()
    tail = ["-lpthread", "-ldl", "-lm", "-lrt"]
    if sources:
        run([*options, *map(str, sources), "-o", str(native), *others, *tail], timeout_s=300)
        listed = run(["nm", "-D", "--defined-only", str(native)]).splitlines()
        implemented = {line.split()[-1].partition("@")[0] for line in listed}
        native.unlink()
    missing = folder / "missing.c"
    stubs = "".join(
        f"long {name[:-1]}[8];\n"
        if name.endswith("*")
        else f'long {name}(void) {{ return standin_missing("{name}", {own.not_supported}); }}\n'
        for name in sorted(wanted.keys() - implemented)
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
