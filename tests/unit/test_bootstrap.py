"""The environment is made anew when the requirements ask for another or it was left half done, else never."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools import bootstrap

Commands = list[list[str]]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout with requirements."""
    (tmp_path / "requirements").mkdir()
    for layer in ("controller", "dev"):
        (tmp_path / "requirements" / f"{layer}.txt").write_text(f"{layer}==1\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "COMMAND", tmp_path / ".venv/bin/temper")
    return tmp_path


@pytest.fixture
def commands(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What would be run; `python -m venv` and pip leave only what the code looks at."""
    ran: Commands = []

    def run_visibly(title: str, command: Sequence[str]) -> None:
        ran.append(list(command))
        (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        (checkout / ".venv" / "bin" / "python").touch()
        (checkout / ".venv/lib/python3.11/site-packages").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(bootstrap, "run_visibly", run_visibly)
    return ran


def steps(commands: Commands) -> list[str]:
    """Each command as one word."""
    return ["venv" if "venv" in command else Path(command[-1]).name for command in commands]


def test_a_link_to_another_folder_is_left_alone(checkout: Path, commands: Commands, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (checkout / ".venv").symlink_to(other)
    with pytest.raises(bootstrap.NotReadyError, match=f"is a link to {other}"):
        bootstrap.make_environment("dev")
    assert commands == []
    assert (other / "bin").is_dir()


def test_an_environment_of_an_earlier_release_gets_the_command(checkout: Path, commands: Commands) -> None:
    bootstrap.make_environment("controller")
    bootstrap.COMMAND.unlink()
    bootstrap.make_environment("controller")
    assert os.access(bootstrap.COMMAND, os.X_OK)
    assert steps(commands) == ["venv", "controller.txt"]


def test_complete_environment_is_left_alone(commands: Commands) -> None:
    bootstrap.make_environment("dev")
    commands.clear()
    bootstrap.make_environment("dev")
    bootstrap.make_environment("controller")
    assert commands == []


def test_developers_packages_are_added_to_the_controllers(commands: Commands) -> None:
    bootstrap.make_environment("controller")
    bootstrap.make_environment("dev")
    assert steps(commands) == ["venv", "controller.txt", "dev.txt"]


def changed_requirements(checkout: Path) -> None:
    (checkout / "requirements" / "controller.txt").write_text("controller==2\n")


def other_python(checkout: Path) -> None:
    record = checkout / ".venv" / "temper.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "python": "3.10"}))


def moved_checkout(checkout: Path) -> None:
    record = checkout / ".venv" / "temper.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "path": "/elsewhere/.venv"}))


def removed_python(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "python").unlink()


@pytest.mark.parametrize("spoil", [changed_requirements, other_python, moved_checkout, removed_python])
def test_environment_that_no_longer_fits_is_made_anew(
    checkout: Path, commands: Commands, spoil: Callable[[Path], None]
) -> None:
    bootstrap.make_environment("dev")
    spoil(checkout)
    commands.clear()
    bootstrap.make_environment("dev")
    assert steps(commands) == ["venv", "dev.txt"]


def test_interrupted_installation_is_started_again(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.make_environment("controller")
    run_visibly = bootstrap.run_visibly

    def interrupt(title: str, command: Sequence[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "run_visibly", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.make_environment("dev")
    monkeypatch.setattr(bootstrap, "run_visibly", run_visibly)
    commands.clear()
    bootstrap.make_environment("dev")
    assert steps(commands) == ["venv", "dev.txt"]


def test_failing_installation_shows_its_output_and_is_not_recorded(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(title: str, command: Sequence[str]) -> None:
        raise subprocess.CalledProcessError(1, command, "No matching distribution found for x==1\n")

    monkeypatch.setattr(bootstrap, "run_visibly", fail)
    with pytest.raises(bootstrap.NotReadyError, match="No matching distribution"):
        bootstrap.make_environment("dev")
    assert not (checkout / ".venv" / "temper.json").exists()


def test_missing_debian_packages_are_named_to_a_user_who_cannot_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "missing_packages", lambda names: ["nftables"])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(bootstrap.NotReadyError, match=r"missing \(nftables\).*sudo"):
        bootstrap.install_packages(["nftables", "gnupg"])


def test_a_browser_comes_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr(bootstrap, "install_packages", installed.extend)
    monkeypatch.setattr("sys.argv", ["bootstrap", "browser"])
    assert bootstrap.main() == 0
    assert installed == ["chromium", "chromium-driver"]


@pytest.mark.component
def test_programs_of_monitoring_are_unpacked_once_and_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
    )
    (package / "usr/bin").mkdir(parents=True)
    (package / "usr/bin/promtool").write_text("a program")
    ran = []

    def fetch(title: str, command: Sequence[str], folder: Path) -> None:
        ran.append(command)
        build = ["dpkg-deb", "--build", "--root-owner-group", str(package), str(folder / "x.deb")]
        subprocess.run(build, check=True, capture_output=True)

    monkeypatch.setattr(bootstrap, "run_visibly", fetch)
    monkeypatch.setattr(bootstrap, "MONITORING", tmp_path / "cache/monitoring")
    for _ in range(2):
        bootstrap.unpack_monitoring()
    assert [command[:2] for command in ran] == [["apt-get", "download"]]
    assert (tmp_path / "cache/monitoring/usr/bin/promtool").read_text() == "a program"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["monitoring"]


def test_programs_of_monitoring_that_cannot_be_fetched_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(title: str, command: Sequence[str], folder: Path) -> None:
        raise subprocess.CalledProcessError(100, command, "Unable to locate package prometheus\n")

    monkeypatch.setattr(bootstrap, "run_visibly", fail)
    monkeypatch.setattr(bootstrap, "MONITORING", tmp_path / "cache/monitoring")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(bootstrap.NotReadyError, match=r"Unable to locate[\s\S]*apt-get update"):
        bootstrap.unpack_monitoring()
    assert list((tmp_path / "cache").iterdir()) == []


def rules() -> dict[str, tuple[list[str], str]]:
    """Return each target's prerequisites and commands."""
    text = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    found = re.findall(r"^([a-z-]+):([^#\n=]*).*\n((?:\t.*\n)*)", text, re.MULTILINE)
    return {target: (needs.split(), commands) for target, needs, commands in found}


def test_operators_get_the_controllers_layer_and_developers_the_other() -> None:
    found = rules()
    assert "environment controller\n" in found["setup"][1]
    assert "environment dev\n" in found["setup-dev"][1]
    assert {"setup", "setup-dev"} & set(found["site"][0]) == {"setup"}


def test_a_target_that_runs_a_developers_tool_makes_the_developers_environment() -> None:
    tools = re.compile(
        r"(?:\$\(BIN\)/|\$\(WITH_PATH\).*?)(?:pytest|ruff|mypy|lint-imports|uv|ansible-lint|molecule)\b"
    )
    uses = {target: needs for target, (needs, commands) in rules().items() if tools.search(commands)}
    assert {"lint", "unit", "molecule", "requirements"} <= uses.keys()
    assert [target for target, needs in uses.items() if "setup-dev" not in needs] == []
