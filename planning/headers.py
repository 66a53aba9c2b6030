"""The kernel headers that a driver module is built with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.model import Request


def kernel_headers(request: Request) -> list[str]:
    """The packages with the headers of the running kernel, where they are missing."""
    kernel = request.node["kernel"]
    if kernel["headers_present"]:
        return []
    return [f"linux-headers-{kernel['release']}", f"linux-headers-{request.system.package_architecture}"]
