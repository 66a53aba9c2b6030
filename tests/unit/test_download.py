"""Keys are fetched the way that the node's package manager fetches packages, above all through its proxy."""

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible.module_utils.temper.packaging import download as downloads
from ansible.module_utils.temper.packaging.download import (
    DownloadError,
    dnf_proxies,
    download,
    without_credentials,
)
from ansible.module_utils.temper.packaging.repositories import normal_uri

from tests.unit.each import each
from tests.unit.serving import Silent, running

Says = Callable[..., None]

# Nobody answers under this name: whoever gets the key has asked the proxy.
URL = "http://keys.invalid/key"
LIMIT_BYTES = 1000


class Proxy(ThreadingHTTPServer):
    """Answers every request itself, as a proxy for hosts that no name server knows."""

    def __init__(self) -> None:
        self.login = ""
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Sender(ThreadingHTTPServer):
    """Counts what it sends, and what it was about to send when nobody listened any more."""

    daemon_threads = True
    sent = 0


class Endless(Silent, BaseHTTPRequestHandler):
    """Sends for as long as somebody listens: as fast as it can, or a byte now and then."""

    server: Sender

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                if "slow" in self.path:
                    self.wfile.write(b"a")
                    time.sleep(0.02)
                else:
                    self.server.sent += 1 << 20
                    self.wfile.write(b"a" * (1 << 20))


@pytest.fixture
def endless() -> Iterator[Sender]:
    """A server whose answers have no end."""
    with running(Sender(("127.0.0.1", 0), Endless)) as server:
        yield server


class Handler(Silent, BaseHTTPRequestHandler):
    """Notes what is asked for, and gives the key to whoever has the login."""

    server: Proxy

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        login = base64.b64encode(self.server.login.encode()).decode()
        if login and self.headers["Proxy-Authorization"] != f"Basic {login}":
            self.send_error(407)
            return
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"the key")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with running(Proxy()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_other_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def apt_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Give apt these lines of configuration."""

    def write(*lines: str) -> None:
        path = tmp_path / "apt.conf"
        path.write_text("".join(f"{line}\n" for line in lines))
        monkeypatch.setenv("APT_CONFIG", str(path))

    write()
    return write


@pytest.fixture
def dnf_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Give dnf these lines of configuration."""
    path = tmp_path / "dnf.conf"
    monkeypatch.setattr(downloads, "DNF_CONFIGURATION", path)

    def write(*lines: str) -> None:
        path.write_text("".join(f"{line}\n" for line in ("[main]", "gpgcheck=1", *lines)))

    return write


needs_apt = pytest.mark.skipif(not downloads.APT_HELPER.exists(), reason="this is no Debian: it has no apt")


@pytest.mark.component
@needs_apt
def test_apts_proxy_is_used(proxy: Proxy, apt_says: Says) -> None:
    apt_says(f'Acquire::http::Proxy "http://{proxy.address}";')
    assert download(URL, "apt", LIMIT_BYTES) == b"the key"
    assert proxy.asked == [URL]


@pytest.mark.component
@needs_apt
def test_apts_proxy_for_one_host_is_used_with_its_login(proxy: Proxy, apt_says: Says) -> None:
    proxy.login = "node:s3cret"
    apt_says(f'Acquire::http::Proxy::keys.invalid "http://node:s3cret@{proxy.address}";')
    assert download(URL, "apt", LIMIT_BYTES) == b"the key"


@pytest.mark.component
@needs_apt
def test_a_host_that_apt_asks_directly_is_asked_directly(proxy: Proxy, apt_says: Says) -> None:
    # It is the server that is asked, and sees no address with a host in its request.
    apt_says('Acquire::http::Proxy "http://127.0.0.1:1";', 'Acquire::http::Proxy::127.0.0.1 "DIRECT";')
    assert download(f"http://{proxy.address}/key", "apt", LIMIT_BYTES) == b"the key"
    assert proxy.asked == ["/key"]


@pytest.mark.component
@needs_apt
def test_a_proxy_that_refuses_is_told_without_its_login(proxy: Proxy, apt_says: Says) -> None:
    proxy.login = "node:s3cret"
    apt_says(f'Acquire::http::Proxy "http://node:wr0ng@{proxy.address}";')
    with pytest.raises(DownloadError) as refusal:
        download("http://me:pa55@keys.invalid/key", "apt", LIMIT_BYTES)
    assert "407" in str(refusal.value)
    assert "keys.invalid" in str(refusal.value)
    assert not any(word in str(refusal.value) for word in ("wr0ng", "pa55"))


@pytest.mark.component
@needs_apt
def test_an_answer_without_an_end_fills_no_disk(endless: Sender, apt_says: Says) -> None:
    with contextlib.suppress(DownloadError):
        download(f"http://127.0.0.1:{endless.server_port}/key", "apt", LIMIT_BYTES)
    # With each try, and what is on its way.
    assert 0 < endless.sent < 64 << 20


def test_an_answer_that_trickles_has_an_end(endless: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LIMIT_S", 0.5)
    with pytest.raises(DownloadError, match=r"within 0\.5 s"):
        download(f"http://127.0.0.1:{endless.server_port}/slow", "dnf", 1 << 20)


@pytest.mark.component
@needs_apt
def test_no_more_is_read_than_wanted(proxy: Proxy, apt_says: Says) -> None:
    assert download(f"http://{proxy.address}/key", "apt", 3) == b"the"


def test_dnfs_proxy_is_used_with_its_login(proxy: Proxy, dnf_says: Says) -> None:
    proxy.login = "node:s3:cret@home"
    dnf_says(f"proxy=http://{proxy.address}", "proxy_username = node", "proxy_password = s3:cret@home")
    assert download(URL, "dnf", LIMIT_BYTES) == b"the key"
    assert proxy.asked == [URL]


def test_dnfs_proxy_that_refuses_is_told_without_its_login(proxy: Proxy, dnf_says: Says) -> None:
    proxy.login = "node:s3cret"
    dnf_says(f"proxy=http://node:wr0ng@{proxy.address}")
    with pytest.raises(DownloadError, match="407") as refusal:
        download("http://me:pa55@keys.invalid/key", "dnf", LIMIT_BYTES)
    assert not any(word in str(refusal.value) for word in ("wr0ng", "pa55"))


@pytest.mark.parametrize("lines", [(), ("proxy=",), ("proxy=_none_",)])
def test_without_a_proxy_of_dnf_the_environment_counts(
    proxy: Proxy, dnf_says: Says, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    dnf_says(*lines)
    monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
    assert download(URL, "dnf", LIMIT_BYTES) == b"the key"


def test_dnfs_proxy_is_nobody_elses(proxy: Proxy, dnf_says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    dnf_says("proxy=http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
    with pytest.raises(DownloadError):
        download(URL, "dnf", LIMIT_BYTES)
    assert download(URL, "other", LIMIT_BYTES) == b"the key"


def test_a_proxy_without_a_scheme_is_an_http_proxy(tmp_path: Path) -> None:
    path = tmp_path / "dnf.conf"
    path.write_text("[main]\nproxy=proxy.example.com:3128\n")
    assert dnf_proxies(path)["https_proxy"] == "http://proxy.example.com:3128"


@each(None, "proxy=http://proxy.example.com\n", "[repo]\nproxy=http://other\n")
def test_a_configuration_without_a_main_section_names_no_proxy(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "dnf.conf"
    if text is not None:
        path.write_text(text)
    assert dnf_proxies(path) == {}


@each(
    ("http://a:b@one/x and https://c@two, mail me@three", "http://one/x and https://two, mail me@three"),
    ("401 for http://a:p@ss@one:80/x@y", "401 for http://one:80/x@y"),
)
def test_credentials_are_taken_out_of_every_address(text: str, said: str) -> None:
    assert without_credentials(text) == said


def test_addresses_are_the_same_whatever_the_password_is() -> None:
    assert normal_uri("https://a:p@ss@One/x/") == normal_uri("https://b:c@one/x") == "https://one/x"


# As apt 2.6 (GnuTLS) and 3.0 (OpenSSL) say it on nodes without certificates, and apt 2.6 of a clock.
UNKNOWN = (
    "Certificate verification failed: The certificate is NOT trusted. The certificate issuer is unknown."
)
REFUSED = "SSL connection failed: error:0A000086:SSL routines::certificate verify failed / Success"
EARLY = "The certificate chain uses not yet valid certificate."


@each(
    (UNKNOWN, False, "ca-certificates"),
    (REFUSED, False, "ca-certificates"),
    (REFUSED, True, "mirror"),
    (EARLY, False, "date -u"),
    ("404  Not Found", False, "mirror"),
)
def test_what_is_said_of_a_repository_leads_to_what_to_do(said: str, authorities: bool, words: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "AUTHORITIES", (Path("/" if authorities else "/nowhere"),))
        assert words in downloads.remedy(said)
