"""One node: its upper layer, its boot, its state, and the side door into it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.lab import network
from tests.lab.cache import remove_tree
from tests.lab.cgroups import ROOT, Group
from tests.lab.process import CommandError, LabError, run, tail
from tests.lab.settings import ADMINISTRATOR, PAYLOAD_TREE_ON_NODE, REPOSITORY_PORT, Node

State = Literal["off", "starting", "running", "degraded", "stopping"]

_SUPERVISOR = Path(__file__).with_name("supervise.sh")
_ADMINISTRATOR_ID = 1000
_BOOT_TIMEOUT_S = 300.0

_NSPAWN_SETTINGS = {
    # What Debian 12 and 13 have on a server, whatever the host has: cgroup version 2. Docker needs it.
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    # Leaves the network's part of /proc/sys writable; the rest is not, until the node has its own tree.
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network",
    # /tmp is what the distribution makes of it.
    "SYSTEMD_NSPAWN_TMPFS_TMP": "0",
}


@dataclass(frozen=True)
class Layers:
    """What a node's file system is made of, below its own upper layer, and the payload's Python tree."""

    root: Path
    lab: Path
    payload: Path
    converged: Path | None = None  # over the others: the result of site.yml on such a node
    result: Path | None = (
        None  # where site.yml's result is kept, if the checkout stays as it was at the first boot
    )


def group(node: Node) -> Group:
    """The control group of everything that runs for a node."""
    return Group(f"{ROOT}/{node.lab.name}/{node.name}")


def create(
    node: Node,
    layers: Layers,
    peers: Sequence[Node],
    hardware: Mapping[str, object],
    proxies: Mapping[str, str],
) -> None:
    """Make a node's directory with everything that is this node's alone; a half-made one is made anew."""
    unfinished = node.state.with_name(f".{node.name}.unfinished")
    remove_tree(unfinished)
    upper = unfinished / "upper"
    (unfinished / "root").mkdir(parents=True)
    upper.mkdir()
    upper.chmod(0o755)

    _write(upper / "etc/hostname", f"{node.name}\n")
    _write(upper / "etc/machine-id", f"{uuid.uuid4().hex}\n")
    _write(
        upper / "etc/hosts",
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
        + "".join(f"{peer.address} {peer.name}\n" for peer in peers),
    )
    _write(upper / "etc/resolv.conf", network.name_servers())
    if hardware:
        _write(upper / "var/lib/gpu-simulator/hardware.json", json.dumps(hardware, indent=2) + "\n")
    if proxies:
        _write_proxies(node, upper, proxies)
    keys = upper / "etc/ssh"
    keys.mkdir()
    keys.chmod(0o755)
    run(["ssh-keygen", "-q", "-A", "-f", str(upper)])
    for key in keys.glob("*.pub"):
        kind, public, _ = key.read_text().split()
        key.write_text(f"{kind} {public} root@{node.name}\n")
    _write(upper / f"home/{ADMINISTRATOR}/.ssh/authorized_keys", _public_key(node), 0o600)
    home = upper / "home" / ADMINISTRATOR
    for path in (home, home / ".ssh", home / ".ssh/authorized_keys"):
        os.chown(path, _ADMINISTRATOR_ID, _ADMINISTRATOR_ID)
    for path in (home, home / ".ssh"):
        path.chmod(0o700)

    description = {
        "root": str(layers.root),
        "lab": str(layers.lab),
        "payload": str(layers.payload),
        "converged": str(layers.converged or ""),
        "result": str(layers.result or ""),
    }
    (unfinished / "node.json").write_text(json.dumps(description, indent=2) + "\n")
    unfinished.rename(node.state)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)
    path.write_text(text)
    path.chmod(mode)


def _write_proxies(node: Node, upper: Path, proxies: Mapping[str, str]) -> None:
    """The host's proxies for all programs; the lab's own repositories are reached directly."""
    direct = ",".join(filter(None, [proxies.get("no_proxy"), "localhost", node.lab.address]))
    lines = {**proxies, "no_proxy": direct}
    _write(upper / "etc/environment", "".join(f"{name}={value}\n" for name, value in lines.items()))
    _write(
        upper / "etc/apt/apt.conf.d/91lab",
        f'Acquire::http::Proxy::{node.lab.address} "DIRECT"; // port {REPOSITORY_PORT}\n',
    )


def _public_key(node: Node) -> str:
    return node.lab.ssh_key.with_suffix(".pub").read_text()


def layers(node: Node) -> Layers:
    """The layers that a node was created on; it keeps them for its life, whatever is newer."""
    description = json.loads((node.state / "node.json").read_text())
    root, lab, payload = (Path(description[name]) for name in ("root", "lab", "payload"))
    converged, result = (
        Path(found) if (found := description.get(name)) else None for name in ("converged", "result")
    )
    return Layers(root, lab, payload, converged, result)


def known_hosts(node: Node) -> str:
    """Lines of known_hosts with the host keys that the node was created with."""
    keys = sorted((node.state / "upper/etc/ssh").glob("ssh_host_*_key.pub"))
    names = f"{node.name},{node.address},{node.address6}"
    return "".join(f"{names} {' '.join(key.read_text().split()[:2])}\n" for key in keys)


def stop(node: Node) -> None:
    """End everything that runs for a node, as when its power is cut."""
    group(node).kill()
    network.remove_node(node)


def delete(node: Node) -> None:
    """Stop a node and forget everything it has stored."""
    stop(node)
    remove_tree(node.state)


def start(node: Node) -> subprocess.Popen[bytes]:
    """Boot a created node that does not run; return its supervisor, which outlives this process.

    Raises:
        LabError: a layer it was created on is gone.
    """
    stop(node)
    parts = layers(node)
    for path in (parts.root, parts.lab, parts.payload, parts.converged):
        if path and not path.exists():
            raise LabError(
                f"{node.name} cannot start: its layer {path} is gone. Bare again: python3 -m tests.lab reset"
            )
    network.create_node(node)
    root = node.state / "root"
    below = "lowerdir=" + ":".join(str(path) for path in (parts.converged, parts.lab, parts.root) if path)
    # Without waiting for the disk: a third less time for apt. What that risks ends with the host, see lab.up.
    own = f"upperdir={node.state}/upper,workdir={node.state}/work,volatile"
    # overlayfs leaves a mark there that a volatile layer was not closed well, and mounts it no more.
    remove_tree(node.state / "work")
    (node.state / "work").mkdir()
    supervisor = [
        *("unshare", "--mount", "--propagation", "slave"),
        *("sh", str(_SUPERVISOR), str(root), f"{below},{own}", node.unique_name),
        # In a group beside the supervisor's: one that hands controllers on to others may have no processes.
        *Group(f"{group(node).path}/machine").command(_machine_command(node, root, parts)),
    ]
    with node.console_log.open("ab") as log:
        return subprocess.Popen(
            Group(f"{group(node).path}/supervisor").command(supervisor),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **_NSPAWN_SETTINGS},
            cwd="/",
            start_new_session=True,
        )


def _machine_command(node: Node, root: Path, parts: Layers) -> list[str]:
    return [
        *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe"),
        *(f"--directory={root}", f"--machine={node.unique_name}", f"--hostname={node.name}"),
        f"--network-namespace-path=/run/netns/{node.unique_name}",
        # What Debian's own init has; nspawn would hand on the host's.
        *("--rlimit=NOFILE=1024:1048576", "--rlimit=MEMLOCK=8388608"),
        # The nodes' kernel is the host's, and so is its log, which most hosts let only this capability read.
        *(
            "--capability=CAP_NET_ADMIN,CAP_SYSLOG",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
        ),
        # Container engines give each container a session key ring, and its devices through a BPF program.
        *("--system-call-filter=@keyring", "--system-call-filter=bpf"),
        f"--bind-ro={parts.payload}:{PAYLOAD_TREE_ON_NODE}",
    ]


def leader(node: Node) -> int | None:
    """Process id, on the host, of the node's init; None if the node is off."""
    for process in group(node).processes():
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
        # Its id in each process namespace, ours first; a container inside the node has one more.
        if len(ids) == 2 and ids[1] == "1":
            return process
    return None


def side_door(init: int, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in a node without its network, sshd or firewall."""
    # The command needs a parent outside that only waits. nsenter would stop when its child is stopped, as all
    # processes are when the node reboots; nobody would bury the child then, and the shutdown waits for that.
    return [
        *("nsenter", f"--target={init}", "--no-fork", "--wd", "--root"),
        *("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"),
        *("env", "-i", "HOME=/root", "USER=root", "LANG=C.UTF-8", f"TERM={os.environ.get('TERM', 'dumb')}"),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        *("sh", "-c", '"$@"; exit $?', "side-door", *command),
    ]


def run_inside(node: Node, command: Sequence[str], timeout_s: float = 600) -> str:
    """Run a command in a node through the side door and return its output.

    Raises:
        LabError: the node is off, or the command failed.
    """
    init = leader(node)
    if init is None:
        raise LabError(f"{node.name} is off. Start it with: make lab-up")
    return run(side_door(init, command), timeout_s=timeout_s)


def shut_down(node: Node, verb: Literal["poweroff", "reboot"]) -> None:
    """Have the node's systemd switch it off or reboot it, and do not wait for that.

    Raises:
        LabError: it is off, or systemd refuses.
    """
    try:
        run_inside(node, ["systemctl", verb])
    except CommandError as error:
        # The shutdown ends the command, too, at times before it has heard that it works.
        if error.status not in (128 + signal.SIGTERM, 128 + signal.SIGKILL):
            raise


def state(node: Node) -> State:
    """What the node's systemd says of the node, or `off`."""
    init = leader(node)
    if init is None:
        return "starting" if group(node).processes() else "off"
    return _system_state(init)


def _system_state(init: int, *, wait: bool = False, timeout_s: float = 10) -> State:
    """What systemd says; `wait` lets it answer no sooner than it has booted."""
    command = ["systemctl", "is-system-running", *(["--wait"] if wait else [])]
    try:
        result = subprocess.run(
            side_door(init, command), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return "starting"
    match result.stdout.strip():
        case "running" | "degraded" | "stopping" as said:
            return said
    return "starting"


def wait_ready(
    node: Node,
    is_over: Callable[[], bool],
    interrupted: threading.Event,
    timeout_s: float = _BOOT_TIMEOUT_S,
) -> State:
    """Wait until a node has booted and its sshd answers.

    Args:
        node: the node.
        is_over: whether the node's supervisor has ended.
        interrupted: set when there is no point in waiting any more.
        timeout_s: bound, in seconds.

    Raises:
        LabError: it ended, or is not ready in time; the message has the end of its console log.
    """
    deadline = time.monotonic() + timeout_s
    while not interrupted.wait(0.05):
        remaining_s = deadline - time.monotonic()
        ended = is_over()
        if ended or remaining_s <= 0:
            what = "ended instead of booting" if ended else f"is not ready after {timeout_s:g} s"
            raise LabError(f"{node.name} {what}. The end of {node.console_log}:\n{tail(node.console_log)}")
        # In this order: the first costs nothing while the answer is no.
        if not _ssh_answers(node.address) or (init := leader(node)) is None:
            continue
        said = _system_state(init, wait=True, timeout_s=max(1.0, remaining_s))
        if said in ("running", "degraded"):
            return said
    raise LabError(f"Waiting for {node.name} was interrupted.")


def _ssh_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def disk_bytes(node: Node) -> int:
    """What the node has stored in its upper layer."""
    total = 0
    for directory, _, files in os.walk(node.state / "upper"):
        for name in files:
            # The node goes on writing and deleting while we count.
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).lstat().st_blocks * 512
    return total
