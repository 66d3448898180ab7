"""``read_class_tensor`` (internal): a tensor that is kept on a class, as it is when the graph runs.

    out = getattr(resolve(module, qualname), attribute).clone()

For what a backward reads from its own class: a loss scale, which training loops set between forward and backward. The
class is named by text, so that compiled code may be cached. ``after`` is not looked at: it ties the read to the place
in the program where it was written, so that no partitioner moves it into the forward.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define


def resolve(module: str, qualname: str) -> Any:
    """The object of this name; raises ImportError or AttributeError."""
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def _kernel(after: Tensor, module: str, qualname: str, attribute: str, shape: list[int], dtype: torch.dtype) -> Tensor:
    value = getattr(resolve(module, qualname), attribute)
    if not _stands_for(value, shape, dtype, after.device):
        found = f"{value.dtype} {list(value.shape)} on {value.device}" if isinstance(value, Tensor) else repr(value)
        raise RuntimeError(
            f"packpass: {qualname}.{attribute} was a tensor {dtype} {shape} when its backward was compiled and is "
            f"{found} now; set it to a tensor of that kind on {after.device}, or call torch._dynamo.reset()"
        )
    if isinstance(value, Tensor):
        return value.detach().reshape(shape).to(after.device, dtype, copy=True)
    return torch.full(shape, value, dtype=dtype, device=after.device)


def _stands_for(value: Any, shape: list[int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether eager mode computes the same with ``value`` as with a tensor of this kind: a factor may be a number, 0-d
    or of shape [1], as training frameworks set them, and 0-d ones may stay on the CPU."""
    single = math.prod(shape) == 1
    if not isinstance(value, Tensor):
        return single and dtype.is_floating_point and isinstance(value, int | float) and not isinstance(value, bool)
    return (
        torch.promote_types(value.dtype, dtype) == dtype
        and (list(value.shape) == shape or (single and value.numel() == 1))
        and (value.device == device or (value.device.type == "cpu" and value.dim() == 0))
    )


def _fake(after: Tensor, module: str, qualname: str, attribute: str, shape: list[int], dtype: torch.dtype) -> Tensor:
    return after.new_empty(shape, dtype=dtype)


read_class_tensor_op = define(
    "read_class_tensor(Tensor after, str module, str qualname, str attribute, int[] shape, ScalarType dtype) -> Tensor",
    fake=_fake,
    kernel=_kernel,
)
