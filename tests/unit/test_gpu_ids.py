"""data/gpu_ids.yml has every GPU since Maxwell once, beside those of data/gpu_models.yml."""

import re
from collections import Counter, defaultdict
from typing import Any

from temper.plan.hardware import IDS_OF_A_CHIP
from temper.plan.tables import load_models
from tests.unit.each import each
from tests.unit.tables import ROOT, tables

DATA = tables()
CHIPS: dict[str, dict[str, Any]] = DATA["gpu_chips"]
MEASURED = {device_id: model for model in DATA["models"].values() for device_id in model["pci_ids"]}
MODELS: dict[str, dict[str, Any]] = load_models(ROOT / "data")["models"]
ARCHITECTURES = {
    "gm": "maxwell",
    "gp": "pascal",
    "gv": "volta",
    "tu": "turing",
    "ga": "ampere",
    "ad": "ada",
    "gh": "hopper",
    "gb": "blackwell",
    "gr": "rubin",
}
# Counted without these tables: compute capability, and how many ids of a chip pci.ids has (version
# 2026.08.22: Maxwell, Pascal, Volta) or the list of NVIDIA's open kernel modules (595.45.04: since Turing).
LISTED = {
    "gm107": ("5.0", 27),
    "gm108": ("5.0", 16),
    "gm200": ("5.2", 5),
    "gm204": ("5.2", 30),
    "gm206": ("5.2", 9),
    "gp100": ("6.0", 13),
    "gp102": ("6.1", 11),
    "gp104": ("6.1", 25),
    "gp106": ("6.1", 21),
    "gp107": ("6.1", 27),
    "gp108": ("6.1", 11),
    "gv100": ("7.0", 21),
    "tu102": ("7.5", 7),
    "tu104": ("7.5", 19),
    "tu106": ("7.5", 20),
    "tu116": ("7.5", 9),
    "tu117": ("7.5", 26),
    "ga100": ("8.0", 12),
    "ga102": ("8.6", 16),
    "ga103": ("8.6", 4),
    "ga104": ("8.6", 24),
    "ga106": ("8.6", 12),
    "ga107": ("8.6", 29),
    "ad102": ("8.9", 9),
    "ad103": ("8.9", 8),
    "ad104": ("8.9", 14),
    "ad106": ("8.9", 7),
    "ad107": ("8.9", 13),
    "gh100": ("9.0", 14),
    "gb100": ("10.0", 2),
    "gb102": ("10.0", 1),
    "gb110": ("10.3", 2),
    "gb202": ("12.0", 8),
    "gb203": ("12.0", 13),
    "gb205": ("12.0", 4),
    "gb206": ("12.0", 9),
    "gb207": ("12.0", 6),
    "gb20b": ("12.1", 1),
}


def block(device_id: str) -> int:
    return int(device_id, 16) // IDS_OF_A_CHIP


def unmeasured() -> list[tuple[str, str, str]]:
    """Chip, name and id of each GPU of the file."""
    return [
        (chip, name, device_id)
        for chip, row in CHIPS.items()
        for kind in ("gpus", "display")
        for name, ids in row.get(kind, {}).items()
        for device_id in ids.split()
    ]


def chips_by_id() -> dict[str, str]:
    """The chip of every id. What is measured stands in another file, but among the ids of its chip."""
    known = {device_id: chip for chip, _, device_id in unmeasured()}
    blocks = {block(device_id): chip for device_id, chip in known.items()}
    return known | {device_id: blocks[block(device_id)] for device_id in MEASURED}


def test_an_id_stands_once_in_both_files() -> None:
    ids = [device_id for _, _, device_id in unmeasured()]
    ids += [device_id for model in DATA["models"].values() for device_id in model["pci_ids"]]
    ids += " ".join(DATA["gpu_integrated"].values()).split()
    assert [device_id for device_id, count in Counter(ids).items() if count > 1] == []
    assert [device_id for device_id in ids if not re.fullmatch("[0-9a-f]{4}", device_id)] == []


def test_a_chip_has_a_row_of_the_expected_form() -> None:
    for chip, row in CHIPS.items():
        assert row["architecture"] == ARCHITECTURES[chip[:2]], chip
        assert re.fullmatch(r"\d+\.\d", row["compute_capability"]), chip
        assert row.keys() - {"gpus", "display"} == {"architecture", "compute_capability"}, chip
        assert row.keys() & {"gpus", "display"}, chip


def test_a_name_is_written_once_for_a_chip() -> None:
    """A YAML reader would take the last of two equal names without a word."""
    chip, seen = "", set()
    for line in (ROOT / "data" / "gpu_ids.yml").read_text(encoding="utf-8").splitlines():
        if found := re.match(r" {2}(\w+):$", line):
            chip = found[1]
        elif found := re.match(r" {6}(.+): \"", line):
            assert (chip, found[1]) not in seen
            seen.add((chip, found[1]))
    assert len(seen) == len({(chip, name) for chip, name, _ in unmeasured()})


@each(*LISTED)
def test_every_listed_gpu_of_a_chip_is_there(chip: str) -> None:
    capability, count = LISTED[chip]
    ids = [device_id for device_id, other in chips_by_id().items() if other == chip]
    assert len(ids) >= count
    assert CHIPS[chip]["compute_capability"] == capability
    assert {MEASURED[found]["compute_capability"] for found in ids if found in MEASURED} <= {capability}
    assert {MEASURED[found]["architecture"] for found in ids if found in MEASURED} <= {
        ARCHITECTURES[chip[:2]]
    }


def test_since_turing_a_chip_has_its_ids_in_a_row() -> None:
    chips = defaultdict(set)
    for chip, _, device_id in unmeasured():
        if device_id >= "1e00":
            chips[block(device_id)].add(chip)
    assert [found for found in chips.values() if len(found) > 1] == []


@each(
    ("1340", "GeForce 830M", "5.0"),
    ("17fd", "Tesla M40", "5.2"),
    ("15f0", "Quadro GP100", "6.0"),
    ("1b06", "GeForce GTX 1080 Ti", "6.1"),
    ("1df0", "Tesla PG500-216", "7.0"),
    ("1eb4", "T4G", "7.5"),
    ("1fb0", "NVIDIA DGX Display / NVIDIA T1000", "7.5"),
    ("20b8", "A100X", "8.0"),
    ("25a9", "NVIDIA GeForce RTX 2050", "8.6"),
    ("2704", "NVIDIA GeForce RTX 4080", "8.9"),
    ("2337", "H100 SXM5 64GB", "9.0"),
    ("2920", "B100", "10.0"),
    ("31a1", "GB300 MaxQ", "10.3"),
    ("3021", "GR100", "10.7"),
    ("2d04", "NVIDIA GeForce RTX 5060 Ti", "12.0"),
    ("2e12", "NVIDIA GB10", "12.1"),
)
def test_an_id_has_its_name_and_capability(device_id: str, name: str, capability: str) -> None:
    (model,) = [model for model in MODELS.values() if device_id in model["pci_ids"]]
    assert (model["name"], model["compute_capability"]) == (name, capability)


def test_no_gpu_of_a_data_center_is_for_a_monitor() -> None:
    display = {name for row in CHIPS.values() for name in row.get("display", {})}
    assert [name for name in display if re.search(r"Tesla|GRID|GeForce RTX|^(NVIDIA )?[ALHB]\d", name)] == []
    assert {"NVIDIA DGX Display / NVIDIA T1000", "Quadro P400", "NVIDIA RTX A400", "NVS 810"} <= display
