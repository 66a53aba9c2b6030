"""What rpm says of files, without an rpm: what a real one makes of them is tested in the lab."""

import gzip
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible.module_utils.temper.packaging import rpm_files
from ansible.module_utils.temper.packaging.rpm_files import Check, RpmIdentity

Answer = Callable[..., None]

HEADER = """\
package\tlibnvidia-ml\t3:580.1-1.el9\tx86_64\t1700000000\t4096
provides\tlibnvidia-ml\t8\t3:580.1-1.el9
provides\tlibnvidia-ml.so.1()(64bit)\t0\t
requires\t/sbin/ldconfig\t1280\t
requires\trpmlib(PayloadIsZstd)\t16777226\t5.4.18-1
requires\tglibc\t12\t2.28
requires\t(nvidia-a or nvidia-b)\t0\t
requires\ta-hint\t524288\t
conflicts\tlibnvidia-old\t2\t3:570
obsoletes\t(none)\t(none)\t(none)
file\t/usr/lib64/libnvidia-ml.so.1
file\t/usr/share/doc/a & b
"""
XML = {"c": rpm_files.COMMON, "rpm": rpm_files.RPM}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Have rpm say something."""

    def say(stdout: str, status: int = 0) -> None:
        monkeypatch.setattr(
            rpm_files,
            "attempt",
            lambda command, _: subprocess.CompletedProcess(command, status, stdout, "rpm's complaint"),
        )

    return say


@pytest.fixture
def package(tmp_path: Path, answer: Answer) -> ElementTree.Element:
    """The entry of a package in the metadata of a repository."""
    file = tmp_path / "packages" / "libnvidia-ml-580.1-1.el9.x86_64.rpm"
    file.parent.mkdir()
    file.write_bytes(b"content")
    answer(HEADER)
    rpm_files.write_repository(tmp_path / "signed", [file])
    packed = (tmp_path / "signed/repodata/primary.xml.gz").read_bytes()
    (found,) = ElementTree.fromstring(gzip.decompress(packed))  # noqa: S314 - made above
    return found


def entries(package: ElementTree.Element, kind: str) -> list[dict[str, str]]:
    return [dict(entry.items()) for entry in package.findall(f"c:format/rpm:{kind}/rpm:entry", XML)]


def test_a_package_is_found_where_it_lies(package: ElementTree.Element, tmp_path: Path) -> None:
    location = package.find("c:location", XML)
    assert location is not None
    assert (tmp_path / "signed" / location.get("href", "")).resolve().read_bytes() == b"content"
    assert package.findtext("c:checksum", namespaces=XML) == hashlib.sha256(b"content").hexdigest()


def test_versions_have_epochs_apart_and_dependencies_their_bounds(package: ElementTree.Element) -> None:
    version = package.find("c:version", XML)
    assert version is not None
    assert dict(version.items()) == {"epoch": "3", "ver": "580.1", "rel": "1.el9"}
    assert {kind: entries(package, kind) for kind in ("provides", "requires", "conflicts")} == {
        "provides": [
            {"name": "libnvidia-ml", "flags": "EQ", "epoch": "3", "ver": "580.1", "rel": "1.el9"},
            {"name": "libnvidia-ml.so.1()(64bit)"},
        ],
        # But for what rpm itself knows, and what is a wish.
        "requires": [
            {"name": "/sbin/ldconfig"},
            {"name": "glibc", "flags": "GE", "epoch": "0", "ver": "2.28"},
            {"name": "(nvidia-a or nvidia-b)"},
        ],
        "conflicts": [{"name": "libnvidia-old", "flags": "LT", "epoch": "3", "ver": "570"}],
    }
    assert package.find("c:format/rpm:obsoletes", XML) is None
    files = [file.text for file in package.findall("c:format/c:file", XML)]
    assert files == ["/usr/lib64/libnvidia-ml.so.1", "/usr/share/doc/a & b"]


def test_the_index_has_the_checksum_of_the_packages(package: ElementTree.Element, tmp_path: Path) -> None:
    metadata = tmp_path / "signed/repodata"
    index = ElementTree.parse(metadata / "repomd.xml")  # noqa: S314 - made above
    packed = (metadata / "primary.xml.gz").read_bytes()
    assert index.findtext(".//{*}checksum") == hashlib.sha256(packed).hexdigest()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("a.rpm: digests signatures OK", Check(whole=True, signed=True)),
        ("a.rpm: digests OK", Check(whole=True, signed=False)),
        ("a.rpm: digests SIGNATURES NOT OK", Check(whole=True, signed=False)),
        ("a.rpm: DIGESTS signatures NOT OK", Check(whole=False, signed=False)),
        ("a.rpm: DIGESTS SIGNATURES NOT OK", Check(whole=False, signed=False)),
        ("", Check(whole=False, signed=False)),
    ],
)
def test_what_rpm_says_of_a_file_is_understood(
    answer: Answer, tmp_path: Path, said: str, expected: Check
) -> None:
    answer(f"{said}\n")
    assert rpm_files.check(tmp_path, tmp_path / "a.rpm") == expected


def test_an_epoch_of_zero_is_none(answer: Answer, tmp_path: Path) -> None:
    answer("editor\t0:1.2-3\tnoarch\tabc def\n")
    (found,) = rpm_files.installed(tmp_path, ["editor-1.2-3"])
    assert found == RpmIdentity("editor", "1.2-3", "noarch", "abc def")
    assert (found.exact, found.file) == ("editor-1.2-3.noarch", "editor-1.2-3.noarch.rpm")


def test_the_name_of_a_file_has_no_epoch() -> None:
    package = RpmIdentity("libnvidia-ml", "3:580.1-1.el9", "x86_64")
    assert package.exact == "libnvidia-ml-3:580.1-1.el9.x86_64"
    assert package.file == "libnvidia-ml-580.1-1.el9.x86_64.rpm"


def test_a_file_that_rpm_cannot_read_is_no_package(answer: Answer, tmp_path: Path) -> None:
    answer("", status=1)
    assert rpm_files.identity(tmp_path / "a.rpm") is None
