"""What an inventory says twice, and differently: found before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# The end of the names of instances that can draw.
GRAPHICS_INSTANCE = "+gfx"
# Groups whose files of variables are a node's profile; inventory/example has four.
PROFILE = "profile_"


def profiles_of(groups: Iterable[object]) -> tuple[str, ...]:
    """Return the profiles among a node's groups, which should be one at most."""
    return tuple(sorted(group for group in map(str, groups) if group.startswith(PROFILE)))


def profile_problems(node: str, groups: Iterable[object]) -> list[str]:
    """Return a sentence where a node is in several profiles: which values it got would be chance."""
    profiles = profiles_of(groups)
    if len(profiles) <= 1:
        return []
    return [
        f"{node} is in the groups {' and '.join(profiles)}, of which one would hide the values of another; "
        "a node has one profile: take it out of the other groups"
    ]


def slurm_problems(layouts: Mapping[str, object], *, devices: bool) -> list[str]:
    """Return a sentence where Slurm would hand out whole GPUs that are divided."""
    if not devices or not any(isinstance(layout, list) for layout in layouts.values()):
        return []
    return [
        "compute_environment_slurm_gpus: devices lists whole GPUs, and gpu_settings_mig divides some into "
        "instances; set compute_environment_slurm_gpus: nvml, which finds instances"
    ]


def instance_problems(layouts: Mapping[str, object], *, graphics: bool) -> list[str]:
    """Return a sentence where every GPU is divided into instances that cannot draw, on a node for graphics.

    NVIDIA's MIG user guide: no graphics APIs in MIG mode, but in profiles whose names end in +gfx.
    """
    if not graphics or "all" not in layouts:
        return []
    divided = [layout for layout in layouts.values() if isinstance(layout, list)]
    names = list(dict.fromkeys(str(profile) for layout in divided for profile in layout))
    if len(divided) < len(layouts) or any(name.endswith(GRAPHICS_INSTANCE) for name in names):
        return []
    return [
        f"gpu_settings_mig divides all GPUs into {', '.join(names)}, and nvidia_stack_graphics wants "
        "graphics, which no such instance has; leave a GPU whole, or leave nvidia_stack_graphics out"
    ]
