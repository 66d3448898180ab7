"""``segment_spread`` (internal): every slot gets its document's value.

    out[:] = 0
    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        out[start:stop] = values[d]

``values`` is a per-document tensor, see `_segment_geometry`. The backward sums over each document.

Generated code reads rows of values where it needs them, by the segment ids that all such ops of a graph share. Single
values are another matter on the CPU: a gather of every slot takes four times as long as the eager kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from packpass.ops._geometry import read
from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import column, slots_of, spread
from packpass.ops._segment_ids import segment_ids_op
from packpass.ops._segment_native import BITS, run
from packpass.ops._segment_reduce import segment_reduce_op

# Values per document from which on generated C++ copies them as vectors.
WIDE = 16


def _kernel(values: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    slots = slots_of(cu_seqlens, total)
    rows = spread(values, slots)
    return torch.where(column(slots.inside, rows), rows, torch.zeros((), dtype=values.dtype, device=values.device))


def _cpu_kernel(values: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    if values.dtype.itemsize in BITS:
        out = _fake(values, cu_seqlens, total)
        shape = (1, total, values.shape[1:].numel())
        if run(f"spread<{BITS[values.dtype.itemsize]}>", values.contiguous(), None, out, cu_seqlens, shape):
            return out
    return _kernel(values, cu_seqlens, total)


def _decomposition(values: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    if values.device.type == "cpu" and not statically_known_true(values.shape[1:].numel() >= WIDE):
        out: Tensor = host_spread_op(values, cu_seqlens, total)
        return out
    ids = segment_ids_op(cu_seqlens, total)
    last = cu_seqlens.shape[0] - 1
    # The tail reads the last entry, where a 0 is put: a mask over documents is cheaper than one over slots.
    is_document = column(torch.arange(last + 1, device=values.device) < last, values)
    values = torch.where(is_document, values, torch.zeros((), dtype=values.dtype, device=values.device))
    return read(values, 0, torch.where(ids < 0, last, ids))


def _fake(values: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    return values.new_empty([total, *values.shape[1:]])


segment_spread_op = define(
    "segment_spread(Tensor values, Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)

# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_spread_op = define(
    "host_segment_spread(Tensor values, Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    _, cu_seqlens, _ = inputs
    ctx.save_for_backward(cu_seqlens)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (cu_seqlens,) = ctx.saved_tensors
    return segment_reduce_op(grad, cu_seqlens, "sum", 0), None, None


differentiable("segment_spread", _backward, _setup)
