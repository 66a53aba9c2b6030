"""Shared by all tests: our module_utils are importable under the name that Ansible gives them."""

from pathlib import Path

import ansible.module_utils

ROOT = Path(__file__).resolve().parent.parent

# On a node Ansible merges module_utils/ into its own package of that name; `__path__` does the same here.
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
