"""Whom to tell, and how: read from YAML. Secrets are in files of their own."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from temper.base.options import OptionsError, Wrong, items, load, read_entry, read_fields, text, whole, word
from validation.model.contract import StringEnum

#: A name of a header (RFC 9110, 5.6.2); an address without what would begin another header or address.
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
ADDRESS = re.compile(r"[^\s@<>,;:\"()\x00-\x20\x7f-\uffff]+(@[A-Za-z0-9.-]+|@\[[0-9A-Fa-f:.]+\])?")
#: Headers that the message itself decides.
OWN_HEADERS = ("content-type", "content-length", "host")
LOCAL_NAMES = ("localhost", "localhost.localdomain")
MOST_SECRET_BYTES = 8192
#: How long a message may take: the check that it is of has ended, and its unit waits.
MOST_SECONDS = 300
READABLE_BY_OTHERS = 0o004


class Tls(StringEnum):
    """How a mail server is spoken to: TLS after STARTTLS, TLS from the beginning, none."""

    STARTTLS = "starttls"
    SMTPS = "smtps"
    NONE = "none"


#: RFC 6409 and 8314; without TLS, the mail server of this machine.
PORTS = {Tls.STARTTLS: 587, Tls.SMTPS: 465, Tls.NONE: 25}


@dataclass(frozen=True)
class Webhook:
    """Where to POST. `header` carries `secret`; the URL may be a secret itself, so neither is ever shown."""

    url: str = field(repr=False)
    header: str
    secret: str = field(repr=False)
    timeout_s: int
    context: ssl.SSLContext = field(repr=False, compare=False)

    @property
    def place(self) -> str:
        """Return what may be said of the URL."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class Mail:
    """Which server takes the mail, from whom and for whom; `user` is empty where it asks for no password."""

    server: str
    port: int
    tls: Tls
    sender: str
    to: tuple[str, ...]
    user: str
    password: str = field(repr=False)
    timeout_s: int
    context: ssl.SSLContext = field(repr=False, compare=False)

    @property
    def place(self) -> str:
        """Return the server's name for people."""
        return f"{self.server}:{self.port}"


@dataclass(frozen=True)
class Settings:
    """The channels, and what the fleet is called in messages; this machine's name where that is empty."""

    webhook: Webhook | None
    mail: Mail | None
    fleet: str

    @property
    def channels(self) -> dict[str, Webhook | Mail]:
        """Return the channels by their names in the file."""
        return {
            name: one for name, one in (("webhook", self.webhook), ("mail", self.mail)) if one is not None
        }


def read(path: Path) -> Settings:
    """Read the settings with all secrets that they name. Raises OptionsError."""
    content = load(path, "settings of notifications", secret=True)
    problems: list[str] = []
    found = read_fields(content, READERS, "settings:", problems, secret=True)
    if not problems and not found.keys() & {"webhook", "mail"}:
        problems.append("expected webhook, mail, or both, found neither")
    if problems:
        raise OptionsError([f"{path}: {problem}" for problem in problems])
    return Settings(found.get("webhook"), found.get("mail"), found.get("fleet", ""))


def _webhook(value: Any) -> Webhook:
    found = read_entry(value, WEBHOOK, "webhook", (), secret=True)
    if ("url" in found) == ("url_file" in found):
        both = "both" if "url" in found else "neither"
        raise OptionsError([f"webhook: expected url or url_file, found {both}"])
    if "header" in found and "secret_file" not in found:
        raise OptionsError(["webhook.header: expected with secret_file, whose content it carries"])
    return Webhook(
        found.get("url") or _url(found["url_file"], "webhook.url_file: expected a file with "),
        found.get("header", "Authorization"),
        found.get("secret_file", ""),
        found.get("timeout_s", 10),
        found.get("ca_file") or ssl.create_default_context(),
    )


def _mail(value: Any) -> Mail:
    found = read_entry(value, MAIL, "mail", ("server", "from", "to"), secret=True)
    tls, problems = found.get("tls", Tls.STARTTLS), []
    if ("user" in found) != ("password_file" in found):
        problems.append("mail: expected user and password_file together, found one of them")
    if tls is Tls.NONE and not is_local(found["server"]):
        problems.append(
            f"mail.tls: expected {Tls.STARTTLS} or {Tls.SMTPS}, because {found['server']} is another "
            f"machine, found {tls}"
        )
    if tls is Tls.NONE and "user" in found:
        problems.append(f"mail.user: expected with {Tls.STARTTLS} or {Tls.SMTPS}, found tls: {tls}")
    if problems:
        raise OptionsError(problems)
    return Mail(
        found["server"],
        found.get("port", PORTS[tls]),
        tls,
        found["from"],
        found["to"],
        found.get("user", ""),
        found.get("password_file", ""),
        found.get("timeout_s", 30),
        found.get("ca_file") or ssl.create_default_context(),
    )


def is_local(host: str) -> bool:
    """Return whether a name or address is this machine's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOCAL_NAMES


def _url(value: Any, expected: str = "webhook.url: expected ") -> str:
    """Return a URL that is right. Raises OptionsError, without the URL in it."""
    wrong = OptionsError(
        [f"{expected}a URL with https, or with http to this machine, without a name or password in it"]
    )
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise wrong
    try:
        found = urlsplit(value)
        host, _ = found.hostname, found.port
    except ValueError:
        raise wrong from None
    if not host or "@" in found.netloc:
        raise wrong
    if found.scheme != "https" and not (found.scheme == "http" and is_local(host)):
        raise wrong
    return value


def _secret(value: Any) -> str:
    """Return the content of a file that only its owner and group may read. Raises Wrong."""
    path = Path(text(value))
    try:
        with path.open("rb") as file:
            mode = path.stat().st_mode
            content = file.read(MOST_SECRET_BYTES + 1)
    except OSError as error:
        raise Wrong(f"a file that can be read ({error.strerror})") from None
    if mode & READABLE_BY_OTHERS:
        raise Wrong(f"a file that other accounts cannot read (chmod o-rwx {path})")
    try:
        found = content.decode("ascii").rstrip("\r\n")
    except UnicodeDecodeError:
        found = ""
    if not found or not found.isprintable() or len(content) > MOST_SECRET_BYTES:
        raise Wrong(f"a file with one line of at most {MOST_SECRET_BYTES} printable ASCII characters")
    return found


def _authorities(value: Any) -> ssl.SSLContext:
    path = text(value)
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise Wrong(f"a file of certificates in PEM ({error.strerror or error})") from None


def _header(value: Any) -> str:
    if not isinstance(value, str) or not HEADER.fullmatch(value) or value.lower() in OWN_HEADERS:
        raise Wrong("the name of a header such as Authorization")
    return value


def _address(value: Any) -> str:
    if not isinstance(value, str) or not ADDRESS.fullmatch(value):
        raise Wrong("an address such as ops@example.com")
    return value


def _host(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.:-]+", value):
        raise Wrong("the name or address of a host; port: has its port")
    return value


WEBHOOK: Mapping[str, Callable[[Any], Any]] = {
    "url": _url,
    "url_file": _secret,
    "header": _header,
    "secret_file": _secret,
    "ca_file": _authorities,
    "timeout_s": whole(1, "seconds", MOST_SECONDS),
}
MAIL: Mapping[str, Callable[[Any], Any]] = {
    "server": _host,
    "port": whole(1, "a port", 65535),
    "tls": word(Tls),
    "from": _address,
    "to": items("addresses", _address, some=True),
    "user": text,
    "password_file": _secret,
    "ca_file": _authorities,
    "timeout_s": whole(1, "seconds", MOST_SECONDS),
}
READERS: Mapping[str, Callable[[Any], Any]] = {"fleet": text, "webhook": _webhook, "mail": _mail}
