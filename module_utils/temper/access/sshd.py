"""The node's sshd: what it makes of a configuration that is not in place, and its reload."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import getopt
import glob
import ipaddress
import os
import re
import shlex
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.temper.access.listeners import UNKNOWN, Listener, is_loopback, open_files, sockets
from ansible.module_utils.temper.process import CommandError, complete, parsed, run, shown, succeeds, which
from ansible.module_utils.temper.settings.base import RefusedError
from ansible.module_utils.temper.units import command_of

if TYPE_CHECKING:
    from ansible.module_utils.temper.access.ssh_login import Login

MAIN = Path("/etc/ssh/sshd_config")
DROP_IN = Path("/etc/ssh/sshd_config.d/00-temper.conf")
PRIVILEGE_SEPARATION = Path("/run/sshd")
#: What sshd says where it is not there (main() of OpenSSH's sshd.c).
LACKS_FOLDER = "Missing privilege separation directory"
#: What an sshd before 8.2 says of the keyword (process_server_config_line() of OpenSSH's servconf.c). Its
#: version would say less: distributions take keywords over into older ones.
INCLUDE_UNKNOWN = "Bad configuration option: Include"
SERVICES = ("ssh.service", "sshd.service")  # Debian's name, everybody else's
SOCKET = "ssh.socket"
SOCKETS = (SOCKET, "sshd.socket")
# Ubuntu's, since 24.04: at a daemon-reload it writes ssh.socket's ListenStream from Port and ListenAddress
# (https://discourse.ubuntu.com/t/30189). The first of a name counts, a link to /dev/null is none.
GENERATORS = tuple(
    Path(folder, "systemd/system-generators/sshd-socket-generator")
    for folder in ("/run", "/etc", "/usr/local/lib", "/usr/lib")
)
GENERATED = "/run/systemd/generator"
RELOAD_DEADLINE_S = 15
# sshd(8), for getopt(3), and the keywords that its options set besides -o.
OPTIONS = "C:E:b:c:f:g:h:k:o:p:u:46DGQRTVdeiqrt"
KEYWORDS = {
    **{"-4": "addressfamily", "-6": "addressfamily", "-c": "hostcertificate", "-g": "logingracetime"},
    **{"-h": "hostkey", "-p": "port", "-q": "loglevel"},
}
ASSIGNMENT = re.compile(r"\s*(\w+)\s*[=\s]\s*\S")
#: Of the kernel, unless its ip_unprivileged_port_start says otherwise.
FIRST_PORT_OF_EVERYBODY = 1024
# For the undo script, which at boot runs before sshd does. An sshd that cannot listen ends at its reload.
# At a SIGHUP sshd starts itself anew, and Debian's then finds systemd's sockets no more: where systemd holds
# them, a restart loses no connection either.
RELOAD_IN_SHELL = (
    f"verb=reload; systemctl is-active --quiet {' '.join(SOCKETS)} && verb=restart; "
    f"for unit in {' '.join(SERVICES)}; do "
    'case "$(systemctl show --property=ActiveState --value "$unit")" in '
    'active|reloading) systemctl "$verb" "$unit" || failed=1; break;; '
    # "activating" where systemd waits to try again (Restart=on-failure): a start would be refused.
    'failed|activating) systemctl reset-failed "$unit"; systemctl restart "$unit" || failed=1; break;; '
    "esac; done"
)
# One transaction, which systemd brings to its end whatever becomes of us. At boot the socket is still
# inactive, and will listen where the generator has said just now.
LISTEN_ANEW_IN_SHELL = (
    "systemctl daemon-reload || failed=1; "
    f'if [ "$(systemctl show --property=ActiveState --value {SOCKET})" != inactive ]; then '
    f"systemctl reset-failed {SOCKET} {SERVICES[0]}; systemctl restart {SOCKET} {SERVICES[0]} || failed=1; fi"
)

Effective = dict[str, list[str]]  # keyword in lower case -> its values, sorted


def parse_effective(dump: str) -> Effective:
    """Read the output of `sshd -T`: lower-case keyword -> its values in a stable order.

    OpenSSH 10.6 writes keywords as its manual does, releases before it in lower case.
    """
    effective: Effective = {}
    for line in dump.splitlines():
        keyword, _, value = line.partition(" ")
        effective.setdefault(keyword.lower(), []).append(value)
    return {keyword: sorted(lines) for keyword, lines in effective.items()}


def listening_ports(effective: Effective) -> list[str]:
    """Return the ports that sshd listens on; its Port says nothing where each ListenAddress has its own."""
    addresses = effective.get("listenaddress", [])
    ports = {host_and_port(address)[1] for address in addresses} or effective.get("port", [])
    return sorted(ports, key=lambda port: parsed("sshd -T", port, int))


def host_and_port(address: str) -> tuple[str, str]:
    """Return both of a ListenAddress of `sshd -T`: 0.0.0.0:22, [::]:22 rdomain mgmt. Raises OutputError."""
    host, _, port = parsed("sshd -T", address, lambda text: text.split()[0]).rpartition(":")
    return host, port


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
        for pattern in included(include[1]):
            path = directory / pattern
            if not fnmatch.fnmatchcase(str(drop_in), str(path)):
                lines.append(f'Include "{path}"')
                continue
            found = True
            names = glob.glob(str(path))  # noqa: PTH207 - leaves hidden names out, as sshd's glob(3) does
            for name in sorted({*names, str(drop_in)}):
                lines.append(f'Include "{replacement if name == str(drop_in) else name}"')
    if not found:
        raise RefusedError(
            f"{directory / 'sshd_config'} does not read {drop_in}: put the line "
            f"`Include {drop_in.parent}/*.conf` at its top (Debian's default) and run again."
        )
    return "\n".join(lines) + "\n"


def included(text: str) -> list[str]:
    """Return the patterns of an Include line. Raises RefusedError."""
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise RefusedError(
            f"sshd's configuration has an Include line that cannot be read ({error}): {shown(text)}. "
            "Correct it and run again."
        ) from error


class Sshd:
    """The node's sshd, asked what it makes of configurations that are not in place."""

    def __init__(
        self,
        program: str,
        login: Login | None,
        scratch: Path,
        started_with: Iterable[str] = (),
        *,
        changes: bool = True,
    ) -> None:
        self.program = program
        self.login = login
        self.scratch = scratch
        self.started_with = list(started_with)
        # sshd refuses to work without it, and a per-connection (socket activated) sshd leaves none behind.
        if changes:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)

    def alone(self, text: str, host_keys: Iterable[str]) -> Effective:
        """Return the effective settings where the drop-in is all there is."""
        return self._effective("these settings", text, [f"-h{key}" for key in host_keys])

    def unknown(self, text: str, host_keys: Iterable[str]) -> set[str]:
        """Return the keywords of a drop-in that this sshd does not know, or was built without.

        Of the latter sshd only complains, but in the journal at each login.
        """
        file = self.scratch / "sshd_config"
        file.write_text(text, encoding="utf-8")
        said = complete([self.program, "-T", "-f", str(file), *(f"-h{key}" for key in host_keys)]).stderr
        return set(re.findall(r"(?:Bad configuration option:|Unsupported option) (\w+)", said))

    def whole(self, text: str | None, asked: str | None = None) -> Effective:
        """Return the node's effective settings with the drop-in saying `text`, or without it.

        They are those of the login that drives us, or of the one that `asked` describes in the words of
        `sshd -C`.
        """
        what = "what is configured here besides them" if text is None else "the whole configuration"
        try:
            main = MAIN.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RefusedError(f"{MAIN} is missing: reinstall the package openssh-server.") from None
        replacement = self.scratch / DROP_IN.name
        replacement.write_text(text or "", encoding="utf-8")
        configuration = main
        if text is not None or DROP_IN.exists():
            self.refuse_without_include()
            configuration = candidate_configuration(main, MAIN.parent, DROP_IN, replacement)
        return self._effective(what, configuration, self.started_with, asked)

    def refuse_without_include(self) -> None:
        """Raise RefusedError for an OpenSSH before 8.2, as that of Enterprise Linux 8: no drop-in reaches it.

        One whose main file has the line is asked when it reads that.
        """
        if re.search(r"^\s*Include\b", MAIN.read_text(encoding="utf-8"), re.IGNORECASE | re.MULTILINE):
            return
        file = self.scratch / "include"
        file.write_text("Include /dev/null\n", encoding="utf-8")
        try:
            run([self.program, "-T", "-f", str(file)])
        except CommandError as error:
            if INCLUDE_UNKNOWN in str(error):
                raise RefusedError(
                    f"This node's sshd knows no Include, so it cannot read {DROP_IN}; nothing was changed. "
                    "Expected OpenSSH 8.2 or newer, which Enterprise Linux has since release 9. Set "
                    "ssh_hardening_state: absent for this node."
                ) from error

    def _effective(
        self, what: str, configuration: str, options: Iterable[str] = (), asked: str | None = None
    ) -> Effective:
        """Ask for a login, ours by default; raise RefusedError where sshd refuses the configuration."""
        file = self.scratch / "sshd_config"
        file.write_text(configuration, encoding="utf-8")
        command = [self.program, "-T", "-f", str(file), *options]
        if not asked and self.login:
            # Without reverse DNS (UseDNS no) sshd takes the address for the host's name.
            client, ours = self.login.client, f"laddr={self.login.server},lport={self.login.server_port}"
            asked = f"user={self.login.account},host={client},addr={client},{ours}"
        if asked:
            command += ["-C", asked]
        try:
            return parse_effective(run(command))
        except CommandError as error:
            complaint = str(error).replace(f"{self.scratch}/", "")
            raise RefusedError(f"sshd refuses {what}; nothing was changed: {complaint}") from error


def listening_sockets(ports: Iterable[str], proc: Path = Path("/proc")) -> dict[str, set[str]]:
    """Return the inodes of root's TCP sockets that listen on each port: a user may listen on some, too."""
    found: dict[str, set[str]] = {port: set() for port in ports}
    for one in sockets("tcp", proc):
        if one.uid == 0 and str(one.port) in found:
            found[str(one.port)].add(one.inode)
    return found


def ports_of_others(found: Iterable[Listener]) -> dict[str, str]:
    """Return the TCP ports that sshd would have to share, and with which program.

    Where sshd (or systemd for it) listens on a port already, the other one is at another address. Both do so
    as root: any user may call a process "sshd".
    """
    listening = [one for one in found if one.protocol == "tcp"]
    ours = {one.port for one in listening if one.uid == 0 and one.process.startswith(("sshd", "systemd"))}
    return {
        str(one.port): one.process
        for one in listening
        if one.port not in ours and (one.uid != 0 or one.process != UNKNOWN)
    }


def refuse_what_sshd_cannot_listen_on(addresses: Iterable[str], others: Mapping[str, str]) -> None:
    """Raise RefusedError for an address of `sshd -T` (0.0.0.0:22, [::]:22) that sshd's bind would fail on.

    An sshd that can listen nowhere ends at its reload. `others` names the programs that have a port.
    """
    for text in addresses:
        host, port = host_and_port(text)
        address = parsed("sshd -T", host.strip("[]").partition("%")[0], ipaddress.ip_address)
        if port in others:
            raise RefusedError(
                f"sshd could not listen on {host}:{port}; nothing was changed: {others[port]} has that port."
            )
        if address.is_unspecified or address.is_link_local:
            continue
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            try:
                trial.bind((str(address), 0))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise RefusedError(
                        f"sshd could not listen on {host}:{port}; nothing was changed: this node does not "
                        "have the address."
                    ) from None


def ports_of_everybody(ports: Iterable[str], proc: Path = Path("/proc")) -> list[str]:
    """Return the ports that any account may listen on: between two sockets of sshd's, it can take them."""
    file = proc / "sys/net/ipv4/ip_unprivileged_port_start"
    first = int(file.read_text(encoding="ascii")) if file.exists() else FIRST_PORT_OF_EVERYBODY
    return [port for port in ports if int(port) >= first]


def is_active(unit: str) -> bool:
    """Return whether systemd runs the unit."""
    return succeeds(["systemctl", "is-active", "--quiet", unit])


def active_socket() -> str | None:
    """Return the unit by which systemd listens in sshd's place, if it does."""
    return next((unit for unit in SOCKETS if is_active(unit)), None)


def active_service() -> str | None:
    """Return the unit by which sshd runs, if one does."""
    return next((unit for unit in SERVICES if is_active(unit)), None)


def configured_addresses() -> list[str]:
    """Return the addresses with ports that sshd's configuration in place says."""
    PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    return parsed("sshd -T", run(["sshd", "-T"]), lambda text: parse_effective(text)["listenaddress"])


def socket_obstacle(unit: str) -> str | None:
    """Return why systemd does not listen where sshd's Port and ListenAddress say, or None where it does."""
    decides = f"Here {unit} decides on which ports sshd is reached, not sshd's Port"
    generator = next((path for path in GENERATORS if path.is_symlink() or path.exists()), None)
    if unit != SOCKET or not generator or not os.access(generator, os.X_OK):
        return f"{decides}: set ListenStream in a drop-in of {unit}, and leave the list of ports empty."
    for path in run(["systemctl", "show", "--property=DropInPaths", "--value", unit]).split():
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        if not path.startswith(GENERATED) and re.search(r"^\s*ListenStream\s*=", text, re.MULTILINE):
            return f"{decides}: take ListenStream out of {path}, or leave the list of ports empty."
    return None


def listen_anew(ports: list[str]) -> None:
    """Have systemd listen where sshd's configuration says, and sshd take the new sockets."""
    before = listening_sockets(ports)
    run(["sh", "-c", f"failed=0; {LISTEN_ANEW_IN_SHELL}; exit $failed"])
    _wait_for_sockets(ports, before)


def reload_sshd(ports: list[str]) -> None:
    """Make a running sshd read its configuration, and wait until it listens again.

    One that systemd has started for a socket starts anew with the same. On SIGHUP any other closes its
    sockets and starts over, so new sockets on all ports are the proof that it has.
    """
    if not (service := active_service()):
        return
    before = listening_sockets(ports)
    by_systemd = active_socket()
    run(["systemctl", "restart" if by_systemd else "reload", service])
    if not by_systemd:
        _wait_for_sockets(ports, before)


def configuration_files(main: Path = MAIN) -> list[Path]:
    """Return the files that sshd reads at its start.

    Its main one, those that Include names, and their folders.
    """
    found, left = [main], [main]
    while left:
        path = left.pop()
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        includes = [match[1] for line in lines if (match := re.match(r"\s*Include[\s=]+(.+)", line, re.I))]
        for pattern in [name for text in includes for name in included(text)]:
            matching = main.parent / pattern
            names = [Path(name) for name in glob.glob(str(matching))]  # noqa: PTH207 - as above
            new = [name for name in names if name not in found]
            left += new
            # A file that was removed leaves its trace in the folder alone.
            found += [*new, *([matching.parent] if matching.parent != main.parent else [])]
    return list(dict.fromkeys(found))


def running(effective: Effective, proc: Path = Path("/proc")) -> int | None:
    """Return the process of the sshd that listens: its pid file's, or systemd's.

    The file may be old and its number another process's by now, and any user may call a process "sshd".
    """
    name = next(iter(effective.get("pidfile", [])), "none")
    with contextlib.suppress(OSError, ValueError):
        process = int(Path(name).read_text(encoding="ascii"))
        if _is_sshd(process, proc):
            return process
    if not (service := active_service()):
        return None
    answer = run(["systemctl", "show", "--property=MainPID", "--value", service])
    process = parsed("systemctl show", answer, int)
    return process if _is_sshd(process, proc) else None


def _is_sshd(process: int, proc: Path) -> bool:
    """Return whether root runs the node's sshd as this process."""
    try:
        status = (proc / str(process) / "status").read_text(encoding="utf-8", errors="replace")
        found = _program(process, proc)
    except OSError:
        return False
    uids = re.search(r"^Uid:((?:\s+\d+){4})$", status, re.MULTILINE)
    ours = which("sshd")
    return bool(uids and set(uids[1].split()) == {"0"} and ours and found == os.path.realpath(ours))


def _program(process: int, proc: Path) -> str:
    """Return the path of a process's program. Raises OSError."""
    # An upgrade puts another file in the place of the one that runs.
    return str((proc / str(process) / "exe").readlink()).removesuffix(" (deleted)")


def started_with(effective: Effective, proc: Path = Path("/proc")) -> list[str]:
    """Return the settings on the command line of the running sshd, a word each: they win over all files.

    Enterprise Linux 8 gives it the crypto policy in this way, a site whatever OPTIONS or SSHD_OPTS have.
    Where systemd starts one for each connection, its unit has them. Raises RefusedError where they cannot be
    told apart, or name another configuration file.
    """
    process = running(effective, proc)
    options, rest, titled = command_line(process, proc)
    if process is None and (started := of_connections()):
        options, rest = _options(started[2])
        titled = True
    if _unclear(options, rest):
        hint = "expected values without spaces" if titled else "expected those of sshd(8)"
        raise RefusedError(
            f"The options that sshd was started with cannot be told apart: {hint}, found "
            f"{shown(' '.join(rest or map(''.join, options)))}; nothing was changed. Put these settings into "
            f"a file of {DROP_IN.parent} instead, and restart sshd."
        )
    for name, value in options:
        if name == "-f" and os.path.realpath(value) != os.path.realpath(MAIN):
            raise RefusedError(
                f"sshd was started with -f {shown(value)}, so it does not read {MAIN}; nothing was changed. "
                "Start it without -f, or set ssh_hardening_state: absent for this node."
            )
    return [f"{name}{value}" for name, value in options if name == "-o" or name in KEYWORDS]


def command_line(process: int | None, proc: Path) -> tuple[list[tuple[str, str]], list[str], bool]:
    """Return the options of an sshd, the words that are none, and whether its title has told them."""
    try:
        line = (proc / str(process) / "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return [], [], False
    words = line.rstrip("\0").split("\0")
    # Once it listens, its title since OpenSSH 8.2 is its words joined by spaces, which a value may have, too:
    # "sshd: /usr/sbin/sshd -D ... [listener] 0 of 10-100 startups". That of a session names an account, and
    # has no options.
    if titled := words[0].startswith("sshd: "):
        if not re.match(r"sshd: /|.* -|.* \[listener\]", words[0]):
            return [], [], True
        title, listener, _ = words[0].rpartition(" [listener]")
        words = title.split()[1:] if listener else ["", words[0]]
    return (*_options(words[1:]), titled)


def of_connections() -> tuple[str, str, list[str]] | None:
    """Return the unit that starts an sshd for each connection, its program, and its arguments.

    Such an sshd has no command line that could be read: its title names the account.
    """
    unit = active_socket()
    if not unit or run(["systemctl", "show", "--property=Accept", "--value", unit]).strip() != "yes":
        return None
    name = unit[: -len(".socket")]
    # A template has no properties; what is not started has those of any other.
    program, words = command_of(f"{name}@temper.service")
    return (f"{name}@.service", program, words) if program else None


def _options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the options of an sshd, and all words where some are none."""
    try:
        options, rest = getopt.getopt(words, OPTIONS)
    except getopt.GetoptError:
        return [], words
    return options, rest and words


def _unclear(options: Iterable[tuple[str, str]], rest: list[str]) -> bool:
    """Return whether the options of `command_line` cannot be told apart.

    sshd itself refuses an argument too many, and a keyword without a value.
    """
    return bool(rest) or any(name == "-o" and not ASSIGNMENT.match(value) for name, value in options)


def other_servers(proc: Path = Path("/proc")) -> list[str]:
    """Return root's sshds that others reach and that may read another file than `MAIN`, in words for people.

    They are started with it or with options that cannot be told apart, are another program than the node's
    sshd, or have another root folder, as in a container. Raises CommandError where the search takes too long.
    """
    ports = {
        f"socket:[{one.inode}]": one.port
        for one in sockets("tcp", proc)
        if one.uid == 0 and not is_loopback(one.address)
    }
    holders: dict[int, set[int]] = {}
    for process, _, target in open_files(proc, programs={"sshd"}, whole=True) if ports else ():
        if port := ports.get(target):
            holders.setdefault(int(process), set()).add(port)
    found = []
    for number, own in sorted(holders.items()):
        options, rest, _ = command_line(number, proc)
        with_ours = _has_our_files(number, proc)
        try:
            program = _program(number, proc)
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if not with_ours:
            does = f"has another root folder, as in a container, and reads its own {MAIN}"
        elif not (does := _differs(program, options, rest)):
            continue
        found.append(f"process {number} on port {', '.join(map(str, sorted(own)))} {does}")
    if started := of_connections():
        unit, program, words = started
        if does := _differs(os.path.realpath(program), *_options(words)):
            found.append(f"that of {unit} {does}")
    return found


def _differs(program: str, options: list[tuple[str, str]], rest: list[str]) -> str:
    """Return in which way an sshd is not started as the node's; empty if it is."""
    files = [value for name, value in options if name == "-f"]
    if _unclear(options, rest):
        return f"has options that cannot be told apart: {shown(' '.join(rest or map(''.join, options)))}"
    if files and os.path.realpath(files[-1]) != os.path.realpath(MAIN):
        return f"reads {shown(files[-1])}"
    return "" if program == os.path.realpath(which("sshd") or "") else f"is {shown(program)}"


def _has_our_files(process: int, proc: Path) -> bool:
    """Return whether the root folder and `MAIN` of a process are those of the node."""
    root = f"{proc}/{process}/root"
    try:
        return all(os.path.samefile(f"{root}{path}", path) for path in ("/", MAIN))  # noqa: PTH121 - texts
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return False


def keyword_of(option: str) -> str:
    """Return the keyword, in lower case, that one of `started_with` sets."""
    assignment = ASSIGNMENT.match(option[2:])
    return KEYWORDS.get(option[:2]) or (assignment[1].lower() if assignment else "")


def reads_since(effective: Effective) -> float | None:
    """Return when the running sshd last read its configuration (Unix time).

    None where none runs that keeps it.

    At its start and at each SIGHUP it writes its pid file anew. One that systemd starts for each connection
    reads all anew each time.
    """
    name = next(iter(effective.get("pidfile", [])), "none")
    with contextlib.suppress(OSError, ValueError):
        path = Path(name)
        if _is_sshd(int(path.read_text(encoding="ascii")), Path("/proc")):
            return path.stat().st_mtime
    if not (service := active_service()):
        return None
    # A reload is a change of the unit's state, too.
    answer = run(["systemctl", "show", "--property=StateChangeTimestampMonotonic", "--value", service])
    return time.time() - time.monotonic() + parsed("systemctl show", answer, int) / 1e6


def unread_changes(effective: Effective) -> tuple[str, float] | None:
    """Return what of the configuration has changed since the running sshd has read it, and when.

    None for nothing.

    By the time of content: permissions that have changed since then say nothing new.
    """
    started = reads_since(effective)
    if started is None:
        return None
    now, newest = time.time(), None
    for path in configuration_files():
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            # A time to come is no time of a change.
            if started < changed <= now and (newest is None or changed > newest[1]):
                newest = (str(path), changed)
    return newest


def _wait_for_sockets(ports: list[str], before: Mapping[str, set[str]]) -> None:
    """Wait for sockets on all ports that are others than `before`."""
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
