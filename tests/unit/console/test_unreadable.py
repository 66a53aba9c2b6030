"""The inventory plugin that ends a run with one sentence where no other plugin can read what is given."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING

import ansible.context as context
import pytest
from ansible.utils.context_objects import CLIArgs
from ansible.utils.vars import load_extra_vars

from temper.plan.inventory import InventoryError, read, unreadable
from tests.unit.ansible_commands import ROOT, ansible
from tests.unit.executables import executable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = "gpu_nodes: {hosts: {gpu01: {ansible_connection: local}}}\n"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function: what the plugin says of a file and of `-e`; empty where it leaves that to Ansible."""
    spec = importlib.util.spec_from_file_location("unreadable", ROOT / "plugins/inventory/unreadable.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(text: str | None, *extra: str) -> str:
        path = tmp_path / "hosts.yml"
        if text is not None:
            path.write_text(text)
        monkeypatch.delattr(load_extra_vars, "extra_vars", raising=False)
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"extra_vars": extra}))
        sentences: list[str] = []
        plugin = module.InventoryModule()
        plugin.display = SimpleNamespace(error=lambda text, wrap_text: sentences.append(text))
        try:
            assert plugin.verify_file(str(path)) is False
        except SystemExit as end:
            assert end.code == module.STATUS
        return "".join(sentences)

    return run


def test_what_cannot_be_read_is_one_sentence(said: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "text.yml").write_text("a text\n")
    (tmp_path / "tag.yml").write_text("a: !unsafe b\n")
    path = tmp_path / "hosts.yml"
    table: tuple[tuple[str | None, tuple[str, ...], tuple[str, ...]], ...] = (
        (None, (), ("found no file or folder", str(path))),
        ("a: {b: {c: \nd: {e: }}\n", (), (f"{path}:2", "in line 1")),
        ("a: 1\n\tb: 2\n", (), (f"{path}:2",)),
        ("---\n", (), (f"{path} is empty",)),
        ("gpu_nodes: {hosts: {2026-01-01: }}\n", (), ("gpu_nodes", "2026-01-01", "quotes", f"{path}:1")),
        ("gpu_nodes: {hosts: {a: }}\n7: {hosts: {b: }}\n", (), ("found 7", "quotes")),
        ("a: {children: {b: {children: {a: }}}}\n", (), ("a: expected", "in itself", "in b")),
        ("a: &a {children: {b: *a}}\n", (), ("b: expected", "in itself")),
        (GOOD, ('{"a": true',), ("-e a=...: expected variables in JSON or YAML",)),
        (GOOD, ("a=1", "b='x"), ("-e b=...: expected name=value",)),
        (GOOD, ("@/nowhere.yml",), ("-e @/nowhere.yml: expected a file",)),
        (GOOD, (f"@{tmp_path}/text.yml",), ("text.yml: expected names with values",)),
        (GOOD, (f"@{tmp_path}/tag.yml", "@/nowhere.yml"), ("-e @/nowhere.yml: expected a file",)),
        (GOOD, ("/etc/hostname",), ("or @FILE",)),
    )
    wrong = []
    for text, extra, words in table:
        found = said(text, *extra)
        if not all(word in found for word in (*words, "Nothing was done.")):
            wrong.append((text, extra, found))
    assert wrong == []


def test_what_another_plugin_cannot_read_is_left_to_ansible(said: Callable[..., str]) -> None:
    assert said("plugin: amazon.aws.aws_ec2\n", "a=1", "{b: [1]}") == ""


@pytest.mark.component
def test_ansible_says_one_sentence_and_no_error_of_each_plugin(tmp_path: Path) -> None:
    path = executable(tmp_path / "hosts", "echo 'the cloud does not answer' >&2\nexit 7")
    for options, words in (
        (["-e", "{a: "], "-e a=...: expected variables"),
        ([], "ended with status 7: the cloud does not answer. Nothing was done."),
    ):
        run = ansible("inventory", "-i", str(path), "--list", *options)
        assert run.returncode == 1
        assert words in run.stderr
        assert run.stderr.count("\n") == 1, run.stderr


@pytest.mark.component
def test_a_file_of_variables_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(GOOD)
    (tmp_path / "group_vars").mkdir()
    variables = tmp_path / "group_vars" / "gpu_nodes.yml"
    variables.write_text("a: 1\n", encoding="utf-16")
    (tmp_path / "play.yml").write_text("- {hosts: gpu_nodes, gather_facts: false, tasks: [{ping: }]}\n")
    words = ("-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"))
    run = ansible("playbook", *words, environment={"ANSIBLE_STDOUT_CALLBACK": "temper"})
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("[ERROR]")]
    assert line.endswith(f"({variables})")


@pytest.mark.component
def test_a_file_of_which_ansible_takes_a_line_for_the_name_of_a_host_is_named(tmp_path: Path) -> None:
    for name, text in (
        ("hosts.json", '{"gpu_nodes":{"hosts":{"gpu01":{}}'),
        ("hosts.yml", "gpu_nodes:{hosts:{gpu01:{}}}\n"),
    ):
        path = tmp_path / name
        path.write_text(text)
        run = ansible("playbook", "-i", str(path), "playbooks/preflight.yml")
        assert run.returncode == 1
        assert str(path) in run.stderr
        assert "has no group" not in run.stderr
        with pytest.raises(InventoryError, match=name):
            read([str(path)])


def test_what_is_nested_deeper_than_its_reader_goes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text("gpu_nodes: " + "[" * 900 + "]" * 900)
    assert "fewer levels of nesting" in unreadable(path)


@pytest.mark.component
def test_what_ansible_says_of_the_default_inventory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of the checkout is looked at: nobody has named one."""
    settings, broken = tmp_path / "ansible.cfg", tmp_path / "hosts.py"
    executable(broken, "echo 'the lab does not run' >&2\nexit 7")
    settings.write_text((ROOT / "ansible.cfg").read_text().replace("= inventory/lab", f"= {broken}", 1))
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(settings))
    with pytest.raises(InventoryError, match="the lab does not run"):
        read([])
