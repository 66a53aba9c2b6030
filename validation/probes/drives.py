"""What NVMe drives say of their health, by nvme-cli or smartctl, whichever is installed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.probes.reading import ReadingError, in_one_line
from validation.processes.command import CommandError, run

TIMEOUT_S = 10.0
DEAD = "dead"
#: Bits of the critical warning (NVM Express base specification 2.0, SMART / Health Information log).
WARNINGS = {
    0x01: "its spare capacity is below its threshold",
    0x02: "its temperature is out of range",
    0x04: "its reliability is degraded by media or internal errors",
    0x08: "its media can only be read",
    0x10: "its backup of volatile memory has failed",
    0x20: "its persistent memory can only be read or is unreliable",
}


@dataclass(frozen=True)
class Drive:
    """One NVMe drive. `critical_warning` has the bits of WARNINGS, `used_percent` is of its rated life."""

    name: str
    model: str
    critical_warning: int
    used_percent: int
    spare_percent: int
    media_errors: int


@dataclass(frozen=True)
class Drives:
    """All NVMe drives that were asked, and why others could not be, by their name.

    `dead` are those that the kernel has given up: their names and models.
    """

    read: tuple[Drive, ...] = ()
    unread: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)


def read(root: Path = Path("/")) -> Drives:
    """Ask every NVMe drive on the PCI bus; what is reached over a network is somebody else's."""
    found, unread, dead = [], {}, {}
    for controller in sorted((root / "sys/class/nvme").glob("nvme*")):
        if _text(controller / "transport") not in ("", "pcie"):
            continue
        model = _text(controller / "model")
        if _text(controller / "state") == DEAD:
            dead[controller.name] = model
            continue
        try:
            found.append(_drive(controller.name, model, _log(controller.name)))
        except ReadingError as error:
            unread[controller.name] = str(error)
    return Drives(tuple(found), unread, dead)


def _log(name: str) -> dict[str, Any]:
    """Return the drive's log in nvme-cli's words. Raises ReadingError."""
    device = f"/dev/{name}"
    if shutil.which("nvme"):
        return _ask(["nvme", "smart-log", device, "--output-format=json"])
    if not shutil.which("smartctl"):
        raise ReadingError("neither nvme-cli nor smartmontools is installed")
    # Its exit status tells of failing drives as well: what it says counts.
    found = _ask(["smartctl", "--json", "--all", device]).get("nvme_smart_health_information_log")
    if not isinstance(found, dict):
        raise ReadingError(f"smartctl does not tell the health of {device}")
    return found | {"avail_spare": found.get("available_spare"), "percent_used": found.get("percentage_used")}


def _ask(command: list[str]) -> dict[str, Any]:
    try:
        done = run(command, TIMEOUT_S)
        answer = json.loads(done.output)
    except CommandError as error:
        raise ReadingError(f"{command[0]} gave {error}") from error
    except OSError as error:
        raise ReadingError(f"{command[0]} cannot be started: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        said = (done.errors or done.output).strip().splitlines()
        raise ReadingError(f"{command[0]}: {in_one_line(said[-1]) if said else done.ending}") from error
    if not isinstance(answer, dict):
        raise ReadingError(f"{command[0]} answered something that is no log")
    return answer


def _drive(name: str, model: str, log: dict[str, Any]) -> Drive:
    try:
        return Drive(
            name,
            model,
            _number(log["critical_warning"]),
            _number(log["percent_used"]),
            _number(log["avail_spare"]),
            _number(log["media_errors"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ReadingError(f"its log has no number for {in_one_line(str(error))}") from error


def _number(value: Any) -> int:
    """Return a number of nvme-cli, which may be in text, or in an object's `value` where it has bits."""
    return int(value["value"] if isinstance(value, dict) else value)


def _text(path: Path) -> str:
    try:
        return in_one_line(path.read_text(errors="replace"))
    except OSError:
        return ""
