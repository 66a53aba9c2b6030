"""The orders in which values stand: which is stricter, and what is as strict as two of them."""

from ansible.module_utils.temper.settings.strictness import as_strict, chosen, stricter, strictest

from tests.unit.each import each

LIMIT = "at most, 0 -1 unlimited"
WORDS = "no > local|remote > yes"
SYSRQ = "bits, 1 all"


@each(
    ("exactly", "2", "1", "1"),
    ("at most", "3", "5", "3"),
    ("at most", "7", "5", "5"),
    ("at most", "none", "5", "5"),
    ("at most", "4_0", "50", "50"),
    ("at most", "9" * 5000, "5", "5"),
    (LIMIT, "0", "5", "5"),
    (LIMIT, "-1", "5", "5"),
    (LIMIT, "-2", "5", "5"),
    (LIMIT, "00", "5", "5"),
    ("at most", "-1", "0", "-1"),
    (LIMIT, "5", "0", "5"),
    ("at least", "2", "1", "2"),
    ("at least, 0 never unlimited", "never", "900", "never"),
    ("at least, 0 never unlimited", "-1", "900", "900"),
    ("subset", "a,b", "a,b,c", "a,b"),
    ("subset", "b,d", "a,b", "b"),
    ("subset", "d", "a,b", "a,b"),
    ("contains", "nosuid x", "nodev", "nodev nosuid x"),
    (SYSRQ, "16", "176", "16"),
    (SYSRQ, "438", "176", "176"),
    (SYSRQ, "1", "176", "176"),
    (SYSRQ, "20", "176", "16"),
    ("umask", "077", "027", "077"),
    ("umask", "0027", "027", "0027"),
    ("umask", "072", "027", "077"),
    ("umask", "-1", "027", "027"),
    ("umask", "022", "027", "027"),
    ("interval", "12h", "1", "12h"),
    ("interval", "86400s", "1d", "86400s"),
    ("interval", "0", "1", "1"),
    ("interval", "0h", "1", "0h"),
    ("switch", "2", "1", "2"),
    ("switch", "true", "1", "true"),
    ("switch", "0", "1", "1"),
    ("switch", "-00", "1", "1"),
    ("interval", "2d", "1", "1"),
    ("interval", "1w", "always", "always"),
    (WORDS, "NO", "local", "NO"),
    (WORDS, "remote", "local", "local"),
    (WORDS, "new", "yes", "yes"),
    ("1 > 2 > 0", "1", "2", "1"),
    ("1 > 2 > 0", "0", "2", "2"),
)
def test_the_result_is_as_strict_as_both(order: str, found: str, wanted: str, result: str) -> None:
    assert strictest(order, found, wanted) == result
    assert as_strict(order, result, wanted)


def test_two_spellings_of_a_value_are_equally_strict() -> None:
    assert as_strict("umask", "0027", "027")
    assert not stricter("umask", "0027", "027")


def test_a_switch_that_is_on_is_no_stricter_than_another() -> None:
    assert not stricter("switch", "2", "1")
    assert as_strict("switch", "0", "0")


def test_the_values_of_a_distribution_are_nobodys_choice() -> None:
    order = "at least, 3 4 default"
    assert [chosen(order, value, "2") for value in ("2", "3", "4")] == [True, False, False]
    assert chosen(order, "4", "3")  # a profile that wants the default relaxes nothing
