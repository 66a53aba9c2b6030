"""Compares every setting of a plan with the node, each by itself, and changes nothing.

The engine stops at the first thing that it cannot do, because it is about to change the node. Here one
setting that cannot be read costs that one: the others are still compared.
"""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.process import complete, which
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings import audit
from ansible.module_utils.temper.settings.base import RefusedError, Setting
from ansible.module_utils.temper.settings.engine import FAILURES, path_of, told
from ansible.module_utils.temper.settings.files import Keyword, PamProfile
from ansible.module_utils.temper.settings.kinds import BROUGHT, MEMBER_OF, build, kind_of
from ansible.module_utils.temper.settings.record import Record
from ansible.module_utils.temper.settings.sudoers import known_here
from ansible.module_utils.temper.settings.sysfs import SysfsValue
from ansible.module_utils.temper.settings.system import (
    Sysctl,
    Unit,
    of_temper,
    overruled_by,
    overruling,
)
from ansible.module_utils.temper.units import unit_states

UNREADABLE = FAILURES
#: Of a file that differs, lines of its diff, and characters of a line: a report is no copy of the node.
MOST_LINES = 40
MOST_CHARACTERS = 300
MODPROBE = "/etc/modprobe.d/"
MODULES = Path("/proc/modules")
FILE_SYSTEMS = Path("/proc/filesystems")
AUDIT_KEY = "audit:rules"


def observe(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what each setting of a role is: C(key), C(controls), C(state), C(reason), C(changes).

    `plan` is the role's part of a node's plan. States are pass, fail, not-applicable and not-checked.
    """
    options = {**plan["options"], "check_mode": True}
    sysctl_file = options["sysctl_file"]
    found: list[dict[str, Any]] = []
    try:
        record = Record(plan["role"])
    except RecordError as error:
        found.append(unread("record", [], error))
        record = None
    originals = record.originals if record else {}
    own = [f"{item['kind']}:{item['key']}" for item in plan["settings"]]
    later = overruling(sysctl_file, [*own, *originals]) if sysctl_file else {}
    try:
        known, unknown = known_here(plan["settings"])
    except UNREADABLE as error:
        return [unread(f"{item['kind']}:{item['key']}", item["controls"], error) for item in plan["settings"]]
    known, left_out = audit.readable_here(known)
    for item in plan["settings"] if unknown else ():
        # What asks for a setting, or a part of it, in vain.
        for name in unknown.keys() & set(item["controls"]):
            found.append(result(f"{item['kind']}:{item['key']}", [name], "not-applicable", unknown[name]))
    # Without items, a role may still have something to take back.
    for items in (grouped(known) or {"": []}).values():
        try:
            built = build(plan["role"], items, options, originals)
        except (RefusedError, *UNREADABLE) as error:
            found += [unread(f"{item['kind']}:{item['key']}", item["controls"], error) for item in items]
            continue
        look_at_units([setting for setting, _ in built])
        found += [observed(setting, controls, later) for setting, controls in built]
    found += audited(known, left_out)
    if record is None:
        return found
    known_keys = {entry["key"] for entry in found}
    if not options["absent"]:  # the engine lets them be, too
        known_keys |= {key for key in record.originals if key.partition(":")[0] in BROUGHT}
    return [*found, *left_behind(record, known_keys, later)]


def measured(items: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what a benchmark asks for and nobody has set, each item in the form of `observe`.

    Beside kinds of settings there are `module` (it cannot be loaded), `lines` (a file has them) and
    `separate` (a folder is a file system of its own).
    """
    options = {"atomic": True, "absent": False, "check_mode": True}
    found = []
    for item in items:
        key, controls = f"{item['kind']}:{item['key']}", item["controls"]
        try:
            if item["kind"] in ASKED:
                reason = ASKED[item["kind"]](item["key"], item["wanted"])
                found.append(result(key, controls, "fail" if reason else "pass", reason))
            else:
                built = build("os_hardening", [item], options, {})
                found += [observed(setting, controls, {}) for setting, _ in built]
        except (RefusedError, *UNREADABLE) as error:
            found.append(unread(key, controls, error))
    return [{**one, "changes": [{**change, "diff": ""} for change in one["changes"]]} for one in found]


def can_be_loaded(name: str, _wanted: Any) -> str:
    """Return why the kernel has a module, or could have it; empty where it cannot."""
    loaded = MODULES.read_text(encoding="utf-8") if MODULES.exists() else ""
    if name.replace("-", "_") in {line.split()[0] for line in loaded.splitlines()}:
        return f"module {name} is loaded"
    # What is built into the kernel is no module that anybody lists.
    built_in = FILE_SYSTEMS.read_text(encoding="utf-8").split() if FILE_SYSTEMS.exists() else []
    if name in built_in:
        return f"the kernel has {name} built in"
    answer = complete(["modprobe", "--dry-run", "--verbose", name])
    # "insmod FILE" is what it would do; "install /bin/false" and "not found" are what keeps it out.
    return f"module {name} can be loaded" if "insmod " in answer.stdout else ""


def lacks_lines(path: str, wanted: list[str]) -> str:
    """Return which lines a file lacks."""
    has = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    lacking = [line for line in wanted if line not in has]
    return f"{path} does not have {'; '.join(lacking)}" if lacking else ""


def no_file_system(path: str, _wanted: Any) -> str:
    """Return why a folder is no file system of its own. One that is bound to itself is none, either."""
    folder = Path(path)
    if not folder.is_dir():
        return f"{path} does not exist"
    same = folder.stat().st_dev == folder.parent.stat().st_dev
    return f"{path} is no file system of its own" if same else ""


ASKED = {"module": can_be_loaded, "lines": lacks_lines, "separate": no_file_system}


def audited(items: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield whether the kernel holds the rules of auditd's files, where the role has such files.

    Those that auditctl cannot read do not apply: a control that passes names them.
    """
    files = [item for item in items if audit.applies(item)]
    if not files:
        return
    texts = [item["wanted"]["content"] for item in files]
    controls = sorted({control for item in files for control in item["controls"]})
    try:
        orders = {key: one for item in files for key, one in item["wanted"].get("orders", {}).items()}
        reason, repair, unknown = audit.compare(texts, orders)
    except audit.NoAuditError as error:
        yield result(AUDIT_KEY, controls, "not-applicable", str(error))
    except (audit.AuditError, OSError, subprocess.TimeoutExpired) as error:
        yield unread(AUDIT_KEY, controls, error)
    else:
        said = reason or "; ".join([*left_out, *unknown][: audit.MOST_SHOWN])
        yield {**result(AUDIT_KEY, controls, "fail" if reason else "pass", said), "repair": repair}


def grouped(items: list[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the items by kind; those that are one setting together stay together.

    Secrets that are to be there are left out: their content does not travel for a comparison.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for item in items:
        wanted = item["wanted"] or {}
        if not (item["kind"] == "file" and wanted.get("secret") and wanted.get("source")):
            groups.setdefault(MEMBER_OF.get(item["kind"], item["kind"]), []).append(item)
    return groups


def look_at_units(settings: list[Setting]) -> None:
    """Have systemd asked for all units at once."""
    units = [setting for setting in settings if isinstance(setting, Unit)]
    try:
        states = unit_states([unit.name for unit in units])
    except UNREADABLE:
        return  # each one says why as it is asked
    for unit in units:
        unit.know(states[unit.name])


def observed(setting: Setting, controls: list[str], later: Mapping[str, str]) -> dict[str, Any]:
    """Return one setting, compared."""
    try:
        return {**result(setting.key, controls, "pass"), **compared(setting, later)}
    except RefusedError as error:
        return {**result(setting.key, controls, "fail", str(error)), "repair": error.repair}
    except UNREADABLE as error:
        return unread(setting.key, controls, error)


def compared(setting: Setting, later: Mapping[str, str]) -> dict[str, Any]:
    """Return what is to say of a setting unless it passes. Raises as `read` and `settled` of a setting do."""
    if reason := not_applicable(setting):
        return {"state": "not-applicable", "reason": reason}
    if kind_of(setting) == "gpu" and not which("nvidia-smi"):
        return {"state": "not-checked", "reason": "there is no nvidia-smi to ask"}
    if isinstance(setting, Sysctl) and (file := setting.overruled(later)):
        return overruled(setting, file)
    if isinstance(setting, (Keyword, PamProfile)) and setting.unreadable:
        return {"state": "not-checked", "reason": setting.unreadable}
    if not setting.settled():
        repair = setting.unmask() if isinstance(setting, Unit) else []
        changes, reason = shown(setting), setting.reason()
        if not changes and not reason:  # nobody repairs what nobody explains
            reason = "it is not as its role would make it"
        return {"state": "fail", "reason": reason, "changes": changes, "repair": repair}
    if fault := setting.fault():
        return {"state": "fail", "reason": fault.reason, "repair": list(fault.repair)}
    if loaded := forbidden_modules(setting):
        reason = f"loaded although forbidden: {', '.join(loaded)}; the next boot leaves them out"
        return {"state": "fail", "reason": reason}
    kept, unknown = setting.kept(), setting.unknown()
    reasons = [*([f"kept: {'; '.join(kept)}"] if kept else []), *([unknown] if unknown else [])]
    return {"reason": ". ".join(reasons)} if reasons else {}


def overruled(setting: Sysctl, file: str) -> dict[str, Any]:
    """Return a kernel parameter that another file sets after ours: the engine leaves it to that one."""
    if of_temper(file):
        return {"state": "not-applicable", "reason": f"{file} of Temper sets it"}
    line = setting.at_boot.last(setting.name, lambda line: line.file == file)
    value = line.value if line else None
    change = {"name": setting.key, "before": f"{value} at every boot", "after": setting.value, "diff": ""}
    pattern = re.sub("[./]", "[./]", setting.name)
    return {
        "state": "fail",
        "reason": f"{file} comes later and sets {value} at every boot",
        "changes": [change],
        "repair": [["drop-sysctl", pattern, file]],
    }


def not_applicable(setting: Setting) -> str:
    """Return why this node has nothing that the setting could be made on; empty where it has."""
    nothing = setting.why_absent and setting.read() is None and setting.settled()
    return setting.why_absent if nothing else ""


def shown(setting: Setting) -> list[dict[str, str]]:
    """Return what differs, in a form that fits a report."""
    return [
        {
            "name": change.name,
            "before": brief(change.before),
            "after": brief(change.after),
            "diff": diff(change.before, change.after),
        }
        for change in setting.change()
    ]


def brief(text: str) -> str:
    """Return one line as it is; of more how many."""
    lines = text.splitlines()
    return f"{len(lines)} lines" if len(lines) > 1 else "".join(lines)[:MOST_CHARACTERS]


def diff(before: str, after: str) -> str:
    """Return the lines that differ, where either has more than one."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) <= 1:
        return ""
    lines = [
        line[:MOST_CHARACTERS] for line in difflib.unified_diff(old, new, "found", "wanted", "", "", 0, "")
    ]
    more = [f"... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])


def forbidden_modules(setting: Setting) -> list[str]:
    """Kernel modules that are loaded although a file of ours says that they must not be."""
    path = path_of(setting.key)
    if kind_of(setting) != "file" or not path.startswith(MODPROBE) or not Path(path).exists():
        return []  # a file that is to be absent, and is
    words = [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    forbidden = {line[1].replace("-", "_") for line in words if line[:1] == ["blacklist"]}
    try:
        loaded = {line.split()[0] for line in MODULES.read_text(encoding="utf-8").splitlines()}
    except FileNotFoundError:  # a kernel that can load none
        return []
    return sorted(forbidden & loaded)


def left_behind(record: Record, keys: set[str], later: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a run that was cut off, and what an earlier one has made that nobody asks for any more."""
    if record.pending:
        reason = f"a run was cut off while it changed {', '.join(record.pending)}"
        yield result("interrupted", [], "fail", reason)
    for key in sorted(record.originals.keys() - keys):
        name = path_of(key)
        # The engine gives these up, too: another file's by now, or of a device that is gone.
        if key.startswith("sysctl:") and (overruled_by(name, later) or Sysctl(name, "").read() is None):
            continue
        if key.startswith("sysfs:") and SysfsValue(name, "").read() is None:
            continue
        yield result(key, [], "fail", "an earlier run has set it, and the plan no longer asks for it")


def unread(key: str, controls: list[str], error: BaseException) -> dict[str, Any]:
    """Return a setting that could not be read."""
    return result(key, controls, "not-checked", told(error, key))


def result(key: str, controls: list[str], state: str, reason: str = "") -> dict[str, Any]:
    """In the form that the module returns."""
    return {"key": key, "controls": controls, "state": state, "reason": reason, "changes": [], "repair": []}
