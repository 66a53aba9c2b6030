"""The plans of a fleet in one document, and the nodes that should be alike and are not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from planning.model import Facts

SCHEMA_VERSION = 1
NODES_SHOWN = 4
VALUES_SHOWN = 4
DIFFERENCES_SHOWN = 6
# A password in an address has no place in a file that people pass on.
CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
# What is compared among nodes with the same GPUs, and among which of them: a node with another system has
# other packages for that reason, which is said once.
ASPECTS: Mapping[str, tuple[str, ...]] = {
    "system": (),
    "source": (),
    "stack": ("system", "source"),
    "driver": ("system", "source", "stack"),
    "modules": ("system", "source", "stack"),
    "fabric": (),
    "signed modules": (),
    "environment": (),
    "packages": ("system", "source", "stack", "modules", "fabric"),
    "services": ("fabric",),
    "in place": (),
}


def fleet_plan(plans: Mapping[str, Facts | None]) -> dict[str, Any]:
    """All plans, refused nodes with their reasons, and differences within cohorts; without secrets.

    `plans` has each node's plan by its name, None for a node that has none.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "nodes": {
            name: {key: value for key, value in plan.items() if key != "text"}
            if plan
            else {"problems": ["no plan was made; the error stands further up in this run"]}
            for name, plan in sorted(plans.items())
        },
        "cohorts": cohorts(
            {name: plan for name, plan in plans.items() if plan and plan.get("gpus") is not None}
        ),
    }
    cleaned: dict[str, Any] = without_secrets(document)
    return cleaned


def without_secrets(value: Any) -> Any:
    """The same, as plain JSON values, with passwords in addresses struck out."""
    if isinstance(value, Mapping):
        return {str(key): without_secrets(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(child) for child in value]
    if isinstance(value, str):
        return CREDENTIALS.sub("***@", str(value))
    return value


def cohorts(plans: Mapping[str, Facts]) -> list[dict[str, Any]]:
    """Nodes with the same GPUs and architecture, and what differs among their plans."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, plan in sorted(plans.items()):
        groups[cohort_name(plan)].append(name)
    return [
        {"name": cohort, "nodes": names, "differences": list(differences(names, plans))}
        for cohort, names in sorted(groups.items())
    ]


def cohort_name(plan: Facts) -> str:
    """GPUs with their number, and the architecture."""
    gpus = [f"{gpu['count']}x {gpu['name']}" for gpu in plan["gpus"]]
    unknown: Counter[str] = Counter(plan["unknown_gpus"])
    gpus += [f"{count}x 10de:{device_id}" for device_id, count in sorted(unknown.items())]
    return f"{' + '.join(gpus) or 'no GPU'}, {plan['architecture']}"


def aspects(plan: Facts) -> dict[str, Any]:
    """What of a plan is compared; a value is a text, or a mapping that is compared by its keys."""
    driver = plan["driver"] or {}
    return {
        "system": plan["system"] or "unknown",
        "source": plan["source"],
        "stack": plan["stack"],
        "driver": driver.get("version", "none"),
        "modules": driver.get("modules", "none"),
        "fabric": plan["fabric"],
        "signed modules": "yes" if plan["mok"] else "no",
        "environment": {
            "OMP_NUM_THREADS": str(plan["environment"]["omp_num_threads"]),
            **plan["environment"]["nccl"],
        },
        "packages": plan["packages"],
        "services": ", ".join(plan["services"]),
        "in place": "yes" if plan["settled"] else "no",
    }


def differences(names: Sequence[str], plans: Mapping[str, Facts]) -> Iterator[dict[str, Any]]:
    """What differs among the plans of these nodes: the aspect, and each value with its nodes, most first."""
    seen = {name: aspects(plans[name]) for name in names}
    for aspect, given in ASPECTS.items():
        comparable: dict[str, list[str]] = defaultdict(list)
        for name in names:
            comparable[json.dumps([seen[name][key] for key in given])].append(name)
        for group in comparable.values():
            values = [seen[name][aspect] for name in group]
            if isinstance(values[0], Mapping):
                keys: set[str] = set().union(*values)
                for key in sorted(keys):
                    chosen = {name: seen[name][aspect].get(key, "absent") for name in group}
                    yield from difference(f"{aspect}: {key}", chosen)
            else:
                yield from difference(aspect, dict(zip(group, values, strict=True)))


def difference(what: str, values: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The values of an aspect with their nodes, if there is more than one value."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        by_value[value or "any version"].append(name)
    if len(by_value) > 1:
        ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
        yield {"what": what, "values": [{"value": value, "nodes": nodes} for value, nodes in ordered]}


def fleet_text(document: Facts) -> str:
    """The fleet in a few lines: how many nodes are refused, and which differ from their like, in what."""
    refused = [name for name, plan in document["nodes"].items() if plan["problems"]]
    number = len(document["nodes"])
    lines = [f"{number} {'node' if number == 1 else 'nodes'} planned, {len(refused)} refused"]
    lines[0] += f": {some(refused)}" if refused else ""
    for cohort in document["cohorts"]:
        found = cohort["differences"]
        if found:
            lines.append(f"{cohort['name']}: {len(cohort['nodes'])} nodes with the same GPUs differ in")
            lines += [f"  {difference_text(entry)}" for entry in found[:DIFFERENCES_SHOWN]]
        if len(found) > DIFFERENCES_SHOWN:
            lines.append(f"  and {len(found) - DIFFERENCES_SHOWN} more, see the file")
    return "\n".join(lines)


def difference_text(entry: Facts) -> str:
    """The value that most nodes have by its number, the others by name."""
    most, *others = entry["values"]
    named = "; ".join(f"{value['value']} on {some(value['nodes'])}" for value in others[:VALUES_SHOWN])
    rest = len(others) - VALUES_SHOWN
    more = f" and {rest} more values" if rest > 0 else ""
    return f"{entry['what']}: {most['value']} on {len(most['nodes'])}, {named}{more}"


def some(names: Sequence[str]) -> str:
    """Some of the nodes, and how many more there are."""
    rest = len(names) - NODES_SHOWN
    return ", ".join(names[:NODES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
