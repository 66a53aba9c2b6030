"""Fetch a small file the way that the node's package manager would: its proxies, certificates and logins.

A repository that apt or dnf reaches through a proxy which only their own configuration names has its signing
key behind that proxy, too.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit

from ansible.module_utils.temper import process

APT_HELPER = Path("/usr/lib/apt/apt-helper")
DNF_CONFIGURATION = Path("/etc/dnf/dnf.conf")
TIMEOUT_S = 30
# For one small file with all tries: apt's own limits are for silence, and a server may trickle for ever.
LIMIT_S = 180
# apt tries again by itself, longer each time; one more try is enough to be told.
RETRIES = 1
# What apt may write: a longer file fails.
LARGEST_FILE_BYTES = 4 << 20
# Up to the last @ before a slash: a password may have one.
CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
# What Debian without its standard utilities lacks; Enterprise Linux has the latter.
AUTHORITIES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))
# apt of a Release file, and GnuTLS and OpenSSL of a certificate.
TIMED = re.compile("not valid yet|not yet valid|is expired|expired certificate")


class DownloadError(Exception):
    """A file cannot be fetched; the message says why, and has no passwords."""


def remedy(said: str) -> str:
    """Return what to do about a repository that cannot be read, by what is said of it."""
    if TIMED.search(said):
        return "Compare the node's clock (date -u) with yours; if it is right, the repository is out of date."
    if "certificate" in said.lower() and not any(path.exists() for path in AUTHORITIES):
        return "The node knows no authority of certificates: apt-get install ca-certificates there."
    return (
        "Check its address and key, and the node's proxy, DNS and clock; or point "
        "nvidia_stack_*_repository_url at a mirror."
    )


def without_credentials(text: str) -> str:
    """Return the text with the user names and passwords of its addresses taken out."""
    return CREDENTIALS.sub("", text)


def download(url: str, kind: str, limit_bytes: int) -> bytes:
    """Return the first bytes of a file, fetched like a package of an `apt` or `dnf` repository.

    Raises:
        DownloadError: it cannot be had.
    """
    if kind == "apt" and url.startswith(("http://", "https://")) and APT_HELPER.exists():
        return with_apt(url, limit_bytes)
    # Here, because few executions download anything, and a node compiles whatever it imports.
    from ansible.module_utils.urls import open_url

    try:
        proxies = dnf_proxies(DNF_CONFIGURATION) if kind == "dnf" else {}
        with (
            ended(LIMIT_S),
            environment(proxies),
            contextlib.closing(open_url(url, timeout=TIMEOUT_S)) as file,
        ):
            return bytes(file.read(limit_bytes))
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise DownloadError(without_credentials(str(error))) from error


def with_apt(url: str, limit_bytes: int) -> bytes:
    """Let apt fetch it: all kinds of proxies that it knows, `auth.conf`, authorities of its own."""
    with tempfile.TemporaryDirectory(prefix="temper-download-") as directory:
        # apt downloads as this user, who has none of root's rights.
        with contextlib.suppress(LookupError, PermissionError):
            shutil.chown(directory, "_apt")
        target = Path(directory) / "file"
        options = {
            "Acquire::Retries": RETRIES,
            "Acquire::http::Timeout": TIMEOUT_S,
            "Acquire::https::Timeout": TIMEOUT_S,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        # A server may send for as long as it likes.
        limits = ["prlimit", f"--fsize={max(limit_bytes, LARGEST_FILE_BYTES)}", "--"]
        command = [*limits, str(APT_HELPER), *words, "download-file", url, str(target)]
        try:
            completed = process.complete(command, LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DownloadError(f"apt has not fetched it within {LIMIT_S} s") from None
        if completed.returncode or not target.is_file():
            raise DownloadError(apts_reason(completed.stdout + completed.stderr))
        with target.open("rb") as stream:
            return stream.read(limit_bytes)


def apts_reason(output: str) -> str:
    """Return why apt could not fetch a file, in its own words."""
    lines = [" ".join(line[3:].split()) for line in output.splitlines() if line.startswith("E: ")]
    told = [line for line in lines if line != "Download Failed"] or [" ".join(output.split())[-500:]]
    return without_credentials("; ".join(told))


def dnf_proxies(path: Path) -> dict[str, str]:
    """Return the environment that gives Python the proxy of dnf's configuration; empty without one."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, configparser.Error):
        # dnf itself says what is wrong with its configuration.
        return {}
    main = parser["main"] if parser.has_section("main") else {}
    proxy = main.get("proxy", "").strip()
    if not proxy or proxy == "_none_":
        return {}
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    user = main.get("proxy_username", "").strip()
    if user and "@" not in parts.netloc:
        login = f"{quote(user, safe='')}:{quote(main.get('proxy_password', '').strip(), safe='')}"
        parts = parts._replace(netloc=f"{login}@{parts.netloc}")
    address = urlunsplit(parts)
    return {"http_proxy": address, "https_proxy": address}


@contextlib.contextmanager
def ended(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError where the body takes longer: a socket's own limit is for silence."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it has not come to an end within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have these values in the environment for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
