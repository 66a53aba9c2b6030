"""Compare versions of the stack with NVIDIA's security bulletins (data/nvidia_security.yml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from temper.plan.versions import branch, upstream, version
from validation.model.printable import first_of

if TYPE_CHECKING:
    from temper.plan.tables import Bulletin, SecurityComponent

DRIVER = "driver"
#: How many vulnerabilities a sentence names.
MOST_NAMED = 3
# As a node says it: no number that takes long to read.
NUMBERS = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,5}(?!\d)", re.ASCII)
#: Between the versions of several devices, which all count.
ALSO = ", "


@dataclass(frozen=True)
class Gap:
    """A bulletin whose vulnerabilities a version has. `text` names both, and the waiver if there is one."""

    wanted: str
    text: str
    waiver: str


def numbers(found: str) -> str | None:
    """Return the numbers that a package's version begins with: 12.4.131 of 12.4.131~12.4.1-2."""
    match = NUMBERS.match(upstream(found))
    return match[0] if match else None


def installed(
    packages: Mapping[str, str],
    driver: str | None,
    components: Mapping[str, SecurityComponent],
    firmware: Iterable[str] = (),
) -> dict[str, str]:
    """Return each component's version, the lowest where several are installed; without those that are not.

    Of firmware all that the node has. A version without numbers stands for itself, as nobody can compare it.
    """
    found = {DRIVER: driver} if driver else {}
    there = ALSO.join(sorted(set(firmware)))
    for name, component in components.items():
        if component.firmware and there:
            found[name] = there
        versions = [
            text
            for package, text in packages.items()
            if text and any(fnmatchcase(package, pattern) for pattern in component.packages)
        ]
        if versions:
            found[name] = min(versions, key=lambda text: version(numbers(text) or "0"))
    return found


def gaps(component: SecurityComponent, found: str) -> list[Gap]:
    """Return the bulletins that a version is below, those with a waiver last.

    Raises ValueError for a text that is no version.
    """
    missing = []
    for text in found.split(ALSO) if component.firmware else [found]:
        have = numbers(text)
        if have is None or (component.firmware and "." not in have):
            raise ValueError(f"expected the version of the {component.title}, found {text!r}")
        missing += [
            gap for bulletin in component.bulletins.values() if (gap := gap_of(component, bulletin, have))
        ]
    return sorted(missing, key=lambda gap: (bool(gap.waiver), [-number for number in version(gap.wanted)]))


def enough(component: SecurityComponent, wanted: str) -> str:
    """Return the first version from this one on that no bulletin without a waiver is about."""
    missing = [gap for gap in gaps(component, wanted) if not gap.waiver]
    return enough(component, missing[0].wanted) if missing else wanted


def gap_of(component: SecurityComponent, bulletin: Bulletin, have: str) -> Gap | None:
    """Return the first version of the same branch, or of the next that has one, if this one is below it."""
    device, _, own = have.partition(".") if component.firmware else ("", "", have)
    concerned = [fix for fix in bulletin.fixed if not device or int(device) in fix.devices]
    later = [fix for fix in concerned if branch(fix.version) >= branch(own)]
    fix = min(later, key=lambda fix: version(fix.version), default=None)
    if fix is None or version(own) >= version(fix.version):
        return None
    wanted = f"{device}.{fix.version}" if device else fix.version
    worst = sorted(fix.cves, key=lambda cve: -bulletin.cvss[cve])
    below = "is below" if branch(fix.version) == branch(own) else "is of a branch without a fix before"
    return Gap(
        wanted,
        f"{component.title} {have} {below} {wanted}, which fixes {first_of(worst, MOST_NAMED)} "
        f"(CVSS {bulletin.cvss[worst[0]]}, {bulletin.date}, {bulletin.url})",
        bulletin.waiver,
    )


def security_warnings(
    packages: Mapping[str, str], driver: str | None, components: Mapping[str, SecurityComponent]
) -> list[str]:
    """Return a sentence for each component that will be installed below what a bulletin asks for."""
    found = []
    for name, text in installed(packages, driver, components).items():
        open_gaps = [gap for gap in gaps(components[name], text) if not gap.waiver] if numbers(text) else []
        if open_gaps:
            found.append(f"{open_gaps[0].text}; plan a newer stack")
    return found
