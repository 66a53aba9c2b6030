"""OpenSCAP reads what Enterprise Linux would get: with Temper's tailoring, no rule that files can show fails.

The lab boots no such node. A tree has the files that Rocky Linux publishes (tests/lab/rocky_files), and on
top what the plan makes; LIVE names what only a node could show.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import product as pairs
from typing import TYPE_CHECKING

import pytest
from ansible.module_utils.temper.access import sshd_settings
from ansible.module_utils.temper.files import File
from ansible.module_utils.temper.settings.files import Access, Keyword

from temper.compliance import scans, tailoring
from temper.plan.convert import plain
from temper.plan.os_controls import load_controls
from temper.plan.wanted import AccessWanted, FileWanted, Kind
from tests.lab import look_alikes
from tests.lab.rocky import FILES
from tests.unit.compliance.test_tailoring import TABLE
from tests.unit.planning_nodes import system
from tests.unit.planning_roles.plans import whole_plan
from tools.control_docs import DATA
from tools.scap_rules import stream_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from temper.plan.node_plan import NodePlan

pytestmark = [pytest.mark.lab, pytest.mark.slow]

RELEASES = {"rhel8": "8.10", "rhel9": "9.6", "rhel10": "10.0"}
#: What packages, services, a kernel and mounts show, and no tree of files.
LIVE = re.compile(r"(package|service|socket|timer|sysctl|partition_for)_.*|file_permissions_.*_not_modified")
#: What rules are about (machine, package, kernel) is not in a tree. Other architectures still are others.
PLATFORM = re.compile(r'<xccdf-1\.2:platform idref="(?!#(?:aarch64|ppc64le|s390x|bootc))[^>]*/>')
FEATURE = re.compile(r'\{include if "([\w-]+)"\}')
NULLOK = re.compile(r'\{if not "without-nullok":(\w+)\}')
STACKS = ("system-auth", "password-auth", "postlogin", "fingerprint-auth", "smartcard-auth")
#: What packages bring beside the published files, as far as rules read it.
BROUGHT = {
    "/etc/audit/auditd.conf": "flush = INCREMENTAL_ASYNC\n",
    "/etc/csh.cshrc": "umask 022\n",
    "/etc/fstab": "",
    "/etc/group": "root:x:0:\n",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "/etc/security/faillock.conf": "",
    "/etc/security/opasswd": "",
    "/etc/security/pwquality.conf": "",
    "/etc/systemd/journald.conf": "[Journal]\n",
    "/usr/lib/systemd/system/audit-rules.service": "[Service]\nExecStart=/sbin/augenrules --load\n",
    "/usr/lib/systemd/system/auditd.service": "[Service]\nExecStartPost=-/sbin/augenrules --load\n",
    "/var/log/audit/audit.log": "",
}


def planned(product: str, profile: str) -> NodePlan:
    return whole_plan(system("rhel", RELEASES[product]), os_hardening_profile=profile)


def stacks(files: Mapping[str, str], feature: str, method: str) -> dict[str, str]:
    """PAM's stacks as authselect writes them with one feature."""
    found = {}
    for name in STACKS:
        text = files.get(f"/usr/share/authselect/default/minimal/{name}", "")
        lines = [line for line in text.splitlines() if {*FEATURE.findall(line)} <= {feature}]
        text = FEATURE.sub("", "".join(f"{line}\n" for line in lines))
        found[f"/etc/authselect/{name}"] = NULLOK.sub(r"\1", text).replace("@HASH@", method)
    return found


def make_tree(root: Path, product: str, profile: str) -> None:
    """Write the files of a release, and on top those of a profile, by the role's own settings."""
    plan = planned(product, profile)
    major = product.removeprefix("rhel")
    published, _ = look_alikes.read(FILES / "all", FILES / major)
    (feature,) = (one.key for one in plan.role("os_hardening").settings if one.kind is Kind.AUTHSELECT)
    method = "yescrypt" if product == "rhel10" else "sha512"
    for name, content in {**BROUGHT, **published, **stacks(published, feature, method)}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name in STACKS:
        (root / "etc/pam.d" / name).unlink(missing_ok=True)
        (root / "etc/pam.d" / name).symlink_to(f"../authselect/{name}")
    (root / "var/log/audit").chmod(0o700)
    (root / "var/log/audit/audit.log").chmod(0o600)
    settings = sorted(plan.role("os_hardening").settings, key=lambda one: one.kind is Kind.ACCESS)
    for one in settings:
        path_of, _, word = one.key.rpartition(":")
        if one.kind is Kind.FILE and isinstance(one.wanted, FileWanted):
            path = root / one.key.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            File(str(path), one.wanted.content or "", one.wanted.mode).write()
        elif one.kind is Kind.KEYWORD and (root / path_of.lstrip("/")).exists():
            Keyword(f"{root}{path_of}", word, str(one.wanted)).apply()
        elif one.kind is Kind.ACCESS and isinstance(one.wanted, AccessWanted):
            for path in root.glob(one.key.lstrip("/")):
                Access(str(path), one.wanted.mode).apply()
    ssh = plan.role("ssh_hardening").settings
    wishes = {one.key: ",".join(plain(one.wanted)) for one in ssh if one.kind is Kind.SSHD_ALGORITHM}
    wishes |= {one.key: plain(one.wanted)["value"] for one in ssh if one.kind is Kind.SSHD}
    drop_in = root / "etc/ssh/sshd_config.d/00-temper.conf"
    drop_in.parent.mkdir(exist_ok=True)
    drop_in.write_text(sshd_settings.render(sshd_settings.merge(wishes)))
    drop_in.chmod(0o600)


def scanned(folder: Path, product: str, profile: str) -> dict[str, str]:
    """What the scanner says of each rule that the tailoring leaves in."""
    root, results = folder / "tree", folder / "results.xml"
    make_tree(root, product, profile)
    stream = folder / f"ssg-{product}-ds.xml"
    stream.write_text(PLATFORM.sub("", stream_of(product).read_text(encoding="utf-8")), encoding="utf-8")
    document = folder / "tailoring.xml"
    rules = left_out(product, profile)
    document.write_text(tailoring.tailoring(product, profile, "2026-11-27T00:00:00Z", rules))
    command = ["oscap", "xccdf", "eval", "--tailoring-file", str(document)]
    command += ["--profile", tailoring.profile_id(profile), "--results", str(results), str(stream)]
    environment = {**os.environ, "OSCAP_PROBE_ROOT": str(root)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    with results.open("rb") as document_of_results:
        return scans.read(document_of_results).results


def left_out(product: str, profile: str) -> list[tailoring.Exempted]:
    controls = load_controls(DATA)
    known = tailoring.of_profile(controls, profile, tailoring.system_of(product))
    return tailoring.exempted(controls, TABLE, product, profile, known)


def test_no_rule_that_files_show_fails_without_a_reason(tmp_path: Path) -> None:
    def judged(pair: tuple[str, str]) -> dict[str, str]:
        folder = tmp_path / "-".join(pair)
        folder.mkdir()
        return scanned(folder, *pair)

    every = list(pairs(RELEASES, tailoring.PROFILES))
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(every, pool.map(judged, every), strict=True))
    unexplained = {
        (*pair, rule)
        for pair, results in found.items()
        for rule, said in results.items()
        if said in ("fail", "error", "unknown") and not LIVE.fullmatch(rule)
    }
    assert unexplained == set()
    assert all(sum(said == "pass" for said in results.values()) > 50 for results in found.values())
