"""How ssh reaches a host: asked of the real `ssh -G`, with files of its own."""

import shlex
import subprocess
import time
from pathlib import Path

import pytest

from temper.plan import ssh_turns
from temper.plan.ssh_client import Connection, Look, SshClient, files_jump, look, looks
from temper.plan.ssh_turns import Turn
from temper.plan.ssh_ways import Client, Hop, Way, way

pytestmark = pytest.mark.component

CONFIG = """
Host bastion
    HostName 192.0.2.1
    User jump
    Port 2201
Host inner
    HostName 192.0.2.2
    ProxyJump bastion
Host behind
    ProxyJump inner
Host *.lab
    ProxyCommand ssh -F {file} -W %h:%p inner
Host circle
    ProxyJump circle
Host *
    ControlMaster auto
    ControlPath {file}-%C
"""
BASTION = Hop(("bastion", "192.0.2.1"), 2201, "jump", forwards=True)
INNER = ("inner", "192.0.2.2")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    file.write_text(CONFIG.format(file=file))
    return file


def found(config: Path, host: str, *arguments: str) -> Way:
    one = SshClient().way(Connection(host, ("-F", str(config), "-o", "User=ops", *arguments)))
    assert one
    return one


@pytest.mark.parametrize(
    ("arguments", "hops"),
    [
        ("", ()),
        ("-o ProxyJump=none", ()),
        ("-J bastion", (BASTION,)),
        ("-o ProxyJump=me@bastion:7", (Hop(("bastion", "192.0.2.1"), 7, "me", True),)),
        ("-J me@[2001:db8::1]:7", (Hop(("2001:db8::1", "2001:db8::1"), 7, "me", True),)),
        ("-o ProxyCommand='ssh -F {config} -qW %h:%p bastion'", (BASTION,)),
        ("-o ProxyCommand='ssh -F {config} -W %h:%p -- bastion'", (BASTION,)),
        ("-o ProxyCommand='exec ssh -F {config} bastion -W [%h]:%p 2>/dev/null'", (BASTION,)),
        ("-o ProxyCommand='ssh -F none -p 7 -l %r 192.0.2.1 nc %h %p'", (Hop(("192.0.2.1",) * 2, 7, "ops"),)),
        (
            "-o ProxyCommand='ssh -F none -W %h:%p "
            '-o ProxyCommand="ssh -F none -W %%h:%%p a@192.0.2.1" b@192.0.2.2\'',
            (Hop(("192.0.2.1",) * 2, 22, "a", True), Hop(("192.0.2.2",) * 2, 22, "b", True)),
        ),
    ],
)
def test_hops(config: Path, arguments: str, hops: tuple[Hop, ...]) -> None:
    assert found(config, "node.example", *shlex.split(arguments.format(config=config))).hops == hops


@pytest.mark.parametrize("host", ["behind", "x.lab"])
def test_jump_hosts_one_behind_the_other(config: Path, host: str) -> None:
    one = found(config, host)
    assert [hop.names for hop in one.hops] == [BASTION.names, INNER]


@pytest.mark.parametrize(
    "command",
    ["nc -X connect -x gpu01:3128 %h %p", "socat - PROXY:gpu01:%h:%p,proxyport=3128", "sh -c 'nc gpu01 %p'"],
)
def test_a_proxy_that_is_no_ssh_may_be_any_machine_that_it_names(config: Path, command: str) -> None:
    (hop,) = found(config, "node.example", "-o", f"ProxyCommand={command}").hops
    assert "gpu01" in hop.names
    assert not hop.forwards


def test_a_proxy_leads_to_the_name_that_it_is_asked_for(config: Path) -> None:
    (hop,) = found(config, "node.example", "-o", "ProxyCommand=sh -c 'ssh -W [%h]:%p gpu01'").hops
    assert "node.example" not in hop.names


def test_an_ssh_that_nobody_can_read_here_forwards(config: Path) -> None:
    (hop,) = found(config, "x", "-o", "ProxyCommand=sh -c 'ssh -W %h:%p gpu01'").hops
    assert "gpu01" in hop.names
    assert hop.forwards


def test_a_circle_is_refused_by_ssh_itself(config: Path) -> None:
    assert SshClient().way(Connection("circle", ("-F", str(config)))) is None


def opened(command: str, config: Path) -> list[str]:
    """What ssh would make of each ssh of a command: the settings that share a connection."""
    words = shlex.split(command)
    asked = subprocess.run([words[0], "-G", *words[1:]], capture_output=True, text=True, check=True).stdout
    said = dict(line.split(" ", 1) for line in asked.splitlines() if " " in line)
    shared = [f"{said.get('controlmaster')} {said.get('controlpath')}"]
    inner = said.get("proxycommand")
    return [*shared, *(opened(inner, config) if inner else [])]


@pytest.mark.parametrize(
    ("host", "arguments"),
    [
        ("behind", ()),
        ("x.lab", ()),
        ("x", ("-o", "ProxyCommand=ssh -F {config} -S /run/shared -M -J bastion -W %h:%p inner")),
    ],
)
def test_no_leg_shares_a_connection(config: Path, host: str, arguments: tuple[str, ...]) -> None:
    """Although the file has all of them shared."""
    one = found(config, host, *(text.format(config=config) for text in arguments))
    assert opened(one.command, config) == ["false None", "false None"]
    assert "192.0.2.1" not in one.command  # names, so that the file's keys and users apply


def test_one_question_for_all_nodes_where_the_files_send_none_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host *\n    ServerAliveInterval 5\n")
    asked: list[str] = []

    class Counting(SshClient):
        def ask(self, arguments: object, host: str) -> Client | None:
            asked.append(host)
            return super().ask(arguments, host)  # type: ignore[arg-type]  # as it came

    nodes = {f"gpu{n}": Connection(f"192.0.2.{n}", ("-F", str(file), "-J", "gpu1")) for n in range(1, 100)}
    ways = Counting().ways(nodes)
    assert {name: one.host for name, one in ways.items() if one} == {n: c.host for n, c in nodes.items()}
    assert len(asked) < 5
    assert all(one and one.hops[0].names[0] == "gpu1" for one in ways.values())


@pytest.mark.parametrize(
    ("option", "jumps"),
    [
        ("proxycommand=nc %h %p", True),
        ("#ProxyJump gpu01", False),
        ("ProxyCommand /usr/lib/systemd/systemd-ssh-proxy %h %p", False),
    ],
)
def test_a_proxy_in_sshs_files_counts_but_systemds_own(tmp_path: Path, option: str, jumps: bool) -> None:
    (tmp_path / "config").write_text(f"Host vsock/*\n  {option}\n")
    assert files_jump([f"-F {tmp_path}/config", "-o 'unended"]) is jumps


def test_each_host_is_asked_for_where_a_file_goes_by_hosts(config: Path) -> None:
    nodes = {name: Connection(name, ("-F", str(config))) for name in ("a.lab", "b.example")}
    ways = SshClient().ways(nodes)
    assert {name: bool(one and one.hops) for name, one in ways.items()} == {"a.lab": True, "b.example": False}


def test_ssh_that_says_nothing(tmp_path: Path) -> None:
    assert SshClient().ways({"a": Connection("a", ("-F", str(tmp_path / "missing")))}) == {"a": None}


def test_answer_of_another_form() -> None:
    for text in ("", "hostname a\nport 0\n", "hostname a\nport x\n", "port 22\n"):
        with pytest.raises(ValueError, match="ssh -G"):
            Client.from_text(text)


def test_keywords_count_in_either_case() -> None:
    assert Client.from_text("Hostname a\nPort 22\n") == Client.from_text("hostname a\nport 22\n")


def test_depth_is_bounded() -> None:
    assert way((), "a", lambda _arguments, _host: Client("a", 22, "x", command="ssh -W %h:%p b"), 3)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("printf 'SSH-2.0-x\\r\\n'; sleep 60", Look(reached=True)),
        ("printf 'hello\\r\\nSSH-2.0-x\\r\\n'; sleep 60", Look(reached=True)),
        ("true", Look(reached=False)),
        ("printf HTTP; exit 1", Look(reached=False)),
    ],
)
def test_look(command: str, expected: Look) -> None:
    assert look(f"sh -c {shlex.quote(command)}") == expected


def test_a_way_that_is_forbidden_is_told_from_one_that_fails() -> None:
    said = "channel 0: open failed: administratively prohibited: open failed"
    script = f"sh -c {shlex.quote(f'echo {shlex.quote(said)} >&2; exit 1')}"
    commands = {"a": script, "b": "sh -c 'echo timed out >&2; exit 1'"}
    found = looks({name: Way("x", 22, command=command) for name, command in commands.items()})
    assert {name: one.forbidden for name, one in found.items()} == {"a": True, "b": False}
    assert "administratively prohibited" in found["a"].said


#: Says whether another one has begun and not been greeted yet.
ALONE = """
mkdir {folder}/begun || echo two at once >> {folder}/said
sleep 0.05; rmdir {folder}/begun; printf 'SSH-2.0-x\\r\\n'; sleep 60
"""


def test_looks_through_one_jump_host_begin_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those through others do not wait for them."""
    monkeypatch.setattr(ssh_turns, "folder", lambda: tmp_path / "turns")
    script = f"sh -c {shlex.quote(ALONE.format(folder=tmp_path))}"
    found = looks({str(number): Way("x", 22, (Hop(("jump",), 22),), script) for number in range(8)})
    assert {one.reached for one in found.values()} == {True}
    assert not (tmp_path / "said").exists()


def test_a_turn_ends_by_itself_and_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_turns, "folder", lambda: tmp_path)
    first = Turn("jump 22", 0)
    assert (first.taken, Turn("jump 22", 0).taken, Turn("other 22", 0).taken, Turn("", 0).taken) == (
        *(True, False, True, True),
    )
    first.end()
    monkeypatch.setattr(ssh_turns, "LONGEST_S", 0.01)
    with Turn("jump 22", 0) as second:
        assert second.taken
        assert Turn("jump 22", time.monotonic() + 60).taken


def test_without_a_place_for_its_lock_a_turn_is_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(ssh_turns, "folder", lambda: tmp_path / "file")
    assert [Turn("jump 22", 0).taken for _ in range(2)] == [True, True]
