"""`--json`: one document on standard output for programs, beside the text for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SCHEMA_VERSION = 1


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json` to a command that shows something."""
    parser.add_argument("--json", action="store_true", help="print one JSON document, for programs")


def show(given: argparse.Namespace, document: Mapping[str, object], text: str) -> None:
    """Print the document where the command line asks for it, else the text of some lines."""
    if said := dumps(document) if given.json else text.removesuffix("\n"):
        print(said)


def dumps(document: Mapping[str, object]) -> str:
    """Return the document as text, with `schema_version` in front. One that has a version keeps it."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1)
