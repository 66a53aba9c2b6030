"""Kubernetes: a real kubectl against an API that answers as Kubernetes does."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.rollout.drain import kubernetes, programs
from temper.rollout.drain.base import Drainer, DrainError, Standing, wait_until_idle
from temper.rollout.drain.kubernetes import ANNOTATION, Kubernetes
from tests.unit.rollout import kubernetes_api
from tests.unit.rollout.kubernetes_api import Cluster

Connect = Callable[..., Kubernetes]

pytestmark = pytest.mark.component

NODE = "gpu01"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.add_node(NODE)
    return cluster


@pytest.fixture
def connect(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Kubernetes]]:
    """A function that returns the cluster as a roll-out sees it."""
    if not (program := kubernetes_api.kubectl()):
        pytest.skip("no kubectl is unpacked: python3 -m tools.bootstrap schedulers")
    with kubernetes_api.served(cluster) as address:
        nowhere = tmp_path / "kubeconfig"
        nowhere.write_text("")
        options = [f"--server={address}", f"--kubeconfig={nowhere}", f"--cache-dir={tmp_path / 'cache'}"]

        def connected(owner: str = "night-7", **changes: Any) -> Kubernetes:
            return Kubernetes(owner, kubectl=[program, *options], **changes)

        yield connected


def unschedulable(cluster: Cluster) -> bool:
    return bool(cluster.nodes[NODE]["spec"].get("unschedulable"))


def test_a_node_is_cordoned_with_our_mark_emptied_and_uncordoned(connect: Connect, cluster: Cluster) -> None:
    cluster.add_pod("train-0", NODE)
    cluster.add_pod("elsewhere", "gpu02")
    cluster.add_pod("exporter", NODE, owner="DaemonSet")
    cluster.add_pod("etcd", NODE, owner="Node", annotations={kubernetes.MIRROR: "x"})
    drainer: Drainer = connect()
    before = drainer.look(NODE)
    assert before == Standing(NODE, in_service=True, state="Ready")
    drainer.drain(NODE, before, "upgrade to 590")
    mark = json.loads(cluster.nodes[NODE]["metadata"]["annotations"][ANNOTATION])
    assert mark == {"owner": "night-7", "reason": "upgrade to 590"}
    assert unschedulable(cluster)
    assert drainer.empty(NODE, 5) == ()
    assert cluster.evicted == ["train-0"]
    assert set(cluster.pods) == {"elsewhere", "exporter", "etcd"}
    assert "back in service" in drainer.give_back(NODE, before)
    assert not unschedulable(cluster)
    assert cluster.nodes[NODE]["metadata"]["annotations"] == {"other": "stays"}
    assert "is in service" in drainer.give_back(NODE, before)


def test_a_budget_that_forbids_an_eviction_is_named_until_it_gives_way(
    connect: Connect, cluster: Cluster
) -> None:
    cluster.add_pod("train-0", NODE, labels={"app": "train", "tier": "gpu"})
    cluster.add_budget("others", {"app": "other"})
    cluster.add_budget("train", {"app": "train"})
    drainer = connect()
    before = drainer.look(NODE)
    drainer.drain(NODE, before, "upgrade")
    (left,) = drainer.empty(NODE, 1)
    assert "ml/train-0" in left
    assert "ml/train allows no eviction: 2 pods are healthy, 2 are needed" in left
    assert list(cluster.pods) == ["train-0"]
    with pytest.raises(DrainError, match="ml/train allows no eviction"):
        wait_until_idle(drainer, NODE, 0)
    cluster.budgets.clear()
    assert drainer.empty(NODE, 20) == ()


def test_a_pod_that_nothing_would_start_again_is_refused_and_named(
    connect: Connect, cluster: Cluster
) -> None:
    cluster.add_pod("by-hand", NODE, owner="")
    drainer = connect()
    drainer.drain(NODE, drainer.look(NODE), "upgrade")
    with pytest.raises(DrainError, match=r"by-hand|--force"):
        drainer.empty(NODE, 2)
    assert connect(options=["force"]).empty(NODE, 5) == ()


def test_what_somebody_else_cordoned_stays_cordoned(connect: Connect, cluster: Cluster) -> None:
    cluster.add_node(NODE, unschedulable=True)
    drainer = connect()
    before = drainer.look(NODE)
    assert (before.in_service, before.ours) == (False, False)
    drainer.drain(NODE, before, "upgrade")
    drainer.keep_out(NODE, before, "failed")
    assert ANNOTATION not in cluster.nodes[NODE]["metadata"]["annotations"]
    assert "stays cordoned" in drainer.give_back(NODE, before)
    assert unschedulable(cluster)


def test_who_cordons_a_node_before_we_do_is_left_alone(connect: Connect, cluster: Cluster) -> None:
    drainer = connect()
    before = drainer.look(NODE)
    cluster.nodes[NODE]["spec"]["unschedulable"] = True
    with pytest.raises(DrainError, match="somebody else"):
        drainer.drain(NODE, before, "upgrade")
    assert "stays cordoned" in drainer.give_back(NODE, before)


def test_another_roll_out_does_not_return_our_node(connect: Connect, cluster: Cluster) -> None:
    drainer = connect()
    before = drainer.look(NODE)
    drainer.drain(NODE, before, "upgrade")
    other = connect("night-8")
    assert not other.look(NODE).ours
    assert "stays cordoned" in other.give_back(NODE, before)
    assert unschedulable(cluster)


def test_after_a_crash_our_cordon_is_known_by_its_annotation(connect: Connect, cluster: Cluster) -> None:
    drainer = connect()
    drainer.drain(NODE, drainer.look(NODE), "upgrade")
    found_again = drainer.look(NODE)
    assert found_again.ours
    drainer.drain(NODE, found_again, "upgrade")
    drainer.keep_out(NODE, found_again, "the gate failed twice")
    assert drainer.look(NODE).reason == "the gate failed twice"
    assert "back in service" in drainer.give_back(NODE, found_again)
    assert not unschedulable(cluster)


def test_a_change_of_somebody_else_is_not_overwritten(connect: Connect, cluster: Cluster) -> None:
    cluster.conflicts = 2
    drainer = connect()
    before = drainer.look(NODE)
    drainer.drain(NODE, before, "upgrade")
    assert unschedulable(cluster)
    cluster.conflicts = kubernetes.CONFLICTS
    with pytest.raises(DrainError, match="changed each time"):
        drainer.give_back(NODE, before)
    assert unschedulable(cluster)


def test_a_node_that_is_not_ready_is_no_node_to_begin_with(connect: Connect, cluster: Cluster) -> None:
    cluster.add_node(NODE, ready=False)
    assert "not Ready" in connect().look(NODE).obstacle


def test_a_node_that_kubernetes_does_not_know_is_named(connect: Connect) -> None:
    with pytest.raises(DrainError, match="gpu99"):
        connect().look("gpu99")


def test_one_question_says_how_all_nodes_stand(connect: Connect, cluster: Cluster) -> None:
    cluster.add_node("gpu02", ready=False)
    drainer = connect()
    drainer.drain(NODE, drainer.look(NODE), "upgrade")
    ours, broken, gone = drainer.survey([NODE, "gpu02", "gpu99"])
    assert (ours, broken) == (drainer.look(NODE), drainer.look("gpu02"))
    assert "not known to Kubernetes" in gone.obstacle


def test_an_api_that_does_not_answer_is_bounded(
    connect: Connect, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(Kubernetes._run, "__kwdefaults__", {"timeout_s": 1.0})
    cluster.silent.set()
    with pytest.raises(DrainError, match="no answer within 1 s"):
        connect().look(NODE)


def test_an_api_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    if not (program := kubernetes_api.kubectl()):
        pytest.skip("no kubectl is unpacked: python3 -m tools.bootstrap schedulers")
    away = Kubernetes("night-7", kubectl=[program, "--server=http://127.0.0.1:1", f"--cache-dir={tmp_path}"])
    with pytest.raises(DrainError, match="refused"):
        away.look(NODE)


LABELS = {"app": "train", "tier": "gpu"}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "train"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["train", "x"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["train"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Later"}]}, False),
    ],
)
def test_budgets_select_pods_as_the_api_does(selector: dict[str, Any] | None, selects: bool) -> None:
    assert kubernetes._selects(selector, LABELS) is selects


@pytest.mark.parametrize("text", ["no JSON", "[]", "7", '{"owner": "night-8"}'])
def test_an_annotation_that_is_not_ours_is_nobodys_leave(text: str) -> None:
    node = {"metadata": {"annotations": {ANNOTATION: text}}, "spec": {"unschedulable": True}}
    assert not Kubernetes("night-7")._is_ours(node)


def test_a_program_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(DrainError, match="install it"):
        programs.ask(["/nonexistent/kubectl"])
