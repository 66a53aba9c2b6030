"""Which shapes are multiplied on a GPU: those of its architecture, from data/gpu_models.yml.

One fixed shape for each number format is measured for long, the same on all GPUs of an architecture, and the
one that sustained values are published for, where there are any. The `best` shape is the one that a search
over many found to be the fastest: a model's own where its table entry has a value measured with it, else its
architecture's. Which shape is the fastest on this GPU, with this cuBLAS, a short search finds (`candidates`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from validation.model.expectations import References


class MatmulShape(NamedTuple):
    """C (m x n) = A (m x k) B (k x n)."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """Floating point operations of one product: a multiplication and an addition for each of m n k."""
        return 2.0 * self.m * self.n * self.k

    @property
    def needed_bytes(self) -> int:
        """Memory to make it in: random numbers come in fp32, whatever they become."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")
#: For a GPU that no table knows: what gpu-fryer, gpu-burn and DCGM multiply on every GPU.
DEFAULT = MatmulShape(8192, 8192, 8192)
#: The entry for all number formats that have none of their own.
ANY = "any"
#: What a search tries: so many tiles of a product for each SM, so that none is idle at the end, and depths.
#: Most of the fastest kernels make a tile of this size at a time.
TILE, TILES_OF_AN_SM, DEPTHS = (128, 256), (1, 2, 4), (4096, 8192, 16384)
#: Of a GPU of which the table does not say how many SMs it has.
USUAL_SMS = 128


def sustained(references: References, pci_id: str, dtype: str) -> MatmulShape:
    """Return the shape of the long measurement in this number format."""
    entries = _of_architecture(references, pci_id).get("sustained", {})
    entry = entries.get(dtype) or entries.get(ANY)
    return MatmulShape(*entry["shape"]) if entry else DEFAULT


def best(references: References, pci_id: str) -> dict[str, MatmulShape]:
    """Return the fastest published shape by number format; empty where nobody has published one."""
    entries: dict[str, Any] = dict(_of_architecture(references, pci_id).get("best", {}))
    measured = (references.model_of(pci_id) or {}).get("measured", {})
    for dtype in FORMATS:
        own = measured.get(f"{dtype}_best_tflops", {})
        if "shape" in own:
            entries[dtype] = own
    return {dtype: MatmulShape(*entries[dtype]["shape"]) for dtype in FORMATS if dtype in entries}


def candidates(references: References, pci_id: str, dtype: str) -> list[MatmulShape]:
    """Return a dozen shapes, published ones and whole waves, to find the fastest on this GPU."""
    published = best(references, pci_id).get(dtype)
    tried = [published] if published else []
    sms = (references.model_of(pci_id) or {}).get("sm_count", {}).get("value", USUAL_SMS)
    return list(dict.fromkeys((*tried, sustained(references, pci_id, dtype), *_whole_waves(sms))))


def _whole_waves(sms: int) -> Iterator[MatmulShape]:
    """Yield shapes of about so many tiles, or of a multiple; wide ones, but none much wider than high."""
    for tiles in (sms * each for each in TILES_OF_AN_SM):
        square = math.isqrt(tiles)
        high = max(range(max(1, square // 2), square + 1), key=lambda rows: (rows * (tiles // rows), rows))
        for depth in DEPTHS:
            yield MatmulShape(TILE[0] * high, TILE[1] * (tiles // high), depth)


def origin(references: References, pci_id: str) -> str:
    """Return where the shapes come from, for the result."""
    if not _of_architecture(references, pci_id):
        return "the default: the table of GPU models has no architecture for this GPU"
    return f"architecture {(references.model_of(pci_id) or {})['architecture']}"


def _of_architecture(references: References, pci_id: str) -> dict[str, Any]:
    name = (references.model_of(pci_id) or {}).get("architecture", "")
    return dict(references.architectures.get(name, {}).get("matmul", {}))
