"""MIG of the simulated nvidia-smi: `nvidia-smi mig`, and what its reports say of instances.

Lists and their widths follow an H100 80GB HBM3 with driver 580.173.02 (starkdrift/prickle-exporter, captures
of 2026-07-29, MIG off and on; profiles are listed with MIG off, too). -lgipp, -cgi, -dci and -dgi and their
refusals follow NVIDIA's MIG user guide and published logs. Assumed: exit statuses other than 6 (taken to be
NVML's numbers), numbers of instances, and where an instance goes that is made without a place.

Instances live in /run/gpu-simulator/mig.json and are lost at reboot, as the real ones are.
"""

# ruff: noqa: PTH103, PTH105, PTH120, PTH123

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Instance = dict[str, Any]

IN_USE = (19, "In use by another client")
INVALID = (2, "Invalid Argument")
TOO_MUCH = (23, "Insufficient Resources")

# name, profile ID, most on a GPU, {starts}:size, memory GiB, SMs, decoders, encoders, copy engines, JPEG, OFA
H100 = """\
1g.10gb     19 7 0,1,2,3,4,5,6:1  9.75  16 1 0 1 1 0
1g.10gb+me  20 1 0,1,2,3,4,5,6:1  9.75  16 1 0 1 1 1
1g.20gb     15 4 0,2,4,6:2       19.62  26 1 0 1 1 0
2g.20gb     14 3 0,2,4:2         19.62  32 2 0 2 2 0
3g.40gb      9 2 0,4:4           39.50  60 3 0 3 3 0
4g.40gb      5 1 0:4             39.50  64 4 0 4 4 0
7g.80gb      0 1 0:8             79.25 132 7 0 8 7 1
"""
# NVIDIA's MIG user guide, A100-SXM4-40GB
A100 = """\
1g.5gb      19 7 0,1,2,3,4,5,6:1  4.75  14 0 0 1 0 0
1g.5gb+me   20 1 0,1,2,3,4,5,6:1  4.75  14 1 0 1 1 1
1g.10gb     15 4 0,2,4,6:2        9.75  14 1 0 1 0 0
2g.10gb     14 3 0,2,4:2          9.75  28 1 0 2 0 0
3g.20gb      9 2 0,4:4           19.62  42 2 0 3 0 0
4g.20gb      5 1 0:4             19.62  56 2 0 4 0 0
7g.40gb      0 1 0:8             39.38  98 5 0 7 1 1
"""
TABLES = {"NVIDIA H100 80GB HBM3": H100, "NVIDIA A100-SXM4-40GB": A100}


class MigError(Exception):
    """End the program with `status` after printing the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Profile:
    """One line of the tables above."""

    def __init__(self, line: str) -> None:
        self.name, number, most, places, self.memory, *counts = line.split()
        self.number, self.most = int(number), int(most)
        starts, _, size = places.partition(":")
        self.starts, self.size = [int(start) for start in starts.split(",")], int(size)
        self.processors, self.decoders, self.encoders, self.copy, self.jpeg, self.ofa = map(int, counts)

    def is_called(self, name: str) -> bool:
        return name in (self.name, f"MIG {self.name}", str(self.number))


def profiles(gpu: Any) -> list[Profile]:
    """The profiles of a GPU; none where they are not known."""
    return [Profile(line) for line in TABLES.get(gpu.hw["name"], "").splitlines()]


class Instances:
    """What the driver holds of GPU instances, by the GPU's UUID."""

    def __init__(self, run: str) -> None:
        self.path = f"{run}/mig.json"
        try:
            with open(self.path) as file:
                self.all: dict[str, list[Instance]] = json.load(file)
        except FileNotFoundError:
            self.all = {}

    def of(self, gpu: Any) -> list[Instance]:
        """Those of a GPU, which has none without MIG mode."""
        return self.all.get(gpu.uuid, []) if gpu.mode("mig") == "Enabled" else []

    def store(self, gpu: Any, instances: list[Instance]) -> None:
        self.all[gpu.uuid] = instances
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with open(f"{self.path}.new", "w") as file:
            json.dump(self.all, file)
        os.replace(f"{self.path}.new", self.path)


def taken(instances: list[Instance]) -> set[int]:
    return {
        at for instance in instances for at in range(instance["start"], instance["start"] + instance["size"])
    }


def free(profile: Profile, instances: list[Instance]) -> int:
    """How many more of a profile fit."""
    used, count = taken(instances), 0
    for start in profile.starts:
        slices = set(range(start, start + profile.size))
        if not slices & used:
            used |= slices
            count += 1
    made = [instance["name"] for instance in instances].count(profile.name)
    return max(min(count, profile.most - made), 0)


# ---------------------------------------------------------------- lists


def frame(width: int, head: list[str], body: list[list[str]]) -> str:
    line = "+" + "-" * width + "+"
    rows = [row for lines in body for row in (*lines, line)]
    return "\n".join(
        [line, *(f"| {text}".ljust(width + 1) + "|" for text in head), f"|{'=' * width}|", *rows]
    )


def list_profiles(gpus: list[Any], instances: Instances) -> str:
    head = [
        "GPU instance profiles:",
        "GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC",
        "                               Free/Total   GiB              CE    JPEG  OFA",
    ]
    body = [
        [
            f"|{gpu.index:>4}  {'MIG ' + one.name:<19}{one.number:>3}"
            f"{f'{free(one, instances.of(gpu))}/{one.most}':>8}        {one.memory:<11}No"
            f"     {one.processors:<7}{one.decoders:<6}{one.encoders:<4}|",
            f"|{'':63}{one.copy:<6}{one.jpeg:<6}{one.ofa:<4}|",
        ]
        for gpu in gpus
        for one in profiles(gpu)
    ]
    return frame(79, head, body)


def list_places(gpus: list[Any], _: Instances) -> str:
    return "\n".join(
        f"GPU {gpu.index:>2} Profile ID {one.number:>2} {'Placements:' if one.starts[1:] else 'Placement :'} "
        f"{{{','.join(map(str, one.starts))}}}:{one.size}"
        for gpu in gpus
        for one in profiles(gpu)
    )


def list_instances(gpus: list[Any], instances: Instances) -> str:
    head = [
        "GPU instances:",
        "GPU   Name               Profile  Instance   Placement",
        "                           ID       ID       Start:Size",
    ]
    body = [
        [
            f"|{gpu.index:>4}  {'MIG ' + one['name']:<19}{one['profile']:>5}{one['id']:>9}"
            f"{'{start}:{size}'.format(**one):>13}     |"
        ]
        for gpu in gpus
        for one in instances.of(gpu)
    ]
    if not body:
        raise MigError(6, "No GPU instances found: Not Found")
    return frame(57, head, body)


def list_compute(gpus: list[Any], instances: Instances) -> str:
    head = [
        "Compute instances:",
        "GPU     GPU       Name             Profile   Instance   Placement",
        "      Instance                       ID        ID       Start:Size",
        "        ID",
    ]
    body = [
        [f"|{gpu.index:>4}{one['id']:>7}       {'MIG ' + name:<19}{0:>3}{number:>10}{'0:1':>13}     |"]
        for gpu in gpus
        for one in instances.of(gpu)
        for number, name in enumerate(one["compute"])
    ]
    if not body:
        raise MigError(6, "No compute instances found: Not Found")
    return frame(68, head, body)


# ---------------------------------------------------------------- changes


def create(gpu: Any, instances: Instances, wanted: str, compute: bool) -> list[str]:
    """Make GPU instances one after the other: what was made before a refusal stays."""
    said = []
    for text in wanted.split(","):
        name, _, place = text.strip().partition(":")
        profile = next((one for one in profiles(gpu) if one.is_called(name)), None)
        there = instances.of(gpu)
        status, reason = 0, ""
        starts: list[int] = []
        if gpu.computing:
            status, reason = IN_USE
        elif profile is None or (place and int(place) not in profile.starts):
            status, reason = INVALID
        else:
            starts = [
                start
                for start in profile.starts
                if place in ("", str(start))
                and not taken(there) & set(range(start, start + profile.size))
                and free(profile, there)
            ]
            if not starts:
                status, reason = TOO_MUCH
        if status or profile is None:
            said.append(
                f"Unable to create a GPU instance on GPU {gpu.index:>2} using profile {name}: {reason}"
            )
            raise MigError(status, "\n".join([*said, f"Failed to create GPU instances: {reason}"]))
        number = min(set(range(1, 15)) - {one["id"] for one in there})
        short = profile.name.partition("+")[0]
        made = {"name": profile.name, "profile": profile.number, "id": number, "start": starts[0]}
        made |= {"size": profile.size, "compute": [short] if compute else []}
        instances.store(gpu, [*there, made])
        where = f"on GPU {gpu.index:>2}"
        said.append(
            f"Successfully created GPU instance ID {number:>2} {where} using profile MIG {profile.name} "
            f"(ID {profile.number:>2})"
        )
        if compute:
            said.append(
                f"Successfully created compute instance ID  0 {where} GPU instance ID {number:>2} "
                f"using profile MIG {short} (ID  0)"
            )
    return said


def destroy_compute(gpu: Any, instances: Instances) -> list[str]:
    said = [
        f"Successfully destroyed compute instance ID {number:>2} from GPU {gpu.index:>2} GPU instance ID "
        f"{one['id']:>2}"
        for one in instances.of(gpu)
        for number, _ in enumerate(one["compute"])
    ]
    if not said:
        raise MigError(6, "No compute instances found: Not Found")
    if gpu.computing:
        status, reason = IN_USE
        raise MigError(status, f"Failed to destroy compute instances: {reason}")
    instances.store(gpu, [{**one, "compute": []} for one in instances.of(gpu)])
    return said


def destroy(gpu: Any, instances: Instances) -> list[str]:
    there = instances.of(gpu)
    if not there:
        raise MigError(6, "No GPU instances found: Not Found")
    if held := [one for one in there if one["compute"]]:
        status, reason = IN_USE
        first = f"Unable to destroy GPU instance ID {held[0]['id']:>2} from GPU {gpu.index:>2}: {reason}"
        raise MigError(status, f"{first}\nFailed to destroy GPU instances: {reason}")
    instances.store(gpu, [])
    return [f"Successfully destroyed GPU instance ID {one['id']:>2} from GPU {gpu.index:>2}" for one in there]


LISTS = {"-lgip": list_profiles, "-lgipp": list_places, "-lgi": list_instances, "-lci": list_compute}


def run(arguments: list[str], gpus: list[Any], state: str, *, root: bool) -> str:
    """Carry `nvidia-smi mig` out and return what it prints. Raises MigError where it fails."""
    instances = Instances(state)
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    capable = [gpu for gpu in gpus if gpu.hw["mig_capable"]]
    enabled = [gpu for gpu in capable if gpu.mode("mig") == "Enabled"]
    if verb in LISTS and not rest:
        chosen = capable if verb in ("-lgip", "-lgipp") else enabled
        if not chosen:
            raise MigError(6, "No MIG-enabled devices found.")
        return LISTS[verb](chosen, instances)
    if not root:
        raise MigError(4, "Insufficient Permissions")
    if not enabled:
        raise MigError(6, "No MIG-enabled devices found.")
    if verb == "-cgi" and rest and rest[1:] in ([], ["-C"]):
        said = [line for gpu in enabled for line in create(gpu, instances, rest[0], bool(rest[1:]))]
    elif verb in ("-dci", "-dgi") and not rest:
        work = destroy_compute if verb == "-dci" else destroy
        said = [line for gpu in enabled for line in work(gpu, instances)]
    else:
        raise MigError(
            255, "Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help."
        )
    return "\n".join(said)


# ---------------------------------------------------------------- reports


def devices(gpu: Any, state: str) -> list[tuple[str, dict[str, str], Profile]]:
    """Each compute instance as nvidia-smi -L and -q -x show it: its name, its ids, and its profile."""
    known = {one.name: one for one in profiles(gpu)}
    found = [
        (name, one, number) for one in Instances(state).of(gpu) for number, name in enumerate(one["compute"])
    ]
    return [
        (
            name,
            {
                "index": str(index),
                "gpu_instance_id": str(one["id"]),
                "compute_instance_id": str(number),
                "uuid": f"MIG-{gpu.uuid[4:-2]}{one['id']:02x}",
            },
            known[one["name"]],
        )
        for index, (name, one, number) in enumerate(found)
    ]


def report(gpu: Any, state: str) -> list[Any]:
    """The element mig_devices of -q -x, in the simulator's form of leaves."""
    return [
        (
            "mig_device",
            [
                *((name, ids[name]) for name in ("index", "gpu_instance_id", "compute_instance_id")),
                (
                    "device_attributes",
                    [
                        (
                            "shared",
                            [
                                ("multiprocessor_count", str(profile.processors)),
                                ("copy_engine_count", str(profile.copy)),
                                ("encoder_count", str(profile.encoders)),
                                ("decoder_count", str(profile.decoders)),
                                ("ofa_count", str(profile.ofa)),
                                ("jpg_count", str(profile.jpeg)),
                            ],
                        )
                    ],
                ),
                ("fb_memory_usage", [("total", f"{float(profile.memory) * 1024:.0f} MiB")]),
            ],
        )
        for _, ids, profile in devices(gpu, state)
    ]
