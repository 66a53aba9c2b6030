"""The plan of one node: what is installed and set there, or every reason to refuse it."""

from __future__ import annotations

from dataclasses import fields, replace

from temper.plan import distro_source, nvidia_source
from temper.plan.distributions import Distribution, distribution_of
from temper.plan.driver_conflicts import driver_conflicts
from temper.plan.environment import (
    environment,
    environment_problems,
    environment_warnings,
    firewall_warnings,
    interface_of,
    interface_problems,
)
from temper.plan.facts import NodeFacts
from temper.plan.hardware import (
    display_gpus,
    fabric_of,
    fabric_warnings,
    given_findings,
    given_gpus,
    gpu_findings,
    gpu_hardware,
    undriven_ids,
)
from temper.plan.machine import (
    busy_problems,
    clock_warnings,
    disk_problems,
    monitoring_problems,
    secure_boot_problems,
    signs_modules,
    state_problems,
)
from temper.plan.mig_products import matches, misspelt
from temper.plan.model import Driver, Environment, Offer, Target
from temper.plan.node_plan import NodePlan
from temper.plan.other_engines import engine_warnings
from temper.plan.refusals import Refusal
from temper.plan.request import Request
from temper.plan.security import security_warnings
from temper.plan.tables import LockedClocks, Tables
from temper.plan.text import plan_text
from temper.plan.torch_wheels import Situation, payload_plan
from temper.plan.tuning import nofile_problems, shm_problems, tuning_notes, tuning_problems, tuning_warnings
from temper.plan.variables import Variables
from temper.plan.versions import same

# Where packages come from: variable nvidia_stack_source.
SOURCES = {"nvidia": nvidia_source.offer, "distro": distro_source.offer}


def node_plan(node: NodeFacts, tables: Tables, variables: Variables, target: Target) -> NodePlan:
    """Return the plan of one node. With `refusals`, it must not be carried out."""
    image = variables.preflight.image
    distribution, problems = distribution_of(node, tables)
    stack = variables.nvidia_stack.state == "present"
    if not stack:
        # What cannot have a stack can be without one.
        problems = []
    hardware = gpu_hardware(node.own_pci, tables)
    given = given_gpus(node)
    gpus = hardware.known + hardware.similar
    wanted = variables.nvidia_stack
    fabric = fabric_of(node, wanted.fabric)
    gpu_problems, warnings = gpu_findings(
        hardware, given, tables, newer_ok=variables.preflight.unknown_gpu_ok
    )
    # Of an image it is said otherwise that no GPU is named.
    problems += gpu_problems if stack and (not image or node.pci) else []
    warnings = warnings + fabric_warnings(gpus, fabric, tables, wanted) if stack else []
    warnings += clock_warnings(node, target)
    settings, own_problems, own_warnings = settings_plan(
        node, tables, variables, distribution, hardware.count, target.address
    )
    problems += own_problems
    warnings += own_warnings

    offer = Offer(stack=wanted.name if stack else "")
    request = None
    if distribution and stack:
        request = Request(node, tables, variables, distribution, gpus, hardware.newer, fabric, target.today)
        offer = SOURCES[wanted.source](request)
    settled = bool(offer.packages) and all(
        same(node.packages.get(name), version) for name, version in offer.packages.items()
    )
    problems += state_problems(node)
    problems += offer.refusals
    if offer.driver:
        warnings += security_warnings(offer.packages, offer.driver.version, tables.security)
    if stack and distribution and not settled and not distribution.release.booted_in_lab:
        warnings.append(
            f"the lab does not boot {distribution.name}: this plan comes from tables; try one node first"
        )
    if distribution:
        problems += monitoring_problems(variables, distribution)
    payload = None
    if request and offer.driver:
        problems += driver_problems(request, offer.driver, target.mok_sha256, settled=settled)
    if request and offer.driver and offer.torch:
        situation = Situation(
            node, tables, variables.gpu_validation, request.distribution, gpus, offer.driver, offer.torch
        )
        payload, payload_problems, payload_warnings = payload_plan(situation)
        problems += payload_problems
        warnings += payload_warnings
    display, display_warnings = display_gpus(hardware, offer.driver, tables)
    warnings += display_warnings
    expected = sum(gpu.count for gpu in hardware.known + display) + len(hardware.unknown)
    given_problems, given_warnings = given_findings(given, expected)
    problems += given_problems
    warnings += given_warnings
    locks = [tables.architectures[gpu.architecture].locked_clocks for gpu in gpus + display]
    parts = {field.name: getattr(offer, field.name) for field in fields(Offer) if field.name != "torch"}
    parts |= {"refusals": tuple(problems), "warnings": (*warnings, *offer.warnings)}
    plan = NodePlan(
        **parts,
        payload=payload,
        source=wanted.source,
        package_manager=distribution.package_manager if distribution else None,
        system=distribution.name if distribution else None,
        architecture=node.architecture,
        image=image,
        gpus=hardware.known + display,
        unknown_gpus=hardware.unknown,
        undriven_gpus=undriven_ids(hardware, display, tables),
        given_gpus=tuple(device.address for device in given),
        mig_products=matches(variables.gpu_settings.mig or {}, node.own_pci, tables),
        fabric=fabric,
        locked_clocks=LockedClocks(
            graphics=all(lock.graphics for lock in locks), memory=all(lock.memory for lock in locks)
        ),
        environment=settings,
        # The distribution signs what it builds itself.
        mok=bool(offer.driver and offer.driver.dkms) and signs_modules(node, target.mok_sha256),
        settled=settled,
    )
    # What a machine lacks is seen on the machine.
    notes = [] if image else tuning_notes(variables.os_tuning, node.tunables)
    return replace(plan, text=plan_text(plan, node, notes))


def settings_plan(
    node: NodeFacts,
    tables: Tables,
    variables: Variables,
    distribution: Distribution | None,
    gpus: int,
    address: str,
) -> tuple[Environment, list[Refusal], list[str]]:
    """Return the environment of programs, and problems and warnings of what is set without a driver, too."""
    wanted, tuning = variables.compute_environment, variables.os_tuning
    by_address = interface_of(node.interfaces, address)
    settings, doubts = environment(node, gpus, wanted, by_address)
    problems = [
        *(environment_problems(wanted, distribution.name) if distribution else ()),
        *interface_problems(wanted, node.interfaces),
        *misspelt(variables.gpu_settings.mig or {}, node.own_pci, tables),
        *tuning_problems(tuning, node.tunables),
    ]
    if not variables.preflight.image:
        problems += shm_problems(tuning, node.memory_bytes)
        problems += nofile_problems(tuning, node.tunables.nr_open)
    warnings = [
        *environment_warnings(wanted, tables.nccl_debug_variables),
        *doubts,
        *firewall_warnings(settings, node.interfaces, by_address, variables.firewall),
        *tuning_warnings(tuning, node.tunables),
        *engine_warnings(node.other_engines, variables.container_engines),
    ]
    return settings, problems, warnings


def driver_problems(request: Request, driver: Driver, certificate: str, *, settled: bool) -> list[Refusal]:
    """Return what keeps a node from getting its driver."""
    node, variables, distribution = request.node, request.variables, request.distribution
    problems = driver_conflicts(node, variables.nvidia_stack.source, distribution, request.tables)
    if driver.dkms:
        signed = distro_source.has_signed_modules(request)
        problems += secure_boot_problems(node, variables, distribution, certificate, signed=signed)
        problems += distribution.header_problems(node.kernel)
        problems += distribution.realtime_problems(node)
    problems += disk_problems(node, variables, settled=settled)
    return problems + busy_problems(node, variables, settled=settled)
