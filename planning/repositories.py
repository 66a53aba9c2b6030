"""The signed repositories of the stack; a mirror or another key comes from the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planning.model import Request


def nvidia_repositories(request: Request) -> list[dict[str, Any]]:
    """NVIDIA's CUDA repository (driver, CUDA, cuDNN, NCCL) and the container toolkit's."""
    row, values = request.system.row, request.values
    folder = f"{row['repository']}/{request.system.repository_architecture}"
    cuda = f"{values['nvidia_stack_cuda_repository_url'].rstrip('/')}/{folder}/"
    toolkit = values["nvidia_stack_container_repository_url"].rstrip("/")
    table = request.tables["nvidia_container_toolkit_repository"]
    return [
        {
            "name": "nvidia-cuda",
            "kind": "apt",
            "uri": cuda,
            "suite": "/",
            "key_url": values["nvidia_stack_cuda_key_url"] or cuda + row["key_file"],
            "fingerprints": values["nvidia_stack_cuda_key_fingerprints"] or row["key_fingerprints"],
        },
        {
            "name": "nvidia-container-toolkit",
            "kind": "apt",
            "uri": f"{toolkit}/stable/deb/{request.system.package_architecture}/",
            "suite": "/",
            "key_url": values["nvidia_stack_container_key_url"] or f"{toolkit}/{table['key_file']}",
            "fingerprints": values["nvidia_stack_container_key_fingerprints"] or table["key_fingerprints"],
        },
    ]
