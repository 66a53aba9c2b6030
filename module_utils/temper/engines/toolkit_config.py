"""The container toolkit's own configuration: what in it keeps containers from their GPUs, and what is wanted.

The toolkit's packages write the file anew at each installation, with the values that it has and without its
comments (`nvidia-ctk config --in-place` in their scripts). So what is ours is recorded by key. What the
values do was read in NVIDIA/nvidia-container-toolkit v1.20.0, api/config/v1 and
cmd/nvidia-container-runtime-hook.
"""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper.engines.base import EnginePlan, Unit, read_text
from ansible.module_utils.temper.engines.config_dump import STRING, WORD
from ansible.module_utils.temper.process import shown
from ansible.module_utils.temper.settings.base import RefusedError

NAME = "toolkit"
CONFIG = Path("/etc/nvidia-container-runtime/config.toml")
HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
ASSIGNMENT = re.compile(rf"\s*((?:{WORD.pattern})(?:\s*\.\s*(?:{WORD.pattern}))*)\s*=\s*(.*)")
SCALAR = re.compile(rf"({STRING}|[^\s\"'\[{{#]+)\s*(?:#.*)?")
ANEW = f"have it written anew: nvidia-ctk config --config-file={CONFIG} --in-place."
LONG = ('"""', "'''")

NO_CGROUPS = "nvidia-container-cli.no-cgroups"
ROOT = "nvidia-container-cli.root"
LDCONFIG = "nvidia-container-cli.ldconfig"
MODE = "nvidia-container-runtime.mode"
CONTAINER_LDCONFIG = "features.allow-ldconfig-from-container"
#: The role's option -> the key that it sets.
OPTIONS = {
    "no_cgroups": NO_CGROUPS,
    "mode": MODE,
    "accept_envvar": "accept-nvidia-visible-devices-envvar-when-unprivileged",
    "accept_volume_mounts": "accept-nvidia-visible-devices-as-volume-mounts",
}
DEFAULTS = {
    NO_CGROUPS: "false",
    MODE: "auto",
    OPTIONS["accept_envvar"]: "true",
    OPTIONS["accept_volume_mounts"]: "false",
}
DEFAULT_LDCONFIG = "@/sbin/ldconfig"
#: Programs that the toolkit calls, and what finds its own.
PROGRAMS = {
    "nvidia-container-cli.path": "/usr/bin/nvidia-container-cli",
    "nvidia-container-runtime-hook.path": "nvidia-container-runtime-hook",
    "nvidia-ctk.path": "nvidia-ctk",
}
MODES = ("auto", "cdi", "jit-cdi", "legacy", "csv")
LIBRARIES = ("usr/lib*/libnvidia-ml.so*", "usr/lib*/*/libnvidia-ml.so*")


class Place(typing.NamedTuple):
    """Where the value of a key stands in the text, and the value. Lists and the like are not `simple`."""

    start: int
    end: int
    value: str
    simple: bool


@dataclass
class Parsed:
    """The keys of a text by their full names, and where each table's header ends."""

    keys: dict[str, Place] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)

    def value(self, key: str) -> str:
        """Return the value as it stands there, strings without quotes; empty where the key is not set."""
        place = self.keys.get(key)
        return bare(place.value) if place else ""


class Situation(typing.NamedTuple):
    """What of the node decides: whose containers there are, and whether CDI is planned for an engine."""

    rootful: bool
    rootless: bool
    cdi: bool


def parse(text: str) -> Parsed:
    """Find each key of a TOML text. Raises RefusedError where a line is none of TOML that is known here."""
    found, table, position, until = Parsed(), "", 0, ""
    for number, whole in enumerate(text.split("\n"), 1):
        start, position = position, position + len(whole) + 1
        line = whole.rstrip("\r")
        if until:
            until = _still_open(line, until)
        elif match := HEADER.fullmatch(line):
            table = ".".join(map(bare, WORD.findall(match[1])))
            found.tables[table] = min(position, len(text))
        elif match := ASSIGNMENT.fullmatch(line):
            words = list(map(bare, WORD.findall(match[1])))
            key = ".".join(filter(None, (table, *words)))
            value = SCALAR.fullmatch(match[2])
            literal = value[1] if value else match[2]
            at = start + match.start(2)
            found.keys[key] = Place(at, at + len(literal), literal, bool(value))
            until = "" if value else _still_open(match[2], "")
        elif line.lstrip().startswith("[["):
            table = line.strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            raise RefusedError(
                f"{CONFIG}, line {number}: expected a table or a key with its value, found {shown(line)}. "
                f"Correct it, or {ANEW}"
            )
    return found


def _still_open(line: str, until: str) -> str:
    """Return the quotes or brackets that end a value of several lines; empty where it has ended."""
    if until in LONG:
        return "" if until in line else until
    for quotes in LONG:
        if line.count(quotes) == 1:
            return quotes
    rest = re.sub(STRING, "", line).partition("#")[0]
    depth = len(until) + sum(map(rest.count, "[{")) - sum(map(rest.count, "]}"))
    return "[" * max(depth, 0)


def bare(text: str) -> str:
    """Return a TOML string without its quotes; anything else as it is."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text[1:-1] if text.startswith("'") else text


def edited(text: str, values: typing.Mapping[str, str | None]) -> str:
    """Return the text with these keys and nothing else changed. None removes a key's line.

    Raises RefusedError where a key stands there in a form that is not edited here.
    """
    for key, value in values.items():
        found = parse(text)
        table, _, name = key.rpartition(".")
        place = found.keys.get(key)
        if place is None and value is None:
            continue
        below = any(one == key or one.startswith(f"{key}.") for one in (*found.keys, *found.tables))
        if table in found.keys or (not place.simple if place else below):
            raise RefusedError(
                f"{CONFIG}: expected {key} on a line of its own, found another form. Correct it, or {ANEW}"
            )
        if place and value is None:
            start = text.rfind("\n", 0, place.start) + 1
            text = text[:start] + text[place.end :].partition("\n")[2]
        elif place:
            text = f"{text[: place.start]}{value}{text[place.end :]}"
        elif table in found.tables:
            at = found.tables[table]
            text = f"{_ended(text[:at])}{name} = {value}\n{text[at:]}"
        elif not table or any(one.startswith(f"{table}.") for one in found.keys):
            # A table of keys with dots must have no header, which would define it a second time.
            text = f"{key} = {value}\n{text}"
        else:
            text = f"{_ended(text)}\n[{table}]\n{name} = {value}\n"
    return text


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def decide(
    found: Parsed, wished: typing.Mapping[str, typing.Any], node: Situation, root: Path = Path("/")
) -> tuple[dict[str, str], list[str]]:
    """Return the values to set, as TOML, and sentences on what stays and will not work.

    A value stays unless the operator wishes another, or no container could work with it. Whether containers
    may ask for GPUs by a variable of their own is never changed unasked: Docker's --gpus and a device plugin
    with its default strategy need it, and a site that has switched it off is stricter.
    """
    wanted = {OPTIONS[name]: json.dumps(value) for name, value in wished.items() if value is not None}
    changes, warnings = _unusable(found, root)
    no_cgroups, mode = (found.value(key) or DEFAULTS[key] for key in (NO_CGROUPS, MODE))
    if NO_CGROUPS in wanted:
        pass
    elif no_cgroups == "true" and node.rootful and node.rootless:
        warnings.append(
            f"{CONFIG} has no-cgroups = true. Users' own engines need it without CDI, and root's containers "
            "lose their GPUs by it in legacy mode (Failed to initialize NVML: Unknown Error). Set "
            "container_engines_toolkit: {no_cgroups: false}, and give these users CDI or a file below an "
            "XDG_CONFIG_HOME of their own."
        )
    elif no_cgroups == "true" and node.rootful:
        changes[NO_CGROUPS] = "false"
    elif no_cgroups != "true" and node.rootless and not node.rootful:
        warnings.append(
            f"{CONFIG} has no-cgroups = false, and only users' own engines run here: these get GPUs through "
            "CDI alone. Set container_engines_toolkit: {no_cgroups: true} where they cannot use CDI."
        )
    if MODE in wanted:
        pass
    elif mode not in MODES:
        warnings.append(f"{CONFIG} has mode = {shown(mode)}, expected one of {', '.join(MODES)}.")
    elif mode == "legacy" and node.cdi:
        warnings.append(
            f"{CONFIG} has mode = legacy: containers of the nvidia runtime do not get GPUs through CDI, and "
            "lose them when systemd reads its units anew. Set container_engines_toolkit: {mode: auto}."
        )
    changes.update(wanted)
    return {
        key: value
        for key, value in changes.items()
        if bare(value) != (found.value(key) or DEFAULTS.get(key, ""))
    }, warnings


def _unusable(found: Parsed, root: Path) -> tuple[dict[str, str], list[str]]:
    """Return what leads nowhere, with the toolkit's default, and what leads elsewhere than expected."""
    changes: dict[str, str] = {}
    warnings = []
    driver = found.value(ROOT)
    if driver not in ("", "/"):
        place = root / driver.lstrip("/")
        if any(next(place.glob(pattern), None) for pattern in LIBRARIES):
            warnings.append(
                f"{CONFIG} has root = {shown(driver)}: containers get the driver from there, not the node's."
            )
        else:
            changes[ROOT] = '"/"'
    ldconfig = found.value(LDCONFIG)
    if LDCONFIG in found.keys and not (
        found.value(CONTAINER_LDCONFIG) == "true"
        if not ldconfig.startswith("@")
        else any(
            (root / f"{ldconfig[1:].removesuffix('.real').lstrip('/')}{end}").exists()
            for end in ("", ".real")
        )
    ):
        changes[LDCONFIG] = f'"{DEFAULT_LDCONFIG}"'
    for key, default in PROGRAMS.items():
        program = found.value(key)
        if program.startswith("/") and program != default and not (root / program[1:]).exists():
            changes[key] = f'"{default}"'
    return changes, warnings


def plan(
    wished: typing.Mapping[str, typing.Any],
    node: Situation,
    record: typing.Mapping[str, typing.Any],
    *,
    present: bool,
) -> EnginePlan:
    """Compare the file with what is asked, and return what is ours and not asked any more. As an engine's."""
    made = EnginePlan(NAME, Unit("", exists=False, active=False, command=()), "")
    if CONFIG.is_symlink():
        raise RefusedError(f"{CONFIG} is a link to what somebody else manages: expected a regular file.")
    text = read_text(CONFIG)
    now = parse(text or "")
    # A value that somebody has changed since is theirs.
    ours = {
        key: before
        for key, (before, value) in record.get("keys", {}).items()
        if key in now.keys and now.value(key) == bare(value)
    }
    former = parse(edited(text or "", ours))
    changes: dict[str, str] = {}
    if present:
        changes, made.warnings = decide(former, wished, node)
    todo: dict[str, str | None] = {key: before for key, before in ours.items() if key not in changes}
    todo.update({key: value for key, value in changes.items() if now.value(key) != bare(value)})
    created = bool(record.get("created")) if text is not None else bool(changes)
    if todo:
        after = edited(text or "", todo)
        made.files[str(CONFIG)] = None if created and not parse(after).keys else after
    made.record = {
        "keys": {
            key: [former.keys[key].value if key in former.keys else None, value]
            for key, value in changes.items()
        },
        "created": created,
    }
    return made
