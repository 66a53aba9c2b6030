"""What settings were before Temper made them, and what a run that was cut off has still to do."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ansible.module_utils.files import replace_file

RECORDS = Path("/var/lib/temper/settings")
#: Where earlier versions kept the only record that there was.
FORMER = {"os_hardening": Path("/var/lib/temper/os_hardening.json")}


class Record:
    """One role's note on the node: it is written before the first change and emptied after the last."""

    def __init__(self, role: str) -> None:
        self.path = RECORDS / f"{role}.json"
        self.former = FORMER.get(role)
        data: dict[str, Any] = {}
        for path in (self.path, self.former):
            if path and path.exists():
                data = json.loads(path.read_text(encoding="utf-8"))
                break
        #: Key -> {"spec", "state"}: enough to restore a setting that nobody asks for any more.
        self.originals: dict[str, dict[str, Any]] = data.get("originals", {})
        #: The keys of settings whose change has not been carried through.
        self.pending: list[str] = data.get("pending", [])

    def save(self) -> None:
        """Write it, or remove it where it is empty."""
        if self.originals or self.pending:
            data = {"originals": self.originals, "pending": self.pending}
            replace_file(self.path, json.dumps(data, indent=1).encode(), 0o600)
        else:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # other roles have theirs there, or it is not there
                self.path.parent.rmdir()
        if self.former:
            self.former.unlink(missing_ok=True)
