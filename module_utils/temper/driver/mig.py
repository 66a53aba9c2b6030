"""MIG layouts of GPUs: what is there, what fits, and the way from one to the other.

MIG mode outlives a reboot, instances do not. A layout is the profiles of a GPU's instances, each with its
default compute instance; where on the GPU they lie is no part of it. The lists of `nvidia-smi mig` are read
as an H100 with driver 580.173.02 gave them (starkdrift/prickle-exporter, captures of 2026-07-29), -lgipp as
NVIDIA's MIG user guide has it. Installed on the node, too, beside gpu_settings.py.
"""

from __future__ import annotations

import difflib
import re
import typing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper.driver.holders import DAEMONS, holders
    from ansible.module_utils.temper.driver.smi import SettingsError, nvidia_smi, set_one
else:
    from holders import DAEMONS, holders
    from smi import SettingsError, nvidia_smi, set_one

DISABLED = "disabled"
EVERY = "all"
ON, OFF = "Enabled", "Disabled"
# What `nvidia-smi mig` says, with a status that is not 0, where its lists are empty.
NO_PROFILES = "No MIG-enabled devices found"
NO_INSTANCES = "instances found"
# |   0  MIG 1g.10gb+me      20     1/1        9.75       No     16     1     0   |
PROFILE = re.compile(r"^\|\s+(\d+)\s+MIG\s+(\S+)\s+(\d+)\s+\d+/(\d+)\s", re.MULTILINE)
# GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
PLACES = re.compile(
    r"^GPU\s+(\d+)\s+Profile ID\s+(\d+)\s+Placements?\s*:\s*\{(\d+(?:,\d+)*)\}:(\d+)", re.MULTILINE
)
# |   0  MIG 3g.40gb            9        1          0:4     |
INSTANCE = re.compile(r"^\|\s+(\d+)\s+MIG\s+(\S+)\s+\d+\s+(\d+)\s+\d+:\d+\s", re.MULTILINE)
# |   0      1       MIG 1c.3g.40gb       0         0          2:1     |
COMPUTE = re.compile(r"^\|\s+(\d+)\s+(\d+)\s+MIG\s+(\S+)\s+\d+\s+\d+\s+\d+:\d+\s", re.MULTILINE)
CLOSEST = 3
MOST_DIGITS = 9


@dataclass(frozen=True)
class Card:
    """A GPU and its MIG mode, now and from the next boot on: Enabled, Disabled; [N/A] without MIG."""

    index: int
    name: str
    uuid: str
    mode: str
    pending: str

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name})"

    @property
    def capable(self) -> bool:
        """Whether it can be divided."""
        return self.mode in (ON, OFF)


class Profile(typing.NamedTuple):
    """A kind of GPU instance: its name and number, how many a GPU takes, where they may lie, and how long."""

    name: str
    number: int
    most: int
    starts: tuple[int, ...]
    size: int


class Change(typing.NamedTuple):
    """A GPU's way to another layout. `layout`: the wanted one, None without MIG. `found`: the present one."""

    card: Card
    layout: list[str] | None
    found: list[str] | None

    @property
    def mode(self) -> str:
        """The MIG mode that the layout needs."""
        return ON if self.layout else OFF

    @property
    def made(self) -> bool:
        """Whether only the mode of the next boot is another one."""
        return shown(self.found) == shown(self.layout)

    def __str__(self) -> str:
        waits = " until the next reboot" if self.card.mode != self.card.pending else ""
        return f"{shown(self.found)}{waits} -> {shown(self.layout)}"


def shown(layout: list[str] | None) -> str:
    """Return a layout in words."""
    return DISABLED if layout is None else ", ".join(sorted(layout)) or "no instances"


# ---------------------------------------------------------------- what is wanted


def check(wish: typing.Any) -> None:
    """Raise SettingsError for a value of gpu_settings_mig that cannot be understood."""
    if wish is None:
        return
    if not isinstance(wish, dict) or not wish:
        raise SettingsError(
            f"gpu_settings_mig: expected GPUs and layouts, as {{all: [3g.40gb, 3g.40gb]}}, found {wish!r}"
        )
    for gpu, layout in wish.items():
        key = str(gpu)
        # A product's name has letters, and no driver begins it with GPU, as people begin indexes and UUIDs.
        if not (key.isdigit() or key == EVERY) and (
            not re.search(r"[A-Za-z]", key) or re.match(rf"(?i)gpu|{EVERY}$", key)
        ):
            raise SettingsError(
                "gpu_settings_mig: expected the index of a GPU, a product as nvidia-smi names it, or "
                f"{EVERY}, found {gpu!r}"
            )
        names = layout if isinstance(layout, list) else []
        if layout != DISABLED and (
            not names or any(not isinstance(name, str) or set(name) & set(", :") for name in names)
        ):
            raise SettingsError(
                f"gpu_settings_mig: expected for {gpu} a list of profiles, or {DISABLED}, found {layout!r}"
            )


def layouts(wish: dict[str, typing.Any], cards: list[Card]) -> dict[int, list[str] | None]:
    """Index -> wanted layout, None for a GPU without MIG. A GPU that nobody names is left alone.

    An index counts before a product's name, and that before "all". Raises SettingsError for a GPU that is not
    there or that cannot be divided.
    """
    by_key = {str(key): layout for key, layout in wish.items()}
    indexes, names = {str(card.index) for card in cards}, {card.name for card in cards}
    here = f"this node has {', '.join(map(str, cards))}"
    for key in by_key:
        if key.isdigit() and key not in indexes:
            raise SettingsError(f"gpu_settings_mig: there is no GPU {key}; {here}")
    # One inventory may name the products of several kinds of nodes: one of them must be here.
    if not by_key.keys() & {EVERY, *indexes, *names}:
        raise SettingsError(f"gpu_settings_mig: none of {', '.join(by_key)} is here; {here}")
    found: dict[int, list[str] | None] = {}
    for card in cards:
        keys = [key for key in (str(card.index), card.name, EVERY) if key in by_key]
        if not keys:
            continue
        layout = None if by_key[keys[0]] == DISABLED else list(by_key[keys[0]])
        if layout and not card.capable:
            raise SettingsError(
                f"{card}: it cannot be divided (nvidia-smi says {card.mode} of its MIG mode); name the GPUs "
                "that can be in gpu_settings_mig, by index or product"
            )
        if card.capable:
            found[card.index] = layout
    return found


# ---------------------------------------------------------------- what is there


def profiles() -> dict[int, dict[str, Profile]]:
    """Index of a GPU -> its profiles by name. Drivers may list them only where MIG mode is on.

    Raises SettingsError.
    """
    places = {
        (_number(gpu), _number(number)): (tuple(map(_number, starts.split(","))), _number(size))
        for gpu, number, starts, size in PLACES.findall(nvidia_smi("mig", "-lgipp", nothing=NO_PROFILES))
    }
    found: dict[int, dict[str, Profile]] = {}
    for gpu, name, number, most in PROFILE.findall(nvidia_smi("mig", "-lgip", nothing=NO_PROFILES)):
        starts, size = places.get((_number(gpu), _number(number)), ((), 0))
        found.setdefault(_number(gpu), {})[name] = Profile(name, _number(number), _number(most), starts, size)
    return found


def _number(digits: str) -> int:
    """Return a number of a list of nvidia-smi's."""
    if len(digits) > MOST_DIGITS:
        raise SettingsError(
            f"`nvidia-smi mig` lists a number of {len(digits)} digits, expected at most {MOST_DIGITS}"
        )
    return int(digits)


def present(cards: list[Card]) -> dict[int, list[str]]:
    """Index -> profiles of the instances of each GPU in MIG mode.

    An instance that is divided further, or has no compute instance, is not its profile, and says so.
    """
    on: dict[int, list[str]] = {card.index: [] for card in cards if card.mode == ON}
    if not on:
        return {}
    inside: dict[tuple[str, str], list[str]] = {}
    for gpu, instance, name in COMPUTE.findall(nvidia_smi("mig", "-lci", nothing=NO_INSTANCES)):
        inside.setdefault((gpu, instance), []).append(name)
    for gpu, name, instance in INSTANCE.findall(nvidia_smi("mig", "-lgi", nothing=NO_INSTANCES)):
        parts = inside.get((gpu, instance), [])
        # "1g.10gb+me" holds "1g.10gb": extensions are no part of a compute instance's name.
        whole = len(parts) == 1 and name.startswith(parts[0])
        shown_as = name if whole else f"{name} ({', '.join(parts) or 'no compute instance'})"
        on.get(_number(gpu), []).append(shown_as)
    return on


def differences(wish: dict[str, typing.Any], cards: list[Card]) -> list[Change]:
    """Return what has to change, on which GPUs. A mode that waits for a reboot is as good as set.

    Raises SettingsError for a layout that a GPU cannot have, as far as the driver says that by now.
    """
    wanted, there, found = layouts(wish, cards), present(cards), []
    for card in cards:
        if card.index not in wanted:
            continue
        layout, now = wanted[card.index], there.get(card.index)
        change = Change(card, layout, now)
        if card.pending != change.mode or (card.mode == change.mode and not change.made):
            found.append(change)
    known = profiles() if any(change.layout for change in found) else {}
    for change in found:
        if change.layout and change.card.index in known:
            arranged(change.card, change.layout, known[change.card.index])
    return found


# ---------------------------------------------------------------- what fits


def arranged(card: Card, layout: list[str], known: dict[str, Profile]) -> list[tuple[Profile, int]]:
    """Return where each instance of a layout goes, longest first.

    Raises SettingsError where they do not fit.
    """
    if not known:
        raise SettingsError(f"{card}: the driver lists no MIG profile of it, although its MIG mode is on")
    for name in layout:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=CLOSEST, cutoff=0)
            raise SettingsError(f"{card}: it has no MIG profile {name}; the nearest are {', '.join(nearest)}")
    instances = sorted((known[name] for name in layout), key=lambda one: (-one.size, len(one.starts), one))
    if (found := places(instances)) is not None:
        return found
    fitting: list[Profile] = []
    for one in instances:
        if places([*fitting, one]) is not None:
            fitting.append(one)
    raise SettingsError(
        f"{card}: the MIG instances {shown(layout)} do not fit on it together; of these fit "
        f"{shown([one.name for one in fitting])}, and it takes at most "
        f"{', '.join(f'{one.most} x {one.name}' for one in known.values())}"
    )


def places(instances: list[Profile]) -> list[tuple[Profile, int]] | None:
    """Return a start for each instance so that none overlaps another; None where that is impossible."""
    if any(instances.count(one) > one.most for one in instances):
        return None

    def rest(index: int, taken: frozenset[int]) -> list[tuple[Profile, int]] | None:
        if index == len(instances):
            return []
        one = instances[index]
        for start in one.starts:
            slices = set(range(start, start + one.size))
            if not slices & taken and (others := rest(index + 1, taken | slices)) is not None:
                return [(one, start), *others]
        return None

    return rest(0, frozenset())


# ---------------------------------------------------------------- the way there


def refusal(changes: list[Change], allowed: bool) -> str | None:
    """Return why these changes are not made: nobody allowed them, or somebody uses the GPU; else None."""
    for change in changes:
        if not allowed:
            return (
                f"{change.card}: expected the MIG layout {shown(change.layout)}, found "
                f"{shown(change.found)}; set gpu_settings_mig_change_ok: true to have its instances "
                "destroyed and made anew"
            )
        if users := holders(uuid=change.card.uuid, ignore=DAEMONS):
            return f"{change.card}: {users[0]}, so its MIG layout stays as it is; end that and run again"
    return None


def carry_out(changes: list[Change]) -> None:
    """Make the layouts and read them back; where a mode waits for a reboot, the boot unit makes them.

    Raises SettingsError when a GPU refuses.
    """
    for change in changes:
        if change.found and not change.made:
            nvidia_smi("mig", "-i", str(change.card.index), "-dci", nothing=NO_INSTANCES)
            nvidia_smi("mig", "-i", str(change.card.index), "-dgi", nothing=NO_INSTANCES)
        if change.card.pending != change.mode and not switched(change.card, change.mode):
            continue
        if change.layout and not change.made:
            create(change.card, change.layout, change.card.mode == ON)


def switched(card: Card, mode: str) -> bool:
    """Switch MIG mode; whether it is in force at once. It waits where the GPU could not be reset."""
    set_one(str(card), card.index, "-mig", "1" if mode == ON else "0")
    query = ("-i", str(card.index), "--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader")
    now, pending = (text.strip() for text in nvidia_smi(*query).split(","))
    if pending != mode:
        raise SettingsError(
            f"{card}: MIG mode did not take ({card.mode} -> {mode}); nvidia-smi reported no error"
        )
    return now == mode


def create(card: Card, layout: list[str], was_on: bool) -> None:
    """Make a layout on a GPU without instances and read it back.

    A mode that was switched on only for this goes off again where its profiles, which only now are known, do
    not allow the layout.
    """
    try:
        instances = arranged(card, layout, profiles().get(card.index, {}))
    except SettingsError:
        if not was_on:
            switched(card, OFF)
        raise
    where = ",".join(f"{one.number}:{start}" for one, start in instances)
    nvidia_smi("mig", "-i", str(card.index), "-cgi", where, "-C")
    found = present([replace(card, mode=ON)])[card.index]
    if shown(found) != shown(layout):
        raise SettingsError(
            f"{card}: the MIG layout did not take: expected {shown(layout)}, found {shown(found)}"
        )
