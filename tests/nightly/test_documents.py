"""Commands in the documentation exist: targets, programs with their options, playbooks with their tags."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.nightly.__main__ import ROOT, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "roles/*/*.md")
    for page in ROOT.glob(pattern)
)
BIN = Path(sys.executable).parent
ASSIGNMENTS = re.compile(r"^(?:[A-Z_]+=\S+ )+")
PROGRAM = re.compile(r"(?:\S*/)?(make|temper|python3?|ansible(?:-[a-z]+)?|pytest) ")
#: Modules with commands of their own, which have `--help`.
WITH_COMMANDS = ("temper", "validation", "tests.lab")
#: A synopsis is no command.
OPEN = re.compile(r"\.\.\.|\[|\|")


def commands(page: Path) -> Iterator[str]:
    """The commands of a page: lines of its fenced blocks, and what stands between backticks."""
    fenced = False
    for line in re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("```"):
            fenced = not fenced
            continue
        for text in [line] if fenced else re.findall(r"`([^`]+)`", line):
            command = ASSIGNMENTS.sub("", re.split(r" {2,}|\s#\s", text.strip())[0], count=1)
            if PROGRAM.match(command) and not OPEN.search(command):
                yield command.strip()


FOUND = sorted({command for page in PAGES for command in commands(page)})


def named(program: str) -> list[list[str]]:
    """The words of each command of a program."""
    matches = ((PROGRAM.match(command), command) for command in FOUND)
    return [shlex.split(command)[1:] for match, command in matches if match and match[1].startswith(program)]


def modules() -> list[list[str]]:
    """What follows `-m`; `temper` is the module of its name."""
    started = [words[1:] for words in named("python") if words[0] == "-m"]
    return started + [["temper", *words] for words in named("temper")]


@functools.cache
def output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def missing(words: list[str], told: str) -> list[str]:
    """Options that a program does not tell of."""
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
    return [option for option in options if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", told)]


def test_pages_have_commands_of_every_kind() -> None:
    for program in ("make", "temper", "python", "ansible-playbook", "pytest"):
        assert len(named(program)) >= 5, program


@pytest.mark.parametrize("words", named("make"), ids=" ".join)
def test_target_exists_and_its_words_choose_tests(words: list[str]) -> None:
    assert words[0] in targets()
    chosen = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
    if words[0] == "unit" and chosen:
        match shlex.split(chosen[0]):
            case ["-k", expression]:
                collected = output(str(BIN / "pytest"), "--collect-only", "--quiet").lower()
                assert [word for word in expression.split(" or ") if word not in collected] == []
            case paths:
                assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("words", modules(), ids=" ".join)
def test_module_exists_and_has_the_command_and_its_options(words: list[str]) -> None:
    assert find_spec(words[0]) is not None
    if words[0] in WITH_COMMANDS or any(word.startswith("-") for word in words):
        names = itertools.takewhile(re.compile("[a-z][a-z-]*").fullmatch, words[1:3])
        assert missing(words, output(sys.executable, "-m", words[0], *names, "--help")) == []


@pytest.mark.parametrize("words", named("ansible-playbook"), ids=" ".join)
def test_playbook_exists_and_has_the_tags(words: list[str]) -> None:
    playbooks = [word for word in words if word.endswith(".yml") and "policy" not in word]
    if not playbooks:
        pytest.skip("options of ansible-playbook alone")
    told = output(str(BIN / "ansible-playbook"), "-i", "inventory/example", "--list-tags", playbooks[0])
    for option in ("--tags", "--skip-tags"):
        if option in words:
            tag = words[words.index(option) + 1]
            assert re.search(rf"\b{tag}\b", told), told


@pytest.mark.parametrize("words", named("pytest"), ids=" ".join)
def test_files_of_tests_exist(words: list[str]) -> None:
    assert [word for word in words if "/" in word and not (ROOT / word).exists()] == []
