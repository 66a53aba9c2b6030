#!/usr/bin/python3
"""Simulated by Temper's lab: what GRUB does with a node's own grub.cfg and grubenv when the node boots.

It chooses the kernel, forgets the one try as the script's save_env does, and notes what uname(2) has to say.
A kernel with the file /boot/hangs-RELEASE does not come up: somebody switches the node off and on, and GRUB
chooses again. It knows nothing of Temper, and reads the script in its own way.
"""

import re
import subprocess
from pathlib import Path

GRUB = Path("/boot/grub")
RUN = Path("/run/boot-simulator")
HEADER = re.compile(r'if \[ "\$\{next_entry\}" \] ; then.*?\nelse\n\s+set default="([^"]*)"\nfi\n', re.DOTALL)


def choose() -> str:
    """The release that GRUB boots now."""
    listed = subprocess.run(
        ["grub-editenv", GRUB / "grubenv", "list"], check=True, capture_output=True, text=True
    ).stdout
    environment = dict(line.split("=", 1) for line in listed.splitlines())
    script = (GRUB / "grub.cfg").read_text(encoding="utf-8")
    header = HEADER.search(script)
    assert header, "expected grub.cfg as GRUB 2.06 writes it"
    wanted = environment.get("next_entry", "")
    if wanted:
        subprocess.run(["grub-editenv", GRUB / "grubenv", "unset", "next_entry"], check=True)
    else:
        wanted = header[1].replace("${saved_entry}", environment.get("saved_entry", "0"))
    # Places are those of a node with one system: the first entry, or what is named by its id.
    identity = wanted.rpartition(">")[2]
    start = script.index("\nmenuentry ") if wanted == "0" else script.index(f"'{identity}' {{")
    found = re.compile(r"\n\s*linux\s+/boot/vmlinuz-(\S+)").search(script, start)
    assert found, f"expected a kernel for {wanted}"
    return found[1]


def main() -> None:
    """Boot; each kernel that hangs costs a try."""
    RUN.mkdir(exist_ok=True)
    tried = []
    while (release := choose()) in tried or Path(f"/boot/hangs-{release}").exists():
        assert release not in tried, f"kernel {release} hangs at every boot"
        tried.append(release)
    (RUN / "release").write_text(release, encoding="ascii")
    print(f"boot-simulator: {' hung, '.join([*tried, release])} booted")


main()
