"""The plans of all GPUs on all systems, beside rules that come from NVIDIA's documents and not from data/."""

import re
from typing import NamedTuple

from tests.unit.each import each
from tools import plan_matrix
from tools.plan_matrix import Case


class Generation(NamedTuple):
    """Driver branches, CUDA versions and kernel modules that a generation works with."""

    first_branch: int
    last_branch: int
    first_cuda: tuple[int, int]
    last_cuda: tuple[int, int]
    modules: set[str]


NEWEST = (99, 0)
OLD = {"proprietary"}
GENERATIONS = {
    "Maxwell": Generation(0, 580, (0, 0), (12, 9), OLD),
    "Pascal": Generation(0, 580, (0, 0), (12, 9), OLD),
    "Volta": Generation(0, 580, (0, 0), (12, 9), OLD),
    "Turing": Generation(410, 9999, (10, 0), NEWEST, {"open", "proprietary"}),
    "Ampere": Generation(450, 9999, (11, 0), NEWEST, {"open", "proprietary"}),
    "Ada": Generation(520, 9999, (11, 8), NEWEST, {"open", "proprietary"}),
    "Hopper": Generation(520, 9999, (11, 8), NEWEST, {"open", "proprietary"}),
    "GH200": Generation(520, 9999, (11, 8), NEWEST, {"open"}),
    "Blackwell": Generation(570, 9999, (12, 8), NEWEST, {"open"}),
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
WITHOUT_TORCH_ON_AARCH64 = [GENERATIONS[name] for name in ("Maxwell", "Pascal", "Volta", "Turing")]


# PyPI's wheels for Python 3.14 begin with torch 2.9, whose oldest kernels are Volta's.
WITHOUT_TORCH = {"ubuntu-26.04": [GENERATIONS[name] for name in ("Maxwell", "Pascal")]}


class OwnDriver(NamedTuple):
    """What a distribution packages itself; a fabric manager that knows switches of this kind, if any."""

    stack: str
    branch: int
    modules: set[str]
    nvswitch: bool = False


# Debian's open modules do not build; Canonical signs both.
OWN_DRIVERS = {
    "debian-12": OwnDriver("debian-12-nvidia", 535, OLD),
    "debian-13": OwnDriver("debian-13-nvidia", 550, OLD),
    "ubuntu-22.04": OwnDriver("ubuntu-22.04-nvidia", 580, {"open", "proprietary"}, nvswitch=True),
    "ubuntu-24.04": OwnDriver("ubuntu-24.04-nvidia", 580, {"open", "proprietary"}, nvswitch=True),
    "ubuntu-26.04": OwnDriver("ubuntu-26.04-nvidia", 580, {"open", "proprietary"}, nvswitch=True),
}


def generations(name: str) -> list[Generation]:
    """Those of a row: named in it, or by its GPUs."""
    named = [GENERATIONS[word] for word in ("GH200",) if word in name] or [
        GENERATIONS[word] for word in re.findall(r"\((\w+)\)", name)
    ]
    by_gpu = {"V100": "Volta", "L40S": "Ada", "B200": "Blackwell"}
    return named or [GENERATIONS[by_gpu[gpu]] for gpu in name.split(" beside ")]


def preferred(modules: set[str]) -> str:
    """Of the kernel modules that do, those that NVIDIA recommends."""
    return "open" if "open" in modules else "proprietary"


def expected(case: Case) -> tuple[str, str] | None:
    """Stack and kernel modules, None where there is none."""
    found = generations(case.hardware.name)
    modules = set.intersection(*(generation.modules for generation in found))
    if any(one is old for one in found for old in WITHOUT_TORCH.get(case.system, ())):
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
    if architecture == "aarch64" and any(one in WITHOUT_TORCH_ON_AARCH64 for one in found):
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


def test_every_refusal_says_what_to_do() -> None:
    remedy = re.compile(
        r"set nvidia_stack_|nvidia_stack_source: |choose another system|move one of them|set gpu_"
    )
    problems = {problem for case in plan_matrix.cases() for problem in case.plan.problems}
    assert problems
    assert [problem for problem in problems if not remedy.search(problem)] == []


def test_the_page_is_what_the_plans_are() -> None:
    assert plan_matrix.PAGE.read_text(encoding="utf-8") == plan_matrix.page(), "out of date: run `make docs`"
