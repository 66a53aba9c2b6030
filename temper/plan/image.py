"""The tree of an image: a plan for GPUs that are not there, and nothing of it is live."""

from __future__ import annotations

import difflib
from dataclasses import replace

from temper.plan.facts import Cpu, NodeFacts, PciDevice, Tunables
from temper.plan.node_plan import RolePlan
from temper.plan.refusals import Refusal, Remedy, advice, refusal
from temper.plan.tables import Tables
from temper.plan.variables import Preflight
from temper.plan.wanted import Kind

NVIDIA = "10de:"
COMPUTES = "0302"
#: Kinds of settings that are of the running system alone: files and units beside them bring them at boot.
LIVE = (Kind.SYSCTL, Kind.SYSFS, Kind.MOUNT, Kind.TMPFS, Kind.GPU)
#: What these roles write depends on a machine's processors, network and GPUs: the first run on it does it.
OF_A_MACHINE = ("compute_environment",)
HEX_DIGITS = 4
NO_TUNABLES = Tunables(
    cpu_governors=(),
    hugepages=(),
    hugepages_defrag=(),
    irqbalance=False,
    nr_open=0,
    nvme=False,
    nvme_schedulers=(),
    ofed="",
    rdma=False,
    shm=False,
    tuners=(),
)


def of_image(role: RolePlan) -> RolePlan:
    """Return what a role sets in an image: files, packages, accounts, and units that are enabled."""
    options = replace(role.options, live=False)
    if role.role in OF_A_MACHINE:
        return RolePlan(role.role, role.stage, options=options)
    return replace(
        role,
        settings=tuple(setting for setting in role.settings if setting.kind not in LIVE),
        reactions=tuple(reaction for reaction in role.reactions if not reaction.live),
        options=options,
    )


def as_image(
    node: NodeFacts, wish: Preflight, tables: Tables, mok_sha256: str
) -> tuple[NodeFacts, list[Refusal]]:
    """Return the facts of the machine that an image is for, and why the node is no tree of one.

    Of the machine that builds, nothing may decide: neither its processors nor its network, firmware or GPUs.
    """
    problems = [refusal("image-tree", reason=node.image_refusal)] if node.image_refusal else []
    devices: list[PciDevice] = []
    if not wish.image_gpus:
        problems.append(refusal("image-gpus-missing"))
    for entry in wish.image_gpus:
        device_id = pci_id(entry.gpu, tables)
        if device_id is None:
            problems.append(refusal("image-gpu-unknown", meant(entry.gpu, tables), gpu=entry.gpu))
        elif entry.count < 1:
            problems.append(refusal("image-gpu-count", gpu=entry.gpu, found=entry.count))
        else:
            devices += [
                PciDevice(f"image:{len(devices) + index:02x}", device_id, COMPUTES)
                for index in range(entry.count)
            ]
    return (
        replace(
            node,
            pci=tuple(devices),
            nvlink_switch_managed=False,
            cpu=Cpu(1, 1, 1),
            interfaces=(),
            # Nobody knows yet; the first run on the machine does, and has to come in before it.
            answers_elsewhere=True,
            usb_disk=True,
            services=(),
            # Modules are signed where the operator gives the key: the image may meet Secure Boot.
            secure_boot="enabled" if mok_sha256 else "disabled",
            mok_enrolled=(mok_sha256,) if mok_sha256 else (),
            nvidia=replace(
                node.nvidia,
                loaded_version=None,
                nouveau_loaded=False,
                counters_restricted=None,
                compute_processes=(),
            ),
            tunables=replace(NO_TUNABLES, irqbalance=node.tunables.irqbalance),
        ),
        problems,
    )


def meant(gpu: str, tables: Tables) -> Remedy | None:
    """Return the model that was probably meant."""
    close = difflib.get_close_matches(gpu.lower(), tables.models, n=1)
    return advice("did-you-mean", name=close[0]) if close else None


def pci_id(gpu: str, tables: Tables) -> str | None:
    """Return the PCI device id of a model's key, its name, or an id as lspci writes it.

    None where it is none.
    """
    wanted = gpu.strip().lower()
    for key, model in tables.models.items():
        if wanted in (key.lower(), model.name.lower()):
            return model.pci_ids[0]
    digits = wanted.removeprefix(NVIDIA).removeprefix("0x")
    if len(digits) != HEX_DIGITS or not set(digits) <= set("0123456789abcdef"):
        return None
    return digits
