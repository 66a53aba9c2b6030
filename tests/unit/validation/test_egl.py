"""Graphics without a display: Mesa's real EGL where it is installed, and a compiled stand-in for NVIDIA's."""

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.validation.samples import gpu_xml, node, smi_xml
from validation.checks import graphics
from validation.checks.registry import CHECKS
from validation.model.contract import Measured, State, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import RunOptions
from validation.probes import egl
from validation.processes.child import Request

SOURCE = Path(__file__).with_name("egl_stand_in.c")
WISHED = RunOptions(graphics=True)


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not shutil.which("cc"):
        pytest.skip("cc compiles the stand-in")
    library = tmp_path_factory.mktemp("egl") / "libEGL_stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return str(library)


@pytest.fixture
def asked(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Measured]:
    """A function that draws with the stand-in, which has this fault, on a node with so many GPUs."""

    def ask(fault: str = "", gpus: int = 2) -> Measured:
        monkeypatch.setenv("STAND_IN", fault)
        devices = egl.devices
        monkeypatch.setattr(egl, "has_nvidia", lambda: True)
        monkeypatch.setattr(egl, "devices", lambda: devices(stand_in))
        try:
            return graphics.measure(Request("", "", "none", parameters={"gpus": gpus}), lambda _: None)
        finally:
            monkeypatch.undo()

    return ask


@pytest.mark.skipif(not loads(egl.LIBRARY), reason="no EGL is installed here")
def test_a_real_egl_draws_and_its_pixel_is_read() -> None:
    """Mesa's, on a machine without a GPU."""
    found = egl.devices()
    drawn = [device for device in found if not device.error]
    assert drawn
    assert all(device.renderer for device in drawn)


@pytest.mark.component
def test_a_device_that_drew_on_each_gpu_passes(asked: Callable[..., Measured]) -> None:
    found = asked()
    assert found.findings == ()
    assert [device["nvidia"] for device in found.details["devices"]] == [False, True, True]
    assert found.details["devices"][1]["renderer"] == "NVIDIA Stand-In/PCIe/SSE2"


@pytest.mark.component
@pytest.mark.parametrize(
    ("fault", "codes", "fact"),
    [
        ("one", ["egl-gpu-count"], "1 devices of the NVIDIA driver, nvidia-smi lists 2"),
        ("initialize", ["egl-context"], "device 1 does not draw: eglInitialize: EGL error 0x3001"),
        ("configuration", ["egl-context"] * 2, "no configuration"),
        ("pixel", ["egl-context"] * 2, "drew (255, 1, 255, 255), expected (255, 0, 255, 255)"),
    ],
)
def test_one_that_does_not_draw_fails(
    asked: Callable[..., Measured], fault: str, codes: list[str], fact: str
) -> None:
    found = asked(fault).findings
    assert [finding.code for finding in found] == codes
    assert fact in found[0].text
    assert {finding.state for finding in found} == {State.FAIL}


@pytest.mark.component
@pytest.mark.parametrize(
    ("fault", "words"), [("old", "no eglQueryDevicesEXT"), ("query", "lists no devices")]
)
def test_an_egl_that_cannot_be_asked_is_not_run(
    asked: Callable[..., Measured], fault: str, words: str
) -> None:
    with pytest.raises(NotRunError, match=words):
        asked(fault)


def run(monkeypatch: pytest.MonkeyPatch, function: str) -> TestResult:
    """The whole check, whose process runs this function."""
    monkeypatch.setattr(graphics.HeadlessEgl, "function", f"{__name__}:{function}")
    return CHECKS["egl"].run(dataclasses.replace(node(smi_xml(gpu_xml())), run_options=WISHED))


def in_a_child(_request: Request, _stage: Callable[[str], None]) -> Measured:
    """In a child: a driver that ends its process."""
    ctypes.CDLL(None).abort()
    raise AssertionError


@pytest.mark.component
def test_a_driver_that_ends_its_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, "in_a_child")
    assert (result.state, [finding.code for finding in result.findings]) == (State.FAIL, ["process-died"])


@pytest.mark.component
@pytest.mark.skipif(egl.has_nvidia(), reason="this machine has NVIDIA's graphics libraries")
def test_without_the_libraries_for_graphics_it_is_not_run_and_says_what_installs_them() -> None:
    result = CHECKS["egl"].run(node(smi_xml(gpu_xml())))
    assert (result.state, result.findings) == (State.NOT_RUN, ())
    assert "nvidia_stack_graphics" in result.reason
    assert not egl.has_nvidia("libgone.so.0")
    with pytest.raises(egl.EglError, match=r"libgone\.so\.1 cannot be loaded"):
        egl.devices("libgone.so.1")
