"""OpenSCAP judges hardened nodes: with Temper's tailoring, no rule of the CIS and ANSSI profiles fails.

What only a kernel, a partition or a clock can show is left out by name (CONTAINER).
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.base import DATA
from temper.compliance.tailoring import CONTENT, Exempted, profile_id, rules_of, tailoring
from temper.plan.os_controls import PROFILES
from temper.plan.tables import read_yaml
from tools.scap_rules import stream_of

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MADE_AT = "2026-11-26T00:00:00Z"
ROOT = Path(__file__).resolve().parents[2]
#: Which data stream judges which node of the lab.
PRODUCTS = {"gpu01": "debian12", "gpu02": "debian13"}
ENVIRONMENT = {
    **os.environ,
    "LAB_NAME": "scan",
    "LAB_NODES": str(len(PRODUCTS)),
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "LC_ALL": "C.UTF-8",
}
# A node has neither kernel nor boot loader; with these packages the scanner looks at their rules, too.
PACKAGES = "linux-base grub-pc openscap-scanner"
GOOD = ("pass", "notapplicable", "notchecked")
#: What only a kernel, its command line, a partition or a real clock can show, and no container.
CONTAINER = re.compile(
    r"kernel_config_.*|grub2_(enable_.*|.*_argument)|partition_for_(boot|home|opt|srv|usr|var(_log(_audit)?)?)"
    r"|mount_option_(home_noexec|nodev_nonroot_local_partitions)"
    r"|(all_)?apparmor_(profiles_enforced|configured)|ntp_single_service_active"
    r"|service_(auditd|chronyd|chronyd_or_ntpd)_enabled"
)
#: What a profile scores at least on Debian 13 without tailoring, but for those rules.
LEAST_SCORE = {"cis-level1": 84, "cis-level2": 70, "anssi-high": 65}
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


def harden(**variables: Any) -> None:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    run(program, "playbooks/harden.yml", "--extra-vars", json.dumps(variables))


def scanned(node: str, product: str, document: str, profile: str) -> tuple[dict[str, str], float]:
    """What the scanner says of each rule of a tailoring, and its score; it ends with 2 where one fails."""
    inside(node, "cat > /root/tailoring.xml", document)
    command = (
        f"oscap xccdf eval --tailoring-file /root/tailoring.xml --profile {profile_id(profile)} "
        f"--results /root/results.xml /root/ssg-{product}-ds.xml"
    )
    said = inside(node, f"{command} || test $? = 2; grep '<score' /root/results.xml")
    return dict(RESULT.findall(said)), float(SCORE.findall(said)[0])


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    lab("up")
    for node, product in PRODUCTS.items():
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
    table = read_yaml(DATA / "scap" / "streams.yml")
    unexplained: dict[str, set[str]] = {}
    excused: dict[str, set[str]] = {}
    too_low: dict[str, float] = {}
    for profile in PROFILES:
        harden(os_hardening_profile=profile)
        for node, product in PRODUCTS.items():
            document = run(
                *(sys.executable, "-m", "temper", "compliance", "tailoring"),
                *("--product", product, "--profile", profile),
            )
            unseen = [
                Exempted(rule, "A container cannot show it.")
                for rule in rules_of(table, product, profile)
                if CONTAINER.fullmatch(rule)
            ]
            whole, score = scanned(node, product, tailoring(product, profile, MADE_AT, unseen), profile)
            left, tailored = scanned(node, product, document, profile)
            where = f"{product} {profile}"
            print(f"{where}: {score:.1f} {Counter(whole.values())}")
            print(f"{where}, tailored: {tailored:.1f} {Counter(left.values())}")
            unexplained[where] = {
                rule for rule, said in left.items() if said not in GOOD and not CONTAINER.fullmatch(rule)
            }
            for rule in whole.keys() - left.keys():
                excused.setdefault(rule, set()).add(whole[rule])
            if product == "debian13" and score < LEAST_SCORE.get(profile, 0):
                too_low[where] = score
    assert {where: rules for where, rules in unexplained.items() if rules} == {}
    # One profile may have what another only excuses.
    assert {rule for rule, said in excused.items() if said == {"pass"}} == set()
    assert too_low == {}
