"""An HTTP server that answers kubectl as Kubernetes does: nodes, pods, evictions, disruption budgets.

From the API's reference (kubernetes.io/docs/reference/kubernetes-api): merge patches with a resource version
answer 409 where that is another one; an eviction that a budget forbids answers 429 with the cause
DisruptionBudget, whose words name no budget.
"""

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

UNPACKED = Path(__file__).resolve().parents[3] / ".cache/kubectl/kubectl"
KINDS = {
    "nodes": ("Node", False),
    "pods": ("Pod", True),
    "daemonsets": ("DaemonSet", True),
    "poddisruptionbudgets": ("PodDisruptionBudget", True),
}
GROUPS = {
    "/api/v1": ("v1", ("nodes", "pods")),
    "/apis/apps/v1": ("apps/v1", ("daemonsets",)),
    "/apis/policy/v1": ("policy/v1", ("poddisruptionbudgets",)),
}


def kubectl() -> str | None:
    """The kubectl that `python3 -m tools.bootstrap schedulers` has unpacked, or that of this machine."""
    return str(UNPACKED) if UNPACKED.exists() else shutil.which("kubectl")


@dataclass
class Cluster:
    """What the API has. `conflicts` is how many patches are to find that somebody else was faster."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    budgets: list[dict[str, Any]] = field(default_factory=list)
    conflicts: int = 0
    silent: threading.Event = field(default_factory=threading.Event)
    evicted: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_node(self, name: str, *, ready: bool = True, **spec: Any) -> dict[str, Any]:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "resourceVersion": "1", "annotations": {"other": "stays"}},
            "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
        }
        self.nodes[name] = node
        return node

    def add_pod(self, name: str, node: str, owner: str = "ReplicaSet", **metadata: Any) -> None:
        controller = {"apiVersion": "apps/v1", "kind": owner, "name": "of-it", "uid": "1", "controller": True}
        about = {"name": name, "namespace": "ml", "uid": name, "resourceVersion": "1"}
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about | {"ownerReferences": [controller] if owner else []} | metadata,
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
            "status": {"phase": "Running"},
        }

    def add_budget(self, name: str, labels: dict[str, str], *, healthy: int = 2, needed: int = 2) -> None:
        self.budgets.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "ml"},
                "spec": {"selector": {"matchLabels": labels}},
                "status": {
                    "disruptionsAllowed": max(0, healthy - needed),
                    "currentHealthy": healthy,
                    "desiredHealthy": needed,
                },
            }
        )

    def forbids(self, pod: dict[str, Any]) -> bool:
        labels = pod["metadata"].get("labels", {})
        return any(
            budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
            and not budget["status"]["disruptionsAllowed"]
            for budget in self.budgets
        )


def status(code: int, reason: str, message: str, **details: Any) -> tuple[int, dict[str, Any]]:
    """An error as the API gives it."""
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return code, said | {"details": details, "code": code}


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), part)
    return result


def items(kind: str, found: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    return 200, {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": found}


def discovery(path: str) -> tuple[int, dict[str, Any]] | None:
    if path == "/api":
        return 200, {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = [(name, {"groupVersion": f"{name}/v1", "version": "v1"}) for name in ("apps", "policy")]
        groups = [{"name": name, "versions": [one], "preferredVersion": one} for name, one in versions]
        return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path not in GROUPS:
        return None
    version, names = GROUPS[path]
    resources: list[dict[str, Any]] = [
        {
            "name": name,
            "singularName": name[:-1],
            "kind": KINDS[name][0],
            "namespaced": KINDS[name][1],
            "verbs": ["get", "list", "patch", "delete", "create"],
        }
        for name in names
    ]
    if path == "/api/v1":
        eviction = {"kind": "Eviction", "group": "policy", "version": "v1", "namespaced": True}
        resources.append({"name": "pods/eviction", "singularName": "", "verbs": ["create"], **eviction})
    return 200, {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def answer(cluster: Cluster, method: str, url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """What the API says."""
    parts = urlsplit(url)
    path, query = parts.path, parse_qs(parts.query)
    if found := discovery(path):
        return found
    words = path.strip("/").split("/")
    if words[:3] == ["api", "v1", "nodes"] and len(words) == 4:
        return node_answer(cluster, method, words[3], body)
    if path == "/api/v1/nodes":
        return items("Node", list(cluster.nodes.values()))
    if path == "/api/v1/pods":
        (wanted,) = (one.split("=")[1] for one in query["fieldSelector"] if one.startswith("spec.nodeName="))
        return items("Pod", [pod for pod in cluster.pods.values() if pod["spec"]["nodeName"] == wanted])
    if path == "/apis/policy/v1/poddisruptionbudgets":
        return items("PodDisruptionBudget", cluster.budgets)
    if "daemonsets" in words:
        return 200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": words[-1]}}
    if words[-1] == "eviction":
        name = words[-2]
        if name not in cluster.pods:
            return status(404, "NotFound", f'pods "{name}" not found')
        if cluster.forbids(cluster.pods[name]):
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            cause = {"reason": "DisruptionBudget", "message": "The disruption budget needs 2 healthy pods"}
            return status(429, "TooManyRequests", message, causes=[cause])
        del cluster.pods[name]
        cluster.evicted.append(name)
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
    if "pods" in words and words[-1] in cluster.pods:
        return 200, cluster.pods[words[-1]]
    return status(404, "NotFound", f'"{words[-1]}" not found', name=words[-1])


def node_answer(
    cluster: Cluster, method: str, name: str, patch: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    node = cluster.nodes.get(name)
    if node is None:
        return status(404, "NotFound", f'nodes "{name}" not found', name=name, kind="nodes")
    if method == "PATCH":
        version = patch.get("metadata", {}).get("resourceVersion")
        if cluster.conflicts:
            cluster.conflicts -= 1
            node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        if version not in (None, node["metadata"]["resourceVersion"]):
            changed = "the object has been modified; please apply your changes to the latest version"
            return status(409, "Conflict", f'Operation cannot be fulfilled on nodes "{name}": {changed}')
        node = merged(node, patch)
        node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
        cluster.nodes[name] = node
    return 200, node


@contextlib.contextmanager
def served(cluster: Cluster) -> Iterator[str]:
    """Serve the cluster on loopback; yields the server's address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length)
            # A server that never answers: until the test is over.
            if cluster.silent.is_set():
                finished.wait()
                return
            sent: dict[str, Any] = json.loads(body) if body[:1] == b"{" else {}
            with cluster.lock:
                code, said = answer(cluster, self.command, self.path, sent)
                data = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
            pass

    finished = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        finished.set()
        server.shutdown()
        server.server_close()
        thread.join()
