"""What a node itself says of its ways in (module_utils/temper/access/self_report.py), read and bounded."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from temper.plan import role_variables  # noqa: F401 - makes module_utils/ importable
from temper.plan.convert import build, from_node

# isort: split
from ansible.module_utils.temper.access.self_report import ACCOUNT

MOST = 256
#: Accounts and host keys that are looked for.
MOST_ACCOUNTS = 8
KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/=]{16,4096}", re.ASCII)


class ClaimsError(ValueError):
    """It has another form than expected; the message says where."""


@dataclass(frozen=True)
class Claims:
    """The address that this machine comes from, as the node sees it; TCP ports on which something listens.

    `accounts` has one of each kind that sshd's Match lines tell apart, `host_keys` are type and base64,
    `methods` is sshd's AuthenticationMethods. Empty is what the node does not say.
    """

    client: str = ""
    listening: tuple[int, ...] = ()
    accounts: tuple[str, ...] = ()
    host_keys: tuple[str, ...] = ()
    methods: str = ""


def read_claims(said: object) -> Claims:
    """Return what a node says. Raises ClaimsError."""
    if not isinstance(said, dict):
        raise ClaimsError(f"expected an object, found {type(said).__name__}")
    try:
        found: Claims = build(Claims, from_node(said, "self_report"), "self_report")
    except ValueError as error:
        raise ClaimsError(str(error)) from None
    try:
        ipaddress.ip_address(found.client or "::")
    except ValueError:
        raise ClaimsError(f"self_report.client: expected an address, found {found.client[:60]!r}") from None
    if strange := [port for port in found.listening if not 0 < port < 1 << 16]:
        raise ClaimsError(f"self_report.listening: expected ports from 1 to 65535, found {strange[0]}")
    for texts, form in ((found.accounts, ACCOUNT), (found.host_keys, KEY)):
        if len(texts) > MOST_ACCOUNTS or not all(map(form.fullmatch, texts)):
            raise ClaimsError(f"self_report: expected at most {MOST_ACCOUNTS} names, found {str(texts)[:60]}")
    if len(found.listening) > MOST:
        raise ClaimsError(
            f"self_report.listening: expected at most {MOST} ports, found {len(found.listening)}"
        )
    return found
