"""``cp_partition`` and ``cp_unpartition``: from the whole packed row to this rank's zigzag shard of it, and back.

    shards = []
    for r in range(cp):                                                       # dim = 0
        chunks = [document.chunk(2 * cp) for document in documents of x]
        shards.append(cat([c for d in chunks for c in (d[r], d[2 * cp - 1 - r])]))
    cp_partition(x) = shards[rank];  cp_unpartition(shards[rank]) = x

Slots of the tail are cut in cp consecutive parts. Every rank holds the whole row already, so partitioning is a local
copy; its backward puts the gradient back and 0 elsewhere. Coming back takes one all-gather, and its backward, as every
rank's loss may depend on the whole row, one reduce-scatter of the sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from packpass._compat import all_gather_of_equal_parts, process_group_of, reduce_scatter_sum
from packpass.ops._arguments import check_boundaries, check_dim, check_int, check_tensor
from packpass.ops._bits import as_bits
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._cp_group import SENT, resolve_group
from packpass.ops._cp_layout import shard_rows_op
from packpass.ops._geometry import along, read
from packpass.ops._library import Op, define, differentiable
from packpass.ops._segment_geometry import back, front

Fields = TypeVar("Fields", Tensor, list[Tensor], tuple[Tensor, ...], dict[Any, Tensor])


def _with_slots(x: Tensor, dim: int, slots: Any) -> list[Any]:
    return [*x.shape[:dim], slots, *x.shape[dim + 1 :]]


# === Local: the shard of a whole row, and a row that holds only a shard =========================================


def _partition(x: Tensor, cu_seqlens: Tensor, dim: int, rank: int, group_size: int, zigzag: bool = True) -> Tensor:
    local = x.shape[dim] // group_size
    slots = shard_rows_op(cu_seqlens, local, group_size, True, zigzag).narrow(0, rank * local, local)
    return read(x, dim, slots).contiguous()


def _partition_fake(x: Tensor, cu_seqlens: Tensor, dim: int, rank: int, group_size: int, zigzag: bool = True) -> Tensor:
    return x.new_empty(_with_slots(x, dim, x.shape[dim] // group_size))


def _place(x: Tensor, cu_seqlens: Tensor, dim: int, rank: int, group_size: int, zigzag: bool = True) -> Tensor:
    """The whole row with this rank's shard ``x`` in its slots and 0 elsewhere."""
    local = x.shape[dim]
    rows = shard_rows_op(cu_seqlens, local, group_size, False, zigzag) - rank * local
    mine = along((rows >= 0) & (rows < local), x.dim(), dim)
    bits = as_bits(x)
    placed = torch.where(mine, read(bits, dim, rows.clamp(0, max(local - 1, 0))), bits.new_zeros(()))
    return placed.view(x.dtype).contiguous()


def _place_eager(x: Tensor, cu_seqlens: Tensor, dim: int, rank: int, group_size: int, zigzag: bool = True) -> Tensor:
    if x.shape[dim] == 0:
        return x.new_zeros(_with_slots(x, dim, 0))
    return _place(x, cu_seqlens, dim, rank, group_size, zigzag)


def _place_fake(x: Tensor, cu_seqlens: Tensor, dim: int, rank: int, group_size: int, zigzag: bool = True) -> Tensor:
    return x.new_empty(_with_slots(x, dim, x.shape[dim] * group_size))


_LOCAL = "(Tensor x, Tensor cu_seqlens, int dim, int rank, int group_size, bool zigzag=True) -> Tensor"
cp_partition_op = define(f"cp_partition{_LOCAL}", fake=_partition_fake, kernel=_partition, decomposition=_partition)
cp_place_op = define(f"cp_place{_LOCAL}", fake=_place_fake, kernel=_place_eager, decomposition=_place)


# === Collective: the whole row of all shards, and the shard of the sum of all rows ==============================


def _unpartition(
    x: Tensor, cu_seqlens: Tensor, dim: int, group: str, group_size: int, zigzag: bool = True, summed: bool = True
) -> Tensor:
    if group_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    rows = shard_rows_op(cu_seqlens, x.shape[dim], group_size, False, zigzag)
    shard = front(x, dim)
    if x.dtype in SENT:
        whole = all_gather_of_equal_parts(shard, group, group_size)
    else:
        sent = shard.flatten(1) if shard.dim() > 1 else shard.unsqueeze(1)
        whole = all_gather_of_equal_parts(sent.view(torch.uint8), group, group_size).view(x.dtype)
        whole = whole.view([shard.shape[0] * group_size, *shard.shape[1:]])
    return back(read(whole, 0, rows), dim)


def _sum_partition(x: Tensor, cu_seqlens: Tensor, dim: int, group: str, group_size: int, zigzag: bool = True) -> Tensor:
    """This rank's shard of the sum of every rank's whole row ``x``."""
    if group_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    slots = shard_rows_op(cu_seqlens, x.shape[dim] // group_size, group_size, True, zigzag)
    whole = read(front(x, dim), 0, slots)
    parts = torch.view_as_real(whole) if x.dtype.is_complex else whole
    mine = reduce_scatter_sum(parts.contiguous(), group, group_size)
    return back(torch.view_as_complex(mine) if x.dtype.is_complex else mine, dim)


def _unpartition_fake(
    x: Tensor, cu_seqlens: Tensor, dim: int, group: str, group_size: int, zigzag: bool = True, summed: bool = True
) -> Tensor:
    return x.new_empty(_with_slots(x, dim, x.shape[dim] * group_size))


def _sum_partition_fake(
    x: Tensor, cu_seqlens: Tensor, dim: int, group: str, group_size: int, zigzag: bool = True
) -> Tensor:
    return x.new_empty(_with_slots(x, dim, x.shape[dim] // group_size))


_COLLECTIVE = "Tensor x, Tensor cu_seqlens, int dim, str group, int group_size, bool zigzag=True"
# Without ``summed`` the backward is this rank's shard of its own gradient, as where every rank computes the same loss.
cp_unpartition_op = define(
    f"cp_unpartition({_COLLECTIVE}, bool summed=True) -> Tensor",
    fake=_unpartition_fake,
    kernel=_unpartition,
    decomposition=_unpartition,
)
cp_sum_partition_op = define(
    f"cp_sum_partition({_COLLECTIVE}) -> Tensor",
    fake=_sum_partition_fake,
    kernel=_sum_partition,
    decomposition=_sum_partition,
)


# === Gradients ==================================================================================================


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cu_seqlens, *ctx.rest = inputs
    ctx.save_for_backward(cu_seqlens)


def _backward_by(inverse: Op) -> Callable[..., tuple[Tensor | None, ...]]:
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return inverse(grad, *ctx.saved_tensors, *ctx.rest), None, *[None] * len(ctx.rest)

    return backward


def _unpartition_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    dim, group, group_size, zigzag, summed = ctx.rest
    if summed:
        made = cp_sum_partition_op(grad, *ctx.saved_tensors, dim, group, group_size, zigzag)
    else:
        rank = process_group_of(group).rank()
        made = cp_partition_op(grad, *ctx.saved_tensors, dim, rank, group_size, zigzag)
    return made, *[None] * 6


differentiable("cp_partition", _backward_by(cp_place_op), _setup_context)
differentiable("cp_place", _backward_by(cp_partition_op), _setup_context)
differentiable("cp_unpartition", _unpartition_backward, _setup_context)
differentiable("cp_sum_partition", _backward_by(cp_unpartition_op), _setup_context)


# === Functions for users ========================================================================================


def _place_of(group: Any) -> tuple[int, int]:
    """(rank, size) of a group, or as they are given."""
    if isinstance(group, list | int):
        raise TypeError(f"group must be a ProcessGroup, its name, None or a tuple (rank, size), got {group!r}")
    if not isinstance(group, tuple):
        resolved = resolve_group(group)
        return resolved.rank, resolved.size
    if len(group) != 2:
        raise ValueError(f"group must be a group or a pair (rank, size), got {len(group)} entries")
    rank, size = group
    check_int("rank", rank)
    check_int("size", size)
    if not 0 <= rank < size:
        raise ValueError(f"group must be a pair (rank, size) with 0 <= rank < size, got ({rank}, {size})")
    return rank, size


def _fields(x: Any) -> dict[str, Any]:
    """The tensors of x by what messages call them."""
    if isinstance(x, Tensor):
        return {"x": x}
    if not isinstance(x, Mapping | list | tuple):
        raise TypeError(f"x must be a Tensor or a list, tuple or dict of Tensors, got {type(x).__name__}")
    if len(x) == 0:
        raise ValueError("x must hold at least one tensor")
    return {f"x[{key!r}]": value for key, value in (x.items() if isinstance(x, Mapping) else enumerate(x))}


def _like(x: Any, outs: list[Tensor]) -> Any:
    if isinstance(x, Mapping):
        return dict(zip(x, outs, strict=True))
    if isinstance(x, Tensor):
        return outs[0]
    return tuple(outs) if isinstance(x, tuple) else outs


def cp_partition(x: Fields, cu_seqlens: Tensor, group: Any, dim: int = 0) -> Fields:
    """This rank's zigzag shard of a packed row that every rank of a context-parallel group holds. A local copy.

    Document d is cut in 2 * cp chunks; rank r gets chunks r and 2 * cp - 1 - r of every document, in that order, which
    is what :func:`cp_to_hp`, :func:`cp_packed_roll` and zigzag attention take. Of ``pack(..., multiple_of=2*cp)`` pass
    ``batch.cu_seqlens_padded``; position ids and masks are partitioned like tokens.

    Differentiable: the gradient of the shard comes back in its slots, with 0 in those of other ranks; it is this rank's
    part, as of any loss that each rank computes of its own tokens.

    Args:
        x: T slots along ``dim``, any shape and dtype; or a list, tuple or dict of such tensors. T divides by cp.
        cu_seqlens: boundaries of the documents in slots, int32 or int64, ``[N+1]``, nondecreasing, within [0, T], on
            x's device. With more than one rank every document's length divides by 2 * cp. Slots outside of the
            documents are cut in cp consecutive parts, rank r gets the r-th.
        group: the context-parallel ProcessGroup, its name, None for the default group, or a pair ``(rank, size)``,
            which needs no torch.distributed.
        dim: the packed dimension.

    Returns:
        ``[..., T / cp, ...]``, new and contiguous.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device, shape or range; for boundaries on the
            CPU also wrong values (names the document). On a GPU an asynchronous assertion checks the values.
        RuntimeError: a group, and torch.distributed is not initialised.
    """
    rank, size = _place_of(group)
    outs = []
    for name, field in _fields(x).items():
        at = _check(name, field, cu_seqlens, dim)
        if size == 1:
            check_cu_seqlens_op(cu_seqlens, field.shape[at])
            outs.append(field.clone(memory_format=torch.contiguous_format))
            continue
        if field.shape[at] % size != 0:
            raise ValueError(
                f"{name} must have a multiple of {size} slots (the group's size) along dim {at}, got {field.shape[at]} "
                f"of shape {tuple(field.shape)}"
            )
        outs.append(cp_partition_op(field, cu_seqlens, at, rank, size))
    return _like(x, outs)


def cp_unpartition(x: Fields, cu_seqlens: Tensor, group: Any, dim: int = 0) -> Fields:
    """The inverse of :func:`cp_partition`: the whole row in natural order on every rank. One all-gather per tensor.

    Differentiable. The backward is one reduce-scatter: this rank's shard of the *sum* of all ranks' gradients, which is
    exact where the loss is the sum of what the ranks compute. If every rank computes the same loss of the whole row,
    divide it (or the gradient) by cp.

    Args:
        x: this rank's shard, T / cp slots along ``dim``, any shape and dtype; or a list, tuple or dict of such tensors.
        cu_seqlens, dim: as for :func:`cp_partition`; ``cu_seqlens`` counts slots of the whole row.
        group: the context-parallel ProcessGroup, its name, or None for the default group.

    Returns:
        ``[..., T, ...]``, new and contiguous.

    Raises:
        As :func:`cp_partition`.
    """
    resolved = resolve_group(group)
    fields = [(field, _check(name, field, cu_seqlens, dim)) for name, field in _fields(x).items()]
    if resolved.size == 1:
        for field, at in fields:
            check_cu_seqlens_op(cu_seqlens, field.shape[at])
    return _like(x, [cp_unpartition_op(f, cu_seqlens, at, resolved.name, resolved.size) for f, at in fields])


def _check(name: str, field: Any, cu_seqlens: Tensor, dim: int) -> int:
    check_tensor(name, field)
    check_boundaries("cu_seqlens", cu_seqlens, device=field.device)
    return check_dim(field, dim)
