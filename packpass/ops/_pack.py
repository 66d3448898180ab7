"""``pack``, ``unpack`` and ``PackedBatch``: padded batches become packed rows and come back.

    keep = mask                                       # [B, S], or read off a 4-D mask by its meaning: `_pack_mask`
    rows = [pad_to_multiple(x[b, keep[b]], multiple_of, fill) for b in range(B)]
    packed = cat([*rows, full(total - sum(map(len, rows)), fill)])

Three ops: which tokens are real (`_pack_mask`), where they go (`_pack_plan`), and the move (`_pack_rows`), which is the
only differentiable one. `PackedBatch` holds the plan, so that unpacking computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from packpass.ops._arguments import Scalar, check_fill, check_int, check_tensor, check_total
from packpass.ops._pack_mask import check_mask, raise_faulty, real_tokens_op
from packpass.ops._pack_plan import pack_plan_op, pack_sizes_op
from packpass.ops._pack_rows import pack_op, unpack_op

Fields = TypeVar("Fields", Tensor, list[Tensor], tuple[Tensor, ...], dict[Any, Tensor])
Fills = Scalar | Sequence[Scalar] | Mapping[Any, Scalar]


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """Where the documents of a packed row lie, and how to get back to the padded batch. A pytree of its fields.

    Attributes:
        cu_seqlens: int32 ``[B+1]``: boundaries counted in real tokens; row b of the batch is document b.
        cu_seqlens_padded: int32 ``[B+1]``: boundaries in slots of the packed row. With ``multiple_of=1`` the same
            values; otherwise document b has its real tokens in the first ``cu_seqlens[b+1] - cu_seqlens[b]`` of its
            slots. Slots behind the last entry (there are some only with ``total=``) are the tail.
        max_seqlen: of ``pack`` without ``total=`` the real tokens of the longest document; with it ``seq_len``, the
            bound that is known without waiting for the device.
        position_ids: int64 ``[T]``: position of every slot in its document, counted from 0 over the real tokens.
            Padding goes on counting, the tail counts from 0, and both start again at ``seq_len``, so that a table of
            ``seq_len`` positions is enough.
        padding_mask: bool ``[T]``: True where a slot holds no token.
        batch_size, seq_len: B and S of the padded batch.
        source: int64 ``[T]``: the token ``b * S + s`` that each slot holds, -1 for none.
        slots: int64 ``[B, S]``: the slot of each token, -1 for padding.
    """

    cu_seqlens: Tensor
    cu_seqlens_padded: Tensor
    max_seqlen: int
    position_ids: Tensor
    padding_mask: Tensor
    batch_size: int
    seq_len: int
    source: Tensor
    slots: Tensor


torch.export.register_dataclass(PackedBatch)


def pack(
    x: Fields, mask: Tensor, *, multiple_of: int = 1, fill: Fills = 0, total: int | None = None
) -> tuple[Fields, PackedBatch]:
    """Pack a padded batch: the real tokens of all rows, one row's after the other, in their order.

    Without ``total`` the number of slots depends on the mask: one host sync, which fetches everything at once (in
    compiled code it needs scalar capture, which ``packpass.backend`` turns on). With ``total`` nothing waits for the
    device. Differentiable; the backward is :func:`unpack` of the gradient, 0 at padding. Compiled, all fields are moved
    by one kernel.

    Args:
        x: ``[B, S, ...]``, any dtype and device; or a list, tuple or dict of such tensors (token ids, labels, loss
            mask, ...), packed by one plan.
        mask: which tokens are real: bool or int ``[B, S]``, True or nonzero for a real token, at the left, the right or
            anywhere; in floating point 1 for a real token and 0 for padding. Or what attention gets: ``[B, H, S, S]``
            or ``[B, H, 1, S]``, bool or int (True: may attend) or additive (0: may attend, -9000 or less: may not),
            which must be key padding, causal or not, for all heads alike. What padding attends to does not matter as
            long as there is one reading.
        multiple_of: round the slots of every document up to a multiple; what is added holds ``fill``. 2 * cp makes rows
            for :func:`cp_partition`.
        fill: value of slots without a token; a list or tuple gives every field its own, a dict those that it names (the
            others 0).
        total: number of slots T of the packed row; those behind the last document hold ``fill``. Too few are an error:
            nothing is cut off.

    Returns:
        The packed tensor ``[T, ...]`` (or a list, tuple or dict of them), new and contiguous, and the `PackedBatch`.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, shape, device or range; a 4-D mask that is no key
            padding, or a floating-point ``[B, S]`` with other numbers than 0 and 1; on the CPU also a ``total`` that is
            too small (these name the row). On a GPU, with ``total`` or compiled, asynchronous assertions check the
            values.
    """
    check_mask(mask)
    check_int("multiple_of", multiple_of)
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    if total is not None:
        check_total(total)
    tensors = _tensors("x", x)
    _check_padded(tensors, mask, multiple_of)
    rows, longest = mask.shape[0], mask.shape[-1]
    fills = _fills(fill, x, tensors)

    waits = total is None and not torch.compiler.is_compiling()
    keep, faulty = _real_tokens(mask, waits)
    if total is None:
        sizes = pack_sizes_op(keep, multiple_of)
        if waits and faulty is not None:
            sizes = torch.cat([sizes, faulty.view(1)])
        total, longest, *first_faulty = sizes.tolist()
        if first_faulty and first_faulty[0] >= 0:
            raise_faulty(mask, first_faulty[0])
        torch._check(total >= 0)
    real, padded, source, slots, position_ids, padding_mask = pack_plan_op(keep, multiple_of, total)
    packed = pack_op(list(tensors.values()), source, slots, real, padded, fills)
    batch = PackedBatch(real, padded, longest, position_ids, padding_mask, rows, mask.shape[-1], source, slots)
    return _like(x, packed), batch


def _real_tokens(mask: Tensor, waits: bool) -> tuple[Tensor, Tensor | None]:
    """Which tokens are real, bool ``[B, S]``, and, where that is in doubt, the first row that is no mask (-1: none)."""
    if mask.dim() == 2 and not mask.dtype.is_floating_point:
        return mask if mask.dtype is torch.bool else mask != 0, None
    keep, faulty = real_tokens_op(mask.detach(), not waits)
    return keep, faulty


def _check_padded(tensors: Mapping[str, Tensor], mask: Tensor, multiple_of: int) -> None:
    rows, length = mask.shape[0], mask.shape[-1]
    if statically_known_true(rows * ((length + multiple_of - 1) // multiple_of * multiple_of) > 2**31 - 1):
        raise ValueError(f"boundaries are int32: a batch of {rows} x {length} tokens is too large")
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or tensor.shape[0] != rows or tensor.shape[1] != length:
            raise ValueError(
                f"{name} must be [B, S, ...] = [{rows}, {length}, ...] as the mask {tuple(mask.shape)} has it, "
                f"got shape {tuple(tensor.shape)}"
            )
        if tensor.device != mask.device:
            raise ValueError(f"{name} must be on the device of the mask ({mask.device}), got {tensor.device}")


def unpack(packed: Fields, batch: PackedBatch, *, fill: Fills = 0) -> Fields:
    """The inverse of :func:`pack`: every real token back in its place of the padded batch. No host sync.

    Differentiable; the backward is :func:`pack` of the gradient, 0 in slots without a token.

    Args:
        packed: ``[T, ...]``, any dtype, or a list, tuple or dict of such tensors.
        batch: what :func:`pack` returned; its tensors are on the device of ``packed``.
        fill: value of the padding, as for :func:`pack`.

    Returns:
        ``[B, S, ...]`` (or a list, tuple or dict of them), new and contiguous.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, shape, device or range.
    """
    if not isinstance(batch, PackedBatch):
        raise TypeError(f"batch must be the PackedBatch that pack returned, got {type(batch).__name__}")
    total = batch.source.shape[0]
    tensors = _tensors("packed", packed)
    for name, tensor in tensors.items():
        if tensor.dim() < 1 or statically_known_true(tensor.shape[0] != total):
            raise ValueError(f"{name} must have the {total} slots of the batch first, got shape {tuple(tensor.shape)}")
        if tensor.device != batch.slots.device:
            raise ValueError(f"{name} must be on the device of the batch ({batch.slots.device}), got {tensor.device}")
    fills = _fills(fill, packed, tensors)
    plan = (batch.source, batch.slots, batch.cu_seqlens, batch.cu_seqlens_padded)
    return _like(packed, unpack_op(list(tensors.values()), *plan, fills))


# === One tensor or several ======================================================================================


def _tensors(argument: str, x: Any) -> dict[str, Tensor]:
    """The tensors of x by what messages call them."""
    if isinstance(x, Tensor):
        return {argument: x}
    if not isinstance(x, Mapping | list | tuple):
        raise TypeError(f"{argument} must be a Tensor or a list, tuple or dict of Tensors, got {type(x).__name__}")
    items = x.items() if isinstance(x, Mapping) else enumerate(x)
    named = {f"{argument}[{key!r}]": value for key, value in items}
    if not named:
        raise ValueError(f"{argument} must hold at least one tensor")
    for name, value in named.items():
        check_tensor(name, value)
    return named


def _fills(fill: Any, x: Any, tensors: dict[str, Tensor]) -> list[Scalar]:
    if isinstance(fill, Mapping):
        if not isinstance(x, Mapping):
            raise TypeError("fill can be a dict only for a dict of tensors")
        unknown = [key for key in fill if key not in x]
        if unknown:
            raise ValueError(f"fill names {unknown[0]!r}, which is none of the fields {list(x)}")
        fills = [fill.get(key, 0) for key in x]
    elif isinstance(fill, list | tuple):
        if isinstance(x, Tensor | Mapping) or len(fill) != len(tensors):
            raise ValueError(f"a list of fills takes a list of as many tensors, got {len(fill)} for {len(tensors)}")
        fills = list(fill)
    else:
        fills = [fill] * len(tensors)
    for value, tensor in zip(fills, tensors.values(), strict=True):
        if value is None:  # only a roll knows what that means
            raise TypeError("fill must be a number, got None")
        check_fill(value, tensor.dtype)
    return fills


def _like(x: Any, tensors: list[Tensor]) -> Any:
    if isinstance(x, Tensor):
        return tensors[0]
    if isinstance(x, Mapping):
        return dict(zip(x, tensors, strict=True))
    return tuple(tensors) if isinstance(x, tuple) else list(tensors)
