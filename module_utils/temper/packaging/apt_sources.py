"""The distribution's own repositories as apt on a node knows them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.process import parsed

CACHES = Path("/var/cache/apt")
# Files of ours: what they add must not look as if the node had brought it along.
OURS = "temper-"


@contextlib.contextmanager
def caches_kept() -> Iterator[list[str]]:
    """Options with which apt reads its caches and leaves them as they are.

    Even to be asked something, apt writes them anew where they are missing or old: with these, to a folder of
    ours, where it replaces the links. Without caches it reads all lists: half a second for Debian's alone.
    """
    with tempfile.TemporaryDirectory(prefix="temper-apt-") as folder:
        options = []
        for name in ("pkgcache", "srcpkgcache"):
            link = Path(folder) / f"{name}.bin"
            if (CACHES / link.name).exists():
                link.symlink_to(CACHES / link.name)
            options += ["-o", f"Dir::Cache::{name}={link}"]
        yield options


def parse(listing: str, origin: str) -> list[dict[str, Any]]:
    """Return the repositories of an origin: uri, suite, components, and the keyring (signed_by) or "".

    A list that was never fetched has no origin yet; the mirror's folder then tells Debian's from others.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for text in listing.split("\n\n"):
        # A key that stands in the source itself goes on in indented lines.
        fields = dict(
            line.split(": ", 1) for line in text.splitlines() if ": " in line and line[:1].isalpha()
        )
        uri, suite = fields.get("Repo-URI", ""), fields.get("Release", "")
        folder = uri.rstrip("/").rpartition("/")[2]
        made_by = fields.get("Origin")
        known = made_by == origin or (not made_by and folder.partition("-")[0] == origin.lower())
        entry = fields.get("Sourcesentry", "")
        if not known or os.path.basename(entry).startswith(OURS):  # noqa: PTH119 - "FILE:NUMBER" is no path
            continue
        source = found.setdefault(
            (uri, suite), {"uri": uri, "suite": suite, "components": [], "signed_by": signed_by(entry)}
        )
        component = fields.get("Component", "")
        if component and component not in source["components"]:
            source["components"].append(component)
    return list(found.values())


def signed_by(entry: str) -> str:
    """Return the keyring (or key id) that a source names.

    `entry` is FILE:NUMBER, of a line or of a deb822 stanza.

    apt 3.0 tells it in its listing, apt 2.6 does not.
    """
    name, _, place = entry.rpartition(":")
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a name with NUL in it is none
        return ""
    number = parsed("apt-get indextargets", place, int)
    if number < 1:
        return ""
    if name.endswith(".sources"):
        uncommented = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
        stanzas = [stanza for stanza in re.split(r"\n\s*\n", uncommented) if stanza.strip()]
        part = stanzas[number - 1] if number <= len(stanzas) else ""
        match = re.search(r"^Signed-By:[ \t]*(\S+)[ \t]*$", part, re.MULTILINE | re.IGNORECASE)
    else:
        line = text.split("\n")[number - 1 : number]
        match = re.search(r"\bsigned-by=([^\s\]]+)", "".join(line), re.IGNORECASE)
    return match[1] if match else ""
