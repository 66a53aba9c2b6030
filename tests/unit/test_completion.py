"""`temper completion bash`: what a real bash completes with the script."""

import subprocess
from pathlib import Path

import pytest

from temper.cli import main as command_line
from temper.cli.completion import script

pytestmark = pytest.mark.component

ASK = """
source "$1"; shift
complete -p temper
COMP_WORDS=(temper "$@"); COMP_CWORD=$#
_temper || true  # nothing fits
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "temper"
    path.write_text(script())
    return path


def completed(file: Path, *words: str) -> list[str]:
    """Type the words; the last one is not finished."""
    done = subprocess.run(
        ["bash", "--norc", "-euo", "pipefail", "-c", ASK, "bash", str(file), *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr
    registered, *found = done.stdout.splitlines()
    assert registered == "complete -o default -F _temper temper"
    return [word for word in found if word]


def test_all_commands_are_offered(file: Path) -> None:
    assert completed(file, "") == list(command_line.COMMANDS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ro"], ["rollout"]),
        (["--v"], ["--version"]),
        (["rollout", "re"], ["resume", "report", "retry"]),
        (["rollout", "hold", "--rea"], ["--reason"]),
        (["rollout", "plan", "-i", "plan", "--js"], ["--json"]),
        (["compliance", "s"], ["scan", "status"]),
        (["fleet", "status", "--j"], ["--json"]),
        (["compare", "--a"], ["--all"]),
        (["report", "--all"], []),
        (["completion", ""], ["bash"]),
        (["fleet", "run", ""], []),  # a file's name, which bash completes by itself
    ],
)
def test_words_of_the_command_are_completed(file: Path, words: list[str], expected: list[str]) -> None:
    assert sorted(completed(file, *words)) == sorted(expected)
