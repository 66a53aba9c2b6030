"""The ports that SELinux's policy lets sshd listen on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ansible.module_utils.temper import records
from ansible.module_utils.temper.process import each_line, run, which
from ansible.module_utils.temper.settings.base import RefusedError

LABEL = "ssh_port_t"
#: The policy's own.
SHIPPED = "22"
#: The ports that have the label by us, until it is taken away.
NOTE = Path("/var/lib/temper/sshd-ports.json")


def enabled() -> bool:
    """Return whether SELinux has a policy in force, permissive or not."""
    return which("getenforce") is not None and run(["getenforce"]).strip() != "Disabled"


def command(option: str, port: str) -> list[str]:
    """Return the command that gives a port the label (-a) or takes it away (-d)."""
    return ["semanage", "port", option, "-t", LABEL, "-p", "tcp", port]


def in_shell(option: str, port: str) -> str:
    """Return the shell command that does the same where it is still to do: elsewhere semanage fails."""
    pattern = f"^{LABEL}[[:space:]]+tcp[[:space:]]+(.*, *)?{port}(,|$)"
    done = "" if option == "-a" else "! "
    return (
        "labels=$(semanage port -l -n -C) && "
        f"{{ {done}echo \"$labels\" | grep -Eq '{pattern}' || {' '.join(command(option, port))}; }}"
    )


def parse(line: str) -> tuple[str, str, list[str]]:
    """Read a line of `semanage port -l`: label, protocol, ports and ranges. Raises ValueError."""
    label, protocol, ports = line.split(None, 2)
    return label, protocol, [port.strip() for port in ports.split(",")]


def labels(*options: str) -> dict[str, str]:
    """Return the label of each TCP port or range that has one. Raises CommandError, OutputError."""
    listing = run(["semanage", "port", "-l", "-n", *options])
    rows = each_line("semanage port -l", listing, parse)
    return {port: label for label, protocol, ports in rows if protocol == "tcp" for port in ports}


def added() -> list[str]:
    """Return the ports that have sshd's label by a change of this node's own."""
    if not enabled() or not which("semanage"):
        return []
    return sorted(port for port, label in labels("-C").items() if label == LABEL)


def noted() -> list[str]:
    """Return the ports that we gave the label. Raises RecordError where nobody can tell."""
    remedy = "take their label from these ports (`semanage port -l -C`), remove the file, and run again"
    ports: list[str] = records.load(NOTE, {"ports": [str]}, remedy=remedy)[1].get("ports", [])
    return ports


def give(ports: Iterable[str]) -> None:
    """Give ports the label, noted before."""
    if wanted := [*ports]:
        records.store(NOTE, {"ports": sorted({*noted(), *wanted})})
    for port in wanted:
        run(command("-a", port))


def take(ports: Iterable[str]) -> None:
    """Take the label from those that still have it."""
    if ports := set(ports):
        for port in sorted(ports & {*added()}):
            run(command("-d", port))


def unlabelled(ports: Iterable[str]) -> list[str]:
    """Return the ports that SELinux keeps sshd from. Raises RefusedError where they cannot get the label."""
    others = [port for port in ports if port != SHIPPED]
    if not others or not enabled():
        return []
    if not which("semanage"):
        raise RefusedError(
            f"SELinux keeps sshd from port {', '.join(others)}, and semanage, which gives a port the label "
            f"{LABEL}, is missing; nothing was changed. Run `dnf install policycoreutils-python-utils` on "
            "the node and this again, or leave ssh_hardening_ports empty."
        )
    found = labels()
    ranges = [port.split("-") for port, label in found.items() if label == LABEL and "-" in port]
    missing = [
        port
        for port in others
        if found.get(port) != LABEL
        and not any(int(first) <= int(port) <= int(last) for first, last in ranges)
    ]
    if taken := {port: found[port] for port in missing if port in found}:
        said = ", ".join(f"{port} ({label})" for port, label in taken.items())
        raise RefusedError(
            f"SELinux's policy has the port for another service: {said}; nothing was changed. Choose another "
            "in ssh_hardening_ports."
        )
    return missing
