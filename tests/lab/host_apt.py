"""The host's way to Debian's packages: mirror, suites, components, keyring, options, proxies, certificates.

The nodes take all of it over, for their own release, so that they reach what the host reaches.
"""

import functools
import os
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.process import LabError, run

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

# A release's own suites; backports are no part of a bare server.
_SUFFIXES = ("", "-updates", "-security")

# What decides whether and how a mirror is reached. All other options are the host's own business.
_OPTIONS = re.compile(
    r"Acquire::((https?|ftp)::.+|Check-Valid-Until|Check-Date|Retries|ForceIPv[46]"
    r"|Allow(Insecure|Weak)Repositories)"
)
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Source:
    """A Debian repository: one suite of one mirror."""

    uri: str
    suffix: str
    components: tuple[str, ...]
    keyring: str


@dataclass(frozen=True)
class HostApt:
    """What the host's apt uses to reach Debian's packages."""

    sources: tuple[Source, ...]
    options: tuple[tuple[str, str], ...]
    proxies: tuple[tuple[str, str], ...]

    def sources_text(self, codename: str) -> str:
        """The sources of another release on the same mirror, as a deb822 file."""
        return "\n".join(
            f"Types: deb\nURIs: {source.uri}\nSuites: {codename}{source.suffix}\n"
            f"Components: {' '.join(source.components)}\nSigned-By: {source.keyring}\n"
            for source in self.sources
        )

    def mirror(self) -> tuple[str, int] | None:
        """Host and port of the mirror; None if apt reaches it through a proxy."""
        if self.proxies or any("proxy" in name.lower() for name, _ in self.options):
            return None
        url = urllib.parse.urlsplit(self.sources[0].uri)
        return (url.hostname, url.port or {"https": 443}.get(url.scheme, 80)) if url.hostname else None

    def unreachable(self) -> Iterator[str]:
        """Why nodes could not use what the host uses, a sentence each."""
        for what, url in (
            *(("apt's source", source.uri) for source in self.sources),
            *((f"apt's option {name}", value) for name, value in self.options if "proxy" in name.lower()),
            *((f"the proxy of {name}", value) for name, value in self.proxies if name != "no_proxy"),
        ):
            parts = urllib.parse.urlsplit(url)
            if parts.scheme not in ("http", "https", "") or parts.hostname in (
                "localhost",
                "127.0.0.1",
                "::1",
            ):
                yield f"The lab's nodes cannot reach {what}, {url}, which only exists on this machine."

    def options_text(self) -> str:
        """The options as an apt.conf file."""
        return "".join(f'{name} "{value}";\n' for name, value in self.options)


@functools.cache
def read() -> HostApt:
    """Read the host's settings.

    Raises:
        LabError: the host is no Debian, or has no source of its own release.
    """
    codename = _codename()
    found: dict[tuple[str, str, str], list[str]] = {}
    listing = run(
        [
            *("apt-get", "indextargets", "Created-By: Packages"),
            *("--format", "$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)"),
        ]
    )
    for line in listing.splitlines():
        # The origin is left as it was asked for while the repository's lists have not been fetched yet.
        origin, uri, suite, component, entry = line.split("|")
        suffix = suite.removeprefix(codename)
        if origin in ("Debian", "$(ORIGIN)") and suite.startswith(codename) and suffix in _SUFFIXES:
            components = found.setdefault((uri, suffix, entry), [])
            if component not in components:
                components.append(component)
    sources = tuple(
        Source(uri, suffix, tuple(components), _keyring(entry))
        for (uri, suffix, entry), components in found.items()
        if "main" in components
    )
    if not any(source.suffix == "" for source in sources):
        raise LabError(
            f"The lab takes Debian's mirror over from this machine's apt, which has no source of {codename} "
            "main; add one to /etc/apt/sources.list.d and run apt-get update."
        )
    return HostApt(sources, _options(), _proxies())


def extra_certificates() -> list[str]:
    """The certificates (PEM) that this host trusts beyond Debian's own, as behind an intercepting proxy."""
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    if not bundle.exists():
        return []
    debian = {
        certificate
        for path in Path("/usr/share/ca-certificates").rglob("*.crt")
        for certificate in _certificates(path)
    }
    local = Path("/usr/local/share/ca-certificates")
    candidates = [bundle, *sorted(local.rglob("*.crt"))]
    found = [certificate for path in candidates for certificate in _certificates(path)]
    return list(dict.fromkeys(certificate for certificate in found if certificate not in debian))


def _certificates(path: Path) -> list[str]:
    text = path.read_text(errors="replace")
    return re.findall(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", text)


def _codename() -> str:
    values = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line
    )
    if values.get("ID", "").strip('"') != "debian" or "VERSION_CODENAME" not in values:
        name = values.get("PRETTY_NAME", "an unknown system").strip('"')
        raise LabError(
            "The lab needs a Debian 12 or newer host, whose apt sources it takes over for the nodes; "
            f"this is {name}."
        )
    return values["VERSION_CODENAME"].strip('"')


def _keyring(entry: str) -> str:
    """The keyring file that a source names; `entry` is apt's FILE:NUMBER, of a line or of a deb822 stanza."""
    name, number = entry.rsplit(":", 1)
    text = Path(name).read_text()
    if name.endswith(".sources"):
        stanzas = [stanza for stanza in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")) if "URIs:" in stanza]
        match = re.search(r"^Signed-By:\s*(/\S+)", stanzas[int(number) - 1], re.MULTILINE | re.IGNORECASE)
    else:
        match = re.search(r"signed-by=(/[^\s\]]+)", text.splitlines()[int(number) - 1], re.IGNORECASE)
    return match[1] if match else KEYRING


def _options() -> tuple[tuple[str, str], ...]:
    lines = (re.fullmatch(r'(\S+) "(.*)";', line) for line in run(["apt-config", "dump"]).splitlines())
    return tuple(
        (match[1], match[2]) for match in lines if match and match[2] and _OPTIONS.fullmatch(match[1])
    )


def _proxies() -> tuple[tuple[str, str], ...]:
    values = {name: os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXY_VARIABLES}
    return tuple((name, value) for name, value in values.items() if value)
