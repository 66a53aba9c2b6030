"""Write the pages on hardening from data/os_controls and data/scap, so that pages and role cannot disagree.

    python3 -m tools.control_docs    write the pages and say so if they changed

tests/unit/harden/test_os_controls.py fails when a page is not what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from temper.plan.os_controls import BEFORE, PROFILES, references, settings_of, waiver_of
from temper.plan.strictness import ALONE, EXACTLY, order_of, orders_of_files
from temper.plan.tables import read_yaml
from tools.documents import ROOT, write
from validation.model.grouping import by_key

DATA = ROOT / "data" / "os_controls"
NOTHING = "nothing"
SCAP_RULES = ROOT / "data" / "scap" / "rules.yml"
#: Where a node keeps what the default profile sets, by the entry that says why.
WHERE = {
    "router": "the node forwards for others",
    "asymmetric": "answers take another interface",
    "usb": "the node has such a disk in use",
}
PAGE = ROOT / "docs/reference/os_hardening.md"
RULES_PAGE = ROOT / "docs/reference/scap_rules.md"

INTRODUCTION = """\
# Hardening the operating system

*For operators and auditors: see what each profile sets, and why it relaxes a control.*

<!-- Made by `make docs` from data/os_controls: change that. -->

The role [os_hardening](../../roles/os_hardening/README.md) sets what the CIS benchmarks for Debian 12 and 13,
Ubuntu 22.04 and 24.04 and Enterprise Linux 8, 9 and 10, the STIGs of the last two and ANSSI-BP-028 ask of an
operating system, as far as GPU jobs, containers and unattended administration can bear it.
[scap_rules.md](scap_rules.md) has the rules of OpenSCAP that each control answers.
Below is every control: what each profile sets, and why a profile relaxes it. sshd and the firewall have
roles of their own ([hardening.md](../operate/hardening.md)); of sshd, only what its role waives is here.

| Profile | For |
| --- | --- |
| `gpu` | The default: nothing that breaks jobs, profilers, containers or Ansible. Accounts for level 2 |
| `cis-level1` | Nodes that an auditor measures by level 1 |
| `cis-level2` | By level 2: no forwarding for containers, no programs in `/tmp`, no idle shells |
| `anssi-intermediary`, `-enhanced`, `-high` | By these levels of ANSSI-BP-028: no profilers, private files |
| `stig` | By the STIGs of Ubuntu 22.04 and 24.04 and Enterprise Linux 8, 9 and 10; others are refused |

Each profile includes the one before it, and `stig` includes `cis-level2`.

**Waivers.** Where a profile does less than the benchmark asks, this page and the node
(`/etc/temper/os_hardening_waivers.txt`) say so, with the reason; preflight names them, and
`reports/plan.json` has them with their reasons. Add your own, and what the control had set returns to what it
was before Temper:

```yaml
os_hardening_waivers:
  - id: core-dumps
    reason: We debug our own CUDA kernels on these nodes.
```

**Never weaker than found.** What a node has is compared before it is changed. Where it is stricter, it stays,
now and at the next boot, and a warning of each run names it (`kept: kernel.kptr_restrict 2
(/etc/sysctl.d/10-site.conf), which is stricter than 1`); compliance passes. Behind each value below stands
the order in which it is compared: `at least` and `at most` (some numbers stand for no limit), words from the
strictest on (`1 > 2 > 0`), `bits` and `umask` by their bits, a `switch` (only 0 is off), an `interval` of
apt (shorter is stricter), `any` value of the site, its entries `added` to ours, a text that `tells nothing`
of the system; `implicit` is what the program takes where no line sets it. No order: no other value is
stricter.
[hardening.md](../operate/hardening.md#a-site-that-has-something-already) says what else of a site is kept,
changed or refused.

**Who wins.** A kernel parameter that a file after `90-temper-hardening.conf` sets is left to that file:
`os_tuning`'s `95-temper-tuning.conf`, or your own. The run warns where your own sets a weaker value,
compliance fails, and `-v` names all (`overruled`). A value that the kernel has locked until the next boot
stays, too.

**What is in the way** is said before anything is changed: a unit that somebody has masked is not
unmasked. Unmask it, or waive its control.

**Nobody is locked out.** No account is locked, expired or changed, no rule of sudo is touched, wrong
passwords close no way in by key. Before a change is kept, the account that Ansible came through must
still become root; else all that the run changed is undone.

**The way back.** What each setting was before is in `/var/lib/temper/settings/os_hardening.json` on the node.
`os_hardening_state: absent`, another profile, or a waiver restores it. Packages that came stay
installed, their services off; so do logs, the journal in `/var/log/journal` among them.
"""


RULES_INTRODUCTION = """\
# Rules of OpenSCAP

*For auditors: find what answers a rule of a data stream, and why a tailoring leaves it out.*

<!-- Made by `make docs` from data/os_controls and data/scap: change that. -->

ComplianceAsCode's data streams of Debian 12 and 13, Ubuntu 22.04 and 24.04 and Enterprise Linux 8, 9 and
10 measure a node by CIS, ANSSI-BP-028 and STIGs. Each rule has one answer: a control of
[os_hardening.md](os_hardening.md), or a role, sets or waives it, profile by profile. Rules that look for
another form than the one in force follow. `data/scap/streams.yml` says which stream and profile has which
rule, and [compliance.md](../operate/compliance.md#an-auditors-own-scanner) how to scan.

## Answers

| Control or role | Rules |
| --- | --- |
"""


def controls() -> dict[str, dict[str, Any]]:
    """Return the controls of each file in data/os_controls, by its heading."""
    areas = [read_yaml(path) for path in sorted(DATA.glob("*.yml"))]
    return {area["heading"]: area["os_controls"] for area in areas}


def ordered(kind: str, key: str) -> str:
    """In which order the values of a setting stand, as the page shows it."""
    order = order_of(kind, key) or EXACTLY
    return "" if order == EXACTLY else f" ({order})"


def ordered_file(path: str, line: str = "") -> str:
    """Likewise of a file: the order of each key, or of the one in this line."""
    orders = orders_of_files().get(path, ALONE)
    if isinstance(orders, str):
        return "" if orders == ALONE else f" ({orders})"
    said = [
        order if line else f"`{key}` {order}"
        for key, order in orders.items()
        if order != EXACTLY and (not line or re.search(rf"\b{re.escape(key)}\b", line))
    ]
    return f" ({'; '.join(said)})" if said else ""


def brief(settings: dict[str, Any]) -> str:
    """Return what a profile sets, in one line."""
    parts: list[str] = []
    for key, value in settings.get("sysctls", {}).items():
        parts.append(f"`{key}={value}`{ordered('sysctl', key)}")
    parts += [f"no `{module}`" for module in settings.get("modules", [])]
    for path, keywords in settings.get("keywords", {}).items():
        parts += [
            f"`{keyword} {value}` in `{path}`{ordered('keyword', f'{path}:{keyword}')}"
            for keyword, value in keywords.items()
        ]
    for path, lines in settings.get("lines", {}).items():
        parts += [f"`{line}` in `{path}`{ordered_file(path, line)}" for line in lines]
    parts += [
        f"`{path}`{ordered_file(path)}"
        for kind in ("files", "files_x86_64")
        for path in settings.get(kind, {})
    ]
    parts += [f"`{path}` {mode}" for path, mode in settings.get("access", {}).items()]
    for path, options in settings.get("mounts", {}).items():
        parts.append(f"`{path}` {','.join(option for option in options if option != 'bind')}")
    parts += [f"`{path}` a file system of its own" for path in settings.get("separate", [])]
    parts += [f"PAM profile `{profile}`" for profile in settings.get("pam", {})]
    parts += [f"authselect's feature `{feature}`" for feature in settings.get("authselect", [])]
    for package in settings.get("packages", []):
        parts.append(f"package {' or '.join(package)}" if isinstance(package, list) else f"package {package}")
    parts += [f"`{unit}` {state}{ordered('unit', unit)}" for unit, state in settings.get("units", {}).items()]
    return ", ".join(parts) or NOTHING


def elsewhere(settings: dict[str, Any]) -> str:
    """Return what is set otherwise on a distribution or a system; what it only takes away is left out."""
    found = {name: brief(present(own)) for name, own in settings.get("systems", {}).items()}
    return "".join(f"; on `{name}`: {own}" for name, own in found.items() if own != NOTHING)


def present(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without what is taken out (null)."""
    return {
        key: present(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if value is not None
    }


def section(name: str, control: dict[str, Any]) -> list[str]:
    """Return the part of the page on one control."""
    level = f"level {control['level']}" if control["level"] else "in no level of CIS"
    marked = ", value unverified" if control.get("unverified") else ""
    lines = [
        f"### {name}",
        "",
        f"{control['title']} ({references(name, control)}; {level}{marked}). {control['why'].strip()}",
        "",
    ]
    for profile, before in BEFORE.items():
        settings = settings_of(control, profile)
        if not before or settings != settings_of(control, before):
            scope = f"From `{profile}` on" if profile in BEFORE.values() else f"With `{profile}`"
            lines.append(f"- {scope}: {brief(settings)}{elsewhere(settings)}.")
    if "demand" in control:
        lines.append(f"- The benchmark asks for: {brief(control['demand'])}.")
    waived = ((waiver_of(control, profile), f"`{profile}`") for profile in PROFILES)
    reasons = by_key((reason.strip(), profile) for reason, profile in waived if reason)
    for reason, profiles in reasons.items():
        by = "every profile" if len(profiles) == len(PROFILES) else ", ".join(profiles)
        lines.append(f"- **Waived** by {by}: {reason}")
    lines += [f"- **Waived** where {where}: {control[key]}" for key, where in WHERE.items() if key in control]
    lines += [
        f"- **Not set** on `{system}`: {why.strip()}" for system, why in control.get("lacking", {}).items()
    ]
    return [*lines, ""]


def page() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    for heading, found in controls().items():
        lines += [f"## {heading}", ""]
        for name, control in found.items():
            lines += section(name, control)
    return "\n".join(lines).rstrip() + "\n"


def rules_page() -> str:
    """Return the page on the rules of OpenSCAP."""
    table = read_yaml(SCAP_RULES)
    answered = {f"role {role}": row["rules"] for role, row in table["roles"].items()}
    for found in controls().values():
        answered |= {
            f"[{name}](os_hardening.md#{name})": one["scap"] for name, one in found.items() if "scap" in one
        }
    lines = [f"| {owner} | {named(rules)} |" for owner, rules in answered.items()]
    for key, heading in (("forms", "In another form"), ("scanner", "Rules that no node can fulfil")):
        lines += ["", f"## {heading}", ""]
        for row in table[key]:
            where = f" (on {named(row['of'])})" if "of" in row else ""
            lines.append(f"- {named(row['rules'])}{where}: {row['reason'].strip()}")
    for role, row in table["roles"].items():
        lines += [f"- Role {role} on `{system}`: {why}" for system, why in row.get("lacking", {}).items()]
    return RULES_INTRODUCTION + "\n".join(lines) + "\n"


def named(words: list[str]) -> str:
    """Return words as code, with commas."""
    return ", ".join(f"`{word}`" for word in words)


def documents() -> dict[Path, str]:
    """Return the content of each page."""
    return {PAGE: page(), RULES_PAGE: rules_page()}


if __name__ == "__main__":
    sys.exit(write(documents()))
