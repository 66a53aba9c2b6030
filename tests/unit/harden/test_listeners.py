"""What waits for packets, and whose it is, whatever a user calls his processes."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.temper.access import firewall, listeners, sshd
from ansible.module_utils.temper.access.listeners import Listener
from ansible.module_utils.temper.process import OutputError

HEADER = "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n"
EVERYWHERE_6 = "0" * 32
TABLES = {
    "tcp": [
        "00000000:0016 00000000:0000 0A 0:0 00:0 0 0 0 11 1 x",
        "3500007F:0035 00000000:0000 0A 0:0 00:0 0 101 0 12 1 x",
        "0100000A:0016 0200000A:9C40 01 0:0 00:0 0 0 0 0 1 x",
    ],
    "tcp6": [
        f"{EVERYWHERE_6}:0016 {EVERYWHERE_6}:0000 0A 0:0 00:0 0 0 0 13 1 x",
        f"{EVERYWHERE_6}:24B8 {EVERYWHERE_6}:0000 0A 0:0 00:0 0 997 0 14 1 x",
        f"00000000000000000000000001000000:0277 {EVERYWHERE_6}:0000 0A 0:0 00:0 0 0 0 15 1 x",
        f"0000000000000000FFFF00000100007F:0278 {EVERYWHERE_6}:0000 0A 0:0 00:0 0 0 0 16 1 x",
    ],
    "udp": [
        "00000000:006F 00000000:0000 07 0:0 00:0 0 0 0 17 1 x",
        "00000000:0044 00000000:0000 07 0:0 00:0 0 0 0 18 1 x",
        "00000000:9C40 00000000:0000 07 0:0 00:0 0 1000 0 19 1 x",
        "00000000:9C41 0200000A:0035 01 0:0 00:0 0 0 0 20 1 x",
        "00000000:CA6C 00000000:0000 07 0:0 00:0 0 0 0 21 1 x",
        "00000000:A2A9 00000000:0000 07 0:0 00:0 0 61999 0 22 1 x",
    ],
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A node of little-endian words with one process that has a name."""
    for table, rows in TABLES.items():
        path = tmp_path / "net" / table
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEADER + "".join(f"   {number}: {row}\n" for number, row in enumerate(rows)))
    ports = tmp_path / "sys/net/ipv4/ip_local_port_range"
    ports.parent.mkdir(parents=True)
    ports.write_text("32768\t60999\n")
    descriptors = tmp_path / "46" / "fd"
    descriptors.mkdir(parents=True)
    (tmp_path / "46" / "comm").write_text("sshd\n")
    for inode in ("11", "13"):
        (descriptors / inode).symlink_to(f"socket:[{inode}]")
    return tmp_path


@pytest.mark.skipif(sys.byteorder != "little", reason="the words of the tables are little-endian")
def test_services_are_found_once_and_clients_and_loopback_are_not(proc: Path) -> None:
    assert listeners.listeners(proc) == [
        Listener("tcp", 22, "sshd", 0),
        Listener("tcp", 9400, "unknown process", 997),
        Listener("udp", 111, "unknown process", 0),
        Listener("udp", 41641, "unknown process", 61999),
        Listener("udp", 51820, "unknown process", 0),
    ]


def test_query_that_ends_during_the_search_for_names_is_no_service(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (proc / "net" / "udp").read_text()

    def search(_inodes: set[str], _proc: Path) -> dict[str, str]:
        (proc / "net" / "udp").write_text(rows.replace(" 21 1 x", " 99 1 x"))
        return {}

    monkeypatch.setattr(listeners, "process_names", search)
    assert [one.port for one in listeners.listeners(proc) if one.protocol == "udp"] == [111, 41641]


@pytest.mark.parametrize(
    "row", ["1: ", "1: x y z 0A", "1: :0016 0:0 0A 0 0 0 0 0 1 1", "1: 0:zz 0 0A 0 0 0 0 0 1"]
)
def test_row_that_cannot_be_read_is_named(proc: Path, row: str) -> None:
    (proc / "net" / "tcp").write_text(f"{HEADER}{row}\n")
    with pytest.raises(OutputError, match="/proc/net/tcp"):
        listeners.listeners(proc)


NAMED = """\
import ctypes, os, socket, sys
listening = socket.socket(); listening.bind(("0.0.0.0", 0)); listening.listen()
if os.geteuid() == 0:
    os.setuid(65534)
    listening = socket.socket(); listening.bind(("0.0.0.0", 0)); listening.listen()
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listening_as(name: str) -> Iterator[int]:
    """Have a real process of a user with this name listen; returns its port."""
    command = [sys.executable, "-c", NAMED, name.encode().hex()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.component
@pytest.mark.parametrize(
    "name",
    ["a\nb", "a\rb", "a\x0cb", '(("sshd",pid=1', "a), tcp 1 (b", "\x1b]0;x\x07", "\u2028", "a\tb c", "'\"\\"],
)
def test_name_of_a_process_breaks_nothing_and_forges_no_entry(name: str) -> None:
    before = {one.port for one in listeners.listeners()}
    with listening_as(name) as port:
        found = listeners.listeners()
    new = [one for one in found if one.port not in before]
    assert [one.port for one in new if one.port == port] == [port]
    shown = str(next(one for one in new if one.port == port))
    assert shown.isprintable()
    assert (shown.count("("), shown.count(")")) == (1, 1)
    assert firewall.report([], new)


@pytest.mark.component
@pytest.mark.skipif(os.geteuid() != 0, reason="the process of another user has to be started")
def test_users_process_called_sshd_is_none() -> None:
    with listening_as("sshd") as port:
        assert sshd.ports_of_others(listeners.listeners())[str(port)] == "sshd"
        assert sshd.listening_sockets([str(port)]) == {str(port): set()}


def test_listener_of_this_very_process_is_named() -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        inode = str(os.fstat(own.fileno()).st_ino)
        assert listeners.process_names({inode}) == {inode: Path("/proc/self/comm").read_text().strip()}


def test_search_for_names_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "NAMES_TIMEOUT_S", 0.0)
    assert listeners.process_names({"of nobody"}) == {}
