"""Xid errors: what is found of each holds against NVIDIA's catalogue, and those of NVLink 5 are decoded."""

from typing import Any

import pytest

from temper.plan.tables import read_yaml
from tools.finding_docs import SUPPORT, XIDS
from validation.findings.catalogue import catalogue, xid_code
from validation.probes.kernel_log import Kind, events

#: The last code of NVIDIA's catalogue of 2025-10-29.
LAST = 172


@pytest.fixture(scope="module")
def table() -> Any:
    return read_yaml(XIDS)


def test_every_code_of_the_catalogue_is_accounted_for_once(table: Any) -> None:
    codes = [*table["codes"], *table["unused"]]
    assert sorted(code for code in codes if code <= LAST) == list(range(1, LAST + 1))
    assert {of["asks"] for of in table["codes"].values()} <= {
        *table["actions"],
        *("", SUPPORT, "RESTART_APP", "IGNORE", "WORKFLOW_XID_45", "XID_154"),
    }


def test_what_is_found_of_an_xid_is_what_nvidia_asks_for_or_says_why_not(table: Any) -> None:
    wrong = []
    for code, of in table["codes"].items():
        found = catalogue().get(xid_code(code) or "")
        wanted = table["actions"].get(of["asks"], "none" if of["asks"] == SUPPORT else None)
        actions = {str(case.machine_action) for case in found.cases.values()} if found else {None}
        if (actions != {wanted} or not of["asks"]) and not of.get("here"):
            wrong.append(f"Xid {code} asks for {of['asks'] or 'nothing'}: found is {actions}")
    assert not wrong


def test_a_code_that_nobody_explains_is_shown(table: Any) -> None:
    for code in (*table["unused"], 142, 177, 999):
        assert xid_code(code) == "xid-unknown", code
    assert {xid_code(code) for code in (13, 31, 43, 45, 63, 154, 162, 170, 174)} == {None}


def test_an_error_of_nvlink_5_is_decoded_by_unit_status_and_information() -> None:
    for number, words, kind in (
        # The word of the driver decides, where it says no status.
        (145, "RLW_RXPIPE Fatal XC0 i0 Link 13", Kind.XID),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13", Kind.NONFATAL),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 1 (0x00000001 0x00000001 0x0)", Kind.NONFATAL),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 1 (0x00000001 0x00000004 0x0)", Kind.HARMLESS),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 1 (0x00000001 0x00000010 0x0)", Kind.XID),
        (144, "SAW_MVB Fatal XC0 i0 Link 1 (0x00000001 0x00000004 0x0)", Kind.XID),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 1 (0x00000004 0x00000001 0x0)", Kind.NONFATAL),
        (145, "pid=7, name=a,b, RLW_REMAP Nonfatal XC0 i0 Link 1 (0x4 0x00000100 0x0)", Kind.HARMLESS),
        (146, "TLW_RX_PIPE1 Nonfatal XC0 i0 Link 1 (0x0000000b 0x00000001 0x0)", Kind.HARMLESS),
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 1 (0x00000014 0x00000003 0x0)", Kind.HARMLESS),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 1 (0x02600011 0x00000000 0x0)", Kind.NONFATAL),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 1 (0x00200011 0x00000000 0x0)", Kind.XID),
        # "Action 2": since 575 bit 7 of the information, before it bit 10.
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x00000006 0x00000001 0x0)", Kind.NONFATAL),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x00000086 0x00000001 0x0)", Kind.XID),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x000000c2 0x00000002 0x0)", Kind.NONFATAL),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x000004c2 0x00000002 0x0)", Kind.XID),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x00000086 0x00000008 0x0)", Kind.NONFATAL),
        # A unit that no table has.
        (150, "NEW_UNIT Nonfatal XC0 i0 Link 1 (0x00000000 0x00000004 0x0)", Kind.NONFATAL),
    ):
        (event,) = events([f"NVRM: Xid (PCI:0018:01:00): {number}, {words}"])
        assert event.kind is kind, words
