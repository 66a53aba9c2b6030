"""Where nodes hang: a file of the operator's, Slurm's topology.conf, groups; and what is wrong with each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from validation.fabric.tree import Place, TreeError, expand, find_places, read_tree, tree_of_groups

if TYPE_CHECKING:
    from pathlib import Path

SLURM = """\
# The example of topology.conf(5), with a second level.
SwitchName=s0 Nodes=dev[0-1]
switchname=s1 nodes=dev[2-3] LinkSpeed=100
SwitchName=s2 Nodes=dev4,dev5  # a comment
SwitchName=p0 Switches=s[0-1]
SwitchName=p1 Switches=s2
SwitchName=root Switches=p[0-1]
"""
YAML = "leaves: {a: 'n[1-2]', b: [n3, n4], c: n5}\npods: {p: 'a,b', q: c}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "topology"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("tux[0-1,12],login", ["tux0", "tux1", "tux12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_a_hostlist_stands_for_names(expression: str, names: list[str]) -> None:
    assert expand(expression) == names


@pytest.mark.parametrize(
    "expression", ["gpu[1-", "gpu[a-b]", "gpu[3-1]", "gpu[]", "gpu]1[", "g[1-99999999]", f"g[1-{'9' * 5000}]"]
)
def test_a_hostlist_that_stands_for_nothing_is_refused(expression: str) -> None:
    with pytest.raises(TreeError):
        expand(expression)


def test_a_file_says_leaf_and_pod_of_each_node(tmp_path: Path) -> None:
    places = read_tree(written(tmp_path, YAML)).places
    assert places["n2"] == Place("a", "p")
    assert places["n5"] == Place("c", "q")


def test_names_that_are_numbers_are_found_by_their_pods(tmp_path: Path) -> None:
    places = read_tree(written(tmp_path, "leaves: {1: n1, 2: n2}\npods: {p: '1', q: '2'}\n")).places
    assert places == {"n1": Place("1", "p"), "n2": Place("2", "q")}


def test_the_form_that_is_expected_can_be_copied(tmp_path: Path) -> None:
    with pytest.raises(TreeError) as error:
        read_tree(written(tmp_path, "racks: {}"))
    form = re.findall(r"`(.+?)`", str(error.value))
    places = read_tree(written(tmp_path, "\n".join(form))).places
    assert places["gpu032"].leaf == "leaf01"


def test_one_pod_for_all_is_none(tmp_path: Path) -> None:
    text = "leaves: {a: n1, b: n2}\npods: {p: 'a,b'}\n"
    assert read_tree(written(tmp_path, text)).places == {"n1": Place("a"), "n2": Place("b")}


def test_slurms_topology_is_taken_as_it_is(tmp_path: Path) -> None:
    places = read_tree(written(tmp_path, SLURM)).places
    assert places["dev0"] == Place("s0", "p0")
    assert places["dev3"] == Place("s1", "p0")
    assert places["dev5"] == Place("s2", "p1")
    # It has nodes of all kinds: what this inventory does not have is no typo.
    assert find_places(read_tree(written(tmp_path, SLURM)), ["dev0"], ["dev0"])


def test_slurms_lines_may_go_on_and_its_values_be_quoted(tmp_path: Path) -> None:
    text = '# ends with \\\nSwitchName=a Nodes=n[1-2],\\\nn[3-4]\nSwitchName=b \\\n  Nodes="n5,n6"\n'
    places = read_tree(written(tmp_path, text)).places
    assert {node: place.leaf for node, place in places.items()} == {
        **dict.fromkeys(["n1", "n2", "n3", "n4"], "a"),
        **dict.fromkeys(["n5", "n6"], "b"),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("leaves: {a: n1, b: n1}", ["n1", "leaves a and b"]),
        ("leaves: {a: n1, b: n2}\npods: {p: a, q: 'a,b'}", ["leaf a", "pods p and q"]),
        ("leaves: {a: n1}\npods: {p: x}", ["leaf x", "not under leaves"]),
        ("leaves: {a: n1, b: n2}\npods: {p: a}", ["leaf b is in no pod"]),
        ("leaves: {a: 7}", ["leaf a", "found 7"]),
        ("leaves: {}", ["no leaf"]),
        ("racks: {a: n1}", ["expected", "found no leaves"]),
        ("leaves: {a: n1}\nspines: {}", ["found also spines"]),
        ("leaves: [", ["no YAML"]),
        ("leaves: {a: 2026-13-45}", ["no YAML"]),
        ("leaves: " + "[" * 400, ["no YAML"]),
        ("SwitchName=a Nodes=n1, n2", ["switch a", "found n2"]),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", ["n1", "leaves a and b"]),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", ["a is there twice"]),
        ("SwitchName=a", ["switch a", "either Nodes= or Switches="]),
        ("SwitchName=a Switches=x", ["switch x", "no line"]),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a", ["below b", "below c"]),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", ["above itself"]),
    ],
)
def test_what_is_no_tree_is_said_in_a_sentence(text: str, words: list[str], tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TreeError) as error:
        read_tree(path)
    assert str(error.value).startswith(f"{path}: ")
    for word in words:
        assert word in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="No such file"):
        read_tree(tmp_path / "missing")


def test_a_node_in_no_leaf_and_a_name_that_nobody_has_are_said(tmp_path: Path) -> None:
    tree = read_tree(written(tmp_path, YAML))
    with pytest.raises(TreeError, match="n9 is in no leaf"):
        find_places(tree, ["n1", "n9"], ["n1", "n9"])
    with pytest.raises(TreeError, match="leaf b names n3, which no inventory has; did you mean n33"):
        find_places(tree, ["n1"], ["n1", "n2", "n33", "n4", "n5"])


def test_groups_say_leaf_and_pod_by_their_names() -> None:
    groups = {"n1": ["gpu_nodes", "leaf_1", "pod_a"], "n2": ["leaf_2", "pod_b"], "n3": ["gpu_nodes"]}
    places = tree_of_groups(groups, "leaf_*", "pod_*").places
    assert places == {"n1": Place("leaf_1", "pod_a"), "n2": Place("leaf_2", "pod_b")}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"n1": ["leaf_1", "leaf_2"]}, "n1 is in leaf groups leaf_1 and leaf_2"),
        ({"n1": ["leaf_1", "pod_a"], "n2": ["leaf_1", "pod_b"]}, "leaf leaf_1 is in pod pod_a and, with n2"),
        ({"n1": ["gpu_nodes"]}, "names no leaf"),
    ],
)
def test_groups_that_are_no_tree_are_said(groups: dict[str, list[str]], words: str) -> None:
    with pytest.raises(TreeError, match=words):
        tree_of_groups(groups, "leaf_*", "pod_*")
