"""The image of a controller and the settings for ansible-navigator follow schemas, pins and project."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import ansiblelint.schemas
import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
#: ansible-lint brings the schemas of ansible-builder and ansible-navigator.
SCHEMAS = Path(ansiblelint.schemas.__file__).parent
IMAGE: dict[str, Any] = yaml.safe_load((ROOT / "execution-environment.yml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return found


def test_the_image_follows_the_third_version_of_its_schema() -> None:
    third = schema("execution-environment") | {"$ref": "#/$defs/v3"}
    for words in ("oneOf", "anyOf"):
        third.pop(words, None)
    jsonschema.validate(IMAGE, third)
    assert IMAGE["version"] == 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(IMAGE | {"collections": []}, third)


def test_the_image_has_what_the_controller_has() -> None:
    wanted = IMAGE["dependencies"]
    assert wanted["python"] == "requirements/controller.txt", "make setup installs this list, too"
    assert "galaxy" not in wanted, "Temper has no collections"
    # A second place for a version would differ one day; pip takes these two from the list, by their hashes.
    assert wanted.keys() & {"ansible_core", "ansible_runner"} == set()
    pins = (ROOT / wanted["python"]).read_text()
    assert {"ansible-core", "ansible-runner"} <= set(re.findall(r"^([a-z-]+)==", pins, re.MULTILINE))
    interpreter = wanted["python_interpreter"]
    assert interpreter["python_path"] == f"/usr/bin/{interpreter['package_system']}"
    oldest = PROJECT["requires-python"].removeprefix(">=")
    version = interpreter["package_system"].removeprefix("python")
    assert tuple(map(int, version.split("."))) >= tuple(map(int, oldest.split(".")))


def test_the_settings_for_ansible_navigator_follow_its_schema() -> None:
    page = (ROOT / "docs/operate/automation.md").read_text()
    (block,) = re.findall(r"^```yaml\n(ansible-navigator:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    jsonschema.validate(yaml.safe_load(block), schema("ansible-navigator-config"))
    built = re.search(r"ansible-builder build --tag (\S+)", page)
    assert built is not None
    assert f"image: localhost/{built[1]}:latest\n" in block
