"""The program that adds NCCL's settings to the CDI specification which nvidia-ctk has written."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.temper.engines import cdi_nccl
from ansible.module_utils.temper.engines.cdi_nccl import SpecificationError, with_mount

from tests.unit.each import each

PROGRAM = Path(__file__).resolve().parents[3] / "module_utils/temper/engines/cdi_nccl.py"
SOURCE = "/var/run/cdi/temper-nccl.conf"
MOUNT = {
    "hostPath": SOURCE,
    "containerPath": "/etc/nccl.conf",
    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
}
# As nvidia-ctk 1.20 writes it (its test of `cdi generate`), and as 1.17 did: sorted, lists not indented.
NEW = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
        mounts:
            - hostPath: /of/one/device
              containerPath: /of/one/device
containerEdits:
    env:
        - NVIDIA_CTK_LIBCUDA_DIR=/lib/x86_64-linux-gnu
        - NVIDIA_VISIBLE_DEVICES=void
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - create-symlinks
          env:
            - NVIDIA_CTK_DEBUG=false
    mounts:
        - hostPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
          containerPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
          options:
            - ro
"""
OLD = """\
---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  mounts:
  - containerPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
    hostPath: /lib/x86_64-linux-gnu/libcuda.so.999.88.77
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    mounts:
    - hostPath: /of/one/device
      containerPath: /of/one/device
  name: "0"
kind: nvidia.com/gpu
"""
both_forms = each(NEW, OLD)


@both_forms
@each(False, True)
def test_every_device_gets_the_mount_and_nothing_else_changes(as_json: bool, text: str) -> None:
    given = json.dumps(yaml.safe_load(text)) if as_json else text
    found = yaml.safe_load(with_mount(given, SOURCE))
    mounts = found["containerEdits"]["mounts"]
    assert mounts.count(MOUNT) == 1
    mounts.remove(MOUNT)
    assert found == yaml.safe_load(text)


@each(
    "",
    "kind: nvidia.com/gpu\n",
    "devices:\n- containerEdits:\n    mounts:\n    - hostPath: /a\n",
    "containerEdits:\n  mounts: []\n",
    "containerEdits:\n  hooks:\n  - mounts:\n",
    "containerEdits: {mounts: []}\n",
)
def test_a_specification_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SpecificationError, match="expected mounts"):
        with_mount(text, SOURCE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With settings for containers, and a specification that nvidia-ctk has just written."""
    (tmp_path / "container-nccl.conf").write_text("NCCL_IB_TC=106\n")
    (tmp_path / "nvidia.yaml").write_text(NEW)
    monkeypatch.setattr(cdi_nccl, "ORIGINAL", tmp_path / "container-nccl.conf")
    monkeypatch.setenv("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", str(tmp_path / "nvidia.yaml"))
    return tmp_path


def mounted(path: Path) -> str:
    """The file that containers get as /etc/nccl.conf by a specification."""
    mounts = yaml.safe_load(path.read_text())["containerEdits"]["mounts"]
    source: str = next(m["hostPath"] for m in mounts if m["containerPath"] == "/etc/nccl.conf")
    return source


def test_what_is_mounted_stays_when_the_original_is_gone(folder: Path) -> None:
    (folder / "nvidia.coherent.yaml").write_text(NEW)
    assert cdi_nccl.main() == 0
    (folder / "container-nccl.conf").unlink()
    for name in ("nvidia.yaml", "nvidia.coherent.yaml"):
        source = Path(mounted(folder / name))
        assert (source.read_text(), source.stat().st_mode & 0o777) == ("NCCL_IB_TC=106\n", 0o644)
        assert (folder / name).stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in folder.iterdir()) == [
        "nvidia.coherent.yaml",
        "nvidia.yaml",
        "temper-nccl.conf",
    ]


def test_a_name_without_an_ending_is_nvidia_ctks_yaml(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", str(folder / "nvidia"))
    assert cdi_nccl.main() == 0
    assert mounted(folder / "nvidia.yaml")


def test_a_refused_specification_is_named_and_left_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert cdi_nccl.main() == 1
    assert str(folder / "nvidia.yaml") in capsys.readouterr().err
    assert (folder / "nvidia.yaml").read_text() == "kind: nvidia.com/gpu\n"


def test_without_settings_nothing_is_done(folder: Path) -> None:
    (folder / "container-nccl.conf").unlink()
    assert cdi_nccl.main() == 0
    assert (folder / "nvidia.yaml").read_text() == NEW


@pytest.mark.component
def test_the_program_needs_no_ansible() -> None:
    script = f"import runpy; runpy.run_path({str(PROGRAM)!r})"
    subprocess.run(["/usr/bin/python3", "-ISBc", script], check=True)
