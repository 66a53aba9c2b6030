"""Read YAML files of this repository, all that match a pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: yaml_files
short_description: The contents of all YAML files that match a pattern
description: Files of the repository itself, read once per use and never templated.
options:
  _terms:
    description: Folder, and pattern below it.
    required: true
"""
# libyaml where it is there: the tables are read once a node.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class LookupModule(LookupBase):  # type: ignore[misc]  # Ansible ships no types
    """lookup('yaml_files', folder, pattern): a list with one mapping per file: its path and its content."""

    def run(self, terms: list[str], variables: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Read the files in the order of their names.

        Raises AnsibleError where none matches or one is no YAML.
        """
        folder, pattern = terms
        found = []
        for path in sorted(Path(folder).resolve().glob(pattern)):
            try:
                content = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - a safe loader
            except yaml.YAMLError as error:
                raise AnsibleError(f"{path}: expected YAML: {error}") from error
            found.append({"path": str(path), "content": content})
        if not found:
            raise AnsibleError(f"expected files {pattern} in {folder}, found none")
        return found
