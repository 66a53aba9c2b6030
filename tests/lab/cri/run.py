"""Run a command in a new pod of containerd's CRI plugin, as kubelet does, and print what it prints.

Debian has no crictl. Needs beside it what `protoc --python_out` makes of runtime.proto. Pods share the host's
network, so that no CNI plugin is needed. Exit status: the command's.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from typing import Any

import grpc
import runtime_pb2 as cri

SOCKET = "unix:///run/containerd/containerd.sock"
TIMEOUT_S = 60
HOST_NETWORK = cri.NamespaceOption(network=cri.NODE)


def call(channel: grpc.Channel, name: str, **fields: Any) -> Any:
    """Send a request to the engine and return its answer."""
    request, response = getattr(cri, f"{name}Request"), getattr(cri, f"{name}Response")
    method = channel.unary_unary(
        f"/runtime.v1.RuntimeService/{name}", request.SerializeToString, response.FromString
    )
    return method(request(**fields), timeout=TIMEOUT_S)


def container_config(options: argparse.Namespace) -> Any:
    """The container, which waits for the command."""
    envs = [pair.partition("=") for pair in options.env]
    mounts = [pair.partition(":") for pair in options.volume]
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="job"),
        image=cri.ImageSpec(image=options.image),
        command=["/bin/sh", "-c", f"sleep {TIMEOUT_S}"],
        envs=[cri.KeyValue(key=key, value=value) for key, _, value in envs],
        mounts=[cri.Mount(host_path=host, container_path=path, readonly=True) for host, _, path in mounts],
        linux=cri.LinuxContainerConfig(
            security_context=cri.LinuxContainerSecurityContext(namespace_options=HOST_NETWORK)
        ),
        CDI_devices=[cri.CDIDevice(name=name) for name in options.device],
    )


def run(channel: grpc.Channel, options: argparse.Namespace) -> int:
    """Run the command in a pod, which is removed afterwards; return its exit status."""
    pod = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="pod", uid=uuid.uuid4().hex, namespace="default"),
        linux=cri.LinuxPodSandboxConfig(
            security_context=cri.LinuxSandboxSecurityContext(namespace_options=HOST_NETWORK)
        ),
    )
    pod_id = call(channel, "RunPodSandbox", config=pod).pod_sandbox_id
    try:
        config = container_config(options)
        created = call(channel, "CreateContainer", pod_sandbox_id=pod_id, config=config, sandbox_config=pod)
        call(channel, "StartContainer", container_id=created.container_id)
        done = call(
            channel, "ExecSync", container_id=created.container_id, cmd=options.command, timeout=TIMEOUT_S
        )
    finally:
        call(channel, "StopPodSandbox", pod_sandbox_id=pod_id)
        call(channel, "RemovePodSandbox", pod_sandbox_id=pod_id)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    return int(done.exit_code)


def main() -> int:
    """Read the command line, which has the options of `docker run`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--device", "--env", "--volume"):
        parser.add_argument(name, action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with grpc.insecure_channel(SOCKET) as channel:
        return run(channel, options)


if __name__ == "__main__":
    sys.exit(main())
