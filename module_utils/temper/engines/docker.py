"""Docker: /etc/docker/daemon.json, checked by dockerd and read back from the running daemon."""

from __future__ import annotations

import http.client
import json
import socket
import time
import typing
from pathlib import Path

from ansible.module_utils.temper.engines import daemon_json
from ansible.module_utils.temper.engines.base import (
    EngineOptions,
    EnginePlan,
    Unit,
    begin,
    read_text,
    scratch,
    version_of,
    version_printed,
)
from ansible.module_utils.temper.process import MOST_BYTES, CommandError, run
from ansible.module_utils.temper.settings.base import RefusedError, SettingError

DAEMON_JSON = Path("/etc/docker/daemon.json")
SOCKET = Path("/run/docker.sock")
# Where snapd mounts the snap docker; the second is that of distributions without /snap.
SNAPS = (Path("/snap/docker/current"), Path("/var/lib/snapd/snap/docker/current"))
# Docker's documentation of SIGHUP; measured with 20.10 and 26.1: features.cdi needs a restart.
LIVE_KEYS = {"runtimes", "default-runtime"}
FLAGS = {  # key of the file -> the option that dockerd does not accept beside it
    "runtimes": "add-runtime",
    "default-runtime": "default-runtime",
    "default-shm-size": "default-shm-size",
    "default-ulimits": "default-ulimit",
    "features": "feature",
}
RELOAD_TIMEOUT_S = 20
#: What dockerd says before version 23; its status is that of any error.
NO_VALIDATION = "unknown flag: --validate"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(unit: Unit, path: str) -> dict[str, typing.Any]:
    """Return one answer of Docker's API, over its socket: Debian 13 installs the daemon without the command.

    Raises SettingError.
    """
    flags = unit.flags()
    named = [
        host[len("unix://") :] for host in flags.get("H", []) + flags.get("host", []) if "unix://" in host
    ]
    address = Path(named[0]) if named else SOCKET
    connection = _Connection(address)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read(MOST_BYTES))
        if not isinstance(answer, dict):
            raise TypeError(f"expected a JSON object, found {type(answer).__name__}")
    except (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError) as error:
        raise SettingError(f"Docker is running, but does not answer at {address}: {error}") from error
    finally:
        connection.close()
    return answer


class Docker:
    """The engine."""

    name = "docker"
    title = "Docker"
    unit = "docker.service"
    program = "dockerd"
    cdi_since = "26.1"
    without_cdi = (
        "; containers get GPUs through the nvidia runtime: docker run --runtime=nvidia or --gpus=all"
    )

    def plan(self, options: EngineOptions, unit: Unit, record: dict[str, typing.Any]) -> EnginePlan:
        """Compare daemon.json with the options."""
        flags = unit.flags()
        path = Path(flags["config-file"][0]) if "config-file" in flags else DAEMON_JSON
        plan = begin(self, unit, self._version(unit), options, {})
        before = read_text(path)
        document = daemon_json.parse(before or "", str(path))
        mine = daemon_json.DockerRecord.load(record)
        settings = _settings(options, plan.cdi) if options.present else []
        _refuse_flags(settings, flags, unit.name)
        if options.present:
            if before is None:
                mine.created = True
            merged, mine = daemon_json.merge(document, settings, mine, str(path))
        else:
            merged = daemon_json.remove(document, mine)
            mine = daemon_json.DockerRecord([], [], mine.created)
        if merged != document or (before is None and options.present):
            gone = not merged and mine.created and not options.present
            plan.files[str(path)] = None if gone else daemon_json.render(merged, before or "")
            changed = {key for key in {*document, *merged} if document.get(key) != merged.get(key)}
            plan.action = "reload" if changed <= LIVE_KEYS else "restart"
            self._validate(unit, daemon_json.render(merged, before or ""), str(path))
        plan.record = mine.dump() if options.present else {}
        return plan

    def _version(self, unit: Unit) -> str:
        if unit.active:
            return version_of(str(ask(unit, "/version").get("Version")))
        return version_printed(self)

    def _validate(self, unit: Unit, text: str, where: str) -> None:
        """Ask dockerd itself, with the options that its unit gives it. Before version 23 it cannot say."""
        with scratch() as directory:
            candidate = Path(directory) / "daemon.json"
            candidate.write_text(text, encoding="utf-8")
            options = [word for word in unit.command[1:] if not word.startswith("--config-file")]
            try:
                run([self.program, "--validate", f"--config-file={candidate}", *options])
            except CommandError as error:
                said = str(error).replace(str(candidate), where)
                if NO_VALIDATION not in said:
                    raise RefusedError(
                        f"dockerd does not accept {where} as it would become: {said}. Correct it and run "
                        "again."
                    ) from error

    def disagreement(self, options: EngineOptions, plan: EnginePlan) -> str:
        """Compare the running daemon with what is asked; a reload takes a moment."""
        deadline = time.monotonic() + RELOAD_TIMEOUT_S
        while True:
            problem = _difference(ask(plan.unit, "/info"), options, plan.cdi)
            if not problem or plan.action != "reload" or time.monotonic() > deadline:
                return problem
            time.sleep(0.1)

    def running_containers(self, unit: Unit) -> tuple[int, bool]:
        """Return how many containers run, and whether they outlive a restart of the daemon."""
        info = ask(unit, "/info")
        return int(info["ContainersRunning"]), bool(info["LiveRestoreEnabled"])


def snap_refusal() -> str | None:
    """Return why the snap docker cannot be set up; None where there is none.

    It has a configuration and a container toolkit of its own (https://github.com/canonical/docker-snap).
    """
    if not any(path.exists() for path in SNAPS):
        return None
    return (
        "Docker is the snap here, which brings its own container toolkit and reads "
        f"/var/snap/docker/current/config/daemon.json instead of {DAEMON_JSON}: what is set here would not "
        "reach it. Replace it (`snap remove docker`, which removes its containers and images, and "
        "container_engines_install: [docker.io]), or name docker in container_engines_exclude."
    )


def _settings(options: EngineOptions, cdi: bool) -> list[daemon_json.WantedKey]:
    leave_alone = "name docker in container_engines_exclude"
    runtime = {"path": "nvidia-container-runtime", "args": []}
    settings = [daemon_json.WantedKey(("runtimes", "nvidia"), runtime, leave_alone)]
    if options.default_runtime:
        remedy = "set container_engines_default_runtime: false"
        settings.append(daemon_json.WantedKey(("default-runtime",), "nvidia", remedy))
    if cdi:
        settings.append(daemon_json.WantedKey(("features", "cdi"), True, "set container_engines_cdi: false"))
    if options.shm_size:
        remedy = 'set container_engines_shm_size to it (or to "", which leaves it alone)'
        settings.append(daemon_json.WantedKey(("default-shm-size",), options.shm_size, remedy))
    for name, limit in options.ulimits.items():
        value = {"Name": name, "Soft": limit, "Hard": limit}
        remedy = f"leave {name} out of container_engines_ulimits"
        settings.append(daemon_json.WantedKey(("default-ulimits", name), value, remedy))
    return settings


def _refuse_flags(settings: list[daemon_json.WantedKey], flags: dict[str, list[str]], unit: str) -> None:
    for key in dict.fromkeys(setting.path[0] for setting in settings):
        flag = FLAGS[key]
        if flag in flags:
            raise RefusedError(
                f"{unit} starts dockerd with --{flag}={flags[flag][0]}, and dockerd refuses to start when "
                f"{key} stands in daemon.json too. Move the option from the unit into daemon.json and run "
                "again."
            )


def _difference(info: dict[str, typing.Any], options: EngineOptions, cdi: bool) -> str:
    has_runtime = "nvidia" in (info.get("Runtimes") or {})
    if has_runtime != options.present and options.present:
        return "it does not know the runtime nvidia"
    if options.present and options.default_runtime and info.get("DefaultRuntime") != "nvidia":
        return f"its default runtime is {info.get('DefaultRuntime')}, expected nvidia"
    if options.present and cdi and not info.get("CDISpecDirs"):
        return "CDI is not switched on"
    return ""
