"""Rules from checked input, and the table that the kernel makes of them."""

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.access import firewall, network_interfaces, nftables_rules, other_firewall
from ansible.module_utils.temper.access.listeners import Listener
from ansible.module_utils.temper.access.nftables_rules import Limits, Rule, Trusted, networks, parse_rule
from ansible.module_utils.temper.access.ssh_login import Login
from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.records import RecordError
from ansible.module_utils.temper.settings.base import RefusedError

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.needs import root_and

EVERYONE = ["0.0.0.0/0", "::/0"]
LOGIN = Login("ops", "192.0.2.7", 40000, "192.0.2.9", 22)

needs_kernel = root_and("nft")


def rule(**changes: Any) -> dict[str, Any]:
    return {"name": "exporter", "protocol": "tcp", "ports": ["9100"], "sources": ["192.0.2.0/24"], **changes}


SSH = Rule("ssh", "tcp", [(22, 22)], networks("", ["192.0.2.0/24", "2001:db8::/48"]))
LIMITS = Limits(
    ssh_new_per_minute=120, ssh_connections=64, new_per_second=200, connections=1000, log_per_minute=10
)


def table(
    *rules: dict[str, Any],
    peers: list[str] | None = None,
    limits: Limits = LIMITS,
    trusted: list[str] | None = None,
) -> str:
    parsed = [parse_rule(index, item) for index, item in enumerate(rules)]
    let_in = Trusted(networks("", peers or []), nftables_rules.interfaces(trusted or []))
    return nftables_rules.render(SSH, parsed, let_in, limits)


@each("", "*", 'x" accept; #', "much-too-long-name", "a b", "virbr0\n")
def test_name_that_no_interface_has_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match="trusted interfaces: expected the name of a network interface"):
        table(trusted=[name])


@each(*[field.name for field in dataclasses.fields(Limits)])
def test_negative_limit_is_refused(limit: str) -> None:
    with pytest.raises(RefusedError, match=f"{limit}: expected a number from 0"):
        Limits(**{limit: -1})


@each(
    ({"ports": ["70000"]}, "rule 1 (exporter), ports: expected a port from 1 to 65535"),
    ({"ports": ["0"]}, "found '0'"),
    ({"ports": ["http"]}, "found 'http'"),
    ({"ports": ["6100-6000"]}, "found '6100-6000'"),
    ({"ports": ["-1"]}, "found '-1'"),
    ({"ports": []}, "expected at least one item in ports, found none"),
    ({"sources": ["192.0.2.300"]}, "rule 1 (exporter), sources: expected an address or a network"),
    ({"sources": ["192.0.2.7/24"]}, "found '192.0.2.7/24'; its network is 192.0.2.0/24"),
    ({"sources": ["prometheus"]}, "found 'prometheus'"),
    ({"sources": ["::ffff:192.0.2.7"]}, "write 192.0.2.7"),
    ({"sources": ["::"]}, "everybody is 0.0.0.0/0 and ::/0"),
    ({"sources": ["224.0.0.1"]}, "no packet comes from a multicast address"),
    ({"sources": ["fe80::1%eth0/64"]}, "found 'fe80::1%eth0/64'"),
    ({"sources": []}, "(for everyone: 0.0.0.0/0 and ::/0)"),
    ({"name": 'x" accept; #'}, "expected a name of 1 to 60 letters"),
    ({"name": ""}, "expected a name"),
)
def test_wrong_rule_is_refused_with_a_sentence_that_names_it(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        table(rule(**changes))
    assert sentence in str(refusal.value)


@each(
    (
        {"sources": ["192.0.2.0/25", "192.0.2.0/24"], "ports": ["9100-9105", "9103-9110", "80", "9111"]},
        ["ip saddr { 192.0.2.0/24 } tcp dport { 80, 9100-9111 } counter accept"],
    ),
    (
        {"sources": ["192.0.2.7", "2001:db8::/48"], "protocol": "udp"},
        [
            'ip saddr { 192.0.2.7 } udp dport { 9100 } counter accept comment "exporter"',
            'ip6 saddr { 2001:db8::/48 } udp dport { 9100 } counter accept comment "exporter"',
        ],
    ),
    ({"sources": EVERYONE}, ['\t\ttcp dport { 9100 } counter accept comment "exporter"']),
    ({"sources": ["0.0.0.0/0"]}, ["meta nfproto ipv4 tcp dport { 9100 } counter accept"]),
)
def test_each_ip_version_gets_its_line_with_united_networks_and_ports(
    changes: dict[str, Any], lines: list[str]
) -> None:
    text = table(rule(**changes))
    assert [line for line in lines if line not in text] == []


def test_nothing_but_our_table_is_touched() -> None:
    text = table(rule(), peers=["192.0.2.1"])
    assert "flush" not in text
    assert {line.split()[-1] for line in text.splitlines() if line.startswith(("table", "delete"))} == {
        "temper",
        "{",
    }


def ssh_line(login: Login | None = LOGIN, **changes: Any) -> str:
    params: dict[str, Any] = {
        "management_networks": ["192.0.2.0/24"],
        "ssh_ports": [22],
        "peers": [],
        **changes,
    }
    wanted = firewall.Parameters(**params)
    let_in = Trusted(networks("", wanted.peers), wanted.trusted_interfaces)
    return "\n".join(firewall.ssh_rule(wanted, login, let_in, ["192.0.2.9"]).lines())


@pytest.mark.component
def test_controller_outside_the_management_networks_is_refused() -> None:
    with pytest.raises(
        RefusedError, match=r"comes from 192\.0\.2\.7, .* \(198\.51\.100\.0/24\): add its network"
    ):
        ssh_line(management_networks=["198.51.100.0/24"])


def test_controller_that_is_a_peer_is_let_in() -> None:
    assert "198.51.100.0/24" in ssh_line(management_networks=["198.51.100.0/24"], peers=["192.0.2.7"])


@each("127.0.0.1", "::1", "192.0.2.9")
def test_client_on_the_node_itself_is_let_in(client: str) -> None:
    login = dataclasses.replace(LOGIN, client=client)
    assert "198.51.100.0/24" in ssh_line(login, management_networks=["198.51.100.0/24"])


@pytest.mark.parametrize(("interface", "let_in"), [("wg0", True), ("wg7", False)])
def test_client_behind_an_interface_is_let_in_where_that_one_is_trusted(
    interface: str, *, let_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_interfaces, "which", lambda _: "ip")
    monkeypatch.setattr(network_interfaces, "run", lambda _: f'[{{"dst": "x", "dev": "{interface}"}}]')
    changes: dict[str, Any] = {
        "management_networks": ["198.51.100.0/24"],
        "trusted_interfaces": ["wg0"],
    }
    with contextlib.nullcontext() if let_in else pytest.raises(RefusedError, match="comes from 192"):
        ssh_line(LOGIN, **changes)


@pytest.mark.component
@needs_kernel
def test_node_that_lets_a_client_of_its_own_in_accepts_it_before_anything_else() -> None:
    lines = [line.strip() for line in firewall.trial_table(table()).splitlines()]
    assert lines[lines.index("type filter hook input priority filter; policy drop;") + 1] == 'iif "lo" accept'


@pytest.mark.component
@pytest.mark.parametrize(("client", "warned"), [("127.0.0.1", True), ("192.0.2.7", False)])
def test_proof_by_a_client_on_the_node_itself_is_no_proof_and_the_run_warns(
    node: Path, client: str, *, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firewall, "needs_daemon_reload", lambda **_: False)
    monkeypatch.setattr(firewall, "trial_table", lambda _: "table\n")
    (node / "state" / "table").touch()
    wanted = {"management_networks": ["192.0.2.0/24"]}
    login = dataclasses.replace(LOGIN, client=client)
    settled = firewall.Firewall(wanted, 120, login)
    assert settled.warnings() == []
    monkeypatch.setattr(firewall, "trial_table", lambda _: "another table")
    changing = "".join(firewall.Firewall(wanted, 120, login).warnings())
    assert ("(127.0.0.1)" in changing and "firewall_management_networks" in changing) == warned


INTERFACES = json.dumps(
    [
        {
            "ifname": name,
            "flags": ["UP", "LOWER_UP"] if up else ["UP", "NO-CARRIER"],
            "addr_info": [{"local": address, "prefixlen": 24, "scope": "global"}] if address else [],
        }
        for name, up, address in (
            ("eth0", True, "192.0.2.9"),
            ("cni0", True, "10.42.0.1"),
            ("cali1", True, ""),
            ("cali2", True, ""),
            ("docker0", False, "172.17.0.1"),
        )
    ]
)


def warned_of_guests(monkeypatch: pytest.MonkeyPatch, found: list[Listener], **changes: Any) -> str:
    monkeypatch.setattr(network_interfaces, "which", lambda _: "ip")
    monkeypatch.setattr(network_interfaces, "run", lambda _: INTERFACES)
    monkeypatch.setattr(firewall, "listeners", lambda: found)
    monkeypatch.setattr(firewall, "needs_daemon_reload", lambda **_: False)
    wanted = {"management_networks": ["192.0.2.0/24"], "ssh_ports": [22], **changes}
    return "".join(firewall.Firewall(wanted, 120, LOGIN).warnings())


KUBELET = [Listener("tcp", 22, "sshd"), Listener("tcp", 10250, "kubelet")]


@pytest.mark.component
@pytest.mark.usefixtures("node")
def test_first_rules_warn_of_pods_that_they_cut_off_with_the_interfaces_to_trust(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = warned_of_guests(monkeypatch, KUBELET)
    facts = ("tcp 10250 (kubelet)", "cni0, cali* to firewall_trusted_interfaces")
    assert [fact for fact in facts if fact not in said] == []
    assert "docker0" not in said
    assert "sshd" not in said


@pytest.mark.component
@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("found", "changes"),
    [
        (KUBELET[:1], {}),
        (KUBELET, {"trusted_interfaces": ["cni0", "cali*"]}),
        (KUBELET, {"rules": [rule(ports=["10250"], sources=EVERYONE)]}),
    ],
)
def test_pods_that_reach_all_that_listens_are_nothing_to_warn_of(
    found: list[Listener], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warned_of_guests(monkeypatch, found, **changes) == ""


@pytest.mark.component
def test_pods_whose_network_is_accepted_are_nothing_to_warn_of(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warned_of_guests(monkeypatch, KUBELET, peers=["10.42.0.0/16", "192.0.2.9"])
    assert "cni0" not in said
    said = warned_of_guests(monkeypatch, KUBELET, rules=[rule(ports=["10250"], sources=["10.42.0.0/16"])])
    assert "cni0" not in said
    (node / "state" / "table").touch()
    assert warned_of_guests(monkeypatch, KUBELET) == ""  # they were cut off before


def test_port_of_the_present_connection_stays_open() -> None:
    assert "tcp dport { 22, 2222 }" in ssh_line(ssh_ports=[2222])


def test_port_of_a_listen_address_is_open_where_sshds_ports_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "run", lambda _: "port 22\nlistenaddress 192.0.2.9:2222\n")
    assert "tcp dport { 2222 }" in ssh_line(None, ssh_ports=[])


def test_no_management_network_is_refused() -> None:
    with pytest.raises(RefusedError, match="at least one network"):
        ssh_line(None, management_networks=[])


@pytest.mark.component
@needs_kernel
def test_kernel_takes_the_rules() -> None:
    listing = firewall.trial_table(
        table(
            rule(sources=EVERYONE),
            rule(
                name="a-b_c (d), e/f:1.2+3",
                protocol="udp",
                ports=["1", "3-65535"],
                sources=["::/0", "192.0.2.7"],
            ),
            peers=["192.0.2.1", "2001:db8::1", "198.51.100.0/24"],
            trusted=["virbr0", "cali*"],
        )
    )
    assert "policy drop" in listing
    assert 'iifname "cali*" counter accept' in listing
    assert "igmp type membership-query ip ttl 1 counter" in listing
    assert listing.count("accept comment") == 8


@pytest.mark.component
@needs_kernel
def test_same_rules_list_alike_and_one_more_does_not() -> None:
    text = table(rule(), peers=["192.0.2.2", "192.0.2.9"])
    assert firewall.trial_table(text) == firewall.trial_table(text)
    assert firewall.trial_table(text) != firewall.trial_table(table(rule(), rule(ports=["1"])))


@pytest.mark.component
@needs_kernel
def test_loading_again_replaces_and_does_not_add() -> None:
    text = table(rule())
    assert firewall.trial_table(text + text) == firewall.trial_table(text)


def test_no_log_line_and_no_set_where_none_is_wanted() -> None:
    text = table(rule(), limits=Limits())
    assert ("log prefix" in text, "@" in text) == (False, False)


@pytest.mark.component
@needs_kernel
@pytest.mark.parametrize("limit", ["ssh_new_per_minute", "ssh_connections", "new_per_second", "connections"])
def test_kernel_takes_each_limit_alone(limit: str) -> None:
    assert "dynamic" in firewall.trial_table(table(rule(), limits=Limits(**{limit: 7})))


def test_limits_hold_for_what_is_open_to_everybody_alone() -> None:
    world = rule(name="world", sources=["0.0.0.0/0"])
    lines = table(rule(), world, peers=["192.0.2.1"]).splitlines()
    fleet, exporter, open_to_all = (
        next(index for index, line in enumerate(lines) if f'"{name}"' in line)
        for name in ("fleet", "exporter", "world")
    )
    limits = [index for index, line in enumerate(lines) if "too many" in line and "meta l4proto" in line]
    assert max(fleet, exporter) < min(limits)
    assert max(limits) < open_to_all


def test_service_has_the_ports_of_its_name() -> None:
    service = nftables_rules.parse_service("slurmd", ["192.0.2.7"])
    assert service.lines() == ['ip saddr { 192.0.2.7 } tcp dport { 6818 } counter accept comment "slurmd"']


@each(
    ("node-exporter", ["192.0.2.7"], "did you mean node_exporter?"),
    ("nfs", ["192.0.2.7"], "expected one of slurmctld"),
    ("slurmd", [], "expected a list of at least one source"),
    ("slurmd", "192.0.2.7", "found '192.0.2.7'"),
    ("slurmd", ["192.0.2.7/24"], "service slurmd: expected an address"),
)
def test_wrong_service_is_refused(name: str, sources: Any, sentence: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        nftables_rules.parse_service(name, sources)
    assert sentence in str(refusal.value)


def test_peers_that_this_node_is_not_among_are_refused() -> None:
    with pytest.raises(
        RefusedError, match=r"cut the fleet's own network off.*198\.51\.100\.9.*192\.0\.2\.0/24"
    ):
        nftables_rules.check_fleet(networks("", ["192.0.2.0/24"]), ["198.51.100.9", "2001:db8::9"])


def test_node_whose_address_nobody_knows_is_refused() -> None:
    with pytest.raises(RefusedError, match="knows none of gpu01, gpu02"):
        nftables_rules.check_fleet(networks("", ["192.0.2.9"]), ["192.0.2.9"], ["gpu01", "gpu02"])


@each(
    (["192.0.2.0/24"], ["198.51.100.9", "192.0.2.9"]),
    (["192.0.2.9"], ["10.0.0.9"]),  # a fleet of one, behind NAT
    ([], ["10.0.0.9"]),
    (["192.0.2.0/24"], []),
)
def test_peers_that_this_node_may_be_among_are_taken(peers: list[str], own: list[str]) -> None:
    nftables_rules.check_fleet(networks("", peers), own)


def test_report_names_listeners_that_no_rule_opens_and_rules_without_a_listener() -> None:
    rules = [SSH, parse_rule(0, rule()), parse_rule(1, rule(name="range", ports=["6000-6100"]))]
    found = [Listener("tcp", 22, "sshd"), Listener("udp", 111, "rpcbind"), Listener("tcp", 6050, "srun")]
    assert firewall.report(rules, found) == [
        "Listening, but open to nobody outside of the fleet: udp 111 (rpcbind).",
        "Open, but nothing listens there: tcp 9100 (exporter).",
    ]


def test_report_is_empty_where_all_is_well() -> None:
    assert firewall.report([SSH], [Listener("tcp", 22, "sshd")]) == []


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the drop-in that is there; all the other files are gone already."""
    folder = tmp_path / "nftables.service.d"
    folder.mkdir()
    (folder / "temper.conf").touch()
    paths = {name: tmp_path / name for name in ("RULES", "LINK", "UNIT_FILE")}
    paths["FLUSHING_DROP_IN"] = folder / "temper.conf"
    for name, path in paths.items():
        monkeypatch.setattr(firewall, name, path)
    monkeypatch.setattr(firewall, "OUR_FILES", tuple(paths.values()))
    monkeypatch.setattr(firewall, "which", lambda _: None)
    return folder


def remove() -> None:
    setting = firewall.Firewall({"state": "absent"}, 120, None)
    assert not setting.settled()
    setting.apply()
    assert setting.settled()


@pytest.mark.component
def test_a_unit_that_runs_without_its_file_is_stopped_before_the_file_comes_back(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 252 of systemd does not load the file of such a unit while it runs: no rules would come."""
    systemctl = executable(
        tmp_path / "bin/systemctl",
        f"""#!/bin/sh
[ "$1" = show ] && printf 'LoadState=not-found\\nActiveState=active\\nUnitFileState=\\n' &&
    printf 'ConditionResult=no\\nConditionTimestampMonotonic=0\\n' && exit
[ -e {tmp_path}/UNIT_FILE ] && file=there || file=gone
echo "$1 $3 while its file is $file" >>{tmp_path}/told
""",
    )
    monkeypatch.setenv("PATH", f"{systemctl.parent}:{os.environ['PATH']}")
    setting = firewall.Firewall({"management_networks": ["192.0.2.0/24"]}, 120, LOGIN)
    same_rules = SimpleNamespace(
        live="rules", wanted="rules", differing=[File(str(tmp_path / "UNIT_FILE"), "[Unit]\n")], other=None
    )
    monkeypatch.setattr(firewall.Firewall, "outlook", same_rules)
    setting.apply()
    assert (tmp_path / "told").read_text() == f"stop {firewall.UNIT} while its file is gone\n"
    assert (tmp_path / "UNIT_FILE").exists()


def test_absent_leaves_no_empty_folder(installed: Path) -> None:
    remove()
    assert not installed.exists()


def test_absent_leaves_the_drop_in_of_somebody_else(installed: Path) -> None:
    (installed / "other.conf").touch()
    remove()
    assert [path.name for path in installed.iterdir()] == ["other.conf"]


def test_a_plans_items_are_parameters() -> None:
    made = firewall.Firewall.from_items({"management_networks": ["192.0.2.0/24"], "connections": 7}, {})
    wanted = firewall.Parameters.of(made.wanted)
    assert (wanted.management_networks, wanted.limits.connections) == (["192.0.2.0/24"], 7)
    assert not firewall.Firewall.from_items({}, {"absent": True}).present


@pytest.mark.component
def test_rules_that_would_lock_ansible_out_are_an_obstacle() -> None:
    setting = firewall.Firewall({"management_networks": ["198.51.100.0/24"], "ssh_ports": [22]}, 120, LOGIN)
    assert "comes from 192.0.2.7" in (setting.obstacle() or "")


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Only these programs are installed, as shell scripts."""
    for name, text in texts.items():
        executable(folder / name, text)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(process, "SYSTEM_PATH", "")


@pytest.mark.component
@pytest.mark.parametrize(
    ("texts", "other"),
    [
        ({"ufw": "echo Status: active"}, "ufw"),
        ({"ufw": "echo Status: inactive"}, None),
        ({"firewalld": "", "systemctl": "exit 0"}, "firewalld"),
        ({"firewalld": "", "systemctl": "exit 3"}, None),
        ({"ufw": "echo Status: inactive", "firewalld": "", "systemctl": "exit 0"}, "firewalld"),
        ({"systemctl": "exit 0"}, None),
    ],
)
def test_other_firewall_counts_where_it_filters(
    texts: dict[str, str], other: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, **texts)
    found = other_firewall.other_firewall()
    assert (found.name if found else None) == other


@pytest.mark.component
def test_other_firewall_is_refused_with_the_way_out_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, ufw="echo Status: active")
    said = firewall.Firewall({"management_networks": ["192.0.2.0/24"]}, 120, None).obstacle()
    assert said
    ways = ("firewall_disable_other: true", "`ufw disable`", "`ufw enable`", "firewall_state: absent")
    assert [part for part in ways if part not in said] == []


# What the programs of a node would do, as far as their order matters: each writes down that it was called.
PROGRAMS = {
    "ufw": """case "$1" in
        status) [ -e state/ufw ] && echo "Status: active" || echo "Status: inactive";;
        disable) echo ufw ends >>calls; rm -f state/ufw;;
        --force) echo ufw is back >>calls; touch state/ufw;;
    esac""",
    "firewalld": "",
    "firewall-cmd": "",
    "systemctl": """case "$*" in
        *is-active*firewalld.service) [ -e state/firewalld ];;
        "--quiet is-enabled firewalld.service") [ -e state/firewalld-at-boot ];;
        "--no-reload disable firewalld.service") rm -f state/firewalld-at-boot;;
        "--no-reload enable firewalld.service") touch state/firewalld-at-boot;;
        "stop firewalld.service") echo firewalld ends >>calls; rm -f state/firewalld;;
        "--no-block start firewalld.service") echo firewalld is back >>calls; touch state/firewalld;;
        "reload-or-restart temper-firewall.service") echo rules come >>calls; touch state/table;;
        "stop temper-firewall.service") echo rules go >>calls; rm -f state/table;;
        *) echo "unknown: $*" >&2; exit 64;;
    esac""",
    "nft": """case "$*" in
            add*) rm -f state/table; exit;;
            *"list chains") echo '{"nftables": []}'; exit;;
        esac
        [ -e state/table ] && echo table && exit
        echo "No such file or directory" >&2; exit 1""",
    "sshd": "exit 1",
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's files and programs: `state` has what is active, `calls` what was done, in its order."""
    (tmp_path / "state").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "units" / "nftables.service.d").mkdir(parents=True)
    there = " ".join(filter(None, map(shutil.which, ("rm", "touch"))))
    for program in there.split():
        (tmp_path / "bin" / Path(program).name).symlink_to(program)
    texts = {name: f"cd {tmp_path}\n{text}" for name, text in PROGRAMS.items()}
    programs(tmp_path / "bin", monkeypatch, **texts)
    units = tmp_path / "units"
    paths = {
        "RULES": tmp_path / "firewall.nft",
        "FLUSHING_DROP_IN": units / "nftables.service.d" / "temper.conf",
        "LINK": units / "link",
        "UNIT_FILE": units / firewall.UNIT,
    }
    for name, path in paths.items():
        monkeypatch.setattr(firewall, name, path)
    monkeypatch.setattr(firewall, "OUR_FILES", tuple(paths.values()))
    for module in (firewall, other_firewall):
        monkeypatch.setattr(module, "ENDED", tmp_path / "ended.json")
    monkeypatch.setattr(firewall, "trial_table", lambda _: firewall.live_table())
    monkeypatch.setattr(firewall, "stop_lost", lambda _: None)
    return tmp_path


def allowed(**changes: Any) -> firewall.Firewall:
    """The firewall of an operator who lets the other one be ended."""
    return firewall.Firewall({"management_networks": EVERYONE, "disable_other": True, **changes}, 120, None)


def calls(node: Path) -> list[str]:
    """What was done since the last look."""
    path = node / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.component
@pytest.mark.parametrize("other", ["ufw", "firewalld"])
def test_other_firewall_ends_after_our_rules_are_there_and_is_back_before_they_go(
    node: Path, other: str
) -> None:
    (node / "state" / other).touch()
    setting = allowed()
    assert (setting.obstacle(), setting.settled()) == (None, False)
    assert [(line.before, line.after) for line in setting.change()][-1] == ("filters", "ended")
    setting.apply()
    assert calls(node) == ["rules come", f"{other} ends"]
    assert allowed().settled()
    gone = allowed(state="absent")
    assert gone.way_in()
    gone.apply()
    assert calls(node) == [f"{other} is back", "rules go"]
    assert (node / "state" / other).exists()
    assert allowed(state="absent").settled()


@pytest.mark.component
@pytest.mark.parametrize("at_boot", [True, False])
def test_firewalld_comes_back_at_boot_only_where_it_did_before(node: Path, *, at_boot: bool) -> None:
    (node / "state" / "firewalld").touch()
    if at_boot:
        (node / "state" / "firewalld-at-boot").touch()
    allowed().apply()
    assert not (node / "state" / "firewalld-at-boot").exists()
    allowed(state="absent").apply()
    assert (node / "state" / "firewalld-at-boot").exists() is at_boot


@pytest.mark.component
@pytest.mark.parametrize("other", ["ufw", "firewalld"])
def test_undo_of_an_unconfirmed_change_has_the_other_firewall_back_and_ours_gone(
    node: Path, other: str
) -> None:
    """What the timer runs behind the files, in a shell: in both directions."""
    (node / "state" / other).touch()
    first = allowed()
    undo = first.way_in()
    assert undo
    assert {firewall.RULES, other_firewall.ENDED} <= {*undo.files}
    first.apply()
    calls(node)
    process.run(["/bin/sh", "-c", undo.live[0]])
    assert calls(node) == [f"{other} is back"]
    allowed().apply()
    back = allowed(state="absent").way_in()
    assert back
    assert {*firewall.OUR_FILES, other_firewall.ENDED} <= {*back.files}
    calls(node)
    process.run(["/bin/sh", "-c", back.live[0]])
    assert [line for line in calls(node) if "ends" in line] == [f"{other} ends"]


@pytest.mark.component
def test_firewall_that_somebody_started_again_is_ended_again_and_what_it_was_stays_noted(node: Path) -> None:
    (node / "state" / "firewalld").touch()
    (node / "state" / "firewalld-at-boot").touch()
    allowed().apply()
    (node / "state" / "firewalld").touch()
    again = allowed()
    assert not again.settled()
    again.apply()
    allowed(state="absent").apply()
    assert (node / "state" / "firewalld-at-boot").exists()


@pytest.mark.component
def test_other_firewall_that_was_purged_since_keeps_nothing_from_going(node: Path) -> None:
    (node / "state" / "ufw").touch()
    allowed().apply()
    (node / "bin" / "ufw").unlink()
    gone = allowed(state="absent")
    assert gone.way_in() is None
    gone.apply()
    assert allowed(state="absent").settled()


@pytest.mark.component
def test_nothing_is_ended_unasked(node: Path) -> None:
    (node / "state" / "ufw").touch()
    assert "ufw filters here as well" in (allowed(disable_other=False).obstacle() or "")
    assert calls(node) == []


@pytest.mark.component
def test_record_that_nobody_can_read_is_refused_with_what_to_do(node: Path) -> None:
    other_firewall.ENDED.write_text("{}")
    with pytest.raises(RecordError, match=str(other_firewall.ENDED)):
        allowed(state="absent").obstacle()


def test_how_many_elements_a_set_has_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nft 1.1.7 lists it."""
    listed = "\tset ssh_new4 {\n\t\ttype ipv4_addr\n\t\tsize 65535{}\n\t\tflags dynamic\n\t}}\n"
    monkeypatch.setattr(firewall, "run", lambda _: listed.replace("{}", "\t# count 1").replace("}}", "}"))
    assert firewall.live_table() == listed.replace("{}", "").replace("}}", "}")
