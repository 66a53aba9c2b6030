"""Packets of the whole MTU: who is asked, and what follows from who answers."""

import json
from pathlib import Path

import pytest

from tests.unit.executables import executable
from validation.checks import mtu as check
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.probes import mtu
from validation.probes.mtu import Way
from validation.processes.child import Request

pytestmark = pytest.mark.component

# In the form of `ip -json`, iproute2 6.1.
LINKS = [
    {"ifindex": 1, "ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536},
    {"ifindex": 2, "ifname": "ens1", "flags": ["UP"], "mtu": 9000},
    {"ifindex": 3, "ifname": "docker0", "flags": ["UP"], "mtu": 1500},
    {"ifindex": 4, "ifname": "bond0", "flags": ["UP"], "mtu": 1500},
]
NEIGHBOURS = [
    {"dst": "10.0.0.1", "dev": "ens1", "lladdr": "02:00:00:00:00:01", "state": ["REACHABLE"]},
    {"dst": "10.0.0.2", "dev": "ens1", "lladdr": "02:00:00:00:00:02", "state": ["STALE"]},
    {"dst": "10.0.0.9", "dev": "ens1", "state": ["FAILED"]},
    {"dst": "172.17.0.2", "dev": "docker0", "lladdr": "02:00:00:00:00:03", "state": ["REACHABLE"]},
    {"dst": "10.1.0.1", "dev": "bond0", "lladdr": "02:00:00:00:00:04", "state": ["DELAY"]},
]
# Answers unless it is asked with a packet that `blocked` does not let through to this address.
PING = """\
#!/bin/sh
for address; do :; done
while [ "$1" != -s ]; do [ "$1" != -M ] || [ "$2" = do ] || exit 2; shift; done
echo "$4 $address $2" >> {log}
case "$address $2" in {blocked}) exit 1 ;; esac
"""


class Network:
    """What `ip` shows and who answers `ping`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.log = folder / "pings"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.shows(LINKS, NEIGHBOURS)
        self.blocks("nobody")
        (folder / "sys/class/net/ens1/device").mkdir(parents=True)
        (folder / "sys/class/net/docker0").mkdir()
        (folder / "sys/class/net/bond0/lower_ens2/device").mkdir(parents=True)

    def program(self, name: str, text: str) -> None:
        executable(self.bin / name, text)

    def shows(self, links: object, neighbours: object) -> None:
        case = f"*link*) echo '{json.dumps(links)}' ;; *) echo '{json.dumps(neighbours)}' ;;"
        self.program("ip", f'#!/bin/sh\ncase "$*" in {case} esac\n')

    def blocks(self, *patterns: str) -> None:
        self.program("ping", PING.format(log=self.log, blocked="|".join(patterns)))

    @property
    def asked(self) -> list[str]:
        return sorted(self.log.read_text().splitlines())


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    return made


def test_known_neighbours_on_interfaces_with_hardware_are_asked_with_the_whole_mtu(network: Network) -> None:
    both = ("10.0.0.1", "10.0.0.2")
    assert mtu.read(network.root) == [
        Way("ens1", 9000, both, both),
        Way("bond0", 1500, ("10.1.0.1",), ("10.1.0.1",)),
    ]
    # 28 bytes are the headers of IPv4 and of ICMP.
    assert network.asked == [
        "bond0 10.1.0.1 1472",
        "bond0 10.1.0.1 56",
        "ens1 10.0.0.1 56",
        "ens1 10.0.0.1 8972",
        "ens1 10.0.0.2 56",
        "ens1 10.0.0.2 8972",
    ]


def test_who_answers_small_packets_alone_is_told_apart(network: Network) -> None:
    network.blocks("'10.0.0.1 8972'", "'10.1.0.1 '*")
    assert mtu.read(network.root) == [
        Way("ens1", 9000, ("10.0.0.1", "10.0.0.2"), ("10.0.0.2",)),
        Way("bond0", 1500, (), ()),
    ]


def test_of_many_neighbours_some_are_asked(network: Network) -> None:
    many = [{**NEIGHBOURS[0], "dst": f"10.0.0.{number}"} for number in range(1, 100)]
    network.shows(LINKS, many)
    assert len(mtu.read(network.root)[0].answering) == mtu.MOST_NEIGHBOURS


@pytest.mark.parametrize(
    ("way", "codes"),
    [
        (Way("ens1", 9000, ("a", "b"), ()), ["mtu-blocked"]),
        (Way("ens1", 9000, ("a", "b"), ("b",)), []),
        (Way("ens1", 9000, ("a",), ("a",)), []),
        (Way("ens1", 9000, (), ()), []),
    ],
)
def test_an_interface_on_which_nothing_of_its_mtu_passes_is_a_finding(way: Way, codes: list[str]) -> None:
    found = list(check.examine([way]))
    assert [one.code for one in found] == codes
    assert all(one.state is State.DEGRADED and "9000" in one.text for one in found)


def measured(network: Network, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(mtu, "read", lambda: read(network.root))
    found = check.measure(Request("x", "y", "none"), lambda _: None)
    return [one.code for one in found.findings]


read = mtu.read


def test_the_check_says_what_is_blocked(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.blocks("*8972")
    assert measured(network, monkeypatch) == ["mtu-blocked"]


def test_without_ping_or_without_an_answer_nothing_is_measured(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.blocks("*")
    with pytest.raises(NotRunError, match="no neighbour"):
        measured(network, monkeypatch)
    (network.bin / "ping").unlink()
    with pytest.raises(NotRunError, match="ping is not installed"):
        measured(network, monkeypatch)
    network.program("ip", "#!/bin/sh\necho what\n")
    with pytest.raises(NotRunError, match="no JSON"):
        measured(network, monkeypatch)
