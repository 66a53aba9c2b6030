"""The plans of all GPUs on all systems, beside rules that come from NVIDIA's documents and not from data/."""

import re
from typing import NamedTuple

from tests.unit.each import each
from tests.unit.plan_oracle import (
    ADA_HOPPER,
    AMPERE,
    BLACKWELL,
    BOTH,
    MAXWELL_TO_VOLTA,
    OPEN,
    PROPRIETARY,
    TURING,
)
from tools import plan_matrix
from tools.plan_matrix import Case

GENERATIONS = {
    **dict.fromkeys(("Maxwell", "Pascal", "Volta"), MAXWELL_TO_VOLTA),
    "Turing": TURING,
    "Ampere": AMPERE,
    **dict.fromkeys(("Ada", "Hopper"), ADA_HOPPER),
    "GH200": ADA_HOPPER._replace(modules=OPEN),
    "Blackwell": BLACKWELL,
}
# The default stacks in their order: long-term branch before production branch, newer CUDA first.
STACKS = {
    "r580-cuda13.0": (580, (13, 0)),
    "r580-cuda12.9": (580, (12, 9)),
    "r595-cuda13.2": (595, (13, 2)),
    "r595-cuda13.3": (595, (13, 3)),
}
# Where NVIDIA's repository begins with a later branch or CUDA; and where nobody has published its key's
# fingerprint.
REPOSITORY_BEGINS = {
    "debian-13": (590, (0, 0)),
    "ubuntu-26.04": (595, (13, 3)),
    "rhel-10": (0, (13, 0)),
}
WITHOUT_KEY = {"rhel-10"}
# Of which nothing shows packages; and generations that no torch with CUDA for aarch64 has kernels for.
NOWHERE = {("debian-12", "aarch64")}
WITHOUT_TORCH_ON_AARCH64 = {"Maxwell", "Pascal", "Volta", "Turing"}
# PyPI's wheels for Python 3.14 begin with torch 2.9, whose oldest kernels are Volta's.
WITHOUT_TORCH = {"ubuntu-26.04": {"Maxwell", "Pascal"}}


class OwnDriver(NamedTuple):
    """What a distribution packages itself; a fabric manager that knows switches of this kind, if any."""

    stack: str
    branch: int
    modules: set[str]
    nvswitch: bool = False


# Debian's open modules do not build; Canonical signs both.
OWN_DRIVERS = {
    "debian-12": OwnDriver("debian-12-nvidia", 535, PROPRIETARY),
    "debian-13": OwnDriver("debian-13-nvidia", 550, PROPRIETARY),
    "ubuntu-22.04": OwnDriver("ubuntu-22.04-nvidia", 580, BOTH, nvswitch=True),
    "ubuntu-24.04": OwnDriver("ubuntu-24.04-nvidia", 580, BOTH, nvswitch=True),
    "ubuntu-26.04": OwnDriver("ubuntu-26.04-nvidia", 580, BOTH, nvswitch=True),
}


def generations(name: str) -> list[str]:
    """Those of a row: named in it, or by its GPUs."""
    named = ["GH200"] if "GH200" in name else re.findall(r"\((\w+)\)", name)
    by_gpu = {"V100": "Volta", "L40S": "Ada", "B200": "Blackwell"}
    return named or [by_gpu[gpu] for gpu in name.split(" beside ")]


def preferred(modules: set[str]) -> str:
    """Of the kernel modules that do, those that NVIDIA recommends."""
    return "open" if "open" in modules else "proprietary"


def expected(case: Case) -> tuple[str, str] | None:
    """Stack and kernel modules, None where there is none."""
    names = set(generations(case.hardware.name))
    found = [GENERATIONS[name] for name in names]
    modules = set.intersection(*(generation.modules for generation in found))
    if names & WITHOUT_TORCH.get(case.system, set()):
        return None
    if case.section.variables:
        own = OWN_DRIVERS[case.system]
        modules &= own.modules
        fits = all(one.first_branch <= own.branch <= one.last_branch for one in found)
        joined = case.hardware.nvlink_switch or (case.hardware.nvswitch and not own.nvswitch)
        return (own.stack, preferred(modules)) if fits and modules and not joined else None
    architecture = case.section.architecture
    if case.system in WITHOUT_KEY or (case.system, architecture) in NOWHERE or not modules:
        return None
    if architecture == "aarch64" and names & WITHOUT_TORCH_ON_AARCH64:
        return None
    first_branch, first_cuda = REPOSITORY_BEGINS.get(case.system, (0, (0, 0)))
    for stack, (branch, cuda) in STACKS.items():
        if (branch >= first_branch and cuda >= first_cuda) and all(
            one.first_branch <= branch <= one.last_branch and one.first_cuda <= cuda <= one.last_cuda
            for one in found
        ):
            return stack, preferred(modules)
    return None


@each(*plan_matrix.SECTIONS)
def test_each_gpu_gets_on_each_system_what_the_rules_allow(section: plan_matrix.Section) -> None:
    cases = [case for case in plan_matrix.cases() if case.section == section]
    found = {
        (case.hardware.name, case.system): None
        if case.plan.problems
        else (case.plan.stack, case.plan.driver and case.plan.driver.modules)
        for case in cases
    }
    assert found == {(case.hardware.name, case.system): expected(case) for case in cases}
