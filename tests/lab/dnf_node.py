"""A root directory in which a real dnf installs packages, and what is asked of it there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.packaging import dnf_preview, packages, repositories, signing_keys
from ansible.module_utils.temper.packaging.dnf import Dnf
from ansible.module_utils.temper.packaging.node import PackageState
from ansible.module_utils.temper.packaging.package_settings import PackageSet
from ansible.module_utils.temper.packaging.packages import Wish

from tests.lab.rpm_archive import RpmArchive, make_root, run


def make_node(folder: Path, monkeypatch: pytest.MonkeyPatch, major: str = "9", **manager: Any) -> Dnf:
    """A node that has no repository yet; `manager` are pins and module streams."""
    root = folder / "root"
    make_root(root, major=major)
    monkeypatch.setattr(repositories, "DNF_SOURCES", root / "etc/yum.repos.d")
    monkeypatch.setattr(repositories, "DNF_KEYRINGS", root / "etc/pki/rpm-gpg")
    monkeypatch.setattr(packages, "HOLD_RECORD", root / "var/lib/temper/held-packages")
    return Dnf(root=root, options=(f"--releasever={major}",), **manager)


def repository_of(archive: RpmArchive, folder: Path) -> dict[str, Any]:
    """An archive as a plan has a repository; its key lies in the folder."""
    key = folder / "key"
    key.write_bytes(archive.ring.export(archive.key))
    return {
        "name": "nvidia-cuda",
        "kind": "dnf",
        "uri": f"file://{archive.path}/",
        "key_url": f"file://{key}",
        "fingerprints": [archive.ring.keys[archive.key]],
        "signed_by": None,
        "signed": "both",
        "exclude": [],
    }


def configure(repository: dict[str, Any]) -> None:
    """Write what a setting of kind repository writes."""
    keyring, source = repositories.keyring_path(repository), repositories.source_path(repository)
    keyring.parent.mkdir(parents=True, exist_ok=True)
    keyring.write_text(signing_keys.keyring(repository, b"", set()).text)
    source.write_text(repositories.source_text(repository, keyring))


def settle(
    node: Dnf,
    wanted: dict[str, str],
    present: dict[str, str] | None = None,
    hold_versions: Sequence[str] = ("3:580.1-1.el9",),
) -> dict[str, Any]:
    """Make a set of packages; what was done."""
    setting = PackageSet(Wish(wanted, present or {}), hold_versions, node, state=PackageState(node.query))
    changed = not setting.settled()
    if changed:
        setting.apply()
    return {"changed": changed, **setting.result()}


def preview(node: Dnf, repository: dict[str, Any], wanted: dict[str, str], **options: Any) -> dict[str, Any]:
    """What module package_preview returns; proves that the node stays as it is."""
    before = snapshot(node.root)
    values = {"from_bare": False} | options
    present = values.pop("present", {})
    result = dnf_preview.preview(Wish(wanted, present), [repository], node, **values).as_dict()
    assert snapshot(node.root) == before
    return result


def snapshot(root: Path) -> dict[str, bytes]:
    """All files, but those with which sqlite lets readers of the rpm database meet."""
    return {
        str(path): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def dnf_as_administrator(node: Dnf, *arguments: str) -> None:
    """Run dnf as somebody else does, with the node's version locks."""
    configuration = node.root / "etc/dnf/plugins/versionlock.conf"
    # dnf takes the plugins' configuration from the host even with another root, and fails without a list.
    node.lock_list().touch()
    configuration.write_text(f"[main]\nenabled=1\nlocklist={node.lock_list()}\n")
    plugins = f"--setopt=pluginconfpath={configuration.parent}"
    run("dnf", "-y", *node.options, plugins, f"--installroot={node.root}", *arguments)


def versions(node: Dnf) -> dict[str, str]:
    """Name -> version of what is installed."""
    return {name: package.version for name, package in node.query().items()}


def held(node: Dnf) -> list[str]:
    """What is held."""
    return sorted(name for name, package in node.query().items() if package.held)
