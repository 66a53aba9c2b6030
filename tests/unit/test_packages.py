"""What dpkg says of packages, what is asked for, and what makes a transaction dangerous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.temper.packaging import packages
from ansible.module_utils.temper.packaging.apt import Apt, needed, parse_needs
from ansible.module_utils.temper.packaging.packages import Package, Wish, closed

from tests.unit.each import each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    for other in ("barracuda-agent", "libcuda1-mock", "nvlsm-tools", "xnvidia-x", "libc6", *NO_DRIVER):
        assert not packages.FAMILY.match(other), other


DEVEL = {"kernel-devel": Package("kernel-devel", "6", "install", "installed", ("5", "1:4"))}
GONE = {"c": Package("c", "1", "deinstall", "config-files")}


@each(
    (
        installed("a", "1") | installed("b", "1") | installed("headers", "7") | GONE,
        Wish({"a": "1", "b": "2", "c": "1", "d": "1"}, {"headers": "", "missing": ""}),
        {"missing": "", "b": "2", "c": "1", "d": "1"},
    ),
    # Any version meets a wish for none in particular.
    (installed("a", "7"), Wish({"a": "", "b": ""}), {"b": ""}),
    # A version beside another is there, too.
    *((DEVEL, Wish({}, {"kernel-devel": version}), {}) for version in ("", "6", "5", "4")),
    (DEVEL, Wish({}, {"kernel-devel": "7"}), {"kernel-devel": "7"}),
)
def test_only_what_differs_is_asked_for(
    known: dict[str, Package], wish: Wish, lacking: dict[str, str]
) -> None:
    assert wish.lacking(known) == lacking


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


KERNEL = "linux-image-6.12.0-1-amd64"
INSTALLS_KERNEL = f"{SIMULATION}Inst {KERNEL} (6.12 Debian:12 [amd64])\n"
REMOVES = f"{SIMULATION}Remv docker-ce [5:29]\nRemv openssh-server [1:9.2]\n"
HEADERS = installed("linux-headers-amd64", "6.0", want="hold")
HEADERS_HELD = ["it would change linux-headers-amd64, which somebody holds"]
MODULES = installed("nvidia-kernel-open-dkms", "570-1", want="hold")


@each(
    # The other flavour of the modules may give way.
    (SIMULATION, ["nvidia-kernel-open-dkms"], {}, (), []),
    (REMOVES, [], {}, (), ["it would remove docker-ce, openssh-server"]),
    (INSTALLS_KERNEL, ["a"], {}, (), [f"it would install another kernel ({KERNEL})"]),
    (INSTALLS_KERNEL, [KERNEL], {}, (), []),
    (SIMULATION, [], HEADERS, (), HEADERS_HELD),
    # Two wishes of people against each other: that is for them to decide.
    (SIMULATION, ["linux-headers-amd64"], HEADERS, (), HEADERS_HELD),
    (SIMULATION, [], MODULES, ("nvidia-kernel-open-dkms",), []),
    (SIMULATION, [], MODULES, (), ["it would change nvidia-kernel-open-dkms, which somebody holds"]),
)
def test_a_transaction_is_dangerous_that_takes_what_nobody_asked_for(
    simulation: str,
    asked: list[str],
    known: dict[str, Package],
    ours: tuple[str, ...],
    dangers: list[str],
) -> None:
    assert packages.dangers(Apt().parse(simulation), asked, known, set(ours)) == dangers


def test_what_stays_for_others_is_told_by_what_they_need() -> None:
    """By name, by what a package provides, and as one of several; and what those need in turn."""
    listing = (
        "driver\tinstalled\t\t\tlibc, gcc | clang\t\n"
        "gcc\tinstalled\tc-compiler\t\tcpp (>= 12)\t\n"
        "cpp\tinstalled\t\t\t\t\n"
        "fonts\tinstalled\t\t\t\t\n"
        "mail\tinstalled\tmta (= 1)\t\t\t\n"
        "cron\tinstalled\t\tdebconf\tmta | postfix\t\n"
        "site\tinstalled\t\t\tc-compiler:any\t\n"
        "gone\tconfig-files\t\t\tfonts\tnftables\n"
        "debconf\tinstalled\t\t\t\t\n"
        "libc\tinstalled\t\t\t\t\n"
        "nftables\tinstalled\t\t\t\t\n"
        "whois\tinstalled\t\t\t\t\n"
        "fail2ban\tinstalled\t\t\t\tnftables | iptables, whois\n"
    )
    packages_ = parse_needs(listing)
    assert needed(packages_, {"driver", "gcc", "cpp", "fonts"}) == {"gcc", "cpp"}
    assert needed(packages_, {"driver", "gcc", "cpp", "fonts", "site"}) == set()
    assert needed(packages_, {"mail", "fonts"}) == {"mail"}
    assert needed(packages_, {"mail", "cron"}) == set()
    assert needed(packages_, {"nftables", "whois"}) == {"nftables", "whois"}
    assert needed(packages_, {"nftables", "whois", "fail2ban"}) == set()
    assert needed(packages_, {"nftables", "whois"}, ours={"fail2ban"}) == set()


def test_a_removal_that_takes_others_along_is_tried_one_by_one() -> None:
    """The package manager knows versions, which what packages need does not tell."""

    def touched(names: Sequence[str]) -> set[str]:
        return {*names, *(["site"] if "gcc" in names else [])}

    assert closed(["gcc", "fonts"], touched) == ["fonts"]
    assert closed([], touched) == []
    assert closed(["fonts", "mail"], lambda names: {*names, *(["site"] if len(names) > 1 else [])}) == []
