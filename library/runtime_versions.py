#!/usr/bin/python3
"""Libraries and daemons of the stack, asked for their own versions."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: runtime_versions
short_description: Prove cuDNN, NCCL, the CUDA driver, NVML and the fabric manager by what they say themselves
description:
  - Loads each library as a program would and calls the function that tells its version, and compares the
    answer with the expected version. A package's version says what was unpacked; this says what is found
    and loaded.
  - Each is asked in a process of its own with a time limit, so that a crash or a hang becomes a sentence. It
    changes nothing.
options:
  cudnn:
    description: Expected version of cuDNN, as 9.19.0. Empty for not installed by this stack; the same holds
      for the others.
    type: str
  nccl:
    description: Expected version of NCCL.
    type: str
  cuda_driver:
    description: The CUDA version that the driver's library must speak at least, as 13.0.
    type: str
  driver:
    description: Expected version of the loaded driver, as NVML reports it.
    type: str
  fabric_manager:
    description: Expected version of the installed fabric manager.
    type: str
  timeout_s:
    description: How long one of them may take to answer. NVML initialises every GPU first.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Ask the libraries for their versions
  runtime_versions:
    cudnn: 9.19.0
    nccl: 2.28.9
    driver: 580.178.04
"""

RETURN = r"""
versions:
  description: What was found, by name; each has C(expected), C(found) and C(file).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.driver import runtime


def main() -> None:
    module = AnsibleModule(
        argument_spec={kind: {"type": "str"} for kind in runtime.TITLES}
        | {"timeout_s": {"type": "int", "default": runtime.TIMEOUT_S}},
        supports_check_mode=True,
    )
    versions, problem = runtime.prove(module.params, module.params["timeout_s"])
    if problem:
        module.fail_json(msg=problem, versions=versions)
    module.exit_json(changed=False, versions=versions)


if __name__ == "__main__":
    main()
