"""Many nodes in few words."""

from hypothesis import given
from hypothesis import strategies as st

from temper.base.nodes import alike, counted, duration, generic, printable, ranges, with_rack
from tests.unit.each import each


@each(
    ([], ""),
    (["gpu01"], "gpu01"),
    (["gpu02", "gpu01"], "gpu01, gpu02"),
    ([f"gpu{number:02}" for number in range(1, 13)], "gpu01-gpu12"),
    (["n8", "n9", "n10", "n11", "n13"], "n8-n11, n13"),
    (["n098", "n099", "n100"], "n098-n100"),
    (["n1", "n01", "n2", "n3"], "n01, n1-n3"),
    (["rack1-gpu1", "rack1-gpu2", "rack1-gpu3", "rack2-gpu1"], "rack1-gpu1-rack1-gpu3, rack2-gpu1"),
    (["gpu1.b2.example", "gpu2.b2.example", "gpu3.b2.example"], "gpu1.b2.example-gpu3.b2.example"),
    (["gpu1.a", "gpu2.b", "gpu3.a"], "gpu1.a, gpu3.a, gpu2.b"),
    (["10.0.0.9", "10.0.0.10", "10.0.0.11"], "10.0.0.9-10.0.0.11"),
    (["login", "gpu1", "login"], "gpu1, login"),
)
def test_names_that_follow_each_other_are_a_range(names: list[str], said: str) -> None:
    assert ranges(names) == said


@given(st.sets(st.integers(0, 1200), min_size=1))
def test_every_name_is_in_its_range_and_no_other(numbers: set[int]) -> None:
    found = set()
    for part in ranges(f"gpu{number}" for number in numbers).split(", "):
        first, _, last = part.removeprefix("gpu").partition("-gpu")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


@each(({"n1"}, "n1"), ({"a", "b"}, "2 nodes: a, b"), ({"n1", "n2", "n3"}, "3 nodes: n1-n3"))
def test_several_nodes_come_with_their_number(names: set[str], said: str) -> None:
    assert counted(names) == said


@each(
    ("gpu1 is refused.", "NODE is refused."),
    ("/etc/gpu1.conf", "/etc/NODE.conf"),
    ("root@192.0.2.7: no", "root@NODE: no"),
    ("gpu10, my-gpu1 and 192.0.2.77 are others", None),
)
def test_a_nodes_own_names_are_left_out_as_whole_words(text: str, expected: str | None) -> None:
    assert generic(text, ("gpu1", "192.0.2.7", "")) == (expected or text)


def test_texts_that_differ_in_the_nodes_names_alone_are_one() -> None:
    own = {"a1": ("a1", "192.0.2.1"), "b1": ("b1", "192.0.2.2")}
    texts = {"b1": "b1 (192.0.2.2) is full", "a1": "a1 (192.0.2.1) is full", "c1": "c1 is empty"}
    assert alike(texts, own) == [(("a1", "b1"), "NODE (NODE) is full"), (("c1",), "c1 is empty")]


@each(
    (0.9, "0 s"),
    (41, "41 s"),
    (60, "1 min"),
    (250, "4 min 10 s"),
    (3600, "1 h"),
    (7505, "2 h 5 min"),
    (97200, "1 d 3 h"),
)
def test_a_time_has_its_two_largest_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_what_a_terminal_would_act_on_is_shown_instead() -> None:
    assert printable("a\r\nb\rc\td\x1b[2Jé") == "a\nb\nc\td\\x1b[2Jé"


@each(
    ({"rack": "r12"}, ["a", "rack_r12"]),
    ({"rack": 12}, ["a", "rack_12"]),
    ({"rack": "rack12"}, ["a", "rack12"]),
    ({"racks": ["R7"]}, ["a", "rack_R7"]),
    ({"rack": "r1", "racks": ["r1"]}, ["a", "rack_r1"]),
    ({"rack": ""}, ["a"]),
    ({"rack": None}, ["a"]),
    ({"rack": True}, ["a"]),
    ({"rack": {"row": 1}}, ["a"]),
    ({}, ["a"]),
)
def test_a_variable_names_the_rack_of_a_node(variables: dict[str, object], groups: list[str]) -> None:
    assert with_rack(["a"], variables) == groups


@each("racks", "rack3", "rackspace", "rack_role_gpu", "rack_r12")
def test_no_group_hides_the_rack_that_a_variable_names(group: str) -> None:
    assert with_rack([group], {"rack": "r12"}) == list(dict.fromkeys([group, "rack_r12"]))


def test_a_rack_that_cannot_be_resolved_costs_no_report() -> None:
    class Unresolved(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            raise KeyError(f"{key} is undefined")

    assert with_rack(["a"], Unresolved()) == ["a"]
