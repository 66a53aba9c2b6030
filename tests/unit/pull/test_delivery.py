"""Results on their way: a real server with TLS, and what an ssh would be given."""

import contextlib
import http.server
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pull import delivery
from pull.configuration import Configuration
from pull.delivery import DeliveryError, deliver
from pull.shared import PROGRAMS
from tests.unit.executables import executable
from tests.unit.notify.servers import certificate, server_side, serving
from tests.unit.pull.origin import configuration, origin
from tests.unit.serving import Silent

pytestmark = pytest.mark.component


class Server(Silent, http.server.BaseHTTPRequestHandler):
    """Keeps what is put, or answers as a test says."""

    taken: dict[str, tuple[str, str]]
    status = 201

    def do_PUT(self) -> None:
        """Keep token and body by the path."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.taken[self.path] = (self.headers.get("Authorization", ""), body)
        self.send_response(self.status)
        if self.status == 307:
            self.send_header("Location", "https://127.0.0.1:1/elsewhere")
        self.end_headers()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[type[Server], Configuration]]:
    pair = certificate(tmp_path, "IP:127.0.0.1")
    kind = type("Kept", (Server,), {"taken": {}})
    (tmp_path / "token").write_text("s3cret\n")
    with serving(kind, server_side(pair)) as port:
        yield (
            kind,
            configuration(
                tmp_path,
                origin(tmp_path),
                report_to=f"https://127.0.0.1:{port}/pulled/",
                report_ca_file=str(pair[0]),
                report_token_file=str(tmp_path / "token"),
            ),
        )


def changed(wanted: Configuration, **values: str) -> Configuration:
    return type(wanted)(**{**vars(wanted), **values})


def test_a_result_is_put_under_the_nodes_name(served: tuple[type[Server], Configuration]) -> None:
    server, wanted = served
    deliver("{}\n", wanted)
    assert server.taken == {"/pulled/gpu01.json": ("Bearer s3cret", "{}\n")}


@pytest.mark.parametrize("status", [307, 403, 503])
def test_what_is_not_taken_is_told_without_the_token(
    served: tuple[type[Server], Configuration], status: int
) -> None:
    server, wanted = served
    server.status = status
    with pytest.raises(DeliveryError, match=str(status)) as caught:
        deliver("{}\n", wanted)
    assert "s3cret" not in str(caught.value)


def test_a_server_that_the_ca_does_not_know_gets_nothing(
    served: tuple[type[Server], Configuration],
) -> None:
    server, wanted = served
    with pytest.raises(DeliveryError):
        deliver("{}\n", changed(wanted, report_ca_file=""))
    assert server.taken == {}


def test_a_token_that_cannot_be_one_is_not_repeated(
    served: tuple[type[Server], Configuration], tmp_path: Path
) -> None:
    server, wanted = served
    (tmp_path / "token").write_text("s3cret\nand another\n")
    with pytest.raises(DeliveryError) as caught:
        deliver("{}\n", wanted)
    assert "s3cret" not in str(caught.value)
    assert server.taken == {}


class Garbage(Server):
    """No server of HTTP."""

    def do_PUT(self) -> None:
        """Answer with something else."""
        self.wfile.write(b"SSH-2.0-x\r\n")
        self.close_connection = True


def test_a_server_that_speaks_something_else_has_not_taken_it(
    served: tuple[type[Server], Configuration],
) -> None:
    kind, wanted = served
    kind.do_PUT = Garbage.do_PUT  # type: ignore[method-assign,assignment]
    with pytest.raises(DeliveryError, match="was not taken"):
        deliver("{}\n", wanted)


def test_a_server_that_answers_byte_by_byte_is_left_in_time(
    served: tuple[type[Server], Configuration], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, wanted = served

    def dribble(self: Server) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)

    kind.do_PUT = dribble  # type: ignore[method-assign]
    monkeypatch.setattr(delivery, "TIMEOUT_S", 0.5)
    with pytest.raises(DeliveryError, match=r"did not end within 0\.5 s"):
        deliver("{}\n", wanted)


@pytest.mark.parametrize(
    "address", ["https://h/a b", "https://[::1", "https://h:x/", "ssh://r@h:x", "ssh://"]
)
def test_an_address_that_is_none_is_one_sentence(tmp_path: Path, address: str) -> None:
    with pytest.raises(DeliveryError, match=r"pull_report_to|was not taken"):
        deliver("{}\n", configuration(tmp_path, origin(tmp_path), report_to=address))


@pytest.mark.parametrize("status", [0, 1])
def test_over_ssh_the_result_is_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    program = executable(
        tmp_path / "bin" / "ssh",
        f'printf "%s\\n" "$@" >{tmp_path}/words\ncat >{tmp_path}/given\n'
        f"echo no such account >&2\nexit {status}",
    )
    monkeypatch.setattr(delivery, "PROGRAMS", f"{program.parent}:{PROGRAMS}")
    wanted = configuration(
        tmp_path, origin(tmp_path), report_to="ssh://results@192.0.2.1:2222", report_ssh_key="/etc/key"
    )
    if status:
        with pytest.raises(DeliveryError, match="no such account"):
            deliver("{}\n", wanted)
    else:
        deliver("{}\n", wanted)
    words = (tmp_path / "words").read_text().split("\n")
    assert words[words.index("--") :][:4] == ["--", "results@192.0.2.1", "temper-pull-result", "gpu01"]
    assert {"StrictHostKeyChecking=yes", "BatchMode=yes", "2222", "/etc/key"} <= set(words)
    assert (tmp_path / "given").read_text() == "{}\n"
