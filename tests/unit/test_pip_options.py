"""Arguments of pip become its configuration file, and nothing in them undoes what is pinned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from temper.plan.pip_options import configuration
from tests.unit.each import each


def told(folder: Path, arguments: str) -> dict[str, str]:
    """What pip itself understands of the file."""
    path = folder / "pip.conf"
    path.write_text(configuration(arguments))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        [sys.executable, "-I", "-m", "pip", "config", "list"],
        env={**environment, "PIP_CONFIG_FILE": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = (line.partition("=") for line in done.stdout.splitlines() if line.startswith("install."))
    return {name.removeprefix("install."): value.strip("'\"") for name, _, value in pairs}


@pytest.mark.component
def test_pip_reads_what_it_would_have_been_told(tmp_path: Path) -> None:
    arguments = "--index-url https://u:p%40ss@a/simple -f '/srv/my wheels' --no-cache-dir --timeout=7 --pre"
    assert told(tmp_path, arguments) == {
        "index-url": "\\nhttps://u:p%40ss@a/simple",
        "find-links": "\\n/srv/my wheels",
        "no-cache-dir": "\\ntrue",
        "timeout": "\\n7",
        "pre": "\\ntrue",
    }


@pytest.mark.component
def test_an_option_may_come_more_than_once(tmp_path: Path) -> None:
    found = told(tmp_path, "--extra-index-url https://a --extra-index-url=https://b")
    assert found["extra-index-url"].split("\\n")[1:] == ["https://a", "https://b"]


def test_no_argument_needs_no_file() -> None:
    assert configuration("") == ""


@each(
    "torch",
    "-r more.txt",
    "--no-binary :all:",
    "--only-binary=none",
    "--requirement https://s3cret",
    "--editable .",
    "'--index-url=https://s3cret\n[global]'",
    "--index-url 'https://s3cret",
)
def test_what_would_undo_the_pins_is_refused_without_its_text(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"expected|has no place|cannot be printed|quotation") as refusal:
        configuration(arguments)
    assert "s3cret" not in str(refusal.value)
