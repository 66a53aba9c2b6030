"""Is my number right? What is published, measured and asked for of a GPU model, by data/gpu_models.yml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from temper.base import ROOT
from temper.plan.tables import read_yaml
from validation.model.contract import UsageError
from validation.model.quantities import UNITS, label, number, unit
from validation.model.shapes import MatmulShape
from validation.verdict.references import MEMORY_NUMBERS, WAYS

TABLE = ROOT / "data" / "gpu_models.yml"
NUMBER = re.compile(r"(?P<name>[a-z0-9_]+)(?:=(?P<value>\d+(?:\.\d+)?))?")
#: What a value is held against, the most telling first.
KINDS = {
    "floor": "asked for at least",
    "measured": "measured",
    "peak": "the chip can do",
}
#: How far healthy GPUs of one node differ (ml-engineering, compute/accelerator).
USUAL_SPREAD = 0.05


class Reference(NamedTuple):
    """A number of a model: what kind of one it is, its value, how it was taken and who says so.

    `of`: it is the lowest of so many healthy GPUs.
    """

    kind: str
    name: str
    value: float
    how: str
    source: str
    verified: bool
    of: int | None = None


def models() -> Mapping[str, Any]:
    """Return the rows of the table by their key."""
    rows: Mapping[str, Any] = read_yaml(TABLE)["models"]
    return rows


def model_named(wanted: str) -> tuple[str, Mapping[str, Any]]:
    """Return the one model that a word means: its key, name or product name, or a part of one.

    Raises UsageError.
    """
    words = wanted.lower().removeprefix("nvidia ").replace("-", " ").replace("_", " ").split()

    def known(key: str, row: Mapping[str, Any]) -> str:
        return " ".join((key, row["name"], *row.get("product_names", ()))).lower().replace("_", " ")

    rows = models()
    exact = [key for key, row in rows.items() if wanted.lower() in {key, row["name"].lower()}]
    found = exact or [key for key, row in rows.items() if set(words) <= set(known(key, row).split())]
    if len(found) == 1:
        return found[0], rows[found[0]]
    names = [rows[key]["name"] for key in found or rows]
    what = f"--gpu {wanted} means {len(found)} models" if found else f"no model is called {wanted}"
    close = [] if found else difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"name one of: {', '.join(names)}"
    raise UsageError(f"{what}; {hint}")


def references(row: Mapping[str, Any]) -> Iterator[Reference]:
    """Everything that the table has of a model's rates, those of its slot included."""
    slot = row.get("pcie", {"width": 16})
    link = read_yaml(TABLE)["pcie_x16"].get(slot.get("generation"), {}) if slot["width"] == 16 else {}
    for kind in KINDS:
        of_link = {name: entry for name, entry in link.get(kind, {}).items() if name not in row.get(kind, {})}
        for name, entries in (row.get(kind, {}) | of_link).items():
            if not name.endswith(tuple(UNITS)):
                continue
            for entry in entries if isinstance(entries, list) else [entries]:
                how = _how(entry) + (f", PCIe {slot['generation']} x16" if name in of_link else "")
                yield Reference(
                    kind,
                    name,
                    entry["value"],
                    how.removeprefix(", "),
                    entry["source"],
                    entry.get("verified", True),
                    entry.get("of"),
                )


def _how(entry: Mapping[str, Any]) -> str:
    """`8192 x 8192 x 8192`, `8 GPUs, 16384 MiB, nvls`, `lowest of 4 GPUs, the highest 685`."""
    return ", ".join(
        filter(
            None,
            (
                str(MatmulShape(*entry["shape"])) if "shape" in entry else "",
                f"{entry['gpus']} GPUs" if "gpus" in entry else "",
                f"{entry['nodes']} nodes" if "nodes" in entry else "",
                f"{entry['size_bytes'] >> 20} MiB" if "size_bytes" in entry else "",
                entry.get("algorithm", ""),
                entry.get("method", ""),
                f"lowest of {entry['of']} GPUs, the highest {number(entry['most'])}" if "of" in entry else "",
                "" if entry.get("verified", True) else "not verified",
            ),
        )
    )


def bound(name: str) -> str:
    """Return the name of the peak that bounds a number: `bf16_best_tflops` has that of `bf16_tflops`."""
    plain = re.sub(rf"_({'|'.join(WAYS)})_(?=[a-z]+$)", "_", name)
    if plain.startswith("d2h_"):
        return plain.replace("d2h_", "h2d_")
    return "memory_gb_s" if plain in MEMORY_NUMBERS else plain


def explained(wanted: str | None, gpu: str) -> str:
    """Return what is known of a number of a model, and how a value stands to it; of all numbers without one.

    Raises UsageError.
    """
    _, row = model_named(gpu)
    known, sources = list(references(row)), read_yaml(TABLE)["sources"]
    if wanted is None:
        lines = [row["name"]]
        for name in dict.fromkeys(one.name for one in known):
            lines += [label(name), *_lines(name, None, [one for one in known if one.name == name])]
            lines += _of_many(row, name)
        return _with_sources(lines if known else [f"No number is known of {row['name']}."], sources)
    given = NUMBER.fullmatch(wanted)
    names = {one.name for other in models().values() for one in references(other)}
    # A GPU alone is held to the floor of many at once.
    name = given["name"].replace("_alone_", "_") if given else ""
    if not given or not names & {name, bound(name)}:
        close = difflib.get_close_matches(wanted.partition("=")[0], names, n=1, cutoff=0.85)
        hint = f"did you mean {close[0]}=VALUE?" if close else f"expected one of {', '.join(sorted(names))}"
        raise UsageError(f"{wanted}: expected a number, such as bf16_tflops=640; {hint}")
    value = float(given["value"]) if given["value"] else None
    said = "" if value is None else f": {number(value)} {unit(name)}"
    lines = [f"{label(given['name'])} of {row['name']}{said}"]
    mine = [one for one in known if one.name == name or (one.kind == "peak" and one.name == bound(name))]
    lines += _lines(name, value, mine)
    lines += _of_many(row, name)
    lines += _per_nic(name)
    if not mine:
        lines.append("  No floor, no measurement and no peak of it is known: compare GPUs of this model.")
    elif value is not None:
        lines.append(_judged(value, mine))
    return _with_sources(lines, sources)


def _lines(name: str, value: float | None, known: list[Reference]) -> Iterator[str]:
    for one in known:
        share = " " if value is None else f"  {value / one.value:4.0%} of"
        how = f" ({one.how})" if one.how else ""
        yield f"{share} {number(one.value)} {unit(name)}, {KINDS[one.kind]}{how}: {one.source}"


def _of_many(row: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield how far GPUs of the model were seen to differ, where somebody measured many."""
    if seen := row.get("spread", {}).get(name):
        yield (
            f"  {seen['gpus']} GPUs of this model, sound or not, differed by up to {seen['percent']:g} %: "
            f"{seen['source']}"
        )


def _per_nic(name: str) -> Iterator[str]:
    """Yield what is to be expected between nodes, whatever the model: what NCCL gets through each NIC."""
    if not name.endswith("busbw_gb_s"):
        return
    nics: Mapping[Any, Any] = read_yaml(TABLE)["nics"]
    if name.startswith("all_to_all"):
        yield f"  between nodes no more than one NIC's: {nics['all_to_all']['source']}"
    for speed in (speed for speed in nics if isinstance(speed, int)):
        entry = nics[speed]
        most = f" to {number(entry['most'])}" if "most" in entry else ""
        rate = f"{number(entry['value'])}{most} GB/s"
        yield f"  between nodes {rate} for each NIC of {speed} Gb/s: {entry['source']}"


def _judged(value: float, known: list[Reference]) -> str:
    """In a sentence: what the value means."""
    known = [one for one in known if one.verified]
    collective = any(one.name.endswith("busbw_gb_s") for one in known)
    if any(value > 1.02 * one.value for one in known if one.kind == "peak"):
        return "More than the chip can do: the time, or the count of operations, is wrong."
    floors = [one for one in known if one.kind == "floor"]
    healthy = next((one for one in known if one.of), None)
    if len(floors) != 1 or collective:
        if healthy is None:
            return "No floor for any conditions: compare those above, and this GPU with others of its kind."
        low = value < (1 - USUAL_SPREAD) * healthy.value
        side = f"more than {USUAL_SPREAD:.0%} below" if low else "about as much as"
        return f"No floor is known. It is {side} the lowest of {healthy.of} healthy GPUs."
    if value < floors[0].value:
        return "Too low for a healthy GPU that is alone: temper explain below-floor says what to look at."
    return f"Right for a healthy GPU. How far GPUs of one node differ is up to {USUAL_SPREAD:.0%}."


def _with_sources(lines: list[str], sources: Mapping[str, Any]) -> str:
    words = {line.rpartition(": ")[2] for line in lines}
    cited = [f"  {key}: {sources[key]['title']} ({sources[key]['date']})" for key in sources if key in words]
    return "\n".join([*lines, *(["Sources:", *cited] if cited else [])]) + "\n"
