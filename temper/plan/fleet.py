"""The plans of a fleet in one document, and the nodes that should be alike and are not."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import indent
from typing import Any

from temper.base.nodes import number_of
from temper.plan.convert import plain
from temper.plan.identity import twins
from temper.plan.model import FleetNetworks
from temper.plan.node_plan import NodePlan, refused
from temper.plan.refusals import refusal
from validation.model.grouping import by_key
from validation.model.printable import first_of

SCHEMA_VERSION = 2
NODES_SHOWN = 4
VALUES_SHOWN = 4
DIFFERENCES_SHOWN = 6
# A password in an address has no place in a file that people pass on.
CREDENTIALS = re.compile(r"(?<=://)[^/\s]+@")
# What is compared among nodes with the same GPUs, and among which of them: a node with another system has
# other packages for that reason, which is said once.
ASPECTS: dict[str, tuple[str, ...]] = {
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


def without_secrets(document: Mapping[str, object]) -> dict[str, object]:
    """Return the same, as plain JSON values, with passwords in addresses struck out."""
    return {str(key): _clean(child) for key, child in document.items()}


def _clean(value: object) -> object:
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [_clean(child) for child in value]
    return CREDENTIALS.sub("***@", str(value)) if isinstance(value, str) else value


def digest(text: str) -> str:
    """Return a short name for a text that is its own."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Shared:
    """A value and the nodes that have it."""

    value: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """What differs among nodes, and its values, the most frequent one first."""

    what: str
    values: tuple[Shared, ...]

    def __str__(self) -> str:
        """Return the value that most nodes have by its number, the others by name."""
        most, *others = self.values
        named = "; ".join(
            f"{other.value} on {first_of(other.nodes, NODES_SHOWN)}" for other in others[:VALUES_SHOWN]
        )
        rest = len(others) - VALUES_SHOWN
        more = f" and {rest} more values" if rest > 0 else ""
        return f"{self.what}: {most.value} on {len(most.nodes)}, {named}{more}"


@dataclass(frozen=True)
class Cohort:
    """Nodes with the same GPUs and architecture, and what differs among their plans."""

    name: str
    nodes: tuple[str, ...]
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class FleetPlan:
    """The plans of all nodes: what was planned, and the documents with refused and silent nodes too."""

    documents: dict[str, dict[str, Any]]
    plans: dict[str, NodePlan]
    #: What roles set, and what hardening waives, by digests that the nodes' documents name instead: most
    #: nodes have the same.
    settings: dict[str, dict[str, Any]]
    waived: dict[str, list[dict[str, Any]]]

    @classmethod
    def from_dict(cls, facts: Mapping[str, Mapping[str, Any] | None]) -> FleetPlan:
        """From each node's fact `preflight_plan` by its name, None for a node that has none."""
        silent: dict[str, Any] = refused({}, refusal("plan-missing"))
        documents: dict[str, dict[str, Any]] = {
            name: {key: value for key, value in (fact or silent).items() if key != "text"}
            for name, fact in sorted(facts.items())
        }
        read = {name: fact for name, fact in documents.items() if fact.get("architecture")}
        plans = {name: NodePlan.from_fact(fact) for name, fact in read.items()}
        settings: dict[str, dict[str, Any]] = {}
        waived: dict[str, list[dict[str, Any]]] = {}
        for fact in documents.values():
            parts: dict[str, str] = fact.get("roles", {})
            settings |= {digest(text): json.loads(text) for text in parts.values()}
            fact["roles"] = {role: digest(text) for role, text in parts.items()}
            if controls := fact.get("waived"):
                fact["waived"] = digest(json.dumps(controls))
                waived[fact["waived"]] = controls
        return cls(documents, plans, settings, waived)

    def part(self) -> dict[str, Any]:
        """Return what `merged` takes, secrets included.

        For the controller of several runs, not for people.
        """
        return {"nodes": self.documents, "settings": self.settings, "waived": self.waived}

    @classmethod
    def merged(cls, parts: Iterable[Mapping[str, Any]]) -> FleetPlan:
        """Return the fleet whose parts several runs have planned; two names of one machine are refused."""
        documents: dict[str, dict[str, Any]] = {}
        settings: dict[str, dict[str, Any]] = {}
        waived: dict[str, list[dict[str, Any]]] = {}
        for part in parts:
            documents |= part["nodes"]
            settings |= part["settings"]
            waived |= part["waived"]
        # What roles set is shared, and nothing that is compared.
        bare: dict[str, Any] = {"roles": {}, "waived": []}
        plans = {
            name: NodePlan.from_fact(fact | bare)
            for name, fact in sorted(documents.items())
            if fact.get("architecture")
        }
        for name, same in twins(plans).refused.items():
            # A slice that has both names has said it.
            if same not in plans[name].refusals:
                plans[name] = replace(plans[name], refusals=(*plans[name].refusals, same))
                documents[name] = refused(documents[name], same)
        return cls(dict(sorted(documents.items())), plans, settings, waived)

    @cached_property
    def cohorts(self) -> tuple[Cohort, ...]:
        """All cohorts by their names."""
        groups = by_key((cohort_name(plan), name) for name, plan in self.plans.items())
        return tuple(
            Cohort(cohort, tuple(names), tuple(differences({name: self.plans[name] for name in names})))
            for cohort, names in sorted(groups.items())
        )

    def as_dict(self) -> dict[str, Any]:
        """Return all plans, refused nodes with their reasons, and differences within cohorts.

        Without secrets.
        """
        shared = {"settings": self.settings, "waived": self.waived}
        document = {"schema_version": SCHEMA_VERSION, "nodes": self.documents, **shared}
        return without_secrets(document | {"cohorts": plain(self.cohorts)})

    def text(self) -> str:
        """Return a few lines: how many nodes have a plan, and what differs among those with the same GPUs."""
        refused = [name for name, document in self.documents.items() if document["problems"]]
        total = len(self.documents)
        lines = [f"{total - len(refused)} of {number_of(total, 'node')} planned"]
        # Refused or silent: the run says of each which.
        lines[0] += f", {len(refused)} not: {first_of(refused, NODES_SHOWN)}" if refused else ""
        for cohort in self.cohorts:
            found = cohort.differences
            if found:
                lines.append(
                    f"{cohort.name}: {number_of(len(cohort.nodes), 'node')} with the same GPUs differ in"
                )
                lines += [f"  {difference}" for difference in found[:DIFFERENCES_SHOWN]]
            if len(found) > DIFFERENCES_SHOWN:
                lines.append(f"  and {len(found) - DIFFERENCES_SHOWN} more, see the file")
        warnings = (
            *twins(self.plans).warnings,
            *network_warnings(self.plans),
            *mig_warnings(self.plans.values()),
        )
        lines += [f"warning: {warning}" for warning in warnings]
        return CREDENTIALS.sub("***@", "\n".join(lines))


def grouped(texts: Mapping[str, str], parts: Mapping[str, Mapping[str, str]]) -> str:
    """Return what is said of each node, by its name; once for all nodes of which the same is said.

    `parts` is what each role sets on each node: below a text stands which of its nodes get something else.
    """
    groups = by_key((text, name) for name, text in texts.items())
    said = {
        text: [text, *unlike({name: parts.get(name, {}) for name in names})] for text, names in groups.items()
    }
    return "\n".join(
        f"{first_of(names, NODES_SHOWN)}:\n{indent(chr(10).join(said[text]), '  ')}"
        for text, names in groups.items()
        if text
    )


def unlike(parts: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield a line for the nodes that get something else of the same roles than most of these nodes."""
    differing: dict[str, list[str]] = defaultdict(list)
    for role in sorted(set().union(*parts.values())):
        texts = {name: own.get(role, "") for name, own in parts.items()}
        ((most, _),) = Counter(texts.values()).most_common(1)
        if others := [name for name, text in texts.items() if text != most]:
            bare = {name: without_name(text, name) for name, text in texts.items()}
            ((most, _),) = Counter(bare.values()).most_common(1)
            for name in others:
                if bare[name] != most:
                    differing[name].append(role)
    for unlike_in, names in by_key((tuple(roles), name) for name, roles in differing.items()).items():
        yield f"other settings of {', '.join(unlike_in)} on {first_of(names, NODES_SHOWN)}"


def without_name(text: str, name: str) -> str:
    """Return a text with the node's own name, as a whole word, replaced by one that all nodes have."""
    name = re.escape(name)
    # What precedes the name is looked at last, so that the search goes by the name's characters.
    return re.sub(rf"{name}(?<![\w.-]{name})(?![\w.-])", "NODE", text)


def cohort_name(plan: NodePlan) -> str:
    """GPUs with their number, and the architecture."""
    gpus = [f"{gpu.count}x {gpu.name}" for gpu in plan.gpus]
    gpus += [f"{count}x 10de:{device_id}" for device_id, count in sorted(Counter(plan.unknown_gpus).items())]
    return f"{' + '.join(gpus) or 'no GPU'}, {plan.architecture}"


def aspects(plan: NodePlan) -> dict[str, dict[str, str]]:
    """Return what of a plan is compared, by its parts.

    An aspect that is one value has one part without a name.
    """
    whole = {
        "system": plan.system or "unknown",
        "source": plan.source or "none",
        "stack": plan.stack,
        "driver": plan.driver.version if plan.driver else "none",
        "modules": plan.driver.modules if plan.driver else "none",
        "fabric": plan.fabric,
        "signed modules": "yes" if plan.mok else "no",
        "services": ", ".join(plan.services),
        "in place": "yes" if plan.settled else "no",
    }
    environment = {"OMP_NUM_THREADS": str(plan.environment.omp_num_threads)} | plan.environment.nccl
    if (networks := plan.environment.networks) and networks.used:
        # Names of interfaces may differ from node to node, where their network is the same.
        environment["NCCL_SOCKET_IFNAME"] = f"in {networks.used}"
    return {aspect: {"": value} for aspect, value in whole.items()} | {
        "environment": environment,
        "packages": plan.packages,
    }


def differences(plans: dict[str, NodePlan]) -> Iterator[Difference]:
    """Yield what differs among the plans of nodes that should be alike."""
    seen = {name: aspects(plan) for name, plan in plans.items()}
    for aspect, given in ASPECTS.items():
        comparable = by_key((tuple(str(found[key]) for key in given), name) for name, found in seen.items())
        for names in comparable.values():
            for part in sorted(set().union(*(seen[name][aspect] for name in names))):
                by_value = by_key(
                    (seen[name][aspect].get(part, "absent") or "any version", name) for name in names
                )
                if len(by_value) > 1:
                    ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
                    values = tuple(Shared(value, tuple(holders)) for value, holders in ordered)
                    yield Difference(f"{aspect}: {part}" if part else aspect, values)


def network_warnings(plans: Mapping[str, NodePlan]) -> Iterator[str]:
    """Yield a sentence for nodes with the same fleet's networks whose NCCL would use different ones of them.

    It is no refusal, and no node's choice depends on another's: then it would on --limit and on slices, too.
    """
    fleets: dict[tuple[str, ...], dict[str, FleetNetworks]] = defaultdict(dict)
    for name, plan in plans.items():
        if (found := plan.environment.networks) and found.used and not plan.problems:
            fleets[found.wanted][name] = found
    for wanted, nodes in fleets.items():
        by_network = by_key((found.used, name) for name, found in nodes.items())
        if len(by_network) == 1:
            continue
        where = "; ".join(
            f"{used} on {first_of(names, NODES_SHOWN)}" for used, names in sorted(by_network.items())
        )
        common = [text for text in wanted if all(text in found.reached for found in nodes.values())]
        remedy = f"{common[0]} works on all of them" if common else "none of them works on all of these nodes"
        yield (
            "a job over these nodes would not start, because their NCCL uses different networks: "
            f"{where}; leave in compute_environment_fleet_networks what joins all nodes ({remedy}), or mend "
            "the links of the others"
        )


def mig_warnings(plans: Collection[NodePlan]) -> Iterator[str]:
    """Yield a sentence for each product of gpu_settings_mig that no node has.

    Of one node it may be another's.
    """
    for key in sorted({key for plan in plans for key in plan.mig_products}):
        asked = [plan for plan in plans if key in plan.mig_products]
        if not any(plan.mig_products[key] for plan in asked):
            here = ", ".join(sorted({gpu.name for plan in asked for gpu in plan.gpus})) or "none"
            yield (
                f"gpu_settings_mig names the product {key!r}, which no node of this run has (they have "
                f"{here}); correct it, unless it is that of other nodes"
            )
