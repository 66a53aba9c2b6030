"""TOML as the engines have it: written so that it reads back, edited without a change elsewhere."""

from __future__ import annotations

import tomllib

import pytest
from ansible.module_utils.engines import toml
from ansible.module_utils.engines.base import RefusedError

OURS = "/etc/containerd/conf.d/99-nvidia.toml"
WHERE = "/etc/containerd/config.toml"
DEBIAN = """\
version = 2

# Debian's
[plugins]
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
"""


@pytest.mark.parametrize(
    "document",
    [
        {"version": 2, "plugins": {"io.containerd.grpc.v1.cri": {"cni": {"bin_dir": "/x"}, "enable": True}}},
        {"empty": {}, "a": {"b": {}}},
        {"list": [1, 2.5, False, 'a"\\\n', {"nested": ["x"]}], "text": "ü"},
        {"registry": {"mirrors": {"docker.io": {"endpoint": ["https://mirror.example"]}}}},
    ],
)
def test_what_is_written_reads_back(document: toml.Table) -> None:
    assert tomllib.loads(toml.render(document)) == document


@pytest.mark.parametrize(
    "before",
    [
        DEBIAN,
        "",
        f"imports = []\n{DEBIAN}",
        f'imports = ["/etc/containerd/*.toml"]\n{DEBIAN}',
        f'imports = [\n  "a.toml", # first\n  "b.toml",\n]\n{DEBIAN}',
    ],
)
def test_an_import_is_added_and_taken_out_again(before: str) -> None:
    added = toml.with_import(before, OURS, WHERE)
    document, extended = tomllib.loads(before), tomllib.loads(added)
    assert extended.pop("imports") == [*document.pop("imports", []), OURS]
    assert extended == document
    restored = tomllib.loads(toml.without_import(added, OURS, WHERE))
    assert {"imports": [], **restored} == {"imports": [], **tomllib.loads(before)}


def test_a_file_without_imports_is_restored_byte_for_byte() -> None:
    assert toml.without_import(toml.with_import(DEBIAN, OURS, WHERE), OURS, WHERE) == DEBIAN


def test_a_file_without_our_import_is_left_as_it_is() -> None:
    assert toml.without_import(DEBIAN, OURS, WHERE) == DEBIAN


def test_a_list_that_cannot_be_extended_safely_is_refused() -> None:
    with pytest.raises(RefusedError, match="cannot be extended safely"):
        toml.with_import('"imports" = ["a.toml"]\n', OURS, WHERE)


def test_what_is_no_toml_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"config\.toml is not valid TOML"):
        toml.parse("version = ", WHERE)


def test_python_without_toml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml, "_loads", None)
    with pytest.raises(RefusedError, match=r"expected Python 3\.11 or newer"):
        toml.parse("", WHERE)


def test_tables_are_compared_without_what_is_zero() -> None:
    shown = {"a": {"b": False, "c": {"d": ""}}, "e": [], "f": "0s", "g": 1}
    assert toml.without_zeros(shown) == {"g": 1}
