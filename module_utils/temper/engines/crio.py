"""CRI-O: the drop-in that nvidia-ctk makes, and one of our own with the limits of containers.

Neither Debian 12 nor 13 has CRI-O: unlike the other engines, this one is tested with a stand-in only.
"""

from __future__ import annotations

import json
import shutil
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
from ansible.module_utils.temper.process import CommandError, run
from ansible.module_utils.temper.settings.base import RefusedError

CONFIG = Path("/etc/crio/crio.conf")
DIRECTORY = Path("/etc/crio/crio.conf.d")
DROP_IN = "99-nvidia.toml"
LIMITS = "99-temper.toml"
SECTION = ("crio", "runtime")


class Crio:
    """The engine."""

    name = "crio"
    title = "CRI-O"
    unit = "crio.service"
    program = "crio"
    cdi_since = "1.30"
    without_cdi = "; containers get GPUs through the nvidia runtime"

    def plan(self, options: EngineOptions, unit: Unit, record: dict[str, typing.Any]) -> EnginePlan:
        """Compare the drop-ins with what is asked."""
        plan = begin(self, unit, version_printed(self), options, record)
        before = {name: read_text(DIRECTORY / name) for name in (DROP_IN, LIMITS)}
        wanted: dict[str, str | None] = {}
        if options.present:
            for name, text in before.items():
                refuse_foreign(DIRECTORY / name, text, self)
            wanted = self._drop_ins(options)
        for name, text in before.items():
            if ours(text) and text != wanted.get(name):
                plan.files[str(DIRECTORY / name)] = wanted.get(name)
                plan.action = "restart"
        return plan

    def _drop_ins(self, options: EngineOptions) -> dict[str, str | None]:
        with scratch() as name:
            folder = Path(name)
            for path in sorted(DIRECTORY.glob("*.conf")) + sorted(DIRECTORY.glob("*.toml")):
                if path.name not in (DROP_IN, LIMITS):
                    shutil.copy(path, folder)
            theirs = config_dump.strings(self._effective(folder).get((*SECTION, "default_ulimits"), ""))
            set_by_others = {limit.partition("=")[0] for limit in theirs}
            limits = [
                f"{key}={limit}:{limit}" for key, limit in options.ulimits.items() if key not in set_by_others
            ]
            # A list replaces another as a whole, so theirs are repeated.
            text = (
                f"{HEADER}\n[crio.runtime]\ndefault_ulimits = {json.dumps([*theirs, *limits])}\n"
                if limits
                else None
            )
            if not toolkit.installed():
                return {DROP_IN: toolkit.UNKNOWN, LIMITS: text}
            # nvidia-ctk may write the configuration that it is given.
            source = folder / "nvidia-ctk" / CONFIG.name
            source.parent.mkdir()
            source.write_text(read_text(CONFIG) or "", encoding="utf-8")
            made = toolkit.configure("crio", source, folder / DROP_IN, default=options.default_runtime)
            shutil.rmtree(source.parent)
            if text:
                (folder / LIMITS).write_text(text, encoding="utf-8")
            shown = self._effective(folder)
            problems = [
                shown.get((*SECTION, "runtimes", "nvidia", "runtime_path")) != RUNTIME,
                options.default_runtime and shown.get((*SECTION, "default_runtime")) != "nvidia",
                bool(limits)
                and config_dump.strings(shown.get((*SECTION, "default_ulimits"), "")) != [*theirs, *limits],
            ]
        if any(problems):
            raise RefusedError(
                f"CRI-O does not take over {DROP_IN} and {LIMITS}: `crio config` does not show what stands "
                "in them."
            )
        return {DROP_IN: f"{HEADER} Made by nvidia-ctk.\n{made}", LIMITS: text}

    def _effective(self, folder: Path) -> config_dump.Dump:
        return config_dump.read(say(self, f"--config-dir={folder}", "config"))

    def disagreement(self, options: EngineOptions, _plan: EnginePlan) -> str:
        """Ask the running daemon."""
        try:
            shown = config_dump.read(run(["crio", "status", "config"]))
        except CommandError as error:
            return str(error)
        known = config_dump.below(shown, (*SECTION, "runtimes", "nvidia"))
        return "it does not know the runtime nvidia" if options.present and not known else ""
