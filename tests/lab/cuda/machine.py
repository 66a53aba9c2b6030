"""A machine with GPUs that are not there: PCI devices and nvidia-smi of the simulator, and the stand-in.

Programs run on it in a mount namespace of their own, in which /sys and /proc show the simulated devices.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.cuda.environment import Environment
from tests.lab.gpu_simulator import nvidia_packages, profiles
from tests.lab.process import ISOLATED, run
from validation.model.contract import EXPECTATIONS_VERSION

CHECKOUT = Path(__file__).parents[3]
SIMULATOR = Path(profiles.__file__).parent
KERNEL_SIDE = SIMULATOR / "node/usr/lib/gpu-simulator/machine.py"
NVIDIA_SMI = SIMULATOR / "packages/nvidia_smi.py"
DRIVER = "580.126.09"
#: What the simulated kernel shows, and where the real one does.
SHADOWED = ("sys/bus/pci", "sys/module", "proc/driver")
PROFILE = "hgx-h100-8"
#: Of each GPU: enough for what the quick plan copies, too little for a collective of 1 GiB.
MEMORY_MIB = 2500
#: Small products: the host makes them. The payload takes shapes from what is expected of a node.
SHAPE = (512, 512, 512)
ARCHITECTURE = "stand-in"
#: After so long by the clock a program waits for something that never comes.
WAITS_S = 3600
#: So slow in the model that the payload has measured for long enough when it has taken the fewest samples.
RATES = {
    "tflops": 0.0002,
    "memory_gb_s": 1,
    "pinned_gb_s": 0.5,
    "pageable_gb_s": 0.25,
    "peer_gb_s": 0.5,
    "nccl_gb_s": 0.1,
}


def _more_gpus() -> list[dict[str, Any]]:
    """Eight more, on a second PCI domain: the profile's server has eight."""
    gpus = profiles.hardware(PROFILE, "gpu02")["gpus"]
    return [
        gpu
        | {
            "index": len(gpus) + gpu["index"],
            "module_id": len(gpus) + gpu["module_id"],
            "address": gpu["address"].replace("0000:", "0001:", 1),
        }
        for gpu in gpus
    ]


@dataclass
class Machine:
    """A machine with `gpus` GPUs, below the folder `root`; `settings` are those of runtime.c."""

    root: Path
    environment: Environment
    gpus: int = 1
    settings: dict[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hardware = profiles.hardware(PROFILE, "gpu01")
        gpus = hardware["gpus"] = [*hardware["gpus"], *_more_gpus()][: self.gpus]
        hardware["nvswitches"] = []
        for gpu in gpus:
            memory_mib = self.settings.get("memory_mib", MEMORY_MIB)
            gpu |= {"memory_total_mib": memory_mib, "memory_reserved_mib": 0}
        self.pci_id = hardware["gpus"][0]["device_id"]
        self._write("var/lib/gpu-simulator/hardware.json", json.dumps(hardware))
        cuda = nvidia_packages.DRIVERS[DRIVER]
        nvml = {"simulated": "NVML", "version": DRIVER, "cuda": cuda}
        self._write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", json.dumps(nvml))
        module = {"simulated": "nvidia.ko", "version": DRIVER, "flavour": "open"}
        self._write(f"lib/modules/{os.uname().release}/updates/dkms/nvidia.ko", json.dumps(module))
        self._write("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n")
        smi = self._write("bin/nvidia-smi", f'#!/bin/sh\nexec /usr/bin/python3 -IS {NVIDIA_SMI} "$@"\n')
        smi.chmod(0o755)
        state = self.root / "shared"
        state.mkdir()
        lines = [f"pci {gpu['address']}" for gpu in hardware["gpus"]]
        given: dict[str, str | float] = {
            "devices": self.gpus,
            "name": hardware["gpus"][0]["name"],
            "state": str(state),
            "memory_mib": MEMORY_MIB,
            **self.environment.versions,
            **RATES,
        }
        lines += [f"{name} {value}" for name, value in (given | self.settings).items()]
        self._write("machine.conf", "\n".join(lines) + "\n")
        subprocess.run(
            [sys.executable, str(KERNEL_SIDE), "boot"], env=self.variables(), check=True, capture_output=True
        )
        self._write("run/gpu-simulator/fabric-ready", "")  # as the simulated fabric manager leaves it
        run(["env", *self._assignments(), str(smi), "-pm", "1"])

    def _write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def _assignments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.variables().items()]

    def variables(self) -> dict[str, str]:
        """The environment of a process on this machine."""
        return {
            "PATH": f"{self.root}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GPU_SIMULATOR_ROOT": str(self.root),
            "TEMPER_CUDA_MACHINE": str(self.root / "machine.conf"),
            **self.environment.variables(),
        }

    def expectation(self, **more: Any) -> dict[str, Any]:
        """What the payload is to expect: the shapes that are multiplied, and no number to reach."""
        model = {"name": "stand-in", "pci_ids": [self.pci_id], "architecture": ARCHITECTURE}
        shapes = {"matmul": {"sustained": {"any": {"shape": list(SHAPE)}}}}
        references = {"models": {"stand_in": model}, "pcie_x16": {}, "architectures": {ARCHITECTURE: shapes}}
        return {"schema_version": EXPECTATIONS_VERSION, "references": references, **more}

    def start(
        self, *arguments: str, faults: str = "", text: str = "", cpu_s: int
    ) -> subprocess.CompletedProcess[str]:
        """Run this machine's Python with these arguments until it ends, and all that it started with it.

        The kernel ends each process that uses more than `cpu_s`: on a busy machine the clock tells nothing.
        """
        binds = [f"mount --bind {self.root}/{path} /{path}" for path in SHADOWED]
        command = shlex.join([str(self.environment.python), *arguments])
        return subprocess.run(
            [*ISOLATED, "sh", "-ec", "; ".join([f"ulimit -t {cpu_s}", *binds, f"exec {command}"])],
            env=self.variables() | ({"TEMPER_CUDA_FAULT": faults} if faults else {}),
            cwd=CHECKOUT,
            input=text,
            capture_output=True,
            text=True,
            timeout=WAITS_S,
        )

    def validate(
        self, *options: str, faults: str = "", cpu_s: int = 600, **expected: Any
    ) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        """Run the payload; its result, and how it ended. Raises AssertionError where there is no result."""
        expectation = self._write("expectation.json", json.dumps(self.expectation(**expected)))
        output = self.root / "result.json"
        output.unlink(missing_ok=True)
        done = self.start(
            "-m",
            "validation",
            "run",
            "--expect",
            str(expectation),
            "--output",
            str(output),
            *options,
            faults=faults,
            cpu_s=cpu_s,
        )
        assert output.exists(), f"no result; status {done.returncode}: {done.stdout}{done.stderr}"
        result: dict[str, Any] = json.loads(output.read_text())
        return result, done
