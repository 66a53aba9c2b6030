"""Ends a run whose inventory or `-e` cannot be read with one sentence, and not with each plugin's error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ansible.context as context
from ansible import constants
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.vars import load_extra_vars

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.base.selection import NOTHING_DONE
from temper.plan.extra_vars import wrong_option
from temper.plan.inventory import InventoryError, last_words, require_present, unreadable
from temper.plan.origin import VAULT

DOCUMENTATION = """
name: unreadable
short_description: One sentence for an inventory that no other plugin can read
description:
  - The last of the enabled plugins (ansible.cfg), which Ansible asks only about what no other could read.
  - Ends the run with status 1 and a sentence where C(-e) cannot be read, so that every plugin fails, and where
    the file is not there, is no YAML, or is a script that fails. It leaves plugins to Ansible.
"""
#: For a script that has failed, and is asked once more for its words.
SCRIPT_S = 60
#: As Ansible ends where its command line or inventory is wrong.
STATUS = 1


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]  # Ansible ships no types
    """Reads nothing."""

    NAME = "unreadable"

    def verify_file(self, path: str) -> bool:
        """Return False, unless there is a sentence to end with: what is raised otherwise, Ansible drops."""
        if not constants.INVENTORY_ANY_UNPARSED_IS_FAILED:  # the operator goes on without it
            return False
        if sentence := extra_vars_problem() or problem(path):
            self.display.error(f"{sentence.rstrip('.')}. {NOTHING_DONE}", wrap_text=False)
            raise SystemExit(STATUS)
        return False

    def parse(self, inventory: Any, loader: Any, path: Any, cache: Any = True) -> None:
        """Never called."""


def extra_vars_problem() -> str:
    """Return what is wrong with `-e`; a vault's password is not known here."""
    try:
        load_extra_vars(DataLoader())
    except AnsibleError as error:
        wrong = wrong_option(map(str, context.CLIARGS["extra_vars"]))
        return "" if VAULT in error.message else wrong or f"-e: {error.message}"
    return ""


def problem(path: str) -> str:
    """Return why an inventory cannot be read, if its file is missing, a script that fails, or no YAML."""
    try:
        require_present([path])
    except InventoryError as error:
        return str(error)
    if os.access(path, os.X_OK):
        return words_of_script(path)
    # A file without a suffix may be INI: Ansible says what is wrong with it.
    return unreadable(Path(path)) if Path(path).suffix else ""


def words_of_script(path: str) -> str:
    """Return what a script says of its failure, which Ansible hides among the errors of other plugins."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own script
            [path, "--list"], capture_output=True, text=True, check=False, timeout=SCRIPT_S
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: it says no text
        return ""
    return f"{path} ended with status {done.returncode}: {last_words(done)}" if done.returncode else ""
