"""Settings in the form in which a plan has them: kind, key and what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from temper.plan.node_plan import PlannedSetting, Reaction
from temper.plan.strictness import EXACTLY
from temper.plan.wanted import FileWanted, Kind, PackageWanted, Parameter, UnitWanted

ROLES = Path(__file__).resolve().parents[3] / "roles"
# Debian's tool, or dracut where that makes the initramfs.
REBUILD_INITRAMFS = (
    "if command -v update-initramfs >/dev/null; then update-initramfs -u -k all; "
    "elif command -v dracut >/dev/null; then dracut --force --regenerate-all; fi"
)


@cache
def templates() -> Environment:
    """Return the roles' templates, with the settings that Ansible has for its own."""
    return Environment(
        loader=FileSystemLoader(ROLES),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - these are configuration files, not HTML
    )


def render(role: str, template: str, **values: object) -> str:
    """Return the text of a role's template."""
    return templates().get_template(f"{role}/templates/{template}.j2").render(values)


def file(
    path: str,
    content: str | None,
    why: str,
    *,
    mode: str = "0644",
    encoding: str = "",
    orders: Mapping[str, str] | None = None,
) -> PlannedSetting:
    """Return a file of ours, or none where the content is None. One in encoding `der` has its content as PEM.

    `orders` are those of the kernel parameters that it sets.
    """
    wanted = None
    if content is not None:
        wanted = FileWanted(content, mode, orders=dict(orders or {}) or None, encoding=encoding or None)
    return PlannedSetting(Kind.FILE, path, why, wanted=wanted)


def no_file(path: str, why: str) -> PlannedSetting:
    """Return the setting of no file: what goes is neither shown nor recorded, and does not come back."""
    return PlannedSetting(Kind.FILE, path, why, wanted=FileWanted(mode="0600", secret=True))


def package(name: str, why: str, version: str = "", *, held: bool = False) -> PlannedSetting:
    """Return a package, of any version where none is named."""
    return PlannedSetting(Kind.PACKAGE, name, why, wanted=PackageWanted(version, held))


def sysctl(name: str, value: object, why: str, order: str = EXACTLY) -> PlannedSetting:
    """Return a kernel parameter, in force now."""
    return PlannedSetting(Kind.SYSCTL, name, why, order=order, wanted=" ".join(str(value).split()))


def sysctl_file(values: Mapping[str, object]) -> str:
    """Return the file that sets kernel parameters at boot."""
    lines = [
        f"{name} = {value}\n" for name, value in sorted(values.items(), key=lambda item: item[0].lower())
    ]
    return "".join(["# Managed by Temper.\n", *lines])


def unit(name: str, why: str, restart_on: Iterable[str] = ()) -> PlannedSetting:
    """Return a unit that is enabled and runs, restarted when one of these files changes."""
    wanted = UnitWanted(on=True, restart_on=tuple(restart_on))
    return PlannedSetting(Kind.UNIT, name if "." in name else f"{name}.service", why, wanted=wanted)


def rebuild_initramfs(path: str) -> Reaction:
    """Return what follows a change of a module's options: an initramfs has a copy of them."""
    return Reaction((path,), ("sh", "-c", REBUILD_INITRAMFS), live=False)


def parameters(
    kind: Kind, why: str, wanted: Mapping[str, object], *, way_in: bool = False
) -> tuple[PlannedSetting, ...]:
    """Return a setting for each parameter of something that is made as a whole: see temper/plan/wanted.py."""
    return tuple(
        PlannedSetting(kind, name, why, way_in=way_in, wanted=cast("Parameter", value))
        for name, value in wanted.items()
    )
