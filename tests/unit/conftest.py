"""Run Ansible modules in this process, so that a test can point their constants elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.testing import patch_module_args

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """A function that runs a module's main with parameters and returns what it told Ansible."""

    def run(main: Callable[[], None], *, check_mode: bool = False, **parameters: Any) -> dict[str, Any]:
        with (
            patch_module_args({**parameters, "_ansible_check_mode": check_mode}),
            pytest.raises(SystemExit),
        ):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run
