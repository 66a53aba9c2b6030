"""Names and addresses of labs, which must never meet and always fit."""

import pytest

from tests.lab.process import LabError
from tests.lab.settings import MAX_NODES, Lab, wanted_nodes
from tests.unit.each import each


@each("Temper", "two-words", "muchtoolong", "0lab", "a/b")
def test_name_that_fits_nowhere_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="LAB_NAME must be"):
        Lab(name)


def test_names_of_interfaces_fit_into_the_kernels_15_characters() -> None:
    lab = Lab("ninechars")

    assert len(lab.bridge) <= 15
    assert len(lab.node(MAX_NODES).unique_name) <= 15


def test_default_lab_has_a_network_that_no_other_name_gets() -> None:
    assert Lab().network == "10.213.0.0/24"
    assert all(1 <= Lab(f"lab{number}").number <= 255 for number in range(1000))


def test_nodes_alternate_between_releases_and_hardware() -> None:
    assert [(str(node.release), node.profile) for node in Lab().nodes(3)] == [
        ("Debian 12", "hgx-h100-8"),
        ("Debian 13", "l4-1"),
        ("Debian 12", "hgx-h100-8"),
    ]


@each("0", "-1", "two", "100", "1.5")
def test_number_of_nodes_that_makes_no_sense_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_NODES", text)

    with pytest.raises(LabError, match="LAB_NODES must be a number from 1 to 99"):
        wanted_nodes()


@each("", "2")
def test_lab_has_two_nodes_unless_told_otherwise(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_NODES", text)

    assert wanted_nodes() == 2
