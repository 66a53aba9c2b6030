"""A node that is reached through a tunnel which ends on it stays reachable, long after a change."""

import contextlib
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fleet import Run
from tests.lab.hardening import LAB_NAME, NODES, SOON, Hardened, wait_until

pytestmark = pytest.mark.lab

PORT = 51820  # among the ephemeral ones, as WireGuard's is
NETWORK = "10.99.0"
INTERFACE = "wg0"

#: A VPN as a program: it answers whoever has sent the last packet.
PROGRAM = """\
import fcntl, os, select, socket, struct, subprocess, sys
interface, port, address, *peer = sys.argv[1:]
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", interface.encode(), 0x1001))  # IFF_TUN | IFF_NO_PI
subprocess.run(["ip", "address", "add", address, "dev", interface], check=True)
subprocess.run(["ip", "link", "set", interface, "mtu", "1400", "up"], check=True)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", int(port)))
end = (peer[0], int(port)) if peer else None
while True:
    for ready in select.select([tun, udp], [], [])[0]:
        if ready is udp:
            packet, end = udp.recvfrom(65536)
            os.write(tun, packet)
        elif end:
            udp.sendto(os.read(tun, 65536), end)
        else:
            os.read(tun, 65536)
"""
UNIT = """\
[Service]
ExecStart=/usr/bin/python3 /root/vpn.py wg0 51820 10.99.0.2/24
[Install]
WantedBy=multi-user.target
"""
#: What minutes of silence do: the kernel forgets all flows (nfnetlink, IPCTNL_MSG_CT_DELETE).
FORGET_FLOWS = textwrap.dedent(
    """\
    import socket, struct
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    netlink.sendto(struct.pack("=IHHIIBBH", 20, 0x102, 5, 1, 0, 0, 0, 0), (0, 0))
    assert struct.unpack("=i", netlink.recv(64)[16:20]) == (0,)
    """
)


@dataclass(frozen=True)
class Tunnelled:
    """A node behind a tunnel, and the run that comes through it. `remote` is this end's outer address."""

    fleet: Hardened
    node: str
    remote: str

    def shell(self, *command: str) -> str:
        return self.fleet.inside(self.node, *command)

    def harden(self, **variables: Any) -> Run:
        through: dict[str, Any] = {
            "ansible_host": f"{NETWORK}.2",
            "ansible_ssh_extra_args": f"-o HostKeyAlias={self.fleet.nodes[self.node].address}",
            # With the lab's own, whose reboot waits for SSH. It opens no port of the tunnel.
            "firewall_management_networks": [f"{NETWORK}.0/24", f"{self.remote}/32"],
            "firewall_peer_addresses": [],
        }
        return self.fleet.harden("--limit", self.node, "--tags=firewall", **(through | variables))

    def reached(self) -> bool:
        try:
            with socket.create_connection((f"{NETWORK}.2", 22), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def forget_flows(self) -> None:
        self.shell("python3", "-c", FORGET_FLOWS)


def rule(remote: str) -> dict[str, Any]:
    return {"name": INTERFACE, "protocol": "udp", "ports": [PORT], "sources": [f"{remote}/32"]}


@pytest.fixture(params=[(node, kind) for node in NODES for kind in ("vxlan", "tun")], ids="-".join)
def tunnelled(request: pytest.FixtureRequest, fleet: Hardened, tmp_path: Path) -> Iterator[Tunnelled]:
    """Bring up a tunnel of the kernel, or one of a program, from this machine to a bare node."""
    node, kind = request.param
    address = fleet.nodes[node].address
    remote = f"{address.rpartition('.')[0]}.1"
    found = Tunnelled(fleet, node, remote)
    assert fleet.harden("--limit", node, firewall_state="absent").status == 0
    with contextlib.ExitStack() as ends:
        (vxlan if kind == "vxlan" else program)(found, address, tmp_path, ends)
        wait_until(found.reached, "the tunnel is up")
        yield found
    assert fleet.harden("--limit", node).status == 0


def vxlan(found: Tunnelled, address: str, _folder: Path, ends: contextlib.ExitStack) -> None:
    """One port at both ends, as WireGuard has; no neighbour discovery that would keep the flow alive."""
    here = f"{INTERFACE}-{LAB_NAME}"[:15]
    for name, near, far, end, on_node in (
        (here, found.remote, address, "1", False),
        (INTERFACE, address, found.remote, "2", True),
    ):
        device = "eth0" if on_node else f"br-{LAB_NAME}"
        commands = (
            f"ip link add {name} type vxlan id 42 dev {device} local {near} remote {far} dstport {PORT} "
            f"srcport {PORT} {PORT + 1}; sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1; "
            f"ip address add {NETWORK}.{end}/24 dev {name}; ip link set {name} mtu 1400 up"
        )
        remove = ["ip", "link", "delete", name]
        if on_node:
            ends.callback(found.shell, *remove)
            # A node has no right to write its kernel's settings.
            inside = ["ip", "netns", "exec", f"{LAB_NAME}-{found.node}"]
            subprocess.run([*inside, "sh", "-euc", commands], check=True)
        else:
            ends.callback(subprocess.run, remove, check=True)
            subprocess.run(["sh", "-euc", commands], check=True)


def program(found: Tunnelled, address: str, folder: Path, ends: contextlib.ExitStack) -> None:
    files = {"/root/vpn.py": PROGRAM, "/etc/systemd/system/vpn.service": UNIT}
    for path, text in files.items():
        found.shell("python3", "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", path, text)
    found.shell("sh", "-c", "systemctl daemon-reload; systemctl enable --now vpn")
    ends.callback(found.shell, "systemctl", "disable", "--now", "vpn")
    script = folder / "vpn.py"
    script.write_text(PROGRAM)
    here = f"{INTERFACE}-{LAB_NAME}"[:15]
    process = subprocess.Popen([sys.executable, script, here, str(PORT), f"{NETWORK}.1/24", address])
    ends.callback(process.wait)
    ends.callback(process.kill)


def test_rules_that_close_the_tunnel_of_the_run_are_refused_and_those_that_open_it_last(
    tunnelled: Tunnelled,
) -> None:
    """With the rule that the refusal asks for, the node needs no flow that the kernel knows."""
    refused = tunnelled.harden()
    assert refused.status != 0
    facts = (INTERFACE, f"udp port {PORT}", "firewall_rules", "firewall_unchecked_tunnels")
    assert [fact for fact in facts if fact not in refused.said] == []
    assert refused.recap[tunnelled.node]["changed"] == 0
    opened = tunnelled.harden(firewall_rules=[rule(tunnelled.remote)])
    assert opened.status == 0, opened.output
    assert "temper_proof" not in tunnelled.shell("nft", "list", "ruleset")
    tunnelled.forget_flows()
    assert tunnelled.reached()
    tunnelled.shell("nft", "flush", "ruleset")
    tunnelled.forget_flows()
    tunnelled.fleet.command("reboot", tunnelled.node)
    assert "policy drop" in tunnelled.shell("nft", "list", "table", "inet", "temper")
    wait_until(tunnelled.reached, "the node is reached after its reboot")


def test_flow_that_began_before_the_change_confirms_nothing(tunnelled: Tunnelled) -> None:
    """Nobody could foresee it: another table lets the outer packets pass on the old flow alone."""
    chain = "type filter hook input priority 10; ct state established accept;"
    tunnelled.shell("nft", f"table inet trap {{ chain input {{ {chain} }}; }}")
    try:
        # From here on the kernel knows flows; this one is there before the rule that would not let it begin.
        assert tunnelled.reached()
        tunnelled.shell("nft", f"add rule inet trap input udp dport {PORT} drop")
        assert tunnelled.reached()
        run = tunnelled.harden(firewall_rules=[rule(tunnelled.remote)], **SOON)
        assert run.status != 0
        assert "lets no new SSH connection in under the new firewall" in run.said
        pending = "[ ! -d /var/lib/temper/rollback/firewall ] || echo pending"
        wait_until(lambda: not tunnelled.shell("sh", "-c", pending), "the change is undone")
        assert "temper" not in tunnelled.shell("nft", "list", "tables")
    finally:
        tunnelled.shell("nft", "delete", "table", "inet", "trap")
    assert tunnelled.reached()


def test_operator_answers_for_a_tunnel_that_the_node_opens(tunnelled: Tunnelled) -> None:
    """No rule opens its port. Packets of the node itself restart the flow, so the tunnel may still answer."""
    run = tunnelled.harden(firewall_unchecked_tunnels=[INTERFACE])
    assert run.status == 0, run.output
    table = tunnelled.shell("nft", "list", "table", "inet", "temper")
    assert "policy drop" in table
    assert str(PORT) not in table
