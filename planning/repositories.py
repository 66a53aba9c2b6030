"""The signed repositories of the stack; a mirror or another key comes from the inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planning.model import Request

# NVIDIA's CUDA repository signs rpm packages; the container toolkit's signs its metadata only.
RPM_SIGNED = {"nvidia-cuda": "packages", "nvidia-container-toolkit": "metadata"}
# NVIDIA's CUDA repository has firmware tools that clash with those of DOCA-OFED (azhpc-images, 2026-07-29).
RPM_EXCLUDE = {"nvidia-cuda": ["mft", "mft-*", "kernel-mft*"], "nvidia-container-toolkit": []}


def nvidia_repositories(request: Request) -> list[dict[str, Any]]:
    """NVIDIA's CUDA repository (driver, CUDA, cuDNN, NCCL, DCGM) and the container toolkit's."""
    row, values, system = request.system.row, request.values, request.system
    folder = f"{row['repository']}/{system.repository_architecture}"
    cuda = f"{values['nvidia_stack_cuda_repository_url'].rstrip('/')}/{folder}/"
    toolkit = values["nvidia_stack_container_repository_url"].rstrip("/")
    kind = "deb" if system.package_manager == "apt" else "rpm"
    table = request.tables["nvidia_container_toolkit_repository"]
    found = [
        {
            "name": "nvidia-cuda",
            "kind": system.package_manager,
            "uri": cuda,
            "key_url": values["nvidia_stack_cuda_key_url"] or cuda + row["key_file"],
            "fingerprints": values["nvidia_stack_cuda_key_fingerprints"] or row["key_fingerprints"],
        },
        {
            "name": "nvidia-container-toolkit",
            "kind": system.package_manager,
            "uri": f"{toolkit}/stable/{kind}/{system.package_architecture}/",
            "key_url": values["nvidia_stack_container_key_url"] or f"{toolkit}/{table['key_file']}",
            "fingerprints": values["nvidia_stack_container_key_fingerprints"] or table["key_fingerprints"],
        },
    ]
    if kind == "deb":
        return [repository | {"suite": "/"} for repository in found]
    return [
        repository | {"signed": RPM_SIGNED[repository["name"]], "exclude": RPM_EXCLUDE[repository["name"]]}
        for repository in found
    ]


def repository_key_problems(request: Request) -> list[str]:
    """A repository whose signing key nobody has pinned is not trusted."""
    row = request.system.row
    if row["key_fingerprints"] or request.values["nvidia_stack_cuda_key_fingerprints"]:
        return []
    key_id = row["key_file"].partition(".")[0].upper()
    return [
        f"Temper does not know the full fingerprint of the key that signs NVIDIA's repository for "
        f"{request.system.distribution} ({row['key_file']}); read it from a source you trust and set "
        f"nvidia_stack_cuda_key_fingerprints: [40 hexadecimal digits, the last eight are {key_id}]"
    ]
