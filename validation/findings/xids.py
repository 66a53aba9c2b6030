"""What NVIDIA's catalogue of Xid errors says that decides what is found: made from data/xids.yml."""

from __future__ import annotations

import json
import pkgutil
from dataclasses import dataclass, field
from functools import lru_cache

from validation.model.contract import decode

CARRIED = "xids.json"


@dataclass(frozen=True)
class Nvlink5Unit:
    """Which error status of a unit of NVLink 5 asks for a reset, for nothing, or a reset where promoted."""

    reset: tuple[int, ...] = ()
    nothing: tuple[int, ...] = ()
    promoted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Xids:
    """`silent` are those that the catalogue explains and that say nothing about a node."""

    silent: tuple[int, ...] = ()
    nvlink5: dict[str, Nvlink5Unit] = field(default_factory=dict)


@lru_cache(maxsize=1)
def xids() -> Xids:
    """Return the table."""
    return decode(Xids, json.loads(pkgutil.get_data(__package__, CARRIED) or b""))
