"""``all_to_all_group`` (internal): several equal-split all-to-alls of one group in one collective.

Reference::

    outs = [empty_like(x) for x in inputs]
    for out, x in zip(outs, inputs):
        dist.all_to_all_single(out, x, group=group)     # splits of x.shape[0] // group_size each

What rank r gets of every tensor is laid side by side, ``[group_size, sum of elements per rank]``, and exchanged once.
It is its own backward: the gradients go back in one exchange. An output that no gradient comes from takes no part in
it, and its input gets none, as if it had been exchanged on its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from packpass.ops._cp_group import exchange
from packpass.ops._library import define, differentiable


def _per_rank(x: Tensor, group_size: int) -> list[Any]:
    """Shape of x with dimension 0 cut in one part per rank."""
    if x.dim() == 0:
        raise ValueError("packpass: an all-to-all needs at least one dimension, got a tensor without any")
    rows = x.shape[0]
    if isinstance(rows, int) and rows % group_size != 0:
        raise ValueError(f"packpass: an all-to-all of {rows} rows does not divide by the group's size {group_size}")
    return [group_size, rows // group_size, *x.shape[1:]]


def _kernel(inputs: list[Tensor], group: str, group_size: int) -> list[Tensor]:
    if not inputs:
        return []
    if group_size == 1:
        return [x.clone(memory_format=torch.contiguous_format) for x in inputs]
    # Rows are cut before they are flattened: elements may divide by the group's size where rows do not.
    cuts = [x.reshape(_per_rank(x, group_size)).flatten(1) for x in inputs]
    received = exchange(torch.cat(cuts, 1), group, group_size)
    parts = received.split_with_sizes([cut.shape[1] for cut in cuts], 1)
    # A copy each: outputs share no memory, and generated code makes the copies where the outputs are read.
    return [
        part.clone(memory_format=torch.contiguous_format).view(x.shape) for part, x in zip(parts, inputs, strict=True)
    ]


def _fake(inputs: list[Tensor], group: str, group_size: int) -> list[Tensor]:
    return [x.new_empty(math.prod(_per_rank(x, group_size)[:2]), *x.shape[1:]) for x in inputs]


all_to_all_group_op = define(
    "all_to_all_group(Tensor[] inputs, str group, int group_size) -> Tensor[]",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)
"""Args: ``inputs`` of one dtype and device, each ``[multiple of group_size, ...]``. Returns new contiguous tensors of
the same shapes. Raises ValueError for rows that do not divide by ``group_size``."""


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    _, *ctx.place = inputs
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    present = [grad for grad in grads if grad is not None]
    exchanged = iter(all_to_all_group_op(present, *ctx.place))
    return [None if grad is None else next(exchanged) for grad in grads], None, None


differentiable("all_to_all_group", _backward, _setup_context)

# The other ranks wait in it, whether or not this one uses the result.
torch.fx.has_side_effect(all_to_all_group_op)
