"""What dpkg says of packages, what is asked for, and what makes a transaction dangerous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.temper.packaging import packages
from ansible.module_utils.temper.packaging.apt import Apt
from ansible.module_utils.temper.packaging.packages import Package, Wish

from tests.unit.each import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Run = Callable[..., dict[str, Any]]


# A kernel of the flavour nvidia, and GPUDirect Storage.
NO_DRIVER = (
    "linux-modules-6.8.0-1015-nvidia",
    "linux-image-nvidia",
    "linux-modules-nvidia-fs-6.8.0-1015-nvidia",
)


def installed(name: str, version: str, want: str = "install") -> dict[str, Package]:
    return {name: Package(name, version, want, "installed")}


def test_a_line_of_dpkg_is_a_package() -> None:
    known = packages.parse_dpkg("libcuda1\t580-1\thold\tinstalled\nvim\t9\tdeinstall\tconfig-files\n")
    assert known["libcuda1"].installed
    assert known["libcuda1"].held
    assert not known["vim"].installed
    assert not known["vim"].broken


@each("half-installed", "unpacked", "half-configured", "triggers-pending")
def test_a_package_that_stopped_half_way_is_broken(status: str) -> None:
    package = packages.parse_dpkg(f"libcuda1\t580-1\tinstall\t{status}\n")["libcuda1"]
    assert package.broken
    assert not package.installed


@each(False, True)
def test_of_two_architectures_the_installed_one_counts(reverse: bool) -> None:
    lines = ["libc6\t2\tinstall\tinstalled\n", "libc6\t1\tdeinstall\tconfig-files\n"]
    assert packages.parse_dpkg("".join(reversed(lines) if reverse else lines))["libc6"].version == "2"


@each(False, True)
def test_another_architecture_of_a_package_is_held_apart(reverse: bool) -> None:
    lines = [
        "libcuda1\t580-1\thold\tinstalled\tamd64\n",
        "libcuda1\t580-1\tinstall\tinstalled\ti386\n",
        "nvidia-common\t580-1\thold\tinstalled\tall\n",
    ]
    known = packages.parse_dpkg("".join(reversed(lines) if reverse else lines), "amd64")
    assert packages.to_hold({"libcuda1": "580-1"}, [], known) == ["libcuda1:i386"]
    known["libcuda1:i386"] = Package("libcuda1:i386", "580-1", "hold", "installed")
    assert packages.to_hold({"libcuda1": "580-1"}, ["580-1"], known) == []


@each(
    "cuda-toolkit-13-0",
    "cudnn9-cuda-13",
    "datacenter-gpu-manager-4-core",
    "firmware-nvidia-gsp",
    "libcuda1",
    "libcudnn9-cuda-13",
    "libnccl2",
    "libnvidia-ml1",
    "libnvsdm",
    "linux-modules-nvidia-580-server-open-aws",
    "linux-objects-nvidia-580-server-open-6.8.0-1015-aws",
    "nvidia-kernel-open-dkms",
    "nvlsm",
)
def test_names_of_the_family(name: str) -> None:
    assert packages.FAMILY.match(name)


@each("barracuda-agent", "libcuda1-mock", "nvlsm-tools", "xnvidia-x", "libc6", *NO_DRIVER)
def test_names_of_others(name: str) -> None:
    assert not packages.FAMILY.match(name)


def test_only_what_differs_is_asked_for() -> None:
    known = installed("a", "1") | installed("b", "1") | installed("headers", "7")
    known["c"] = Package("c", "1", "deinstall", "config-files")
    wish = Wish({"a": "1", "b": "2", "c": "1", "d": "1"}, {"headers": "", "missing": ""})
    assert wish.lacking(known) == {"missing": "", "b": "2", "c": "1", "d": "1"}


def test_any_version_meets_a_wish_for_none_in_particular() -> None:
    assert Wish({"a": "", "b": ""}).lacking(installed("a", "7")) == {"b": ""}


def test_a_version_beside_another_is_there_too() -> None:
    known = {"kernel-devel": Package("kernel-devel", "6", "install", "installed", ("5", "1:4"))}
    assert [Wish({}, {"kernel-devel": version}).lacking(known) for version in ("", "6", "5", "4")] == [{}] * 4
    assert Wish({}, {"kernel-devel": "7"}).lacking(known) == {"kernel-devel": "7"}


def test_the_listed_packages_and_their_siblings_are_held() -> None:
    known = (
        installed("nvidia-driver-cuda", "580-1")
        | installed("libnvidia-ml1", "580-1")
        | installed("libcuda1", "580-1", want="hold")
        | installed("libnccl2", "2.28-1")
        | installed("libnccl-dev", "2.28-1")
        | installed("unrelated", "580-1")
    )
    known["nvidia-modprobe"] = Package("nvidia-modprobe", "580-1", "deinstall", "config-files")
    holds = packages.to_hold({"nvidia-driver-cuda": "580-1", "libnccl2": "2.28-1"}, ["580-1"], known)
    assert holds == ["libnccl2", "libnvidia-ml1", "nvidia-driver-cuda"]


SIMULATION = """\
Reading package lists...
Remv nvidia-kernel-dkms [550-1]
Inst nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
Inst linux-headers-amd64 (6.1 Debian:12 [amd64])
Conf nvidia-kernel-open-dkms (580-1 NVIDIA:stable [amd64])
"""


def dangers(
    simulation: str,
    asked: Iterable[str] = (),
    known: dict[str, Package] | None = None,
    ours: Iterable[str] = (),
) -> list[str]:
    return packages.dangers(Apt().parse(simulation), list(asked), known or {}, set(ours))


def test_the_other_flavour_of_the_modules_may_give_way() -> None:
    assert dangers(SIMULATION, ["nvidia-kernel-open-dkms"]) == []


def test_removing_anything_else_is_a_danger() -> None:
    simulation = SIMULATION + "Remv docker-ce [5:29]\nRemv openssh-server [1:9.2]\n"
    assert dangers(simulation) == ["it would remove docker-ce, openssh-server"]


def test_a_kernel_that_nobody_asked_for_is_a_danger() -> None:
    simulation = SIMULATION + "Inst linux-image-6.12.0-1-amd64 (6.12 Debian:12 [amd64])\n"
    assert dangers(simulation, ["a"]) == ["it would install another kernel (linux-image-6.12.0-1-amd64)"]
    assert dangers(simulation, ["linux-image-6.12.0-1-amd64"]) == []


def test_changing_what_somebody_else_holds_is_a_danger() -> None:
    known = installed("linux-headers-amd64", "6.0", want="hold")
    refusal = ["it would change linux-headers-amd64, which somebody holds"]
    assert dangers(SIMULATION, known=known) == refusal
    # Two wishes of people against each other: that is for them to decide.
    assert dangers(SIMULATION, ["linux-headers-amd64"], known) == refusal


def test_changing_what_temper_holds_is_none() -> None:
    known = installed("nvidia-kernel-open-dkms", "570-1", want="hold")
    assert dangers(SIMULATION, known=known, ours=known) == []
    assert dangers(SIMULATION, known=known) == [
        "it would change nvidia-kernel-open-dkms, which somebody holds"
    ]
