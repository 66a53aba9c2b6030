"""containerd: a drop-in with the runtime, proven by containerd's own reading of its configuration.

How a drop-in is merged depends on containerd: version 2 merges tables; 1.7 replaces the list of runtimes, so
that runc would be gone; 1.6 replaces the plugin's whole section, so that Debian's path of the network plugins
would be gone (all three seen with `containerd config dump`). So the smallest drop-in is taken under which the
dump shows our settings and else what it showed before.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import typing
from pathlib import Path

from ansible.module_utils.engines import toml
from ansible.module_utils.engines.base import (
    HEADER,
    RUNTIME,
    Plan,
    RefusedError,
    Unit,
    Wish,
    begin,
    ours,
    program_of,
    read_text,
    refuse_foreign,
    run,
    temporary_directory,
    version_of,
    which,
    words,
)

CONFIG = Path("/etc/containerd/config.toml")
DROP_IN = Path("/etc/containerd/conf.d/99-nvidia.toml")
LIMITS = Path("/etc/systemd/system/containerd.service.d/50-temper.conf")
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
LIMIT_NAMES = {"memlock": "LimitMEMLOCK", "stack": "LimitSTACK", "nofile": "LimitNOFILE"}


class Containerd:
    """The engine."""

    name = title = "containerd"
    unit = "containerd.service"
    program = "containerd"
    cdi_since = "1.7.16"
    without_cdi = "; containers get GPUs through the nvidia runtime"

    def plan(self, wish: Wish, unit: Unit, record: dict[str, typing.Any]) -> Plan:
        """Compare the drop-in, its import and the unit's limits with the wish."""
        flags = unit.flags()
        config = Path((flags.get("config") or flags.get("c") or [str(CONFIG)])[0])
        plan = begin(self, unit, version_of(run([program_of(self), "--version"]).stdout), wish, record)
        wanted = self._wanted(wish, plan, config) if wish.present else self._unwanted(plan, config)
        wanted[str(LIMITS)] = _limits(wish) if wish.present and wish.ulimits else None
        for path, content in wanted.items():
            before = read_text(Path(path))
            if content is None and not ours(before) and path != str(config):
                continue
            if before != content:
                plan.files[path] = content
        plan.daemon_reload = str(LIMITS) in plan.files
        plan.action = "restart" if plan.files else ""
        return plan

    def _wanted(self, wish: Wish, plan: Plan, config: Path) -> dict[str, str | None]:
        text = read_text(config)
        if text is None:
            # containerd alone knows which version of the format its defaults have.
            default = toml.parse(self._say("config", "default"), "`containerd config default`")
            text = f"version = {default['version']}\n"
            plan.record["created"] = True
        main = toml.parse(text, str(config))
        version = main.get("version")
        if version not in PLUGINS:
            raise RefusedError(
                f"{config} has version {version or 1}, expected 2 or 3: run `containerd config migrate`, "
                "store what it prints there, and run again."
            )
        refuse_foreign(DROP_IN, read_text(DROP_IN), self)
        imported = _imports(main, config)
        others = [name for name in imported if name != str(DROP_IN)]
        drop_in = self._drop_in(wish, plan, main, others)
        listed = [str(config.parent / pattern) for pattern in main.get("imports", [])]
        if not any(fnmatch.fnmatch(str(DROP_IN), pattern) for pattern in listed):
            text = toml.with_import(text, str(DROP_IN), str(config))
        return {str(DROP_IN): drop_in, str(config): text}

    def _unwanted(self, plan: Plan, config: Path) -> dict[str, str | None]:
        text = read_text(config)
        wanted: dict[str, str | None] = {str(DROP_IN): None}
        if text is not None:
            left = toml.without_import(text, str(DROP_IN), str(config))
            made = plan.record.pop("created", False) and set(toml.parse(left, str(config))) <= {"version"}
            wanted[str(config)] = None if made else left
        return wanted

    def _drop_in(self, wish: Wish, plan: Plan, main: toml.Table, others: list[str]) -> str:
        version = main["version"]
        plugin = PLUGINS[version]
        with temporary_directory() as directory:
            base = self._dump(main, others, directory)
            # What the dump calls it: containerd 2 shows a configuration of version 2 as version 3.
            shown = PLUGINS[base["version"]]
            if "cri" in str(main.get("disabled_plugins", "")):
                raise RefusedError(
                    "containerd's CRI plugin is switched off (disabled_plugins), so that it serves Docker "
                    "alone: name containerd in container_engines_exclude, or switch the plugin on."
                )
            runc = toml.without_zeros(toml.at(base, ("plugins", shown, "containerd", "runtimes")) or {})
            _refuse_foreign_runtime(runc.get("nvidia"))
            mine = _section(wish, plan.cdi, runc.get("runc", {}))
            section = toml.at(main, ("plugins", plugin)) or {}
            runtimes = {"containerd": {"runtimes": runc}}
            expected = toml.without_zeros(toml.combined(base, {"plugins": {shown: mine}}))
            for candidate in (
                mine,
                toml.combined(runtimes, mine),
                toml.combined(section, toml.combined(runtimes, mine)),
            ):
                document = toml.render({"version": version, "plugins": {plugin: candidate}})
                text = f"{HEADER} NVIDIA's runtime, and what containerd would else forget.\n{document}"
                path = Path(directory) / DROP_IN.name
                path.write_text(text, encoding="utf-8")
                found = toml.without_zeros(self._dump(main, [*others, str(path)], directory))
                if {**found, "imports": 0} == {**expected, "imports": 0}:
                    return text
        raise RefusedError(
            f"containerd {plan.version} would change other settings with {DROP_IN} in any form: register "
            "the runtime in its configuration by hand, and name containerd in "
            "container_engines_exclude."
        )

    def _dump(self, main: toml.Table, imports: list[str], directory: str) -> toml.Table:
        path = Path(directory) / "config.toml"
        path.write_text(toml.render({**main, "imports": imports}), encoding="utf-8")
        return toml.parse(self._say("--config", str(path), "config", "dump"), "`containerd config dump`")

    def _say(self, *arguments: str) -> str:
        completed = run([program_of(self), *arguments])
        if completed.returncode:
            raise RefusedError(
                f"containerd does not accept its configuration: {words(completed)}. Correct it and run again."
            )
        return completed.stdout

    def disagreement(self, _wish: Wish, _plan: Plan) -> str:
        """Whether the plugin that reads our drop-in works: containerd runs on without it when it does not."""
        completed = run(["ctr", "plugins", "ls"])
        if completed.returncode:
            return f"`ctr plugins ls` failed: {words(completed)}"
        rows = [row.split() for row in completed.stdout.splitlines()]
        states = {
            row[1]: row[-1] for row in rows if len(row) > 2 and row[0] in ("io.containerd.grpc.v1", CRI_V2)
        }
        state = states.get("cri") or states.get("runtime") or "missing"
        return "" if state == "ok" else f"its CRI plugin is {state} (see `ctr plugins ls` and its journal)"


CRI_V2 = "io.containerd.cri.v1"


def serves_docker_alone() -> bool:
    """Whether containerd is there only as Docker's engine: nothing on the node speaks to it otherwise."""
    return bool(which("dockerd")) and not any(map(which, ("kubelet", "nerdctl", "crictl")))


def _imports(main: toml.Table, config: Path) -> list[str]:
    found: list[str] = []
    for pattern in main.get("imports", []):
        absolute = os.path.join(config.parent, pattern)  # noqa: PTH118  (a pattern, not a path)
        found += sorted(glob.glob(absolute)) if glob.has_magic(absolute) else [absolute]  # noqa: PTH207
    return found


def _refuse_foreign_runtime(runtime: toml.Table | None) -> None:
    program = toml.at(runtime or {}, ("options", "BinaryName"))
    if runtime and program != RUNTIME:
        raise RefusedError(
            f"containerd has a runtime nvidia already, with the program {program or 'runc'}, expected "
            f"{RUNTIME}: remove it (is the GPU operator in charge here?), or name containerd in "
            "container_engines_exclude."
        )


def _section(wish: Wish, cdi: bool, runc: toml.Table) -> toml.Table:
    """Our part of the plugin's section. The runtime is runc's twin: SystemdCgroup and others must agree."""
    options = {**runc.get("options", {}), "BinaryName": RUNTIME}
    containerd: toml.Table = {"runtimes": {"nvidia": {**runc, "options": options}}}
    if not runc:
        containerd["runtimes"]["nvidia"]["runtime_type"] = "io.containerd.runc.v2"
    if wish.default_runtime:
        containerd["default_runtime_name"] = "nvidia"
    return {**({"enable_cdi": True} if cdi else {}), "containerd": containerd}


def _limits(wish: Wish) -> str:
    lines = [
        f"{LIMIT_NAMES[name]}={'infinity' if limit < 0 else limit}"
        for name, limit in wish.ulimits.items()
        if name in LIMIT_NAMES
    ]
    return "\n".join([f"{HEADER} Containers inherit the limits of containerd.", "[Service]", *lines, ""])
