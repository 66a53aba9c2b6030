#!/usr/bin/python
"""What installing a set of packages would do to a node, before anything on the node is changed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_preview
short_description: Simulate the transaction that a plan's packages would need on a node
description:
  - Lets the package manager resolve the transaction with the repositories, keys and pins that the node is to
    get, in a private directory. Nothing of the node's own state changes and no lock is taken.
  - Keys are fetched and checked as M(node_settings) does it. One that is not in
    O(repositories[].fingerprints) is a problem.
  - A transaction that cannot or must not run is described in RV(problems), not failed.
options:
  packages:
    description: Names and exact versions. An empty version means what is offered.
    type: dict
    required: true
  present:
    description: Names and versions of what must be installed besides, and is not held.
    type: dict
    default: {}
  hold_versions:
    description: Versions at which packages will be held. They do not change what is installed.
    type: list
    elements: str
    default: []
  module_streams:
    description: Module streams that are enabled before (dnf).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the module.
        type: str
        required: true
      stream:
        description: The stream of it.
        type: str
        required: true
  engines:
    description: The part of role container_engines of the node's plan, as JSON. Its engines are asked whether
      they would take their settings, so that a conflict is known before anything is installed.
    type: str
    default: ""
  from_bare:
    description: As if nothing of the NVIDIA family were installed, which is what a mirror has to serve.
    type: bool
    default: false
  stage:
    description: Also fetch what the transaction installs, and the versions that it replaces, which become a
      repository of their own on the node, F(/var/cache/temper/former-packages), from which the way back is
      installed even where nobody else offers them any more. Nothing is installed. With apt, the new packages
      go into its cache; with dnf, into the same folder.
    type: bool
    default: false
extends_documentation_fragment: temper_repositories
author: Temper developers
"""

EXAMPLES = r"""
- name: Simulate the transaction
  package_preview:
    packages: "{{ preflight_plan.packages }}"
    repositories: "{{ preflight_plan.repositories }}"
    pins: "{{ preflight_plan.pins }}"
"""

RETURN = r"""
transaction:
  description: Lists C(install), C(upgrade), C(downgrade) (name, version, architecture, uri, size_bytes,
    sha256; the latter two with C(from) and C(to)) and C(remove) (name, version); C(download_bytes),
    C(disk_bytes).
  returned: always
  type: dict
resolved:
  description: Versions of the packages that were asked for without one.
  returned: always
  type: dict
problems:
  description: Why the transaction cannot or must not run, a sentence each.
  returned: always
  type: list
  elements: str
unresolved:
  description: Whether the package manager finds no transaction in the repositories that it has read, and no
    rule of the node's owner (apt's preferences, exclusions and locks of dnf) is why.
  returned: always
  type: bool
not_offered:
  description: Packages that no repository offers (C(name)), or not in this C(version): empty where there is
    none of this name.
  returned: always
  type: list
  elements: dict
former:
  description: Package -> the version that is installed now and has been fetched (O(stage)).
  returned: always
  type: dict
refused:
  description: Why an engine would not take its settings.
  returned: always
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import process
from ansible.module_utils.temper.packaging import apt_preview, dnf_preview, dnf_staging, repositories, staging
from ansible.module_utils.temper.packaging.dnf import Dnf
from ansible.module_utils.temper.packaging.packages import Wish
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings.base import RefusedError, SettingError
from ansible.module_utils.temper.settings.engine import carry_out


def refusals(module: AnsibleModule, part: str) -> list[str]:
    """Return why the engines would not take their settings."""
    # Never more than asked, however this module was called.
    module.check_mode = True
    try:
        outcomes = carry_out(module, [json.loads(part)] if part else [], {})["roles"].values()
    except (RecordError, RefusedError) as error:
        return [str(error)]
    return [outcome["msg"] for outcome in outcomes if outcome.get("failed")]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "present": {"type": "dict", "default": {}},
            "hold_versions": {"type": "list", "elements": "str", "default": []},
            **repositories.ARGUMENTS,
            "module_streams": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "stream": {"type": "str", "required": True},
                },
            },
            "engines": {"type": "str", "default": "", "no_log": True},
            "from_bare": {"type": "bool", "default": False},
            "stage": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    wish = Wish(parameters["packages"], parameters["present"])
    wanted, pins, bare = parameters["repositories"], parameters["pins"], parameters["from_bare"]
    former: dict[str, str] = {}
    fetches = parameters["stage"] and not module.check_mode
    dnf = None if process.which("apt-get") else Dnf(pins, parameters["module_streams"])
    try:
        if dnf is None and fetches:
            preview, former = staging.stage(wish, wanted, pins)
        elif dnf is None:
            preview = apt_preview.preview(wish, wanted, pins, from_bare=bare)
        elif fetches:
            preview, former = dnf_staging.stage(wish, wanted, dnf)
        else:
            preview = dnf_preview.preview(wish, wanted, dnf, from_bare=bare)
    except (SettingError, process.CommandError) as error:
        module.fail_json(msg=str(error), output=getattr(error, "output", []))
    except OSError as error:  # a disk that is full, say
        module.fail_json(msg=f"Nothing was changed, because {error}: mend that, and run again.")
    refused = refusals(module, parameters["engines"])
    module.exit_json(changed=False, refused=refused, former=former, **preview.as_dict())


if __name__ == "__main__":
    main()
