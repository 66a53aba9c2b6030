#!/usr/bin/python3
"""sshd's settings in a drop-in that wins, proven against the effective configuration, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sshd_drop_in
short_description: A drop-in of sshd that wins, checked against what sshd makes of it
description:
  - Writes C(/etc/ssh/sshd_config.d/00-temper.conf), whose name sorts before cloud-init's, and reloads sshd.
  - Nothing is written before C(sshd -T) on the whole candidate configuration has shown every setting to be in
    effect for the account and address that Ansible comes from, and that account able to log in under it.
  - A change is undone by a timer on the node unless M(commit_confirm) confirms it through a new connection.
options:
  state:
    description: Whether the drop-in exists.
    type: str
    choices: [present, absent]
    default: present
  settings:
    description: Keywords of C(sshd_config) and values. A list becomes a line per item, an empty one none.
    type: dict
    default: {}
  settings_if_known:
    description: Like O(settings), for keywords that some OpenSSH do not have; there they are left out.
    type: dict
    default: {}
  algorithms:
    description: Keywords that hold algorithms, best first. Those that this OpenSSH lacks are left out.
    type: dict
    default: {}
  blocks:
    description: Criteria of a C(Match) block, as in C(Group data), and the settings that apply there.
    type: dict
    default: {}
  host_key_types:
    description:
      - Kinds of host keys to offer, of those that sshd has now. Keys of other kinds stay on the disk. RSA
        keys below 3072 bits are not offered. Without any, sshd's other settings decide.
    type: list
    elements: str
    choices: [ed25519, rsa, ecdsa]
    default: []
  minimum_modulus_bits:
    description: Groups of C(/etc/ssh/moduli) below this size are not used; 0 leaves them all.
    type: int
    default: 0
  banner:
    description: Text shown before a login.
    type: str
    default: ""
  user_ca_keys:
    description: Public keys of authorities whose certificates let users in.
    type: list
    elements: str
    default: []
  revoked_keys:
    description: Public keys that let nobody in, wherever else they are listed.
    type: list
    elements: str
    default: []
  overrides:
    description: Like O(settings), and stronger than all of the above. A keyword's case does not matter.
    type: dict
    default: {}
  rollback_after_s:
    description: Seconds until an unconfirmed change is undone.
    type: int
    default: 120
author: Temper developers
"""

EXAMPLES = r"""
- name: Allow keys only
  sshd_drop_in:
    settings:
      PasswordAuthentication: false
      AllowGroups: [sudo, users]
    algorithms:
      Ciphers: [aes256-gcm@openssh.com, aes128-gcm@openssh.com]
"""

RETURN = r"""
confirm:
  description: Whether a change is in effect and waits for its confirmation.
  returned: always
  type: bool
port:
  description: The port to connect to from now on, where sshd leaves the one of this connection.
  returned: always
  type: int
"""

import re
import tempfile
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.access.commit_confirm import ARGUMENTS, Change, CommandError, RefusedError, run
from ansible.module_utils.access.listeners import listeners
from ansible.module_utils.access.ssh_access import login_refusal, read_account
from ansible.module_utils.access.ssh_keys import parse_public_key, public_keys
from ansible.module_utils.access.ssh_login import ssh_login
from ansible.module_utils.access.sshd import (
    DROP_IN,
    MAIN,
    RELOAD_IN_SHELL,
    Sshd,
    is_active,
    listening_ports,
    ports_of_others,
    refuse_what_sshd_cannot_listen_on,
    reload_sshd,
)
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File

if TYPE_CHECKING:
    from ansible.module_utils.access.sshd import Effective

FOLDER = Path("/etc/ssh")
MODULI = FOLDER / "moduli"
# Files that settings of the drop-in refer to. Nothing that the distribution installed is changed.
BANNER = FOLDER / "temper_banner"
USER_CA_KEYS = FOLDER / "temper_user_ca_keys"
REVOKED_KEYS = FOLDER / "temper_revoked_keys"
STRONG_MODULI = FOLDER / "temper_moduli"
MINIMUM_RSA_HOST_KEY_BITS = 3072
MODULUS_SIZE_COLUMN = 4  # moduli(5): its number of bits, less one

# What a list for a whole fleet may name and a node may lack: its OpenSSH is older, or keeps to FIPS 140.
# Source: `ssh -Q kex|cipher|mac` of OpenSSH 10.0 (Debian 13), without what nobody should ask for.
ALGORITHMS = frozenset(
    {
        "mlkem768x25519-sha256",
        "sntrup761x25519-sha512",
        "sntrup761x25519-sha512@openssh.com",
        "curve25519-sha256",
        "curve25519-sha256@libssh.org",
        "diffie-hellman-group14-sha256",
        "diffie-hellman-group16-sha512",
        "diffie-hellman-group18-sha512",
        "diffie-hellman-group-exchange-sha256",
        "ecdh-sha2-nistp256",
        "ecdh-sha2-nistp384",
        "ecdh-sha2-nistp521",
        "aes128-ctr",
        "aes192-ctr",
        "aes256-ctr",
        "aes128-gcm@openssh.com",
        "aes256-gcm@openssh.com",
        "chacha20-poly1305@openssh.com",
        "hmac-sha2-256",
        "hmac-sha2-512",
        "hmac-sha2-256-etm@openssh.com",
        "hmac-sha2-512-etm@openssh.com",
        "umac-128@openssh.com",
        "umac-128-etm@openssh.com",
    }
)

HEADER = "# Managed by Temper. sshd takes the first value it reads, so this file's name sorts first.\n"

Settings = Mapping[str, list[str]]


def values(keyword: str, value: Any) -> list[str]:
    """Return a setting's value as sshd writes it, one string for each line."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", keyword) or keyword.lower() in ("match", "include"):
        raise RefusedError(
            f"{keyword!r} cannot be set here: expected a keyword of sshd_config(5). Blocks (Match) and more "
            f"files (Include) belong in a file of their own in {DROP_IN.parent}."
        )
    items = value if isinstance(value, list) else [value]
    texts = [
        {True: "yes", False: "no"}[item] if isinstance(item, bool) else str(item).strip() for item in items
    ]
    for text in texts:
        if not text or "\n" in text:
            raise RefusedError(f"{keyword}: expected a value in one line, found {text!r}.")
    return texts


def merge(*layers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Unite layers of settings; a later layer wins, whatever the case of its keyword."""
    merged: dict[str, tuple[str, list[str]]] = {}
    for layer in layers:
        for keyword, value in layer.items():
            merged[keyword.lower()] = (keyword, values(keyword, value))
    return {keyword: lines for keyword, lines in merged.values() if lines}


def check_criteria(blocks: Iterable[str]) -> None:
    """Raise RefusedError for criteria of a Match block that would begin another line."""
    for criteria in blocks:
        if len(criteria.splitlines()) != 1:
            raise RefusedError(f"Match: expected criteria in one line, found {criteria!r}.")


def known_algorithms(keyword: str, wanted: list[str], known: Iterable[str]) -> str:
    """Return the wanted algorithms that this OpenSSH knows, as the value of `keyword`."""
    known = set(known)
    usable = [name for name in wanted if name in known]
    if not usable:
        raise RefusedError(
            f"{keyword}: this node's OpenSSH knows none of {', '.join(wanted) or 'an empty list'}; "
            f"choose from the output of `ssh -Q {keyword}`."
        )
    # A typo must not leave the node, without a word, with less than was asked for.
    if strange := sorted(set(wanted) - known - ALGORITHMS):
        raise RefusedError(
            f"{keyword}: neither this node's OpenSSH nor any other that we know of has {', '.join(strange)}; "
            f"choose from the output of `ssh -Q {keyword}`."
        )
    return ",".join(usable)


def render(settings: Settings, blocks: Mapping[str, Settings] | None = None) -> str:
    """Return the drop-in's text. A block ends with the file that it stands in (sshd_config(5), Include)."""
    lines = [f"{keyword} {line}" for keyword, lines in settings.items() for line in lines]
    for criteria, inner in (blocks or {}).items():
        lines.append(f"Match {criteria}")
        lines += [f"    {keyword} {line}" for keyword, lines_ in inner.items() for line in lines_]
    return HEADER + "".join(f"{line}\n" for line in lines)


def disagreements(settings: Settings, wanted: Effective, effective: Effective) -> dict[str, str]:
    """Return the settings whose effective value is not the wanted one, each with a sentence."""
    wrong = {}
    for keyword in settings:
        found, expected = effective.get(keyword.lower()), wanted.get(keyword.lower())
        if found != expected:
            wrong[keyword] = (
                f"{keyword} is {', '.join(found or ['unset'])}, expected {', '.join(expected or ['unset'])}"
            )
    return wrong


def where(keyword: str, files: Iterable[Path]) -> str:
    """Name the lines that set a keyword."""
    places = [
        f"{file}:{number}"
        for file in files
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if re.match(rf"\s*{keyword}\b", line, re.IGNORECASE)
    ]
    return ", ".join(places) or "set by a file that these include"


def understood(
    sshd: Sshd,
    settings: Settings,
    blocks: Mapping[str, Settings],
    optional: Set[str],
    host_keys: list[str],
) -> tuple[Settings, Effective]:
    """Leave out the optional settings that this sshd does not know.

    Returns the rest, and how sshd spells their values.
    """
    try:
        return settings, sshd.alone(render(settings, blocks), host_keys)
    except RefusedError as error:
        unknown = set(re.findall(r"Bad configuration option: (\w+)", str(error))) & optional
        if not unknown:
            raise
    rest = {keyword: lines for keyword, lines in settings.items() if keyword not in unknown}
    return rest, sshd.alone(render(rest, blocks), host_keys)


@dataclass(frozen=True)
class Plan:
    """The files as they should be (None: absent), and what sshd would make of them."""

    files: dict[Path, str | None]
    effective: Effective
    revoked: frozenset[str] = frozenset()


def offered_host_keys(kinds: list[str], configured: list[str]) -> tuple[list[str], list[str]]:
    """Return those of the configured host keys that are of the kinds and strong, and a word on weak ones."""
    offered, weak = [], []
    for name in configured:
        try:
            key = parse_public_key(Path(f"{name}.pub").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            continue  # a DSA key, or one that nobody can name the kind of
        if key.bits and key.bits < MINIMUM_RSA_HOST_KEY_BITS:
            weak.append(f"{name} has {key.bits} bits")
        elif key.family in kinds:
            offered.append(name)
    if not offered:
        raise RefusedError(
            f"None of the host keys ({', '.join(configured)}) is of the kinds {', '.join(kinds)} and strong; "
            "nothing was changed. `ssh-keygen -A` makes missing ones; put them into known_hosts."
        )
    return offered, weak


def strong_moduli(minimum_bits: int, moduli: Path = MODULI) -> str:
    """Return the lines of moduli(5) whose groups have at least so many bits."""
    try:
        lines = moduli.read_text(encoding="ascii").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    fields = ((line, line.split()) for line in lines if not line.startswith("#"))
    return "".join(
        line
        for line, columns in fields
        if len(columns) > MODULUS_SIZE_COLUMN and int(columns[MODULUS_SIZE_COLUMN]) + 1 >= minimum_bits
    )


def plan(module: AnsibleModule, sshd: Sshd, base: Effective) -> Plan:
    """Return the files, and the settings that they make effective; raise RefusedError where they do not."""
    params = module.params
    algorithms = {
        keyword: known_algorithms(keyword, wanted, run(["ssh", "-Q", keyword]).split())
        for keyword, wanted in params["algorithms"].items()
    }
    revoked = public_keys("revoked keys", params["revoked_keys"])
    authorities = public_keys("user CA keys", params["user_ca_keys"])
    banner = params["banner"].rstrip()
    contents = {
        BANNER: f"{banner}\n" if banner else None,
        USER_CA_KEYS: "".join(f"{key.line}\n" for key in authorities) or None,
        REVOKED_KEYS: "".join(f"{key.line}\n" for key in revoked) or None,
        STRONG_MODULI: strong_moduli(params["minimum_modulus_bits"]) or None,
    }
    uses = {BANNER: "Banner", USER_CA_KEYS: "TrustedUserCAKeys", REVOKED_KEYS: "RevokedKeys"}
    generated: dict[str, Any] = {keyword: str(path) for path, keyword in uses.items() if contents[path]}
    optional = {**params["settings_if_known"]}
    if contents[STRONG_MODULI]:
        optional["ModuliFile"] = str(STRONG_MODULI)
    if params["host_key_types"]:
        generated["HostKey"], weak = offered_host_keys(params["host_key_types"], base["hostkey"])
        if weak:
            module.warn(f"A weak host key is no longer offered: {', '.join(weak)}.")
    asked = merge(params["settings"], generated, optional, algorithms, params["overrides"])
    blocks = {criteria: merge(inner) for criteria, inner in params["blocks"].items()}
    check_criteria(blocks)
    host_keys = [] if "HostKey" in asked else base["hostkey"]
    overridden = {keyword.lower() for keyword in params["overrides"]}
    may_be_unknown = {keyword for keyword in optional if keyword.lower() not in overridden}
    settings, wanted = understood(sshd, asked, blocks, may_be_unknown, host_keys)
    text = render(settings, blocks)
    effective = sshd.whole(text)
    if wrong := disagreements(settings, wanted, effective):
        others = [MAIN, *sorted(set(DROP_IN.parent.glob("*.conf")) - {DROP_IN})]
        raise RefusedError(
            "Settings elsewhere are in the way; nothing was changed: "
            + "; ".join(f"{sentence} ({where(keyword, others)})" for keyword, sentence in wrong.items())
            + ". Take them out there, or ask for the same value here."
        )
    return Plan({**contents, DROP_IN: text}, effective, frozenset(key.blob for key in revoked))


def converge(module: AnsibleModule, sshd: Sshd, change: Change) -> dict[str, Any]:
    """Bring the drop-in and its files to the wanted state; returns the module's result."""
    params, login = module.params, sshd.login
    base = sshd.whole(None)
    # The drop-in is the last to come and the first to go: whatever it names is there while it is read.
    gone: dict[Path, str | None] = dict.fromkeys((DROP_IN, BANNER, USER_CA_KEYS, REVOKED_KEYS, STRONG_MODULI))
    wanted = plan(module, sshd, base) if params["state"] == "present" else Plan(gone, base)
    effective = wanted.effective
    files = [
        File(str(path), text, "0600" if path == DROP_IN else "0644", public=True)
        for path, text in wanted.files.items()
    ]
    differing = [file for file in files if file.differs()]
    result: dict[str, Any] = {"changed": bool(differing), "confirm": False, "port": None}
    if not differing:
        return result
    result["diff"] = [file.diff() for file in differing if file.path != str(STRONG_MODULI)]
    ports = listening_ports(effective)
    if ports != listening_ports(base) and is_active("ssh.socket"):
        raise RefusedError(
            "Here ssh.socket decides on which ports sshd is reached, not sshd's Port: set ListenStream in a "
            "drop-in of ssh.socket, and leave the list of ports empty."
        )
    if not is_active("ssh.socket"):
        refuse_what_sshd_cannot_listen_on(effective["listenaddress"], ports_of_others(listeners()))
    if login:
        account = read_account(login.account, effective, wanted.revoked)
        if refusal := login_refusal(account, login.client, effective):
            raise RefusedError(f"This would lock Ansible out; nothing was changed: {refusal}.")
        if str(login.server_port) not in ports:
            listed = [*map(str, module.params["settings"].get("Port") or []), *ports]
            result["port"] = int(next(port for port in listed if port in ports))
            module.warn(
                f"sshd leaves port {login.server_port}: set ansible_port to {result['port']} from now on."
            )
    if module.check_mode:
        return result
    with change.armed([*wanted.files], [RELOAD_IN_SHELL], params["rollback_after_s"], login):
        for file in differing:
            file.write(module)
        reload_sshd(ports)
    result["confirm"] = True
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            **ARGUMENTS,
            "settings": {"type": "dict", "default": {}},
            "settings_if_known": {"type": "dict", "default": {}},
            "algorithms": {"type": "dict", "default": {}},
            "blocks": {"type": "dict", "default": {}},
            "host_key_types": {
                "type": "list",
                "elements": "str",
                "choices": ["ed25519", "rsa", "ecdsa"],
                "default": [],
            },
            "minimum_modulus_bits": {"type": "int", "default": 0},
            "banner": {"type": "str", "default": ""},
            # Public keys are no secret, but who pastes a private one must not find it in the node's log.
            "user_ca_keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "revoked_keys": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "overrides": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    program = module.get_bin_path("sshd")
    if not program:
        if module.check_mode:
            module.exit_json(changed=True, confirm=False, port=None)
        module.fail_json(msg="There is no sshd on this node: install the package openssh-server.")
    change = Change("ssh", f"sshd's settings ({DROP_IN})")
    login = ssh_login()
    if not login:
        module.warn("Ansible does not come over SSH here, so nothing proves that it could.")
    try:
        change.settle_the_past(module)
        with tempfile.TemporaryDirectory() as scratch:
            module.exit_json(**converge(module, Sshd(program, login, Path(scratch)), change))
    except (RefusedError, CommandError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
