#!/usr/bin/python3
"""NCCL's settings for containers with a GPU: one more mount in the CDI specification of NVIDIA's toolkit.

The program that nvidia-cdi-refresh.service runs after nvidia-ctk has written the specification. nvidia-ctk
1.20 has no option for further mounts, and a specification of our own would need devices of its own, while
people ask for nvidia.com/gpu. Standard library only.

It is a mount, and no `env`: CDI replaces variables that a container was given (container-edits.go of
cncf-tags/container-device-interface), while every variable wins over NCCL's file. What is mounted is a copy
beside the specification, so that none ever names a file that is gone: with that, no container would start.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

ORIGINAL = Path("/etc/temper/container-nccl.conf")
SPECIFICATION = "/var/run/cdi/nvidia.yaml"
COPY = "temper-nccl.conf"
TARGET = "/etc/nccl.conf"
# As nvidia-ctk mounts the driver's files.
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
LINE = re.compile(r"( *)(- )?(\w+):\s*")


class SpecificationError(Exception):
    """A specification has another form than nvidia-ctk's; the message says what was expected."""


def with_mount(text: str, source: str) -> str:
    """Return the specification (YAML or JSON) with `source` mounted as /etc/nccl.conf for each device.

    Raises SpecificationError.
    """
    if text.lstrip().startswith("{"):
        mount = {"hostPath": source, "containerPath": TARGET, "options": list(OPTIONS)}
        try:
            document = json.loads(text)
            document.setdefault("containerEdits", {}).setdefault("mounts", []).append(mount)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise SpecificationError(f"expected JSON as nvidia-ctk writes it: {error!r}") from error
        return json.dumps(document, indent=4) + "\n"
    lines = text.splitlines(keepends=True)
    number = _first_mount(lines)
    indent = lines[number].partition("-")[0]
    item = f"{{hostPath: {source}, containerPath: {TARGET}, options: [{', '.join(OPTIONS)}]}}"
    return "".join([*lines[:number], f"{indent}- {item}\n", *lines[number:]])


def _first_mount(lines: list[str]) -> int:
    """Return the line of the first mount that all devices share."""
    depth = -1  # of the keys below containerEdits; -1 outside
    for number, line in enumerate(lines):
        if line[:1] not in " -#\n":  # a key of the document
            depth = 0 if line.rstrip() == "containerEdits:" else -1
            continue
        key = LINE.fullmatch(line)
        if depth < 0 or not key or key[2]:
            continue
        depth = depth or len(key[1])
        if len(key[1]) == depth and key[3] == "mounts" and "- " in "".join(lines[number + 1 : number + 2]):
            return number + 1
    raise SpecificationError("expected mounts for all devices, as nvidia-ctk writes them; found none")


def replace(path: Path, text: str) -> None:
    """Write a file that everybody may read, in one step. This program stands alone: files.py is not there."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".temper-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def main() -> int:
    """Mount the settings by every specification that nvidia-ctk has just written."""
    path = Path(os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH") or SPECIFICATION)
    if path.suffix not in (".yaml", ".json"):
        path = path.with_name(f"{path.name}.yaml")
    if not ORIGINAL.exists():
        return 0
    copy = path.parent / COPY
    replace(copy, ORIGINAL.read_text(encoding="utf-8"))
    # On a GPU with coherent memory, nvidia-ctk writes nvidia.coherent.yaml beside.
    for specification in (path, *sorted(path.parent.glob(f"{path.stem}.*{path.suffix}"))):
        text = specification.read_text(encoding="utf-8")
        try:
            replace(specification, with_mount(text, str(copy)))
        except (SpecificationError, ValueError) as error:
            print(
                f"{specification}: {error}. Containers do without NCCL's settings; "
                "compute_environment_container_nccl: none ends this message.",
                file=sys.stderr,
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
