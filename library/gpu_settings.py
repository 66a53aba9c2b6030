#!/usr/bin/python3
"""The live settings of a node's GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_settings
short_description: Bring persistence mode, clocks and power limits of all GPUs to the wanted values
description:
  - Reads the live settings through C(nvidia-smi), changes what differs and reads back, because C(nvidia-smi)
    reports success
    for settings that a GPU refuses.
options:
  clocks:
    description: V(max), V(default), or a mapping with V(graphics) and V(memory) in MHz.
    type: raw
    required: true
  power_limit_w:
    description: Power limit in W; the GPU's default where it is not set.
    type: float
  locked_clocks:
    description: Whether the GPUs can lock their graphics and memory clocks. Where they cannot, they get
      application clocks.
    type: dict
    required: true
    suboptions:
      graphics:
        description: Volta and newer.
        type: bool
        required: true
      memory:
        description: Ampere and newer.
        type: bool
        required: true
author: Temper developers
"""

EXAMPLES = r"""
- name: Lock the clocks
  gpu_settings:
    clocks: {graphics: 1410}
    locked_clocks: {graphics: true, memory: true}
"""

RETURN = r"""
changes:
  description: What changed, by GPU and setting.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver.gpus import GpuSettings
from ansible.module_utils.settings.module import settle_one


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "clocks": {"type": "raw", "required": True},
            "power_limit_w": {"type": "float"},
            "locked_clocks": {
                "type": "dict",
                "required": True,
                "options": {
                    "graphics": {"type": "bool", "required": True},
                    "memory": {"type": "bool", "required": True},
                },
            },
        },
        supports_check_mode=True,
    )
    settle_one(module, GpuSettings.from_parameters(module.params))


if __name__ == "__main__":
    main()
