"""Xid errors: what each says about a GPU, and what to do.

Meaning and recommended action: NVIDIA, "Analyzing Xid Errors with the Xid Catalog", catalogue of 2025-10-29.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.model.contract import State

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_RESET = "drain the node and reset the GPU; if it comes back, have the GPU looked at"
_REBOOT = "drain and reboot the node; if it comes back, have the GPU looked at"
_LINKS = "reset all GPUs of the node together; if it comes back, have GPU, baseboard and cables looked at"
_UNKNOWN = "look it up in NVIDIA's catalogue; if it comes back, ask the vendor's support"


@dataclass(frozen=True)
class Xid:
    """One entry: what happened, how bad that is for the node, and what to do."""

    title: str
    state: State
    action: str


#: Those that say something about the node. The rest of the catalogue is a program's own doing (13, 31, 43,
#: ...) or information (63, 154, ...): counted in the details, and no fault of the node.
REPORTED = {
    **dict.fromkeys((46, 109, 158), Xid("the GPU stopped answering", State.FAIL, _RESET)),
    48: Xid("uncorrectable memory error (double bit)", State.FAIL, _RESET),
    54: Xid("auxiliary power is not connected", State.FAIL, "check the GPU's power cables"),
    62: Xid("internal microcontroller halted", State.FAIL, _RESET),
    64: Xid("a faulty memory row could not be remapped", State.FAIL, _RESET),
    74: Xid("NVLink error", State.FAIL, _LINKS),
    79: Xid("the GPU has fallen off the bus", State.FAIL, _REBOOT),
    94: Xid("contained memory error, which ended one program", State.DEGRADED, _RESET),
    95: Xid("uncontained memory error", State.FAIL, _RESET),
    110: Xid("security fault", State.FAIL, _RESET),
    **dict.fromkeys((119, 120), Xid("the GPU's system processor (GSP) failed", State.FAIL, _RESET)),
    136: Xid("NVLink training failed", State.FAIL, _LINKS),
    140: Xid("unrecovered memory error", State.FAIL, _RESET),
    143: Xid("the GPU failed to initialise", State.FAIL, _RESET),
    **dict.fromkeys(range(144, 151), Xid("NVLink error (fifth generation)", State.FAIL, _LINKS)),
    151: Xid("encryption key rotation failed", State.FAIL, "restart the virtual machine"),
    155: Xid("NVLink error, found by software", State.FAIL, _LINKS),
    156: Xid("a part of the GPU was retired", State.DEGRADED, _RESET),
    167: Xid("fatal PCIe time-out", State.FAIL, _REBOOT),
    **dict.fromkeys((171, 172), Xid("uncorrectable memory error", State.FAIL, _RESET)),
}

#: Numbers up to here are in the catalogue.
LAST_KNOWN = 172
UNKNOWN = Xid("an error that no catalogue of this program knows", State.DEGRADED, _UNKNOWN)


def find(number: int) -> Xid | None:
    """What an Xid says about the node; None if nothing."""
    return REPORTED.get(number) or (UNKNOWN if number > LAST_KNOWN else None)
