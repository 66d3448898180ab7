"""``pack`` and ``unpack`` (the ops; the functions for users are in `_pack`): rows moved by a plan, a fill elsewhere.

    pack:    out[p]    = x[b, s]   if source[p] == b * S + s else fill      # source [T], -1: no token
    unpack:  out[b, s] = packed[p] if slots[b, s] == p       else fill      # slots [B, S], -1: padding

The plan is `pack_plan`'s: source and slots are each other's inverse, and the boundaries say which stretches they cover.

Any number of fields of one plan in one call, each with its own shape behind the tokens, dtype and fill. Each op is the
other's backward, with a fill of 0: gradients are read from where the values went, never added up.

Eager on the CPU: copies of whole stretches, as padding leaves most tokens beside each other. Inductor calls the same
kernel, once for all fields: a gather of single values takes three times as long in the code that it generates. On a GPU
it is a gather, which shares a kernel with the plan, with the other fields and with what is computed from them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from packpass.ops._arguments import Scalar
from packpass.ops._bits import as_bits, fill_bits
from packpass.ops._geometry import read
from packpass.ops._library import Op, define, differentiable
from packpass.ops._pack_native import native


def _take(x: Tensor, index: Tensor, depth: int, fill: Scalar) -> Tensor:
    """``x.flatten(0, depth - 1)[index]`` where the index is not -1, else ``fill``; any device, no host read."""
    rows = x.flatten(0, depth - 1)
    shape = [*index.shape, *rows.shape[1:]]
    if guard_or_false(rows.shape[0] == 0):
        return x.new_full(shape, fill)
    taken = as_bits(read(rows, 0, index.clamp(min=0)))
    present = (index >= 0).view([*index.shape, *[1] * (rows.dim() - 1)])
    return torch.where(present, taken, fill_bits(fill, x.dtype, x.device)).view(x.dtype)


def _pack(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    return [_take(x, source, 2, fill) for x, fill in zip(xs, fills, strict=True)]


def _unpack(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    return [_take(x, slots, 1, fill) for x, fill in zip(xs, fills, strict=True)]


# === The CPU ====================================================================================================


def _move(xs: list[Tensor], plan: tuple[Tensor, ...], fills: list[Scalar], unpack: bool) -> list[Tensor] | None:
    """Both ops in C++, which copies whole stretches; None where it cannot be compiled."""
    source, slots, cu_seqlens, cu_seqlens_padded = plan
    places, index = (source, slots) if unpack else (slots, source)
    for x in xs:  # before raw memory is read
        if x.shape[: places.dim()] != places.shape:
            raise ValueError(
                f"packpass: a field of shape {tuple(x.shape)} does not fit the plan for {tuple(places.shape)} tokens"
            )
    function = native("packpass_move_rows")
    if function is None or cu_seqlens.shape[0] != slots.shape[0] + 1 or cu_seqlens_padded.shape != cu_seqlens.shape:
        return None
    indices = [t.long().contiguous() for t in (source, slots)] + [t.int().contiguous() for t in plan[2:]]
    sizes = (*slots.shape, source.shape[0])
    outs = []
    for x, fill in zip(xs, fills, strict=True):
        x = x.contiguous()
        inner = x.shape[places.dim() :]
        out, value = x.new_empty([*index.shape, *inner]), torch.full((), fill, dtype=x.dtype)
        tensors = (x, out, value, *indices)
        function(
            *(t.data_ptr() for t in tensors), *sizes, unpack, inner.numel(), x.dtype.itemsize, torch.get_num_threads()
        )
        outs.append(out)
    return outs


def _cpu_pack(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    plan = (source, slots, cu_seqlens, cu_seqlens_padded)
    moved = _move(xs, plan, fills, unpack=False)
    return _pack(xs, *plan, fills) if moved is None else moved


def _cpu_unpack(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    plan = (source, slots, cu_seqlens, cu_seqlens_padded)
    moved = _move(xs, plan, fills, unpack=True)
    return _unpack(xs, *plan, fills) if moved is None else moved


# === The ops ====================================================================================================


def _pack_fake(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    return [x.new_empty([*source.shape, *x.shape[2:]]) for x in xs]


def _unpack_fake(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    return [x.new_empty([*slots.shape, *x.shape[1:]]) for x in xs]


def _pack_decomposition(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    move = host_pack_op if source.device.type == "cpu" else _pack
    outs: list[Tensor] = move(xs, source, slots, cu_seqlens, cu_seqlens_padded, fills)
    return outs


def _unpack_decomposition(
    xs: list[Tensor], source: Tensor, slots: Tensor, cu_seqlens: Tensor, cu_seqlens_padded: Tensor, fills: list[Scalar]
) -> list[Tensor]:
    move = host_unpack_op if source.device.type == "cpu" else _unpack
    outs: list[Tensor] = move(xs, source, slots, cu_seqlens, cu_seqlens_padded, fills)
    return outs


_ARGUMENTS = (
    "(Tensor[] xs, Tensor source, Tensor slots, Tensor cu_seqlens, Tensor cu_seqlens_padded, Scalar[] fills)"
    " -> Tensor[]"
)
pack_op = define(
    f"pack{_ARGUMENTS}", fake=_pack_fake, kernel=_pack, cpu_kernel=_cpu_pack, decomposition=_pack_decomposition
)
unpack_op = define(
    f"unpack{_ARGUMENTS}",
    fake=_unpack_fake,
    kernel=_unpack,
    cpu_kernel=_cpu_unpack,
    decomposition=_unpack_decomposition,
)
# The eager kernels under names that have no decomposition, because Inductor refuses to call an op that also has one.
host_pack_op = define(f"host_pack{_ARGUMENTS}", fake=_pack_fake, kernel=_cpu_pack)
host_unpack_op = define(f"host_unpack{_ARGUMENTS}", fake=_unpack_fake, kernel=_cpu_unpack)


# What a backward returns for xs, and for the plan and the fills.
_Gradients = tuple[list[Tensor | None], None, None, None, None, None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    xs, *plan, _ = inputs
    ctx.fields = len(xs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*plan)


def _back(op: Op, ctx: Any, grads: list[Tensor | None]) -> _Gradients:
    """The gradients that there are, in one call."""
    present = [i for i, grad in enumerate(grads) if grad is not None]
    backs: list[Tensor | None] = [None] * ctx.fields
    if present:
        moved = op([grads[i] for i in present], *ctx.saved_tensors, [0] * len(present))
        for i, back in zip(present, moved, strict=True):
            backs[i] = back
    return backs, None, None, None, None, None


def _pack_backward(ctx: Any, grads: list[Tensor | None]) -> _Gradients:
    return _back(unpack_op, ctx, grads)


def _unpack_backward(ctx: Any, grads: list[Tensor | None]) -> _Gradients:
    return _back(pack_op, ctx, grads)


differentiable("pack", _pack_backward, _setup_context)
differentiable("unpack", _unpack_backward, _setup_context)
