"""Ends a run with one sentence if its inventory or `-e` cannot be read; Ansible has one error per plugin."""

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
short_description: Says in one sentence why an inventory cannot be read
description:
  - This plugin is the last that is enabled (ansible.cfg). Ansible asks it only if all others failed.
  - It ends the run with status 1 and a sentence if the file is missing, is no YAML, or is a script that
    fails, or if the value of C(-e) has a wrong form, because then every plugin fails.
  - It leaves configurations of other plugins to Ansible.
"""
#: A script that failed runs once more, for what it prints.
SCRIPT_S = 60
#: As Ansible ends where its command line or inventory is wrong.
STATUS = 1


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]  # Ansible ships no types
    """Reads nothing."""

    NAME = "unreadable"

    def verify_file(self, path: str) -> bool:
        """Return False, or end the run with a sentence. Ansible drops every exception but SystemExit."""
        if not constants.INVENTORY_ANY_UNPARSED_IS_FAILED:  # the operator goes on without it
            return False
        if sentence := extra_vars_problem() or problem(path):
            self.display.error(f"{sentence.rstrip('.')}. {NOTHING_DONE}", wrap_text=False)
            raise SystemExit(STATUS)
        return False

    def parse(self, inventory: Any, loader: Any, path: Any, cache: Any = True) -> None:
        """Never called."""


def extra_vars_problem() -> str:
    """Return what is wrong with `-e`. It decrypts no vault, because it has no password."""
    try:
        load_extra_vars(DataLoader())
    except AnsibleError as error:
        if VAULT in error.message:
            return ""
        return wrong_option(map(str, context.CLIARGS["extra_vars"])) or f"-e: {error.message}"
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
    """Return what a failing script prints. Ansible hides that among the errors of other plugins."""
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own script
            [path, "--list"], capture_output=True, text=True, check=False, timeout=SCRIPT_S
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: its output is no text
        return ""
    return f"{path} ended with status {done.returncode}: {last_words(done)}" if done.returncode else ""
