"""What settings were before Temper made them, and what a run that was cut off has still to do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import records
from ansible.module_utils.temper.process import MISREAD
from ansible.module_utils.temper.settings import base
from ansible.module_utils.temper.settings.kinds import ORIGINAL, STATES, rebuild

RECORDS = Path("/var/lib/temper/settings")
#: Where earlier versions kept the only record that there was.
FORMER = {"os_hardening": Path("/var/lib/temper/os_hardening.json")}


class Record:
    """One role's note on the node: it is written before the first change and emptied after the last."""

    def __init__(self, role: str) -> None:
        self.path = RECORDS / f"{role}.json"
        self.former = FORMER.get(role)
        path = self.former if self.former and not os.path.lexists(self.path) else self.path
        _, data = records.load(path, {"originals": {str: dict}, "pending": [str]})
        #: Key -> {"spec", "state"}, and until a run has ended "former" (base.py) and "given" (sysfs.py):
        #: enough to restore a setting that nobody asks for any more.
        self.originals: dict[str, dict[str, Any]] = data.get("originals", {})
        #: The keys of settings whose change has not been carried through.
        self.pending: list[str] = data.get("pending", [])
        for key, original in self.originals.items():
            records.expect(path, key, original, ORIGINAL)
            try:
                known = {rebuild(key, spec).key for spec in [original["spec"], *original.get("former", [])]}
            except (*MISREAD, OSError) as error:  # a path may be longer than any file's
                raise records.damaged(path, f"{key}: {error!r}") from error
            if known != {key}:
                raise records.damaged(path, f"found {min(known)} under {key}")
            records.expect(path, f"the state of {key}", original["state"], STATES[key.partition(":")[0]])

    def save(self) -> None:
        """Write it, or remove it where it is empty."""
        if self.originals or self.pending:
            data = {"originals": self.originals, "pending": self.pending}
            records.store(self.path, data)
        else:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other roles have theirs there, or it is not there
                self.path.parent.rmdir()
        if self.former:
            self.former.unlink(missing_ok=True)


def noted(key: str) -> list[Any]:
    """Return the states that all roles have noted under a key. Raises RecordError."""
    return [record.originals[key]["state"] for record in others("") if key in record.originals]


base.NOTED[:] = [noted]


def others(role: str) -> list[Record]:
    """Return the records of all other roles. Raises RecordError."""
    return [Record(path.stem) for path in sorted(RECORDS.glob("*.json")) if path.stem != role]


def check_records(role: str) -> None:
    """Raise RecordError where something that is noted for a role on this node cannot be read."""
    Record(role)
    # Imported on demand: a node compiles whatever an execution imports.
    if role == "admin_accounts":
        from ansible.module_utils.temper.access import accounts

        accounts.AccountsRecord(accounts.RECORD)
    elif role == "container_engines":
        from ansible.module_utils.temper.engines import engine_settings

        engine_settings.load_state()
    elif role == "firewall":
        from ansible.module_utils.temper.access import other_firewall

        other_firewall.ended()
    elif role == "nvidia_stack":
        from ansible.module_utils.temper.packaging import packages

        packages.recorded_holds()
