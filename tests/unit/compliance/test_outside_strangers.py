"""What this machine sees of servers on loopback: a real sshd, and strangers that behave oddly."""

import itertools
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED, AUTH_PARTIALLY_SUCCESSFUL, AUTH_SUCCESSFUL

from temper.compliance.outside import look, ports, ssh
from temper.compliance.outside.claims import Claims
from temper.compliance.outside.expected import Expected
from temper.compliance.outside.hello import MOST_LINES, HelloError, read_hello
from temper.compliance.outside.ports import Answer, Port, look_at_ports
from temper.compliance.outside.route import Route
from temper.compliance.outside.ssh import MOST_BYTES, MOST_METHODS, NO_PROOF, Pace, SshServer, ask_server
from tests.unit.each import each
from tests.unit.harden.real_sshd import LAB_ROOTS

HERE = "127.0.0.1"
PATIENCE_S = 30.0
VERSION = b"SSH-2.0-stranger\r\n"
SSHD_CONFIG = """\
ListenAddress {here}:{port}
HostKey {folder}/ed25519
HostKey {folder}/rsa
UsePAM no
PidFile none
AuthenticationMethods publickey
Match User games
  AuthenticationMethods password
  PasswordAuthentication yes
"""


def kexinit(*lists: bytes) -> bytes:
    """The first packet of a server."""
    body = b"\x14" + bytes(16) + b"".join(struct.pack(">I", len(one)) + one for one in lists) + bytes(5)
    padding = 8 - (len(body) + 5) % 8 + 8
    return struct.pack(">IB", len(body) + padding + 1, padding) + body + bytes(padding)


LISTS = (
    b"curve25519-sha256",
    b"ssh-ed25519",
    *2 * (b"aes128-ctr",),
    *2 * (b"hmac-sha2-256",),
    b"none",
    b"none",
)
HELLO = VERSION + kexinit(*LISTS)


@contextmanager
def serving(behave: Callable[[socket.socket], None], host: str = HERE) -> Iterator[int]:
    """A server whose connections are treated so; returns its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.create_server((host, 0), family=family)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=behave, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def says(text: bytes, *, then: str = "wait") -> Callable[[socket.socket], None]:
    """Say this, and then wait for the end of the connection, close it, or say it again and again."""

    def behave(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(text)
                while then == "again":
                    connection.sendall(text)
                while then == "wait" and connection.recv(4096):
                    pass
            except OSError:
                pass

    return behave


class Login(paramiko.ServerInterface):
    """A server that offers these methods to every account."""

    def __init__(self, methods: str, status: int = AUTH_FAILED) -> None:
        self.methods, self.status = methods, status

    def get_allowed_auths(self, username: str) -> str:
        return self.methods

    def check_auth_none(self, username: str) -> int:
        return self.status


def offers(methods: str, status: int = AUTH_FAILED) -> Callable[[socket.socket], None]:
    key = paramiko.ECDSAKey.generate()

    def behave(connection: socket.socket) -> None:
        with connection, paramiko.Transport(connection) as transport:
            transport.add_server_key(key)
            # A look at ports ends before it has said anything.
            with suppress(paramiko.SSHException, EOFError):
                transport.start_server(server=Login(methods, status))
            transport.join()

    return behave


def ask(port: int, *accounts: str, seconds: float = PATIENCE_S) -> SshServer:
    return ask_server(SshServer(HERE, port), accounts or ("ops",), Pace(time.monotonic() + seconds))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that hang are given up soon."""
    monkeypatch.setattr(ssh, "STEP_S", 0.3)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[int]:
    """A real sshd of Debian 12: a lab's, which runs from its own folder."""
    roots = sorted(LAB_ROOTS.glob("rootfs-bookworm-*"))
    if os.geteuid() != 0 or not roots:
        pytest.skip("needs root, and the sshd of a lab's node")
    for kind in ("ed25519", "rsa"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", kind, "-f", str(tmp_path / kind)], check=True)
    with closing(socket.create_server((HERE, 0))) as free:
        port = free.getsockname()[1]
    (tmp_path / "config").write_text(SSHD_CONFIG.format(here=HERE, port=port, folder=tmp_path))
    names = {"root": 0, "sshd": 998, "ops": 1001, "games": 5}
    (tmp_path / "passwd").write_text("".join(f"{name}:x:{uid}:0::/:/bin/sh\n" for name, uid in names.items()))
    root = roots[0]
    libraries = f"{root}/lib/x86_64-linux-gnu:{root}/usr/lib/x86_64-linux-gnu"
    command = f"{root}/lib64/ld-linux-x86-64.so.2 --library-path {libraries} {root}/usr/sbin/sshd"
    script = (
        f"mount --bind {tmp_path}/passwd /etc/passwd; mkdir -p /run/sshd; "
        f"exec {command} -D -r -e -f {tmp_path}/config"
    )
    command_line = ["unshare", "--mount", "sh", "-c", script]
    with subprocess.Popen(command_line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            assert "listening" in process.stderr.readline()
            yield port
        finally:
            process.terminate()


@pytest.mark.component
def test_real_sshd_shows_its_algorithms_keys_and_methods(sshd: int, tmp_path: Path) -> None:
    seen = ask(sshd, "ops", "games", "temper-outside")
    assert seen.problem == ""
    assert seen.methods == {"ops": ("publickey",), "games": ("password",), "temper-outside": ("publickey",)}
    files = [(tmp_path / f"{kind}.pub").read_text().split() for kind in ("ed25519", "rsa")]
    assert seen.host_keys == {words[0]: words[1] for words in files}
    assert seen.hello
    assert {"aes256-gcm@openssh.com", "aes128-ctr"} <= set(seen.hello.ciphers)
    assert "sntrup761x25519-sha512@openssh.com" in seen.hello.kex


@each(
    (AUTH_FAILED, "publickey,password", ("password", "publickey")),
    (AUTH_SUCCESSFUL, "publickey", (NO_PROOF,)),
    (AUTH_PARTIALLY_SUCCESSFUL, "password", ("password",)),
)
def test_the_methods_that_a_server_goes_on_with(status: int, methods: str, found: Sequence[str]) -> None:
    with serving(offers(methods, status)) as port:
        assert ask(port).methods == {"ops": found}


def test_endless_methods_are_cut() -> None:
    many = ",".join(f"\x1b[2J{number}" for number in range(2000))
    with serving(offers(many)) as port:
        assert len(ask(port).methods["ops"]) == MOST_METHODS


@each(
    says(b""),
    says(b"", then="close"),
    says(VERSION),
    says(VERSION[:9]),
    says(b"\xff" * 100 + b"\n", then="again"),
    says(b"x" * 4096, then="again"),
    says(VERSION + b"\x7f\xff\xff\xff\x04\x14" + b"x" * 4096, then="again"),
    says(HELLO),
    says(HELLO, then="close"),
    says(HELLO + kexinit(*LISTS), then="again"),
    says(VERSION + kexinit(b"\xff\x1b[2J", *LISTS[1:])),
    says(VERSION + kexinit(b"unheard-of", *LISTS[1:])),
    says(b"Not allowed at this time\r\n", then="close"),
)
@pytest.mark.usefixtures("hasty")
def test_stranger_that_is_no_good_server_is_a_problem_in_bounded_time(
    behave: Callable[[socket.socket], None],
) -> None:
    with serving(behave) as port:
        seen = ask(port)
    assert seen.problem
    assert seen.methods == {}


def test_what_a_server_sends_is_bounded() -> None:
    ours, its = socket.socketpair()
    with ssh.Bounded(ours, time.monotonic() + PATIENCE_S) as bounded, its:
        threading.Thread(target=says(b"x" * 4096, then="again"), args=(its,), daemon=True).start()
        while bounded.recv(1 << 20):
            pass
        assert MOST_BYTES <= len(bounded.said) < 2 * MOST_BYTES


def test_algorithms_that_paramiko_does_not_have_are_read_all_the_same() -> None:
    with serving(says(VERSION + kexinit(b"unheard-of@example.org", *LISTS[1:]))) as port:
        seen = ask(port)
    assert seen.hello
    assert seen.hello.kex == ("unheard-of@example.org",)
    assert "could not be asked" in seen.problem


def test_connections_keep_to_one_a_second_after_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the pace at which sshd forgets what it holds against them."""
    now, waited = [100.0], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("temper.compliance.outside.ssh.time.monotonic", lambda: now[0])
    monkeypatch.setattr("temper.compliance.outside.ssh.time.sleep", sleep)
    pace = Pace(104.5)
    assert [pace.next() for _ in range(10)] == [True] * 9 + [False]
    assert waited == [1.0] * 4


@each(
    b"",
    b"\n" * (MOST_LINES + 1) + HELLO,
    b"SSH-" + b"x" * 300 + b"\n",
    VERSION,
    VERSION + kexinit(*LISTS)[:-30],
    VERSION + kexinit(*LISTS[:3]),
    VERSION + kexinit(b",".join([b"a"] * 300), *LISTS[1:]),
    VERSION + kexinit(b"a" * 65, *LISTS[1:]),
    VERSION + kexinit(b"a,,b", *LISTS[1:]),
    VERSION + kexinit(b"a b", *LISTS[1:]),
)
def test_beginning_that_is_not_ssh_is_refused(said: bytes) -> None:
    with pytest.raises(HelloError):
        read_hello(said)


def test_lines_before_the_version_are_passed_over() -> None:
    assert read_hello(b"Authorized use only\r\n" + HELLO).ciphers == ("aes128-ctr",)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose queue of connections is full, so that the kernel answers nobody."""
    with closing(socket.socket()) as listener, closing(socket.socket()) as first:
        listener.bind((HERE, 0))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield listener.getsockname()[1]


def test_each_port_is_open_closed_or_silent(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "CONNECT_S", 1.0)
    with closing(socket.create_server((HERE, 0))) as free:
        closed = free.getsockname()[1]
    with (
        serving(says(VERSION)) as ssh_port,
        serving(says(b"")) as mute,
        serving(says(b"", then="close")) as short,
    ):
        asked = (closed, silent, ssh_port, mute, short)
        found = {one.port: one for one in look_at_ports([HERE], asked, time.monotonic() + PATIENCE_S)}
    assert {port: found[port].answer for port in asked} == {
        closed: Answer.CLOSED,
        silent: Answer.SILENT,
        ssh_port: Answer.OPEN,
        mute: Answer.OPEN,
        short: Answer.OPEN,
    }
    assert [port for port in asked if found[port].is_ssh] == [ssh_port]
    assert found[ssh_port].source == HERE


def test_port_that_has_answered_is_open_however_late_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "CONNECT_S", 0.0)
    with serving(says(b"")) as port:
        (found,) = look_at_ports([HERE], [port], time.monotonic() + PATIENCE_S)
    assert found.answer is Answer.OPEN


def test_port_that_answers_over_ipv6_alone_is_seen() -> None:
    with serving(says(VERSION), "::1") as port:
        found = look_at_ports([HERE, "::1"], [port], time.monotonic() + PATIENCE_S)
    assert {one.address: one.answer for one in found} == {HERE: Answer.CLOSED, "::1": Answer.OPEN}


def test_second_server_that_only_the_node_names_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "SAMPLE", ())
    with serving(offers("publickey")) as port, serving(offers("password")) as other:
        way = Route(HERE, port, "ops", HERE)
        seen = look.look(
            way, lambda: Expected(None, ()), lambda: Claims(listening=(other,), accounts=("games",))
        )
    main, second = seen.servers
    assert set(main.methods) == {"ops", "root", look.NOBODY, "games"}
    assert (second.port, second.methods["root"]) == (other, ("password",))


def test_look_goes_as_far_as_it_can_before_there_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ports are waited for while the node is still read."""
    asked, begun = [], threading.Event()

    def look_at(_addresses: object, wanted: set[int], _deadline: float) -> list[Port]:
        asked.append(wanted)
        if 2222 in wanted:
            begun.set()
        return []

    def planned() -> Expected:
        assert begun.wait(PATIENCE_S)
        assert {22} in asked
        return Expected(None, ())

    monkeypatch.setattr(look, "SAMPLE", (22, 2222))
    monkeypatch.setattr(look, "look_at_ports", look_at)
    assert look.look(Route(HERE, 22, "ops", HERE), planned, lambda: Claims(listening=(22, 99))).problem == ""
    assert sorted(map(sorted, asked)) == [[], [22], [99], [2222]]


def test_server_that_greets_late_is_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "SAMPLE", ())
    serve, connections = offers("publickey"), itertools.count()

    def late(connection: socket.socket) -> None:
        if next(connections):
            serve(connection)
        else:
            says(b"")(connection)  # to the look at ports

    with serving(late) as port:
        seen = look.look(Route(HERE, port, "ops", HERE), lambda: Expected(None, ()), Claims)
    assert seen.servers[0].methods["ops"] == ("publickey",)


@pytest.mark.component
def test_node_behind_another_is_asked_through_the_proxy() -> None:
    """And none of its ports is looked at: its address may be another machine's here."""
    with serving(offers("publickey")) as port:
        program = f"import socket,sys,threading,os\ns=socket.create_connection(('{HERE}',{port}))\n" + (
            "def up():\n while d:=os.read(0,4096): s.sendall(d)\n"
            "threading.Thread(target=up,daemon=True).start()\nwhile d:=s.recv(4096): os.write(1,d)\n"
        )
        way = Route("192.0.2.9", 22, "ops", "x", (), ("python3", "-c", program), "gpu01")
        seen = look.look(way, lambda: Expected(None, ()), Claims)
    assert set(seen.servers[0].methods) == {"ops", "root"}
    assert (seen.ports, seen.through) == ((), "gpu01")
