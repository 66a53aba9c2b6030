"""The sysctl tree that nodes boot with."""

from pathlib import Path

import pytest

from tests.lab import sysctl_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree made from this machine's own /proc/sys."""
    target = tmp_path_factory.mktemp("sysctl") / "tree"
    sysctl_tree.write(target)
    return target


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kernel/yama/ptrace_scope", "0"),
        ("kernel/sysrq", "438"),
        ("fs/inotify/max_user_instances", "128"),
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/eth0/accept_redirects", "1"),
        ("net/ipv4/conf/all/accept_source_route", "0"),
        ("net/ipv4/conf/default/accept_source_route", "1"),
    ],
)
def test_values_are_a_debian_kernels_whatever_the_host_has(tree: Path, key: str, value: str) -> None:
    assert (tree / key).read_text() == f"{value}\n"


def test_values_that_debian_leaves_to_the_machine_are_the_hosts(tree: Path) -> None:
    assert (tree / "kernel/ostype").read_text() == "Linux\n"


def test_interfaces_are_the_nodes_not_the_hosts(tree: Path) -> None:
    assert {path.name for path in (tree / "net/ipv4/conf").iterdir()} == {"all", "default", "lo", "eth0"}


def test_random_numbers_are_left_to_the_kernel(tree: Path) -> None:
    assert list((tree / "kernel/random").iterdir()) == []
