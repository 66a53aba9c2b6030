"""Which torch runs the payload on a node, and with which Python; or why there is none.

Whether a wheel is published for a Python and a machine decides whether it can be installed; the kernels in it
and its CUDA, whether it can use the node's GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from temper.plan.distributions import Distribution
from temper.plan.facts import NodeFacts
from temper.plan.model import Driver, Gpu, Payload
from temper.plan.refusals import Refusal, Remedy, advice, refusal
from temper.plan.tables import Tables, TorchBuild
from temper.plan.variables import GpuValidation
from temper.plan.versions import minor, version

# What the payload is written for.
FIRST_PYTHON = "3.10"
# An index of PyTorch's for one CUDA, or a mirror with the same folders.
INDEX_OF = re.compile(r"/whl/(?P<variant>cu\d{3})\b")
REQUIREMENTS = "requirements/torch/{}.txt"
CUDA_LABEL = re.compile(r"cu\d{3}")


@dataclass(frozen=True)
class Wheel:
    """A build of torch: version, and CUDA as in an index's name ("cu126"), empty without CUDA."""

    version: str
    variant: str

    @property
    def cuda(self) -> str:
        """The CUDA's version: 12.6 of cu126."""
        return f"{self.variant[2:-1]}.{self.variant[-1]}"


@dataclass(frozen=True)
class Situation:
    """What a torch is to run on: the node with its planned driver. `preferred` is the torch of the stack."""

    node: NodeFacts
    tables: Tables
    wanted: GpuValidation
    distribution: Distribution
    gpus: tuple[Gpu, ...]
    driver: Driver
    preferred: str

    @cached_property
    def pythons(self) -> tuple[str, ...]:
        """The Pythons that an environment can have, in the order in which they are taken.

        Those of the node, then those that its system packages. An environment that is there keeps its own.
        """
        offered = self.tables.distribution_pythons.get(self.distribution.name, ())
        there = self.node.payload_python
        every = [there.version] if there else dict.fromkeys((*self.node.pythons, *offered))
        return tuple(python for python in every if version(python) >= version(FIRST_PYTHON))

    @cached_property
    def releases(self) -> tuple[str, ...]:
        """The stack's torch, then those of the tables: the newest one whose CUDA the driver knows first."""
        driver, cuda_drivers = version(self.driver.version), self.tables.cuda_drivers

        def rank(torch: str) -> tuple[bool, tuple[int, ...]]:
            wheel = self.wheel(torch)
            known = cuda_drivers.get(wheel.cuda) if wheel.variant else None
            return known is not None and driver >= version(known), version(torch)

        last = (row.last for row in self.tables.torch_releases.values())
        return (self.preferred, *sorted(last, key=rank, reverse=True))

    @property
    def gpus_required(self) -> bool:
        """Whether a test that must run computes on GPUs."""
        return any(test == "torch" or test.startswith("gpu_") for test in self.wanted.required_tests)

    def wheel(self, torch: str) -> Wheel:
        """Return what pip installs for this version: from PyPI, or from the index that it is given."""
        release, _, label = torch.partition("+")
        if label:
            return Wheel(release, label if CUDA_LABEL.fullmatch(label) else "")
        if index := INDEX_OF.search(self.wanted.pip_args):
            return Wheel(release, index["variant"])
        row = self.tables.torch_releases.get(minor(release))
        return Wheel(release, row.pypi.get(self.node.architecture, "") if row else "")

    def build(self, wheel: Wheel) -> TorchBuild | None:
        """Return the row of the tables with this wheel, None where there is none."""
        rows = self.tables.torch_builds.get(self.node.architecture, {}).get(wheel.variant, {})
        number = version(minor(wheel.version))
        return next(
            (row for first, row in rows.items() if version(first) <= number <= version(row.last)), None
        )


def payload_plan(situation: Situation) -> tuple[Payload, list[Refusal], list[str]]:
    """Return the payload's torch and Python, problems and warnings."""
    there, named = situation.node.payload_python, situation.wanted.torch_version
    torch = named or situation.preferred
    if there and (not there.version or not (there.torch or there.environment)):
        # Nobody can tell what it is: the role asks it.
        return Payload(torch), [], []
    if there and (torch in (there.torch, there.torch.partition("+")[0])) and (named or not there.environment):
        # The operator has brought it, whatever it was built for.
        return Payload(torch, there.version), [], []
    if there and not there.environment:
        path, own = situation.wanted.python, there.torch.partition("+")[0]
        problem = refusal("torch-fixed", python=path, found=there.torch, wanted=torch, own=own)
        return Payload(torch, there.version), [problem], []
    if minor(torch.partition("+")[0]) not in situation.tables.torch_releases and situation.pythons:
        warning = (
            f"torch {torch} is in no table: whether it has wheels for this node's Python and kernels for its "
            "GPUs shows only when it is installed"
        )
        payload = payload_of(torch, situation.pythons[0], situation)
        return payload, [], [warning, *without_hashes(payload)]
    if found := choice([named] if named else situation.releases, situation):
        return found[0], [], [*found[1], *without_hashes(found[0])]
    return Payload(torch), [no_torch(torch, situation)], []


def choice(releases: Iterable[str], situation: Situation) -> tuple[Payload, list[str]] | None:
    """Return the first release that fits and warnings; None where none does.

    Where no test that computes on GPUs is required, one that cannot use them will do as well.
    """
    installable = [
        (torch, python)
        for torch, python in product(releases, situation.pythons)
        if not any(uninstallable(situation.wheel(torch), python, situation))
    ]
    for torch, python in installable:
        if not any(useless(situation.wheel(torch), situation)):
            return payload_of(torch, python, situation), []
    if situation.gpus_required or not installable:
        return None
    torch, python = installable[0]
    reason = next(useless(situation.wheel(torch), situation))
    return payload_of(torch, python, situation), [f"{reason.text}: tests on GPUs do not run"]


def payload_of(torch: str, python: str, situation: Situation) -> Payload:
    """Return the payload with a torch that is to be installed."""
    hashes = requirements(torch, situation)
    if situation.node.payload_python:
        return Payload(torch, python, requirements=hashes)
    default = python in situation.node.pythons[:1]
    packages = situation.distribution.environment_packages(python, default=default)
    return Payload(torch, python, f"/usr/bin/python{python}", packages, hashes)


def requirements(torch: str, situation: Situation) -> str:
    """Return the file with the hashes of a torch and of what comes with it: the operator's, else ours.

    Ours are of the newest patch of each release on PyPI; PyTorch's own indexes have other files.
    """
    known = any(row.last == torch for row in situation.tables.torch_releases.values())
    own = REQUIREMENTS.format(torch) if known and not INDEX_OF.search(situation.wanted.pip_args) else ""
    return situation.wanted.torch_requirements or own


def without_hashes(payload: Payload) -> list[str]:
    """Return a warning of what nobody has pinned."""
    if payload.requirements:
        return []
    return [
        f"torch {payload.torch} and what comes with it would be installed without hashes, so that the "
        "package index chooses what root runs; name a requirements file that has them in "
        "gpu_validation_torch_requirements"
    ]


def has_kernels(capabilities: Iterable[str], capability: str) -> bool:
    """Return whether a build has kernels for a GPU: they also run on later ones of their major version."""
    gpu = version(capability)
    return any(version(own)[0] == gpu[0] and version(own) <= gpu for own in capabilities)


def uninstallable(wheel: Wheel, python: str, situation: Situation) -> Iterator[Refusal]:
    """Yield why pip would not find this wheel."""
    release = situation.tables.torch_releases[minor(wheel.version)]
    first, last = release.first_python, release.last_python
    if not version(first) <= version(python) <= version(last):
        yield refusal("torch-python", torch=wheel.version, first=first, last=last, python=python)
    elif wheel.variant and not situation.build(wheel):
        machine = situation.node.architecture
        yield refusal("torch-cuda-unknown", torch=wheel.version, cuda=wheel.cuda, machine=machine)


def useless(wheel: Wheel, situation: Situation) -> Iterator[Refusal]:
    """Yield why this wheel cannot compute on the node's GPUs."""
    machine, driver = situation.node.architecture, situation.driver.version
    build = situation.build(wheel)
    if not wheel.variant:
        yield refusal("torch-without-cuda", torch=wheel.version, machine=machine)
    if not build:
        return
    what = {"torch": wheel.version, "cuda": wheel.cuda, "machine": machine}
    minimum = situation.tables.cuda_minimum_drivers[wheel.cuda.partition(".")[0]]
    if version(driver) < version(minimum):
        yield refusal("torch-driver", limit=minimum, found=driver, **what)
    for gpu in situation.gpus:
        capability = situation.tables.models[gpu.model].compute_capability
        if not has_kernels(build.capabilities, capability):
            facts = {"gpu": gpu.name, "capability": capability, **what}
            yield refusal("torch-kernels", known=build.capabilities, **facts)


def no_torch(torch: str, situation: Situation) -> Refusal:
    """Return the first reason against a torch, with what to do."""
    if not situation.pythons:
        if there := situation.node.payload_python:
            found = f"{situation.wanted.python} is {there.version}"
        else:
            found = f"/usr/bin on this node has {', '.join(situation.node.pythons) or 'none'}"
        return refusal("payload-python", python_remedy(situation), limit=FIRST_PYTHON, found=found)
    wheel = situation.wheel(torch)
    # Where a Python has the wheel, its kernels are what is wrong.
    perhaps = [list(uninstallable(wheel, python, situation)) for python in situation.pythons]
    reasons = (*min(perhaps, key=len), *useless(wheel, situation))
    return replace(reasons[0], remedy=remedy(situation))


def remedy(situation: Situation) -> Remedy:
    """Return what to do where a torch does not fit: another one, another Python, or an own environment."""
    if found := choice(situation.releases, situation):
        return advice("other-torch", torch=found[0].torch)
    for python in situation.pythons:
        if wheel := next(indexed(python, situation), None):
            return advice("torch-of-index", torch=wheel.version, variant=wheel.variant)
    if any(next(indexed(python, situation), None) for python in newest_pythons(situation)):
        return python_remedy(situation)
    return advice("own-environment")


def newest_pythons(situation: Situation) -> list[str]:
    """Return the newest Pythons of the releases of torch, the oldest of them first."""
    return sorted({row.last_python for row in situation.tables.torch_releases.values()}, key=version)


def python_remedy(situation: Situation) -> Remedy:
    """Return how the payload gets another Python.

    The oldest one that a wheel for these GPUs has, if any has one.
    """
    if situation.node.payload_python:
        return advice("new-environment", python=situation.wanted.python)
    usable = [python for python in newest_pythons(situation) if next(indexed(python, situation), None)]
    return advice("other-python", python=(usable or newest_pythons(situation))[0])


def indexed(python: str, situation: Situation) -> Iterator[Wheel]:
    """Yield the wheels of PyTorch's own indexes that fit, the newest release first."""
    variants = situation.tables.torch_builds.get(situation.node.architecture, {})
    for torch, variant in product(situation.releases[1:], variants):
        wheel = Wheel(torch, variant)
        if not any(uninstallable(wheel, python, situation)) and not any(useless(wheel, situation)):
            yield wheel
