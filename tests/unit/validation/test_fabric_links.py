"""What a node's links carry: RDMA ports as NCCL takes them, else the interface; nothing where none says."""

from pathlib import Path

from tests.unit.each import each
from validation.probes.network_links import link_gb_s
from validation.probes.topology import RdmaPort


def port(name: str, rate_gb: float = 400, state: str = "ACTIVE") -> RdmaPort:
    return RdmaPort(name, "MT4129 InfiniBand", state, "LinkUp", rate_gb)


PORTS = [port(f"mlx5_{number}/1") for number in range(8)]
STORAGE = port("mlx5_bond_0/1", 100)


def interface(root: Path, name: str, speed: str, *, hardware: bool, over: str = "") -> None:
    place = root / "sys/class/net" / name
    place.mkdir(parents=True)
    (place / "speed").write_text(f"{speed}\n")
    if hardware:
        (place / "device").mkdir()
    if over:
        (place / f"lower_{over}").symlink_to(root / "sys/class/net" / over)


def test_nccl_takes_all_active_ports(tmp_path: Path) -> None:
    down = port("mlx5_8/1", 10, "DOWN")
    assert link_gb_s("nccl", None, [*PORTS, down], tmp_path, {}) == 400


@each(
    ("", 412.5),
    ("mlx5_bond", 12.5),
    ("=mlx5_0,mlx5_1", 100),
    ("mlx5_0:1", 50),
    ("=mlx5_0:2", None),
    ("^mlx5_bond_0", 400),
    ("^=mlx5_7,mlx5_bond_0", 350),
)
def test_nccl_takes_the_ports_that_it_is_told_to(
    chosen: str, rate_gb_s: float | None, tmp_path: Path
) -> None:
    environment = {"NCCL_IB_HCA": chosen}
    assert link_gb_s("nccl", None, [*PORTS, STORAGE], tmp_path, environment) == rate_gb_s


def test_the_node_tells_nccl_in_its_file_and_the_environment_wins(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("# ours\nNCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_DEBUG=WARN\n")
    assert link_gb_s("nccl", None, PORTS, tmp_path, {}) == 100
    assert link_gb_s("nccl", None, PORTS, tmp_path, {"NCCL_IB_HCA": "=mlx5_0"}) == 50


def test_a_port_that_does_not_say_its_rate_makes_the_whole_unknown(tmp_path: Path) -> None:
    assert link_gb_s("nccl", None, [*PORTS, port("mlx5_9/1", 0)], tmp_path, {}) is None


@each(("gloo", PORTS, {}), ("nccl", [], {}), ("nccl", PORTS, {"NCCL_IB_DISABLE": "1"}))
def test_sockets_have_the_speed_of_their_interface(
    library: str, ports: list[RdmaPort], environment: dict[str, str], tmp_path: Path
) -> None:
    interface(tmp_path, "eth0", "25000", hardware=True)
    assert link_gb_s(library, "eth0", ports, tmp_path, environment) == 3.125


def test_a_bond_has_the_speed_that_it_says_because_there_is_hardware_below(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "25000", hardware=True)
    interface(tmp_path, "bond0", "50000", hardware=False, over="eth0")
    interface(tmp_path, "bond0.7", "50000", hardware=False, over="bond0")
    assert link_gb_s("gloo", "bond0.7", [], tmp_path, {}) == 6.25


@each(("10000", False), ("-1", True), ("", True))
def test_a_speed_that_is_made_up_or_missing_is_none(speed: str, hardware: bool, tmp_path: Path) -> None:
    interface(tmp_path, "eth0", speed, hardware=hardware)
    assert link_gb_s("gloo", "eth0", [], tmp_path, {}) is None
    assert link_gb_s("gloo", None, [], tmp_path, {}) is None
