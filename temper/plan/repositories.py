"""NVIDIA's signed repositories; a mirror or another key comes from the inventory."""

from __future__ import annotations

from temper.plan.model import Repository
from temper.plan.refusals import Refusal, refusal
from temper.plan.request import Request


def nvidia_repositories(request: Request) -> tuple[Repository, ...]:
    """NVIDIA's CUDA repository (driver, CUDA, cuDNN, NCCL, DCGM) and the container toolkit's."""
    system, wanted = request.distribution, request.variables.nvidia_stack
    release = system.release
    folder = f"{release.repository}/{system.repository_architecture}"
    uri = f"{wanted.cuda_repository_url.rstrip('/')}/{folder}/"
    cuda = Repository(
        "nvidia-cuda",
        system.package_manager,
        uri,
        key_url=wanted.cuda_key_url or uri + release.key_file,
        fingerprints=wanted.cuda_key_fingerprints or release.key_fingerprints,
    )
    return system.signed(cuda), container_repository(request)


def container_repository(request: Request) -> Repository:
    """NVIDIA's repository of the container toolkit; it has no driver."""
    system, wanted = request.distribution, request.variables.nvidia_stack
    key, url = request.tables.container_toolkit_repository, wanted.container_repository_url.rstrip("/")
    return system.signed(
        Repository(
            "nvidia-container-toolkit",
            system.package_manager,
            f"{url}/stable/{system.package_format}/{system.package_architecture}/",
            key_url=wanted.container_key_url or f"{url}/{key.key_file}",
            fingerprints=wanted.container_key_fingerprints or key.key_fingerprints,
        )
    )


def repository_key_problems(request: Request) -> list[Refusal]:
    """Return a refusal for each repository whose signing key nobody has pinned."""
    release = request.distribution.release
    if release.key_fingerprints or request.variables.nvidia_stack.cuda_key_fingerprints:
        return []
    key_id = release.key_file.partition(".")[0].upper()
    return [refusal("repository-key", system=release.name, key_file=release.key_file, key_id=key_id)]
