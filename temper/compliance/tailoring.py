"""Tell an auditor's OpenSCAP which rules Temper waives or fulfils in another form, and why (XCCDF tailoring).

Source of the format: NIST IR 7275 revision 4 (XCCDF 1.2), section 6.7.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.compliance.model import NodeStatement, State, WaivedBy
from temper.plan.os_controls import concerns, lacking, waiver_of
from temper.plan.os_systems import systems
from validation.model.printable import printable

HARDENING = "os_hardening"
XCCDF = "http://checklists.nist.gov/xccdf/1.2"
CONTENT = "xccdf_org.ssgproject.content"
#: A profile of os_hardening -> that of the data streams which it is measured by; data/os_systems has others.
STREAM_PROFILES = {
    "cis-level1": "cis_level1_server",
    "cis-level2": "cis_level2_server",
    "anssi-intermediary": "anssi_bp28_intermediary",
    "anssi-enhanced": "anssi_bp28_enhanced",
    "anssi-high": "anssi_bp28_high",
    "stig": "stig",
}
#: The same for all profiles: `gpu` accounts for all of level 2. `stig` measures what any of them has left.
PROFILES = {"gpu": "cis-level2", **{name: name for name in STREAM_PROFILES}}


@dataclass(frozen=True)
class Exempted:
    """A rule that the scanner shall leave out; `control` is empty where no waiver is the reason."""

    rule: str
    reason: str
    control: str = ""

    @property
    def remark(self) -> str:
        """What the auditor reads beside the rule."""
        return f"Waived with the control {self.control}: {self.reason}" if self.control else self.reason


def products(table: Mapping[str, Any]) -> list[str]:
    """Return the names of the data streams that data/scap/streams.yml has."""
    return sorted({product for group in table["streams"] for product in group["in"]})


def system_of(product: str) -> str:
    """Return the system that a data stream is for: rhel-9 for rhel9."""
    return next(name for name, one in systems().items() if one.stream == product)


def stream_profile(product: str, profile: str) -> str:
    """Return what a data stream calls the profile that measures one of os_hardening."""
    measured = PROFILES[profile]
    return systems()[system_of(product)].stream_profiles.get(measured, STREAM_PROFILES[measured])


def rules_of(table: Mapping[str, Any], product: str, profile: str) -> list[str]:
    """Return the rules of a stream that measure a profile of os_hardening, in the order of their names."""
    groups = (group for group in table["streams"] if PROFILES[profile] in group["in"].get(product, ()))
    return sorted(rule for group in groups for rule in group["rules"])


def profiles_of(table: Mapping[str, Any], product: str) -> list[str]:
    """Return the profiles of os_hardening that a stream measures: Debian's has no STIG, Ubuntu's no ANSSI."""
    return [profile for profile in PROFILES if rules_of(table, product, profile)]


#: Of several controls of a role the first of these counts.
WORST = (State.FAIL, State.NOT_CHECKED, State.PASS, State.NOT_APPLICABLE, State.WAIVED)

#: The controls of other roles whose waiver covers all rules of the role; each of the rest is about one file,
#: package or unit.
WHOLE_ROLES = ("firewall/firewall", "ssh_hardening/sshd")


@dataclass(frozen=True)
class Known:
    """What is known of the controls: which are waived and why, and how each came out.

    `of_profile` are those that a profile relaxes; of these, the rules that a bare system fulfils stay in the
    scan. What an operator accepts (`of_operator`) goes as a whole. `states` has controls of os_hardening, and
    the other roles as a whole; None where no node was asked. `system` is such as debian-13.
    """

    of_profile: dict[str, str]
    of_operator: dict[str, str] = field(default_factory=dict)
    states: dict[str, State] | None = None
    system: str = ""

    def in_force(self, owner: str) -> bool:
        """Return whether a control or role is as its plan wants it."""
        return self.states is None or self.states.get(owner) in (State.PASS, State.NOT_APPLICABLE)


def of_profile(controls: Mapping[str, Any], profile: str, system: str) -> Known:
    """Return what a profile relaxes, of a node that is as its plan wants it."""
    found = {
        name: lacking(control, system) or waiver_of(control, profile) for name, control in controls.items()
    }
    return Known({name: reason.strip() for name, reason in found.items() if reason}, system=system)


def of_node(node: NodeStatement) -> Known:
    """Return what the statement of a node says."""
    waived: dict[WaivedBy | None, dict[str, str]] = {WaivedBy.PROFILE: {}, WaivedBy.OPERATOR: {}}
    states: dict[str, State] = {}
    for control in node.controls:
        role, _, name = control.id.partition("/")
        own = name if role == HARDENING else role
        states[own] = min(states.get(own, control.state), control.state, key=WORST.index)
        if control.state is State.WAIVED and (role == HARDENING or control.id in WHOLE_ROLES):
            until = f" (until {control.waived_until})" if control.waived_until else ""
            waived[control.waived_by or WaivedBy.OPERATOR][own] = control.waiver + until
    return Known(waived[WaivedBy.PROFILE], waived[WaivedBy.OPERATOR], states, node.system)


def owners_of(controls: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, str]:
    """Return the control of os_hardening, or the role, that answers each rule.

    `controls` are those of data/os_controls by id, `table` has the keys of data/scap/rules.yml and
    data/scap/streams.yml.
    """
    owners = {rule: role for role, row in table["roles"].items() for rule in row["rules"]}
    return owners | {rule: name for name, control in controls.items() for rule in control.get("scap", ())}


def exemptions(controls: Mapping[str, Any], table: Mapping[str, Any], known: Known) -> dict[str, Exempted]:
    """Return the rules that the scanner shall leave out, whatever the profile, as `owners_of` takes them."""
    forms, scanner = (
        {rule: row["reason"].strip() for row in rows if concerns(row, known.system) for rule in row["rules"]}
        for rows in (table["forms"], table["scanner"])
    )
    kept = {rule for row in table["kept"] if concerns(row, known.system) for rule in row["rules"]}
    without = {role: lacking(row, known.system) for role, row in table["roles"].items()}
    found = {}
    for rule, owner in owners_of(controls, table).items():
        waiver = known.of_operator.get(owner)
        if waiver is None and rule not in kept:
            waiver = known.of_profile.get(owner)
        if waiver is not None:
            found[rule] = Exempted(rule, printable(waiver), owner)
        elif reason := without.get(owner) or scanner.get(rule):
            found[rule] = Exempted(rule, reason)
        elif rule in forms and known.in_force(owner):
            found[rule] = Exempted(rule, forms[rule])
    return found


def exempted(
    controls: Mapping[str, Any], table: Mapping[str, Any], product: str, profile: str, known: Known
) -> list[Exempted]:
    """Return what the scanner shall leave out of the rules that measure a profile."""
    found = exemptions(controls, table, known)
    return [found[rule] for rule in rules_of(table, product, profile) if rule in found]


def tailoring(product: str, profile: str, made_at: str, rules: list[Exempted], node: str = "") -> str:
    """Return the document for `oscap xccdf eval --tailoring-file`."""
    ET.register_namespace("xccdf", XCCDF)

    def element(parent: ET.Element, name: str, text: str = "", **attributes: str) -> ET.Element:
        made = ET.SubElement(parent, f"{{{XCCDF}}}{name}", attributes)
        made.text = text or None
        return made

    root = ET.Element(f"{{{XCCDF}}}Tailoring", {"id": f"xccdf_temper_tailoring_{profile}"})
    element(root, "benchmark", href=f"ssg-{product}-ds.xml")
    element(root, "version", "1", time=made_at)
    extended = f"{CONTENT}_profile_{stream_profile(product, profile)}"
    own = element(root, "Profile", id=profile_id(profile), extends=extended)
    of_what = f"on {node}" if node else "on a node that is as its plan wants it"
    element(own, "title", f"Temper's profile {profile} for {product}, {of_what}")
    for one in rules:
        chosen = element(own, "select", idref=f"{CONTENT}_rule_{one.rule}", selected="false")
        element(chosen, "remark", one.remark)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def profile_id(profile: str) -> str:
    """Return what `oscap --profile` calls the profile of the document."""
    return f"xccdf_temper_profile_{profile}"
