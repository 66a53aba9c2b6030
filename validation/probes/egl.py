"""Drawing without a display: an EGL context on each device, and a pixel that is drawn there.

Constants and functions are those of the Khronos registry (egl.h, eglext.h, gl2.h). It loads drivers, which
may crash or hang: only a process of its own may call it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_ubyte, c_uint, c_void_p
from dataclasses import dataclass
from typing import Any

LIBRARY, NVIDIA_LIBRARY = "libEGL.so.1", "libEGL_nvidia.so.0"
EXTENSIONS, VENDOR, NONE = 0x3055, 0x3053, 0x3038
PLATFORM_DEVICE, OPENGL_ES_API = 0x313F, 0x30A0
#: A surface in memory, red, green and blue of 8 bits, OpenGL ES 2.
CONFIGURATION = (0x3033, 0x0001, 0x3024, 8, 0x3023, 8, 0x3022, 8, 0x3040, 0x0004, NONE)
ONE_PIXEL = (0x3057, 1, 0x3056, 1, NONE)
ES_2 = (0x3098, 2, NONE)
COLOUR_BUFFER, RGBA, UNSIGNED_BYTE, RENDERER = 0x4000, 0x1908, 0x1401, 0x1F01
#: What NVIDIA's devices say of themselves.
NVIDIA_DEVICE = "EGL_NV_device_cuda"
MOST_DEVICES = 64
#: What is drawn: exact in 8 bits.
COLOUR = (255, 0, 255, 255)


class EglError(Exception):
    """There is no EGL to be asked; the message says why, a sentence."""


@dataclass(frozen=True)
class Device:
    """An EGL device: whether it is NVIDIA's, who draws there, and what went wrong, empty if nothing did."""

    nvidia: bool
    renderer: str
    error: str


def devices(library: str = LIBRARY) -> tuple[Device, ...]:
    """Draw a pixel on every device of this machine. Raises EglError."""
    try:
        egl = ctypes.CDLL(library)
    except OSError as error:
        raise EglError(f"{library} cannot be loaded ({error})") from error
    functions = _Functions(egl)
    handles, count = (c_void_p * MOST_DEVICES)(), c_int32()
    query = functions.extension("eglQueryDevicesEXT", c_uint, c_int32, POINTER(c_void_p), POINTER(c_int32))
    if not query(MOST_DEVICES, handles, byref(count)):
        raise EglError(f"{library} lists no devices: {functions.error()}")
    describe = functions.extension("eglQueryDeviceStringEXT", c_char_p, c_void_p, c_int32)
    found = []
    for handle in filter(None, handles[: count.value]):
        nvidia = NVIDIA_DEVICE in _text(describe(handle, EXTENSIONS)).split()
        try:
            found.append(Device(nvidia, _draw(functions, handle), ""))
        except EglError as error:
            found.append(Device(nvidia, "", str(error)))
    return tuple(found)


def has_nvidia(library: str = NVIDIA_LIBRARY) -> bool:
    """Return whether the driver's own EGL is installed."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class _Functions:
    """The functions of an EGL library."""

    def __init__(self, egl: ctypes.CDLL) -> None:
        self._egl = egl

    def core(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Return a function of EGL itself."""
        function = getattr(self._egl, name)
        function.restype, function.argtypes = result, arguments
        return function  # type: ignore[no-any-return]  # ctypes makes it

    def extension(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """Return a function of an extension, or of OpenGL. Raises EglError."""
        address = self.core("eglGetProcAddress", c_void_p, c_char_p)(name.encode())
        if not address:
            raise EglError(f"this EGL has no {name}")
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def error(self) -> str:
        """Return the last error, as egl.h numbers them."""
        return f"EGL error {self.core('eglGetError', c_int32)():#x}"

    def must(self, value: Any, name: str) -> Any:
        """Return the value of a function, which is not none. Raises EglError."""
        if not value:
            raise EglError(f"{name}: {self.error()}")
        return value


def _draw(functions: _Functions, device: int) -> str:
    """Draw a pixel and read it again; the name of who drew it. Raises EglError."""
    must, core = functions.must, functions.core
    get_display = functions.extension(
        "eglGetPlatformDisplayEXT", c_void_p, c_uint, c_void_p, POINTER(c_int32)
    )
    display = must(get_display(PLATFORM_DEVICE, device, None), "eglGetPlatformDisplayEXT")
    must(core("eglInitialize", c_uint, c_void_p, c_void_p, c_void_p)(display, None, None), "eglInitialize")
    try:
        return _draw_on(functions, display)
    finally:
        core("eglTerminate", c_uint, c_void_p)(display)


def _draw_on(functions: _Functions, display: int) -> str:
    must, core, extension = functions.must, functions.core, functions.extension
    must(core("eglBindAPI", c_uint, c_uint)(OPENGL_ES_API), "eglBindAPI")
    config, count = c_void_p(), c_int32()
    choose = core("eglChooseConfig", c_uint, c_void_p, POINTER(c_int32), c_void_p, c_int32, POINTER(c_int32))
    must(choose(display, _list(CONFIGURATION), byref(config), 1, byref(count)), "eglChooseConfig")
    must(count.value, "eglChooseConfig found no configuration")
    make_surface = core("eglCreatePbufferSurface", c_void_p, c_void_p, c_void_p, POINTER(c_int32))
    surface = must(make_surface(display, config, _list(ONE_PIXEL)), "eglCreatePbufferSurface")
    make_context = core("eglCreateContext", c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_int32))
    context = must(make_context(display, config, None, _list(ES_2)), "eglCreateContext")
    make_current = core("eglMakeCurrent", c_uint, c_void_p, c_void_p, c_void_p, c_void_p)
    must(make_current(display, surface, surface, context), "eglMakeCurrent")
    try:
        extension("glClearColor", None, *[c_float] * 4)(*(part / 255 for part in COLOUR))
        extension("glClear", None, c_uint)(COLOUR_BUFFER)
        pixel = (c_ubyte * 4)()
        read = extension("glReadPixels", None, c_int, c_int, c_int, c_int, c_uint, c_uint, c_void_p)
        read(0, 0, 1, 1, RGBA, UNSIGNED_BYTE, pixel)
        renderer = _text(extension("glGetString", c_char_p, c_uint)(RENDERER))
    finally:
        make_current(display, None, None, None)
    # Opaque: a configuration without alpha reads it as that, too.
    if tuple(pixel) != COLOUR:
        raise EglError(f"{renderer} drew {tuple(pixel)}, expected {COLOUR}")
    return renderer


def _list(numbers: tuple[int, ...]) -> Any:
    return (c_int32 * len(numbers))(*numbers)


def _text(words: bytes | None) -> str:
    return (words or b"").decode(errors="replace")
