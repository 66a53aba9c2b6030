"""Stand-ins for the engines of a node, which answer as the real ones do; the lab has the real ones."""

import sys
from pathlib import Path

from ansible.module_utils.temper.engines import containerd

from tests.unit.executables import executable

SIMULATOR = Path(__file__).resolve().parents[2] / "lab/gpu_simulator/packages"
COMBINED = """\
def combined(below, above):
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = combined(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
"""
# Merges drop-ins as one generation of containerd does: `tables` (2.x), `runtimes` (1.7) or `section` (1.6).
CONTAINERD = """\
#!{python}
import glob, sys, tomllib
sys.path.insert(0, {simulator!r})
from nvidia_ctk_configure import render
{combined}style, version, plugin = {style!r}, {version}, {plugin!r}
runc = {{"containerd": {{"runtimes": {{"runc": {{"runtime_type": "io.containerd.runc.v2"}}}}}}, "zero": ""}}
default = {{"version": version, "imports": [], "plugins": {{plugin: runc}}}}
arguments = sys.argv[1:]
if arguments == ["--version"]:
    print("containerd github.com/containerd/containerd {number}")
    sys.exit()
if arguments == ["config", "default"]:
    print(render(default))
    sys.exit()
main = tomllib.loads(open(arguments[1]).read())
result = combined(default, main)
for name in [name for pattern in main.get("imports", []) for name in sorted(glob.glob(pattern)) or [pattern]]:
    above = tomllib.loads(open(name).read())
    if style == "tables":
        result = combined(result, above)
    elif style == "section":
        result["plugins"] = {{**result["plugins"], **above.get("plugins", {{}})}}
    elif style == "runtimes":
        result = combined(result, above)
        if "plugins" in above:
            runtimes = above["plugins"][plugin]["containerd"]["runtimes"]
            result["plugins"][plugin]["containerd"]["runtimes"] = runtimes
    elif "plugins" in above:
        result = combined(result, {{**above, "oom_score": 7}})
print(render(result))
"""
CRIO = """\
#!{python}
import pathlib, sys, tomllib
sys.path.insert(0, {simulator!r})
from nvidia_ctk_configure import render
{combined}if sys.argv[1:] == ["--version"]:
    print("crio version 1.30.2")
    sys.exit()
result = {{}}
for path in sorted(pathlib.Path(sys.argv[1].partition("=")[2]).iterdir()):
    result = combined(result, tomllib.loads(path.read_text()))
print(render(result))
"""
SYSTEMCTL = """\
#!/bin/sh
[ "$1" = show ] || {{ echo "$*" >>{log}; exit 0; }}
case "$2" in
    *UnitFileState*) cat {refresh} ;;
    *) shift 3
       for unit; do
           echo LoadState=loaded
           echo ActiveState=inactive
           echo MainPID=0
           echo "ExecStart={{ path=/usr/bin/x ; argv[]=/usr/bin/x $(cat {options}) ; pid=0 }}"
           echo
       done ;;
esac
"""


class Node:
    """A node in a folder: its engines' files, and programs on PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bin = path / "bin"
        self.bin.mkdir()
        self.daemon_json = path / "docker/daemon.json"
        self.config = path / "containerd/config.toml"
        self.drop_in = path / "containerd/conf.d/99-nvidia.toml"
        self.limits = path / "system/50-temper.conf"
        self.crio = path / "crio.conf.d"
        self.options = path / "options"
        self.options.write_text("")
        self.refresh = path / "refresh"
        self.refresh.write_text("UnitFileState=enabled\n\nUnitFileState=enabled\n")
        self.runtime = path / "nvidia-container-runtime"
        self.runtime.touch()
        self.program(
            "nvidia-ctk",
            f'#!/bin/sh\nexec {sys.executable} {SIMULATOR}/nvidia_ctk_configure.py "$@"\n',
        )
        self.program(
            "systemctl",
            SYSTEMCTL.format(log=path / "log", refresh=self.refresh, options=self.options),
        )

    def program(self, name: str, text: str) -> None:
        executable(self.bin / name, text)

    def has_docker(self, version: str = "26.1.5") -> None:
        self.program("dockerd", f"#!/bin/sh\n[ $1 = --version ] && echo Docker version {version}; exit 0\n")

    def has_containerd(self, style: str = "runtimes", number: str = "1.7.24", version: int = 2) -> None:
        self.program(
            "containerd",
            CONTAINERD.format(
                python=sys.executable,
                simulator=str(SIMULATOR),
                combined=COMBINED,
                style=style,
                number=number,
                version=version,
                plugin=containerd.PLUGINS[str(version)],
            ),
        )

    def has_crio(self) -> None:
        self.crio.mkdir()
        self.program("crio", CRIO.format(python=sys.executable, simulator=str(SIMULATOR), combined=COMBINED))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self) -> dict[str, str]:
        return {str(file): file.read_text() for file in self.path.rglob("*") if file.is_file()}
