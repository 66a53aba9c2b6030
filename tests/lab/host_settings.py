"""Settings of the host that a lab needs, put back when the last lab of this machine ends."""

import json
from pathlib import Path

from tests.lab.cache import locked
from tests.lab.settings import RUNTIME_ROOT

_PROC_SYS = Path("/proc/sys")
_FORWARDING = "net/ipv4/ip_forward"
# Every systemd takes several; the usual 128 last for about 20 nodes.
_INOTIFY = "fs/inotify/max_user_instances"
_INOTIFY_INSTANCES = 8192

_RECORD = RUNTIME_ROOT / "host.json"
_LOCK = RUNTIME_ROOT / "host.lock"


def apply() -> None:
    """Let the host forward packets and give it room for many nodes' inotify instances."""
    with locked(_LOCK, "Waiting for another lab that changes host settings"):
        original = _recorded()
        for key, wanted in ((_FORWARDING, 1), (_INOTIFY, _INOTIFY_INSTANCES)):
            file = _PROC_SYS / key
            if int(file.read_text()) < wanted:
                original.setdefault(key, file.read_text().strip())
                # Recorded first: a killed process must not leave a change that nobody takes back.
                _RECORD.write_text(json.dumps({"boot_id": boot_id(), "original": original}))
                file.write_text(str(wanted))


def restore() -> None:
    """Put back what `apply` has changed; call it when no lab is left."""
    with locked(_LOCK, "Waiting for another lab that changes host settings"):
        for key, value in _recorded().items():
            (_PROC_SYS / key).write_text(value)
        _RECORD.unlink(missing_ok=True)


def boot_id() -> str:
    """Changes whenever the host is started anew."""
    return (_PROC_SYS / "kernel/random/boot_id").read_text().strip()


def _recorded() -> dict[str, str]:
    """What the host had before; nothing if that was before it was started anew."""
    if not _RECORD.exists():
        return {}
    record = json.loads(_RECORD.read_text())
    original: dict[str, str] = record["original"] if record["boot_id"] == boot_id() else {}
    return original
