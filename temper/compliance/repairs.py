"""Write the commands that repair a node, from what the node says has to be repaired.

A node names a repair and what it is of; the command is the controller's. A node that somebody has taken over
could otherwise have an operator type what it likes, and Ansible renders the arguments of an ad-hoc command as
a template on the controller.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

MOST_NAMES = 1000

_UNIT = r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,127}"
_KERNEL = r"[0-9][A-Za-z0-9.+~_-]{0,127}"

_DAEMON_JSON = "/etc/docker/daemon.json"
# Takes keys (a/b) out of a file and leaves the rest; of a key that stands twice the last stays, as in Docker.
_TAKE_OUT = (
    "import functools,json,sys; file,*keys=sys.argv[1:]; document=json.load(open(file)); "
    "[functools.reduce(dict.get,path[:-1],document).pop(path[-1]) "
    "for path in (key.split('/') for key in keys)]; json.dump(document,open(file,'w'),indent=4)"
)
# The packages that own the nvidia modules of a kernel.
_MODULE_FILES = 'find /lib/modules/{0} -name "nvidia*.ko*"'


@dataclass(frozen=True)
class Repair:
    """A command for a shell on the node; {0}, {1} are the words that the patterns are of.

    Words beyond the patterns match `more`; they stand at {more}. Without `more` there may be none.
    """

    command: str
    patterns: tuple[str, ...] = ()
    more: str = ""

    def of(self, words: Sequence[str]) -> str | None:
        """Return the command of these words; None where one of them is none that the repair may have."""
        needed, rest = words[: len(self.patterns)], words[len(self.patterns) :]
        patterns = [*self.patterns, *[self.more] * len(rest)]
        if len(needed) < len(self.patterns) or len(rest) > MOST_NAMES:
            return None
        if not all(re.fullmatch(pattern, word) for pattern, word in zip(patterns, words, strict=True)):
            return None
        return self.command.format(*map(shlex.quote, needed), more=" ".join(map(shlex.quote, rest)))


#: By the name that modules give them.
REPAIRS = {
    "leave-group": Repair("gpasswd --delete {0} {1}", (r"[a-z_][a-z0-9_-]{0,31}\$?", "sudo|wheel|admin")),
    # Asks nothing, keeps changed configuration files, and restarts no service beyond what packages do by
    # themselves: that is the operator's to choose.
    "security-updates-apt": Repair(
        "DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get --yes --only-upgrade "
        "--option=Dpkg::Options::=--force-confold install {more}",
        more=r"[a-z0-9][a-z0-9.+-]{0,127}(:[a-z0-9]{1,16})?",
    ),
    "update-apt-lists": Repair("apt-get update"),
    "security-updates-dnf": Repair("dnf --assumeyes upgrade --security"),
    "drop-sysctl": Repair(
        "sed -i -E '/^ *-? *'{0}' *=/d' {1}",
        # The name as a pattern: dots and slashes are the same to sysctl.
        (
            r"[a-z0-9_](?:[A-Za-z0-9_-]|\[\./\]){0,127}",
            r"/etc/(?:ufw/)?sysctl\.conf|/(?:etc|run|usr/lib|usr/local/lib)/sysctl\.d/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}",
        ),
    ),
    # The line as it was counted, and only where it still has that keyword: else it fails.
    "comment-out-sshd": Repair(
        "sed -n {0}p {2} | grep -qiE '^(# )?[[:blank:]]*('{1}')[[:blank:]=]' && "
        "sed -i -E --follow-symlinks {0}'{{/^[[:blank:]]*('{1}')[[:blank:]=]/Is/^/# /}}' {2}",
        (
            r"[1-9][0-9]{0,5}",
            # The keyword, and what it was called before.
            r"[a-z][a-z0-9]{1,63}(?:\|[a-z][a-z0-9]{1,63}){0,3}",
            r"/etc/ssh/sshd_config(?:\.d/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127})?",
        ),
    ),
    "load-audit-rules": Repair("augenrules --load"),
    "switch-audit-on": Repair("auditctl -e 1"),
    "unmask": Repair("systemctl unmask {0}", (_UNIT,)),
    "unmask-runtime": Repair("systemctl unmask --runtime {0}", (_UNIT,)),
    "enable": Repair("systemctl enable --no-reload {0}", (_UNIT,)),
    "restart": Repair("systemctl restart {0}", (_UNIT,)),
    "reload": Repair("systemctl reload {0}", (_UNIT,)),
    "install-module-dkms": Repair(
        "dkms install --force -m {0} -v {1} -k {2}", (r"[A-Za-z0-9._-]{1,64}", r"[0-9.]{1,32}", _KERNEL)
    ),
    "reinstall-module-apt": Repair(
        f"apt-get install --reinstall $({_MODULE_FILES} | xargs dpkg-query --search | cut -d: -f1 | sort -u)",
        (_KERNEL,),
    ),
    "reinstall-module-dnf": Repair(
        f"dnf reinstall $({_MODULE_FILES} | xargs rpm --query --file | sort -u)", (_KERNEL,)
    ),
    "move-daemon-json": Repair(f"mv {_DAEMON_JSON} {_DAEMON_JSON}.before-repair"),
    "shorten-daemon-json": Repair(
        f"cp --archive {_DAEMON_JSON} {_DAEMON_JSON}.before-repair && "
        f"{shlex.join(['python3', '-I', '-c', _TAKE_OUT, _DAEMON_JSON])} {{more}}",
        more=r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}",
    ),
}


def command_of(words: Sequence[str]) -> str | None:
    """Return the command for a repair, as a node names it: its name, then what it is of.

    None where the table has no such repair, or not of such words: then nobody is told to type anything.
    """
    known = REPAIRS.get(words[0]) if words else None
    return known.of(words[1:]) if known else None
