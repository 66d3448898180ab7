"""torch's own samples of its operators, as single calls."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SMALL = 3000


class Recorder(TorchFunctionMode):
    """Notes the outermost calls of torch's functions: what stands behind the lambdas of `op_db`.

    Calls that raise are left out: `histogramdd` asks a tensor for a number to see whether it is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, dict[str, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, dict(kwargs or {})))
        return result


@functools.cache
def methods() -> dict[Any, str]:
    """Method of tensors -> its name."""
    return {value: name for name, value in vars(torch._C.TensorBase).items() if callable(value)} | {
        value: name for name, value in vars(torch.Tensor).items() if callable(value)
    }


@functools.cache
def operators() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def samples(op: Any, limit: int) -> Iterator[Any]:
    """Up to ``limit`` samples, spread over all that torch has."""
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool, torch.complex64) if d in op.dtypes), None)
    if dtype is None:
        return

    def made() -> list[Any]:
        torch.manual_seed(0)
        return [s for s in op.sample_inputs("cpu", dtype, requires_grad=False) if _small(s)]

    # Torch writes down the stack of whoever asks for a sample, which under pytest takes longer than the sample itself.
    with ThreadPoolExecutor(1) as own_stack:
        found = own_stack.submit(made).result()
    yield from found[:: max(1, len(found) // limit)][:limit]


def _small(sample: Any) -> bool:
    values = [sample.input, *sample.args, *sample.kwargs.values()]
    flat = [v for value in values for v in (value if isinstance(value, (tuple, list)) else [value])]
    sizes = [v.numel() for v in flat if isinstance(v, torch.Tensor)]
    return bool(sizes) and max(sizes) <= SMALL and min(sizes) > 0


def calls(op: Any, limit: int) -> Iterator[tuple[Any, str | None, Any, dict[str, Any]]]:
    """``(function, name of the method or None, args, kwargs)`` of torch's calls in samples of an operator."""
    for sample in samples(op, limit):
        recorder = Recorder()
        with warnings.catch_warnings(), recorder:
            warnings.simplefilter("ignore")
            op.op(sample.input, *sample.args, **sample.kwargs)
        for function, args, kwargs in recorder.calls:
            name = getattr(function, "__name__", "")
            if name in ("__get__", "__set__") or kwargs.get("out") is not None:
                continue  # attributes
            if any(isinstance(a, (torch.Tensor, tuple, list)) for a in args):
                yield function, methods().get(function), args, kwargs
