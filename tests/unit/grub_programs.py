"""Stand-ins of GRUB's programs on a file tree, and a boot that goes by what they have written.

`update-grub` writes the script in the words of Debian 12's own (GRUB 2.06: what its 00_header and 10_linux
printed on 2026-11-22). What boots is looked up in a table beside it, so that a test trusts no reading of it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.unit.executables import executable

UUID = "11111111-2222-3333-4444-555555555555"
ENTRY = """{indent}menuentry '{title}' --class debian --class os $menuentry_id_option '{identity}' {{
{indent}	load_video
{indent}	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
{indent}	linux	/boot/vmlinuz-{release} root=UUID={uuid} ro  quiet
{indent}	initrd	/boot/initrd.img-{release}
{indent}}}
"""
HEADER = """if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="@DEFAULT@"
fi

function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
"""
UPDATE = r"""
import json, pathlib, re
root = pathlib.Path(ROOT)
default = "0"
for path in [root / "etc/default/grub", *sorted((root / "etc/default/grub.d").glob("*.cfg"))]:
    if path.is_file():
        default = ([default] + re.findall(r'^GRUB_DEFAULT="?([^"\n]*)"?$', path.read_text(), re.M))[-1]
found = [path.name.removeprefix("vmlinuz-") for path in (root / "boot").glob("vmlinuz-*")]
found.sort(key=lambda release: [int(number) for number in re.findall(r"\d+", release)], reverse=True)
def entry(release, kind, indent="\t"):
    identity = f"gnulinux-{release}-{kind}-{UUID}"
    title = f"Debian GNU/Linux, with Linux {release}" + " (recovery mode)" * (kind == "recovery")
    return ENTRY.format(indent=indent, title=title, identity=identity, release=release, uuid=UUID)
simple = ENTRY.format(
    indent="", title="Debian GNU/Linux", identity=f"gnulinux-simple-{UUID}", release=found[0], uuid=UUID
)
text = HEADER.replace("@DEFAULT@", "${saved_entry}" if default == "saved" else default) + simple
submenu = f"submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-{UUID}'"
text += submenu + " {\n"
text += "".join(entry(release, kind) for release in found for kind in ("advanced", "recovery")) + "}\n"
(root / "boot/grub").mkdir(parents=True, exist_ok=True)
(root / "boot/grub/grub.cfg").write_text(text)
table = {"0": found[0], "": found[0]}
for place, release in enumerate(found):
    table[f"1>{2 * place}"] = release
    table[f"gnulinux-advanced-{UUID}>gnulinux-{release}-advanced-{UUID}"] = release
(root / "boot/grub/table.json").write_text(json.dumps({"default": default, "entries": table}))
"""
EDITENV = """
import pathlib, sys
path, verb, *words = sys.argv[1:]
path = pathlib.Path(path)
lines = path.read_text().splitlines() if path.is_file() else []
found = dict(line.split("=", 1) for line in lines)
if verb == "list":
    print(*lines, sep=chr(10))
elif verb == "set":
    found |= dict(word.split("=", 1) for word in words)
else:
    found = {name: value for name, value in found.items() if name not in words}
if verb != "list":
    path.write_text("".join(f"{name}={value}" + chr(10) for name, value in found.items()))
"""
PROBE = """
import pathlib, sys
file = pathlib.Path(ROOT) / ("probe-" + sys.argv[1].removeprefix("--target="))
print(file.read_text() if file.is_file() else "")
"""


@dataclass
class Grub:
    """GRUB of a tree. `programs` has to be on PATH."""

    root: Path
    programs: Path

    @classmethod
    def install(cls, root: Path, programs: Path) -> Grub:
        """The programs; the script is there after the first `update`."""
        programs.mkdir()
        constants = {"ROOT": str(root), "UUID": UUID, "ENTRY": ENTRY, "HEADER": HEADER}
        head = "".join(f"{name} = {value!r}\n" for name, value in constants.items())
        for name, text in (("update-grub", UPDATE), ("grub-editenv", EDITENV), ("grub-probe", PROBE)):
            executable(programs / name, f"#!{sys.executable}\n{head}{text}")
        return cls(root, programs)

    def say(self, target: str, answer: str) -> None:
        """What grub-probe answers for a target."""
        (self.root / f"probe-{target}").write_text(answer)

    def boot(self, *, forgets: bool = True) -> str:
        """The release that the next boot has; `forgets`: GRUB can write its environment."""
        environment = self.root / "boot/grub/grubenv"
        lines = environment.read_text().splitlines() if environment.is_file() else []
        found = dict(line.split("=", 1) for line in lines)
        table = json.loads((self.root / "boot/grub/table.json").read_text())
        default = found.get("saved_entry", "") if table["default"] == "saved" else table["default"]
        wanted = found.get("next_entry") or default
        if forgets and "next_entry" in found:
            del found["next_entry"]
            environment.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
        release: str = table["entries"][wanted]
        return release
