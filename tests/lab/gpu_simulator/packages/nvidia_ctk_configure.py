#!/usr/bin/python3
"""Simulated by Temper's lab: `nvidia-ctk runtime configure` for containerd and CRI-O.

It writes byte for byte what the real one writes for the options that it knows. Taken from
NVIDIA/nvidia-container-toolkit v1.20.0: cmd/nvidia-ctk/runtime/configure/configure.go (options, paths),
pkg/config/engine/containerd/{config,containerd,config_drop_in}.go and pkg/config/engine/crio/crio.go (what is
set, what the drop-in copies, the import), and their tests; compared with the real program of that version.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

Table = dict[str, Any]
RUNTIME = "/usr/bin/nvidia-container-runtime"
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
PATHS = {
    "containerd": ("/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"),
    "crio": ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/99-nvidia.toml"),
}
NO_OPTIONS = {
    "runtime_type": "io.containerd.runc.v2",
    "runtime_root": "",
    "runtime_engine": "",
    "privileged_without_host_devices": False,
}


def render(table: Table, path: tuple[str, ...] = ()) -> str:
    """TOML as go-toml 1 prints it: keys in order, then tables, each with its whole name, indented."""
    indent = "  " * len(path)
    simple, tables = [], []
    for name, value in sorted(table.items()):
        header = ".".join(map(key, (*path, name)))
        if isinstance(value, dict):
            tables.append(f"\n{indent}[{header}]\n{render(value, (*path, name))}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"\n{indent}[[{header}]]\n{render(item, (*path, name))}" for item in value]
        else:
            simple.append(f"{indent}{key(name)} = {scalar(value)}\n")
    return "".join(simple + tables)


def key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    return json.dumps(value, ensure_ascii=False)


def read(path: Path) -> Table:
    return tomllib.loads(path.read_text()) if path.exists() else {}


def options_of(runtimes: Table, default: str) -> Table | None:
    """What the new runtime copies: of the default runtime, or of the first that is known."""
    names = [default] if default and not default.startswith("nvidia") else []
    return next(
        (copy.deepcopy(runtimes[name]) for name in [*names, "runc", "crun"] if name in runtimes), None
    )


def containerd(config: Path, drop_in: Path, *, default: bool, cdi: bool) -> None:
    source = read(config)
    version = source.get("version", 1) if source else 2
    if version not in PLUGINS:
        sys.exit(
            "nvidia-ctk: simulated by Temper's lab, which knows the versions 2 and 3 of containerd's format"
        )
    section = copy.deepcopy(source.get("plugins", {}).get(PLUGINS[version], {}))
    cri = section.setdefault("containerd", {})
    runtimes = cri.setdefault("runtimes", {})
    nvidia = options_of(runtimes, cri.get("default_runtime_name", "")) or dict(NO_OPTIONS)
    nvidia["runtime_type"] = nvidia.get("runtime_type") or NO_OPTIONS["runtime_type"]
    nvidia.setdefault("options", {})["BinaryName"] = RUNTIME
    runtimes["nvidia"] = nvidia
    if default:
        cri["default_runtime_name"] = "nvidia"
    elif cri.get("default_runtime_name") == "nvidia":
        del cri["default_runtime_name"]
    if cdi:
        section["enable_cdi"] = True
    write(drop_in, {"version": version, "plugins": {PLUGINS[version]: section}})
    pattern = f"{drop_in.parent}/*.toml"
    imports = source.get("imports", [])
    if pattern not in imports:
        source = {"version": version, **source, "imports": [*imports, pattern]}
    write(config, source)


def crio(config: Path, drop_in: Path, *, default: bool) -> None:
    theirs = read(config).get("crio", {}).get("runtime", {})
    nvidia = options_of(theirs.get("runtimes", {}), theirs.get("default_runtime", "")) or {}
    runtime: Table = {"runtimes": {"nvidia": {**nvidia, "runtime_path": RUNTIME, "runtime_type": "oci"}}}
    if default:
        runtime["default_runtime"] = "nvidia"
    write(drop_in, {"crio": {"runtime": runtime}})


def write(path: Path, table: Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(table))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="nvidia-ctk runtime configure (simulated by Temper's lab)", allow_abbrev=False
    )
    parser.add_argument("--runtime", choices=list(PATHS), required=True)
    parser.add_argument("--config", default="")
    parser.add_argument("--drop-in-config", default="")
    parser.add_argument("--set-as-default", "--nvidia-set-as-default", action="store_true")
    parser.add_argument("--cdi.enabled", "--cdi.enable", "--enable-cdi", action="store_true", dest="cdi")
    options = parser.parse_args(arguments)
    config, drop_in = PATHS[options.runtime]
    paths = Path(options.config or config), Path(options.drop_in_config or drop_in)
    if options.runtime == "containerd":
        containerd(*paths, default=options.set_as_default, cdi=options.cdi)
    else:
        crio(*paths, default=options.set_as_default)


if __name__ == "__main__":
    if sys.argv[1:3] != ["runtime", "configure"]:
        sys.exit("nvidia-ctk: simulated by Temper's lab; expected runtime configure")
    main(sys.argv[3:])
