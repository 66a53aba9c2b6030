"""Tell an auditor's OpenSCAP which rules Temper waives or fulfils in another form, and why (XCCDF tailoring).

Source of the format: NIST IR 7275 revision 4 (XCCDF 1.2), section 6.7.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temper.compliance.model import State
from temper.plan.os_controls import waiver_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from temper.compliance.model import NodeStatement

XCCDF = "http://checklists.nist.gov/xccdf/1.2"
CONTENT = "xccdf_org.ssgproject.content"
#: A profile of os_hardening -> the level that it is measured by; `gpu` accounts for all of level 2.
PROFILES = {"gpu": "cis-level2", "cis-level1": "cis-level1", "cis-level2": "cis-level2"}
STREAM_PROFILES = {"cis-level1": "cis_level1_server", "cis-level2": "cis_level2_server"}


@dataclass(frozen=True)
class Exempted:
    """A rule that the scanner shall leave out; `control` is empty where no waiver is the reason."""

    rule: str
    reason: str
    control: str = ""


def products(table: Mapping[str, Any]) -> list[str]:
    """Return the names of the data streams that data/scap/streams.yml has."""
    return sorted({product for group in table["streams"] for product in group["in"]})


def rules_of(table: Mapping[str, Any], product: str, profile: str) -> list[str]:
    """Return the rules of a stream that measure a profile of os_hardening, in the order of their names."""
    levels = ("cis-level1",) if PROFILES[profile] == "cis-level1" else ("cis-level1", "cis-level2")
    groups = (group for group in table["streams"] if group["in"].get(product) in levels)
    return sorted(rule for group in groups for rule in group["rules"])


def waivers_of_profile(controls: Mapping[str, Any], profile: str) -> dict[str, str]:
    """Return the controls that a profile relaxes, and why."""
    found = {name: waiver_of(control, profile) for name, control in controls.items()}
    return {name: reason.strip() for name, reason in found.items() if reason}


def waivers_of_node(node: NodeStatement) -> dict[str, str]:
    """Return the controls that are waived on a node, with the reason and the end that its statement gives."""
    found = {}
    for control in node.controls:
        if control.state is State.WAIVED:
            until = f" (until {control.waived_until})" if control.waived_until else ""
            found[control.id.removeprefix("os_hardening/")] = control.waiver + until
    return found


def exempted(
    controls: Mapping[str, Any],
    table: Mapping[str, Any],
    product: str,
    profile: str,
    waivers: Mapping[str, str],
) -> list[Exempted]:
    """Return what the scanner shall leave out.

    `controls` are those of data/os_controls by id, `table` has the keys of data/scap/rules.yml and
    data/scap/streams.yml, `waivers` are the waived controls with their reasons.
    """
    control_of = {rule: name for name, control in controls.items() for rule in control.get("scap", ())}
    others = {
        rule: one["reason"].strip() for one in table["forms"] + table["scanner"] for rule in one["rules"]
    }
    found = []
    for rule in rules_of(table, product, profile):
        name = control_of.get(rule, "")
        if name in waivers and rule not in table["kept"]:
            found.append(Exempted(rule, f"Waived with the control {name}: {waivers[name]}", name))
        elif rule in others:
            found.append(Exempted(rule, others[rule]))
    return found


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
    stream_profile = f"{CONTENT}_profile_{STREAM_PROFILES[PROFILES[profile]]}"
    own = element(root, "Profile", id=profile_id(profile), extends=stream_profile)
    element(own, "title", f"Temper's profile {profile} for {product}" + (f" on {node}" if node else ""))
    for one in rules:
        chosen = element(own, "select", idref=f"{CONTENT}_rule_{one.rule}", selected="false")
        element(chosen, "remark", one.reason)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def profile_id(profile: str) -> str:
    """Return what `oscap --profile` calls the profile of the document."""
    return f"xccdf_temper_profile_{profile}"
