"""Fixtures that several files share."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.unit.openpgp_keys import KeyRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """A function that runs a module's main with parameters and returns what it told Ansible.

    It runs in this process, so that a test can point the module's constants elsewhere.
    """

    def run(main: Callable[[], None], *, check_mode: bool = False, **parameters: Any) -> dict[str, Any]:
        with (
            patch_module_args({**parameters, "_ansible_check_mode": check_mode}),
            pytest.raises(SystemExit),
        ):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run


@pytest.fixture(scope="session")
def key_ring() -> Iterator[KeyRing]:
    if not shutil.which("gpg"):
        pytest.skip("gpg makes the keys of this test")
    # Not below pytest's long temporary path: the agent's socket must fit into 108 characters.
    ring = KeyRing(Path(tempfile.mkdtemp()))
    for algorithm in ("rsa4096", "ed25519"):
        ring.generate(algorithm)
    yield ring
    ring.stop_agent()
    shutil.rmtree(ring.home)
