"""The operators of torch on the GPU of a stand-in, computed on the host.

A kernel of a CUDA binary cannot run on a host. So the operators of operators.txt are computed by torch's
own kernels for the CPU, on the same memory, and each is announced to the stand-in's runtime as one
launch: with its device and stream, its bytes for the model of time, and every error that a launch can
have. All else of torch is its own: allocators, streams, copies, products (cuBLAS), collectives (NCCL),
autograd. An operator that is not listed launches its kernel, which the runtime refuses with the kernel's
name.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

OPERATORS = frozenset(
    name
    for line in Path(__file__).with_name("operators.txt").read_text().splitlines()
    if not line.startswith("#")
    for name in line.split()
)
#: By which a generator of a GPU goes on for each number; torch's own takes steps of four, too.
STEP = 4
#: The flag of torch's generators for a GPU: seed and offset stand in the first 16 bytes of its state.
SEED_BYTES, STATE_BYTES = 8, 16


#: For a function that is no operator of torch.
_NONE = SimpleNamespace(arguments=())


class _Host:
    """The operators of one torch."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
        self.runtime.standin_launch.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_double,
            ctypes.c_double,
        ]
        self.library = torch.library.Library("aten", "IMPL")

    def register(self) -> None:
        """Put every operator that this torch has in the place of its CUDA kernel."""
        special: dict[str, Callable[..., Any]] = {
            "cudnn_convolution": self.convolution,
        }
        for full in self.torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            namespace, _, name = full.partition("::")
            packet, _, overload = name.partition(".")
            if namespace == "aten" and packet in OPERATORS:
                operator = getattr(getattr(self.torch.ops.aten, packet), overload or "default")
                self.library.impl(name, special.get(packet) or self.computed(operator), "CUDA")
        self.library.impl("copy_", self.copy, "CUDA")
        for key in ("CUDA", "AutogradCUDA"):
            self.library.impl("scaled_dot_product_attention", self.attention, key)

    def computed(self, operator: Any) -> Callable[..., Any]:
        """What stands in for the CUDA kernel of `operator`."""
        kinds = [str(one.type) for one in getattr(operator, "_schema", _NONE).arguments]

        def compute(*arguments: Any, **named: Any) -> Any:
            mine = self.tensors((arguments, named))
            device = mine[0].device
            size_bytes = sum(one.numel() * one.element_size() for one in mine)
            with self.torch.cuda.device(device):
                self.launch(str(operator), device, size_bytes)
                hosts = {id(one): self.on_host(one) for one in mine}
                given = self.mapped((arguments, named), hosts)
                if isinstance(generator := named.get("generator"), self.torch.Generator) or any(
                    word in str(operator) for word in ("normal_", "random_", "uniform_")
                ):
                    given[1]["generator"] = self.generator(generator, device, mine[0].numel())
                # Nobody's modes: what a profiler or a budget sees is the operator on the GPU.
                with self.torch._C._DisableTorchDispatch(), self.torch.no_grad():
                    # Where the dispatcher has a tensor of one number, it hands over the number.
                    plain = any(
                        kind == "Tensor" and isinstance(one, int | float)
                        for kind, one in zip(kinds, arguments, strict=False)
                    )
                    call = operator.overloadpacket if plain else operator
                    results = call(*given[0], **given[1])
                return self.back(results, mine, hosts, device)

        return compute

    def tensors(self, value: Any) -> list[Any]:
        """All tensors of a GPU in arguments."""
        if isinstance(value, self.torch.Tensor):
            return [value] if value.is_cuda else []
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list | tuple):
            return []
        return [found for one in value for found in self.tensors(one)]

    def mapped(self, value: Any, hosts: dict[int, Any]) -> Any:
        """The same arguments with the host's views of their tensors."""
        if isinstance(value, list | tuple):
            return type(value)(self.mapped(one, hosts) for one in value)
        if isinstance(value, dict):
            return {name: self.mapped(one, hosts) for name, one in value.items()}
        if isinstance(value, self.torch.device):
            return self.torch.device("cpu")
        return hosts.get(id(value), value)

    def on_host(self, tensor: Any) -> Any:
        """A tensor of the CPU over the same memory."""
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            return self.torch.empty(tensor.size(), dtype=tensor.dtype)
        host = self.torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), self.torch.device("cpu"), storage.nbytes()
        )
        empty = self.torch.empty(0, dtype=tensor.dtype)
        return empty.set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())

    def back(self, results: Any, mine: list[Any], hosts: dict[int, Any], device: Any) -> Any:
        """The results on the GPU: the argument itself where it was written to, else a new tensor."""
        if isinstance(results, list | tuple):
            return type(results)(self.back(one, mine, hosts, device) for one in results)
        if not isinstance(results, self.torch.Tensor):
            return results
        for one in mine:
            if hosts[id(one)] is results:
                if results.size() != one.size():  # it came empty, to be made as large as the result
                    self.on_host(one.resize_(results.size())).copy_(results)
                return one
        made = self.torch.empty_strided(results.size(), results.stride(), dtype=results.dtype, device=device)
        self.on_host(made).copy_(results)
        return made

    def launch(self, what: str, device: Any, size_bytes: int) -> None:
        """Tell the runtime; torch itself raises what the runtime answers."""
        stream = self.torch._C._cuda_getCurrentRawStream(device.index)
        if self.runtime.standin_launch(what.encode(), stream, size_bytes, 0):
            self.torch.cuda.current_stream(device).synchronize()
            self.torch.cuda.check_error(self.runtime.cudaPeekAtLastError())

    def generator(self, given: Any, device: Any, numbers: int) -> Any:
        """A generator of the host in the state of the GPU's, which goes on.

        Equal seeds give equal numbers, on all GPUs.
        """
        used = given or self.torch.cuda.default_generators[device.index]
        state = used.get_state()
        raw = bytearray(state.numpy().tobytes())
        seed, offset = (int.from_bytes(raw[at : at + SEED_BYTES], "little") for at in (0, SEED_BYTES))
        raw[SEED_BYTES:STATE_BYTES] = (offset + (numbers + STEP) // STEP * STEP).to_bytes(8, "little")
        used.set_state(self.torch.frombuffer(raw, dtype=self.torch.uint8))
        return self.torch.Generator().manual_seed((seed * 1000003 + offset) % (1 << 63))

    def copy(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        """The copy of torch itself, but where that would launch a kernel: another type, or another layout."""
        if not target.numel():
            return target
        if target.device == source.device:
            alike = target.dtype == source.dtype and target.size() == source.size()
            if not (alike and target.is_contiguous() and source.is_contiguous()):
                return self.computed(self.torch.ops.aten.copy_.default)(target, source)
        else:  # as torch does it: the other type and layout on the device that it comes from
            source = source.to(target.dtype).expand(target.size()).contiguous()
            if not target.is_contiguous():
                return target.copy_(self.torch.empty_like(source, device=target.device).copy_(source))
        # torch's own copy is one for all devices. Without the keys of devices, its dispatcher leads there.
        keys = self.torch._C.DispatchKeySet(self.torch._C.DispatchKey.CUDA)
        with self.torch._C._AutoDispatchBelowADInplaceOrView(), self.torch._C._ExcludeDispatchKeyGuard(keys):
            return target.copy_(source, non_blocking)

    def attention(self, *arguments: Any, scale: float | None = None, enable_gqa: bool = False) -> Any:
        """Attention as products and a softmax: no fused kernel is computed here."""
        left_out = (None, 0.0, False)  # mask, dropout, causality
        given = [*arguments, *left_out[len(arguments) - 3 :]]
        math = self.torch.ops.aten._scaled_dot_product_attention_math
        grouped = {"enable_gqa": True} if enable_gqa else {}  # which torch before 2.5 does not know
        return math(*given, None, scale=scale, **grouped)[0]

    def convolution(
        self, image: Any, weight: Any, padding: Any, stride: Any, dilation: Any, *rest: Any
    ) -> Any:
        """As the host convolves: cuDNN's descriptors and plans are not stood in for."""

        def convolve(image: Any, weight: Any) -> Any:
            return self.torch.ops.aten.convolution(
                image, weight, None, stride, padding, dilation, False, [0] * len(stride), rest[0]
            )

        return self.computed(convolve)(image, weight)


class _Loader(importlib.abc.Loader):
    """Loads torch as its own loader does, and registers the operators then."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As torch's own loader."""
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As torch's own loader, and the operators."""
        self._own.exec_module(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced: it is meant to be
            module.__dict__["_temper_cuda_host"] = host = _Host(module)
            host.register()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch where the others find it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The specification of torch, with a loader of ours."""
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
