"""Versions are ordered as the Python packaging authority's own program orders them."""

from __future__ import annotations

import itertools

import pytest
from packaging.version import InvalidVersion, Version

from pull.versions import key

PARTS = (
    ("", "v", "1!"),
    ("1", "1.0", "1.10", "2026.01.2"),
    ("", "a1", "-beta2", ".rc.1", "rc", "_pre3", "c4"),
    ("", "-1", ".post2", "-r3", "post"),
    ("", ".dev", "-dev4"),
    ("", "+abc", "+7.b"),
)
TEXTS = ["".join(parts) for parts in itertools.product(*PARTS)]


def test_the_order_is_that_of_packaging() -> None:
    ours = {text: key(text) for text in TEXTS}
    assert None not in ours.values()
    by_ours = sorted(TEXTS, key=lambda text: (ours[text], text))
    by_packaging = sorted(TEXTS, key=lambda text: (Version(text), text))
    assert by_ours == by_packaging


@pytest.mark.parametrize(
    "text", ["", "old", "1-hotfix1", "1..2", "1.", "-1", "1 2", "1rc1rc2", "1+", "1~rc1"]
)
def test_what_is_no_version_is_none(text: str) -> None:
    assert key(text) is None
    with pytest.raises(InvalidVersion):
        Version(text)


def test_a_candidate_comes_before_its_release() -> None:
    texts = ["1-rc1", "1.dev3", "1", "0.9", "1.post1", "1-2"]
    assert sorted(texts, key=key) == ["0.9", "1.dev3", "1-rc1", "1", "1.post1", "1-2"]  # type: ignore[arg-type]
