"""Simulated GPUs for the lab's nodes: hardware, kernel side, NVIDIA packages and nvidia-smi.

Everything here is simulated in the open and stays under `tests/lab/`. Roles and the validation payload see
only what a real server would show them.

* `profiles`   which GPUs a node has (data with sources)
* `faults`     what can be wrong with them
* `nvidia_packages`, `libraries`, `deb` and `repository` build apt repositories with NVIDIA's layout and
  package names
* `packages/`  the files inside those packages, among them `nvidia-smi`
* `node/`      the node's "hardware and kernel": copied over every node's root, runs at boot
"""
