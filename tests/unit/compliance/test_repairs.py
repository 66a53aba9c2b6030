"""What an operator is told to type comes from a table of the controller, whatever a node names."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ansible.module_utils.temper.settings.system import SYSCTL_DIRECTORIES
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from temper.compliance.model import State
from temper.compliance.repairs import REPAIRS, command_of
from temper.compliance.statement import statement
from tests.unit.compliance.fleets import RULES, checked, observation
from tests.unit.each import each

#: Words that every pattern of the table must refuse.
HOSTILE = [
    "{{ lookup('pipe', 'id') }}",
    "{% if x %}",
    "{# x #}",
    "a; id",
    "a\nid",
    "a b",
    "$(id)",
    "`id`",
    "--root=/tmp",
    "../../etc/shadow",
    "/etc/shadow",
    "\x1b[2J",
    "x" * 2000,
    "",
]
FITTING = {
    "leave-group": ["bob", "sudo"],
    "security-updates-apt": ["libc6", "libssl3t64:amd64"],
    "drop-sysctl": ["net[./]ipv4[./]ip_forward", "/etc/sysctl.d/99-local.conf"],
    "comment-out-sshd": [
        "12",
        "kbdinteractiveauthentication|challengeresponseauthentication",
        "/etc/ssh/sshd_config.d/00-a.conf",
    ],
    "install-module-dkms": ["nvidia", "595.71.05", "6.12.57+deb13-amd64"],
    "shorten-daemon-json": ["runtimes/nvidia", "features/cdi"],
    **{name: ["6.12.57+deb13-amd64"] for name in ("reinstall-module-apt", "reinstall-module-dnf")},
    **{name: ["nvidia-x.service"] for name in ("unmask", "unmask-runtime", "enable", "restart", "reload")},
}


@pytest.mark.component
@pytest.mark.parametrize("name", REPAIRS)
def test_a_repair_of_fitting_words_is_a_command_of_a_shell(name: str) -> None:
    command = command_of([name, *FITTING.get(name, [])])
    assert command
    subprocess.run(["sh", "-n", "-c", command], check=True)
    # Ansible renders the arguments of ad-hoc commands as templates.
    assert Templar(DataLoader()).template(trust_as_template(command)) == command


@each(*REPAIRS)
def test_no_word_of_a_node_is_more_than_a_name(name: str) -> None:
    words = FITTING.get(name, [])
    for place in range(len(words)):
        for hostile in HOSTILE:
            assert command_of([name, *words[:place], hostile, *words[place + 1 :]]) is None, hostile
    assert command_of([name, *words, HOSTILE[0]]) is None
    assert not words or command_of([name]) is None or REPAIRS[name].more


def test_a_parameter_is_dropped_from_every_file_that_sets_some_at_boot() -> None:
    files = ["/etc/sysctl.conf", "/etc/ufw/sysctl.conf"]
    files += [f"{directory}/99-local.conf" for directory in SYSCTL_DIRECTORIES]
    assert [file for file in files if not command_of(["drop-sysctl", "net[./]one", file])] == []


@each([], [""], ["gpasswd --delete mallory sudo"], ["rm", "-rf", "/"])
def test_a_repair_that_the_table_does_not_have_is_none(words: list[str]) -> None:
    assert command_of(words) is None


def test_nobody_is_told_to_type_what_a_node_made_up() -> None:
    evil = "{{ lookup('pipe', 'touch /tmp/x') }}"
    told = replace(
        observation("unit:nvidia-persistenced.service", State.FAIL),
        repair=((evil,), ("unmask", evil), ("restart", "nvidia-persistenced.service")),
    )
    made = statement([checked("gpu01", told)], RULES, {})
    remedies = {control.remedy for control in made.nodes[0].controls if control.state is State.FAIL}
    assert remedies
    assert all("lookup" not in remedy and "systemctl restart" in remedy for remedy in remedies)


@pytest.mark.component
@pytest.mark.parametrize(
    ("number", "line", "made"),
    [
        (2, "PermitRootLogin yes", "# PermitRootLogin yes"),
        (2, "  permitrootlogin=yes", "#   permitrootlogin=yes"),
        # Typed once more, it goes on to the next command.
        (2, "# PermitRootLogin yes", "# PermitRootLogin yes"),
        # The file is another one by now: nothing is touched, and the command says so.
        (2, "PermitTTY yes", ""),
        (3, "PermitRootLogin yes", ""),
    ],
)
def test_the_line_that_wins_over_ours_becomes_a_comment(
    tmp_path: Path, number: int, line: str, made: str
) -> None:
    command = command_of(["comment-out-sshd", str(number), "permitrootlogin", "/etc/ssh/sshd_config"])
    assert command
    file = tmp_path / "sshd_config"
    file.write_text(f"# ours\n{line}\nX11Forwarding yes\n")
    done = subprocess.run(["sh", "-c", command.replace("/etc/ssh/sshd_config", str(file))])
    assert (done.returncode == 0) == bool(made)
    assert file.read_text() == f"# ours\n{made or line}\nX11Forwarding yes\n"
