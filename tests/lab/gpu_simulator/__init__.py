"""Simulated GPUs for the lab's nodes: hardware, kernel side, NVIDIA packages and nvidia-smi.

Everything here is simulated in the open and stays under `tests/lab/`. Roles and the validation payload see
only what a real server would show them.

* `profiles`   which GPUs a node has (data with sources)
* `faults`     what can be wrong with them
* `nvidia_packages` and `server_packages` say which packages there are, `contents` and `libraries` make what
  is in them, `deb` and `repository` build apt repositories in NVIDIA's layout
* `packages/`  the files inside those packages, among them `nvidia-smi`
* `node/`      the node's "hardware and kernel": copied over every node's root, runs at boot
"""
