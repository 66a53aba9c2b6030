"""Read what Debian's nvidia-smi says of every model of NVIDIA's mock NVML.

TEMPER_MOCK_NVML names the folder of a mock that somebody built: libnvidia-ml.so.1 and configs/*.yaml, one a
model. NVIDIA/k8s-test-infra has it in pkg/gpu/mocknvml, where `make` (Go, gcc) leaves both.
TEMPER_MOCK_NVML_RECORD names a folder that gets what nvidia-smi said, as in tests/unit/validation/mock_nvml.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import host_apt
from tests.lab.cache import digest, obtain
from tests.lab.process import run
from tests.lab.settings import Lab
from tests.unit.validation.smi_agreement import QUERY, differences, ours_alone

MOCK = Path(os.environ.get("TEMPER_MOCK_NVML", "/nonexistent"))
LIBRARY = "libnvidia-ml.so.1"
MODELS = sorted(MOCK.glob("configs/*.yaml"))
#: Two branches of nvidia-smi, in Debian's non-free.
SUITE, PACKAGES = "trixie", ("nvidia-smi", "nvidia-tesla-535-smi")
TIMEOUT_S = 120
#: What recordings say instead of what belongs to one GPU.
UUID = "GPU-00000000-0000-0000-0000-000000000000"
IDENTITY = "serial|vbios_version|board_part_number|img_version|oem_object|ecc_object|pwr_object"

pytestmark = pytest.mark.skipif(not MODELS, reason="TEMPER_MOCK_NVML names no mock with configs/*.yaml")


@pytest.fixture(scope="module")
def programs() -> list[Path]:
    """Return nvidia-smi of each package, fetched once."""
    sources = host_apt.read().sources_text(SUITE)
    sources = re.sub(r"^Components: .*$", "Components: non-free", sources, flags=re.MULTILINE)

    def fill(folder: Path) -> None:
        (folder / "debian.sources").write_text(sources)
        for name in ("state/lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        options = {
            "Dir::Etc::SourceList": folder / "debian.sources",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State": folder / "state",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
        }
        apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
        run([*apt, "update"])
        run(["env", f"--chdir={folder}", *apt, "download", *PACKAGES])
        for package in folder.glob("*.deb"):
            run(["dpkg-deb", "--extract", str(package), str(folder / "root")])

    folder = obtain(Lab.from_environment().cache, f"nvidia-smi-{digest([sources, *PACKAGES])}", fill)
    found = sorted(folder.glob("root/usr/lib/nvidia/*/nvidia-smi"))
    assert len(found) == len(PACKAGES)
    return found


def ask(program: Path, model: Path, *arguments: str) -> str:
    """Return what nvidia-smi says of the GPUs of a model."""
    variables = {"LD_LIBRARY_PATH": str(MOCK), "MOCK_NVML_CONFIG": str(model), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [program, *arguments], env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.stem.rpartition("-")[2])
def test_what_is_read_of_a_model_is_what_nvidia_smi_says(programs: list[Path], model: Path) -> None:
    for program in programs:
        report, columns = ask(program, model, "-q", "-x"), ask(program, model, *QUERY)
        if folder := os.environ.get("TEMPER_MOCK_NVML_RECORD"):
            record(Path(folder), program, model, report, columns)
        assert ours_alone(differences(report, columns)) == []


def record(folder: Path, program: Path, model: Path, report: str, columns: str) -> None:
    """Keep what was said of the first GPU, without its identity and what the mock makes up by the hundred."""
    own = re.sub(r"<supported_clocks>.*?</supported_clocks>\s*", "", report, flags=re.DOTALL)
    one = re.sub(r"(</process_info>).*?(</processes>)", r"\1\n\t\t\2", own, count=1, flags=re.DOTALL)
    first, end, _ = one.partition("</gpu>")
    first = re.sub(rf"<({IDENTITY})>[^<]*<", r"<\1>N/A<", first)
    text = re.sub(r"<attached_gpus>\d+<", "<attached_gpus>1<", f"{first}{end}\n\n</nvidia_smi_log>\n")
    name = f"{program.parent.name}-{model.stem.rpartition('-')[2]}"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, said in (("xml", text), ("csv", columns.splitlines(keepends=True)[0])):
        (folder / f"{name}.{suffix}").write_text(re.sub(r"GPU-[0-9a-f-]{36}", UUID, said))


if __name__ == "__main__":
    # Whether the step can run: `make nightly` skips it otherwise, and says so.
    is_there = MODELS and (MOCK / LIBRARY).exists()
    sys.exit(0 if is_there else f"TEMPER_MOCK_NVML={MOCK}: expected {LIBRARY} and configs/*.yaml")
