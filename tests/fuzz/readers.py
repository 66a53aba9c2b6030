"""The table of readers of foreign input, `READERS` at the end: a new reader is a row, and a sample."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from datetime import datetime
from functools import cache, partial
from io import BytesIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import node_facts
from ansible.module_utils.temper import lease, mounts, process, rank, snapshots, units
from ansible.module_utils.temper.access import (
    accounts,
    listeners,
    network_interfaces,
    other_firewall,
    packet_filters,
    ssh_channels,
    ssh_keys,
    sshd,
    tunnels,
)
from ansible.module_utils.temper.driver import gpu_settings, mig, secure_boot, smi
from ansible.module_utils.temper.engines import cdi_nccl, config_dump, daemon_json, others, toolkit_config
from ansible.module_utils.temper.kernel import grub, upgrade
from ansible.module_utils.temper.packaging import (
    apt,
    apt_preview,
    apt_sources,
    dnf,
    openpgp,
    packages,
    rpm_files,
)
from ansible.module_utils.temper.settings import audit, files, modprobe, pam_lines, record, system
from ansible.module_utils.temper.settings.base import RefusedError, SettingError
from ansible.module_utils.temper.settings.site_lines import UnreadableError
from gpu_validation import validation_outcome

from pull import agent, configuration
from pull.repository import OBJECT, refs_in
from pull.result import from_statement
from temper.base import DATA
from temper.base.nodes import printable
from temper.base.programs import Answer
from temper.compliance import document, scans, waivers
from temper.compliance.outside.claims import ClaimsError, read_claims
from temper.compliance.outside.hello import HelloError, read_hello
from temper.fleet import collected
from temper.fleet.stream import StreamError
from temper.plan.fleet import FleetPlan
from temper.plan.module_answers import AnswerError, failure, role_answers
from temper.plan.module_answers import node_facts as facts_of
from temper.plan.node_plan import NodePlan
from temper.plan.os_controls import load_controls
from temper.plan.preflight import preflight_plan
from temper.plan.programs import Programs
from temper.plan.refusals import texts
from temper.plan.role_variables import argument_specs, role_variables
from temper.plan.ssh_ways import Client
from temper.plan.strictness import order_of
from temper.rollout import gpu_settings as rollout_settings
from temper.rollout.drain import kubernetes, slurm
from temper.rollout.drain.base import DrainError
from tests.fuzz import mutations
from tests.fuzz.fleets import (
    archives,
    elsewhere,
    good_results,
    helper_archive,
    helper_lines,
    hostile_sample,
    other_statements,
    others_differ,
    others_pulled,
    pulled_fleet,
    slices,
    stated,
    streams,
    validated,
)
from tests.fuzz.guard import Reader
from tests.fuzz.inputs import (
    CONTROL,
    at,
    each_line,
    folder,
    json_of,
    of,
    on_tree,
    recorded,
    said,
    these,
    written,
)
from tests.unit import (
    openpgp_keys,
    test_apt_sources,
    test_dnf,
    test_mig,
    test_node_snapshot,
    test_package_preview,
    test_rpm_files,
)
from tests.unit.compliance import test_scans
from tests.unit.compliance.fleets import KNOWN, VARIABLES
from tests.unit.compliance.test_outside_judge import GOOD_CLAIMS
from tests.unit.compliance.test_outside_strangers import HELLO
from tests.unit.engines import test_cdi_nccl, test_config_dump, test_others, test_toolkit_config
from tests.unit.fleet import test_pulled, test_stream
from tests.unit.harden import test_listeners, test_packet_filters, test_tunnels
from tests.unit.pages import made_up
from tests.unit.planning_nodes import node
from tests.unit.rollout import test_drain_slurm, test_gpu_settings_read_back
from tests.unit.settings import test_audit, test_pam_lines, test_site_lines
from tests.unit.validation import (
    test_checks,
    test_counters,
    test_drives,
    test_health,
    test_nvidia_smi,
    test_witnesses,
)
from tests.unit.validation.real_reports import from_table
from tests.unit.validation.samples import gpu_xml, smi_xml
from validation.checks.registry import TESTS
from validation.model.contract import EXPECTATIONS_VERSION, ContractError, dumps, parse
from validation.model.contract import node_result as read_result
from validation.model.expectations import fleet_from
from validation.probes import (
    counters,
    drives,
    flight_recorder,
    gpu_samples,
    kernel_log,
    machine,
    nccl_ras,
    nvidia_smi,
    nvlink,
    topology,
)
from validation.probes.reading import ReadingError, in_one_line
from validation.processes.command import Done

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONTROLS = load_controls(DATA / "os_controls")
#: Controls with rules of sudo.
SUDO = ("sudo-terminal", "umask")
OF_PROGRAMS = {
    "unknown": dict.fromkeys(SUDO, "sudo-rs 0.2.5 does not know its rule"),
    "without": ["OpenSSH_9.2p1 does not know RequiredRSASize"],
    "refused": [
        {"role": "firewall", "said": "nft of this node refuses the rules: 'syntax error'"},
        {"role": "os_hardening", "said": "authselect.conf names no profile: select one", "advises": True},
    ],
    "unasked": {"auditctl": "`unshare` is not installed on this node"},
}

# What each reader reads, where that is more than one call.


def nvidia_reports() -> list[str]:
    """Real reports up to 100 kB, and one of the simulator's form."""
    real = [one.text for one in from_table() if len(one.text) < 100_000]
    return [
        *real,
        smi_xml(gpu_xml(), gpu_xml(uuid="GPU-2")),
        smi_xml(gpu_xml()).replace("</gpu>", test_gpu_settings_read_back.MIG),
    ]


def drive(found: Any) -> object:
    """Ask a drive as nvme-cli and as smartctl answer."""
    text = mutations.as_text(found)
    for program in ("nvme", "smartctl"):
        with (
            patch.object(drives, "run", lambda *_: Done(0, text, "")),
            patch.object(shutil, "which", lambda name, program=program: name if name == program else None),
        ):
            drives._drive("nvme0", "model", drives._log("nvme0"))
    return None


def sshd_settings(text: str) -> object:
    """Read `sshd -T` and all that is taken of it."""
    effective = sshd.parse_effective(text)
    sshd.refuse_what_sshd_cannot_listen_on(effective.get("listenaddress", []), {})
    return sshd.listening_ports(effective)


def stricter_parameters(root: Path) -> object:
    """Read what a site's files and the kernel say of parameters, and take the strictest values."""
    found = []
    with patch.object(system, "SYSCTL_DIRECTORIES", (str(root),)), patch.object(system, "PROC_SYS", root):
        for name, wanted in (
            ("kernel.kptr_restrict", "1"),
            ("kernel.sysrq", "176"),
            (system.REVERSE_PATH, "2"),
        ):
            (parameter,) = system.sysctls(name, wanted)
            parameter.order = str(order_of("sysctl", name))
            found.append((parameter.value, parameter.kept(), parameter.fault()))
    return found


def stricter_keyword(path: Path) -> object:
    """Read what a file of the site says of one keyword, and take the strictest value."""
    keyword = files.Keyword(str(path), "UMASK", "027")
    keyword.order = "umask"
    return keyword.value, keyword.kept(), keyword.change()


def sysctl_files() -> list[dict[str, str]]:
    """Return a site's files and what the kernel has."""
    site = "# ours\nkernel.kptr_restrict = 2\n-net/ipv4/conf/eth0.5/rp_filter=1\nkernel.sys* = 16\n"
    live = {"kernel/kptr_restrict": "0\n", "kernel/sysrq": "438\n"}
    interfaces = {f"net/ipv4/conf/{name}/rp_filter": "1\n" for name in ("all", "eth0.5", "lo")}
    return [{"10-site.conf": site, **live, **interfaces}]


def sockets() -> list[dict[str, str]]:
    """Return the kernel's tables of sockets, with a process that has one of them."""
    tables = {
        f"net/{name}": test_listeners.HEADER
        + "".join(f"   {number}: {row}\n" for number, row in enumerate(rows))
        for name, rows in test_listeners.TABLES.items()
    }
    return [{**tables, "46/comm": "sshd\n"}]


def listening(proc: Path) -> object:
    """Read what listens; no user writes the range of ports."""
    ports = proc / "sys/net/ipv4/ip_local_port_range"
    ports.parent.mkdir(parents=True)
    ports.write_text("32768\t60999\n")
    return [listeners.listeners(proc), ssh_channels.channels(["22"], proc)]


def tunnel_links(found: Any) -> object:
    """Find tunnels among links; no program says more of them."""
    text = mutations.as_text(found)
    links = process.parsed("ip", text, network_interfaces.read_interfaces)
    with patch.object(tunnels, "run", lambda _: ""):
        return tunnels.tunnels(links)


def kernel_menus(script: str) -> object:
    """Find every kernel in a grub.cfg."""
    found = grub.menus(script)
    return [grub.release_of(path, found) for _, path in grub.paths(found)]


def rpm_header(text: str) -> object:
    """Describe a package file to a repository."""
    path = folder() / "x.rpm"
    path.touch()
    with patch.object(rpm_files, "attempt", lambda *_: SimpleNamespace(returncode=0, stdout=text, stderr="")):
        return rpm_files.package_element(path, "x.rpm")


def instances() -> object:
    """Read the MIG instances and profiles of a GPU."""
    return mig.profiles(), mig.present([mig.Card(0, "H100", "GPU-1", mig.ON, mig.ON)])


def of_a_site() -> dict[Any, list[str]]:
    """What reads the files of a site beside ours, and samples."""
    texts: dict[Any, list[str]] = {}
    for lines, text, _ in test_site_lines.CASES:
        texts.setdefault(lines, []).append(text)
    texts[pam_lines.stack_lines] = [test_pam_lines.STACK]
    texts[modprobe.installs] = [
        "install usb-storage /bin/true\ninstall cram* /sbin/modprobe -i \\\n  cramfs\n"
    ]
    return texts


def lines_of(lines: Any, text: str) -> list[object]:
    """All lines of a text."""
    return list(lines(text, "file"))


def logical_volumes() -> object:
    """Read the state of a snapshot of LVM."""
    found = snapshots._lvs("vg0")
    by_name = {one["lv_name"]: one for one in found}
    return [snapshots._state(one, by_name) for one in found]


def cluster(found: Any) -> object:
    """Look at a node and its pods as kubectl shows them, and a few budgets."""
    items = found.get("items") if isinstance(found, dict) else None
    few = {"items": items[:50] if isinstance(items, list) else items}

    def answer(command: Sequence[str], *_: object) -> Answer:
        return Answer(0, mutations.as_text(few if "poddisruptionbudgets" in command else found), "")

    with patch.object(kubernetes, "ask", answer):
        drainer = kubernetes.Kubernetes("night-7")
        return drainer.look("gpu01"), drainer.empty("gpu01", 1), drainer.survey(["gpu01"])


def of_ras() -> list[str]:
    """Return what NCCL's RAS answers as text, each with ranks of 32."""
    return [
        test_witnesses.GUIDE_COUNTS,
        test_witnesses.GUIDE_MISSING,
        test_witnesses.SINCE_2_26.replace("  4  ", " 32  ").replace(" 3 ranks", " 31 ranks"),
    ]


def ras_lags(size: int, text: str) -> list[nccl_ras.Lag]:
    """Read an answer of NCCL's RAS about communicators of `size` ranks."""
    return nccl_ras.read(text, size)


def mig_lists() -> list[str]:
    """Return what `nvidia-smi mig` lists."""
    return [test_mig.INSTANCES, test_mig.COMPUTE, *recorded()["mig_profiles"]]


def payload_output(found: Any) -> object:
    """Read what the payload printed, as the playbook does."""
    return validation_outcome({"stdout": mutations.as_text(found)})


def payload_result(found: Any) -> object:
    """Read a result, as the report does."""
    return read_result(parse(mutations.as_text(found)), TESTS)


def checked_variables(found: Any) -> object:
    """Check variables as a node's inventory has them."""
    return role_variables(found if isinstance(found, dict) else {}, specs())


def defaults() -> list[Any]:
    """Return the variables of all roles with their defaults."""
    return [json_of(role_variables({}, specs())["values"])]


def statements() -> list[Any]:
    """Return the document of a statement, and one of version 2, in which a node is like another one."""
    whole = json.loads("".join(document.text(made_up.statement(3))))
    first, second, _ = whole["nodes"]
    like = second | {"like": first["node"], "controls": second["controls"][:1]}
    return [whole, whole | {"schema_version": 2, "nodes": [first, like]}]


def expectations() -> list[Any]:
    """Return what is expected of a node."""
    nodes = {"gpu01": parse(dumps(made_up.expectation()))}
    return [{"schema_version": EXPECTATIONS_VERSION, "nodes": nodes}]


# Files of a node, by the functions that read them.
PAYLOAD_READS = (
    lambda root: topology.read(("0000:1b:00.0",), root),
    machine.pci_gpus,
    partial(machine.cpus_near, "0000:1b:00.0"),
)
MODULE_READS = (
    node_facts.os_release,
    node_facts.cpu,
    node_facts.memory_bytes,
    node_facts.disks,
    node_facts.pci_devices,
    node_facts.has_rdma,
)

# What must not be accepted.

OURS = re.compile(r"(?:\[[\s\d.]+\] )?(?:NVRM: |nvidia-nvswitch\d+: )")
LOADED = re.compile(r"(?:\[[\s\d.]+\] )?NVRM: loading NVIDIA UNIX")
KERNEL_LINES = (
    f"[ 1.5] {test_health.OFF_THE_BUS}",
    test_health.OFF_THE_BUS,
    test_health.NONFATAL,
    test_health.SWITCH.format("Fatal"),
    "NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.",
    test_health.RESET_REQUIRED,
    test_health.RECOVERY.format("0x2 (OS Reboot)"),
    "NVRM: Xid (PCI:0000:43:00): a new form, 13",
)
LOG = "\n".join(
    (
        "[ 0.0] Linux version 6.12.117",
        "[ 1.2] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04",
        *KERNEL_LINES,
        f"overlay: filesystem on {test_health.OFF_THE_BUS.replace('43', '1b')} not supported as upperdir",
        f"overlay: filesystem on {test_health.RESET_REQUIRED} not supported as upperdir",
        "overlay: filesystem on NVRM: loading NVIDIA UNIX not supported as upperdir",
        "Memory cgroup out of memory: Killed 7 (nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 1, Fatal, x)",
    )
)


def forged(text: str, found: tuple[kernel_log.Event, ...]) -> str:
    """Say which Xid a user has forged, or which one of the driver's own lines was forgotten."""
    lines = text.splitlines()
    own = [line for line in lines if OURS.match(line)]
    for event in found:
        if event.number and not any(
            str(event.number) in line and event.address.removeprefix("0000:") in line.lower() for line in own
        ):
            return "an Xid out of a line that the driver did not begin"
        if not event.number and not any(event.detail[:24] in in_one_line(line) for line in own):
            return "an error out of a line that the driver did not begin"
    begin = max((number for number, line in enumerate(lines) if LOADED.match(line)), default=-1)
    numbers = {event.number for event in found}
    for line in lines[begin + 1 :]:
        if line in KERNEL_LINES[:4] and int(re.findall(r"\): (\d+)", line)[0]) not in numbers:
            return "an Xid was forgotten"
    return ""


def odd_lag(_given: Any, found: Sequence[nccl_ras.Lag]) -> str:
    """Say whether a lag names no rank, all ranks, or one that there is not, or has a kind of no word."""
    for lag in found:
        if not 0 < len(lag.ranks) <= lag.size or not all(0 <= rank < lag.size for rank in lag.ranks):
            return "ranks that there are not"
        if CONTROL.search(lag.kind) or len(lag.kind) > 40:
            return "a kind of collective that is no word"
    return ""


def unwritable(_given: Any, found: Any) -> str:
    """Say whether what was accepted cannot be written, or has no time zone, or is beyond any machine."""
    try:
        dumps(found).encode()
    except (ValueError, RecursionError) as error:
        return f"accepted, and cannot be written: {type(error).__name__}"
    try:
        zone = datetime.fromisoformat(found.started_at).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        return "a time that is none, or has no zone"
    return "more than 64 GPUs" if len(found.gpus) > 64 else ""


def odd_key(_text: str, key: ssh_keys.PublicKey) -> str:
    """Say whether a key is another one when it is read again, or more than a line."""
    whole = not CONTROL.search(key.line) and "\n" not in key.line
    return "" if whole and ssh_keys.parse_public_key(key.line) == key else "a key that is no line"


def odd_ref(_text: str, found: Mapping[str, str]) -> str:
    """Say whether a ref was accepted that a line of text cannot name, or that has no object."""
    odd = any(not name or len(name) > 200 or name.split() != [name] for name in found)
    return (
        "a ref without a name or an object" if odd or not all(map(OBJECT.fullmatch, found.values())) else ""
    )


@cache
def keys() -> list[bytes]:
    """Public keys of GnuPG, binary and with armour."""
    with openpgp_keys.made("rsa4096", "ed25519") as ring:
        return [
            ring.export("rsa4096", armour=False),
            ring.export("ed25519", armour=False),
            ring.export("ed25519", armour=True),
        ]


@cache
def specs() -> dict[str, Any]:
    """Return the argument specs of all roles."""
    return argument_specs()


def module_answers(found: Any) -> list[dict[str, Any]]:
    """Read what modules answer, as actions do."""
    answer = found if isinstance(found, dict) else {}
    asked: dict[str, object] = {"firewall": None, "ssh_hardening": None}
    return [failure(answer), facts_of(answer), *role_answers(answer, "roles", asked).values()]


def foreign_keys(_given: Any, found: list[dict[str, Any]]) -> str:
    """Say whether an action would return a key that Ansible obeys."""
    names = {str(name) for one in found for name in one}
    return (
        "a key that Ansible obeys" if any(name in OBEYED or name[:9] == "_ansible_" for name in names) else ""
    )


def odd_name(_given: Any, found: Any) -> str:
    """Say whether an algorithm has a name that a terminal acts on, or that is none."""
    names = (*found.kex, *found.host_keys, *found.ciphers, *found.macs)
    return (
        "a name of other characters"
        if any(not re.fullmatch(r"[!-+\--~]{1,64}", name) for name in names)
        else ""
    )


def odd_claim(_given: Any, found: Any) -> str:
    """Say whether the node has this machine connect to what is no port, or ask for what is no name."""
    # A directory service has names with a backslash, spaces and dollars in them.
    if any(not (name.isascii() and name.isprintable()) or name[0] in "- " for name in found.accounts):
        return "an account"
    return "a port" if any(not 1 <= port <= 65535 for port in found.listening) else ""


def words_of_programs(found: Any) -> list[str]:
    """Read what module node_programs answers, as the plan has it."""
    answer = Programs.from_dict(found if isinstance(found, dict) else {})
    waived = answer.waived(CONTROLS, "debian-13", SUDO)
    return [*answer.lines(), *texts(answer.refusals()), *(f"{one.id} {one.reason}" for one in waived)]


def odd_words(_given: Any, found: list[str]) -> str:
    """Say whether a sentence has more lines, or what a terminal acts on."""
    return "a line of its own" if any(CONTROL.search(one) or "\n" in one for one in found) else ""


def planned(facts: Any) -> dict[str, Any]:
    """Plan a node with these facts."""
    return preflight_plan({"ansible_facts": {"temper": facts}}, VARIABLES, KNOWN)


@cache
def honest_plan() -> dict[str, Any]:
    """Return the plan of a node that is as it should be."""
    return planned(node())


def odd_plan(_given: Any, found: dict[str, Any]) -> str:
    """Say whether the plan of a node or of the fleet has what a terminal acts on; both can be written."""
    fleet = FleetPlan.from_dict({"gpu01": honest_plan(), "gpu02": found})
    json.dumps(fleet.as_dict())
    texts = (found["text"], *found["problems"], *found["warnings"], fleet.text())
    return "a control character" if any(printable(text) != text for text in texts) else ""


def misedited(text: str, after: str) -> str:
    """Say what the edited file has lost or gained beside one key; of what is no TOML nothing is expected."""
    try:
        before = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ""
    wanted = test_toolkit_config.flat(before) | {toolkit_config.NO_CGROUPS: False}
    try:
        same = test_toolkit_config.flat(tomllib.loads(after)) == wanted
    except tomllib.TOMLDecodeError:
        return "a file that is no TOML any more"
    return "" if same else "another key was changed"


#: What Ansible does with an action's result (ansible/vars/clean.py and strategy/__init__.py).
OBEYED = {"add_host", "add_group", "ansible_facts", "ansible_stats", "ansible_notify", "invocation"}
SMI = nvidia_smi.NvidiaSmiError
REFS = "".join(
    f"{digit * 40}\trefs/{name}\n" for digit, name in zip("ab", ("heads/main", "tags/fleet-1"), strict=True)
)
NODE_ERRORS = (RefusedError, SettingError, process.CommandError)
SIGNATURE = secure_boot.X509 + b"".join(size.to_bytes(4, "little") for size in (60, 0, 32)) + bytes(32)
SMARTCTL = {
    "nvme_smart_health_information_log": {**test_drives.LOG, "available_spare": 1, "percentage_used": 2}
}
APT = "\n".join(
    test_apt_sources.target("http://mirror/debian/", "bookworm", one, entry=f"{__file__}:{number}")
    for number, one in enumerate(("main", "contrib"))
)
LVS = [getattr(test_node_snapshot, name) for name in ("ORIGIN", "COPY", "THIN", "POOL")]
MOUNTS = test_node_snapshot.MOUNTINFO + test_node_snapshot.ZFS_MOUNTS
CDI = (test_cdi_nccl.NEW, test_cdi_nccl.OLD, '{"containerEdits": {"mounts": []}}')
SSH_CLIENT = "host gpu02\nuser ops\nhostname 192.0.2.2\nport 22\nproxyjump ops@gpu01:22\n"

READERS = (
    # What programs print on a node, read by the payload.
    Reader("nvidia-smi -q -x", nvidia_smi.parse, nvidia_reports, (SMI,), weight=2),
    Reader("settings in nvidia-smi -q -x", rollout_settings.parse, nvidia_reports, (ValueError,)),
    Reader("nvidia-smi nvlink --status", nvlink.parse, of("nvlink"), (SMI,)),
    Reader(
        "nvidia-smi nvlink -e", counters.parse, these(test_counters.HOPPER, test_counters.BLACKWELL), (SMI,)
    ),
    Reader(
        "nvidia-smi samples",
        gpu_samples.parse_samples,
        these(test_checks.IDLE, test_nvidia_smi.SAMPLES),
        (SMI,),
    ),
    Reader(
        "kernel log", lambda text: kernel_log.events(text.splitlines()), these(LOG), wrong=forged, weight=3
    ),
    Reader("nvme, smartctl", drive, these(test_drives.LOG, SMARTCTL), (ValueError,)),
    Reader("CPU lists", each_line(machine.cpu_list), of("cpu_lists"), (ValueError,)),
    Reader("CPU lists of jobs", each_line(rank.cpu_list), of("cpu_lists"), (ValueError,)),
    Reader(
        "torch's flight recorder",
        flight_recorder.read,
        lambda: [test_witnesses.dump(3, 4, 5, enqueued="5"), test_witnesses.dump(4, 5, enqueued=4)],
        (flight_recorder.FlightError,),
    ),
    Reader("NCCL's RAS, as text", partial(ras_lags, 32), of_ras, (nccl_ras.RasError,), odd_lag),
    Reader(
        "NCCL's RAS, as JSON",
        lambda found: ras_lags(3, mutations.as_text(found)),
        lambda: [test_witnesses.guide_json(7, 6), test_witnesses.guide_json(7, 6, 7, missing=None)],
        (nccl_ras.RasError,),
        odd_lag,
    ),
    Reader("sysfs, in the payload", on_tree(*PAYLOAD_READS), of("tree"), (ReadingError,)),
    # What programs print on a node, read by modules.
    Reader("sysfs, in modules", on_tree(*MODULE_READS), of("tree"), NODE_ERRORS),
    Reader("GPU settings as CSV", gpu_settings.parse_gpus, of("gpu_settings"), (smi.SettingsError,)),
    Reader("nvidia-smi mig", said(mig, "nvidia_smi", instances), mig_lists, (smi.SettingsError,)),
    Reader("sshd -T", sshd_settings, of("sshd"), NODE_ERRORS),
    Reader("ssh -G", Client.from_text, these(SSH_CLIENT), (ValueError,)),
    # What the engine takes for a file that cannot be read (FAILURES).
    Reader(
        "sysctl.d", on_tree(stricter_parameters), sysctl_files, (*NODE_ERRORS, OSError, UnicodeDecodeError)
    ),
    Reader("keywords", written(stricter_keyword), these('UMASK 022 # ours\nUMASK\t"077"\n'), NODE_ERRORS),
    Reader("/proc/net", on_tree(listening), sockets, (*NODE_ERRORS, OSError)),
    Reader(
        "ip, for the firewall",
        said(network_interfaces, "run", network_interfaces.own_interfaces),
        of("ip"),
        NODE_ERRORS,
    ),
    Reader(
        "ip, tunnels",
        tunnel_links,
        these(test_tunnels.LISTED),
        NODE_ERRORS,
    ),
    Reader(
        "ip xfrm policy",
        lambda text: process.parsed("ip", text, tunnels.ipsec_policies),
        these(test_tunnels.POLICIES),
        NODE_ERRORS,
    ),
    Reader(
        "bridge",
        said(tunnels, "run", lambda: tunnels.vxlan_remotes("vx0")),
        these(test_tunnels.FDB),
        NODE_ERRORS,
    ),
    Reader(
        "wg",
        lambda text: process.parsed(
            "wg", text, lambda shown: tunnels.wireguard_peers(shown, shown, shown, set())
        ),
        these(*test_tunnels.SHOWN.values()),
        NODE_ERRORS,
    ),
    Reader(
        "WireGuard's files",
        lambda text: list(tunnels.keys_with_endpoint(text)),
        these("[Peer]\nPublicKey = a=\nEndpoint=h:5\n", "[wireguard-peer.a=]\nendpoint=h:5\n"),
    ),
    Reader(
        "nft, chains",
        lambda text: process.parsed("nft", text, packet_filters.base_chains),
        these(test_packet_filters.RECORDED["neighbours"]["nft --json list chains"]),
        NODE_ERRORS,
    ),
    Reader(
        "nft, rules",
        lambda text: process.parsed("nft", text, packet_filters.listed_rules),
        these(test_packet_filters.RECORDED["narrow"]["nft --json --terse list chain inet narrow incoming"]),
        NODE_ERRORS,
    ),
    Reader(
        "iptables-save",
        lambda text: process.parsed("save", text, lambda saved: packet_filters.read_saved(saved, "")),
        these(test_packet_filters.RECORDED["iptables_legacy"]["iptables-legacy-save -t filter"]),
        NODE_ERRORS,
    ),
    Reader("ip, for the facts", said(node_facts, "run_text", node_facts.interfaces), of("ip"), NODE_ERRORS),
    Reader("dpkg-query", lambda text: packages.parse_dpkg(text, "amd64"), of("dpkg"), NODE_ERRORS),
    Reader(
        "dpkg-query, what packages need", lambda text: sorted(apt.parse_needs(text)), of("needs"), NODE_ERRORS
    ),
    Reader("dnf's table", lambda text: test_dnf.Scripted().parse(text), these(test_dnf.TABLE), NODE_ERRORS),
    Reader(
        "rpm -qa",
        lambda text: process.each_line("rpm", text, dnf.installed),
        these("kernel\t5.14-1\tx86_64\n"),
        NODE_ERRORS,
    ),
    Reader(
        "dnf's sizes",
        lambda text: process.each_line("dnf", text, dnf.sized),
        these("x\t1-1\tx86_64\t10\t20\n"),
        NODE_ERRORS,
    ),
    Reader("rpm -q", rpm_files.identities, of("rpm"), NODE_ERRORS),
    Reader("rpm headers", rpm_header, these(test_rpm_files.HEADER), NODE_ERRORS),
    Reader("apt-get indextargets", lambda text: apt_sources.parse(text, "Debian"), these(APT), NODE_ERRORS),
    Reader(
        "apt's preferences",
        written(lambda path: [str(pin) for pin in apt_preview.entries(path)]),
        these(test_package_preview.AWAY, f"# of the site\n\n{test_package_preview.OTHER}"),
    ),
    Reader(
        "containerd, CRI-O",
        config_dump.read,
        these(test_config_dump.CONTAINERD_1, test_config_dump.CRIO),
        NODE_ERRORS,
    ),
    Reader(
        "the container toolkit's file",
        lambda text: toolkit_config.edited(text, {toolkit_config.NO_CGROUPS: "false"}),
        these(test_toolkit_config.PACKAGED, test_toolkit_config.SPREAD),
        NODE_ERRORS,
        misedited,
    ),
    Reader(
        "kubelet's endpoint",
        others.ENDPOINT.findall,
        these(test_others.KUBEADM, test_others.KUBELET_YAML),
    ),
    Reader(
        "daemon.json", lambda text: daemon_json.parse(text, "daemon.json"), of("daemon_json"), NODE_ERRORS
    ),
    Reader("CDI", lambda text: cdi_nccl.with_mount(text, "/x"), these(*CDI), (cdi_nccl.SpecificationError,)),
    Reader("audit rules", audit.parse_file, these(test_audit.TEXT), (audit.AuditError,)),
    Reader(
        "auditctl -l", audit.parse_live, these(test_audit.as_printed(test_audit.TEXT)), (audit.AuditError,)
    ),
    Reader("auditctl -s", audit.parse_status, these(test_audit.STATUS), (audit.AuditError,)),
    *(
        Reader(f"{lines.__name__} of a site", partial(lines_of, lines), these(*texts), (UnreadableError,))
        for lines, texts in of_a_site().items()
    ),
    Reader("SSH public keys", ssh_keys.parse_public_key, of("ssh_key"), (ValueError,), odd_key, weight=2),
    Reader("OpenPGP keys", openpgp.keys, keys, (openpgp.OpenPGPError,), weight=2),
    Reader("EFI certificates", secure_boot.certificates, these(SIGNATURE)),
    Reader("mountinfo", written(mounts.mounts), these(MOUNTS), NODE_ERRORS),
    Reader(
        "lvs",
        said(snapshots, "_run", logical_volumes),
        these({"report": [{"lv": LVS}]}),
        (snapshots.SnapshotError,),
    ),
    Reader("grub.cfg", kernel_menus, of("grub")),
    Reader(
        "systemctl show",
        said(units, "run", partial(units.unit_states, ["a", "b"])),
        of("systemctl"),
        NODE_ERRORS,
    ),
    # What a node remembers.
    Reader(
        "record: settings",
        at(record, "RECORDS", partial(record.Record, "gpu01")),
        of("settings_record"),
        NODE_ERRORS,
    ),
    Reader("record: accounts", written(accounts.AccountsRecord), of("accounts_record"), NODE_ERRORS),
    Reader("record: lease", written(lease.read), of("lease"), (lease.LeaseError,)),
    Reader(
        "record: another firewall",
        at(other_firewall, "ENDED", other_firewall.ended),
        of("firewall_record"),
        NODE_ERRORS,
    ),
    Reader("record: kernel upgrade", at(upgrade, "RECORD", upgrade.noted), of("upgrade_record"), NODE_ERRORS),
    Reader(
        "record: clocks",
        at(gpu_settings, "RECORD", gpu_settings.read_record),
        of("clocks_record"),
        (smi.SettingsError,),
    ),
    Reader("record: accepted by pull", written(agent.accepted_in), of("accepted"), (SettingError,)),
    Reader(
        "pull's configuration",
        written(configuration.Configuration.load),
        of("accepted"),
        (configuration.ConfigurationError,),
    ),
    Reader("git ls-remote", refs_in, these(REFS), wrong=odd_ref),
    Reader("pull's statement", lambda found: from_statement(found, "gpu01"), of("statement"), (ValueError,)),
    # What a node, a helper or an inventory hands to the controller.
    Reader("result", payload_result, lambda: [good_results()["bad"]], (ContractError,), unwritable, weight=2),
    Reader("result, in the playbook", payload_output, lambda: [good_results()["bad"]]),
    Reader(
        "report, one of five nodes hostile",
        validated,
        lambda: [good_results()["bad"]],
        (),
        others_differ,
        weight=20,
    ),
    Reader(
        "statement, one of five nodes hostile",
        stated,
        lambda: [hostile_sample()],
        (),
        other_statements,
        weight=20,
    ),
    Reader(
        "nodes that pull, one of five hostile",
        pulled_fleet,
        lambda: [json_of(json.loads(test_pulled.GOOD.text()))],
        (),
        others_pulled,
        weight=3,
    ),
    Reader("facts to plan", planned, lambda: [node()], (), odd_plan, weight=6),
    Reader(
        "plan of a node",
        lambda found: NodePlan.from_fact(found if isinstance(found, dict) else {}),
        lambda: [json_of(planned(node()))],
        (ContractError,),
    ),
    Reader("variables of the inventory", checked_variables, defaults, weight=3),
    Reader("waivers", lambda found: waivers.read(found, set()), of("waivers")),
    Reader("statement", lambda found: document.read(mutations.as_text(found)), statements, (ContractError,)),
    Reader(
        "results of a scanner",
        lambda found: scans.read(BytesIO(mutations.as_text(found).encode("utf-8", "surrogatepass"))),
        these(test_scans.results(one="pass", two="fail")),
        (scans.ScanError,),
    ),
    Reader("expectations", lambda found: fleet_from(found, TESTS), expectations, (ContractError,)),
    Reader(
        "plans of slices",
        slices,
        lambda: [json_of(test_stream.PLAN)],
        (StreamError, collected.CollectedError),
    ),
    Reader("answers of programs", words_of_programs, these(OF_PROGRAMS), wrong=odd_words),
    Reader("answers of modules", module_answers, of("answers"), (AnswerError,), foreign_keys, weight=2),
    Reader("hello of an SSH server", read_hello, these(HELLO), (HelloError,), odd_name),
    Reader("a node on its ways in", read_claims, these(GOOD_CLAIMS), (ClaimsError,), odd_claim),
    Reader("stream of a helper", helper_lines, streams, (StreamError,), elsewhere),
    Reader("archive of a helper", helper_archive, archives, (StreamError,), elsewhere),
    # Schedulers.
    Reader(
        "scontrol show node",
        each_line(slurm.parse),
        lambda: [test_drain_slurm.LINE.format(state="IDLE+DRAIN*") + test_drain_slurm.REASON],
        (DrainError,),
    ),
    Reader("kubectl", cluster, of("kubectl"), (DrainError,)),
)
