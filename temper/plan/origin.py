"""Where a value of the inventory stands: file and line, as Ansible notes them beside what it reads."""

from __future__ import annotations

import linecache
from typing import Any

import yaml

from temper.base import typed

try:
    from ansible._internal._datatag._tags import Origin
except ImportError:  # Ansible promises no name for it
    Origin = None

#: In each of Ansible's sentences on a vault without its password, or with a wrong one (ansible-core 2.19).
VAULT = "vault secrets"


def place(value: object, key: object = None) -> str:
    """Return file and line of a value, for the end of a sentence; empty where nobody has noted them.

    True, false and nothing have none. There it is that of the `key`, which may be of another file that this
    value overrides: it counts where this value stands beside it. Inventories in JSON have no lines; runs over
    several processes write such files.
    """
    if not Origin:
        return ""
    if found := Origin.get_tag(value):
        return shown(found)
    found = Origin.get_tag(key)
    return shown(found) if found and found.path and stands_at(found, key, value) else ""


def place_of(name: object) -> str:
    """Return file and line of a name, likewise."""
    found = Origin.get_tag(name) if Origin else None
    return shown(found) if found else ""


def place_of_error(error: BaseException | None) -> str:
    """Return file and line of what could not be read, likewise, where this or an earlier error knows them.

    Ansible itself drops them of a file in group_vars or host_vars.
    """
    while error and Origin:
        known = getattr(error, "obj", None)
        found = known if isinstance(known, Origin) else Origin.get_tag(known)
        if found and found.path:
            return shown(found)
        error = error.__cause__ or error.__context__
    return ""


def with_vault_remedy(text: str, *files: str) -> str:
    """Return what Ansible says of a vault that it cannot decrypt, with its `files` and what to type."""
    if VAULT not in text:
        return text
    where = f" ({', '.join(map(typed, files))})" if files else ""
    return (
        f"{text.rstrip('.')}{where}. Name the file that has the vault's password (export "
        "ANSIBLE_VAULT_PASSWORD_FILE=FILE), or add --ask-vault-pass"
    )


def shown(origin: Any) -> str:
    """Return an origin in brackets, a path as the operator would type it here."""
    if not origin.path:
        return "" if origin == Origin.UNKNOWN else f" ({origin.description})"
    return f" ({typed(origin.path)}:{origin.line_num})" if origin.line_num else ""


def stands_at(origin: Any, key: object, value: object) -> bool:
    """Return whether the line of a key has this value."""
    try:
        linecache.checkcache(origin.path)
        line = linecache.getline(origin.path, origin.line_num or 0).strip().removeprefix("- ")
        found = yaml.safe_load(line)
    except yaml.YAMLError:
        return False
    return isinstance(found, dict) and str(key) in found and found[str(key)] is value
