"""The firewall on real nodes: what passes and what does not, what survives, what the run reports."""

import errno
import fcntl
import socket
import sys
import termios
import threading

import pytest

from tests.lab.hardening import EXPORTER, NODES, Hardened, wait_until

pytestmark = pytest.mark.lab


def test_firewall_follows_what_the_kernel_holds(fleet: Hardened) -> None:
    fleet.side_door("nft 'add rule inet temper input tcp dport 23 accept'")
    run = fleet.harden("--diff")
    assert "-\t\ttcp dport 23 accept" in run.output
    assert not any("dport 23" in listing for listing in fleet.side_door("nft list ruleset").values())


def test_firewall_comes_back_when_nftables_service_flushes_everything(fleet: Hardened) -> None:
    for command in ("start", "restart", "reload", "stop"):
        tables = fleet.side_door(f"systemctl {command} nftables; nft list tables")
        assert all("temper" in listing for listing in tables.values()), command


def test_stopped_firewall_stays_open_when_nftables_service_starts(fleet: Hardened) -> None:
    try:
        tables = fleet.side_door(
            "systemctl stop temper-firewall; systemctl restart nftables; nft list tables"
        )
        assert not any("temper" in listing for listing in tables.values())
    finally:
        fleet.side_door("systemctl stop nftables; systemctl start temper-firewall")


@pytest.mark.slow
def test_rules_of_others_survive_a_change_and_a_reload(fleet: Hardened) -> None:
    """What Docker, Kubernetes and libvirt leave in the kernel: tables with chains, rules and sets."""
    others = {
        "ip nat": "chain DOCKER { type nat hook prerouting priority -100; tcp dport 80 redirect to :8080; };",
        "ip filter": "chain KUBE-FORWARD { ct state established accept; };",
        "inet libvirt": "set guests { type ipv4_addr; elements = { 192.0.2.5 }; }; chain forward { "
        "type filter hook forward priority filter; ip daddr @guests accept; };",
    }
    fleet.side_door("".join(f"nft 'table {name} {{ {body} }}';" for name, body in others.items()))
    listing = ";".join(f"nft list table {name}" for name in others)
    try:
        before = fleet.side_door(listing)
        assert fleet.harden(firewall_rules=[EXPORTER]).status == 0
        fleet.side_door("systemctl reload temper-firewall")
        assert fleet.harden().status == 0
        assert fleet.side_door(listing) == before
    finally:
        fleet.side_door(";".join(f"nft delete table {name}" for name in others))


@pytest.mark.slow
def test_open_connection_that_the_node_only_reads_from_outlives_the_first_rules(fleet: Hardened) -> None:
    """Until then the kernel tracks no connections, and what the other end sends looks like a new one."""
    gone = fleet.harden("--limit", "gpu01", firewall_state="absent")
    assert gone.status == 0, gone.output
    gateway = fleet.lab.address
    read = (
        "import socket, sys; reader = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while reader.recv(9): pass"
    )
    with socket.create_server((gateway, 0)) as server:
        server.settimeout(30)
        start = ("systemd-run", "--quiet", "--collect", "python3", "-c", read)
        fleet.inside("gpu01", *start, gateway, str(server.getsockname()[1]))
        connection, _ = server.accept()
    with connection:
        stop = threading.Event()
        sender = threading.Thread(target=send_until, args=(connection, stop))
        sender.start()
        try:
            assert fleet.harden("--limit", "gpu01").status == 0
        finally:
            stop.set()
            sender.join()
        # What is not acknowledged stays in the queue of this end.
        wait_until(lambda: unsent(connection) == 0, "the node reads what was sent")
    fleet.harden()


def send_until(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        connection.send(b"x")


def unsent(connection: socket.socket) -> int:
    """Bytes that the other end has not acknowledged (SIOCOUTQ)."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, b"\0" * 4), sys.byteorder)


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except TimeoutError:  # a firewall that drops
        return False
    except OSError as error:
        if error.errno == errno.EHOSTUNREACH:  # one that rejects, as firewalld does
            return False
        raise
    return True


def test_packets_pass_where_a_rule_says_so_and_nowhere_else(fleet: Hardened) -> None:
    for port in (9100, 9101):
        fleet.side_door(f"systemd-run --quiet --unit=listen-{port} python3 -m http.server --bind :: {port}")
    try:
        assert fleet.harden(firewall_rules=[EXPORTER]).status == 0
        for node in NODES:
            for address in (fleet.nodes[node].address, fleet.nodes[node].address6):
                wait_until(lambda address=address: connects(address, 9100), "the exporter answers")  # type: ignore[misc]
                assert not connects(address, 9101)
    finally:
        fleet.side_door("systemctl stop listen-9100 listen-9101")
        fleet.harden()


def test_flood_of_one_source_is_slowed_down(fleet: Hardened) -> None:
    """Only the source that floods; its packets are dropped and counted."""
    rules = [EXPORTER | {"sources": ["0.0.0.0/0", "::/0"]}]
    node = fleet.nodes["gpu01"]
    assert fleet.harden("--limit", "gpu01", firewall_rules=rules, firewall_new_per_second=5).status == 0
    try:
        for address in (node.address, node.address6):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            for _ in range(40):
                with socket.socket(family, socket.SOCK_STREAM) as client:
                    client.setblocking(False)
                    client.connect_ex((address, 9100))
        listing = fleet.inside("gpu01", "nft", "list", "chain", "inet", "temper", "input")
        dropped = [line for line in listing.splitlines() if "too many new connections" in line]
        counts = [int(line.partition("counter packets ")[2].split()[0]) for line in dropped]
        assert len(counts) == 2
        assert all(count > 0 for count in counts), counts
    finally:
        fleet.harden()


def test_report_names_ports_that_listen_or_are_open_but_not_both(fleet: Hardened) -> None:
    fleet.side_door("systemd-run --quiet --unit=listen-9101 python3 -m http.server --bind :: 9101")
    try:
        for node in NODES:
            wait_until(
                lambda node=node: ":9101" in fleet.inside(node, "ss", "-Hltn"),  # type: ignore[misc]
                "the server listens",
            )
        run = fleet.harden(firewall_services={"slurmd": ["192.0.2.1"]})
        assert "Listening, but open to nobody outside of the fleet: tcp 9101 (python3)." in run.said
        assert "Open, but nothing listens there: tcp 6818 (slurmd)." in run.said
    finally:
        fleet.side_door("systemctl stop listen-9101")
        fleet.harden()


# On a node of each release: what starts the other firewall, without locking SSH out, and what ends it.
OTHERS = {
    "gpu01": ("ufw", "ufw allow 22/tcp; ufw --force enable", "ufw disable"),
    "gpu02": ("firewalld", "systemctl enable --now firewalld", "systemctl disable --now firewalld"),
}


@pytest.mark.slow
@pytest.mark.parametrize("node", OTHERS)
def test_other_firewall_that_filters_is_refused_until_it_is_gone(fleet: Hardened, node: str) -> None:
    """Real ufw and real firewalld: a port that a rule of ours opens stays closed by theirs."""
    other, begin, end = OTHERS[node]
    address, opened = fleet.nodes[node].address, {"firewall_rules": [EXPORTER]}
    install = f"export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -qq -y {other}"
    listen = "systemd-run --quiet --unit=listen-9100 python3 -m http.server --bind :: 9100"
    assert fleet.harden("--limit", node, **opened).status == 0
    try:
        fleet.inside(node, "sh", "-c", f"{listen}; {install} >/dev/null; {begin}")
        assert not connects(address, 9100)
        refused = fleet.harden("--limit", node, firewall_new_per_second=7, **opened)
        assert f"{other} filters here as well" in refused.said
        assert "firewall_disable_other: true" in refused.said
        assert f"run `{end}`" in refused.said
        assert refused.recap[node]["changed"] == 0
        assert fleet.harden("--limit", node, "--check", **opened).status != 0
        fleet.inside(node, "sh", "-c", end)
        assert fleet.harden("--limit", node, **opened).status == 0
        wait_until(lambda: connects(address, 9100), "the exporter answers")
    finally:
        fleet.inside(
            node,
            "sh",
            "-c",
            f"{end}; apt-get purge -qq -y {other} >/dev/null; systemctl stop listen-9100",
        )
        assert fleet.harden().status == 0


@pytest.mark.slow
@pytest.mark.parametrize("node", OTHERS)
def test_other_firewall_is_ended_where_the_operator_allows_it_and_brought_back(
    fleet: Hardened, node: str
) -> None:
    """The port that their rules closed is open then, and closed again with `absent`."""
    other, begin, end = OTHERS[node]
    address = fleet.nodes[node].address
    allowed = {"firewall_rules": [EXPORTER], "firewall_disable_other": True}
    install = f"export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -qq -y {other}"
    listen = "systemd-run --quiet --unit=listen-9100 python3 -m http.server --bind :: 9100"
    assert fleet.harden("--limit", node, firewall_state="absent").status == 0
    try:
        fleet.inside(node, "sh", "-c", f"{listen}; {install} >/dev/null; {begin}")
        assert not connects(address, 9100)
        shown = fleet.harden("--limit", node, "--check", "--diff", **allowed)
        assert shown.status == 0, shown.output
        assert not connects(address, 9100)
        first = fleet.harden("--limit", node, **allowed)
        assert first.status == 0, first.output
        wait_until(lambda: connects(address, 9100), "the exporter answers")
        assert "table inet temper" in fleet.inside(node, "nft", "list", "tables")
        second = fleet.harden("--limit", node, **allowed)
        assert second.recap[node]["changed"] == 0
        gone = fleet.harden("--limit", node, firewall_state="absent")
        assert gone.status == 0, gone.output
        tables = fleet.inside(node, "nft", "list", "tables")
        assert "table inet temper" not in tables
        wait_until(lambda: not connects(address, 9100), f"{other} filters again")
    finally:
        fleet.inside(
            node,
            "sh",
            "-c",
            f"{end}; apt-get purge -qq -y {other} >/dev/null; systemctl stop listen-9100",
        )
        assert fleet.harden().status == 0


@pytest.mark.slow
def test_rules_of_a_cloud_image_are_refused_until_they_are_gone(fleet: Hardened) -> None:
    """A real nftables.service loads a chain that rejects what a rule of ours opens."""
    address, opened = fleet.nodes["gpu01"].address, {"firewall_rules": [EXPORTER]}
    begin = (
        "cp /etc/nftables.conf /root/before.conf; systemd-run --quiet --unit=listen-9100 "
        "python3 -m http.server --bind :: 9100; echo 'table ip filter { chain INPUT { "
        "type filter hook input priority filter; ct state established,related accept; iif lo accept; "
        "tcp dport 22 accept; reject with icmp host-prohibited; }; }' >/etc/nftables.conf; "
        "systemctl enable nftables; nft -f /etc/nftables.conf"
    )
    end = "systemctl disable nftables; nft delete table ip filter; cp /root/before.conf /etc/nftables.conf"
    assert fleet.harden("--limit", "gpu01", **opened).status == 0
    try:
        fleet.inside("gpu01", "sh", "-c", begin)
        assert not connects(address, 9100)
        refused = fleet.harden("--limit", "gpu01", firewall_new_per_second=7, **opened)
        facts = ("chain INPUT of table ip filter", "nftables.service (/etc/nftables.conf)", "reject")
        assert [fact for fact in facts if fact not in refused.said] == []
        assert refused.recap["gpu01"]["changed"] == 0
        fleet.inside("gpu01", "sh", "-c", end)
        assert fleet.harden("--limit", "gpu01", **opened).status == 0
        wait_until(lambda: connects(address, 9100), "the exporter answers")
    finally:
        fleet.inside("gpu01", "sh", "-c", f"{end}; systemctl stop listen-9100; true")
        assert fleet.harden().status == 0
