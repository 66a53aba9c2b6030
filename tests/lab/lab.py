"""The lab as a whole: up, down, reset, what it consists of."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab import (
    cgroups,
    converged,
    host_apt,
    host_settings,
    images,
    network,
    payload_python,
    repositories,
    requirements,
)
from tests.lab import node as machine
from tests.lab.cache import locked, remove_tree
from tests.lab.gpu_simulator.faults import FAULTS
from tests.lab.gpu_simulator.profiles import hardware
from tests.lab.process import LabError, run, say, tail, warn
from tests.lab.settings import CHECKOUT, RUNTIME_ROOT, Lab, Node

_NODES_AT_ONCE = 4 * (os.cpu_count() or 1)


def up(lab: Lab, count: int, *, as_converged: bool = False) -> None:
    """Make the first `count` nodes run, whatever there is already; nodes that run are left alone.

    Nodes keep what they have stored, but not over a restart of the host, whose disk they do not wait for.

    Args:
        lab: the lab.
        count: how many nodes.
        as_converged: start new nodes from the result of an earlier site.yml, where the cache has one.

    Raises:
        LabError: the machine lacks something, another checkout holds the lab, or a node did not boot.
    """
    with exclusive(lab, "up"):
        refuse_foreign(lab)
        _up(lab, count, as_converged=as_converged)


def _up(lab: Lab, count: int, *, as_converged: bool = False) -> None:
    start = time.monotonic()
    if describe(lab).get("host_boot_id") not in (None, host_settings.boot_id()):
        say("This machine was restarted since the lab's nodes last ran; they start bare.")
        _delete_nodes(lab)
    wanted = lab.nodes(count)
    missing = [node for node in wanted if machine.state(node) not in ("running", "degraded")]
    if missing or not repositories.served(lab):
        requirements.check(lab, count)
        _bring_up(lab, wanted, missing, as_converged=as_converged)
    _write_known_hosts(lab)
    running = [node for node in existing_nodes(lab) if machine.leader(node) is not None]
    say(
        f"Lab {lab.name}: started {len(missing)} of {len(wanted)} nodes in {time.monotonic() - start:.1f} s; "
        f"{len(running)} run: {_names(running)}"
    )


def _bring_up(lab: Lab, wanted: Sequence[Node], missing: Sequence[Node], *, as_converged: bool) -> None:
    new = [node for node in missing if not node.state.exists()]
    made_of = _layers(lab, new, as_converged=as_converged)
    lab.state.joinpath("nodes").mkdir(parents=True, exist_ok=True)
    _make_ssh_key(lab)
    host_settings.apply()
    network.create_bridge(lab)
    replace(lab.description, json.dumps(_description(lab, repositories.publish(lab)), indent=2) + "\n")
    repositories.serve(lab)
    proxies = dict(host_apt.read().proxies)

    def boot(node: Node, interrupted: threading.Event) -> None:
        if node in new:
            machine.create(node, made_of[node], wanted, hardware(node.profile, node.name), proxies)
        supervisor = machine.start(node)
        if machine.wait_ready(node, lambda: supervisor.poll() is not None, interrupted) == "degraded":
            failed = machine.run_inside(node, ["systemctl", "--failed", "--plain", "--no-legend"])
            warn(
                f"{node.name} has failed units: {', '.join(line.split()[0] for line in failed.splitlines())}"
            )

    if missing:
        say(f"Booting {_names(missing)} ...")
        _for_each(missing, boot)
    if new:
        _warn_if_cut_off(new[0])


def _layers(lab: Lab, nodes: Sequence[Node], *, as_converged: bool) -> dict[Node, machine.Layers]:
    """The layers for new nodes. The cache's are built if they are missing, except the converged one."""
    result = {}
    for node in nodes:
        root = images.root_file_system(lab, node.release)
        made_of = machine.Layers(root, images.lab_layer(lab, root), payload_python.tree(lab))
        layer = converged.layer(node, made_of)
        started_from = layer if as_converged and layer.exists() else None
        result[node] = dataclasses.replace(made_of, converged=started_from, result=layer)
    return result


def _for_each(nodes: Sequence[Node], action: Callable[[Node, threading.Event], None]) -> None:
    """Do something to several nodes at a time; when interrupted, let what runs know and start no more.

    Raises:
        LabError: it failed on some; the message tells of each, and the others are done.
    """
    interrupted = threading.Event()
    problems = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=_NODES_AT_ONCE) as pool:
        jobs = [pool.submit(action, node, interrupted) for node in nodes]
        try:
            for job in concurrent.futures.as_completed(jobs):
                error = job.exception()
                if error and not isinstance(error, LabError):
                    raise error
                if error:
                    problems.append(str(error))
        except BaseException:
            interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if problems:
        raise LabError("\n".join(problems))


def _warn_if_cut_off(node: Node) -> None:
    """Say so if a node does not reach the package mirror: that is for the host's own firewall to allow."""
    mirror = host_apt.read().mirror()
    if not mirror:
        return
    host, port = mirror
    connect = f"import socket; socket.create_connection(({host!r}, {port}), 10)"
    try:
        machine.run_inside(node, ["python3", "-c", connect])
    except LabError as error:
        warn(
            f"{node.name} does not reach this machine's package mirror, {host} port {port} "
            f"({str(error).splitlines()[-1]}); let the firewall forward what comes from {node.lab.network}."
        )


def down(lab: Lab) -> None:
    """End the lab and remove everything of it from this machine but the cache.

    Works on whatever an interrupted or killed run has left.

    Raises:
        LabError: another checkout's lab is running under this name, or something does not go away.
    """
    with exclusive(lab, "down"):
        refuse_foreign(lab)
        existed = lab.state.exists()
        cgroups.Group(_group(lab)).kill()
        cgroups.remove_if_empty(cgroups.ROOT)
        network.remove_lab(lab)
        remove_tree(lab.state)
        if not cgroups.children(cgroups.ROOT):
            host_settings.restore()
    say(f"Lab {lab.name} is down." if existed else f"Lab {lab.name} was not running.")


def reset(lab: Lab, count: int) -> None:
    """Throw away what the nodes have stored and boot them bare again."""
    with exclusive(lab, "reset"):
        refuse_foreign(lab)
        _delete_nodes(lab)
        _up(lab, count)


def keep(lab: Lab) -> None:
    """Switch the nodes off, and keep the result of site.yml for labs that start with converged nodes."""
    with exclusive(lab, "keep"):
        refuse_foreign(lab)
        _for_each(existing_nodes(lab), lambda node, _: converged.keep(node))


def _delete_nodes(lab: Lab) -> None:
    _for_each(existing_nodes(lab), lambda node, _: machine.delete(node))


def reboot(node: Node, timeout_s: float = 600) -> None:
    """Reboot a node from inside and wait until it is back.

    Raises:
        LabError: it is off, or not back in time.
    """
    before = boot_id(node)
    machine.shut_down(node, "reboot")
    deadline = time.monotonic() + timeout_s
    while (now := boot_id(node)) is None or now == before:
        if time.monotonic() > deadline:
            raise LabError(
                f"{node.name} is not back {timeout_s:g} s after a reboot. The end of {node.console_log}:\n"
                f"{tail(node.console_log)}"
            )
        time.sleep(0.05)
    remaining_s = deadline - time.monotonic()
    machine.wait_ready(node, lambda: not machine.group(node).processes(), threading.Event(), remaining_s)


def set_fault(node: Node, name: str, *, on: bool) -> None:
    """Switch one of the simulator's faults on a node on or off, at once.

    Raises:
        LabError: there is no such fault, or the node is off.
    """
    if name not in FAULTS:
        raise LabError(f"There is no fault {name!r}; the simulator has: {', '.join(sorted(FAULTS))}.")
    machine.run_inside(node, ["/usr/lib/gpu-simulator/machine.py", "fault", name, "on" if on else "off"])


def boot_id(node: Node) -> str | None:
    """The id of the node's current boot; None while it is off."""
    try:
        return machine.run_inside(node, ["cat", "/proc/sys/kernel/random/boot_id"]).strip()
    except LabError:
        return None


def existing_nodes(lab: Lab) -> list[Node]:
    """The nodes that have been created, running or not."""
    numbers = (int(path.name.removeprefix("gpu")) for path in (lab.state / "nodes").glob("gpu*"))
    return [lab.node(number) for number in sorted(numbers)]


def status(lab: Lab) -> dict[str, Any]:
    """Everything a script may want to know of the lab."""
    description = describe(lab)
    return {
        "name": lab.name,
        "checkout": description.get("checkout"),
        "state_directory": str(lab.state),
        "repository_url": lab.repository_url,
        "key_fingerprints": description.get("key_fingerprints", []),
        "ssh_key": str(lab.ssh_key),
        "known_hosts": str(lab.known_hosts),
        "nodes": [_node_status(node) for node in existing_nodes(lab)],
    }


def _node_status(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "state": machine.state(node),
        "address": node.address,
        "address6": node.address6,
        "release": node.release.codename,
        "profile": node.profile,
        "init": machine.leader(node),
        "memory_bytes": machine.group(node).memory_bytes(),
        "disk_bytes": machine.disk_bytes(node),
        "network_namespace": node.unique_name,
        "console_log": str(node.console_log),
    }


def describe(lab: Lab) -> dict[str, Any]:
    """What lab.json says; nothing if there is no lab."""
    try:
        result: dict[str, Any] = json.loads(lab.description.read_text())
    except FileNotFoundError:
        return {}
    return result


def holder(lab: Lab) -> Path | None:
    """The other checkout that the running lab belongs to; None if it is ours or nobody's (any more)."""
    checkout = Path(describe(lab).get("checkout", CHECKOUT))
    if checkout == CHECKOUT or not checkout.exists() or not cgroups.Group(_group(lab)).processes():
        return None
    return checkout


def refuse_foreign(lab: Lab) -> None:
    """Check that the lab is not another checkout's.

    Raises:
        LabError: it is.
    """
    other = holder(lab)
    if other:
        raise LabError(
            f"Lab {lab.name} is running for the checkout {other}. Either end it there (make -C {other} "
            "lab-down), or take another name here: LAB_NAME=other make ..."
        )


@contextlib.contextmanager
def exclusive(lab: Lab, command: str) -> Iterator[None]:
    """Let only one process change this lab at a time; others wait and say for whom."""
    with locked(
        RUNTIME_ROOT / f"{lab.name}.lock", f"`{command}` waits for another command on lab {lab.name}"
    ):
        yield


def _group(lab: Lab) -> str:
    return f"{cgroups.ROOT}/{lab.name}"


def _names(nodes: Sequence[Node]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} ... {names[-1]}"


def _make_ssh_key(lab: Lab) -> None:
    if lab.ssh_key.with_suffix(".pub").exists():
        return
    lab.ssh_key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lab.ssh_key.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"lab {lab.name}", "-f", str(lab.ssh_key)])


def _write_known_hosts(lab: Lab) -> None:
    replace(lab.known_hosts, "".join(machine.known_hosts(node) for node in existing_nodes(lab)))


def _description(lab: Lab, fingerprints: Sequence[str]) -> dict[str, Any]:
    return {
        "name": lab.name,
        "checkout": str(CHECKOUT),
        "host_boot_id": host_settings.boot_id(),
        "key_fingerprints": fingerprints,
    }


def replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text, never a part."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.rename(path)
