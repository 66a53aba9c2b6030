"""GRUB on Debian and Ubuntu: the kernel that boots by default, and the one that boots once.

The default is a drop-in of ours in /etc/default/grub.d, which comes after all others. One try is `next_entry`
in GRUB's environment block, as grub-reboot sets it: the script that update-grub makes boots it whatever the
default is, and forgets it in the same moment, before the kernel starts (/etc/grub.d/00_header of GRUB 2.06).
What was written is read back from that script: it, and no option, says what will boot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper import process
from ansible.module_utils.temper.settings.base import SettingError

ROOT = Path("/")
SCRIPT = "boot/grub/grub.cfg"
ENVIRONMENT = "boot/grub/grubenv"
#: Of the files there, the last one counts; cloud images and kdump have some with numbers.
PIN = "etc/default/grub.d/zz-temper-kernel.cfg"
PROGRAMS = ("update-grub", "grub-editenv", "grub-probe")
#: It asks every disk what it is.
UPDATE_TIMEOUT_S = 600
#: Where GRUB reads its environment block and cannot write it: the lists of /etc/grub.d/00_header (2.06).
READ_ONLY = frozenset(
    {"diskfilter", "lvm", "btrfs", "cpiofs", "newc", "odc", "romfs", "squash4", "tarfs", "zfs"}
)
MENU = re.compile(r"(?P<kind>menuentry|submenu)\s+(?P<quote>['\"])(?P<title>.*?)(?P=quote)\s")
IDENTITY = re.compile(r"(?:\$\{?menuentry_id_option\}?|--id)[ =]+['\"]?([^'\"\s{]+)")
KERNEL = re.compile(r"linux(?:16|efi)?\s+\S*/vmlinuz-(\S+)")
DEFAULT = re.compile(r'^else\s+set default="([^"]*)"', re.MULTILINE)
SAVED = "${saved_entry}"
#: Between the names of menus; doubled, it is a part of a name.
DESCENDS = re.compile(r"(?<!>)>(?!>)")


@dataclass
class Menu:
    """An entry or a submenu: its names, any of which GRUB takes, and what is in it."""

    place: int
    title: str
    identity: str
    release: str = ""
    inner: list[Menu] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Place among its siblings, id, title."""
        return str(self.place), self.identity, self.title


def menus(script: str) -> list[Menu]:
    """Return the menus of a grub.cfg, each kernel with its release."""
    top: list[Menu] = []
    # Functions have braces as well, and are none.
    opened: list[Menu | None] = []
    for line in map(str.strip, script.splitlines()):
        around = [menu for menu in opened if menu]
        found = MENU.match(line)
        if found:
            siblings = around[-1].inner if around else top
            identity = IDENTITY.search(line)
            menu = Menu(len(siblings), found["title"].replace("'\\''", "'"), identity[1] if identity else "")
            siblings.append(menu)
            opened.append(menu)
        elif line.endswith("{"):
            opened.append(None)
        elif line == "}" and opened:
            opened.pop()
        elif around and (kernel := KERNEL.match(line)):
            around[-1].release = kernel[1]
    return top


def paths(found: Sequence[Menu], above: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the release of each entry with an id, and its path of ids (submenu>entry)."""
    for menu in found:
        if not menu.identity:
            continue
        way = (*above, menu.identity)
        if menu.release:
            yield menu.release, ">".join(name.replace(">", ">>") for name in way)
        yield from paths(menu.inner, way)


def release_of(path: str, found: Sequence[Menu]) -> str | None:
    """Return the kernel that GRUB boots for a path of places, ids or titles; None where it is no kernel's."""
    menu: Menu | None = None
    for name in DESCENDS.split(path or "0"):
        menu = next((one for one in found if name.replace(">>", ">") in one.names), None)
        if menu is None:
            return None
        found = menu.inner
    return menu.release or None if menu else None


def problem() -> str:
    """Return why GRUB cannot be told which kernel to boot; empty where it can."""
    missing = [name for name in PROGRAMS if not process.which(name)]
    if missing or not (ROOT / SCRIPT).is_file():
        lacks = ", ".join([*missing, *([] if (ROOT / SCRIPT).is_file() else [f"/{SCRIPT}"])])
        return (
            f"expected GRUB, which can try a kernel once, found none here ({lacks} is missing): a node that "
            "hangs would not come back by itself; upgrade its kernel by hand"
        )
    return ""


def warning() -> str:
    """Return what GRUB cannot do where its files are; empty where it can all."""
    place = str(ROOT / SCRIPT.rpartition("/")[0])
    words = [
        word
        for target in ("abstraction", "fs")
        for word in process.run(["grub-probe", f"--target={target}", place]).split()
    ]
    found = sorted(READ_ONLY.intersection(words))
    if not found:
        return ""
    return (
        f"GRUB cannot write to its environment block on {', '.join(found)}: where the new kernel hangs, "
        "choose the former one in its menu"
    )


def default_release() -> str | None:
    """Return the kernel that boots by itself; None where that is no kernel of this system."""
    script = _script()
    found = DEFAULT.search(script)
    path = found[1] if found else ""
    return release_of(environment().get("saved_entry", "") if path == SAVED else path, menus(script))


def next_release() -> str | None:
    """Return the kernel that boots once, next time; None where nothing is armed."""
    path = environment().get("next_entry", "")
    return release_of(path, menus(_script())) if path else None


def path_of(release: str) -> str:
    """Return the menu's path to a kernel. Raises SettingError where it has none that stays the same."""
    # The first entry keeps its id whatever kernel it boots; recovery's has one of its own.
    found = [path for one, path in paths(menus(_script())) if one == release]
    own = [path for path in found if release in path.rpartition(">")[2] and "-recovery-" not in path]
    if not own:
        raise SettingError(
            f"GRUB's menu has no entry of its own for kernel {release}: look at /{SCRIPT} and "
            "/etc/default/grub"
        )
    return own[0]


def pin(release: str) -> None:
    """Make a kernel the default until `unpin`. Raises SettingError where GRUB's script says another one."""
    text = (
        "# Managed by Temper: the kernel that boots by itself, until the roll-out of another one ends here.\n"
        f'GRUB_DEFAULT="{path_of(release)}"\n'
    )
    file = ROOT / PIN
    if not file.is_file() or file.read_text(encoding="utf-8") != text or default_release() != release:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".new")  # GRUB reads *.cfg
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
        update()
    found = default_release()
    if found != release:
        unpin()  # without effect, it would only be a riddle
        raise SettingError(
            f"Expected kernel {release} as GRUB's default, found {found or 'none'}: does /etc/default/grub.d "
            "or a script in /etc/grub.d set another one?"
        )


def pinned() -> bool:
    """Return whether the default is ours."""
    return (ROOT / PIN).exists()


def unpin() -> None:
    """Leave the default to the node's own options again."""
    if pinned():
        (ROOT / PIN).unlink()
        update()


def arm(release: str) -> None:
    """Have a kernel boot once. Raises SettingError where that is not what GRUB will do."""
    process.run(["grub-editenv", str(ROOT / ENVIRONMENT), "set", f"next_entry={path_of(release)}"])
    if next_release() != release:
        raise SettingError(f"Expected kernel {release} to boot next, found {next_release() or 'none'} armed.")


def disarm() -> None:
    """Have nothing boot once. Where GRUB cannot write, the one try is still there after it."""
    if "next_entry" in environment():
        process.run(["grub-editenv", str(ROOT / ENVIRONMENT), "unset", "next_entry"])


def environment() -> dict[str, str]:
    """GRUB's environment block; empty where it has none."""
    if not (ROOT / ENVIRONMENT).is_file():
        return {}
    lines = process.run(["grub-editenv", str(ROOT / ENVIRONMENT), "list"]).splitlines()
    return {name: value for name, sign, value in (line.partition("=") for line in lines) if sign}


def update() -> None:
    """Make GRUB's script anew."""
    process.run(["update-grub"], UPDATE_TIMEOUT_S)


def _script() -> str:
    return (ROOT / SCRIPT).read_text(encoding="utf-8", errors="replace")
