"""Which of two values of an sshd keyword is the stricter one, and by which methods an account gets in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ansible.module_utils.temper.settings import strictness
from ansible.module_utils.temper.settings.strictness import EXACTLY

if TYPE_CHECKING:
    from ansible.module_utils.temper.access.sshd import Effective

# The methods of AuthenticationMethods, and the keywords that they need: the first one switches the method.
METHODS = {
    "publickey": ("pubkeyauthentication",),
    "password": ("passwordauthentication",),
    "keyboard-interactive": ("kbdinteractiveauthentication",),
    "gssapi-with-mic": ("gssapiauthentication",),
    "none": ("permitemptypasswords",),
    "hostbased": ("hostbasedauthentication", "ignorerhosts", "ignoreuserknownhosts", "usedns"),
}
ALGORITHM_LISTS = ("ciphers", "kexalgorithms", "macs")
YES_IS_STRICT = ("ignoreuserknownhosts", "strictmodes")
NO_IS_STRICT = (
    *("passwordauthentication", "kbdinteractiveauthentication", "permitemptypasswords"),
    *("hostbasedauthentication", "gssapiauthentication", "kerberosauthentication"),
    *("allowagentforwarding", "x11forwarding", "compression", "debianbanner"),
)
ORDERS = {
    **dict.fromkeys(YES_IS_STRICT, "yes > no"),
    **dict.fromkeys(NO_IS_STRICT, "no > yes"),
    **dict.fromkeys(("allowtcpforwarding", "allowstreamlocalforwarding"), "no > local|remote > yes"),
    "permitrootlogin": "no > forced-commands-only > prohibit-password|without-password > yes",
    "permittunnel": "no > point-to-point|ethernet > yes",
    "gatewayports": "no > clientspecified > yes",
    "ignorerhosts": "yes > shosts-only > no",
    **dict.fromkeys(("maxauthtries", "maxsessions"), "at most"),
    **dict.fromkeys(("logingracetime", "clientaliveinterval", "clientalivecountmax"), "at most, 0 unlimited"),
    "requiredrsasize": "at least",
    **dict.fromkeys(ALGORITHM_LISTS, "subset"),
}


def _startups(found: str, wanted: str) -> bool:
    """Compare START:RATE:FULL of MaxStartups."""
    ours, theirs = ([int(part) for part in text.split(":")] for text in (found, wanted))
    return ours[0] <= theirs[0] and ours[1] >= theirs[1] and ours[2] <= theirs[2]


def _methods(found: str, wanted: str) -> bool:
    """Return whether each list demands all that one of the wanted lists demands."""
    return all(any(enough <= way for enough in _lists(wanted)) for way in _lists(found))


def _lists(methods: str) -> list[frozenset[str]]:
    """Return the methods of each list; `any` demands no particular one."""
    if methods == "any":
        return [frozenset()]
    return [frozenset(one.partition(":")[0] for one in way.split(",")) for way in methods.split()]


def _penalties(text: str) -> dict[str, float]:
    """Return how strict each part of PerSourcePenalties is; nothing of `no`.

    Raises ValueError.
    """
    parts = (word.partition(":") for word in text.split() if word != "no")
    return {
        name: float(value == "deny-all")
        if name.startswith("overflow")
        # Below it nobody is kept out.
        else (-float(value) if name == "min" else float(value))
        for name, _, value in parts
    }


def _punishes_more(found: str, wanted: str) -> bool:
    ours, theirs = _penalties(found), _penalties(wanted)
    return all(ours[name] >= theirs[name] for name in theirs)


def _most_penalties(found: str, wanted: str) -> str:
    """Return the stricter one of each part."""
    ours, theirs = _penalties(found), _penalties(wanted)
    words = {word.partition(":")[0]: word for word in (*wanted.split(), *found.split())}
    parts = zip(theirs, wanted.split())  # noqa: B905 - strict= is not in Python 3.9
    return " ".join(
        words[name] if name in ours and ours[name] > theirs[name] else word for name, word in parts
    )


def _exempt(text: str) -> set[str]:
    return set(text.split(",")) - {"none"}


# What has an order that only sshd knows.
COMPARED: dict[str, Callable[[str, str], bool]] = {
    "maxstartups": _startups,
    "authenticationmethods": _methods,
    "persourcepenalties": _punishes_more,
    "persourcepenaltyexemptlist": lambda found, wanted: _exempt(found) <= _exempt(wanted),
}
# What is as strict as two values; may be neither.
JOINED: dict[str, Callable[[str, str], str]] = {
    **dict.fromkeys(ALGORITHM_LISTS, lambda found, wanted: strictness.strictest("subset", found, wanted)),
    "persourcepenalties": _most_penalties,
    "persourcepenaltyexemptlist": lambda found, wanted: (
        ",".join(sorted(_exempt(found) & _exempt(wanted))) or "none"
    ),
}


def as_strict(keyword: str, found: list[str] | None, wanted: list[str] | None) -> bool:
    """Return whether a value, as `sshd -T` writes it, allows nothing that the wanted one forbids.

    Without an order of the keyword's values, only the wanted one does.
    """
    if found == wanted:
        return True
    keyword = keyword.lower()
    if not found or not wanted or len(found) != 1 or len(wanted) != 1:
        return False
    compared = COMPARED.get(keyword)
    if compared is None:
        return strictness.as_strict(ORDERS.get(keyword, EXACTLY), found[0], wanted[0])
    try:
        return compared(found[0], wanted[0])
    except (ValueError, LookupError):
        return False


def stricter(keyword: str, found: list[str] | None, wanted: list[str] | None) -> bool:
    """Return whether a value forbids more than the wanted one, and allows nothing that it forbids."""
    return as_strict(keyword, found, wanted) and not as_strict(keyword, wanted, found)


def strict_as_both(keyword: str, found: list[str], wanted: list[str]) -> list[str]:
    """Return what is as strict as both values, as the algorithms of both lists; else the wanted one."""
    join = JOINED.get(keyword.lower())
    try:
        return [join(found[0], wanted[0])] if join else wanted
    except (ValueError, LookupError):  # an sshd that says it in another form
        return wanted


def demands_several(methods: list[str]) -> bool:
    """Return whether every list of AuthenticationMethods has more than one method."""
    return all(len(way) > 1 for way in _lists(methods[0]))


def ways_in(effective: Effective) -> list[tuple[str, ...]]:
    """Return the lists of methods that let an account in: all methods of such a list are on."""
    enabled = [name for name, (switch, *_) in METHODS.items() if effective.get(switch) == ["yes"]]
    disabled = METHODS.keys() - enabled  # a method that we do not know may let in
    demanded = effective.get("authenticationmethods", ["any"])[0]
    if demanded == "any":
        return [(name,) for name in enabled]
    ways = [tuple(one.partition(":")[0] for one in way.split(",")) for way in demanded.split()]
    return [way for way in ways if disabled.isdisjoint(way)]


def further_factors(methods: str) -> list[str]:
    """Return the keywords, in lower case, that lists of a key and something more need."""
    ways = [way for way in _lists(methods) if "publickey" in way]
    needed = sorted(set().union(*ways) - {"publickey"}) if ways else []
    return [keyword for name in needed for keyword in METHODS.get(name, ())]
