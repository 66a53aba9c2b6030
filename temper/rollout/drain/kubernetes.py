"""Kubernetes, by kubectl: cordoned with our annotation, emptied by evictions, uncordoned only with it.

Mark and cordon are one patch, which names the version of the node that was read, so that nothing is
overwritten that somebody else has written meanwhile (the API answers 409). Evictions respect
PodDisruptionBudgets: one that forbids it answers 429, which kubectl repeats until its timeout; the budget is
then named from the API, because the answer does not name it. Pods of DaemonSets and mirror pods stay (kubectl
drain --help).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from temper.base.programs import Answer
from temper.rollout.drain.base import DrainError, Standing, checked, one_line, unknown
from temper.rollout.drain.programs import TIMEOUT_S, ask

#: Who has cordoned a node, and why.
ANNOTATION = "temper/rollout"
MIRROR = "kubernetes.io/config.mirror"
#: How often a patch is repeated because somebody else was faster.
CONFLICTS = 3
#: kubectl refuses these pods whatever the time: it says so, and names its option.
REFUSED = "cannot delete"


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise DrainError where an answer has another form than the API's."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DrainError(
            f"Expected nodes and pods as its API has them, found something else ({error!r}): look "
            "at `kubectl get nodes --output=json`."
        ) from error


class Kubernetes:
    """A cluster. `owner` is the roll-out, as it stands in the annotation of nodes."""

    def __init__(
        self,
        owner: str,
        *,
        kubectl: Sequence[str] = ("kubectl",),
        options: Iterable[str] = (),
    ) -> None:
        """`kubectl` is the program, with options such as --context=NAME; `options` are of its drain."""
        self._owner = one_line(owner)
        self._kubectl = tuple(kubectl)
        self.options = tuple(f"--{option}" for option in options)

    @understood()
    def look(self, node: str) -> Standing:
        """Return how the node stands now."""
        return self._standing(node, self._node(node))

    @understood()
    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """Return how all of them stand now, by one question."""
        found = {one["metadata"]["name"]: one for one in self._items("nodes")}
        return [
            self._standing(node, found[node]) if node in found else unknown(node, "Kubernetes")
            for node in nodes
        ]

    @understood()
    def drain(self, node: str, before: Standing, reason: str) -> None:
        """Cordon it with our mark, unless it is cordoned already."""
        if not before.in_service and not before.ours:
            return
        self._mark(node, reason, renew=False)

    @understood()
    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        """Evict its pods for so long; the pods that are left, and what forbids their eviction."""
        # 0 s would mean: without end.
        bound_s = max(1, int(timeout_s))
        options = ["--ignore-daemonsets", f"--timeout={bound_s}s", *self.options]
        answer = self._run("drain", checked(node), *options, timeout_s=bound_s + TIMEOUT_S)
        if answer.status and REFUSED in answer.complaint:
            raise DrainError(f"kubectl does not evict all pods of {node}: {answer.complaint}")
        left = self._pods(node)
        if not left:
            return ()
        if "(Forbidden)" in answer.complaint:
            raise DrainError(f"kubectl may not evict the pods of {node}: {answer.complaint}")
        budgets = self._items("poddisruptionbudgets", "--all-namespaces")
        return tuple(_why_left(pod, budgets) for pod in left)

    @understood()
    def give_back(self, node: str, before: Standing) -> str:
        """Uncordon what we cordoned."""
        for _ in range(CONFLICTS):
            now = self._node(node)
            if not now["spec"].get("unschedulable"):
                return f"{node} is in service."
            if not self._is_ours(now):
                return f"{node} stays cordoned, because it was not this roll-out that cordoned it."
            metadata = {"annotations": {ANNOTATION: None}}
            # Cordoned by somebody else before: only our mark goes.
            spec = {"unschedulable": None} if before.in_service or before.ours else {}
            if self._patch(node, now, metadata, spec):
                return f"{node} is back in service." if spec else f"{node} stays cordoned, as it was before."
        raise DrainError(f"{node} changed each time while it was to be uncordoned: who else works on it?")

    @understood()
    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Write another reason into our mark; cordon it where it is in service."""
        if before.in_service or before.ours:
            self._mark(node, reason, renew=True)

    def _mark(self, node: str, reason: str, *, renew: bool) -> None:
        """Cordon the node and say why, in one step; `renew` replaces our own reason."""
        mark = json.dumps({"owner": self._owner, "reason": one_line(reason)})
        for _ in range(CONFLICTS):
            now = self._node(node)
            if now["spec"].get("unschedulable"):
                if self._is_ours(now) and not renew:
                    return
                if not self._is_ours(now):
                    if renew:
                        return
                    raise DrainError(f"{node} was cordoned by somebody else meanwhile. It is left alone.")
            if self._patch(node, now, {"annotations": {ANNOTATION: mark}}, {"unschedulable": True}):
                return
        raise DrainError(f"{node} changed each time while it was to be cordoned: who else works on it?")

    def _standing(self, node: str, now: Mapping[str, Any]) -> Standing:
        out = bool(now["spec"].get("unschedulable"))
        ready = {one["type"]: one.get("status") for one in now.get("status", {}).get("conditions", [])}.get(
            "Ready"
        )
        obstacle = "" if ready == "True" else f"{node} is not Ready: its kubelet does not answer, or says so."
        ours = out and self._is_ours(now)
        reason = _mark_of(now).get("reason", "") if ours else "cordoned by somebody else" if out else ""
        state = f"{'Ready' if ready == 'True' else 'NotReady'}{',SchedulingDisabled' if out else ''}"
        return Standing(node, not out, ours, reason, state, obstacle)

    def _is_ours(self, now: Mapping[str, Any]) -> bool:
        return _mark_of(now).get("owner") == self._owner

    def _node(self, node: str) -> dict[str, Any]:
        found = self._json("get", "node", checked(node))
        if not isinstance(found.get("spec"), dict) or not isinstance(found.get("metadata"), dict):
            raise DrainError(
                f"kubectl says something of {node} that is no node: look at `kubectl get node {node}`."
            )
        return found

    def _pods(self, node: str) -> list[dict[str, Any]]:
        """Return the pods that a drain has to end."""
        found = self._items("pods", "--all-namespaces", f"--field-selector=spec.nodeName={checked(node)}")
        return [
            pod
            for pod in found
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
            and MIRROR not in (pod["metadata"].get("annotations") or {})
            and not any(
                owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or []
            )
        ]

    def _patch(
        self, node: str, now: Mapping[str, Any], metadata: dict[str, Any], spec: dict[str, Any]
    ) -> bool:
        """Change a node if it is still as it was read; whether it was."""
        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
        patch = {"metadata": {**metadata, **version}, "spec": spec}
        answer = self._run("patch", "node", checked(node), "--type=merge", f"--patch={json.dumps(patch)}")
        if answer.status and "Conflict" in answer.complaint:
            return False
        if answer.status:
            raise DrainError(f"kubectl could not change {node}: {answer.complaint}")
        return True

    def _items(self, *what: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._json("get", *what).get("items") or []
        return items

    def _json(self, *arguments: str) -> dict[str, Any]:
        answer = self._run(*arguments, "--output=json")
        if answer.status:
            raise DrainError(f"`kubectl {' '.join(arguments)}` failed: {answer.complaint}")
        try:
            found = json.loads(answer.output)
        except ValueError as error:
            raise DrainError(f"`kubectl {' '.join(arguments)}` gave no JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    def _run(self, *arguments: str, timeout_s: float = TIMEOUT_S) -> Answer:
        return ask([*self._kubectl, *arguments], timeout_s)


def _mark_of(node: Mapping[str, Any]) -> dict[str, str]:
    """Our annotation, whoever of us wrote it; empty where there is none, or none that we understand."""
    text = (node["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    try:
        mark = json.loads(text) if text else {}
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in mark.items()} if isinstance(mark, dict) else {}


def _why_left(pod: Mapping[str, Any], budgets: Iterable[Mapping[str, Any]]) -> str:
    """`ml/train-0 (PodDisruptionBudget ml/train allows no eviction: 2 pods are healthy, 2 are needed)`."""
    metadata = pod["metadata"]
    name = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
    for budget in budgets:
        about, status = budget["metadata"], budget.get("status") or {}
        if about.get("namespace") != metadata.get("namespace") or status.get("disruptionsAllowed", 0) > 0:
            continue
        if _selects(budget.get("spec", {}).get("selector"), metadata.get("labels") or {}):
            return (
                f"{name} (PodDisruptionBudget {about.get('namespace')}/{about['name']} allows no eviction: "
                f"{status.get('currentHealthy', 0)} pods are healthy, {status.get('desiredHealthy', 0)} are "
                f"needed)"
            )
    return f"{name} (is ending)" if metadata.get("deletionTimestamp") else name


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector of policy/v1 takes these labels.

    An empty one takes all, none takes none.
    """
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for rule in selector.get("matchExpressions") or []:
        key, values = rule["key"], rule.get("values") or []
        met = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not met.get(rule["operator"], False):
            return False
    return True
