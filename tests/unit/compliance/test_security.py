"""Versions below those of NVIDIA's security bulletins: their table, the plan's warning, and the controls."""

import copy
import datetime
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from temper.base import DATA
from temper.compliance.answers import answer
from temper.compliance.model import State, WaivedBy
from temper.compliance.statement import statement
from temper.plan.preflight import preflight_plan
from temper.plan.security import installed
from temper.plan.tables import load_tables
from temper.plan.versions import branch, version
from temper.report.compliance import checked_node
from tests.unit import planning_nodes as nodes
from tests.unit.compliance.fleets import DRIVER, KNOWN, RULES, VARIABLES, observations, plan, waiver
from tests.unit.compliance.test_check_action import task
from tests.unit.each import each

COMPONENTS = load_tables(DATA).security
WITH_BULLETINS = replace(RULES, security=COMPONENTS)


def stated(found: dict[str, str], *waivers: Any) -> dict[str, Any]:
    """The controls of a node on which these versions are installed, by their components."""
    fact = preflight_plan({"ansible_facts": {"temper": nodes.node()}}, VARIABLES, KNOWN)
    own = {role: [asdict(one) for one in ones] for role, ones in observations(plan()).items()}
    said = {"answer": answer(fact, own, DRIVER, versions=found)}
    (told,) = statement([checked_node("gpu01", [], said, waivers)], WITH_BULLETINS, {}).nodes
    prefix = "nvidia_stack/security:"
    return {one.id.removeprefix(prefix): one for one in told.controls if one.id.startswith(prefix)}


def test_each_bulletin_agrees_with_itself() -> None:
    for name, component in COMPONENTS.items():
        assert bool(component.packages) == (name != "driver" and not component.firmware), name
        for number, bulletin in component.bulletins.items():
            year = datetime.date.fromisoformat(bulletin.date).year
            assert bulletin.url.endswith(f"/NVIDIA/product-security/tree/main/{year}/{number}")
            versions = [version(fix.version) for fix in bulletin.fixed]
            assert versions == sorted(versions)
            assert all(bool(fix.devices) == component.firmware for fix in bulletin.fixed), number
            branches = [
                (device, branch(fix.version)) for fix in bulletin.fixed for device in fix.devices or (0,)
            ]
            assert len(set(branches)) == len(branches), number
            assert {cve for fix in bulletin.fixed for cve in fix.cves} == bulletin.cvss.keys(), number
            assert all(fix.cves for fix in bulletin.fixed), number
            assert all(0 < score <= 10 for score in bulletin.cvss.values()), number


@each(
    ("driver", "580.159.03", State.FAIL, "580.178.04", "CVE-2026-47489"),
    ("driver", "580.178.04", State.PASS, "", ""),
    ("driver", "595.71.05", State.FAIL, "595.91.07", "CVSS 7.8"),
    ("driver", "610.43.02", State.FAIL, "610.57.04", "and 77 more"),
    ("driver", "615.71.09", State.PASS, "", ""),
    # Branches without a fixed version: the next one that has it, and newer ones than any bulletin.
    ("driver", "535.309.01", State.FAIL, "580.178.04", "branch"),
    ("driver", "620.11.02", State.PASS, "", ""),
    ("cuda", "13.0.2-1", State.WAIVED, "13.1", "CVE-2025-33230"),
    ("cuda", "12.4.131~12.4.1-2", State.WAIVED, "13.1", "CVE-2025-33228"),
    ("cuda", "13.1.0-1", State.PASS, "", ""),
    ("container_toolkit", "1.19.0-1", State.FAIL, "1.19.1", "CVE-2026-24260"),
    ("container_toolkit", "1.19.1~rc.1-1", State.PASS, "", ""),
    ("dcgm", "1:4.5.2-1", State.FAIL, "4.5.3", "CVE-2026-47483"),
    ("dcgm", "1:4.6.0-1", State.PASS, "", ""),
    ("dcgm_exporter", "4.8.1-1", State.FAIL, "4.8.2", "CVE-2026-47483"),
    ("network_firmware", "28.39.1002", State.FAIL, "28.39.8002", "CVSS 9.0"),
    ("network_firmware", "28.42.1000", State.FAIL, "28.43.8002", "branch"),
    ("network_firmware", "28.47.1026, 40.46.3008", State.PASS, "", ""),
    ("network_firmware", "22.46.3008", State.FAIL, "22.47.1020", "CVE-2025-33207"),
    ("network_firmware", "16.35.8002", State.FAIL, "16.35.8008", "CVE-2025-33207"),
    # Branch 32 has a fix for another adapter; what one bulletin asks for is too old for the other.
    ("network_firmware", "20.32.2004", State.FAIL, "20.39.8002", "20.39.5124"),
    ("network_firmware", "99.10.1", State.PASS, "", ""),
    ("network_firmware", "28.47.1026, 28", State.NOT_CHECKED, "", "'28'"),
    ("network_firmware", "", State.NOT_APPLICABLE, "", "virtual functions"),
    ("driver", "", State.NOT_APPLICABLE, "", "not installed"),
    ("driver", "none\x1b[0m", State.NOT_CHECKED, "", "none"),
    ("driver", "9" * 1000, State.NOT_CHECKED, "", "expected the version"),
)
def test_an_installed_version_is_judged(
    component: str, found: str, state: State, wanted: str, reason: str
) -> None:
    control = stated({component: found})[component]
    assert control.state is state
    assert [(change.before, change.after) for change in control.changes] == (
        [(found, wanted)] if wanted else []
    )
    assert reason in control.reason
    repairs = state is State.FAIL and not COMPONENTS[component].firmware
    assert ("--tags nvidia_stack" in control.remedy) == repairs


def test_temper_accepts_what_concerns_nobody_and_operators_what_they_like() -> None:
    old = {"cuda": "13.0.2-1", "driver": "580.126.09"}
    found = stated(old, waiver("nvidia_stack/security:driver"))
    assert (found["cuda"].waived_by, found["cuda"].measured) == (WaivedBy.PROFILE, State.FAIL)
    assert "CVE-2025-33231" in found["cuda"].waiver
    assert (found["driver"].state, found["driver"].waived_by) == (State.WAIVED, WaivedBy.OPERATOR)


def test_of_several_versions_the_lowest_counts() -> None:
    packages = {
        "cuda-toolkit-13-2": "13.2.2-1",
        "cuda-toolkit-12-9": "12.9.1-1",
        "cuda-toolkit-config-common": "1.0-1",
        "nvidia-container-toolkit-base": "1.0-1",
    }
    assert installed(packages, None, COMPONENTS, ["28.47.1026", "28.39.1002", "28.39.1002"]) == {
        "cuda": "12.9.1-1",
        "network_firmware": "28.39.1002, 28.47.1026",
    }


def test_the_check_passes_on_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = nodes.node(
        packages={"nvidia-container-toolkit": "1.18.0-1"}, network_firmware=["28.39.1002", "40.46.3008"]
    )
    result, _ = task(monkeypatch, node_facts={"ansible_facts": {"temper": facts}})
    assert json.loads(result["answer"])["versions"] == {
        "container_toolkit": "1.18.0-1",
        "network_firmware": "28.39.1002, 40.46.3008",
    }


@each(
    ({}, []),
    ({"container_toolkit_package": "1.18.0-1"}, ["CVE-2026-24260"]),
    ({"driver": "580.126.09", "dcgm_package": "1:4.5.2-1"}, ["CVE-2026-47489", "CVE-2026-47483"]),
)
def test_a_plan_warns_of_what_it_would_install(changes: dict[str, str], named: list[str]) -> None:
    data = copy.deepcopy(nodes.TABLES)
    data["nvidia_stacks"]["changed"] = data["nvidia_stacks"]["r580-cuda13.0"] | changes
    made = nodes.plan(data=data, nvidia_stack_name="changed", nvidia_stack_dcgm=True)
    warnings = [one for one in made["warnings"] if "product-security" in one]
    assert [any(cve in one for one in warnings) for cve in named] == [True] * len(named)
    assert len(warnings) == len(named)
    assert all("plan a newer stack" in one for one in warnings)
