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

import datetime
import fnmatch
import glob
import grp
import ipaddress
import os
import pwd
import re
import shlex
import tempfile
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commit_confirm import Change, CommandError, Login, run, ssh_login, succeeds
from ansible.module_utils.files import File

MAIN = Path("/etc/ssh/sshd_config")
DROP_IN = Path("/etc/ssh/sshd_config.d/00-temper.conf")
PRIVILEGE_SEPARATION = Path("/run/sshd")
SERVICES = ("ssh.service", "sshd.service")  # Debian's name, everybody else's
RELOAD_DEADLINE_S = 15
# For the undo script, which at boot runs before sshd does.
RELOAD_IN_SHELL = (
    f"for unit in {' '.join(SERVICES)}; do "
    'if systemctl --quiet is-active "$unit"; then systemctl reload "$unit" || failed=1; break; fi; done'
)

HEADER = "# Managed by Temper. sshd takes the first value it reads, so this file's name sorts first.\n"

Settings = Mapping[str, list[str]]
Effective = dict[str, list[str]]


class RefusedError(Exception):
    """The change is refused before anything was touched; the message says why and what to do."""


@dataclass(frozen=True)
class Account:
    """What decides whether sshd lets an account in. `has_key` is None where no file can tell."""

    name: str
    uid: int
    groups: tuple[str, ...]
    locked: bool
    expired: bool
    has_key: bool | None


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


def known_algorithms(keyword: str, wanted: list[str], known: Iterable[str]) -> str:
    """Return the wanted algorithms that this OpenSSH knows, as the value of `keyword`."""
    known = set(known)
    usable = [name for name in wanted if name in known]
    if not usable:
        raise RefusedError(
            f"{keyword}: this node's OpenSSH knows none of {', '.join(wanted) or 'an empty list'}; "
            f"choose from the output of `ssh -Q {keyword}`."
        )
    return ",".join(usable)


def render(settings: Settings) -> str:
    """Return the drop-in's text."""
    return HEADER + "".join(f"{keyword} {line}\n" for keyword, lines in settings.items() for line in lines)


def parse_effective(dump: str) -> Effective:
    """Read the output of `sshd -T`: lower-case keyword -> its values in a stable order."""
    effective: Effective = {}
    for line in dump.splitlines():
        keyword, _, value = line.partition(" ")
        effective.setdefault(keyword, []).append(value)
    return {keyword: sorted(lines) for keyword, lines in effective.items()}


def candidate_configuration(main: str, directory: Path, drop_in: Path, replacement: Path) -> str:
    """Return the main configuration with the drop-in read from `replacement` instead.

    Include lines that would read the drop-in are written out file by file, in sshd's order.
    """
    lines, found = [], False
    in_match = False
    for line in main.splitlines():
        in_match = in_match or bool(re.match(r"\s*Match\b", line, re.IGNORECASE))
        include = re.match(r"\s*Include[\s=]+(.+)", line, re.IGNORECASE)
        if not include or in_match:
            lines.append(line)
            continue
        for pattern in shlex.split(include[1], comments=True):
            path = directory / pattern
            if not fnmatch.fnmatchcase(str(drop_in), str(path)):
                lines.append(f'Include "{path}"')
                continue
            found = True
            # Like sshd's glob(3), and unlike Path.glob, this leaves hidden names out.
            for name in sorted({*glob.glob(str(path)), str(drop_in)}):  # noqa: PTH207
                lines.append(f'Include "{replacement if name == str(drop_in) else name}"')
    if not found:
        raise RefusedError(
            f"{directory / 'sshd_config'} does not read {drop_in}: put the line "
            f"`Include {drop_in.parent}/*.conf` at its top (Debian's default) and run again."
        )
    return "\n".join(lines) + "\n"


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


def _matches_user(pattern: str, account: Account, address: str) -> bool:
    """User patterns of sshd: NAME or NAME@HOST, with wildcards, HOST also as a network."""
    name, _, host = pattern.partition("@")
    if not fnmatch.fnmatchcase(account.name, name):
        return False
    if not host or fnmatch.fnmatchcase(address, host):
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(host, strict=False)
    except ValueError:
        return False


def login_refusal(account: Account, address: str, effective: Effective) -> str | None:
    """Say why sshd would no longer let the account in under `effective`, or return None if it would."""

    def one(keyword: str) -> str:
        return effective.get(keyword, ["no"])[0]

    def patterns(keyword: str) -> list[str]:
        return [pattern for line in effective.get(keyword, []) for pattern in line.split()]

    def user_in(keyword: str) -> bool:
        return any(_matches_user(pattern, account, address) for pattern in patterns(keyword))

    def group_in(keyword: str) -> bool:
        return any(
            fnmatch.fnmatchcase(group, pattern) for group in account.groups for pattern in patterns(keyword)
        )

    name = account.name
    if account.uid == 0 and one("permitrootlogin") in ("no", "forced-commands-only"):
        return (
            "Ansible logs in as root, which would no longer be allowed: make an account with sudo rights and "
            "an authorized key, name it in ansible_user, and run again"
        )
    if one("pubkeyauthentication") != "yes":
        return f"the login of {name} by key would no longer be allowed: leave PubkeyAuthentication on"
    if account.has_key is False:
        files = " or ".join(patterns("authorizedkeysfile"))
        return f"the account {name} has no key in {files}: install one (ssh-copy-id {name}@...)"
    if account.locked and one("usepam") != "yes":
        return (
            f"the account {name} is locked and UsePAM is no: leave UsePAM on, or run `usermod -p '*' {name}`"
        )
    if account.expired:
        return f"the account {name} has expired: renew it with `chage -E -1 {name}`"
    if user_in("denyusers"):
        return f"DenyUsers names the account {name}: take it out"
    if patterns("allowusers") and not user_in("allowusers"):
        return f"AllowUsers ({' '.join(patterns('allowusers'))}) lacks the account {name}: add it"
    if group_in("denygroups"):
        return f"DenyGroups names a group of the account {name}: take it out"
    if patterns("allowgroups") and not group_in("allowgroups"):
        groups = ", ".join(account.groups)
        return f"AllowGroups ({' '.join(patterns('allowgroups'))}) has no group of {name} ({groups}): add one"
    return None


def has_key(user: pwd.struct_passwd, effective: Effective) -> bool | None:
    """Whether a key file of the account has an entry; None where keys may come from elsewhere."""
    if any(
        effective.get(keyword, ["none"]) != ["none"]
        for keyword in ("authorizedkeyscommand", "trustedusercakeys")
    ):
        return None
    tokens = {"%%": "%", "%h": user.pw_dir, "%u": user.pw_name, "%U": str(user.pw_uid)}
    for pattern in effective.get("authorizedkeysfile", [""])[0].split():
        name = re.sub("%[%huU]", lambda token: tokens[token[0]], pattern)
        try:
            lines = (Path(user.pw_dir) / name).read_text(errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
            return True
    return False


def read_account(name: str, effective: Effective, shadow: Path = Path("/etc/shadow")) -> Account:
    """Gather what sshd looks at. An account of a directory service has no shadow entry: it counts as open."""
    user = pwd.getpwnam(name)
    groups = tuple(grp.getgrgid(gid).gr_name for gid in os.getgrouplist(name, user.pw_gid))
    entries = [line.split(":") for line in shadow.read_text(encoding="utf-8").splitlines()]
    _, password, *_, expiry_day, _ = next((entry for entry in entries if entry[0] == name), ["", "*", "", ""])
    today = (datetime.datetime.now(datetime.UTC).date() - datetime.date(1970, 1, 1)).days
    return Account(
        name=name,
        uid=user.pw_uid,
        groups=groups,
        locked=password.startswith("!"),
        expired=bool(expiry_day) and int(expiry_day) <= today,
        has_key=has_key(user, effective),
    )


class Sshd:
    """The node's sshd, asked what it makes of configurations that are not in place."""

    def __init__(self, program: str, login: Login | None, scratch: Path) -> None:
        self.program = program
        self.login = login
        self.scratch = scratch
        # sshd refuses to work without it, and a per-connection (socket activated) sshd leaves none behind.
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)

    def alone(self, text: str, host_keys: Iterable[str]) -> Effective:
        """Return the effective settings where the drop-in is all there is."""
        return self._effective("these settings", text, host_keys)

    def whole(self, text: str | None) -> Effective:
        """Return the node's effective settings with the drop-in saying `text`, or without it."""
        what = "what is configured here besides them" if text is None else "the whole configuration"
        try:
            main = MAIN.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RefusedError(f"{MAIN} is missing: reinstall the package openssh-server.") from None
        replacement = self.scratch / DROP_IN.name
        replacement.write_text(text or "", encoding="utf-8")
        configuration = candidate_configuration(main, MAIN.parent, DROP_IN, replacement)
        return self._effective(what, configuration)

    def _effective(self, what: str, configuration: str, host_keys: Iterable[str] = ()) -> Effective:
        """Ask for the login that drives us; raise RefusedError where sshd refuses the configuration."""
        file = self.scratch / "sshd_config"
        file.write_text(configuration, encoding="utf-8")
        command = [self.program, "-T", "-f", str(file)]
        for key in host_keys:
            command += ["-h", key]
        if self.login:
            # Without reverse DNS (UseDNS no) sshd takes the address for the host's name.
            client, port = self.login.client, self.login.server_port
            command += ["-C", f"user={self.login.account},host={client},addr={client},lport={port}"]
        try:
            return parse_effective(run(command))
        except CommandError as error:
            complaint = str(error).replace(f"{self.scratch}/", "")
            raise RefusedError(f"sshd refuses {what}; nothing was changed: {complaint}") from error


def listening_sockets(ports: Iterable[str], proc: Path = Path("/proc")) -> dict[str, set[str]]:
    """Return the inodes of the TCP sockets that listen on each port."""
    sockets: dict[str, set[str]] = {port: set() for port in ports}
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:  # IPv6 is switched off
            continue
        for _, local, _, state, *columns in (line.split() for line in lines):
            port = str(int(local.rpartition(":")[2], 16))
            if state == "0A" and port in sockets:
                sockets[port].add(columns[5])
    return sockets


def is_active(unit: str) -> bool:
    """Whether systemd runs the unit."""
    return succeeds(["systemctl", "is-active", "--quiet", unit])


def reload_sshd(ports: list[str]) -> None:
    """Make a running sshd read its configuration, and wait until it listens again.

    A socket-activated sshd reads it at every connection. On SIGHUP a running one closes its sockets and
    starts over, so new sockets on all ports are the proof that it has.
    """
    service = next((unit for unit in SERVICES if is_active(unit)), None)
    if not service:
        return
    before = listening_sockets(ports)
    by_systemd = is_active("ssh.socket")
    run(["systemctl", "reload", service])
    if by_systemd:
        return
    deadline = time.monotonic() + RELOAD_DEADLINE_S
    missing = ports
    while missing:
        if time.monotonic() > deadline:
            raise CommandError(
                f"sshd does not listen on port {', '.join(missing)} {RELOAD_DEADLINE_S} s after its reload"
            )
        time.sleep(0.02)
        now = listening_sockets(ports)
        missing = [port for port in ports if not now[port] - before[port]]


def understood(
    sshd: Sshd, settings: Settings, optional: Set[str], host_keys: list[str]
) -> tuple[Settings, Effective]:
    """Leave out the optional settings that this sshd does not know.

    Returns the rest, and how sshd spells their values.
    """
    try:
        return settings, sshd.alone(render(settings), host_keys)
    except RefusedError as error:
        unknown = set(re.findall(r"Bad configuration option: (\w+)", str(error))) & optional
        if not unknown:
            raise
    rest = {keyword: lines for keyword, lines in settings.items() if keyword not in unknown}
    return rest, sshd.alone(render(rest), host_keys)


def plan(sshd: Sshd, params: Mapping[str, Any], base: Effective) -> tuple[str, Effective]:
    """Return the drop-in and the settings that it makes effective; raise RefusedError where it does not."""
    algorithms = {
        keyword: known_algorithms(keyword, wanted, run(["ssh", "-Q", keyword]).split())
        for keyword, wanted in params["algorithms"].items()
    }
    asked = merge(params["settings"], params["settings_if_known"], algorithms, params["overrides"])
    optional = params["settings_if_known"].keys() - params["overrides"].keys()
    settings, wanted = understood(sshd, asked, optional, base["hostkey"])
    text = render(settings)
    effective = sshd.whole(text)
    if wrong := disagreements(settings, wanted, effective):
        others = [MAIN, *sorted(set(DROP_IN.parent.glob("*.conf")) - {DROP_IN})]
        raise RefusedError(
            "Settings elsewhere are in the way; nothing was changed: "
            + "; ".join(f"{sentence} ({where(keyword, others)})" for keyword, sentence in wrong.items())
            + ". Take them out there, or ask for the same value here."
        )
    return text, effective


def converge(module: AnsibleModule, sshd: Sshd, change: Change) -> dict[str, Any]:
    """Bring the drop-in to the wanted state; returns the module's result."""
    params, login = module.params, sshd.login
    text, effective = None, (base := sshd.whole(None))
    if params["state"] == "present":
        text, effective = plan(sshd, params, base)
    file = File(str(DROP_IN), text, "0600")
    result: dict[str, Any] = {"changed": file.differs(), "confirm": False, "port": None}
    if not result["changed"]:
        return result
    result["diff"] = [file.diff()]
    if effective["port"] != base["port"] and is_active("ssh.socket"):
        raise RefusedError(
            "Here ssh.socket decides on which ports sshd is reached, not sshd's Port: set ListenStream in a "
            "drop-in of ssh.socket, and leave the list of ports empty."
        )
    if login:
        account = read_account(login.account, effective)
        if refusal := login_refusal(account, login.client, effective):
            raise RefusedError(f"This would lock Ansible out; nothing was changed: {refusal}.")
        if str(login.server_port) not in effective["port"]:
            result["port"] = int(effective["port"][0])
            module.warn(
                f"sshd leaves port {login.server_port}: set ansible_port to {result['port']} from now on."
            )
    if module.check_mode:
        return result
    with change.armed([DROP_IN], [RELOAD_IN_SHELL], params["rollback_after_s"], login):
        file.write(module)
        reload_sshd(effective["port"])
    result["confirm"] = True
    return result


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "settings": {"type": "dict", "default": {}},
            "settings_if_known": {"type": "dict", "default": {}},
            "algorithms": {"type": "dict", "default": {}},
            "overrides": {"type": "dict", "default": {}},
            "rollback_after_s": {"type": "int", "default": 120},
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
        if change.pending and module.check_mode:
            module.warn("An earlier change still waits for its confirmation; a run would undo it first.")
        elif change.pending:
            change.undo("another run began before it was confirmed")
        if past := change.past_rollback(keep=module.check_mode):
            module.warn(past)
        with tempfile.TemporaryDirectory() as scratch:
            module.exit_json(**converge(module, Sshd(program, login, Path(scratch)), change))
    except (RefusedError, CommandError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
