"""Tunnels that end on the node: which the login comes through, and whether the rules let their packets in."""

import ctypes
import ipaddress
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.access import firewall, network_interfaces, tunnels
from ansible.module_utils.temper.access.network_interfaces import Interface
from ansible.module_utils.temper.access.nftables_rules import (
    END_PROOF,
    LOOPBACK,
    Rule,
    Trusted,
    networks,
    parse_rule,
    render,
)
from ansible.module_utils.temper.access.tunnels import IPSEC, Entrance, Filter, Peer, Tunnel, Way, ways_from
from ansible.module_utils.temper.settings.base import RefusedError

from tests.lab.test_harden_tunnels import FORGET_FLOWS
from tests.unit.each import each
from tests.unit.harden.test_listeners import HEADER
from tests.unit.harden.test_nftables_table import LIMITS, LOGIN, SSH
from tests.unit.needs import root_and

CLONE_NEWNET = 0x40000000
FAR = ipaddress.ip_address("198.51.100.7")
WG = Tunnel("wg0", "wireguard", (Entrance("udp", (51820,)),), (Peer(FAR),))
#: By which interface each address comes.
ROUTES = {"10.99.0.1": "wg0", str(FAR): "eth0", "10.8.0.1": "tun0", "10.7.0.1": "br0", "127.0.0.1": LOOPBACK}
needs_kernel = root_and("ip", "nft")


def link(name: str, kind: str = "", **changes: Any) -> Interface:
    return Interface(name, up=True, addresses=[], networks=[], kind=kind, **changes)


def rules(*given: dict[str, Any], peers: list[str] | None = None, trusted: list[str] | None = None) -> Filter:
    further = [parse_rule(index, {"name": "x", **one}) for index, one in enumerate(given)]
    return Filter([SSH, *further], Trusted(networks("", peers or []), trusted or []), ROUTES.__getitem__)


def udp(*ports: str, sources: str = "0.0.0.0/0") -> dict[str, Any]:
    return {"protocol": "udp", "ports": ports, "sources": [sources]}


def outer(protocol: str, ports: tuple[int, ...] = (), **peer: Any) -> Way:
    return Way(Tunnel("wg0", "wireguard", (Entrance(protocol, ports),)), Peer(**peer))


@pytest.mark.parametrize(
    ("way", "packets", "let_in"),
    [
        (outer("udp", (51820,)), rules(), False),
        (outer("udp", (51820,)), rules(udp("51820")), True),
        (outer("udp", (51820,)), rules({**udp("51820"), "protocol": "tcp"}), False),
        (outer("udp", (51820,)), rules(udp("51000-52000", sources="192.0.2.0/24")), True),
        (outer("udp", (51820,), remote=FAR), rules(udp("51820", sources="192.0.2.0/24")), False),
        (outer("udp", (51820,), remote=FAR), rules(udp("51820", sources="198.51.100.0/24")), True),
        (outer("udp", (51820,), remote=FAR), rules(peers=["198.51.100.7"]), True),
        (outer("udp", (51820,)), rules(peers=["198.51.100.7"]), False),
        (outer("udp", (51820,), remote=FAR), rules(trusted=["eth*"]), True),
        (outer("udp", (51820,), remote=FAR), rules(trusted=["wg0"]), False),
        (outer("udp", (51820,), remote=ipaddress.ip_address("127.0.0.1")), rules(), True),
        (outer("udp", (51820,), dialled=True), rules(), True),
        (outer("udp", (41641, 40000)), rules(udp("40000")), True),
        (outer("tcp", (22,), remote=ipaddress.ip_address("192.0.2.7")), rules(trusted=["no"]), True),
        (outer("gre"), rules({"protocol": "gre", "sources": ["0.0.0.0/0"]}), True),
        (outer("gre"), rules({"protocol": "esp", "sources": ["0.0.0.0/0"]}), False),
        (Way(Tunnel("tun0", "tun", ()), Peer()), rules(), True),
        (Way(Tunnel("wg0", "wireguard", None), Peer()), rules(udp("1-65535")), False),
    ],
)
def test_outer_packets_are_let_in_by_rules_and_not_by_a_flow(
    way: Way, packets: Filter, *, let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUTES, "192.0.2.7", "eth0")
    assert packets.admits(way) is let_in


LINKS = [
    *(link("eth0"), link("wg0", "wireguard"), link("tun0", "tun")),
    link("br0", "bridge"),
    link("vx0", "vxlan", master="br0"),
    link("cali7", "veth", master="br0"),
    link("br1", "bridge"),
    link("vx1", "vxlan", master="br1"),
    link("eth1", master="br1"),
    link("wg0.7", "vlan", lower="wg0"),
]
FOUND = [
    WG,
    Tunnel("tun0", "tun", (Entrance("udp", (1194,)),), (Peer(ipaddress.ip_address("10.99.0.1")),)),
    Tunnel("vx0", "vxlan", (Entrance("udp", (4789,)),)),
    Tunnel("vx1", "vxlan", (Entrance("udp", (4789,)),)),
]


@each(
    ("eth0", []),
    (LOOPBACK, []),
    ("", []),
    ("wg0", ["wg0"]),
    ("tun0", ["tun0", "wg0"]),
    ("br0", ["vx0"]),
    ("br1", []),  # it may come by eth1
    ("wg0.7", ["wg0"]),
)
def test_tunnels_of_a_login_are_followed_to_the_last(interface: str, through: list[str]) -> None:
    routes = {**ROUTES, "10.0.0.1": interface}
    found = ways_from("10.0.0.1", FOUND, LINKS, routes.__getitem__)
    assert [way.tunnel.name for way in found] == through


def test_tunnel_that_carries_itself_ends_the_search() -> None:
    loop = Tunnel("wg0", "wireguard", (), (Peer(ipaddress.ip_address("10.99.0.1")),))
    assert len(ways_from("10.99.0.1", [loop], LINKS, ROUTES.__getitem__)) == 1


def test_refusal_names_interface_port_source_and_both_variables() -> None:
    ways = ways_from("10.99.0.1", [WG], LINKS, ROUTES.__getitem__)
    with pytest.raises(RefusedError) as refusal:
        firewall.check_ways(ways, rules())
    facts = (
        "wg0 (wireguard, udp port 51820 from 198.51.100.7)",
        'add {name: wg0, protocol: udp, ports: [51820], sources: ["198.51.100.7"]} to firewall_rules',
        "name wg0 in firewall_unchecked_tunnels",
    )
    assert [fact for fact in facts if fact not in str(refusal.value)] == []


def test_rule_of_the_refusal_is_one_that_opens_the_tunnel() -> None:
    for protocol, ports in (("udp", (51820,)), ("gre", ()), ("tcp", (443,))):
        way = outer(protocol, ports, remote=FAR)
        asked = {"protocol": protocol, "sources": [str(FAR)]} | ({"ports": ports} if ports else {})
        assert way.rules_to_add[0].count(protocol) == 1
        assert rules(asked).admits(way)


KEY, OTHER = "aGVsbG8=", "d29ybGQ="


#: What `wg show wg0` prints (wg(8)).
SHOWN = {
    "listen-port": "51820\n",
    "endpoints": f"{KEY}\t198.51.100.7:40000\n{OTHER}\t[2001:db8::7]:51820\n{KEY}x\t(none)\n",
    "allowed-ips": f"{KEY}\t10.99.0.0/24 fd00::/64\n{OTHER}\t10.99.0.7/32\n{KEY}x\t(none)\n",
    "persistent-keepalive": f"{KEY}\toff\n{OTHER}\t25\n{KEY}x\t25\n",
}
#: What iproute2 6.1 prints of a VXLAN, as far as it is read, and of a GRE tunnel (man ip-link).
LISTED = [
    {
        "ifname": "vx0",
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "master": "br0",
        "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 5, "remote": "192.0.2.9", "port": 51820}},
        "addr_info": [{"family": "inet", "local": "10.99.0.2", "prefixlen": 24, "scope": "global"}],
    },
    {
        "ifname": "gre1",
        "link": "eth0",
        "flags": ["POINTOPOINT", "NOARP", "UP", "LOWER_UP"],
        "linkinfo": {"info_kind": "gre", "info_data": {"remote": "any", "local": "192.0.2.1"}},
    },
    {
        "ifname": "sit1",
        "flags": ["UP", "LOWER_UP"],
        "linkinfo": {"info_kind": "sit", "info_data": {"proto": "ip6ip", "remote": "192.0.2.9"}},
    },
    {
        "ifname": "fou1",
        "flags": ["UP", "LOWER_UP"],
        "linkinfo": {"info_kind": "ipip", "info_data": {"remote": "192.0.2.9", "encap": {"type": "fou"}}},
    },
    {
        "ifname": "geneve1",
        "flags": ["UP", "LOWER_UP"],
        "linkinfo": {"info_kind": "geneve", "info_data": {"id": 7, "remote": "192.0.2.9", "port": 6081}},
    },
    {
        # By L2TP or PPTP.
        "ifname": "ppp0",
        "flags": ["POINTOPOINT", "NOARP", "UP", "LOWER_UP"],
        "linkinfo": {"info_kind": "ppp"},
    },
    {"ifname": "eth0", "flags": ["UP", "LOWER_UP"], "addr_info": []},
]
FDB = [
    {"mac": "00:00:00:00:00:00", "dst": "192.0.2.9", "flags": ["self"], "state": "permanent"},
    {"mac": "33:33:00:00:00:01", "flags": ["self"], "state": "permanent"},
    {"mac": "00:00:00:00:00:00", "dst": "239.1.1.1", "flags": ["self"], "state": "permanent"},
]


def test_links_are_tunnels_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "which", lambda name: name)
    monkeypatch.setattr(tunnels, "run", lambda _: json.dumps(FDB))
    monkeypatch.setattr(tunnels, "ike_entrances", lambda _: ())
    found = tunnels.tunnels(network_interfaces.read_interfaces(json.dumps(LISTED)))
    far = (Peer(ipaddress.ip_address("192.0.2.9")),)
    assert found == [
        Tunnel("vx0", "vxlan", (Entrance("udp", (51820,)),), far),
        Tunnel("gre1", "gre", (Entrance("gre"),), (Peer(),)),
        Tunnel("sit1", "sit", (Entrance("sit"),), far),
        Tunnel("fou1", "ipip", None, far),
        Tunnel("geneve1", "geneve", (Entrance("udp", (6081,)),), far),
        Tunnel("ppp0", "ppp", None),
    ]


def test_wireguards_own_program_tells_its_peers_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "which", lambda name: name)
    monkeypatch.setattr(tunnels, "run", lambda command: SHOWN[command[-1]])
    monkeypatch.setattr(tunnels, "ROOT", tmp_path)
    (tmp_path / "etc/wireguard").mkdir(parents=True)
    (tmp_path / "etc/wireguard/wg0.conf").write_text(
        f"[Interface]\n[Peer]\nPublicKey={KEY}\n[Peer]\nPublicKey = {OTHER}\nEndpoint = vpn:51820\n"
    )
    found = tunnels.wireguard(link("wg0", "wireguard"), set())
    assert found.entrances == (Entrance("udp", (51820,)),)
    assert [peer.dialled for peer in found.peers] == [False, True, False]
    assert [peer.roams for peer in found.peers] == [True, False, True]
    towards = found.peers_towards(ipaddress.ip_address("10.99.0.7"))
    assert [str(peer.remote) for peer in towards] == ["2001:db8::7"]
    assert [peer.remote for peer in found.peers_towards(ipaddress.ip_address("10.99.0.1"))] == [FAR]


@pytest.mark.parametrize(
    ("path", "text", "configured"),
    [
        ("etc/wireguard/wg0.conf", f"[Peer]\n# x\npublickey={KEY}\nENDPOINT=[::1]:5 # far\n", True),
        ("etc/wireguard/wg0.conf", f"[Peer]\nPublicKey={KEY}\n#Endpoint=1.2.3.4:5\n", False),
        ("etc/wireguard/wg0.conf", f"[Peer]\nPublicKey={KEY}\n[Peer]\nEndpoint=1.2.3.4:5\n", False),
        ("etc/wireguard/wg0.conf.old", f"[Peer]\nPublicKey={KEY}\nEndpoint=1.2.3.4:5\n", False),
        ("run/systemd/network/a.netdev", f"[WireGuardPeer]\nEndpoint=1.2.3.4:5\nPublicKey={KEY}\n", True),
        ("etc/systemd/network/a.netdev.d/b.conf", f"[WireGuardPeer]\nPublicKey={KEY}\nEndpoint=h:5\n", True),
        ("etc/NetworkManager/system-connections/wg", f"[wireguard-peer.{KEY}]\nendpoint=1.2.3.4:5\n", True),
        ("etc/NetworkManager/system-connections/wg", f"[wireguard-peer.{KEY}]\nallowed-ips=::/0\n", False),
    ],
)
def test_endpoint_is_known_after_a_boot_where_a_file_has_it(
    path: str, text: str, *, configured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "ROOT", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert tunnels.dialled_keys() == ({KEY} if configured else set())


def test_peer_that_roams_is_let_in_by_rules_alone_and_from_everywhere() -> None:
    """Its keepalive does not help: after a boot the node knows no endpoint to send to."""
    (roaming,) = tunnels.wireguard_peers(f"{KEY}\t198.51.100.7:4\n", "", f"{KEY}\t25\n", ())
    way = Way(WG, roaming)
    assert not rules().admits(way)
    assert rules(udp("51820")).admits(way)
    assert "configured nowhere" in str(way)
    assert "0.0.0.0/0" in way.rules_to_add[0]


UDP_ROWS = "".join(
    f"   {number}: 00000000:{port:04X} 00000000:0000 07 0:0 00:0 0 0 0 {number} 1 x\n"
    for number, port in ((1, 51820), (2, 4789), (3, 1194), (4, 45000), (5, 500), (6, 4500))
)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A node with a VPN's program (46), a virtual machine's (47), and sockets of the kernel."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "udp").write_text(HEADER + UDP_ROWS)
    ports = tmp_path / "sys/net/ipv4/ip_local_port_range"
    ports.parent.mkdir(parents=True)
    ports.write_text("32768\t60999\n")
    machine = ["/dev/net/tun", "anon_inode:kvm-vm", "socket:[9]"]
    for process, targets in (("46", ["/dev/net/tun", "socket:[3]", "socket:[4]"]), ("47", machine)):
        for folder in ("fd", "fdinfo"):
            (tmp_path / process / folder).mkdir(parents=True)
        for number, target in enumerate(targets):
            (tmp_path / process / "fd" / str(number)).symlink_to(target)
        (tmp_path / process / "fdinfo" / "0").write_text(f"pos:\t0\nflags:\t02\niff:\ttun{process}\n")
    return tmp_path


def test_program_that_has_a_tun_open_is_asked_for_its_chosen_port(proc: Path) -> None:
    holders = tunnels.tun_holders(proc)
    assert [*holders] == ["tun46"]
    assert tunnels.daemon_entrances(link("tun46", "tun"), holders["tun46"], proc) == (
        Entrance("udp", (1194,)),
    )
    assert tunnels.daemon_entrances(link("tun46"), {"socket:[4]"}, proc) == (Entrance("udp", (45000,)),)
    assert tunnels.daemon_entrances(link("tun46"), {"socket:[99]"}, proc) == ()


def test_kernels_sockets_stand_for_wireguards_where_its_program_is_not_installed(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "which", lambda _: None)
    found = tunnels.wireguard(link("wg0", "wireguard"), {4789, 500, 4500}, proc)
    assert found.entrances == (Entrance("udp", (51820,)),)


#: What iproute2 6.1 printed of policies that were made by hand.
POLICIES = """\
src 10.0.1.0/24 dst 192.168.0.0/24
\tdir in priority 0 ptype main
\ttmpl src 198.51.100.2 dst 203.0.113.1
\t\tproto esp reqid 1 mode tunnel
\tif_id 0x5
src 10.0.0.7/24 dst 192.168.0.0/24
\tdir in priority 0 ptype main
\ttmpl src 198.51.100.2 dst 203.0.113.1
\t\tproto esp reqid 1 mode tunnel
src 192.168.0.0/24 dst 10.0.0.0/24
\tdir out priority 0 ptype main
\ttmpl src 203.0.113.1 dst 198.51.100.2
\t\tproto esp reqid 1 mode tunnel
src 192.0.2.7/32 dst 203.0.113.1/32
\tdir in priority 0 ptype main
\ttmpl src 0.0.0.0 dst 0.0.0.0
\t\tproto esp reqid 2 mode transport
"""


@pytest.mark.parametrize(
    ("states", "entrances"),
    [
        ("", ["udp port 500", "udp port 4500", "IP protocol 50, esp"]),
        ("src 198.51.100.2 dst 203.0.113.1\n\tencap type espinudp sport 4500 dport 4500\n", None),
    ],
)
def test_ipsec_is_a_way_without_an_interface(
    proc: Path, states: str, entrances: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = POLICIES if entrances else POLICIES.partition("src 192.168")[0]
    monkeypatch.setattr(tunnels, "which", lambda _: "ip")
    monkeypatch.setattr(tunnels, "run", lambda command: policies if "policy" in command else states)
    (found,) = tunnels.tunnels([link("eth0")], proc)
    assert [str(one) for one in found.entrances or ()] == (entrances or ["udp port 500", "udp port 4500"])
    routes = {"10.0.0.9": "eth0", "198.51.100.2": "eth0", "192.0.2.7": "eth0", "10.0.1.9": "eth0"}
    ways = {client: ways_from(client, [found], [link("eth0")], routes.__getitem__) for client in routes}
    outer_sources = {
        client: [str(way.peer.remote) for way in through if way.tunnel.name == IPSEC]
        for client, through in ways.items()
    }
    assert outer_sources == {
        "10.0.0.9": ["198.51.100.2"],
        "198.51.100.2": [],
        "192.0.2.7": ["192.0.2.7"] if entrances else [],
        "10.0.1.9": [],  # a policy of an interface
    }


def in_namespace(commands: str) -> list[Tunnel]:
    """Return the tunnels of a network namespace of its own in which these commands were run."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0
            subprocess.run(["sh", "-euc", commands], check=True)
            sender.send(tunnels.tunnels([one for one in network_interfaces.own_interfaces() if one.up]))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert receiver.poll(), "the commands failed"
    found: list[Tunnel] = receiver.recv()
    return found


@pytest.mark.component
@needs_kernel
def test_kernel_tells_a_vxlan_its_port_and_all_its_other_ends() -> None:
    if not shutil.which("bridge"):
        pytest.skip("the kernel's list of the other ends is read by `bridge`")
    found = in_namespace(
        "ip link add vx0 type vxlan id 42 dstport 51820 remote 198.51.100.7; ip link set vx0 up; "
        "bridge fdb append 00:00:00:00:00:00 dev vx0 dst 198.51.100.8; ip link set lo up"
    )
    assert [(one.name, one.kind, one.entrances) for one in found] == [
        ("vx0", "vxlan", (Entrance("udp", (51820,)),))
    ]
    assert {str(peer.remote) for peer in found[0].peers} == {"198.51.100.7", "198.51.100.8"}


@pytest.mark.component
@needs_kernel
def test_kernel_takes_the_proof_and_forgets_it() -> None:
    lines = [
        *outer("udp", (51820, 1194), remote=FAR).untracked,
        *outer("gre", remote=ipaddress.ip_address("2001:db8::7")).untracked,
        *outer("esp").untracked,
    ]
    make = firewall.proof(lines)
    script = f'nft "$1" && nft "$1" && nft list ruleset && nft "{END_PROOF}" && nft list ruleset'
    listed = subprocess.run(
        ["unshare", "--net", "sh", "-euc", script, "sh", make], check=True, capture_output=True, text=True
    ).stdout
    assert listed.count("notrack") == 3
    assert listed.count("table inet") == 1


@pytest.mark.component
@needs_kernel
@pytest.mark.parametrize("protocol", ["ipip", "sit", "gre", "esp", "ah", "ospf", "vrrp"])
def test_kernel_takes_a_rule_for_a_protocol_without_ports(protocol: str) -> None:
    rule = parse_rule(0, {"name": "outer", "protocol": protocol, "ports": [], "sources": ["192.0.2.7"]})
    text = render(SSH, [rule], Trusted([], []), LIMITS)
    assert 'accept comment "outer"' in firewall.trial_table(text)


def test_ports_of_a_protocol_without_ports_are_refused() -> None:
    with pytest.raises(RefusedError, match="expected no ports with protocol gre"):
        parse_rule(0, {"name": "x", "protocol": "gre", "ports": ["1"], "sources": ["192.0.2.7"]})


def changed_through(
    monkeypatch: pytest.MonkeyPatch, client: str = "10.99.0.1", **wanted: Any
) -> firewall.Firewall:
    """Return the firewall of a node on which wg0 ends, for a login of this client."""
    monkeypatch.setattr(firewall, "which", lambda _: None)
    monkeypatch.setattr(firewall, "other_firewall", lambda: None)
    monkeypatch.setattr(firewall, "refuse_closing_chains", lambda _: None)
    monkeypatch.setattr(firewall, "needs_daemon_reload", lambda **_: False)
    monkeypatch.setattr(firewall, "listeners", list)
    monkeypatch.setattr(firewall, "own_interfaces", lambda: LINKS)
    monkeypatch.setattr(firewall, "tunnels", lambda _: [WG])
    monkeypatch.setattr(firewall, "interface_to", lambda address, *_: ROUTES[address])
    login = replace(LOGIN, client=client)
    given = {"management_networks": [f"{client}/32"], "ssh_ports": [22], **wanted}
    return firewall.Firewall(given, 120, login)


OPENING = {"rules": [{"name": "wg0", "protocol": "udp", "ports": ["51820"], "sources": [f"{FAR}"]}]}
LET_IN = {"by a rule": OPENING, "by the operator's word": {"unchecked_tunnels": ["wg*"]}}


def test_rules_that_close_the_way_of_the_login_are_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "wg0" in (changed_through(monkeypatch).obstacle() or "")
    image = changed_through(monkeypatch)
    image.live = False
    assert image.obstacle() is None


@each(*LET_IN.values())
def test_way_of_the_login_that_is_let_in_is_no_obstacle(
    wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = changed_through(monkeypatch, **wanted)
    assert (setting.obstacle(), setting.warnings()) == (None, [])


def test_tunnel_that_ansible_does_not_come_through_is_named_before_the_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROUTES, "192.0.2.7", "eth0")
    setting = changed_through(monkeypatch, client="192.0.2.7")
    assert setting.obstacle() is None
    assert any("wg0 (wireguard, udp port 51820" in line for line in setting.warnings())
    assert changed_through(monkeypatch, client="192.0.2.7", **OPENING).warnings() == []


@each({}, {"rules": [{**OPENING["rules"][0], "sources": ["0.0.0.0/0"]}]})
def test_thousands_of_peers_cost_no_program_each(
    wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUTES, "192.0.2.7", "eth0")
    setting = changed_through(monkeypatch, client="192.0.2.7", **wanted)
    peers = tuple(Peer(ipaddress.ip_address(number)) for number in range(2**24, 2**24 + 5000))
    asked: list[str] = []
    monkeypatch.setattr(firewall, "tunnels", lambda _: [replace(WG, peers=peers)])

    def to(address: str, *_: object) -> str:
        asked.append(address)
        return "eth0"

    monkeypatch.setattr(firewall, "interface_to", to)
    assert setting.obstacle() is None
    assert len(asked) < 10


@pytest.mark.parametrize(("wanted", "proven"), [(OPENING, True), (LET_IN["by the operator's word"], False)])
def test_proof_of_a_checked_tunnel_ignores_its_flow_and_the_undo_ends_it(
    wanted: dict[str, Any], *, proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(firewall, "run", commands.append)
    setting = changed_through(monkeypatch, **wanted)
    way_in = setting.way_in()
    setting.prove()
    assert [command for command in commands if "notrack" in command[-1]] == commands
    assert way_in
    assert (len(commands), any(END_PROOF in line for line in way_in.live)) == (proven, proven)


#: A node in a network namespace, reached through a VXLAN with one port at both ends, as WireGuard has. What
#: the node sent by itself would begin the flow anew: neighbours are known, and connections end with a reset.
THROUGH_A_TUNNEL = """
unshare --net sleep 60 & node=$!
trap 'kill $node' EXIT
while [ "$(readlink /proc/$node/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
in="nsenter --net=/proc/$node/ns/net"
ip link add eth0 type veth peer name eth0 netns $node
end() {
    $1 ip address add 192.0.2.$2/24 dev eth0; $1 ip link set eth0 up
    $1 ip link add wg0 address 02:00:00:00:00:0$2 type vxlan id 42 dev eth0 local 192.0.2.$2 \\
        remote 192.0.2.$3 dstport 51820 srcport 51820 51821
    $1 ip link set wg0 addrgenmode none
    $1 ip address add 10.99.0.$2/24 dev wg0; $1 ip link set wg0 up
    $1 ip neighbour add 10.99.0.$3 lladdr 02:00:00:00:00:0$3 dev wg0
}
end "" 1 2; end "$in" 2 1
python=$1 forget=$2; shift 2
listen="import signal, socket; end = socket.create_server(('10.99.0.2', 22)); signal.pause()"
connect="import socket, struct; end = socket.create_connection(('10.99.0.2', 22), timeout=2)
end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))"
$in $python -c "$listen" & server=$!
trap 'kill $node $server' EXIT
until $python -c "$connect" 2>/dev/null; do :; done
for rules; do
    if [ "$rules" = forget ]; then $in $python -c "$forget"; else $in nft "$rules"; fi
    if $python -c "$connect" 2>/dev/null; then echo reached; else echo cut; fi
done
"""


@pytest.mark.component
@needs_kernel
def test_flow_from_before_hides_a_lock_out_and_the_proof_shows_it() -> None:
    ssh = Rule("ssh", "tcp", [(22, 22)], networks("", ["10.99.0.0/24"]))
    opening = parse_rule(0, {"name": "wg0", **udp("51820", sources="192.0.2.1")})
    closed, opened = (render(ssh, given, Trusted([], []), LIMITS) for given in ([], [opening]))
    way = outer("udp", (51820,), remote=ipaddress.ip_address("192.0.2.1"))
    proof = firewall.proof(way.untracked)
    steps = {
        "the kernel learns of the flow": (firewall.WATCH, "reached"),
        "rules close the tunnel, and nobody notices": (closed, "reached"),
        "the proof": (proof, "cut"),
        "an undo": (END_PROOF, "reached"),
        "rules open it": (f"{opened}{proof}", "reached"),
        "they are confirmed": (END_PROOF, "reached"),
        "silence": ("forget", "reached"),
        "they are closed": (f"{closed}", "reached"),
        "silence again": ("forget", "cut"),
    }
    script = ["unshare", "--net", "sh", "-euc", THROUGH_A_TUNNEL, "sh", sys.executable, FORGET_FLOWS]
    done = subprocess.run(
        [*script, *(rules for rules, _ in steps.values())], capture_output=True, text=True, timeout=60
    )
    found = dict(zip(steps, done.stdout.split(), strict=True))
    assert found == {step: wanted for step, (_, wanted) in steps.items()}, done.stderr
