"""The products that gpu_settings_mig names, beside those that a node has."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from temper.plan.facts import GPU_CLASSES, PciDevice
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import Tables

EVERY = "all"
#: How alike a misspelt name is to the right one, by difflib's measure.
ALIKE = 0.8


def products(layouts: Mapping[str, object]) -> list[str]:
    """Return those of the keys that name a product."""
    return [key for key in layouts if not key.isdigit() and key != EVERY]


def misspelt(layouts: Mapping[str, object], pci: Iterable[PciDevice], tables: Tables) -> list[Refusal]:
    """Return a refusal for each name that is nearly that of a GPU of this node, as its driver calls it.

    One inventory may name products of several kinds of nodes, so a name that is no GPU's here is no fault by
    itself; nor is one that the tables know of another GPU, however alike, or one with other numbers: products
    that no table knows differ in these (A100 and A800, 40GB and 64GB).
    """
    here = Counter(device.name for device in pci if device.class_id in GPU_CLASSES and device.name)
    others = {name for model in tables.models.values() for name in (model.name, *model.product_names)}
    spelled = {name.lower(): name for name in here}
    problems = []
    for key in products(layouts):
        close = difflib.get_close_matches(key.lower(), spelled, n=1, cutoff=ALIKE)
        if key in here or key in others or not close or numbers(close[0]) != numbers(key):
            continue
        found = [f"{count}x {name}" for name, count in sorted(here.items())]
        problems.append(refusal("mig-product-misspelt", product=key, found=found, meant=spelled[close[0]]))
    return problems


def numbers(name: str) -> list[str]:
    """Return the numbers in a product's name."""
    return re.findall(r"\d+", name)


def matches(layouts: Mapping[str, object], pci: Iterable[PciDevice], tables: Tables) -> dict[str, bool]:
    """Return each product that is named -> whether the node has it, or a GPU of which nobody can tell."""
    names: set[str] = set()
    unsure = False
    for device in pci:
        if device.class_id not in GPU_CLASSES:
            continue
        model = tables.models.get(tables.models_by_id.get(device.device_id, ""))
        known = (device.name,) if device.name else model.product_names if model else ()
        unsure = unsure or not known
        names.update(known)
    return {key: unsure or key in names for key in products(layouts)}
