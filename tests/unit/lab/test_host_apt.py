"""What the nodes take over of the host's way to Debian's packages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import host_apt
from tests.lab.process import LabError

MIRROR = "http://mirror.test/debian/"
SECURITY = "http://mirror.test/debian-security/"


class Host:
    """A host's apt, as far as this module asks it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.directory = directory
        self.targets: list[str] = []
        self.options = ""
        monkeypatch.setattr(host_apt, "_codename", lambda: "bookworm")
        monkeypatch.setattr(host_apt, "run", self.answer)
        for name in ("http_proxy", "https_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    def answer(self, command: list[str]) -> str:
        return self.options if command[0] == "apt-config" else "".join(f"{line}\n" for line in self.targets)

    def add(self, origin: str, uri: str, suite: str, component: str, entry: str = "/dev/null.list:1") -> None:
        """Let apt list an index of a source."""
        self.targets.append(f"{origin}|{uri}|{suite}|{component}|{entry}")

    def file(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    host = Host(monkeypatch, tmp_path)
    sources = host.file("debian.list", f"deb {MIRROR} bookworm main\n")
    host.add("Debian", MIRROR, "bookworm", "main", f"{sources}:1")
    host_apt.read.cache_clear()
    yield host
    host_apt.read.cache_clear()


def test_sources_of_the_other_release_keep_mirror_suites_and_components(host: Host) -> None:
    text = f"Types: deb\nURIs: {SECURITY}\nSuites: bookworm-security\nSigned-By: /etc/keys/ours.gpg\n"
    entry = f"{host.file('security.sources', text)}:1"
    for component in ("main", "non-free-firmware"):
        host.add("Debian", SECURITY, "bookworm-security", component, entry)

    assert host_apt.read().sources_text("trixie") == (
        f"Types: deb\nURIs: {MIRROR}\nSuites: trixie\nComponents: main\nSigned-By: {host_apt.KEYRING}\n"
        "\n"
        f"Types: deb\nURIs: {SECURITY}\nSuites: trixie-security\nComponents: main non-free-firmware\n"
        "Signed-By: /etc/keys/ours.gpg\n"
    )


@pytest.mark.parametrize(
    ("origin", "suite"),
    [
        ("Docker", "bookworm"),
        ("Debian", "bookworm-backports"),
        ("Debian", "trixie"),
        ("vendor", "vendor-bookworm"),
    ],
)
def test_other_repositories_are_not_taken_over(host: Host, origin: str, suite: str) -> None:
    host.add(origin, "http://other.test/", suite, "main")

    assert [source.uri for source in host_apt.read().sources] == [MIRROR]


def test_sources_whose_lists_were_never_fetched_count(host: Host) -> None:
    host.targets = [line.replace("Debian|", "$(ORIGIN)|") for line in host.targets]

    assert [source.uri for source in host_apt.read().sources] == [MIRROR]


def test_host_without_a_source_of_its_release_is_refused(host: Host) -> None:
    host.targets.clear()

    with pytest.raises(LabError, match="has no source of bookworm main"):
        host_apt.read()


STANZAS = "# ours\n\nURIs: a\nSigned-By: /etc/keys/a.gpg\n\nURIs: b\nSigned-By: /etc/keys/b.gpg\n"


@pytest.mark.parametrize(
    ("name", "text", "entry", "keyring"),
    [
        (
            "x.list",
            f"deb [signed-by=/etc/keys/a.gpg] {MIRROR} bookworm main\n",
            1,
            "/etc/keys/a.gpg",
        ),
        ("x.list", f"deb {MIRROR} bookworm main\n", 1, host_apt.KEYRING),
        ("x.sources", STANZAS, 2, "/etc/keys/b.gpg"),
    ],
)
def test_keyring_of_an_entry_is_kept(host: Host, name: str, text: str, entry: int, keyring: str) -> None:
    host.targets = [f"Debian|{MIRROR}|bookworm|main|{host.file(name, text)}:{entry}"]

    assert [source.keyring for source in host_apt.read().sources] == [keyring]


def test_only_options_that_lead_to_the_mirror_are_taken_over(host: Host) -> None:
    host.options = (
        'Acquire::http::Proxy "http://proxy.test:3128";\nAcquire::Check-Valid-Until "false";\n'
        'Acquire::GzipIndexes "true";\nDPkg::Post-Invoke "rm";\nAcquire::http "";\n'
    )

    assert host_apt.read().options_text() == (
        'Acquire::http::Proxy "http://proxy.test:3128";\nAcquire::Check-Valid-Until "false";\n'
    )


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (
            'Acquire::http::Proxy "http://127.0.0.1:3142";\n',
            "option Acquire::http::Proxy, http://127.0.0.1:3142",
        ),
        ('Acquire::http::Proxy "http://proxy.test:3142";\n', None),
    ],
)
def test_proxy_that_nodes_cannot_reach_is_refused(host: Host, option: str, sentence: str | None) -> None:
    host.options = option

    refusals = list(host_apt.read().unreachable())

    assert len(refusals) == (1 if sentence else 0)
    assert not sentence or sentence in refusals[0]


def test_mirror_that_is_a_directory_is_refused(host: Host) -> None:
    host.targets = [line.replace(MIRROR, "file:/srv/debian/") for line in host.targets]

    assert [line for line in host_apt.read().unreachable() if "file:/srv/debian/" in line]
