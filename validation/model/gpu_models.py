"""The table of GPU models (data/gpu_models.yml) where no Ansible brings the part that concerns a node.

The one-file build carries it as JSON, because a node's Python seldom has YAML; a checkout reads the file.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from validation.model.contract import encode
from validation.model.expectations import References

CARRIED = "gpu_models.json"
#: Drivers with which a GPU or an NVSwitch is the node's own: NVIDIA's, the kernel's, those for a monitor, or
#: none. Any other has it for somebody else, mostly for a virtual machine (vfio-pci, pciback, pci-stub).
OWN_DRIVERS = frozenset(
    (
        *("", "nvidia", "nvidia-nvswitch", "nouveau", "nova-core", "nova_core", "NovaCore"),
        *("nvidiafb", "rivafb", "simpledrm", "simple-framebuffer", "efifb", "vesafb"),
    )
)
TABLE = Path(__file__).parents[2] / "data/gpu_models.yml"


def table(path: Path = TABLE) -> dict[str, Any] | None:
    """Return what the payload needs of the table, as JSON says it.

    None where it or a reader of YAML is missing.
    """
    try:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes a tenth of the time
        content = yaml.load(path.read_text(), Loader=loader)  # noqa: S506 - both are safe
    except (ImportError, OSError):
        return None
    found: dict[str, Any] = encode(references(content))
    return found


def references(content: Mapping[str, Any], models: Iterable[str] | None = None) -> References:
    """Return what a verdict rests on, from the content of data/gpu_models.yml: of these models, or of all."""
    keys = content["models"] if models is None else list(models)
    names = content["architectures"]
    if models is not None:
        names = {content["models"][key]["architecture"] for key in keys}
    return References(
        models={key: content["models"][key] for key in keys},
        pcie_x16={str(generation): row for generation, row in content["pcie_x16"].items()},
        architectures={name: {"matmul": content["architectures"][name]["matmul"]} for name in sorted(names)},
    )


def available() -> References:
    """Return the references that this copy of the payload carries or finds.

    Empty ones where there are none.
    """
    try:
        carried = pkgutil.get_data("validation", CARRIED)
    except OSError:
        carried = None
    content = json.loads(carried) if carried else table()
    return References(**content) if content else References()
