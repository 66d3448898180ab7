"""Inductor's Triton code for CUDA tensors, generated and compiled to PTX on a machine without a GPU.

Tensors are fake (shapes, dtypes and ``device="cuda"``, no memory); what Inductor asks the driver about the device is
answered by mocks that describe an H100/H200 (sm_90). ``triton_source`` returns the generated module, ``kernels`` its
Triton kernels, ``to_ptx`` compiles one of them with Triton's own compiler.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tests.sources import remember


class Hopper:
    """The answers of ``torch.cuda.get_device_properties`` that Inductor reads."""

    name = "mocked H200"
    major, minor = 9, 0
    multi_processor_count = 132
    warp_size = 32
    regs_per_multiprocessor = 65536
    max_threads_per_multi_processor = 2048
    max_threads_per_block = 1024
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 232448
    shared_memory_per_multiprocessor = 233472
    L2_cache_size = 50 << 20
    total_memory = 141 << 30
    gcnArchName = ""
    uuid = "0"


class Driver:
    """Triton's view of the device: a compile target and nothing that runs."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0


@contextlib.contextmanager
def mocked_device() -> Iterator[None]:
    """While open, Inductor and Triton believe in one CUDA device of compute capability 9.0."""
    import triton
    from torch._dynamo.device_interface import CudaInterface

    functions: dict[str, Callable[..., Any]] = {
        "torch.cuda.get_device_properties": lambda *_: Hopper,
        "torch.cuda.get_device_capability": lambda *_: (9, 0),
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda._lazy_init": lambda: None,
    }
    interface: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda *_: Hopper,
        "current_device": lambda: 0,
        "is_available": lambda: True,
        "get_compute_capability": lambda *_: 90,
        "device_count": lambda: 1,
    }
    with contextlib.ExitStack() as stack:
        for target, function in functions.items():
            stack.enter_context(mock.patch(target, function))
        for name, function in interface.items():
            stack.enter_context(mock.patch.object(CudaInterface, name, staticmethod(function)))
        worker = CudaInterface.Worker
        stack.enter_context(mock.patch.object(worker, "current_device", staticmethod(lambda: 0)))
        stack.enter_context(mock.patch.object(worker, "get_device_properties", staticmethod(lambda *_: Hopper)))
        stack.enter_context(mock.patch("torch.version.cuda", "13.0"))
        # A CUDA build of torch would wake the driver for a fake tensor.
        stack.enter_context(mock.patch("torch._subclasses.fake_tensor.init_gpu_context", create=True))
        stack.enter_context(mock.patch("torch._C._cuda_getCurrentRawStream", return_value=0, create=True))
        stack.enter_context(mock.patch.object(triton.runtime.driver, "_active", Driver()))
        stack.callback(_forget_devices)  # what is learnt about the mocks must not outlive them, and the other way round
        _forget_devices()
        yield


def _forget_devices() -> None:
    """Clear what torch has cached about which devices and which Triton there are."""
    import torch._inductor.utils
    import torch.utils._triton
    from torch._inductor.runtime.hints import DeviceProperties

    for holder in (torch.utils._triton, torch._inductor.utils, DeviceProperties):
        for function in list(vars(holder).values()):
            clear = getattr(getattr(function, "__func__", function), "cache_clear", None)
            if clear is not None:
                clear()


@dataclass(frozen=True)
class Kernel:
    """One generated Triton kernel: its name and the Python source of its module."""

    name: str
    source: str


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    indices: list[torch.Tensor | None] = [None] * (dim % x.dim())
    return torch.ops.aten.index.Tensor(x, [*indices, index])


# Inductor's own decomposition of index_select says `x[index]`, which asks a CPU build of torch for a CUDA device guard.
_WITHOUT_INDEXING: dict[Any, Callable[..., Any]] = {torch.ops.aten.index_select.default: _index_select}


def triton_source(function: Callable[..., Any], *arguments: tuple[tuple[int, ...], torch.dtype]) -> str:
    """Generate code for ``function`` of CUDA tensors with these shapes and dtypes, through Inductor's decompositions.

    Backwards are had by passing a function that calls ``torch.autograd.grad`` or the backward's op itself.
    """
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    with mocked_device(), FakeTensorMode() as mode:
        inputs = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in arguments]
        graph_module = make_fx(
            lambda *tensors: function(*tensors), decomposition_table={**select_decomp_table(), **_WITHOUT_INDEXING}
        )(*inputs)
        graph = GraphLowering(graph_module, shape_env=None)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(mock.MagicMock()):
            graph.run(*inputs)
            code, *_ = graph.codegen()
    return str(getattr(code, "value", code))


def kernels(source: str) -> list[Kernel]:
    found = re.finditer(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", source, re.DOTALL)
    return [Kernel(match[1], match[2]) for match in found]


def launches(source: str) -> int:
    """How many times the generated ``call`` launches a Triton kernel."""
    return len(re.findall(r"\.run\(", source.split("def call(")[1]))


def extern_calls(source: str) -> list[str]:
    """Ops that the generated ``call`` leaves to ATen or to us."""
    return re.findall(r"(?:extern_kernels|torch\.ops)\.[\w.]+", source.split("def call(")[1])


def to_ptx(kernel: Kernel) -> str:
    """Compile ``kernel`` for sm_90 and return its PTX."""
    import triton
    from torch._inductor.runtime.hints import DeviceProperties
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    decorator = kernel.source.index("@triton_heuristics")
    body = kernel.source.index("@triton.jit")
    meta = re.search(r"triton_meta=(\{.*?\}),\s*\n\s*inductor_meta", kernel.source[decorator:body], re.DOTALL)
    assert meta, "Inductor's kernel decorator has another form now"
    triton_meta = eval(meta[1], {"DeviceProperties": DeviceProperties, "torch": torch})
    text = kernel.source[:decorator] + kernel.source[body:]
    text = text.replace("triton_helpers.set_driver_to_gpu()", "")
    module = ModuleType(kernel.name)
    module.__file__ = kernel.name
    remember(text, kernel.name)  # Triton reads a kernel's source back through ``inspect``
    exec(compile(text, kernel.name, "exec"), module.__dict__)
    jitted = module.__dict__[kernel.name]

    signature = dict(triton_meta["signature"])
    constants = dict(triton_meta.get("constants", {}))
    blocks = {"XBLOCK": 512, "YBLOCK": 32, "R0_BLOCK": 1024}
    for name in jitted.arg_names:
        if name in blocks:
            signature[name] = "constexpr"
            constants[name] = 1 if name == "XBLOCK" and "R0_BLOCK" in jitted.arg_names else blocks[name]
    attributes = triton_meta["configs"][0]  # which arguments are divisible by 16: decides about vector loads
    source = ASTSource(fn=jitted, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"debug": True})
    return str(compiled.asm["ptx"])
