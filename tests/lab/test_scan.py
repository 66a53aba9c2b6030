"""OpenSCAP judges hardened nodes: with Temper's tailoring, no rule of the CIS, ANSSI and STIG profiles fails.

What only a kernel, a partition or a clock can show is left out by name (CONTAINER). Ubuntu's streams judge
nodes with the shape of Ubuntu (tests/lab/ubuntu.py).
"""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from temper.base import DATA
from temper.compliance.tailoring import CONTENT, XCCDF, Exempted, profile_id, rules_of, tailoring
from temper.plan.os_controls import PROFILES
from temper.plan.os_systems import STIG
from temper.plan.tables import read_yaml
from tests.lab import ubuntu
from tests.lab.settings import Lab
from tools.scap_rules import stream_of

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MADE_AT = "2026-11-26T00:00:00Z"
ROOT = Path(__file__).resolve().parents[2]
#: Which data stream judges which node of the lab, hardened with which profiles.
PRODUCTS = {"gpu01": "debian12", "gpu02": "debian13", "gpu03": "ubuntu2204", "gpu05": "ubuntu2404"}
#: Both are made of Debian 12, whose auditd loads its rules as Ubuntu's do; Debian 13 has a unit for it.
SHAPES = {"gpu03": ubuntu.JAMMY, "gpu05": ubuntu.NOBLE}
HARDENED = {
    node: (STIG,) if node in SHAPES else tuple(name for name in PROFILES if name != STIG) for node in PRODUCTS
}
ENVIRONMENT = {
    **os.environ,
    "LAB_NAME": "scan",
    "LAB_NODES": "5",
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "LC_ALL": "C.UTF-8",
}
# A node has neither kernel nor boot loader; with these packages the scanner looks at their rules, too.
# Debian's installer brings cron (priority important).
PACKAGES = "linux-base grub-pc openscap-scanner cron"
GOOD = ("pass", "notapplicable", "notchecked")
#: What only a kernel, its command line, a partition or a real clock can show, and no container.
CONTAINER = re.compile(
    r"kernel_config_.*|grub2_(enable_.*|.*_argument)|partition_for_(boot|home|opt|srv|usr|var(_log(_audit)?)?)"
    r"|mount_option_(home_noexec|nodev_nonroot_local_partitions)"
    r"|(all_)?apparmor_(profiles_enforced|configured)|ntp_single_service_active"
    r"|service_(auditd|chronyd|chronyd_or_ntpd)_enabled"
)
#: What a profile scores at least on Debian 13 without tailoring, but for those rules.
LEAST_SCORE = {"cis-level1": 85, "cis-level2": 70, "anssi-high": 65}
RESULT = re.compile(rf"^Rule\s+{CONTENT}_rule_(\S+)\s+^Result\s+(\S+)", re.MULTILINE)
SCORE = re.compile(r"<score [^>]*>([0-9.]+)<")


def run(*command: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lab(*arguments: str, stdin: str | None = None) -> str:
    return run(sys.executable, "-m", "tests.lab", *arguments, stdin=stdin)


def inside(node: str, script: str, stdin: str | None = None) -> str:
    return lab("shell", node, "sh", "-euc", script, stdin=stdin)


def harden(node: str, **variables: Any) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    run(program, "playbooks/harden.yml", "--limit", node, "--extra-vars", json.dumps(variables))


def scanned(node: str, product: str, document: str, profile: str) -> tuple[dict[str, str], float]:
    """What the scanner says of each rule of a tailoring, and its score; it ends with 2 where one fails."""
    inside(node, "cat > /root/tailoring.xml", document)
    command = (
        f"oscap xccdf eval --tailoring-file /root/tailoring.xml --profile {profile_id(profile)} "
        f"--results /root/results.xml /root/ssg-{product}-ds.xml"
    )
    said = inside(node, f"{command} || test $? = 2; grep '<score' /root/results.xml")
    return dict(RESULT.findall(said)), float(SCORE.findall(said)[0])


@dataclass
class Judged:
    """What was found on one node. `excused` has the results of each rule that a tailoring leaves out."""

    unexplained: dict[str, set[str]] = field(default_factory=dict)
    excused: dict[str, set[str]] = field(default_factory=dict)
    too_low: dict[str, float] = field(default_factory=dict)


def judged(node: str) -> Judged:
    """Harden a node with each profile and scan it without the tailoring, which only leaves rules out."""
    product, found = PRODUCTS[node], Judged()
    table = read_yaml(DATA / "scap" / "streams.yml")
    for profile in HARDENED[node]:
        harden(node, os_hardening_profile=profile)
        unseen = [
            Exempted(rule, "A container cannot show it.")
            for rule in rules_of(table, product, profile)
            if CONTAINER.fullmatch(rule)
        ]
        whole, score = scanned(node, product, tailoring(product, profile, MADE_AT, unseen), profile)
        names = ("--product", product, "--profile", profile)
        document = run(sys.executable, "-m", "temper", "compliance", "tailoring", *names)
        selects = ET.fromstring(document).iter(f"{{{XCCDF}}}select")  # noqa: S314 - our own
        left_out = {one.get("idref", "").removeprefix(f"{CONTENT}_rule_") for one in selects}
        failed = {rule for rule, said in whole.items() if said not in GOOD}
        where = f"{product} {profile}"
        print(f"{where}: {score:.1f} {Counter(whole.values())}", flush=True)
        if unexplained := failed - left_out:
            found.unexplained[where] = unexplained
        for rule in left_out & whole.keys():
            found.excused.setdefault(rule, set()).add(whole[rule])
        if product == "debian13" and score < LEAST_SCORE.get(profile, 0):
            found.too_low[where] = score
    # The scanner takes the document, and leaves out what it names and nothing else.
    left, _ = scanned(node, product, document, profile)
    assert whole.keys() - left.keys() == left_out & whole.keys()
    assert {rule for rule in whole.keys() & left.keys() if left[rule] != whole[rule]} == set()
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    lab("up")
    machines = {node.name: node for node in Lab(name=ENVIRONMENT["LAB_NAME"]).nodes(5)}
    for node, product in PRODUCTS.items():
        if node in SHAPES:
            ubuntu.dress(machines[node], SHAPES[node])
        inside(
            node,
            "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
            f"apt-get install -yqq --no-install-recommends {PACKAGES}",
        )
        stream = f"ssg-{product}-ds.xml"
        inside(node, f"cat > /root/{stream}", stream_of(product).read_text(encoding="utf-8"))
    yield
    lab("down")


@pytest.mark.usefixtures("nodes")
def test_no_rule_fails_without_a_reason_and_no_reason_is_given_for_a_rule_that_passes() -> None:
    with ThreadPoolExecutor() as pool:
        found = dict(zip(PRODUCTS, pool.map(judged, PRODUCTS), strict=True))
    assert {where: rules for one in found.values() for where, rules in one.unexplained.items()} == {}
    assert {where: score for one in found.values() for where, score in one.too_low.items()} == {}
    # One profile may have what another only excuses. What a look-alike passes, Ubuntu may not.
    excused: dict[str, set[str]] = {}
    for node, one in found.items():
        for rule, said in one.excused.items():
            excused.setdefault(rule, set()).update(said - {"pass"} if node in SHAPES else said)
    assert {rule for rule, said in excused.items() if said == {"pass"}} == set()
