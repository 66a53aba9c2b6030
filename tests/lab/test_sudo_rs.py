"""Debian 13 with sudo-rs in sudo's place: every strict profile is made, and holds after a reboot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.hardening import SUDO_RS
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="sudors"))
NODE = FLEET.lab.node(2)
NETWORKS = {"firewall_management_networks": ["10.213.0.0/16"]}
ROOT = "runuser -u ops -- sudo -n id -u"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        on_node(NODE, f"apt-get -qq update; apt-get -qqy install sudo-rs >/dev/null; {SUDO_RS}")
        yield


def harden(profile: str) -> Run:
    run = FLEET.playbook("harden", NODE, preflight_plan_file="", os_hardening_profile=profile, **NETWORKS)
    assert run.status == 0, run.output
    return run


def test_strict_profiles_are_made_and_hold_after_a_reboot() -> None:
    for profile in ("cis-level1", "cis-level2", "anssi-high"):
        first = harden(profile)
        assert "sudo-rs 0." in first.said, first.output
        assert harden(profile).changed(NODE) == 0, profile
        FLEET.command("reboot", NODE.name)
        assert on_node(NODE, ROOT).strip() == "0", profile
        assert harden(profile).changed(NODE) == 0, f"{profile} after a reboot"
