"""Why nothing could be asked of a node, in the words of Ansible and ssh, and what to type about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from temper.plan.model import Target
from temper.plan.preview import one_line
from temper.plan.refusals import Refusal, Remedy, advice, facts_of, refusal, sentences

SSH_PORT = "22"
#: Of a node that takes the connection and gives no answer. Ansible names what it waited for.
SILENT = "become-silent"
TRACEBACK = "Traceback (most recent call last):"
#: How ssh goes on where what it has started to get to the node ends.
BEHIND = "(?:UNKNOWN port 65535|stdio forwarding failed)"
#: The usual causes by what ssh says of them (OpenSSH 9.2: sshconnect.c), and Ansible of the connection
#: (ansible-core 2.19: plugins/connection/ssh.py), and the remedy for each.
UNREACHABLE = (
    # What a jump host says comes before ssh's words of what it starts to get there, which knows no address.
    (re.compile(f"Host key verification failed.*{BEHIND}", re.DOTALL), "way-host-key"),
    (re.compile(rf"(?:(?P<jump>\S+@\S+): )?Permission denied.*{BEHIND}", re.DOTALL), "way-login-refused"),
    (re.compile("REMOTE HOST IDENTIFICATION HAS CHANGED"), "host-key-changed"),
    (re.compile("Host key verification failed|host key is known"), "host-key-unknown"),
    (re.compile("Bad port '"), "port-wrong"),
    (re.compile("(?i)bad configuration option|command-line line 0"), "ssh-options"),
    (re.compile(BEHIND), "way-closed"),
    (re.compile('Load key "(?P<key>[^"\n]+)": bad permissions'), "key-readable"),
    (re.compile(r"no such identity: (?P<key>[^\n]+?): No such file"), "key-absent"),
    (re.compile("Too many authentication failures"), "keys-too-many"),
    (re.compile("pam_nologin|System is (?:booting up|going down)"), "logins-closed"),
    (re.compile("Permission denied"), "login-refused"),
    (re.compile("waiting for privilege escalation prompt"), SILENT),
    (re.compile("Could not resolve hostname"), "name-unknown"),
    (re.compile("Connection refused|kex_exchange_identification"), "no-ssh-server"),
)
#: No name and no address: brackets, blanks, a port behind it.
ODD_ADDRESS = re.compile(r"[\[\]\s]|^[^:]*:[0-9]+$|^$")
#: Characters of a message that are read: a node can say anything before the login.
MOST_READ = 16 << 10
#: What ssh says at length of host keys and key files, beside the cause.
FRAME = re.compile(
    "(?<!@)@+\\s|IT IS POSSIBLE THAT .{0,400}? just been changed\\."
    "|Please contact your system administrator\\.|It is required that .{0,400}? will be ignored\\."
    "|remove with:|ssh-keygen -f .{0,400}? -R \\S+",
    re.DOTALL,
)
#: Likewise by what Ansible says of a node that answers (ansible-core 2.19: plugins/action/__init__.py).
UNREADABLE = (
    (re.compile("(?i)missing .*password|password is required"), "become-password-missing"),
    (re.compile("(?i)incorrect .*password"), "become-password-wrong"),
    (
        re.compile("not in the sudoers file|may not run sudo|not allowed to (?:execute|run)"),
        "become-forbidden",
    ),
    (re.compile("works there as user .*, not as root"), "become-off"),
    (re.compile("No usable temporary directory found"), "temporary-folder"),
    (re.compile("must have a tty to run sudo"), "become-tty"),
    (re.compile("(?i)interpreter .*not found|python[0-9.]*: (command )?not found"), "python-missing"),
)


def unreadable(message: str, target: Target, name: str, *, reached: bool) -> Refusal:
    """Return the problem of a node that nothing can be asked, from what Ansible says of it."""
    facts = {"node": name or target.address} | ways(target)
    if reached:
        before, broke, trace = message.partition(TRACEBACK)
        if broke and trace.strip():  # only its last line says why
            message = f"{before} {trace.strip().rpartition(chr(10))[2]}"
        code, _ = _cause(UNREADABLE, message) or ("mend", {})
        return refusal("node-unreadable", remedy(code, facts), reason=one_line(message))
    # Ansible's own words come before ssh's.
    reason = one_line(
        " ".join(FRAME.sub(" ", message[:MOST_READ]).split()).rpartition("reached over ssh: ")[2]
    )
    code, found = _cause(UNREACHABLE, message) or ("reach", {})
    if ODD_ADDRESS.search(target.address):
        code = "address-alone"
    facts |= {name: one_line(value or "a jump host") for name, value in found.items()}
    user = target.user or "the current user"
    address = target.address or name
    return refusal("node-unreachable", remedy(code, facts), address=address, user=user, reason=reason)


def _cause(causes: Iterable[tuple[re.Pattern[str], str]], message: str) -> tuple[str, dict[str, str]] | None:
    """Return the code of the first cause that a message names, and what else it names."""
    found = ((cause.search(message), code) for cause, code in causes)
    return next(((code, match.groupdict()) for match, code in found if match), None)


def ways(target: Target) -> dict[str, str]:
    """Return a node's `login` and `host` as arguments of OpenSSH's programs, and its name in known_hosts."""
    account = f"{target.user}@" if target.user else ""
    if target.port in ("", SSH_PORT):
        return {"login": account + target.address, "host": target.address, "known_as": target.address}
    option = f"-p {target.port} "
    return {
        "login": option + account + target.address,
        "host": option + target.address,
        # In quotes, because shells read brackets as a pattern.
        "known_as": f"'[{target.address}]:{target.port}'",
    }


def remedy(code: str, facts: dict[str, str]) -> Remedy:
    """Return a remedy with those of the facts that its sentence has."""
    wanted = facts_of(sentences("remedies")[code])
    return advice(code, **{name: value for name, value in facts.items() if name in wanted})
