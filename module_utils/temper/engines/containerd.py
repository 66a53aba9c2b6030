"""containerd: the drop-in that nvidia-ctk makes, proven by containerd's own reading of its configuration.

How a drop-in is merged depends on containerd: version 2 merges tables; 1.7 replaces the list of runtimes, so
that runc would be gone; 1.6 replaces the plugin's whole section. nvidia-ctk copies into its drop-in the
plugin's section from the configuration that it is given. So it is given config.toml first, and where
containerd would forget something under that drop-in, all that `containerd config dump` shows. A drop-in is
taken only if the dump shows our settings and else what it showed without them.
"""

from __future__ import annotations

import re
import typing
from pathlib import Path

from ansible.module_utils.temper.engines import config_dump, toolkit
from ansible.module_utils.temper.engines.base import (
    HEADER,
    RUNTIME,
    EngineOptions,
    EnginePlan,
    Unit,
    begin,
    ours,
    read_text,
    refuse_foreign,
    say,
    scratch,
    version_printed,
)
from ansible.module_utils.temper.process import CommandError, parsed, run, which
from ansible.module_utils.temper.settings.base import RefusedError

CONFIG = Path("/etc/containerd/config.toml")
DROP_IN = Path("/etc/containerd/conf.d/99-nvidia.toml")
LIMITS = Path("/etc/systemd/system/containerd.service.d/50-temper.conf")
PLUGINS = {"2": "io.containerd.grpc.v1.cri", "3": "io.containerd.cri.v1.runtime"}
LIMIT_NAMES = {"memlock": "LimitMEMLOCK", "stack": "LimitSTACK", "nofile": "LimitNOFILE"}
CRI_STATES = ("io.containerd.grpc.v1", "io.containerd.cri.v1")


class Containerd:
    """The engine."""

    name = title = "containerd"
    unit = "containerd.service"
    program = "containerd"
    cdi_since = "1.7.16"
    without_cdi = "; containers get GPUs through the nvidia runtime"

    def plan(self, options: EngineOptions, unit: Unit, record: dict[str, typing.Any]) -> EnginePlan:
        """Compare the drop-in, its import and the unit's limits with what is asked."""
        flags = unit.flags()
        config = Path((flags.get("config") or flags.get("c") or [str(CONFIG)])[0])
        plan = begin(self, unit, version_printed(self), options, record)
        wanted = self._present(options, plan, config) if options.present else _absent(plan, config)
        wanted[str(LIMITS)] = _limits(options) if options.present and options.ulimits else None
        for path, content in wanted.items():
            before = read_text(Path(path))
            if content is None and not ours(before) and path != str(config):
                continue
            if before != content:
                plan.files[path] = content
        plan.daemon_reload = str(LIMITS) in plan.files
        plan.action = "restart" if plan.files else ""
        return plan

    def _present(self, options: EngineOptions, plan: EnginePlan, config: Path) -> dict[str, str | None]:
        refuse_foreign(DROP_IN, read_text(DROP_IN), self)
        text = read_text(config)
        if text is None:
            # containerd alone knows which version of the format its defaults have.
            default = config_dump.read(say(self, "config", "default"))
            text = f"version = {default[('version',)]}\n"
            plan.record["created"] = True
        with scratch() as folder:
            copy = _Copy(self, Path(folder), config, text)
            base = copy.dump(copy.text)
            _refuse_unusable(base)
            if not toolkit.installed():
                return {str(DROP_IN): toolkit.UNKNOWN}
            drop_in, main = self._candidate(options, plan, copy, base)
        if main != text and not main.endswith(text):
            # nvidia-ctk has written it anew: it goes back as a whole, as long as nobody changes it.
            plan.record["config"] = {"before": text, "after": main}
        return {str(DROP_IN): drop_in, str(config): main}

    def _candidate(
        self, options: EngineOptions, plan: EnginePlan, copy: _Copy, base: config_dump.Dump
    ) -> tuple[str, str]:
        """Return the first drop-in and config.toml under which containerd has ours and has lost nothing."""
        expected = _expected(base, options, cdi=plan.cdi)
        default = expected.get((*_cri(base), "containerd", "default_runtime_name")) == "nvidia"
        made = [copy.ask(source, default=default, cdi=plan.cdi) for source in (copy.text, copy.dumped)]
        mains = (copy.text, f"{_import_line(copy.drop_in)}{copy.text}", made[0][1])
        for main in mains:
            for drop_in, _ in made:
                if _comparable(copy.try_dump(main, drop_in)) == expected:
                    return f"{HEADER} Made by nvidia-ctk.\n{copy.original(drop_in)}", copy.original(main)
        raise RefusedError(
            f"containerd {plan.version} would change other settings with {DROP_IN} as nvidia-ctk makes it: "
            "register the runtime in its configuration by hand, and name containerd in "
            "container_engines_exclude."
        )

    def disagreement(self, _options: EngineOptions, _plan: EnginePlan) -> str:
        """Return why the plugin that reads our drop-in does not work, "" where it does.

        containerd itself runs on without it.
        """
        try:
            rows = [row.split() for row in run(["ctr", "plugins", "ls"]).splitlines()]
        except CommandError as error:
            return str(error)
        states = {row[1]: row[-1] for row in rows if len(row) > 2 and row[0] in CRI_STATES}
        state = states.get("cri") or states.get("runtime") or "missing"
        return "" if state == "ok" else f"its CRI plugin is {state} (see `ctr plugins ls` and its journal)"


class _Copy:
    """containerd's configuration in a scratch folder, without our drop-in, for programs to try.

    Links stand for the files beside config.toml and the other drop-ins. In the place of ours is one that says
    nothing, because an import of a file that is not there is an error.
    """

    def __init__(self, engine: Containerd, folder: Path, config: Path, text: str) -> None:
        self.engine = engine
        self.config = folder / "config.toml"
        self.drop_in = folder / DROP_IN.parent.name / DROP_IN.name
        self.text = text.replace(str(DROP_IN.parent), str(self.drop_in.parent))
        top_level = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)[0]
        found = re.search(r"^\s*version\s*=\s*(\d+)", top_level, re.MULTILINE)
        version = found[1] if found else "1"
        if version not in PLUGINS:
            raise RefusedError(
                f"{config} has version {version}, expected 2 or 3: run `containerd config migrate`, "
                "store what it prints there, and run again."
            )
        self.empty = f"version = {version}\n"
        self.dumped = ""
        self.drop_in.parent.mkdir()
        for source, target in ((config.parent, folder), (DROP_IN.parent, self.drop_in.parent)):
            for entry in source.iterdir() if source.is_dir() else ():
                if entry not in (config, DROP_IN, DROP_IN.parent):
                    (target / entry.name).symlink_to(entry)

    def original(self, text: str) -> str:
        """Return a text as it is for the real files."""
        return text.replace(str(self.drop_in.parent), str(DROP_IN.parent))

    def dump(self, main: str, drop_in: str = "") -> config_dump.Dump:
        """Return what containerd makes of these files. Raises RefusedError."""
        self.config.write_text(main, encoding="utf-8")
        self.drop_in.write_text(drop_in or self.empty, encoding="utf-8")
        printed = say(self.engine, "--config", str(self.config), "config", "dump")
        self.dumped = self.dumped or printed
        return config_dump.read(printed)

    def try_dump(self, main: str, drop_in: str) -> config_dump.Dump:
        """Return the same for a candidate: one that containerd does not read is none."""
        try:
            return self.dump(main, drop_in)
        except RefusedError:
            return {}

    def ask(self, source: str, *, default: bool, cdi: bool) -> tuple[str, str]:
        """Return the drop-in that nvidia-ctk makes for a configuration, and how it rewrites that."""
        self.config.write_text(source, encoding="utf-8")
        drop_in = toolkit.configure("containerd", self.config, self.drop_in, default=default, cdi=cdi)
        return drop_in, self.config.read_text(encoding="utf-8")


def serves_docker_alone() -> bool:
    """Return whether containerd is there only as Docker's engine.

    Nothing on the node speaks to it otherwise.
    """
    return bool(which("dockerd")) and not any(map(which, ("kubelet", "nerdctl", "crictl")))


def _import_line(drop_in: Path) -> str:
    # The first line, because a key after a table's header would belong to that table.
    return f'imports = ["{drop_in}"]\n'


def _absent(plan: EnginePlan, config: Path) -> dict[str, str | None]:
    """Without the drop-in and its import. An import that nvidia-ctk wrote matches nothing then."""
    text, line = read_text(config), _import_line(DROP_IN)
    rewritten = plan.record.pop("config", {})
    left = rewritten["before"] if rewritten and text == rewritten["after"] else text
    left = left[len(line) :] if left and left.startswith(line) else left
    made = plan.record.pop("created", False) and re.fullmatch(r"(version = \d+\s*)?", left or "")
    return {str(DROP_IN): None, str(config): None if made else left}


def _cri(dump: config_dump.Dump) -> config_dump.Key:
    """Return where the CRI plugin's settings stand.

    Containerd 2 shows a configuration of version 2 as version 3.
    """
    version = dump.get(("version",), "none")
    return ("plugins", parsed("containerd config dump", version, lambda one: PLUGINS[one]))


def _refuse_unusable(base: config_dump.Dump) -> None:
    if "cri" in base.get(("disabled_plugins",), ""):
        raise RefusedError(
            "containerd's CRI plugin is switched off (disabled_plugins), so that it serves Docker "
            "alone: name containerd in container_engines_exclude, or switch the plugin on."
        )
    there = config_dump.below(base, (*_cri(base), "containerd", "runtimes", "nvidia"))
    program = there.get(("options", "BinaryName"), "runc")
    if there and program != RUNTIME:
        raise RefusedError(
            f"containerd has a runtime nvidia already, with the program {program}, expected "
            f"{RUNTIME}: remove it (is the GPU operator in charge here?), or name containerd in "
            "container_engines_exclude."
        )


def _expected(base: config_dump.Dump, options: EngineOptions, *, cdi: bool) -> config_dump.Dump:
    """Return what containerd has to show. The runtime is runc's twin: SystemdCgroup and others must agree."""
    cri = _cri(base)
    default = base.get((*cri, "containerd", "default_runtime_name"), "runc")
    twin = "runc" if default.startswith("nvidia") else default
    runtimes = (*cri, "containerd", "runtimes")
    settings = {("runtime_type",): "io.containerd.runc.v2", **config_dump.below(base, (*runtimes, twin))}
    settings[("options", "BinaryName")] = RUNTIME
    expected = {**base, **{(*runtimes, "nvidia", *key): value for key, value in settings.items()}}
    if options.default_runtime:
        expected[(*cri, "containerd", "default_runtime_name")] = "nvidia"
    if cdi:
        expected[(*cri, "enable_cdi")] = "true"
    return _comparable(expected)


def _comparable(dump: config_dump.Dump) -> config_dump.Dump:
    """Return a dump without its imports, and of our runtime only what makes it work as its twin does."""
    if not dump:
        return {}
    nvidia = (*_cri(dump), "containerd", "runtimes", "nvidia")
    return {
        key: value
        for key, value in dump.items()
        if key[0] != "imports"
        and (key[: len(nvidia)] != nvidia or key[len(nvidia)] in ("runtime_type", "options"))
    }


def _limits(options: EngineOptions) -> str:
    lines = [
        f"{LIMIT_NAMES[name]}={'infinity' if limit < 0 else limit}"
        for name, limit in options.ulimits.items()
        if name in LIMIT_NAMES
    ]
    return "\n".join([f"{HEADER} Containers inherit the limits of containerd.", "[Service]", *lines, ""])
