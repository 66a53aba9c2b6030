"""What the plan says of repositories is what apt and dnf are given, on every supported distribution."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import repositories

from tests.unit.planning_nodes import plan, system
from tests.unit.settings.role_plans import item

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos"


@pytest.fixture
def rendered(
    carry_out: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], dict[str, str]]:
    """A function: file name -> content that the repositories of a distribution's plan would get."""
    monkeypatch.setattr(repositories, "APT", tmp_path / "apt")
    monkeypatch.setattr(repositories, "DNF_SOURCES", tmp_path / "yum.repos.d")
    monkeypatch.setattr(repositories, "DNF_KEYRINGS", tmp_path / "rpm-gpg")

    def render(name: str, release: str) -> dict[str, str]:
        found = plan(system(name, release))["repositories"]
        items = [item("repository", repository["name"], repository) for repository in found]
        result = carry_out("nvidia_stack", items, check_mode=True)
        assert not result.get("failed"), result
        return {diff["after_header"].rpartition("/")[2]: diff["after"] for diff in result["diff"]}

    return render


@pytest.mark.parametrize(
    ("name", "release", "folder"),
    [
        ("debian", "12", "debian12"),
        ("debian", "13", "debian13"),
        ("ubuntu", "22.04", "ubuntu2204"),
        ("ubuntu", "24.04", "ubuntu2404"),
    ],
)
def test_apt_reads_the_folder_of_the_release_with_a_key_of_its_own(
    rendered: Callable[[str, str], dict[str, str]], name: str, release: str, folder: str
) -> None:
    lines = rendered(name, release)["temper-nvidia-cuda.sources"].splitlines()
    assert f"URIs: {NVIDIA}/{folder}/x86_64/" in lines
    assert "Suites: /" in lines
    assert lines[-1].endswith("/apt/keyrings/temper-nvidia-cuda.asc")


@pytest.mark.parametrize(
    ("name", "release", "folder"),
    [("rhel", "8.10", "rhel8"), ("rocky", "9.4", "rhel9"), ("almalinux", "10.0", "rhel10")],
)
def test_dnf_reads_the_folder_of_the_major_release_and_checks_the_packages(
    rendered: Callable[[str, str], dict[str, str]], name: str, release: str, folder: str
) -> None:
    lines = rendered(name, release)["temper-nvidia-cuda.repo"].splitlines()
    assert f"baseurl={NVIDIA}/{folder}/x86_64/" in lines
    assert "gpgcheck=1" in lines


def test_dnf_checks_the_metadata_of_the_container_toolkit(
    rendered: Callable[[str, str], dict[str, str]],
) -> None:
    lines = rendered("rocky", "9.4")["temper-nvidia-container-toolkit.repo"].splitlines()
    assert "gpgcheck=0" in lines
    assert "repo_gpgcheck=1" in lines
