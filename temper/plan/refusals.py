"""Why a node is refused: a code, its facts, and the sentence that is made of them.

The sentences are data: data/refusals.yml. A rule names a code and gives the facts; it words nothing itself.
Codes are stable.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from temper.plan.tables import read_yaml

FILE = Path(__file__).resolve().parents[2] / "data" / "refusals.yml"

Fact = bool | int | float | str | tuple[str, ...]


class CatalogueError(ValueError):
    """A refusal that is not as the catalogue describes it: a fault of this program, or of another version."""


class _Formatter(string.Formatter):
    """Put facts into a sentence: lists joined, and text that depends on a fact."""

    def format_field(self, value: object, format_spec: str) -> str:
        """Format a fact as data/refusals.yml says."""
        if isinstance(value, tuple):
            return (format_spec or ", ").join(value)
        if isinstance(value, bool) and format_spec.startswith("?"):
            where_true, _, otherwise = format_spec[1:].partition("|")
            return where_true if value else otherwise
        return format(value, format_spec)


@cache
def sentences(section: str) -> Mapping[str, str]:
    """Return the sentences of a section of the catalogue, `refusals` or `remedies`, by their code."""
    found: Mapping[str, str] = read_yaml(FILE)[section]
    return found


@cache
def of_an_installation() -> frozenset[str]:
    """Return the codes of what keeps the driver from being installed, and nothing else from being done."""
    return frozenset(read_yaml(FILE)["of_an_installation"])


def facts_of(sentence: str) -> set[str]:
    """Return the names of the facts in a sentence."""
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}


def _text(section: str, code: str, facts: Mapping[str, Fact]) -> str:
    try:
        sentence = sentences(section)[code]
    except KeyError as error:
        raise CatalogueError(f"no code {code} is among the {section} of data/refusals.yml") from error
    if wrong := facts_of(sentence) ^ facts.keys():
        raise CatalogueError(f"{code}: facts are missing or of no use: {', '.join(sorted(wrong))}")
    return _Formatter().vformat(sentence, (), facts)


@dataclass(frozen=True)
class Remedy:
    """What is to be done about a refusal, where that depends on the node."""

    code: str
    facts: dict[str, Fact] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The remedy in words. Raises CatalogueError."""
        return _text("remedies", self.code, self.facts)


@dataclass(frozen=True)
class Refusal:
    """A reason to refuse a node."""

    code: str
    facts: dict[str, Fact] = field(default_factory=dict)
    remedy: Remedy | None = None

    @property
    def text(self) -> str:
        """The sentence for the operator. Raises CatalogueError."""
        said = _text("refusals", self.code, self.facts)
        return f"{said}; {self.remedy.text}" if self.remedy else said


def refusal(code: str, remedy: Remedy | None = None, /, **facts: Fact | Sequence[str]) -> Refusal:
    """Return a refusal from its facts. Raises CatalogueError; a test looks at every caller."""
    found = Refusal(code, _facts(facts), remedy)
    assert found.text
    return found


def advice(code: str, /, **facts: Fact | Sequence[str]) -> Remedy:
    """Return a remedy from its facts. Raises CatalogueError."""
    found = Remedy(code, _facts(facts))
    assert found.text
    return found


def _facts(given: Mapping[str, Fact | Sequence[str]]) -> dict[str, Fact]:
    return {
        name: fact if isinstance(fact, bool | int | float | str) else tuple(fact)
        for name, fact in given.items()
    }


def texts(refusals: Iterable[Refusal]) -> tuple[str, ...]:
    """Return what the operator reads."""
    return tuple(one.text for one in refusals)
