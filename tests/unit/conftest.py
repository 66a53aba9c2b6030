"""Fixtures that several files share."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.common import warnings
from ansible.module_utils.temper import lease
from ansible.module_utils.temper.engines import busy
from ansible.module_utils.temper.packaging import node, packages, repositories
from ansible.module_utils.temper.settings import in_place, record
from ansible.module_utils.testing import patch_module_args
from ansible.utils import display  # noqa: F401 (asks ldconfig for the C library, before a test may start no process)

from tests.unit import ansible_commands, openpgp_keys
from tests.unit.apt_machine import Archive, Machine
from tests.unit.openpgp_keys import KeyRing
from tests.unit.settings.role_plans import carried_out, item, role_plan

#: What Python tells its audit hooks when a process is started (https://docs.python.org/3/library/audit_events.html).
STARTS = frozenset(("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"))
#: Where modules note things on a node; the machine that tests is none.
NOTES = ("/run/temper/", "/var/lib/temper/")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: The name of the running test, if it may start no process.
_unit_test = ""


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if _unit_test and event in STARTS:
        pytest.fail(
            f"{_unit_test} starts a process ({event}{arguments[:2]}): mark it with pytest.mark.component"
        )


def _refuse_notes(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open" or not str(arguments[0]).startswith(NOTES):
        return
    if isinstance(flags := arguments[2], int) and flags & WRITES:
        pytest.fail(f"a test writes {arguments[0]} of this machine: point the module's constant elsewhere")


sys.addaudithook(_refuse_processes)
sys.addaudithook(_refuse_notes)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without a component test out of `make component`: each process would import them."""
    if not config.option.markexpr.startswith("component") or collection_path.suffix != ".py":
        return None
    return not _names_the_mark(collection_path) or None


@functools.cache
def _names_the_mark(path: Path) -> bool:
    return "mark.component" in path.read_text(encoding="utf-8")


#: Component tests whose file does not name the mark: `make component` would leave them out.
_hidden_tests: list[str] = []


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the component tests that `make component` would not find."""
    if item.get_closest_marker("component") and not _names_the_mark(item.path):
        _hidden_tests.append(item.nodeid)


@functools.cache
def _needs_torch(path: Path) -> bool:
    return "needs_torch" in path.read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of torch, which mostly wait: at the end, nothing would be left to run beside them.

    One process of `make component` runs them, with one torch; at the end, each process would begin some.
    """
    items.sort(key=lambda item: not _needs_torch(item.path))


@pytest.fixture
def hidden_component_tests() -> list[str]:
    return _hidden_tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let only tests that are marked as such start processes."""
    global _unit_test  # noqa: PLW0603
    _unit_test = "" if item.get_closest_marker("component") else item.name
    try:
        return (yield)
    finally:
        _unit_test = ""


@pytest.fixture
def run_module(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[str, Any]]:
    """A function that runs a module's main with parameters and returns what it told Ansible.

    It runs in this process, so that a test can point the module's constants elsewhere.
    """
    # Once a test has loaded a part of the controller, warnings would be displayed and not returned.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)
    monkeypatch.setattr(lease, "SETTINGS_LOCK", tmp_path_factory.getbasetemp() / "settings")
    # This machine may have containers with GPUs.
    processes = tmp_path_factory.mktemp("proc")
    (processes / "self" / "root").mkdir(parents=True)
    monkeypatch.setattr(busy, "PROC", processes)
    monkeypatch.setattr(in_place, "PATH", processes / "run" / "in-place.json")
    if f"{record.RECORDS}".startswith(NOTES):  # no other fixture has pointed it elsewhere
        monkeypatch.setattr(record, "RECORDS", processes / "records")

    def run(main: Callable[[], None], *, check_mode: bool = False, **parameters: Any) -> dict[str, Any]:
        # On a node each module has a process of its own.
        node.NODE.forget()
        node.NODE.lists_outdated = False
        warnings._global_warnings.clear()
        with (
            patch_module_args({**parameters, "_ansible_check_mode": check_mode}),
            pytest.raises(SystemExit),
        ):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


@pytest.fixture
def run_temper(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the command `temper` in this process, and returns what a process would."""
    from temper.cli.main import main

    def run(*words: object, given: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        data = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        arguments = [str(word) for word in words]
        status = main(arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, said.out, said.err)

    return run


@pytest.fixture
def forked_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Temper read inventories in forks of a Python that has imported Ansible."""
    forked = SimpleNamespace(**{**vars(subprocess), "run": ansible_commands.run})
    monkeypatch.setattr("temper.plan.inventory.subprocess", forked)


@pytest.fixture
def carry_out(
    run_module: Callable[..., dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., dict[str, Any]]:
    """A function that has the settings of one role carried out, and returns what `carried_out` does."""
    monkeypatch.setattr(record, "RECORDS", tmp_path_factory.mktemp("records"))

    def run(
        role: str, items: Iterable[dict[str, Any]], *, check_mode: bool = False, **options: Any
    ) -> dict[str, Any]:
        return carried_out(run_module, role_plan(role, items, **options), check_mode=check_mode)

    return run


@pytest.fixture(scope="session")
def key_ring() -> Iterator[KeyRing]:
    if not shutil.which("gpg"):
        pytest.skip("gpg makes the keys of this test")
    with openpgp_keys.made("rsa4096", "ed25519") as ring:
        yield ring


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for /etc/apt."""
    monkeypatch.setattr(repositories, "APT", tmp_path / "apt")
    monkeypatch.setattr(repositories, "DNF_SOURCES", tmp_path / "yum.repos.d")
    monkeypatch.setattr(repositories, "DNF_KEYRINGS", tmp_path / "rpm-gpg")
    return tmp_path / "apt"


# What dkms does where the compiler refuses a module.
FAILING_BUILD = """
build=$DPKG_ROOT/var/lib/dkms/nvidia/580.1/build
mkdir -p $build
cat >$build/make.log <<'END'
DKMS make.log for nvidia-580.1 for kernel 6.12.117+deb13-amd64 (x86_64)
  CC [M]  /var/lib/dkms/nvidia/580.1/build/nvidia/nv-pci.o
/var/lib/dkms/nvidia/580.1/build/nvidia/nv-pci.c:237:9: error: too few arguments to function
make[3]: *** [scripts/Makefile.build:244: nv-pci.o] Error 1
END
echo 'Error! Bad return status for module build on kernel: 6.12.117+deb13-amd64 (x86_64)' >&2
echo 'Consult /var/lib/dkms/nvidia/580.1/build/make.log for more information.' >&2
exit 10
"""


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    archive = Archive(tmp_path_factory.mktemp("archive"))
    for version in ("550-1", "580-1", "595-1"):
        archive.add("libcuda1", version)
        archive.add("nvidia-driver-cuda", version, Depends=f"libcuda1 (= {version})")
        archive.add("nvidia-kernel-open-dkms", version, Conflicts="nvidia-kernel-dkms")
    archive.add("nvidia-kernel-dkms", "550-1")
    archive.add("linux-headers-amd64", "6.1")
    archive.add("desktop", "1")
    archive.add("plugin", "1", Depends="vanished")
    archive.add("nvidia-needs-kernel", "1", Depends="linux-image-6.99")
    archive.add("linux-image-6.99", "6.99")
    archive.add("nvidia-hates-desktop", "1", Conflicts="desktop")
    archive.add("nvidia-impossible", "1", Depends="libcuda1 (= 999-1)")
    archive.add("nvidia-fails", "1", script="echo 'it went wrong' >&2; exit 1")
    archive.add("nvidia-full", "1", script="echo 'cannot write: No space left on device' >&2; exit 1")
    # Kills the dpkg that runs it, the first time.
    once = "test -e $DPKG_ROOT/killed || { touch $DPKG_ROOT/killed; kill -KILL $PPID; }"
    archive.add("nvidia-killed", "1", script=once)
    archive.add("libnccl2", "2.28-1")
    archive.add("libnccl2", "2.30-1", script="exit 1")
    archive.add("nvidia-kernel-broken-dkms", "1", script=FAILING_BUILD, Depends="libcuda1")
    return archive


@pytest.fixture
def machine(tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, archive)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(packages, "HOLD_RECORD", tmp_path / "var/lib/temper/held-packages")
    return machine


@pytest.fixture
def settle(
    carry_out: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Have a set of packages made; `refresh` stands for a repository that has changed in the same run."""
    monkeypatch.setattr(repositories, "APT", tmp_path / "etc/apt")

    def run(
        wanted: dict[str, str],
        present: Iterable[str] = (),
        *,
        hold_versions: Iterable[str] = (),
        refresh: bool = False,
        check_mode: bool = False,
    ) -> dict[str, Any]:
        items = [item("package", name, {"version": wanted[name], "held": True}) for name in wanted]
        items += [item("package", name, {"version": "", "held": False}) for name in present]
        items += [item("hold_version", version, True) for version in hold_versions]
        if refresh:
            former = repositories.source_path({"name": "former", "kind": "apt"})
            former.write_text("# Managed by Temper.\n")
            items.append(item("repository", "former", None))
        return carry_out("nvidia_stack", items, check_mode=check_mode)

    return run
