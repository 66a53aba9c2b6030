"""Files of a site beside ours are read in their programs' order, with the values that their programs take."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible.module_utils.temper.settings.site_lines import (
    CLEARED,
    Line,
    UnreadableError,
    apt_lines,
    audit_lines,
    grammar_of,
    ini_lines,
    keyword_lines,
    limit_lines,
    sudoers_lines,
    version_order,
)

from tests.unit.each import each

CASES = [
    (sudoers_lines, "Defaults timestamp_timeout=0", [("", "timestamp_timeout", "0")]),
    (sudoers_lines, "Defaults !timestamp_timeout", [("", "timestamp_timeout", "0")]),
    (sudoers_lines, "Defaults timestamp_timeout = 2.5, !use_pty # why", [
        ("", "timestamp_timeout", "3"), ("", "use_pty", "!"),
    ]),
    (sudoers_lines, "Defaults timestamp_timeout=-0.5", [("", "timestamp_timeout", "-1")]),
    (sudoers_lines, "Defaults umask=0777", [("", "umask", "!")]),
    (sudoers_lines, 'Defaults:alice, %"domain users"\\\n  logfile="/var/log/a b"', [
        (':alice, %"domain users"', "logfile", "/var/log/a b"),
    ]),
    (sudoers_lines, "Defaults!/usr/bin/su umask=077\nalice ALL=(ALL) ALL\n", [
        ("!/usr/bin/su", "umask", "077"),
    ]),
    (sudoers_lines, 'Defaults secure_path="/a:/b", mailto=x@y,env_keep += "A B"', [
        ("", "secure_path", "/a:/b"), ("", "mailto", "x@y"), ("", "env_keep", "A B"),
    ]),
    (ini_lines, "[Journal]\n#Storage=none\nSystemMaxUse = 8G\n", [("", "Journal.SystemMaxUse", "8G")]),
    (keyword_lines, "minlen = 20 # long\nenforce_for_root\nminclass 3\n", [
        ("", "minlen", "20"), ("", "enforce_for_root", ""), ("", "minclass", "3"),
    ]),
    (limit_lines, "* hard core 0\n@gpu - nofile 4096\nalice -\n# * hard core 1\n", [
        ("", "hard core", "0"), ("@gpu", "soft nofile", "4096"), ("@gpu", "hard nofile", "4096"),
    ]),
    (audit_lines, "-f2\n--backlog_wait_time=0\n-b\n", [("", "-f", "2"), ("", "--backlog_wait_time", "0")]),
    (audit_lines, "-D\n-b 8192\n -f 2\n-w /etc/sudoers -p wa\n", [("", "-b", "8192"), ("", "-f", "2")]),
    (apt_lines, '// a\nA::B "1"; /* c\n "x"; */ A { C "2"; D { "e"; "f"; }; };\n#clear A;\nA::D:: "g";', [
        ("", "A::B", "1"), ("", "A::C", "2"), ("", "A::D::", "e"), ("", "A::D::", "f"), ("", "A", CLEARED),
        ("", "A::D::", "g"),
    ]),
    # So reads apt-config what lacks its last semicolons and braces.
    (apt_lines, 'A { "b"; "c" }\nD { E "f"; ', [("", "A::", "b"), ("", "A::", "c"), ("", "D::E", "f")]),
]  # fmt: skip


@each(*CASES)
def test_lines_say_what_their_program_reads(
    lines: Callable[[str, str], Iterator[Line]], text: str, expected: list[tuple[str, str, str]]
) -> None:
    assert [(line.scope, line.key, line.value) for line in lines(text, "file")] == expected


@each(
    (sudoers_lines, "\nDefaults timestamp_timeout=0 umask=077"),
    (sudoers_lines, '\nDefaults logfile="/var'),
    (apt_lines, '\nA { B "1"'),
)
def test_a_line_that_cannot_be_read_is_named(lines: Callable[[str, str], Iterator[Line]], text: str) -> None:
    with pytest.raises(UnreadableError, match=r"^file:2: expected"):
        list(lines(text, "file"))


FILES = {
    "etc/sudoers": "Defaults umask=1\n@includedir /ROOT/etc/sudoers.d\n@include more/%h\nDefaults umask=7\n",
    "etc/sudoers.d/10-site": "Defaults umask=2\n",
    "etc/sudoers.d/zz": "Defaults umask=4\n",
    "etc/sudoers.d/no.conf": "Defaults umask=9\n",
    "etc/sudoers.d/temper_admins": "# Managed by Temper.\nDefaults umask=9\n",
    "usr/lib/systemd/journald.conf.d/20-a.conf": "[J]\nA=1\n",
    "etc/systemd/journald.conf.d/20-a.conf": "[J]\nA=2\n",
    "run/systemd/journald.conf.d/95-b.conf": "[J]\nA=4\n",
    "etc/systemd/journald.conf": "[J]\nA=0\n",
    "etc/security/pwquality.conf": "minlen=9\n",
    "etc/security/pwquality.conf.d/60-a.conf": "minlen=8\n",
    "etc/security/limits.conf": "* hard core 1\n",
    "etc/security/limits.d/90-a.conf": "* hard core 2\n",
    "etc/audit/rules.d/9-a.rules": "-f 0\n",
    "etc/audit/rules.d/10-a.rules": "-f 1\n",
    "etc/audit/rules.d/zz.rules": "-f 2\n",
    "etc/apt/apt.conf": 'A "3";\n',
    "etc/apt/apt.conf.d/20a": 'A "1";\n',
    "etc/apt/apt.conf.d/20b.bak": 'A "9";\n',
    "etc/apt/apt.conf.d/99site": 'A "2";\n',
}


@each(
    ("etc/sudoers.d/temper-hardening", ["1", "2", "", "4", "7"]),
    ("etc/systemd/journald.conf.d/90-temper.conf", ["0", "2", "", "4"]),
    ("etc/security/pwquality.conf.d/50-temper.conf", ["", "8", "9"]),
    ("etc/security/limits.d/10-temper.conf", ["1", "", "2"]),
    ("etc/audit/rules.d/temper.rules", ["0", "1", "", "2"]),
    ("etc/apt/apt.conf.d/51temper", ["1", "", "2", "3"]),
)
def test_files_are_read_in_the_order_of_their_program(own: str, expected: list[str], tmp_path: Path) -> None:
    """Ours is the empty one. Other files of Temper are none of the site's; a link to /dev/null masks one."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/ROOT", str(tmp_path)))
    masked = tmp_path / "usr/lib/systemd/journald.conf.d/97-c.conf"
    masked.write_text("[J]\nA=9\n")
    (tmp_path / "etc/systemd/journald.conf.d" / masked.name).symlink_to("/dev/null")
    path = tmp_path / own
    assert [line.value if line else "" for line in grammar_of(str(path)).read(path)] == expected


def test_sudoers_that_include_themselves_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "sudoers").write_text("@include sudoers\n")
    own = tmp_path / "sudoers.d" / "temper"
    with pytest.raises(UnreadableError, match="expected sudoers to include at most"):
        list(grammar_of(str(own)).read(own))


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["10-a", "9-a", "temper", "9"]
    assert sorted(names, key=version_order) == ["9", "9-a", "10-a", "temper"]
