"""Every plan of every release of Enterprise Linux, carried out by a real dnf on empty packages.

The repository has what the plans name, exactly, beside other versions of the same names; its packages depend
on each other as NVIDIA's do. What no such repository can show is whether NVIDIA's has these versions.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging.dnf import Dnf

from tests.lab.dnf_node import configure, held, make_node, preview, repository_of, settle
from tests.lab.rpm_archive import Rpm, RpmArchive, kernel_provides, run
from tests.unit import openpgp_keys
from tests.unit.openpgp_keys import KeyRing
from tests.unit.planning_nodes import (
    B200,
    GPU,
    H100,
    L4,
    NVSWITCH,
    SWITCH,
    TABLES,
    V100,
    node,
    plan,
    system,
)
from tools.bare_node import pci

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="rpm installs packages as root"),
]
RELEASES = sorted(name for name, row in TABLES["nvidia_distributions"].items() if row["family"] == "rhel")
HARDWARE = {
    "one GPU": pci((L4, GPU)),
    "GPUs before Turing": pci((V100, GPU), (V100, GPU)),
    "NVSwitch": pci((H100, GPU), (SWITCH, NVSWITCH)),
    "NVLink 5 switches": pci((B200, GPU)),
}
# A kernel of each flavour and architecture that a release has.
KERNELS = {
    "8": ["4.18.0-553.el8_10.x86_64", "4.18.0-553.rt7.342.el8_10.x86_64", "4.18.0-553.el8_10.aarch64"],
    "9": ["5.14.0-611.el9_7.x86_64", "5.14.0-611.el9_7.x86_64+rt", "5.14.0-611.el9_7.aarch64+64k"],
    "10": ["6.12.0-124.el10_1.x86_64", "6.12.0-124.el10_1.x86_64+rt", "6.12.0-124.el10_1.aarch64+64k"],
}
KERNEL = Rpm("kernel-core", "1-1")
OTHER_VERSIONS = ("0.1-1", "9999.1-1", "9:9999.1-1")
# What planned packages pull in: the driver's at its own version, cuDNN's at whatever version the pins allow.
SIBLINGS = {
    "nvidia-driver-cuda": "libnvidia-ml",
    "nvidia-modprobe": "nvidia-kmod-common",
    "cudnn9-cuda-12": "libcudnn9-cuda-12",
    "cudnn9-cuda-13": "libcudnn9-cuda-13",
}


@dataclass(frozen=True)
class Case:
    """The plan of a node, and what tells it from others."""

    release: str
    name: str
    kernel: str
    plan: dict[str, Any]

    @property
    def driver(self) -> str:
        """The version of the driver's packages, with the epoch that NVIDIA gives them."""
        return f"3:{self.plan['driver']['package_version']}"

    def rpms(self) -> Iterator[Rpm]:
        """What the plan names, and what that pulls in."""
        for name, wanted in self.plan["packages"].items():
            version = self.driver if self.driver == f"3:{wanted}" else wanted or "2025.10.1-1"
            needs = ["dkms >= 3.1.8"] if name.startswith("kmod-nvidia-") else []
            if sibling := SIBLINGS.get(name):
                yield Rpm(sibling, version)
                needs.append(f"{sibling} = {version}" if version == self.driver else sibling)
            yield Rpm(name, version, tuple(f"Requires: {need}" for need in needs))
        headers, version = next(item for item in self.plan["present"].items() if item[1])
        for name, wanted in self.plan["present"].items():
            if name == f"{headers}-matched":
                yield Rpm(name, version, (f"Requires: {headers} = {version}", "Requires: kernel-core"))
            else:
                yield Rpm(name, wanted or "1-1", kernel_provides(self.kernel) if wanted else ())
        yield Rpm(headers, "0.1-1", kernel_provides("0.1-1"))


def cases() -> Iterator[Case]:
    """The plans of all releases, stacks and hardware that break no rule, on a release's kernels in turn."""
    for release in RELEASES:
        major = release.rpartition("-")[2]
        kernels = itertools.cycle(KERNELS[major])
        for stack, (hardware, devices) in itertools.product(TABLES["nvidia_stacks"], HARDWARE.items()):
            kernel = next(kernels)
            facts = system(
                "rhel",
                f"{major}.4",
                architecture="aarch64" if "aarch64" in kernel else "x86_64",
                kernel=node()["kernel"] | {"release": kernel, "headers_present": False},
                pci=devices,
                nvlink_switch_managed=hardware == "NVLink 5 switches",
            )
            planned = plan(
                facts,
                nvidia_stack_name=stack,
                nvidia_stack_cuda_key_fingerprints=["A" * 40],
                nvidia_stack_dcgm_exporter=True,
                nvidia_stack_imex=True,
                # Packages are tested here: what torch needs of a node refuses none.
                gpu_validation_required_tests=["health"],
            )
            if not planned["problems"]:
                yield Case(release, f"{release}, {stack}, {hardware}, {kernel}", kernel, planned)


CASES = tuple(cases())


def build(release: str, path: Path, ring: KeyRing) -> RpmArchive:
    """The repository for all plans of a release, with other versions of everything."""
    archive = RpmArchive(path, ring, "rsa3072")
    path.mkdir(parents=True)
    rpms: dict[tuple[str, str], Rpm] = {}
    streams: dict[str, dict[str, str]] = {}
    for case in CASES:
        if case.release == release:
            rpms |= {(rpm.name, rpm.version): rpm for rpm in case.rpms()}
            of_driver = {rpm.name: rpm.version for rpm in case.rpms() if rpm.version == case.driver}
            for stream in case.plan["module_streams"]:
                streams.setdefault(stream["stream"], {}).update(of_driver)
    planned = {name for case in CASES for name in case.plan["packages"]} | set(SIBLINGS.values())
    rpms |= {(name, other): Rpm(name, other) for name in sorted(planned) for other in OTHER_VERSIONS}
    archive.add_all([*rpms.values(), Rpm("dkms", "3.2.2-1"), KERNEL])
    for stream, artifacts in streams.items():
        archive.add_stream("nvidia-driver", stream, artifacts, release.rpartition("-")[2])
    archive.publish()
    return archive


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RpmArchive]]:
    """The repository of a release, built when a test first asks for it."""
    base = tmp_path_factory.mktemp("rpm")
    with openpgp_keys.made("rsa3072") as ring:
        yield functools.cache(lambda release: build(release, base / release / "repository", ring))


@pytest.fixture
def install(
    archives: Callable[[str], RpmArchive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Case], None]:
    """Install what a plan says, on a node that may have another plan's packages, and compare."""

    def installed(case: Case) -> None:
        archive = archives(case.release)
        managed = {"pins": case.plan["pins"], "streams": case.plan["module_streams"]}
        machine = make_node(tmp_path, monkeypatch, case.release.rpartition("-")[2], **managed)
        if not machine.query():
            # The node's kernel: a transaction that would bring one is refused.
            run("rpm", "--root", str(machine.root), "-i", "--nosignature", str(archive.path / KERNEL.file))
        # As the plan has it, but for the place.
        repository = repository_of(archive, tmp_path)
        repository["exclude"] = case.plan["repositories"][0]["exclude"]
        configure(repository)
        check(case, machine, repository)

    return installed


def check(case: Case, machine: Dnf, repository: dict[str, Any]) -> None:
    """Install the plan, and compare all that is there with it."""
    wanted, present = case.plan["packages"], case.plan["present"]
    assert preview(machine, repository, wanted, present=present)["problems"] == []

    version = case.plan["driver"]["package_version"]
    settle(machine, wanted, present, [version])
    known = machine.query()
    assert {name for name in wanted if not known[name].is_version(wanted[name])} == set()
    for name, sibling in SIBLINGS.items():
        assert name not in wanted or known[sibling].version == known[name].version
    assert {*wanted, "libnvidia-ml"} <= set(held(machine))
    assert not settle(machine, wanted, present, [version])["changed"]


def chosen() -> list[Any]:
    """Every case; all but the last of each release are slow together."""
    quick = list({case.release: case for case in CASES}.values())
    return [
        pytest.param(case, id=case.name, marks=[] if case in quick else [pytest.mark.slow]) for case in CASES
    ]


@pytest.mark.parametrize("case", chosen())
def test_dnf_installs_what_is_planned(case: Case, install: Callable[[Case], None]) -> None:
    install(case)


@pytest.mark.parametrize("release", RELEASES)
def test_dnf_moves_a_node_from_stack_to_stack(release: str, install: Callable[[Case], None]) -> None:
    """There and back, with the holds of the stack before."""
    found = [case for case in CASES if case.release == release and "NVSwitch" in case.name]
    kernel = found[0].kernel
    for case in (found[0], found[-1], found[0]):
        install(replace(case, kernel=kernel, plan=case.plan | {"present": found[0].plan["present"]}))
