#!/usr/bin/python3
"""NVIDIA's runtime and CDI for all container engines of a node, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: container_engine
short_description: Give the container engines of a node its GPUs
description:
  - Registers NVIDIA's runtime with Docker, containerd and CRI-O, switches CDI on where the engine reads the
    toolkit's specification, and has that specification written for the loaded driver.
  - Settings of others are kept, and a conflict with them is refused. Everything is checked for all engines
    before the first file is written. An engine that refuses its new configuration gets the former one back.
  - An engine is restarted only when its configuration changed, and not under containers with a GPU.
options:
  state:
    description: V(absent) takes out what this module has put in, and nothing else.
    type: str
    choices: [present, absent]
    default: present
  engines:
    description: The engines. Empty for those that are installed.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  exclude:
    description: Engines to leave as they are, whether they are installed, named or neither.
    type: list
    elements: str
    choices: [docker, containerd, crio, podman]
    default: []
  default_runtime:
    description: Whether containers that name no runtime get NVIDIA's.
    type: bool
    default: false
  cdi:
    description: Whether CDI is used where the engine is new enough.
    type: bool
    default: true
  shm_size:
    description: Docker's size of /dev/shm for containers that name none. Empty leaves it alone.
    type: str
    default: ""
  ulimits:
    description: Limits of containers, in bytes or counts; V(-1) is no limit.
    type: dict
    default: {}
  toolkit_expected:
    description: Whether a missing container toolkit is an error. If not, engines are left as they are.
    type: bool
    default: true
  busy_ok:
    description: Restart an engine although containers that this disturbs are running.
    type: bool
    default: false
author: Temper developers
"""

EXAMPLES = r"""
- name: Give the engines the GPUs
  container_engine:
    shm_size: 1G
    ulimits: {memlock: -1, stack: 67108864}
"""

RETURN = r"""
engines:
  description: The engines that were looked at, with their versions, and whether they use CDI.
  returned: success
  type: dict
changed_files:
  description: The files that changed.
  returned: success
  type: list
  elements: str
actions:
  description: What was done besides writing files, in words.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.engines.engine_settings import NAMES, ContainerEngines
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "engines": {"type": "list", "elements": "str", "choices": NAMES, "default": []},
            "exclude": {"type": "list", "elements": "str", "choices": NAMES, "default": []},
            "default_runtime": {"type": "bool", "default": False},
            "cdi": {"type": "bool", "default": True},
            "shm_size": {"type": "str", "default": ""},
            "ulimits": {"type": "dict", "default": {}},
            "toolkit_expected": {"type": "bool", "default": True},
            "busy_ok": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    settle_one(module, ContainerEngines.from_parameters(module.params, check_mode=module.check_mode))


if __name__ == "__main__":
    main()
