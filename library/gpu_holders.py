#!/usr/bin/python
"""Who holds the GPUs of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_holders
short_description: Name the processes and containers that hold GPUs, and change nothing
description:
  - Names every process that has a device file of a GPU open, whether it computes or idles. That is a file of
    NVIDIA's driver, a file of C(/dev/dri) of one of its GPUs, or a file of C(/dev/vfio) by which a virtual
    machine has one. A container that has been given a GPU and has not opened it is named by one process.
  - Services that O(ignore) names are left out. They are the driver's own and end with it.
  - Of Kubernetes' pods only those that compute are named. Device plugins and exporters watch and stay through
    a drain.
options:
  ignore:
    description: Names of systemd services that may hold GPUs.
    type: list
    elements: str
    default:
      - nvidia-persistenced.service
      - nvidia-fabricmanager.service
      - nvidia-dcgm.service
      - dcgm-exporter.service
      - nvidia-dcgm-exporter.service
      - nvidia-imex.service
author: Temper developers
"""

EXAMPLES = r"""
- name: See who keeps the driver from being unloaded
  gpu_holders:
  register: found
"""

RETURN = r"""
holders:
  description: Each with C(pid), C(name), C(devices), C(container) (its short id), C(unit), C(in_pod),
    C(gpus), addresses and drivers of the GPUs that files of C(/dev/vfio) and C(/dev/dri) belong to, and
    C(idle), whether it is a container that has been given a GPU and has it not open.
  returned: always
  type: list
sentences:
  description: The same for people.
  returned: always
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper.driver import holders


def main() -> None:
    module = AnsibleModule(
        argument_spec={"ignore": {"type": "list", "elements": "str", "default": list(holders.SERVICES)}},
        supports_check_mode=True,
    )
    found = [
        one
        for one in holders.holders(holders.PROC, ignore=module.params["ignore"])
        if not one.in_pod or one.computes
    ]
    module.exit_json(
        changed=False, holders=[one._asdict() for one in found], sentences=[str(one) for one in found]
    )


if __name__ == "__main__":
    main()
