"""CRI-O: a drop-in with the runtime and the limits of containers.

Neither Debian 12 nor 13 has CRI-O: unlike the other engines, this one is tested with a stand-in only.
"""

from __future__ import annotations

import shutil
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
    words,
)

DIRECTORY = Path("/etc/crio/crio.conf.d")
DROP_IN = DIRECTORY / "99-nvidia.toml"


class Crio:
    """The engine."""

    name = "crio"
    title = "CRI-O"
    unit = "crio.service"
    program = "crio"
    cdi_since = "1.30"
    without_cdi = "; containers get GPUs through the nvidia runtime"

    def plan(self, wish: Wish, unit: Unit, record: dict[str, typing.Any]) -> Plan:
        """Compare the drop-in with the wish."""
        plan = begin(self, unit, version_of(run([program_of(self), "--version"]).stdout), wish, record)
        before = read_text(DROP_IN)
        if not wish.present and not ours(before):
            return plan
        refuse_foreign(DROP_IN, before, self)
        content = self._drop_in(wish) if wish.present else None
        if before != content:
            plan.files[str(DROP_IN)] = content
            plan.action = "restart"
        return plan

    def _drop_in(self, wish: Wish) -> str:
        with temporary_directory() as directory:
            for path in sorted(DIRECTORY.glob("*.conf")) + sorted(DIRECTORY.glob("*.toml")):
                if path != DROP_IN:
                    shutil.copy(path, directory)
            limits = toml.at(self._effective(directory), ("crio", "runtime", "default_ulimits")) or []
            set_by_others = {str(limit).partition("=")[0] for limit in limits}
            limits += [
                f"{name}={limit}:{limit}" for name, limit in wish.ulimits.items() if name not in set_by_others
            ]
            runtime: toml.Table = {**({"default_runtime": "nvidia"} if wish.default_runtime else {})}
            runtime |= {"default_ulimits": limits} if limits else {}
            runtime["runtimes"] = {"nvidia": {"runtime_path": RUNTIME, "runtime_type": "oci"}}
            text = f"{HEADER} NVIDIA's runtime.\n{toml.render({'crio': {'runtime': runtime}})}"
            (Path(directory) / DROP_IN.name).write_text(text, encoding="utf-8")
            if not toml.contains(self._effective(directory), {"crio": {"runtime": runtime}}):
                raise RefusedError(
                    f"CRI-O does not take over {DROP_IN}: `crio config` does not show what stands in it."
                )
        return text

    def _effective(self, directory: str) -> toml.Table:
        completed = run([program_of(self), f"--config-dir={directory}", "config"])
        if completed.returncode:
            raise RefusedError(
                f"CRI-O does not accept its configuration: {words(completed)}. Correct it and run again."
            )
        return toml.parse(completed.stdout, "`crio config`")

    def disagreement(self, wish: Wish, _plan: Plan) -> str:
        """Ask the running daemon."""
        completed = run([program_of(self), "status", "config"])
        known = (
            toml.at(toml.parse(completed.stdout, "`crio status config`"), ("crio", "runtime", "runtimes"))
            or {}
        )
        return "it does not know the runtime nvidia" if wish.present and "nvidia" not in known else ""
