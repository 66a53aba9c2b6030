"""nvidia-ctk, the container toolkit's own program, writes the drop-ins of containerd and CRI-O.

It is run on copies, so that an engine reads the outcome before a file of the node changes. What it does was
read in NVIDIA/nvidia-container-toolkit v1.20.0, cmd/nvidia-ctk/runtime/configure and pkg/config/engine.
"""

from __future__ import annotations

import typing

from ansible.module_utils.temper.engines.base import HEADER
from ansible.module_utils.temper.process import CommandError, run, which
from ansible.module_utils.temper.settings.base import RefusedError

if typing.TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "nvidia-ctk"
# Stands for its drop-in where a check before the first installation has no toolkit to ask.
UNKNOWN = f"{HEADER} What nvidia-ctk of the container toolkit will write.\n"


def installed() -> bool:
    """Return whether there is a toolkit to ask."""
    return which(PROGRAM) is not None


def configure(engine: str, config: Path, drop_in: Path, *, default: bool, cdi: bool = False) -> str:
    """Return what the drop-in holds that nvidia-ctk makes for this configuration; `config` is rewritten, too.

    Raises RefusedError.
    """
    flags = ["--set-as-default"] if default else []
    flags += ["--cdi.enabled"] if cdi else []
    command = [PROGRAM, "runtime", "configure", f"--runtime={engine}", f"--config={config}"]
    try:
        run([*command, f"--drop-in-config={drop_in}", *flags])
        return drop_in.read_text(encoding="utf-8")
    except (CommandError, OSError) as error:
        raise RefusedError(
            f"nvidia-ctk makes no configuration for {engine}: {error}. Expected the container toolkit 1.18 "
            f"or newer (role nvidia_stack); or name {engine} in container_engines_exclude."
        ) from error
