"""Change nodes of a fleet by hand in the ways that nodes drift, and prove that the check finds each change.

    python -m tests.lab.compliance_campaign [--count 30] [--tampers 200] [--seed N] [--keep] [--start made]

Boots a lab of its own (LAB_NAME=drift) with `count` nodes, Debian 12 and 13 in turn. site.yml makes the first
of each release; their disks are copied to the others, which keep their own name, host keys and hardware, and
site.yml runs on all, which brings Docker to the first two. Then playbooks/compliance.yml, three times:

1. as site.yml left them: all nodes are compliant; then three more times, with pings before and after
2. each change of `DRIFTS` on a node of its own (in a smaller fleet some share one), one node that hangs
   half-way, one whose sshd is stopped, one without a network: each change fails the control that it is about;
   the three are not checked, within their bound; all others are compliant
3. after each command that the report printed was run as printed: all are compliant

At last, bytes of the reports are changed at random places, files taken away and added: `verify` finds each.

Prints a table in Markdown on standard output, progress on standard error; logs are in
reports/compliance-campaign/. Exit status: 0 all was found and repaired, 1 not, 2 the fleet did not come up.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temper.cli.compliance import main as compliance
from tests.bench.__main__ import table, with_pings
from tests.lab import many_nodes
from tests.lab.cutoff import CampaignError, failure, lab_command, note
from tests.lab.fleet import BIN, Fleet, Run, on_node
from tests.lab.lab import status
from tests.lab.settings import CHECKOUT, Lab, Node

#: Seconds after which a node that hangs counts as not checked. Thirty nodes share the CPUs of one machine.
BOUND_S = 240
RUN_TIMEOUT_S = 3600.0
STARTS = ("nothing", "booted", "copied", "made")
# Thirty nodes that log somebody in at once take their time.
SSH_TIMEOUT_S = 60
LOGS = CHECKOUT / "reports" / "compliance-campaign"
DOCKERS = 2  # the first two nodes
# The last nodes: one hangs, one's sshd is stopped, one has no network, one's waiver has expired, one is well.
SPECIAL = 5
FEWEST = SPECIAL + 3
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJLyR1Qn4Q3y0p6QeF3f2u1y0c3b8cVd0oVJ5r0T1f1N alice"
WAIVER = {"owner": "lab", "approver": "lab", "ticket": "LAB-1", "reason": "the campaign measures nothing"}
VARIABLES = {
    "admin_accounts_users": [{"name": "alice", "keys": [KEY]}],
    "preflight_plan_file": "",
    "compliance_waivers": [{**WAIVER, "control": "validation/last", "expires": "2999-01-01T00:00:00Z"}],
}
EXPIRED = {**WAIVER, "control": "firewall/firewall", "expires": "2026-01-01T00:00:00Z", "ticket": "LAB-2"}
# Hangs as a wedged driver or a dead file system makes programs hang: for ever.
HANG = r"""
mv /usr/sbin/nft /usr/sbin/nft.away
printf '#!/bin/sh\necho $$ >>/run/hanging\nexec sleep 36000\n' >/usr/sbin/nft; chmod 755 /usr/sbin/nft
"""
UNHANG = "mv /usr/sbin/nft.away /usr/sbin/nft; xargs --no-run-if-empty kill </run/hanging || true"


@dataclass(frozen=True)
class Drift:
    """What somebody does on a node by hand, and the control that must fail for it; on Docker's nodes only."""

    title: str
    script: str
    control: str
    docker: bool = False


DRIFTS = (
    Drift(
        "daemon.json of Docker replaced",
        "echo '{}' >/etc/docker/daemon.json",
        "container_engines/container_engines",
        True,
    ),
    Drift(
        "daemon.json of Docker replaced by one that contradicts",
        'echo \'{"log-level": "warn", "runtimes": {"nvidia": {"path": "/opt/x"}}}\' >/etc/docker/daemon.json',
        "container_engines/container_engines",
        True,
    ),
    Drift(
        "sshd's drop-in edited",
        "echo 'PermitRootLogin yes' >>/etc/ssh/sshd_config.d/00-temper.conf",
        "ssh_hardening/sshd",
    ),
    Drift("table of the firewall flushed", "nft delete table inet temper", "firewall/firewall"),
    Drift(
        "sysctl changed live only",
        "sysctl --quiet --write net.ipv4.conf.all.send_redirects=1",
        "os_hardening/send-redirects",
    ),
    Drift(
        "sysctl changed in a file only",
        "echo 'net.ipv4.conf.all.rp_filter = 0' >/etc/sysctl.d/99-local.conf",
        "os_hardening/reverse-path",
    ),
    Drift("hold of a package removed", "apt-mark unhold nvidia-driver-cuda", "nvidia_stack/package:set"),
    Drift(
        "nvidia module of another version loaded",
        "echo 570.172.08 >/sys/module/nvidia/version",
        "nvidia_stack/driver:nvidia",
    ),
    Drift(
        "nvidia module of another version for the next boot",
        'sed -i "s/$(cat /sys/module/nvidia/version)/570.172.08/g" $(modinfo --filename nvidia)',
        "nvidia_stack/driver:nvidia",
    ),
    Drift(
        "service masked",
        "systemctl mask --quiet --now nvidia-persistenced",
        "nvidia_stack/unit:nvidia-persistenced.service",
    ),
    Drift("account added to sudo", "useradd --groups sudo mallory", "node/administrators"),
    Drift("clocks reset", "nvidia-smi --reset-gpu-clocks", "gpu_settings/gpu:settings"),
    Drift(
        "sshd runs with an older configuration than its files",
        "cd /etc/ssh/sshd_config.d; echo 'PermitRootLogin yes' >00-a.conf; systemctl reload ssh; "
        "until [ /run/sshd.pid -nt 00-a.conf ]; do sleep 0.1; done; rm 00-a.conf",
        "ssh_hardening/sshd",
    ),
    Drift(
        "firewall not enabled for the next boot",
        "systemctl disable --quiet temper-firewall",
        "firewall/firewall",
    ),
    Drift(
        "service enabled until the next boot only",
        "systemctl disable --quiet temper-gpu-settings && "
        "systemctl enable --quiet --runtime temper-gpu-settings",
        "gpu_settings/unit:temper-gpu-settings.service",
    ),
    Drift(
        "options of a mount point taken away",
        "mount --options remount,bind,dev,suid /dev/shm",
        "os_hardening/shm-options",
    ),
)


@dataclass
class Campaign:
    """The fleet, its inventory, and what was found."""

    fleet: Fleet
    folder: Path
    bound_s: int = BOUND_S
    drifts: dict[str, list[Drift]] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)
    times_s: dict[str, float] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        """All nodes."""
        return self.fleet.lab.nodes(self.fleet.size)

    @property
    def reports(self) -> Path:
        """Where the check writes."""
        return self.folder / "reports" / "compliance"

    @property
    def environment(self) -> dict[str, str]:
        """What Ansible needs to know."""
        return {**self.fleet.environment, "ANSIBLE_TIMEOUT": str(SSH_TIMEOUT_S)}

    @property
    def inventories(self) -> list[str]:
        """The lab's, and what the operator wants beside it, for a command of Ansible."""
        return ["-i", "inventory/lab", "-i", str(self.folder / "inventory")]

    def write_inventory(self, expired: str = "", dockers: int = DOCKERS) -> None:
        """Beside the lab's, what the operator wants; `expired` is a node with an expired waiver."""
        source = self.folder / "inventory"
        for name in ("group_vars", "host_vars"):
            shutil.rmtree(source / name, ignore_errors=True)
            (source / name).mkdir(parents=True)
        (source / "hosts.yml").write_text("gpu_nodes: {}\n")
        common = {
            **VARIABLES,
            "compliance_timeout_s": self.bound_s,
            "compliance_reports_directory": str(self.reports),
            "gpu_validation_reports_directory": str(self.folder / "reports"),
        }
        (source / "group_vars" / "gpu_nodes.yml").write_text(json.dumps(common))
        for node in self.nodes:
            own: dict[str, Any] = {}
            if node.number <= dockers:
                own["container_engines_install"] = ["docker.io"]
            if node.name == expired:
                own["compliance_waivers"] = [*VARIABLES["compliance_waivers"], EXPIRED]
            (source / "host_vars" / f"{node.name}.yml").write_text(json.dumps(own))

    def play(self, name: str, *arguments: str) -> Run:
        """Run a playbook, with connections of its own: an old one would answer for a node that is gone."""
        command = ["ansible-playbook", *self.inventories, *arguments]
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cc") as sockets:
            environment = {**self.environment, "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets}
            done = subprocess.run(
                [str(BIN / command[0]), *command[1:]],
                cwd=CHECKOUT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
        self.times_s[name] = time.monotonic() - begun
        run = Run(done.returncode, done.stdout + done.stderr)
        (LOGS / f"{name}.log").write_text(run.output)
        note(f"{name}: {self.times_s[name]:.0f} s, status {run.status}")
        return run

    def site(self, name: str, *arguments: str) -> None:
        """Run site.yml. Raises CampaignError."""
        if reason := failure(self.play(name, "site.yml", "--skip-tags", "validate", *arguments)):
            raise CampaignError(f"{name} failed: {reason}; logs: {LOGS}")

    def check(self, name: str) -> dict[str, Any]:
        """The statement of a check."""
        self.play(name, "playbooks/compliance.yml")
        found: dict[str, Any] = json.loads((self.reports / "latest" / "statement.json").read_text())
        (LOGS / f"{name}.json").write_text(json.dumps(found, indent=1))
        return found

    def cost(self, checks: int = 3) -> str:
        """A table of checks, with pings before and after."""
        os.environ.update(self.environment)
        command = ["ansible-playbook", *self.inventories, "playbooks/compliance.yml"]
        runs = {f"run {number + 1}": command for number in range(checks)}
        with tempfile.TemporaryDirectory() as folder:
            return table(with_pings("compliance", "gpu_nodes", checks, runs, Path(folder)), len(self.nodes))

    def copy(self) -> None:
        """Make the first node of each release, and the others of their disks."""
        # Docker comes to its nodes afterwards, or it would be copied to all.
        self.write_inventory(dockers=0)
        first = self.nodes[:DOCKERS]
        self.site("1-first-nodes", "--limit", ",".join(node.name for node in first))
        begun = time.monotonic()
        many_nodes.copy(self.fleet, len(first))
        self.times_s["copies and boot"] = time.monotonic() - begun
        self.write_inventory()

    def change(self) -> tuple[Node, Node, Node, Node]:
        """Change the nodes by hand.

        Returns the node that hangs, that whose sshd is stopped, that without a network, and that whose waiver
        has expired.
        """
        *places, hanging, stopped, cut, waived, _ = self.nodes
        for drift in DRIFTS:
            free = [
                node
                for node in places
                # Two changes of one control could not be told apart.
                if drift.control not in {other.control for other in self.drifts.get(node.name, [])}
                and (node.number <= DOCKERS or not drift.docker)
            ]
            node = min(free, key=lambda node: len(self.drifts.get(node.name, [])))
            note(f"{node.name}: {drift.title}")
            on_node(node, drift.script)
            self.drifts.setdefault(node.name, []).append(drift)
        on_node(hanging, HANG)
        on_node(stopped, "kill -STOP $(systemctl show --property=MainPID --value ssh)")
        on_node(cut, "ip link set eth0 down")
        self.write_inventory(expired=waived.name)
        return hanging, stopped, cut, waived

    def repair(self, found: dict[str, Any]) -> dict[str, list[str]]:
        """Run each command that the report prints, as printed; returns those that failed, by node."""
        failed: dict[str, list[str]] = {}
        for told in found["nodes"]:
            remedies = dict.fromkeys(
                control["remedy"] for control in told["controls"] if control["state"] == "fail"
            )
            for remedy in filter(None, remedies):
                note(f"{told['node']}: {remedy}")
                done = subprocess.run(
                    ["sh", "-c", remedy],
                    cwd=CHECKOUT,
                    env={**self.environment, "PATH": f"{BIN}:{self.environment['PATH']}"},
                    capture_output=True,
                    text=True,
                    timeout=RUN_TIMEOUT_S,
                    check=False,
                )
                if done.returncode:
                    failed.setdefault(told["node"], []).append(remedy)
                    (LOGS / f"repair-{told['node']}.log").write_text(f"{remedy}\n{done.stdout}{done.stderr}")
        return failed


def failing(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A node's controls that fail."""
    return {control["id"]: control for control in told["controls"] if control["state"] == "fail"}


def judge(campaign: Campaign, found: dict[str, Any], unchecked: Sequence[Node]) -> list[str]:
    """What the check of the changed fleet missed, or blamed without a cause."""
    problems = []
    silent = {node.name for node in unchecked}
    for told in found["nodes"]:
        name, controls = told["node"], failing(told)
        for drift in campaign.drifts.get(name, []):
            control = controls.get(drift.control)
            if not control:
                problems.append(
                    f"{name}: {drift.title} was not found; found {', '.join(controls) or 'nothing'}"
                )
            elif not (control["since"] and control["remedy"] and (control["reason"] or control["changes"])):
                problems.append(f"{name}: {drift.title} lacks since when, what or how to repair it")
        if name in campaign.drifts:
            continue
        if name in silent:
            if told["verdict"] != "not-checked":
                problems.append(f"{name}: expected not-checked, found {told['verdict']}")
        elif told["verdict"] != "compliant":
            problems.append(f"{name} was blamed: {', '.join(controls)} {told['reason']}")
    if not any(
        one["ticket"] == EXPIRED["ticket"] and one["code"] == "waiver-expired" for one in found["waivers"]
    ):
        problems.append("the expired waiver was not found")
    return problems


def tamper(reports: Path, count: int, seed: int) -> tuple[int, int, list[str]]:
    """Damage a copy of the reports at random: how many times, how often it was found, and what was not."""
    chance = random.Random(seed)
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        # With the history, which is beside them.
        copy = shutil.copytree(reports.parent, Path(folder, "reports"), symlinks=True) / reports.name
        if verify(copy) != 0:
            return 0, 0, ["the reports are not whole before anything was changed"]
        files = [path for path in sorted(copy.glob("*/*")) if path.is_file() and path.parent.name != "latest"]
        for number in range(count):
            path = chance.choice(files)
            before = path.read_bytes()
            match number % 10:
                case 8:
                    what = f"{path.name} removed"
                    path.unlink()
                case 9:
                    added = path.with_name(f"added-{number}")
                    added.write_bytes(b"x")
                    what = f"{added.name} added"
                case _:
                    place = chance.randrange(len(before))
                    after = bytearray(before)
                    after[place] ^= chance.randrange(1, 256)
                    path.write_bytes(after)
                    what = f"{path.name}, byte {place}"
            if verify(copy) != 1:
                missed.append(what)
            path.write_bytes(before)
            path.with_name(f"added-{number}").unlink(missing_ok=True)
    return count, count - len(missed), missed


def verify(reports: Path) -> int:
    """The exit status of `temper compliance verify`."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return compliance(["verify", "--reports", str(reports)])


def run_campaign(campaign: Campaign, tampers: int, seed: int) -> bool:
    """All of it; whether all was found and repaired."""
    memory = [node["memory_bytes"] or 0 for node in status(campaign.fleet.lab)["nodes"]]
    before = campaign.check("3-as-made")
    problems = [
        f"{told['node']} is {told['verdict']} as made: {', '.join(failing(told))} {told['reason']}"
        for told in before["nodes"]
        if told["verdict"] != "compliant"
    ]
    if problems:
        raise CampaignError("; ".join(problems))
    print(f"```\n{campaign.cost()}\n```\n", flush=True)
    hanging, stopped, cut, waived = campaign.change()
    found = campaign.check("4-changed")
    problems = judge(campaign, found, (hanging, stopped, cut))
    on_node(hanging, UNHANG)
    on_node(stopped, "kill -CONT $(systemctl show --property=MainPID --value ssh)")
    on_node(cut, "ip link set eth0 up; systemctl restart systemd-networkd networking 2>/dev/null || true")
    campaign.write_inventory()
    refused = campaign.repair(found)
    problems += [f"{name}: `{remedy}` failed" for name, all_ in refused.items() for remedy in all_]
    after = campaign.check("5-repaired")
    told_after = {told["node"]: told for told in after["nodes"]}
    problems += [
        f"{name} is {told['verdict']} after the repairs: {', '.join(failing(told))} {told['reason']}"
        for name, told in told_after.items()
        if told["verdict"] != "compliant"
    ]
    print("| Node | Changed by hand | Found as | Fails beside it | Repaired |\n|---|---|---|---|---|")
    by_name = {told["node"]: told for told in found["nodes"]}
    for name, drifts in sorted(campaign.drifts.items()):
        controls = failing(by_name[name])
        beside = ", ".join(f"`{one}`" for one in controls.keys() - {drift.control for drift in drifts})
        repaired = "yes" if told_after[name]["verdict"] == "compliant" else "**no**"
        for drift in drifts:
            found_as = f"`{drift.control}`" if drift.control in controls else "**not found**"
            print(f"| {name} | {drift.title} | {found_as} | {beside} | {repaired} |")
    for node, what in ((hanging, "nft hangs"), (stopped, "sshd stopped"), (cut, "no network")):
        then, now = by_name[node.name]["verdict"], told_after[node.name]["verdict"]
        print(f"| {node.name} | {what} | {then} | | {now} |")
    print(f"| {waived.name} | waiver expired | a finding | | by a correction of the inventory |")
    tried, seen, missed = tamper(campaign.reports, tampers, seed)
    problems += [f"`verify` did not find: {what}" for what in missed]
    healthy = len(by_name) - len(campaign.drifts) - 3
    unfound = sum("was not found" in one for one in problems)
    print(
        f"\n{len(by_name)} nodes, {sum(memory) / 2**20:.0f} MiB of memory for all. Changes found: "
        f"{len(DRIFTS) - unfound} of {len(DRIFTS)}. "
        f"Healthy nodes: {healthy}, blamed: {sum('blamed' in one for one in problems)}. "
        f"Damage of the evidence found: {seen} of {tried} (seed {seed})."
    )
    print(
        "Times: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in campaign.times_s.items()) + "."
    )
    for problem in problems:
        print(f"**{problem}**")
    return not problems


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.compliance_campaign", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=30, help="nodes (30)")
    parser.add_argument("--tampers", type=int, default=200, help="random changes of the evidence (200)")
    parser.add_argument("--bound", type=int, default=BOUND_S, help=f"seconds for a node ({BOUND_S})")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random changes of a campaign")
    parser.add_argument(
        "--start",
        choices=STARTS,
        default=STARTS[0],
        help="what an earlier campaign with --keep has left: new, copied, or finished nodes",
    )
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    options = parser.parse_args(arguments)
    if options.count < FEWEST:
        parser.error(f"--count: expected at least {FEWEST} nodes, found {options.count}")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    fleet = Fleet(Lab(name=os.environ.get("LAB_NAME") or "drift"), options.count, RUN_TIMEOUT_S)
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            campaign = Campaign(fleet, Path(folder), options.bound)
            campaign.write_inventory()
            left = STARTS.index(options.start)
            if left < STARTS.index("booted"):
                lab_command(fleet, "down")
                begun = time.monotonic()
                many_nodes.boot(fleet)
                campaign.times_s["boot"] = time.monotonic() - begun
            if left < STARTS.index("copied"):
                campaign.copy()
            if left < STARTS.index("made"):
                campaign.site("2-all-nodes")
            return 0 if run_campaign(campaign, options.tampers, seed) else 1
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if not options.keep:
            lab_command(fleet, "down")


if __name__ == "__main__":
    sys.exit(main())
