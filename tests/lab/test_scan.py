"""OpenSCAP judges hardened nodes: with Temper's tailoring, no rule of the CIS profiles fails.

What only a kernel or a partition of its own can show is named in data/scap/rules.yml.
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

from temper.compliance.tailoring import CONTENT, PROFILES, STREAM_PROFILES, profile_id
from tools.scap_rules import STREAMS

pytestmark = [pytest.mark.lab, pytest.mark.slow]

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
#: What a container shows of no node: no auditd and no clock of its own, and no profiles of AppArmor.
CONTAINER = {"all_apparmor_profiles_enforced", "ntp_single_service_active", "service_auditd_enabled"}
RESULT = re.compile(rf"^Rule\s+{CONTENT}_rule_(\S+)\s+^Result\s+(\S+)", re.MULTILINE)


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


def results(node: str, product: str, *options: str) -> dict[str, str]:
    """What the scanner says of each rule; it ends with 2 where one fails."""
    command = f"oscap xccdf eval {' '.join(options)} /root/ssg-{product}-ds.xml"
    return dict(RESULT.findall(inside(node, f"{command} || test $? = 2")))


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
        inside(node, f"cat > /root/{stream}", (STREAMS / stream).read_text(encoding="utf-8"))
    yield
    lab("down")


@pytest.mark.usefixtures("nodes")
def test_no_rule_fails_without_a_reason_and_no_reason_is_given_for_a_rule_that_passes() -> None:
    unexplained: dict[str, set[str]] = {}
    excused: dict[str, set[str]] = {}
    for profile, level in PROFILES.items():
        harden(os_hardening_profile=profile)
        for node, product in PRODUCTS.items():
            document = run(
                *(sys.executable, "-m", "temper", "compliance", "tailoring"),
                *("--product", product, "--profile", profile),
            )
            inside(node, "cat > /root/tailoring.xml", document)
            own = f"--tailoring-file /root/tailoring.xml --profile {profile_id(profile)}"
            left = results(node, product, own)
            whole = results(node, product, f"--profile {CONTENT}_profile_{STREAM_PROFILES[level]}")
            print(f"{product} {profile}: {Counter(whole.values())}, tailored {Counter(left.values())}")
            unexplained[f"{product} {profile}"] = {
                rule for rule, said in left.items() if said not in GOOD
            } - CONTAINER
            for rule in whole.keys() - left.keys() - CONTAINER:
                excused.setdefault(rule, set()).add(whole[rule])
    assert {where: rules for where, rules in unexplained.items() if rules} == {}
    # One profile may have what another only excuses.
    assert {rule for rule, said in excused.items() if said == {"pass"}} == set()
