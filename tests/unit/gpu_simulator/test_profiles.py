"""The hardware profiles are data that must be true to itself."""

import json

import pytest

from tests.lab.gpu_simulator.profiles import PROFILES, GpuModel, hardware
from tests.unit.each import each

MODELS = sorted({profile.model for profile in PROFILES.values()}, key=lambda model: model.name)


def test_an_unknown_profile_is_refused_with_the_names_it_knows() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU profile 'h100': expected one of .*hgx-h100-8"):
        hardware("h100", "gpu01")


@each(*PROFILES)
def test_a_node_is_the_same_each_time_and_different_from_others(profile: str) -> None:
    first, again, other = hardware(profile, "gpu01"), hardware(profile, "gpu01"), hardware(profile, "gpu03")
    assert json.dumps(first) == json.dumps(again)
    identities = [gpu[key] for node in (first, other) for gpu in node["gpus"] for key in ("uuid", "serial")]
    assert len(set(identities)) == len(identities)


@each(*PROFILES.values())
def test_a_server_names_place_and_node_of_each_gpu(profile: object) -> None:
    assert isinstance(profile, type(PROFILES["l4-1"]))
    counts = {len(profile.gpu_addresses), len(profile.module_ids), len(profile.numa_nodes)}
    assert len(counts) == 1
    assert len(set(profile.gpu_addresses + profile.nvswitch_addresses)) == len(
        profile.gpu_addresses + profile.nvswitch_addresses
    )


@each(*MODELS)
def test_limits_and_clocks_are_in_order(model: GpuModel) -> None:
    assert model.power_min_w < model.power_default_w <= model.power_max_w
    assert model.power_idle_w < model.power_default_w
    assert model.temperature_max_operating_c < model.temperature_slowdown_c < model.temperature_shutdown_c
    memory = [entry.memory_mhz for entry in model.supported_clocks]
    assert memory == sorted(memory, reverse=True)
    for entry in model.supported_clocks:
        assert list(entry.graphics_mhz) == sorted(set(entry.graphics_mhz), reverse=True)
    assert model.clock_graphics_idle_mhz in model.supported_clocks[0].graphics_mhz
    assert model.clock_graphics_default_application_mhz in model.supported_clocks[0].graphics_mhz
    assert model.clock_memory_idle_mhz in memory
