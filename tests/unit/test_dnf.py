"""What dnf's output means, without a dnf: what a real one does is tested in the lab."""

import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import package_preview
import pytest
import yaml
from ansible.module_utils.temper import process
from ansible.module_utils.temper.packaging import dnf, dnf_staging, packages
from ansible.module_utils.temper.packaging.dnf import KEPT, Dnf, kept_stream
from ansible.module_utils.temper.packaging.packages import OthersUnreadableError, Package, PackageError, Wish
from ansible.module_utils.temper.packaging.preview import Preview, refused

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path("/tmp/temper-dnf-abc")
# As dnf 4 writes it without a terminal: a column that is too wide ends its line.
TABLE = """\
Dependencies resolved.
================================================================================
 Package                   Arch   Version            Repository            Size
================================================================================
Installing:
 nvidia-container-toolkit-base
                           x86_64 1.20.0-1           temper-nvidia-container-toolkit
                                                                          5.8 M
 libnccl                   x86_64 2.28.9-1+cuda13.0  temper-nvidia-cuda   200 M
     replacing  libnccl-old.x86_64 2.0-1
Removing dependent packages:
 gnome-shell-extension-common-and-long
                           noarch 40.7-15.el9        @app                 1.2 M

Transaction Summary
================================================================================
Install  2 Packages
Remove   1 Package
"""
HISTORY = """\
ID     | Command line             | Date and time    | Action(s)      | Altered
-------------------------------------------------------------------------------
    12 | -y install editor        | 2026-11-21 10:01 | Install        |    1
    11 | -y --setopt=pluginconfpa | 2026-11-21 10:00 | Install        |    2 EE
    10 | update                   | 2026-11-20 09:00 | Upgrade        |   30
"""
COMMANDS = {
    "12": "-y install editor",
    "11": f"-y --setopt=pluginconfpath={PLUGINS} install x",
    "10": "update",
}


class Scripted(Dnf):
    """A dnf whose history is given; the packages differ from those of before."""

    def query(self) -> dict[str, Package]:
        return {"editor": Package("editor", "1", "install", "installed")}

    def dnf(self, arguments: Sequence[str], plugins: Path | None = None) -> tuple[int, str, str]:
        self.saved[Path(" ".join(arguments))] = None
        if arguments[:2] == ["history", "info"]:
            return 0, f"Command Line   : {COMMANDS[arguments[2]]}\n", ""
        return 0, HISTORY, ""


def undone(manager: Dnf) -> list[str]:
    return [str(command) for command in manager.saved if str(command).startswith("history undo")]


def test_only_our_own_transaction_is_undone() -> None:
    manager = Scripted()
    assert "The transaction was undone" in manager.undo({}, PLUGINS)
    assert undone(manager) == ["history undo 11"]


class Removing(Dnf):
    """A dnf that removes a package with those that require it, and refuses to remove `dnf`."""

    def query(self) -> dict[str, Package]:
        return {}

    def dnf(self, arguments: Sequence[str], plugins: Path | None = None) -> tuple[int, str, str]:
        if "--assumeno" not in arguments:
            return 0, "", ""
        names = {*arguments[arguments.index("--assumeno") + 1 :]}
        if "dnf" in names:
            return 1, "", "Error: the operation would remove a protected package: dnf"
        more = {"site-tool"} if "required" in names else set()
        rows = "".join(f" {name} noarch 1-1 @app 1 k\n" for name in sorted(names | more))
        return 1, "", f"Dependencies resolved.\nRemoving:\n{rows}\nTransaction Summary\n"


def test_what_packages_of_before_recommend_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What packages of the site recommend or require stays. rpm ends with 1 where nothing recommends it."""
    recommending = {
        "chrony": "systemd\n",
        "perl-libs": "perl\n",
        "git": "site-tool\n",
        "atop": "systemd\nsite-tool\n",
    }

    def rpm(command: Sequence[str], _: object) -> subprocess.CompletedProcess[str]:
        name = command[command.index("--whatrecommends") + 1]
        found = recommending.get(name, f"no package recommends {name}\n")
        return subprocess.CompletedProcess(command, name not in recommending, found, "")

    monkeypatch.setattr(dnf, "attempt", rpm)
    brought = ["atop", "chrony", "dnf", "git", "perl", "perl-libs", "required"]
    assert Removing().removable(brought, {*brought, "systemd"}) == ["chrony", "perl", "perl-libs"]
    assert Removing().removable(brought, brought) == ["perl", "perl-libs"]


def test_locks_go_with_the_packages_that_temper_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the site stay, and what makes dnf follow them."""
    monkeypatch.setattr(packages, "HOLD_RECORD", tmp_path / "held-packages")
    packages.record_holds({"driver", "cuda"})
    monkeypatch.setattr(
        dnf,
        "attempt",
        lambda command, _: subprocess.CompletedProcess(command, 1, "no package recommends x", ""),
    )
    removing, plugin = Removing(root=tmp_path), dnf.LOCK_PLUGIN
    removing.lock_list().parent.mkdir(parents=True)
    removing.lock_list().write_text("driver-580-1.*\n# of Ada\neditor-1-1.*\n\ncuda-13-1.*\n")
    removing.remove(["driver", "tool"], [])
    assert removing.locks() == ["editor-1-1.*", "cuda-13-1.*"]
    assert removing.lock_list().read_text() == "# of Ada\neditor-1-1.*\n\ncuda-13-1.*\n"
    assert removing.removable([plugin, "tool"], []) == ["tool"]
    removing.release(["editor"])
    assert removing.removable([plugin, "tool"], []) == [plugin, "tool"]


def test_where_none_of_ours_ran_nothing_is_undone() -> None:
    manager = Scripted()
    assert "Nothing was installed" in manager.undo({}, Path("/elsewhere"))
    assert undone(manager) == []


def test_rows_that_dnf_breaks_are_read_whole() -> None:
    transaction = Scripted().parse(TABLE)
    assert [(change.name, change.version, change.architecture) for change in transaction.install] == [
        ("nvidia-container-toolkit-base", "1.20.0-1", "x86_64"),
        ("libnccl", "2.28.9-1+cuda13.0", "x86_64"),
    ]
    assert transaction.remove == (
        ("libnccl-old", "2.0-1"),
        ("gnome-shell-extension-common-and-long", "40.7-15.el9"),
    )


def test_a_row_that_nobody_understands_is_not_passed_over() -> None:
    with pytest.raises(PackageError, match="unknown row: 'kernel-core  x86_64"):
        Scripted().parse("Installing:\n kernel-core  x86_64\n")


class Offering(Dnf):
    """A dnf whose repositories offer these names for any pattern."""

    def offered(self, names: Iterable[str]) -> dict[str, list[str]]:
        assert list(names) == ["nvidia-*", "libnvidia-*"]
        return {
            "nvidia-driver-cuda": ["3:595.91.07-1.el9", "3:580.178.04-1.el9"],
            "libnvidia-ml": ["3:580.178.04-1.el9"],
            "nvidia-container-toolkit": ["1.20.0-1"],
        }


def test_pins_become_locks_of_names() -> None:
    """A lock on nvidia-* would bar the container toolkit, which has no such version."""
    pin = {"packages": "nvidia-* libnvidia-*", "version": "580.178.04-1.el9"}
    assert Offering(pins=[pin]).pinned() == [
        "nvidia-driver-cuda-580.178.04-1.el9.*",
        "libnvidia-ml-580.178.04-1.el9.*",
    ]


# ---------------------------------------------------------------- the packages that an upgrade keeps

STREAM = "[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nstate=enabled\nprofiles=\n"


class Alone(Dnf):
    """A dnf that no repository answers."""

    def dnf(self, arguments: Sequence[str], plugins: Path | None = None) -> tuple[int, str, str]:
        return 1, "", "Error: nobody answers"


@pytest.fixture
def node(tmp_path: Path) -> Dnf:
    """A node that keeps packages, and has the other stream."""
    sources = tmp_path / KEPT.lstrip("/") / "yum.repos.d"
    sources.mkdir(parents=True)
    (sources / "temper-former.repo").touch()
    manager = Alone(streams=[{"name": "nvidia-driver", "stream": "580-open"}], root=tmp_path)
    state = manager.stream_state("nvidia-driver")
    state.parent.mkdir(parents=True)
    state.write_text(STREAM.replace("580", "595"))
    return manager


def test_what_is_kept_is_asked_alone(node: Dnf) -> None:
    kept = node.kept()
    assert kept is not None
    assert kept.options == (
        f"--setopt=reposdir={node.root}{KEPT}/yum.repos.d",
        f"--setopt=cachedir={KEPT}/cache",
    )
    assert kept.kept() is None


def test_a_staging_that_was_cut_off_keeps_nothing(node: Dnf) -> None:
    (node.path(KEPT) / "yum.repos.d/temper-former.repo").unlink()
    assert node.kept() is None


def test_a_stream_returns_without_its_repository(node: Dnf) -> None:
    kept = kept_stream(node.path(KEPT), "nvidia-driver", "580-open")
    kept.parent.mkdir()
    kept.write_text(STREAM)
    node.prepare()
    assert node.stream_state("nvidia-driver").read_text() == STREAM
    node.abandon()
    assert node.enabled("nvidia-driver") == "595-open"


def test_a_stream_that_is_not_kept_needs_its_repository(node: Dnf) -> None:
    with pytest.raises(PackageError, match="Enabling module stream nvidia-driver:580-open failed"):
        node.prepare()
    assert node.enabled("nvidia-driver") == "595-open"


def test_where_packages_are_kept_the_other_repositories_may_be_away(node: Dnf, tmp_path: Path) -> None:
    with pytest.raises(OthersUnreadableError, match="nobody answers"):
        node.refresh()
    with pytest.raises(PackageError) as caught:
        Alone(root=tmp_path / "another").refresh()
    assert not isinstance(caught.value, OthersUnreadableError)


def test_the_last_step_of_a_roll_out_removes_what_is_kept() -> None:
    tasks = yaml.safe_load((ROOT / "playbooks/upgrade_steps/clean.yml").read_text())
    assert [task for task in tasks if KEPT in task.get("loop", ())]


@pytest.fixture
def staged(run_module: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function that has module package_preview stage on a node with dnf; what it told Ansible."""

    def run(stage: Callable[..., Any], **parameters: Any) -> dict[str, Any]:
        monkeypatch.setattr(process, "which", lambda _: None)
        monkeypatch.setattr(dnf_staging, "stage", stage)
        return run_module(package_preview.main, packages={"nvidia-driver": "595"}, stage=True, **parameters)

    return run


def test_a_node_with_dnf_stages_with_dnf(staged: Callable[..., Any]) -> None:
    asked: list[Any] = []

    def stage(wish: Wish, _: Any, dnf: Dnf) -> tuple[Preview, dict[str, str]]:
        asked.append((wish.packages, dnf.pins, dnf.streams))
        return refused(), {"nvidia-driver": "580"}

    pin, stream = {"packages": "nvidia-*", "version": "595"}, {"name": "nvidia-driver", "stream": "595-open"}
    result = staged(stage, pins=[pin], module_streams=[stream])
    assert result["former"] == {"nvidia-driver": "580"}
    assert asked == [({"nvidia-driver": "595"}, [pin], [stream])]


def test_why_nothing_was_staged_is_the_modules_message(staged: Callable[..., Any]) -> None:
    def stage(*_: Any) -> None:
        raise PackageError("The way back cannot be kept: it is gone.", "Error: it is gone")

    result = staged(stage)
    assert (result["failed"], result["msg"]) == (True, "The way back cannot be kept: it is gone.")
    assert result["output"] == ["Error: it is gone"]
