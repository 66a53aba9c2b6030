"""Health: none is healthy by silence, every fault has its own finding, a machine without GPUs is not ill."""

import dataclasses
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import DRIVER, H100, expectation, gpu_xml, node, smi_xml
from validation.checks.health import Health
from validation.model.contract import MachineAction, State
from validation.model.expectations import ANY_MODEL, Expectation, ExpectedGpus, References
from validation.probes import kernel_log, nvidia_smi
from validation.probes.kernel_log import KernelLog
from validation.probes.machine import Grant, PciGpu
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.probes.nvlink import Links
from validation.probes.topology import PciePort

SECOND = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")


def test_a_healthy_node_has_no_finding() -> None:
    result = Health().run(node())
    assert (result.state, result.findings) == (State.PASS, ())


@each(
    ({"dram_uncorrectable": "2"}, "ecc-uncorrected", State.FAIL),
    ({"remapped_row_failure": "Yes"}, "row-remap-failure", State.FAIL),
    ({"remapped_row_pending": "Yes"}, "memory-repair-pending", State.DEGRADED),
    ({"pending_retirement": "Yes"}, "memory-repair-pending", State.DEGRADED),
    ({"gpu_recovery_action": "Drain and Reset"}, "recovery-action", State.FAIL),
    ({"gpu_recovery_action": "GPU_RESET"}, "recovery-action", State.FAIL),
    ({"hw_thermal_slowdown": "Active", "hw_slowdown": "Active"}, "hw-thermal-slowdown", State.FAIL),
    (
        {"hw_power_brake_slowdown": "Active", "hw_slowdown": "Active"},
        "hw-power-brake-slowdown",
        State.FAIL,
    ),
    ({"hw_slowdown": "Active"}, "hw-slowdown", State.FAIL),
    ({"sw_thermal_slowdown": "Active"}, "sw-thermal-slowdown", State.DEGRADED),
    ({"current_power_limit": "500.00 W"}, "power-limit-low", State.DEGRADED),
    ({"current_ecc": "Disabled"}, "ecc-off", State.DEGRADED),
    ({"used": "20480 MiB"}, "gpu-memory-taken", State.DEGRADED),
    ({"application_clock": "900 MHz"}, "application-clock-low", State.DEGRADED),
    ({"current_link_gen": "1"}, "pcie-link-down-trained", State.FAIL),
    ({"current_link_width": "8x"}, "pcie-link-down-trained", State.FAIL),
    ({"max_link_width": "8x", "current_link_width": "8x"}, "pcie-slot-limits", State.DEGRADED),
    ({"max_link_gen": "4", "current_link_gen": "4"}, "pcie-slot-limits", State.DEGRADED),
    ({"state": "In Progress", "status": "N/A"}, "fabric-not-ready", State.FAIL),
    ({"status": "Insufficient Resources"}, "fabric-not-ready", State.FAIL),
    ({"status": "Unknown Error"}, "fabric-not-ready", State.FAIL),
    ({"status": "[System is not in ready state]"}, "fabric-not-ready", State.FAIL),
    ({"persistence_mode": "Disabled"}, "persistence-off", State.DEGRADED),
    ({"processes": "<process_info><pid>1</pid></process_info>"}, "gpu-busy", State.DEGRADED),
    ({"pci_device_id": "233110DE"}, "gpu-model", State.FAIL),
)
def test_a_fault_of_one_gpu_is_one_finding_that_names_it(
    changes: dict[str, str], code: str, state: State
) -> None:
    result = Health().run(node(smi_xml(gpu_xml(**changes), SECOND)))
    (finding,) = result.findings
    assert (finding.code, finding.state, finding.device) == (code, state, 0)
    assert "GPU 0" in finding.text
    assert finding.action
    assert result.state is state


@each(
    ({"current_link_gen": "1"}, []),
    ({"current_link_width": "8x"}, [State.DEGRADED]),
)
def test_the_pcie_link_of_a_superchip_fails_nothing(changes: dict[str, str], states: list[State]) -> None:
    gh200 = {"gh200": H100 | {"form_factor": "superchip"}}
    tested = node(
        smi_xml(gpu_xml(**changes), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")),
        expectation=expectation(references=References(gh200)),
    )
    found = Health().run(tested).findings
    assert [one.state for one in found if one.code.startswith("pcie")] == states


def test_a_superchip_whose_c2c_is_off_is_found_and_its_pcie_link_is_judged() -> None:
    for form_factor, modes, found in (
        ("superchip", ("Disabled", "Enabled"), {(0, "c2c-off"), (0, "pcie-link-down-trained")}),
        (
            "superchip",
            ("Disabled", "Disabled"),
            {(0, "c2c-off"), (1, "c2c-off"), (0, "pcie-link-down-trained")},
        ),
        ("superchip", ("Enabled", "Enabled"), {(0, "pcie-link-down-trained")}),
        ("superchip", ("N/A", "N/A"), {(0, "pcie-link-down-trained")}),
        # A model that no table has, beside one of its kind that has C2C.
        (None, ("Disabled", "Enabled"), {(0, "c2c-off"), (0, "pcie-link-down-trained")}),
        # An H100 says this, too, and has none.
        ("sxm", ("Disabled", "Disabled"), {(0, "pcie-link-down-trained")}),
    ):
        first, second = (
            one.replace("<mig_mode>", f"<c2c_mode>{mode}</c2c_mode><mig_mode>")
            for one, mode in zip((gpu_xml(current_link_width="8x"), SECOND), modes, strict=True)
        )
        models = {"it": H100 | {"form_factor": form_factor}} if form_factor else {}
        tested = node(smi_xml(first, second), expectation=expectation(references=References(models)))
        findings = [one for one in Health().run(tested).findings if one.code != "gpu-model"]
        assert {(one.device, one.code) for one in findings} == found, (form_factor, modes)
        link = next(one for one in findings if one.code == "pcie-link-down-trained")
        excused = form_factor == "superchip" and modes[0] != "Disabled"
        assert link.state is (State.DEGRADED if excused else State.FAIL)


def test_ecc_is_judged_by_what_is_on_and_what_will_be() -> None:
    server, card = (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    )
    for name, current, pending, action in (
        ("NVIDIA A100-PCIE-40GB", "Enabled", "Enabled", None),
        ("NVIDIA A100-PCIE-40GB", "Enabled", "N/A", None),
        ("NVIDIA A100-PCIE-40GB", "Disabled", "Disabled", MachineAction.CONFIGURE),
        ("NVIDIA A100-PCIE-40GB", "Disabled", "N/A", MachineAction.CONFIGURE),
        ("NVIDIA A100-PCIE-40GB", "Disabled", "Enabled", MachineAction.RESET_GPU),
        ("NVIDIA A100-PCIE-40GB", "Enabled", "Disabled", MachineAction.CONFIGURE),
        (server, "Disabled", "Disabled", MachineAction.CONFIGURE),
        (card, "Disabled", "Disabled", None),
        (card, "Enabled", "Disabled", None),
    ):
        xml = gpu_xml(product_name=name, current_ecc=current)
        xml = xml.replace("</current_ecc>", f"</current_ecc><pending_ecc>{pending}</pending_ecc>")
        found = [(one.code, one.machine_action) for one in Health().run(node(smi_xml(xml, SECOND))).findings]
        assert found == ([("ecc-off", action)] if action else []), (name, current, pending)


def test_an_uncorrectable_error_of_a_mig_instance_alone_is_one_of_its_gpu() -> None:
    for counts, found in (("0", "0"), []), (("0", "2"), ["ecc-uncorrected"]), (("N/A", "N/A"), []):
        instances = "".join(
            f"<mig_device><ecc_error_count><volatile_count><sram_uncorrectable>{count}</sram_uncorrectable>"
            "</volatile_count></ecc_error_count></mig_device>"
            for count in counts
        )
        xml = gpu_xml(current_mig="Enabled").replace(
            "<gpu_virtualization_mode>", f"<mig_devices>{instances}</mig_devices><gpu_virtualization_mode>"
        )
        assert [one.code for one in Health().run(node(smi_xml(xml, SECOND))).findings] == found, counts


def test_a_gpu_past_a_temperature_limit_is_found_before_anything_slows_it_down() -> None:
    for values, reasons, found in (
        ({"gpu_temp_tlimit": "39 C", "gpu_temp_max_gpu_tlimit_threshold": "0 C"}, {}, []),
        ({"gpu_temp_tlimit": "0 C", "gpu_temp_max_gpu_tlimit_threshold": "0 C"}, {}, []),
        ({"gpu_temp_tlimit": "-3 C", "gpu_temp_max_gpu_tlimit_threshold": "0 C"}, {}, ["temperature-high"]),
        ({"gpu_temp_tlimit": "-3 C", "gpu_temp_max_gpu_tlimit_threshold": "N/A"}, {}, []),
        ({"gpu_temp": "88 C", "gpu_temp_max_gpu_threshold": "87 C"}, {}, ["temperature-high"]),
        ({"gpu_temp": "87 C", "gpu_temp_max_gpu_threshold": "87 C"}, {}, []),
        ({"gpu_temp": "88 C", "gpu_temp_max_gpu_threshold": "N/A"}, {}, []),
        ({"memory_temp": "99 C", "gpu_temp_max_mem_threshold": "95 C"}, {}, ["temperature-high"]),
        # What slows it down says more.
        (
            {"gpu_temp": "88 C", "gpu_temp_max_gpu_threshold": "87 C"},
            {"hw_thermal_slowdown": "Active"},
            ["hw-thermal-slowdown"],
        ),
    ):
        told = "".join(f"<{name}>{text}</{name}>" for name, text in values.items())
        xml = gpu_xml(**reasons).replace("<ecc_mode>", f"<temperature>{told}</temperature><ecc_mode>")
        assert [one.code for one in Health().run(node(smi_xml(xml, SECOND))).findings] == found, values


def test_lanes_that_a_host_gives_to_no_gpu_of_a_virtual_machine_are_no_finding() -> None:
    for mode, widths, found in (
        ("Pass-Through", ("8x", "8x"), []),
        ("Pass-Through", ("8x", "16x"), [(0, State.DEGRADED)]),
        ("None", ("8x", "8x"), [(0, State.FAIL), (1, State.FAIL)]),
    ):
        gpus = (
            gpu_xml(virtualization_mode=mode, pci_bus_id=address, uuid=address, current_link_width=width)
            for address, width in zip(("00000000:1B:00.0", "00000000:43:00.0"), widths, strict=True)
        )
        findings = Health().run(node(smi_xml(*gpus))).findings
        assert [(one.device, one.state) for one in findings] == found, (mode, widths)


def test_a_chip_of_cpu_and_gpu_has_no_link_that_could_be_judged() -> None:
    for memory, found in (("Not Supported", False), ("N/A", False), ("81559 MiB", True)):
        xml = gpu_xml(current_link_gen="1", current_link_width="1x").replace(
            "<fb_memory_usage>", f"<fb_memory_usage><total>{memory}</total>"
        )
        codes = {one.code for one in Health().run(node(smi_xml(xml, SECOND))).findings}
        assert ("pcie-link-down-trained" in codes) is found, memory


@pytest.mark.parametrize(
    ("mode", "license_status", "missing"),
    [
        ("VGPU", "Unlicensed", True),
        ("VGPU", "Unlicensed (Restricted)", True),
        # For twenty minutes after it started, with all that it can do.
        ("VGPU", "Unlicensed (Unrestricted)", False),
        ("VGPU", "Licensed (Expiry: 2026-7-7 16:1:44 GMT)", False),
        ("VGPU", "N/A", False),
        # A whole GPU computes without a licence.
        ("Pass-Through", "Unlicensed (Restricted)", False),
    ],
)
def test_a_virtual_gpu_needs_a_licence(mode: str, license_status: str, *, missing: bool) -> None:
    licensed = f"<vgpu_software_licensed_product><license_status>{license_status}</license_status>"
    xml = gpu_xml(virtualization_mode=mode).replace(
        "<gpu_recovery_action>", f"{licensed}</vgpu_software_licensed_product><gpu_recovery_action>"
    )
    found = Health().run(node(smi_xml(xml, SECOND))).findings
    assert [(one.code, one.state, one.device) for one in found] == (
        [("vgpu-unlicensed", State.DEGRADED, 0)] if missing else []
    )


@each(
    ("Reset", MachineAction.RESET_GPU),
    ("GPU_RESET", MachineAction.RESET_GPU),
    ("Reboot", MachineAction.REBOOT),
    ("NODE_REBOOT", MachineAction.REBOOT),
    ("Node Reboot Required", MachineAction.REBOOT),
    ("None", None),
    ("NONE", None),
)
def test_what_the_driver_asks_for_is_told_from_its_words(
    action: str, machine_action: MachineAction | None
) -> None:
    found = Health().run(node(smi_xml(gpu_xml(gpu_recovery_action=action), SECOND))).findings
    assert [one.machine_action for one in found] == ([machine_action] if machine_action else [])


@each(
    ({}, PciePort(16, 5), []),
    ({}, None, []),
    # The port above it carries less than the card.
    ({"current_link_width": "8x"}, PciePort(8, 5), [("pcie-slot-limits", State.DEGRADED)]),
    ({"current_link_width": "4x"}, PciePort(8, 5), ["down", ("pcie-slot-limits", State.DEGRADED)]),
    ({"current_link_gen": "4"}, PciePort(16, 4), [("pcie-slot-limits", State.DEGRADED)]),
    ({"current_link_gen": "3"}, PciePort(16, 4), ["down", ("pcie-slot-limits", State.DEGRADED)]),
    # What carries more than it can is a port that does not tell the truth.
    ({}, PciePort(8, 4), []),
    # Nobody sees the port, or sees one that is made up.
    ({"current_link_width": "8x"}, None, [("pcie-link-down-trained", State.DEGRADED)]),
    (
        {"current_link_width": "8x", "virtualization_mode": "Pass-Through"},
        PciePort(16, 5),
        [("pcie-link-down-trained", State.DEGRADED)],
    ),
    (
        {"current_link_gen": "4", "virtualization_mode": "Pass-Through"},
        PciePort(16, 5),
        [("pcie-link-down-trained", State.DEGRADED)],
    ),
    ({"current_link_gen": "4"}, None, [("pcie-link-down-trained", State.DEGRADED)]),
    # Its maker laid eight lanes.
    ({"current_link_width": "8x", "product_name": "GeForce RTX 3060 Laptop GPU"}, PciePort(8, 5), []),
    ({"current_link_width": "8x", "product_name": "GeForce RTX 3060 Laptop GPU"}, None, []),
)
def test_a_link_is_held_against_what_card_and_port_both_can_do(
    changes: dict[str, str], port: PciePort | None, expected: list[Any]
) -> None:
    ports = {"0000:43:00.0": PciePort(16, 5)} | ({"0000:1b:00.0": port} if port else {})
    found = Health().run(node(smi_xml(gpu_xml(**changes), SECOND), pcie_ports=lambda _: ports)).findings
    down = ("pcie-link-down-trained", State.FAIL)
    assert [(one.code, one.state) for one in found] == [down if one == "down" else one for one in expected]


def test_few_lanes_of_a_virtual_machine_are_excused_where_others_have_as_few() -> None:
    h100, t4, a10g, l40s = "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A10G", "NVIDIA L40S"
    for name, widths, found in (
        (h100, (1,), [0]),
        (h100, (8,), [0]),
        (h100, (8, 8), []),
        (h100, (16, 8), [1]),
        (t4, (8,), []),
        (a10g, (8,), []),
        (l40s, (8,), []),
        (t4, (4,), [0]),
        ("NVIDIA L40", (8,), [0]),
    ):
        gpus = [
            gpu_xml(
                product_name=name,
                virtualization_mode="Pass-Through",
                current_link_width=f"{width}x",
                pci_bus_id=f"00000000:{bus}:00.0",
                uuid=f"GPU-{bus}",
            )
            for width, bus in zip(widths, ("1b", "43"), strict=False)
        ]
        findings = Health().run(node(smi_xml(*gpus))).findings
        narrow = [one.device for one in findings if one.code == "pcie-link-down-trained"]
        assert narrow == found, (name, widths)


def test_ports_that_are_equally_narrow_for_all_gpus_are_their_boards_design() -> None:
    narrow = {"current_link_width": "8x"}
    xml = smi_xml(gpu_xml(**narrow), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", **narrow))
    tested = node(xml, pcie_ports=lambda gpus: dict.fromkeys(gpus, PciePort(8, 5)))
    result = Health().run(tested)
    assert result.findings == ()
    assert [gpu["pcie_port_width"] for gpu in result.details["gpus"]] == [8, 8]
    assert [gpu.pcie_width_max for gpu in tested.gpus] == [8, 8], "floors are those of eight lanes"


@each(
    ({}, PciePort(16, 5), 16),
    ({"current_link_width": "8x"}, PciePort(16, 5), 16),
    ({"current_link_width": "8x"}, None, 8),
    ({"current_link_width": "8x", "virtualization_mode": "Pass-Through"}, PciePort(16, 5), 8),
)
def test_a_lane_that_was_lost_excuses_no_number_and_one_that_never_was_does(
    changes: dict[str, str], port: PciePort | None, width: int
) -> None:
    tested = node(smi_xml(gpu_xml(**changes)), pcie_ports=lambda _: {"0000:1b:00.0": port} if port else {})
    assert tested.gpus[0].pcie_width_max == width


def test_an_idle_gpu_may_lower_its_link() -> None:
    idle = gpu_xml(performance_state="P8", current_link_gen="1")
    assert Health().run(node(smi_xml(idle, SECOND))).state is State.PASS


@each(("N/A", []), ("Not Supported", []), ("In Progress", ["fabric-not-ready"]))
def test_a_gpu_with_a_state_of_the_fabric_needs_it_without_nvswitches_on_this_bus(
    state: str, codes: list[str]
) -> None:
    facts: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}
    xml = smi_xml(gpu_xml(state=state), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", state=state))
    assert {found.code for found in Health().run(node(xml, **facts)).findings} == set(codes)


@each(
    ((PciGpu("0000:1b:00.0", "2330"),), smi_xml(gpu_xml()), ["gpu-count"]),
    ((), NvidiaSmiError("missing", "nvidia-smi is not installed"), ["gpu-count", "driver-missing"]),
    (None, smi_xml(gpu_xml()), ["gpu-not-driven"]),
    (
        None,
        NvidiaSmiError("mismatch", "nvidia-smi: Driver/library version mismatch"),
        ["driver-mismatch"],
    ),
    (None, NvidiaSmiError("no-driver", "nvidia-smi: cannot communicate"), ["driver-no-driver"]),
    (None, NvidiaSmiError("lost", "nvidia-smi: GPU is lost"), ["driver-lost"]),
    (None, NvidiaSmiError("timeout", "nvidia-smi gave no answer within 60 s"), ["driver-timeout"]),
    (
        None,
        smi_xml(gpu_xml(), SECOND, driver="580.126.09"),
        ["driver-version", "library-version", "fabric-manager-version"],
    ),
)
def test_gpus_and_driver_must_be_the_expected_ones(
    pci_gpus: tuple[PciGpu, ...] | None, xml: str | NvidiaSmiError, codes: list[str]
) -> None:
    facts: dict[str, Any] = {} if pci_gpus is None else {"pci_gpus": pci_gpus}
    result = Health().run(node(xml, **facts))
    assert [(finding.code, finding.state) for finding in result.findings] == [
        (code, State.FAIL) for code in codes
    ]
    assert result.state is State.FAIL


@each(
    (Grant("NVIDIA_VISIBLE_DEVICES", 1), State.DEGRADED),
    (Grant("NVIDIA_VISIBLE_DEVICES", 2), State.FAIL),
    (None, State.FAIL),
)
def test_gpus_that_a_container_was_not_given_fail_nothing(granted: Grant | None, state: State) -> None:
    (finding,) = Health().run(node(smi_xml(gpu_xml()), granted=granted)).findings
    assert (finding.code, finding.state) == ("gpu-not-driven", state)


def test_a_mismatch_names_the_module_that_is_loaded_and_asks_for_a_reboot() -> None:
    error = NvidiaSmiError("mismatch", "nvidia-smi: Driver/library version mismatch")
    (finding,) = Health().run(node(error)).findings
    assert DRIVER in finding.text
    assert "reboot" in finding.action


@each(((), "missing"), ((PciGpu("0000:1b:00.0", "2330"),), "missing"), ((), "no-driver"))
def test_without_an_expectation_a_machine_without_driver_is_not_run(
    pci_gpus: tuple[PciGpu, ...], kind: str
) -> None:
    facts: dict[str, Any] = {"pci_gpus": pci_gpus, "expectation": Expectation()}
    result = Health().run(node(NvidiaSmiError(kind, "nvidia-smi is not installed"), **facts))
    assert result.state is State.NOT_RUN
    assert result.reason


def test_no_gpu_where_none_is_expected_is_a_pass() -> None:
    facts: dict[str, Any] = {"pci_gpus": (), "expectation": Expectation(gpus=()), "nvswitch": False}
    result = Health().run(node(NvidiaSmiError("missing", "nvidia-smi is not installed"), **facts))
    assert (result.state, result.findings) == (State.PASS, ())


def test_without_an_expectation_broken_memory_is_still_found() -> None:
    broken = smi_xml(gpu_xml(dram_uncorrectable="1"), SECOND)
    result = Health().run(node(broken, expectation=Expectation()))
    assert [finding.code for finding in result.findings] == ["ecc-uncorrected"]


def test_a_gpu_that_no_table_knows_is_expected_by_its_pci_id_beside_one_that_is_known() -> None:
    mixed = expectation(
        gpus=(ExpectedGpus("h100_sxm_80gb", "H100 SXM 80 GB", 1), ExpectedGpus("unknown", "10de:9999", 1))
    )
    xml = smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", pci_device_id="999910DE"))
    assert Health().run(node(xml, expectation=mixed)).findings == ()


@each((("1cb3",), []), ((), ["gpu-count", "gpu-not-driven"]))
def test_a_card_for_a_monitor_that_the_plan_leaves_alone_is_no_gpu_that_the_driver_refused(
    undriven: tuple[str, ...], codes: list[str]
) -> None:
    cards = (*node().facts.pci_gpus, PciGpu("0000:c1:00.0", "1cb3"))
    facts: dict[str, Any] = {"pci_gpus": cards, "expectation": expectation(undriven_gpus=undriven)}
    assert [finding.code for finding in Health().run(node(**facts)).findings] == codes


def test_a_gpu_that_left_the_bus_is_missed_and_one_that_is_on_no_bus_is_not() -> None:
    nothing: dict[str, Any] = {"expectation": Expectation(), "nvswitch": False, "fabric_manager": None}
    first = node().facts.pci_gpus[:1]
    (finding,) = Health().run(node(pci_gpus=first, **nothing)).findings
    assert (finding.code, finding.state, finding.machine_action) == ("gpu-not-driven", "fail", "reboot")
    assert "only 1 of the 2 GPUs" in finding.text
    # A system on a chip, or Windows' own Linux.
    assert Health().run(node(pci_gpus=(), **nothing)).findings == ()


def test_a_gpu_that_another_driver_has_is_not_counted() -> None:
    cards = (*node().facts.pci_gpus, PciGpu("0000:c1:00.0", "2330", "vfio-pci"))
    assert Health().run(node(pci_gpus=cards)).findings == ()


@each(((), MachineAction.CONFIGURE), (("0000:43:00.0",), MachineAction.REBOOT))
def test_a_gpu_that_was_given_away_since_the_plan_is_named_and_no_reason_to_reboot(
    planned: tuple[str, ...], action: MachineAction
) -> None:
    cards = (node().facts.pci_gpus[0], PciGpu("0000:43:00.0", "2330", "vfio-pci"))
    wanted = expectation(given_gpus=planned)
    (found,) = Health().run(node(smi_xml(gpu_xml()), pci_gpus=cards, expectation=wanted)).findings
    assert (found.code, found.machine_action) == ("gpu-count", action)
    assert ("0000:43:00.0 (vfio-pci)" in found.text) == (not planned)


@each((2, []), (3, ["gpu-count"]))
def test_a_number_of_gpus_may_be_all_that_is_expected(count: int, codes: list[str]) -> None:
    wanted = expectation(gpus=(ExpectedGpus("any", ANY_MODEL, count),))
    unknown = smi_xml(gpu_xml(pci_device_id="999910DE"), SECOND)
    assert [f.code for f in Health().run(node(unknown, expectation=wanted)).findings] == codes


@each(
    ({"current_power_limit": "500.00 W"}, {"power_limit_w": 500.0}, []),
    ({"current_power_limit": "560.00 W"}, {"power_limit_percent": 80.0}, []),
    ({"current_power_limit": "500.00 W"}, {"power_limit_percent": 80.0}, ["power-limit-low"]),
    ({"application_clock": "900 MHz"}, {"lower_clocks": True}, []),
)
def test_what_the_inventory_lowers_is_no_finding(
    changes: dict[str, str], wanted: dict[str, Any], codes: list[str]
) -> None:
    lowered = node(smi_xml(gpu_xml(**changes), SECOND), expectation=expectation(**wanted))
    assert [found.code for found in Health().run(lowered).findings if found.device == 0] == codes


def test_a_library_of_another_version_is_found() -> None:
    (finding,) = (
        Health().run(node(driver_libraries={"libcuda.so.1": "570.1", "libnvidia-ml.so.1": DRIVER})).findings
    )
    assert (finding.code, finding.state) == ("library-version", State.FAIL)
    assert finding.text.startswith(f"libcuda.so.1 has version 570.1, the driver that is loaded {DRIVER}")


SWITCHLESS: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}


@each(
    ({"fabric_manager": lambda: "570.1"}, ["fabric-manager-version"]),
    ({"fabric_manager_runs": False}, ["fabric-manager-stopped"]),
    ({"fabric_manager_runs": True}, []),
    ({"fabric_manager_runs": None}, []),
    (SWITCHLESS | {"fabric_manager": lambda: "570.1", "fabric_manager_runs": False}, []),
)
def test_where_there_are_nvswitches_the_fabric_manager_runs_in_the_drivers_version(
    facts: dict[str, Any], codes: list[str]
) -> None:
    findings = Health().run(node(**facts)).findings
    assert [(finding.code, finding.state) for finding in findings] == [(code, State.FAIL) for code in codes]


@each(
    ({}, {0: Links(18, ()), 1: Links(16, (3, 17))}, [("nvlink-down", State.FAIL, 1)]),
    (SWITCHLESS, {0: Links(18, ()), 1: Links(16, (3, 17))}, [("nvlink-fewer", State.DEGRADED, 1)]),
    # No GPU uses them.
    (SWITCHLESS, {0: Links(12, (4, 5)), 1: Links(12, (4, 5))}, []),
    # `Unable to retrieve NVLink information as all links are inActive` has no line for any link.
    ({}, {0: Links(18, ())}, [("nvlink-down", State.FAIL, 1)]),
    # Switches of the fifth generation show as network adapters: the plan knows them.
    ({"nvswitch": False}, {}, [("nvlink-down", State.FAIL, 0), ("nvlink-down", State.FAIL, 1)]),
)
def test_links_that_are_down_are_named(
    facts: dict[str, Any], links: dict[int, Links], found: list[tuple[str, State, int]]
) -> None:
    findings = Health().run(node(nvlinks=lambda: links, **facts)).findings
    assert [(finding.code, finding.state, finding.device) for finding in findings] == found


def test_a_gpu_without_any_link_beside_one_that_has_some() -> None:
    """On a board that has the links it is a fault; a card may have no bridge, whatever it is called."""
    for form_factor, name, mig, expected in (
        # Of a model that no table has, the socket in its name tells.
        (None, "NVIDIA A100-SXM4-40GB", "Disabled", [("nvlink-down", State.FAIL)]),
        (None, "NVIDIA A100-SXM4-40GB", "Enabled", []),
        (None, "NVIDIA RTX A6000", "Disabled", []),
        ("pcie", "NVIDIA A40", "Disabled", []),
        ("pcie", "NVIDIA H100 NVL", "Disabled", []),
        ("sxm", "NVIDIA H100 80GB HBM3", "Disabled", [("nvlink-down", State.FAIL)]),
        ("superchip", "NVIDIA GB200", "Disabled", [("nvlink-down", State.FAIL)]),
    ):
        references = References({"it": H100 | {"form_factor": form_factor}} if form_factor else {})
        facts: dict[str, Any] = {"nvswitch": False, "expectation": Expectation(references=references)}
        xml = smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", product_name=name, current_mig=mig))
        for links in ({0: Links(4, ())}, {0: Links(4, ()), 1: Links(0, (0, 1, 2, 3))}):
            found = Health().run(node(xml, nvlinks=lambda links=links: links, **facts)).findings
            assert [(finding.code, finding.state) for finding in found] == expected, name


def test_a_gpu_of_another_model_needs_no_links() -> None:
    xml = smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", pci_device_id="1EB810DE"))
    facts: dict[str, Any] = {"nvswitch": False, "expectation": Expectation()}
    assert Health().run(node(xml, nvlinks=lambda: {0: Links(12, ())}, **facts)).findings == ()


def test_links_that_cannot_be_looked_at_are_said() -> None:
    def fails() -> Any:
        raise NvidiaSmiError("timeout", "nvidia-smi gave no answer within 10 s")

    (finding,) = Health().run(node(nvlinks=fails)).findings
    assert (finding.code, finding.state) == ("nvlink-unknown", State.DEGRADED)
    assert Health().run(node(nvlinks=fails, **SWITCHLESS)).findings == ()


@each(
    ({"dram_uncorrectable": "Unknown Error"}, State.FAIL),
    ({"hw_slowdown": "[Unknown Error]"}, State.FAIL),
    ({"performance_state": "[Unknown Error]"}, State.DEGRADED),
    ({"current_power_limit": "ERR!"}, State.DEGRADED),
    ({"dram_uncorrectable": "GPU is lost"}, State.FAIL),
    ({"remapped_row_pending": "GPU requires reset"}, State.FAIL),
)
def test_an_error_in_place_of_a_value_is_not_healthy(changes: dict[str, str], state: State) -> None:
    (finding,) = Health().run(node(smi_xml(gpu_xml(**changes), SECOND))).findings
    assert (finding.code, finding.state, finding.device) == ("gpu-unanswered", state, 0)


def test_a_value_that_is_withheld_orders_no_reset() -> None:
    for words, actions in (
        ("Insufficient Permissions", {MachineAction.RERUN}),
        ("[The operating system has blocked the request.]", {MachineAction.RERUN}),
        ("RM has detected an NVML/RM version mismatch.", {MachineAction.CONFIGURE}),
        ("System is not in ready state", {MachineAction.RERUN}),
        # An error that NVML has got since: brackets stand around nothing else.
        ("[Invalid State]", {MachineAction.NONE}),
        ("[N/A]", set()),
        ("Unknown Error", {MachineAction.RESET_GPU}),
    ):
        xml = smi_xml(gpu_xml(remapped_row_pending=words, dram_uncorrectable=words), SECOND)
        findings = Health().run(node(xml)).findings
        assert {one.machine_action for one in findings} == actions, words
        assert [one.device for one in findings] == [0] * len(actions)
    both = gpu_xml(remapped_row_pending="Insufficient Permissions", dram_uncorrectable="Unknown Error")
    found = [(one.code, one.state) for one in Health().run(node(smi_xml(both, SECOND))).findings]
    assert found == [("gpu-unanswered", State.FAIL), ("gpu-withheld", State.DEGRADED)]


BUSY = "".join(f"<process_info><pid>{pid}</pid><type>C</type></process_info>" for pid in range(1, 301))
DRAWS = "<process_info><pid>7</pid><type>G</type><process_name>Xorg</process_name></process_info>"


@each(
    (
        {"processes": BUSY},
        "GPU 0 is in use by a process (pid 1), a process (pid 2), a process (pid 3) and 297 more: "
        "numbers will be too low",
    ),
    ({"processes": DRAWS}, None),
    (
        {"processes": DRAWS, "used": "20480 MiB"},
        "GPU 0 is in use by Xorg (pid 7): numbers will be too low",
    ),
)
def test_programs_that_compute_are_named_and_a_few_of_many(changes: dict[str, str], text: str | None) -> None:
    found = Health().run(node(smi_xml(gpu_xml(**changes), SECOND))).findings
    assert [finding.text for finding in found] == ([text] if text else [])


def test_a_warning_that_came_with_a_report_is_a_finding_of_the_gpu_that_it_names() -> None:
    report = nvidia_smi.parse(smi_xml(gpu_xml(), SECOND))
    said = {"what it said": None, "WARNING: infoROM is corrupted at gpu 0000:43:00.0": 1}
    for status, state in ((0, State.DEGRADED), (14, State.DEGRADED), (8, State.FAIL)):
        warned = dataclasses.replace(report, status=status, warnings=tuple(said))
        findings = Health().run(node(query=lambda warned=warned: warned)).findings
        assert {(one.code, one.state) for one in findings} == {("driver-warning", state)}
        assert [one.device for one in findings] == list(said.values())
        assert all(words in one.text for words, one in zip(said, findings, strict=True))


def log_of(*lines: str) -> Any:
    return lambda: KernelLog(kernel_log.events(lines))


OFF_THE_BUS = "NVRM: Xid (PCI:0000:43:00): 79, pid=12, name=python3, GPU has fallen off the bus."


def test_an_xid_names_the_gpu_what_it_means_and_what_nvidia_recommends() -> None:
    (finding,) = Health().run(node(kernel_log=log_of(OFF_THE_BUS, OFF_THE_BUS))).findings
    assert (finding.code, finding.state, finding.device) == ("xid-79", State.FAIL, 1)
    assert finding.text == (
        "GPU 1: Xid 79, the GPU has fallen off the bus; 2 times since the driver was loaded, last: "
        "pid=12, name=python3, GPU has fallen off the bus."
    )
    assert "reboot" in finding.action


GSP_STOPPED = (
    "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:43:00 (printing 1 of every 30).  "
    "The GPU likely needs to be reset."
)
RESET_REQUIRED = (
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) "
    "returned from status @ kernel_channel.c:2827"
)
LOST = (
    "NVRM: GPU5 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
    "returned from nvdEngineDumpCallbackHelper(pGpu) @ nv_debug_dump.c:273"
)
RECOVERY = "NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed from 0x0 (None) to {}"


def test_the_recovery_action_of_the_kernel_log_counts_where_nvidia_smi_has_none() -> None:
    for said, lines, actions in (
        ("N/A", ["0x2 (Node Reboot Required)"], [MachineAction.REBOOT]),
        ("N/A", ["0x2 (OS Reboot)"], [MachineAction.REBOOT]),
        ("N/A", ["0x1 (GPU Reset Required)"], [MachineAction.RESET_GPU]),
        ("N/A", ["0x1 (PF FLR)"], [MachineAction.RESET_GPU]),
        ("N/A", ["0x3 (Drain P2P)"], [MachineAction.RERUN]),
        ("N/A", ["0x4 (Drain and Reset)"], [MachineAction.RESET_GPU]),
        ("N/A", ["0x5 (Recover IMEX Domain)"], [MachineAction.CONFIGURE]),
        ("N/A", ["0x9 (Something New)"], [MachineAction.NONE]),
        ("N/A", ["something new"], [MachineAction.NONE]),
        # What came last counts, and nvidia-smi says what is wanted now.
        ("N/A", ["0x1 (GPU Reset Required)", "0x0 (None)"], []),
        ("N/A", ["0x0 (None)", "0x2 (Node Reboot Required)"], [MachineAction.REBOOT]),
        ("None", ["0x2 (Node Reboot Required)"], []),
        ("Reset", ["0x2 (Node Reboot Required)"], [MachineAction.RESET_GPU]),
    ):
        xml = smi_xml(gpu_xml(), SECOND.replace("action>None<", f"action>{said}<"))
        findings = Health().run(node(xml, kernel_log=log_of(*map(RECOVERY.format, lines)))).findings
        assert [one.machine_action for one in findings] == actions, (said, lines)
        assert all((one.code, one.device, one.state) == ("recovery-action", 1, "fail") for one in findings)
    broken = node(
        NvidiaSmiError("timeout", "no answer"), kernel_log=log_of(RECOVERY.format("0x2 (OS Reboot)"))
    )
    assert "recovery-action" in {one.code for one in Health().run(broken).findings}


def test_a_gpu_that_must_be_reset_without_an_xid_is_found_and_no_line_of_an_error_is_dropped() -> None:
    name = "NVRM: Xid (PCI:"  # of a process: as long as it can be
    for line, codes in (
        (RESET_REQUIRED, ["reset-required"]),
        (RESET_REQUIRED.replace("NVRM: ", "NVRM: GPU0 "), ["reset-required"]),
        (
            RESET_REQUIRED.replace("AssertOkFailedNoLog: Assertion", "CheckOkFailedNoLog: Check"),
            ["reset-required"],
        ),
        ("NVRM: Xid (PCI:0000:43:00): a new form, 13", ["kernel-error-unreadable"]),
        ("NVRM: Xid (PCI:0000:43:00): \u0663, a digit of no driver", ["kernel-error-unreadable"]),
        ("NVRM: Xid (PCI:0000:43:00 GPU-I:05", ["kernel-error-unreadable"]),
        # A place that is no address of a PCI device.
        ("NVRM: Xid (SOC0): 13, pid=7, name=python3, Graphics Exception", ["kernel-error-unreadable"]),
        ("NVRM: Xid (unknown): 79, GPU has fallen off the bus", ["kernel-error-unreadable"]),
        ("nvidia-nvswitch3: SXid (unknown): 20034, Fatal, Link 30", ["kernel-error-unreadable"]),
        (
            "NVRM: Xid (GPU-5a1e8e0c-1111-2222-3333-444455556666): 79, GPU has fallen",
            ["kernel-error-unreadable"],
        ),
        ("NVRM: GPU0 Xid (PCI:0000:43:00): 119, pid=1, name=x, Timeout", ["kernel-error-unreadable"]),
        ("NVRM: GPU0 Xid: 31, ENGINE CE2 faulted", ["kernel-error-unreadable"]),
        ("NVRM: GPU 0000:43:00.0: Xid 79, GPU has fallen off", ["kernel-error-unreadable"]),
        ("NVRM: XID (PCI:0000:43:00): 79, GPU has fallen off", ["kernel-error-unreadable"]),
        ("NVRM: Xid(PCI:0000:43:00): 79, GPU has fallen off", ["kernel-error-unreadable"]),
        (GSP_STOPPED, ["reset-required"]),
        (LOST, ["gpu-off-the-bus"]),
        (
            "NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting",
            ["reset-required"],
        ),
        # Names of processes of 15 characters, with words of the kernel behind.
        ("NVRM: Xid (abcd[7]: segfault at 0 ip 0 (a): 13, ", []),
        ("NVRM: Xid (abcd invoked oom-killer: gfp_mask=0x1 (GFP_KERNEL): ", []),
        ("NVRM: Xid (ab): page allocation failure: order:0 (a): ", []),
        ("NVRM: xid(00:00[7]: segfault at 0 ip 0", []),
        ("NVRM: GPU0 Xid:[7]: segfault at 0 ip 0", []),
        ("NVRM: GPU 0000:[7]: segfault at 0 ip 0", []),
        ("nvidia-nvswitch[7]: SXid (PCI:0000:c1:00.0): 1, Fatal, x", []),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Catastrophic, Link 30",
            ["kernel-error-unreadable"],
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 0 Engine instance 30", []),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x00000000, 0x00000000}", []),
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot",
            ["reboot-required"],
        ),
        (f"{name}[7]: segfault at 0 ip 0000:43:00", []),
        ("NVRM: nvAssert[7]: segfault [NV_ERR_RESET_REQUIRED]", []),
    ):
        findings = Health().run(node(kernel_log=log_of(line))).findings
        assert [one.code for one in findings] == codes, line
        assert all(" ".join(line.split()) in one.text for one in findings)


def test_a_gpu_that_is_lost_is_told_of_by_the_line_that_names_it() -> None:
    fallen = "NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus."
    for line, code in (
        (fallen, "xid-79"),
        ("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.", "gpu-off-the-bus"),
    ):
        for lines in ([LOST, line], [line, LOST, LOST]):
            (finding,) = Health().run(node(kernel_log=log_of(*lines))).findings
            assert (finding.code, finding.device) == (code, 1)
    (finding,) = Health().run(node(kernel_log=log_of(LOST, LOST))).findings
    assert (finding.code, finding.device, finding.machine_action) == ("gpu-off-the-bus", None, "reboot")


def test_a_gpu_whose_system_processor_stopped_is_told_of_once() -> None:
    (finding,) = Health().run(node(kernel_log=log_of(GSP_STOPPED))).findings
    assert (finding.code, finding.device, finding.machine_action) == ("reset-required", 1, "reset-gpu")
    timeout = "NVRM: Xid (PCI:0000:43:00): 119, pid=7, name=a, Timeout after 6s of waiting for RPC response"
    assert [one.code for one in Health().run(node(kernel_log=log_of(timeout, GSP_STOPPED))).findings] == [
        "xid-119"
    ]


NONFATAL = "NVRM: Xid (PCI:0000:43:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0)"


@each(
    ([NONFATAL], [("xid-nvlink-nonfatal", State.DEGRADED)]),
    (
        [NONFATAL.replace("Nonfatal", "Fatal"), NONFATAL],
        [("xid-145", State.FAIL), ("xid-nvlink-nonfatal", State.DEGRADED)],
    ),
    ([NONFATAL.replace("RLW_RXPIPE", "SAW_MVB").replace("00000008", "00000004")], []),
    (["NVRM: GPU 0000:43:00.0: GPU has fallen off the bus."], [("gpu-off-the-bus", State.FAIL)]),
    (["NVRM: Xid (PCI:0000:43:00): 999, something new"], [("xid-unknown", State.DEGRADED)]),
    # A program's own error, and an event.
    (["NVRM: Xid (PCI:0000:43:00): 31, pid=12, name=python3, MMU Fault"], []),
    (["NVRM: Xid (PCI:0000:43:00): 63, row remapping event"], []),
)
def test_the_kernel_log_names_the_gpu_and_how_bad_it_is(
    lines: list[str], expected: list[tuple[str, State]]
) -> None:
    result = Health().run(node(kernel_log=log_of(*lines)))
    assert [(finding.code, finding.state) for finding in result.findings] == expected
    assert all(finding.device == 1 and "GPU 1" in finding.text for finding in result.findings)
    assert sum(result.details["xids"].values()) == len(lines)


def test_an_error_from_before_the_driver_was_loaded_is_no_fault() -> None:
    loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04"
    assert Health().run(node(kernel_log=log_of(OFF_THE_BUS, loaded))).findings == ()


def test_a_gpu_that_is_named_without_its_domain_is_the_same_one() -> None:
    gone = "NVRM: GPU 43:00.0: GPU has fallen off the bus."
    (finding,) = Health().run(node(kernel_log=log_of(gone))).findings
    assert (finding.code, finding.device) == ("gpu-off-the-bus", 1)
    (finding,) = Health().run(node(kernel_log=log_of(OFF_THE_BUS, gone))).findings
    assert (finding.code, finding.device) == ("xid-79", 1)


def test_a_kernel_log_that_cannot_be_read_is_said() -> None:
    result = Health().run(node(kernel_log=lambda: KernelLog(unreadable="dmesg: not permitted")))
    assert result.details["kernel_log"] == "dmesg: not permitted"
    (finding,) = result.findings
    assert (finding.code, finding.state) == ("kernel-log-unreadable", State.DEGRADED)


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, {}, Link 30 LTSSM Fault Up"


def test_a_fatal_error_of_an_nvswitch_is_found_and_one_that_was_handled_counted() -> None:
    fatal = log_of(SWITCH.format("Fatal"), SWITCH.format("Fatal"))
    (finding,) = Health().run(node(kernel_log=fatal)).findings
    assert (finding.code, finding.state) == ("sxid-fatal", State.FAIL)
    assert finding.text == (
        "the NVSwitch at 0000:c1:00.0: 2 fatal errors since the driver was loaded, last: SXid 20034, Fatal, "
        "Link 30 LTSSM Fault Up"
    )
    handled = Health().run(node(kernel_log=log_of(SWITCH.format("Non-fatal"))))
    assert (handled.findings, handled.details["xids"]) == ((), {"SXid 20034": 1})


def test_a_report_that_lists_no_gpu_is_no_healthy_node() -> None:
    (finding,) = Health().run(node(smi_xml())).findings
    assert (finding.code, finding.state) == ("driver-no-devices", State.FAIL)
    assert node(smi_xml()).why_no_cuda() == "nvidia-smi -q -x lists no GPU"
