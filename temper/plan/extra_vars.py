"""Variables of the command line, `-e`, as Ansible takes them; what is wrong with one is a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base.options import MOST_BYTES
from validation.processes.files import read_at_most

if TYPE_CHECKING:
    import yaml


#: How a file begins that ansible-vault has encrypted.
ENCRYPTED = "$ANSIBLE_VAULT;"
#: Tags of Ansible's, with what marks the same in its JSON.
MARKS = {"!vault": "__ansible_vault", "!vault-encrypted": "__ansible_vault", "!unsafe": "__ansible_unsafe"}


class ExtraVarsError(Exception):
    """An option `-e` that Ansible cannot take; the message is a sentence, without a value."""


def variables_of(texts: Iterable[str]) -> dict[str, Any]:
    """Variables as `-e` gives them: name=value, JSON or YAML in braces, or @FILE. Raises ExtraVarsError.

    As with Ansible, an empty text gives none. Values with the tags !vault and !unsafe stay as they are, in
    the form that Ansible reads in JSON. A file that is vaulted as a whole is decrypted.
    """
    import yaml
    from ansible.errors import AnsibleError
    from ansible.parsing.splitter import parse_kv

    found: dict[str, Any] = {}
    for text in filter(None, texts):
        # A value may be a secret.
        name = re.match(r"\{?\s*['\"]?(\w+)['\"]?\s*[=:]", text)
        shown = text if text.startswith("@") else f"{name[1]}=..." if name else "..."
        if text.startswith(("@", "{")):
            try:
                content = read_at_most(Path(text[1:]), MOST_BYTES).decode() if text.startswith("@") else text
                if content.startswith(ENCRYPTED):
                    content = _decrypted(Path(text[1:]).resolve())
                given = yaml.load(content, _marking_loader())  # noqa: S506 - a SafeLoader
            except OSError as error:
                raise ExtraVarsError(
                    f"-e {shown}: expected a file with variables: {error.strerror or error}"
                ) from error
            except (ValueError, RecursionError, yaml.YAMLError) as error:
                mark = getattr(error, "problem_mark", None)
                where = f", line {mark.line + 1}" if mark else ""
                problem = getattr(error, "problem", None) or "it is none"
                raise ExtraVarsError(
                    f"-e {shown}: expected variables in JSON or YAML{where}: {problem}"
                ) from None
            if not isinstance(given, dict):
                raise ExtraVarsError(f"-e {shown}: expected names with values, found {type(given).__name__}.")
            found |= given
        else:
            try:
                pairs = parse_kv(text)
            except AnsibleError:
                raise ExtraVarsError(f"-e {shown}: expected name=value, with quotes that end.") from None
            if not pairs or "_raw_params" in pairs:
                raise ExtraVarsError(f"-e {shown}: expected name=value, JSON in braces, or @FILE.")
            found |= pairs
    try:
        plain: dict[str, Any] = json.loads(json.dumps(found, default=_day))
    except (TypeError, ValueError) as error:
        raise ExtraVarsError(f"-e: expected values that JSON has: {error}") from error
    return plain


@cache
def _marking_loader() -> type[yaml.SafeLoader]:
    """Return a loader of YAML that leaves values with Ansible's tags to Ansible."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Knows Ansible's tags."""

    def marked(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> dict[str, str]:
        return {MARKS[node.tag]: str(loader.construct_scalar(node))}

    for tag in MARKS:
        Loader.add_constructor(tag, marked)
    return Loader


def _decrypted(path: Path) -> str:
    """Return the content of a file that is vaulted as a whole. Raises ExtraVarsError."""
    from temper.plan.inventory import InventoryError, ansible, last_words

    try:
        done = ansible("ansible-vault", [], "view", str(path))
    except InventoryError as error:
        raise ExtraVarsError(str(error)) from error
    if done.returncode:
        # Where Ansible knows no password, it asks; nobody may be there to answer.
        said = "it is a vault without its password" if "EOFError" in done.stderr else last_words(done)
        raise ExtraVarsError(
            f"-e @{path}: {said.rstrip('.')}. Name the file that has the password: "
            "export ANSIBLE_VAULT_PASSWORD_FILE=FILE"
        )
    return done.stdout


def _day(value: object) -> str:
    """Return a day or a time that YAML has found, as text again. Raises TypeError."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"found {type(value).__name__}")


def wrong_option(texts: Iterable[str]) -> str:
    """Return the sentence about the first `-e` that has another form; empty if none has."""
    from yaml.constructor import ConstructorError

    for text in texts:
        try:
            variables_of([text])
        except ExtraVarsError as error:
            # Ansible knows more tags.
            if not isinstance(error.__context__, ConstructorError):
                return f"{error}"
    return ""
