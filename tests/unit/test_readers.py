"""Readers of other programs: a text that is cut off, foreign or huge is a sentence, never a traceback."""

import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible.module_utils.temper import mounts, units
from ansible.module_utils.temper.access import network_interfaces, packet_filters, sshd
from ansible.module_utils.temper.engines import config_dump, daemon_json
from ansible.module_utils.temper.kernel import grub
from ansible.module_utils.temper.packaging import apt_sources, dnf, packages, rpm_files
from ansible.module_utils.temper.process import CommandError, OutputError, each_line, parsed
from ansible.module_utils.temper.settings import audit
from ansible.module_utils.temper.settings.base import RefusedError, SettingError

from tests.unit.each import each

HERE = Path(__file__)
UNITS = "LoadState=loaded\nActiveState=active\n\nLoadState=not-found\nActiveState=inactive\n"
INDEX = (
    "Repo-URI: http://mirror/debian\nRelease: bookworm\nOrigin: Debian\n"
    f"Sourcesentry: {HERE}:3\nComponent: main\n"
)
HEADER = "package\tx\t0:1-1\tx86_64\t1\t2\nprovides\tx\t8\t0:1-1\nfile\t/x\n"


def effective(text: str) -> object:
    settings = sshd.parse_effective(text)
    ports = sshd.listening_ports(settings)
    sshd.refuse_what_sshd_cannot_listen_on(settings.get("listenaddress", []), {})
    return ports


def rpm_header(text: str) -> object:
    return ElementTree.tostring(
        parsed("rpm -qp", text, lambda header: rpm_files.element_of(header, HERE, "x.rpm"))
    )


#: What each reads, and a text that it does read.
READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "sshd -T": (effective, "port 22\nlistenaddress 0.0.0.0:22\nlistenaddress [::]:22 rdomain x\n"),
    "ip address": (
        lambda text: parsed("ip", text, network_interfaces.read_interfaces),
        '[{"ifname": "a", "flags": [], "addr_info": '
        '[{"local": "192.0.2.1", "prefixlen": 24, "scope": "global"}]}]',
    ),
    "nft list chains": (
        lambda text: parsed("nft", text, packet_filters.base_chains),
        '{"nftables": [{"chain": {"family": "ip", "table": "t", "name": "c", "hook": "input"}}]}',
    ),
    "nft list chain": (
        lambda text: parsed("nft", text, packet_filters.listed_rules),
        '{"nftables": [{"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 1, "expr": '
        '[{"match": {"op": "==", "left": {"ct": {"key": "state"}}, "right": "new"}}, {"drop": null}]}}]}',
    ),
    "iptables-save": (
        lambda text: parsed("save", text, lambda saved: packet_filters.read_saved(saved, "")),
        '*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp -m comment --comment "a b" -j DROP\n',
    ),
    "dpkg-query": (packages.parse_dpkg, "libc6\t2.36\tinstall\tinstalled\tamd64\nvim\t9\thold\tinstalled\n"),
    "rpm -qa": (lambda text: each_line("rpm", text, dnf.installed), "kernel\t5.14-1\tx86_64\n"),
    "dnf table": (
        lambda text: each_line("dnf", text, dnf.replaced),
        "    replacing  kmod-nvidia.x86_64 1:580-1.el9\n",
    ),
    "dnf sizes": (lambda text: each_line("dnf", text, dnf.sized), "x\t1-1\tx86_64\t10\t20\n"),
    "rpm -q": (rpm_files.identities, "x\t0:1-1\tx86_64\tabc def\n"),
    "rpm header": (rpm_header, HEADER),
    "apt indextargets": (lambda text: apt_sources.parse(text, "Debian"), INDEX),
    "audit rules": (audit.parse_file, "-b 8192\n-w /etc/passwd -p wa -k 'a b'\n"),
    "auditctl -l": (audit.parse_live, "-a always,exit -F arch=b64 -S open -F auid!=-1\n"),
    "auditctl -s": (audit.parse_status, "enabled 1\nfailure 1\n"),
    "containerd": (
        config_dump.read,
        'version = 2\n[plugins."io.containerd"]\n  x = ["a",\n "]"]\ny = [["a"]]\n',
    ),
    "daemon.json": (lambda text: daemon_json.parse(text, "x"), '{"runtimes": {"nvidia": {"args": [1]}}}'),
    "systemctl show": (
        lambda text: parsed(
            "systemctl show", text, lambda t: units.blocks(t, ["a", "b"], ["LoadState", "ActiveState"])
        ),
        UNITS,
    ),
    "mountinfo": (mounts.parse, "29 1 8:1 / /srv/a\\040b rw - ext4 /dev/sda rw\n"),
    "grub.cfg": (grub.menus, "menuentry 'A' --id a {\n linux /vmlinuz-6.1 root=x\n}\n"),
}
ALLOWED = (SettingError, RefusedError, CommandError, audit.AuditError)
FOREIGN = [
    "",
    "\n\n",
    "\0" * 50,
    "Segmentation fault",
    "\t" * 9,
    "[" * 100_000,
    '{"a":' * 100_000,
    "9" * 5000,
    "x = " + "[" * 100_000,
    "x = [\n" * 20_000,
    'x = ["a"]]\n',
    "\ud800",
    "-b",
    "-b '",
    "a\x0cb\u2028c",
]


@each(*READERS)
def test_text_that_is_cut_off_or_foreign_is_a_sentence(name: str) -> None:
    read, sample = READERS[name]
    assert read(sample) is not None
    cut = [sample[:end] for end in range(len(sample))]
    numbers = [sample.replace(digit, "9" * 5000) for digit in "0123456789" if digit in sample]
    started = time.process_time()
    for text in [*cut, *numbers, *FOREIGN, *(sample + text for text in FOREIGN)]:
        try:
            read(text)
        except ALLOWED as error:
            assert len(str(error)) < 2000
    assert time.process_time() - started < 20


def test_line_in_the_way_is_named() -> None:
    with pytest.raises(OutputError, match=r"dpkg-query.*'cut off'"):
        packages.parse_dpkg("libc6\t2.36\tinstall\tinstalled\ncut off\n")


def test_mount_of_a_user_forges_none_and_breaks_nothing(tmp_path: Path) -> None:
    """Names that FUSE lets a user choose: no encoding, and all that Python takes for a blank or an end."""
    table = tmp_path / "mountinfo"
    names = [
        b"\xff",
        "\u2028 1 1 0:1 / / rw - btrfs /dev/sda rw".replace(" ", "\\040").encode(),
        b"a\x0cb\x1c\x85",
    ]
    table.write_bytes(
        b"".join(b"9 1 0:9 / /home/eve/" + name + b" rw - fuse.x /dev/sda1 rw\n" for name in names)
        + b"29 1 8:1 / / rw,nodev shared:1 - ext4 /dev/sda2 rw\n"
    )
    found = mounts.mounts(table)
    assert [one.point for one in found if one.point == "/"] == ["/"]
    assert len(found) == 4
    assert found[-1].options == "rw,nodev"
