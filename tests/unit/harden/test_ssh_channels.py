"""Who is on the way through a node: what sshd has open to others' sshd, and whether a change would cut it."""

from pathlib import Path

import pytest
from ansible.module_utils.temper.access import sshd_settings
from ansible.module_utils.temper.access.ssh_channels import PROGRAMS, Channel, channels
from ansible.module_utils.temper.access.sshd_settings import Outlook, SshdSettings, cut_ways
from ansible.module_utils.temper.process import OutputError

from tests.unit.harden.real_sshd import SiteFiles
from tests.unit.harden.test_sshd_site import parameters

HEADER = "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode\n"
OWN = "0100000A"  # 10.0.0.1
ROWS = {
    "tcp": [
        "00000000:0016 00000000:0000 0A 0:0 00:0 0 0 0 10 1 x",
        f"{OWN}:0016 0900000A:9C40 01 0:0 00:0 0 0 0 11 1 x",  # who is logged in
        f"{OWN}:9C41 0200000A:0016 01 0:0 00:0 0 1001 0 12 1 x",  # to 10.0.0.2:22
        f"{OWN}:9C42 0300000A:08AE 01 0:0 00:0 0 1001 0 13 1 x",  # to 10.0.0.3:2222
        f"{OWN}:9C43 0400000A:1F90 01 0:0 00:0 0 1001 0 14 1 x",  # to 10.0.0.4:8080
        f"{OWN}:9C44 0500000A:0016 06 0:0 00:0 0 1001 0 15 1 x",  # ended
        "0100007F:9C45 0100007F:0016 01 0:0 00:0 0 1001 0 16 1 x",  # to itself
        f"{OWN}:9C46 0600000A:0016 01 0:0 00:0 0 1001 0 17 1 x",  # a user's own ssh
    ],
    "tcp6": [
        f"{'0' * 32}:9C47 B80D0120000000000000000007000000:0016 01 0:0 00:0 0 1001 0 18 1 x",
        f"0000000000000000FFFF0000{OWN}:9C48 0000000000000000FFFF00000800000A:0016 01 0:0 00:0 0 1 0 19 1 x",
    ],
}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Sessions of an sshd and of an upgraded one, and an ssh that calls itself sshd; all run as root."""
    for table, rows in ROWS.items():
        path = tmp_path / "net" / table
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEADER + "".join(f"   {number}: {row}\n" for number, row in enumerate(rows)))
    of = {
        "46": (PROGRAMS[0], range(10, 17)),
        "47": (f"{PROGRAMS[1]} (deleted)", (18, 19)),
        "48": ("/usr/bin/ssh", (17,)),
    }
    for process, (program, inodes) in of.items():
        descriptors = tmp_path / process / "fd"
        descriptors.mkdir(parents=True)
        (tmp_path / process / "comm").write_text("sshd\n")
        (tmp_path / process / "exe").symlink_to(program)
        for inode in inodes:
            (descriptors / str(inode)).symlink_to(f"socket:[{inode}]")
    return tmp_path


@pytest.mark.parametrize(("ports", "others"), [(["22"], []), (["2222"], [Channel("root", "10.0.0.3")])])
def test_channels_to_other_machines(proc: Path, ports: list[str], others: list[Channel]) -> None:
    """To their port 22, or to the port that sshd has here."""
    to = ("10.0.0.2", "10.0.0.8", "2001:db8::7")
    assert set(channels(ports, proc)) == {*(Channel("root", one) for one in to), *others}


def test_a_table_of_another_form_is_an_error(proc: Path) -> None:
    (proc / "net" / "tcp").write_text(f"{HEADER}   0: x\n")
    with pytest.raises(OutputError):
        channels([], proc)


OPEN = [Channel("ops", "10.0.0.2"), Channel("alice", "10.0.0.2")]


@pytest.mark.component
def test_what_a_change_cuts_is_of_those_whom_sshd_forwards_for_now(site: SiteFiles) -> None:
    closed = site.plan(parameters()).files[site.drop_in]
    some = site.plan(parameters(blocks={"Group data": {"AllowTcpForwarding": "local"}})).files[site.drop_in]
    asked = site.sshd()
    assert cut_ways(asked, closed, OPEN) == OPEN
    assert cut_ways(asked, some, OPEN) == OPEN[:1]
    assert closed
    site.drop_in.write_text(closed)
    assert cut_ways(asked, closed, OPEN) == []


@pytest.mark.component
@pytest.mark.parametrize("decided", [False, True])
def test_cut_ways_are_an_obstacle_until_the_operator_decides(site: SiteFiles, *, decided: bool) -> None:
    setting = SshdSettings(parameters(forwarding_decided=decided), 120, None)
    setting.__dict__["outlook"] = Outlook(site.plan(parameters()), [], ["22"], cut=OPEN)
    obstacle = setting.obstacle()
    if decided:
        assert obstacle is None
        assert any("ops to 10.0.0.2" in line for line in setting.warnings())
        return
    assert obstacle
    assert "ops to 10.0.0.2" in obstacle
    assert "ssh_hardening_tcp_forwarding" in obstacle
    assert sshd_settings.word_on_cut_ways(OPEN * 5).endswith("and 2 more (port 22)")
