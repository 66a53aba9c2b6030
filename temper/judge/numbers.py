"""Is my number right? What is published, measured and asked for of a GPU model, by data/gpu_models.yml."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from temper.base import ROOT
from temper.plan.tables import read_yaml
from validation.model.quantities import UNITS, label, number, unit
from validation.model.usage import UsageError
from validation.verdict.references import MEMORY_NUMBERS, WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TABLE = ROOT / "data" / "gpu_models.yml"
NUMBER = re.compile(r"(?P<name>[a-z0-9_]+)(?:=(?P<value>\d+(?:\.\d+)?))?")
#: What a value is held against, the most telling first.
KINDS = {
    "floor": "asked for at least",
    "measured": "measured",
    "peak": "the chip can do",
}


class Reference(NamedTuple):
    """A number of a model: what kind of one it is, its value, how it was taken and who says so."""

    kind: str
    name: str
    value: float
    how: str
    source: str
    verified: bool


def models() -> Mapping[str, Any]:
    """The rows of the table by their key."""
    rows: Mapping[str, Any] = read_yaml(TABLE)["models"]
    return rows


def model_named(wanted: str) -> tuple[str, Mapping[str, Any]]:
    """The one model that a word means: its key, name or product name, or a part of one. Raises UsageError."""
    words = wanted.lower().removeprefix("nvidia ").replace("-", " ").replace("_", " ").split()

    def known(key: str, row: Mapping[str, Any]) -> str:
        return " ".join((key, row["name"], *row.get("product_names", ()))).lower().replace("_", " ")

    rows = models()
    exact = [key for key, row in rows.items() if wanted.lower() in {key, row["name"].lower()}]
    found = exact or [key for key, row in rows.items() if set(words) <= set(known(key, row).split())]
    if len(found) == 1:
        return found[0], rows[found[0]]
    names = ", ".join(rows[key]["name"] for key in found or rows)
    what = f"--gpu {wanted} means {len(found)} models" if found else f"no model is called {wanted}"
    raise UsageError(f"{what}; name one of: {names}")


def references(row: Mapping[str, Any]) -> Iterator[Reference]:
    """Everything that the table has of a model's rates."""
    for kind in KINDS:
        for name, entries in row.get(kind, {}).items():
            if not name.endswith(tuple(UNITS)):
                continue
            for entry in entries if isinstance(entries, list) else [entries]:
                shape = " x ".join(map(str, entry.get("shape", ())))
                size = f"{entry['size_bytes'] >> 20} MiB" if "size_bytes" in entry else ""
                gpus = f"{entry['gpus']} GPUs" if "gpus" in entry else ""
                unsure = "" if entry.get("verified", True) else "not verified"
                parts = (shape, gpus, size, entry.get("algorithm", ""), entry.get("method", ""), unsure)
                how = ", ".join(filter(None, parts))
                yield Reference(kind, name, entry["value"], how, entry["source"], entry.get("verified", True))


def bound(name: str) -> str:
    """The name of the peak that bounds a number: `bf16_best_tflops` has that of `bf16_tflops`."""
    plain = re.sub(rf"_({'|'.join(WAYS)})_(?=[a-z]+$)", "_", name)
    return "memory_gb_s" if plain in MEMORY_NUMBERS else plain


def explained(wanted: str, gpu: str) -> str:
    """What is known of a number of a model, and how a value stands to it. Raises UsageError."""
    given = NUMBER.fullmatch(wanted)
    _, row = model_named(gpu)
    known = list(references(row))
    names = sorted({one.name for one in known})
    # A GPU alone is held to the floor of many at once.
    asked = given["name"].replace("_alone_", "_") if given else ""
    if not given or not any(asked in (one.name, bound(one.name)) for one in known):
        raise UsageError(
            f"{wanted}: expected one of {', '.join(names)}, perhaps with =VALUE, for {row['name']}"
        )
    name, value = asked, float(given["value"]) if given["value"] else None
    sources = read_yaml(TABLE)["sources"]
    said = "" if value is None else f": {number(value)} {unit(name)}"
    lines = [f"{label(given['name'])} of {row['name']}{said}"]
    for one in known:
        if one.name == name or (one.kind == "peak" and one.name == bound(name)):
            share = " " if value is None else f"  {value / one.value:4.0%} of"
            how = f" ({one.how})" if one.how else ""
            lines.append(f"{share} {number(one.value)} {unit(name)}, {KINDS[one.kind]}{how}: {one.source}")
    floors = [one for one in known if one.kind == "floor" and one.name == name]
    if value is not None:
        lines.append(_judged(value, floors, [one for one in known if one.name == bound(name)]))
    lines += ["Sources:", *(f"  {key}: {sources[key]['title']}" for key in _cited(lines, sources))]
    return "\n".join(lines) + "\n"


def _judged(value: float, floors: list[Reference], peaks: list[Reference]) -> str:
    """In a sentence: what the value means."""
    floors = [one for one in floors if one.verified]
    if any(value > 1.02 * one.value for one in peaks if one.kind == "peak" and one.verified):
        return "More than the chip can do: the time, or the count of operations, is wrong."
    if len(floors) != 1 or floors[0].name.startswith("busbw"):
        return "No floor for any conditions: compare those above, and this GPU with others of its kind."
    if value < floors[0].value:
        return "Too low for a healthy GPU that is alone: temper explain below-floor says what to look at."
    return "Right for a healthy GPU. How far GPUs of one node differ is up to 5 %."


def _cited(lines: list[str], sources: Mapping[str, Any]) -> list[str]:
    words = {line.rpartition(": ")[2] for line in lines}
    return [key for key in sources if key in words]
