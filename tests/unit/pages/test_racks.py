"""Whether the nodes that are not good have their rack in common."""

import pytest

from temper.report.racks import chance, in_common
from tests.unit.each import each

#: 24 racks of four nodes.
RACKS = {f"gpu{number:02}": (f"rack{number // 4}",) for number in range(96)}


@each(
    (["gpu00", "gpu01", "gpu02"], "rack0"),
    # One more elsewhere hides nothing.
    (["gpu04", "gpu05", "gpu06", "gpu90"], "rack1"),
    # Chance puts two of two into one of 24 racks now and then.
    (["gpu00", "gpu01"], ""),
    # Half of them are in no rack together with the others.
    (["gpu00", "gpu01", "gpu02", "gpu20", "gpu30", "gpu40"], ""),
    (["gpu00", "gpu10", "gpu20"], ""),
    (["gpu00"], ""),
    ([], ""),
)
def test_a_rack_is_named_where_chance_does_not_explain_it(bad: list[str], rack: str) -> None:
    said = in_common(RACKS, bad)
    assert (f" {rack}," in said) if rack else said == ""


def test_what_is_said_has_the_counts() -> None:
    said = in_common(RACKS, ["gpu00", "gpu01", "gpu02", "gpu90"])
    assert "3 of the 4 nodes" in said
    assert "4 of 96 nodes" in said


def test_a_row_or_a_role_of_more_nodes_hides_no_rack() -> None:
    groups = {
        node: ("rack_role_gpu", f"rackrow{int(node[3:]) // 48}", *racks) for node, racks in RACKS.items()
    }
    assert " rack1," in in_common(groups, ["gpu04", "gpu05", "gpu06", "gpu40", "gpu41"])
    # Where the whole row is bad, no rack in it is blamed, and the group of all nodes never is.
    assert " rackrow0," in in_common(groups, [f"gpu{number:02}" for number in range(0, 48, 4)])
    assert in_common(groups, ["gpu00", "gpu10", "gpu60"]) == ""


def test_one_rack_and_nodes_without_any_tell_nothing() -> None:
    assert in_common(dict.fromkeys(RACKS, ("rack0",)), list(RACKS)[:5]) == ""
    assert in_common(dict.fromkeys(RACKS, ()), list(RACKS)[:5]) == ""


def test_the_chance_is_that_of_drawing_without_putting_back() -> None:
    # Both of two aces among 52 cards of which four are aces: 4/52 * 3/51.
    assert chance(2, 2, 4, 52) == pytest.approx(4 / 52 * 3 / 51)
    assert chance(0, 2, 4, 52) == pytest.approx(1)
