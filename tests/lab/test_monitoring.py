"""Monitoring on real nodes: a real node_exporter serves what the timer's service writes from its sandbox.

The tests run in the order in which they stand, on one lab; each also runs alone.
"""

from collections.abc import Iterator

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.hardening import wait_until
from tests.lab.settings import Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="monitor")
FLEET = Fleet(LAB)
NODES = LAB.nodes(2)  # eight H100 on Debian 12, one L4 on Debian 13
BOOKWORM, TRIXIE = NODES
GPUS = {BOOKWORM: 8, TRIXIE: 1}
FILE = "/var/lib/prometheus/node-exporter/temper.prom"
#: What the exporter serves, without comments.
SCRAPE = (
    "python3 -c 'import urllib.request as r; "
    'print(r.urlopen("http://127.0.0.1:9100/metrics", timeout=20).read().decode())\''
)
each_node = pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two nodes with the stack, and nothing left of them afterwards."""
    with FLEET.booted():
        run = FLEET.playbook("provision")
        assert run.status == 0, run.output
        checked = FLEET.run(
            ["ansible-playbook", "playbooks/tune.yml", "--check", "-e", "monitoring_enabled=true"]
        )
        assert checked.status == 0, checked.output
        tune()
        yield


def tune(*, enabled: bool = True) -> Run:
    run = FLEET.playbook("tune", monitoring_enabled=enabled, monitoring_interval_s=60)
    assert run.status == 0, run.output
    return run


def look(node: Node) -> None:
    """Have the service look now; it fails here where its sandbox keeps it from what it needs."""
    on_node(node, "systemctl start temper-metrics.service", timeout_s=180)


def served(node: Node) -> dict[str, float]:
    """What Prometheus would scrape from the node."""
    lines = [line for line in on_node(node, SCRAPE).splitlines() if line and not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def of(found: dict[str, float], name: str) -> list[float]:
    """The values of one metric."""
    return [value for series, value in found.items() if series.partition("{")[0] == name]


@each_node
def test_a_healthy_node_is_served_as_one(node: Node) -> None:
    look(node)
    found = served(node)
    assert found["node_textfile_scrape_error"] == 0
    assert (found["temper_metrics_success"], found["temper_gpus"]) == (1, GPUS[node])
    assert found["temper_gpus_expected"] == GPUS[node]
    assert of(found, "temper_gpu_answers") == [1.0] * GPUS[node]
    assert found["temper_kernel_log_readable"] == 1, "the sandbox keeps the service from the kernel log"
    assert found["temper_driver_versions_match"] == 1
    assert found['temper_health{state="pass"}'] == 1, of(found, "temper_finding")
    assert len(of(found, "temper_gpu_temperature_celsius")) >= GPUS[node]


@each_node
def test_the_timer_looks_again_and_again_also_after_a_reboot(node: Node) -> None:
    labs.reboot(node)
    assert on_node(node, "systemctl is-active temper-metrics.timer").strip() == "active"
    on_node(node, f"rm -f {FILE}")
    for _ in range(2):
        wait_until(lambda: on_node(node, f"ls {FILE} || true").strip() == FILE, "it looks", patience_s=150)
        on_node(node, f"rm -f {FILE}")


def test_the_second_run_changes_nothing() -> None:
    again = tune()
    assert [again.changed(node) for node in NODES] == [0, 0]


def test_a_fault_is_served_and_ends() -> None:
    name = 'temper_finding{code="row-remap-failure",gpu="0",severity="fail",uuid='
    labs.set_fault(BOOKWORM, "row-remap-failure", on=True)
    try:
        look(BOOKWORM)
        assert any(series.startswith(name) for series in served(BOOKWORM))
    finally:
        labs.set_fault(BOOKWORM, "row-remap-failure", on=False)
    look(BOOKWORM)
    assert not any(series.startswith(name) for series in served(BOOKWORM))


def test_a_gpu_that_is_lost_does_not_lose_the_file() -> None:
    labs.set_fault(BOOKWORM, "gpu-lost", on=True)
    try:
        look(BOOKWORM)
        found = served(BOOKWORM)
        assert found["temper_metrics_success"] == 1
        assert 0.0 in of(found, "temper_gpu_answers")
        assert found['temper_health{state="fail"}'] == 1
    finally:
        labs.set_fault(BOOKWORM, "gpu-lost", on=False)


def test_a_node_in_maintenance_says_so() -> None:
    on_node(TRIXIE, "touch /var/lib/temper/maintenance")
    try:
        look(TRIXIE)
        assert served(TRIXIE)["temper_maintenance"] == 1
    finally:
        on_node(TRIXIE, "rm /var/lib/temper/maintenance")


def test_the_sandbox_writes_nowhere_else() -> None:
    """Another program in the service's place: its folder alone can be written to."""
    folder = "/run/systemd/system/temper-metrics.service.d"
    probe = f"""
        mkdir -p {folder}
        cat >/usr/local/sbin/probe <<'END'
#!/bin/sh -eu
touch /var/lib/prometheus/node-exporter/probe
rm /var/lib/prometheus/node-exporter/probe
for folder in /etc /usr /var/lib/temper /root; do if touch "$folder/probe"; then exit 1; fi; done
END
        chmod +x /usr/local/sbin/probe
        printf '[Service]\\nExecStart=\\nExecStart=/usr/local/sbin/probe\\n' >{folder}/probe.conf
        systemctl daemon-reload
        systemctl start temper-metrics.service
    """
    try:
        on_node(TRIXIE, probe)
    finally:
        on_node(TRIXIE, f"rm -rf {folder} /usr/local/sbin/probe; systemctl daemon-reload")


def test_monitoring_that_is_switched_off_leaves_nothing_that_runs_or_is_served() -> None:
    tune(enabled=False)
    try:
        for node in NODES:
            units = "temper-metrics.timer prometheus-node-exporter.service"
            states = on_node(node, f"systemctl is-active {units} || true").split()
            assert set(states) == {"inactive"}
            left = on_node(node, f"ls {FILE} /etc/systemd/system/temper-metrics.* 2>/dev/null || true")
            assert left.split() == []
        again = tune(enabled=False)
        assert [again.changed(node) for node in NODES] == [0, 0]
    finally:
        tune()
