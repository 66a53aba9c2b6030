"""Whether a value is of the type that its argument spec names, and what was expected in plain words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.errors import ArgumentTypeError, ElementError, SubParameterTypeError

from temper.plan.origin import place

#: Types of Ansible's argument specs, as a person calls one of them and several.
WORDS = {
    "bool": ("true or false", "true or false"),
    "dict": ("a dictionary", "dictionaries"),
    "float": ("a number", "numbers"),
    "int": ("a whole number", "whole numbers"),
    "list": ("a list", "lists"),
    "raw": ("a value", "values"),
    "str": ("a text", "texts"),
}
#: What a number counts, by how its variable's name ends; the longest ending first.
UNITS = {
    "_gb_s": "GB/s",
    "_per_minute": "a minute",
    "_per_second": "a second",
    "_percent": "percent",
    "_minutes": "minutes",
    "_hours": "hours",
    "_days": "days",
    "_gib": "GiB",
    "_mib": "MiB",
    "_kib": "KiB",
    "_kb": "KiB",
    "_s": "seconds",
    "_w": "watts",
}
WRONG_TYPE = (ArgumentTypeError, ElementError, SubParameterTypeError)
#: What says which entry of a list is meant, where it has one.
NAMES = ("name", "id", "control", "gpu")


def expected(name: str, spec: Mapping[str, Any]) -> str:
    """Return what a variable or option should be, in words."""
    wanted = str(spec.get("type", "str"))
    words = WORDS.get(wanted, (wanted,))[0]
    if "elements" in spec:
        words += f" of {WORDS.get(spec['elements'], ('', spec['elements']))[1]}"
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"{words} ({unit})" if unit and wanted in ("int", "float") else words


def validated(
    name: str, value: Any, spec: Mapping[str, Any], key: Any = None, label: str = ""
) -> tuple[Any, list[str]]:
    """Return the value as its argument spec converts it, and what that says against it.

    `key` is its name as the inventory has it; `label` names it in sentences, where it is an option of an
    entry.
    """
    label = label or name
    where = place(value, key)
    if value is None and spec.get("default") is not None:
        # Ansible lets it pass for any type, and the roles would have to do with it.
        return None, [
            f"{label}: expected {expected(name, spec)}, found no value; give it one, or leave it out{where}"
        ]
    if isinstance(value, bool) and spec.get("type") in ("int", "float"):
        # Ansible takes true for 1.
        return None, [f"{label}: expected {expected(name, spec)}, found {value}{where}"]
    flat = {key: item for key, item in spec.items() if key != "options"}
    try:
        result = ArgumentSpecValidator({name: flat}).validate({name: value})
    except (OverflowError, ValueError):  # of an infinite number, or one of 4,300 digits
        return None, [f"{label}: expected {expected(name, spec)}, found a number that is none{where}"]
    errors = [
        f"{label}: expected {expected(name, spec)}, found {value!r}{where}"
        if isinstance(error, WRONG_TYPE)
        else f"{label}: {error.msg}{close_to(value, spec)}{where}"
        for error in result.errors
    ]
    found = result.validated_parameters.get(name)
    if errors or found is None or "options" not in spec:
        return found, list(dict.fromkeys(errors))
    several = isinstance(found, list)
    entries = [
        options(f"{label}: entry {number}{named(entry)}" if several else label, entry, spec["options"])
        for number, entry in enumerate(found if several else [found], 1)
    ]
    problems = [problem for _, found in entries for problem in found]
    return [entry for entry, _ in entries] if several else entries[0][0], problems


def named(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry, in brackets; nothing where it has none."""
    return next((f" ({entry[key]})" for key in NAMES if isinstance(entry.get(key), str)), "")


def options(label: str, entry: Mapping[str, Any], specs: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return a dictionary with its options converted, and what is wrong with them."""
    unknown = [key for key in entry if key not in specs]
    problems = [
        f"{label}: there is no option {key}; {meant(str(key), specs)}{place(entry[key], key)}"
        for key in unknown
    ]
    known = {key: value for key, value in entry.items() if key in specs}
    made: dict[str, Any] = {}
    between = ", " if ": " in label else ": "
    for key, value in known.items():
        made[key], wrong = validated(key, value, specs[key], key, f"{label}{between}{key}")
        problems += wrong
    if not problems:
        result = ArgumentSpecValidator(dict(specs)).validate(known)
        where = next(filter(None, (place(value, key) for key, value in entry.items())), "")
        problems = [f"{label}: {error.msg}{where}" for error in result.errors]
        made = result.validated_parameters
    return made, problems


def meant(name: str, known: Iterable[str]) -> str:
    """Return what was probably meant, or all that there is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"expected one of: {', '.join(sorted(known))}"


def close_to(value: object, spec: Mapping[str, Any]) -> str:
    """Return the choice that was probably meant, for the end of a sentence."""
    close = difflib.get_close_matches(str(value), list(map(str, spec.get("choices", ()))), n=1)
    return f"; did you mean {close[0]}?" if close else ""
