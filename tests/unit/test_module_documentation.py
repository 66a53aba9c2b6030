"""A module's DOCUMENTATION says what its argument spec says: every option, type, default and choice."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import basic
from ansible.plugins.loader import fragment_loader
from ansible.utils.plugin_docs import add_fragments

from tests.unit.each import each

LIBRARY = Path(__file__).resolve().parents[2] / "library"
MODULES = sorted(path.stem for path in LIBRARY.glob("*.py"))
# What both have to say alike. `no_log` has no place in a documentation.
FACTS = ("type", "elements", "default", "required", "choices", "aliases")


class CapturedError(Exception):
    """A module has made its AnsibleModule, and goes no further."""


def facts(option: Mapping[str, Any], suboptions: str) -> dict[str, Any]:
    """What an option is, with the values that are implied left out."""
    said = {name: option[name] for name in FACTS if option.get(name) not in (None, [], {}, False)}
    # An empty or false default is not the same as none.
    if option.get("default") is not None:
        said["default"] = option["default"]
    said.setdefault("type", "str")
    if "choices" in said:
        said["choices"] = list(said["choices"])
    if option.get(suboptions):
        said["options"] = {name: facts(inner, suboptions) for name, inner in option[suboptions].items()}
    return said


def specification(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The argument spec that the module gives to Ansible."""
    captured: dict[str, Any] = {}

    def capture(_self: object, argument_spec: dict[str, Any], **_options: Any) -> None:
        captured.update(argument_spec)
        raise CapturedError

    monkeypatch.setattr(basic.AnsibleModule, "__init__", capture)
    with pytest.raises(CapturedError):
        importlib.import_module(name).main()
    return captured


def options(name: str) -> dict[str, Any]:
    """The documented options."""
    said: dict[str, Any] = yaml.safe_load(importlib.import_module(name).DOCUMENTATION)
    fragment_loader.add_directory(str(LIBRARY.parent / "plugins" / "doc_fragments"))
    add_fragments(said, str(LIBRARY / f"{name}.py"), fragment_loader, is_module=True)
    return said.get("options") or {}


@each(*MODULES)
def test_documentation_and_argument_spec_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = specification(name, monkeypatch)
    expected = {option: facts(inner, "options") for option, inner in spec.items()}
    assert {option: facts(about, "suboptions") for option, about in options(name).items()} == expected


@each(*MODULES)
def test_documentation_has_the_name_of_its_module(name: str) -> None:
    assert yaml.safe_load(importlib.import_module(name).DOCUMENTATION)["module"] == name


@each(
    ({"type": "int", "default": 1}, {"type": "int", "default": 2}),
    ({"type": "bool"}, {"type": "bool", "default": False}),
    ({"type": "str"}, {"type": "str", "required": True}),
    ({"type": "str", "choices": ["a"]}, {"type": "str", "choices": ["a", "b"]}),
    ({"type": "list"}, {"type": "list", "elements": "str"}),
    ({"type": "dict", "suboptions": {"a": {"type": "int"}}}, {"type": "dict", "options": {"a": {}}}),
)
def test_drift_is_seen(said: dict[str, Any], meant: dict[str, Any]) -> None:
    assert facts(said, "suboptions") != facts(meant, "options")
