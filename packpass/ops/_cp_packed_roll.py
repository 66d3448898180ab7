"""``cp_packed_roll``: `packed_roll` of a row that a context-parallel group holds in shards.

Reference: gather the shards into the whole row, ``packed_roll``, and cut it again (the tail keeps its values).

Any number of fields, shifts and fills make one exchange of equal parts, the same on every rank: of each chunk the few
slots before and behind it. Everything else is a `packed_roll` of the chunks and a patch of the slots near their edges.
The backward is the op itself by ``-shift``.

``end_fills`` and ``end_wraps`` are for programs of which every rank sees its own part only. What a slot gets whose
source lies outside of its document is then known on the rank that holds the end of the document, and sent by it: entry
i of ``end_fills`` is in the slots up to ``|shifts[i]|`` outside, but for nearer ones that another entry of the field
reaches. In a zigzag that is rank 0, and where shards are of one piece rank 0 for shifts to the right and the last one
for the others. Wraps are for shifts by one in a zigzag. ``fills`` and ``wraps`` are not looked at, and a group of one
is no such program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from packpass.ops import _cp_roll_host
from packpass.ops._arguments import Scalar, check_boundaries, check_dim, check_fill, check_int, check_tensor
from packpass.ops._bits import as_bits, fill_bits
from packpass.ops._cp_group import resolve_group
from packpass.ops._cp_halo import chunk_edges, exchange_windows
from packpass.ops._cp_layout import check_shards_op
from packpass.ops._cp_roll_slots import roll_slots
from packpass.ops._geometry import read, write
from packpass.ops._library import define, differentiable
from packpass.ops._packed_roll import packed_roll_op

# The exchange grows with (documents x |shift| x ranks): beyond this a roll is not a matter of edges.
LONGEST = 1024


def _rolled(
    xs: list[Tensor], cu_seqlens: Tensor, fields: list[int], shifts: list[int], dims: list[int],
    fills: list[Scalar], wraps: list[bool], group: str, group_size: int, rank: int, end_fills: list[Scalar] | None,
    end_wraps: list[bool] | None, zigzag: bool,
) -> list[Tensor]:  # fmt: skip
    dims = [dim % x.dim() for x, dim in zip(xs, dims, strict=True)]
    rolls = list(zip(fields, shifts, fills, wraps, strict=True))
    if group_size == 1:
        return [packed_roll_op(xs[f], cu_seqlens, k, dims[f], None if wrap else fill) for f, k, fill, wrap in rolls]
    check_shards_op(cu_seqlens, xs[0].shape[dims[0]], group_size, zigzag)
    before, behind = max(0, *shifts), max(0, *(-k for k in shifts))
    if before + behind == 0 or xs[0].shape[dims[0]] == 0:
        return [xs[f].clone(memory_format=torch.contiguous_format) for f in fields]

    halves = 2 if zigzag else 1
    slots = roll_slots(cu_seqlens, xs[0].shape[dims[0]], group_size, rank, shifts, end_fills is not None, halves)
    rows = [x.movedim(dim, 0).contiguous() for x, dim in zip(xs, dims, strict=True)]
    ends = None
    ending = rank == 0 or (rank == group_size - 1 and not zigzag)
    if ending and end_fills is not None and end_wraps is not None:
        known = list(zip(fields, shifts, end_fills, end_wraps, strict=True))
        ends = [{k: None if wrap else fill for f, k, fill, wrap in known if f == field} for field in range(len(xs))]
    halos = exchange_windows(rows, slots.sent, slots.outside, group, group_size, ends)
    edges = chunk_edges(cu_seqlens, group_size, halves)
    outs = []
    for f, k, fill, wrap in rolls:
        moved = packed_roll_op(xs[f], edges, k, dims[f], 0)
        if k != 0:
            at = slots.patches[k]
            values = as_bits(read(halos[f], 0, at.taken))
            if not wrap:  # if the ends are sent, no slot is without a source
                filling = fill_bits(fill, moved.dtype, moved.device)
                values = torch.where(_column(at.absent, values) != 0, filling, values)
            patched = write(as_bits(moved), dims[f], at.slots, values.movedim(0, dims[f]))
            moved = patched.view(moved.dtype)
        outs.append(moved)
    return outs


def _rolled_host(
    xs: list[Tensor], cu_seqlens: Tensor, fields: list[int], shifts: list[int], dims: list[int],
    fills: list[Scalar], wraps: list[bool], group: str, group_size: int, rank: int, end_fills: list[Scalar] | None,
    end_wraps: list[bool] | None, zigzag: bool,
) -> list[Tensor]:  # fmt: skip
    at = [dim % x.dim() for x, dim in zip(xs, dims, strict=True)]
    nothing = not any(shifts) or xs[0].shape[at[0]] == 0
    if group_size == 1 or nothing or not _cp_roll_host.is_available():
        place = (group, group_size, rank, end_fills, end_wraps, zigzag)
        return _rolled(xs, cu_seqlens, fields, shifts, dims, fills, wraps, *place)
    known = (end_fills, end_wraps) if end_fills is not None and end_wraps is not None else (fills, wraps)
    rolls = _cp_roll_host.Rolls(fields, shifts, *known)
    return _cp_roll_host.rolled(xs, cu_seqlens, rolls, at, group, group_size, rank, zigzag, end_fills is not None)


def _code(xs: list[Tensor], *arguments: Any) -> list[Tensor]:
    if xs[0].device.type == "cpu" and arguments[7] > 1:
        found: list[Tensor] = host_cp_packed_roll_op(xs, *arguments)
        return found
    return _rolled(xs, *arguments)


def _column(vector: Tensor, like: Tensor) -> Tensor:
    return vector.view([-1] + [1] * (like.dim() - 1))


def _fake(
    xs: list[Tensor], cu_seqlens: Tensor, fields: list[int], shifts: list[int], dims: list[int], fills: list[Scalar],
    wraps: list[bool], group: str, group_size: int, rank: int, end_fills: list[Scalar] | None,
    end_wraps: list[bool] | None, zigzag: bool,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty_like(xs[f], memory_format=torch.contiguous_format) for f in fields]


_SIGNATURE = (
    "(Tensor[] xs, Tensor cu_seqlens, int[] fields, int[] shifts, int[] dims, Scalar[] fills, bool[] wraps, str group, "
    "int group_size, int rank, Scalar[]? end_fills, bool[]? end_wraps, bool zigzag) -> Tensor[]"
)
# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_cp_packed_roll_op = define(f"host_cp_packed_roll{_SIGNATURE}", fake=_fake, kernel=_rolled_host)
cp_packed_roll_op = define(
    f"cp_packed_roll{_SIGNATURE}", fake=_fake, kernel=_rolled, cpu_kernel=_rolled_host, decomposition=_code
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    xs, cu_seqlens, ctx.fields, ctx.shifts, ctx.dims, _, ctx.wraps, *place = inputs
    ctx.place, end_wraps, ctx.zigzag = place[:3], place[4], place[5]
    if end_wraps is not None:
        ctx.wraps = end_wraps
    ctx.real = [x.dtype.is_floating_point or x.dtype.is_complex for x in xs]
    ctx.save_for_backward(cu_seqlens)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    """All gradients in one exchange. Which take part depends on dtypes alone, so it is the same on every rank."""
    (cu_seqlens,) = ctx.saved_tensors
    outputs = [i for i, f in enumerate(ctx.fields) if ctx.real[f]]
    back = cp_packed_roll_op(
        [grads[i] for i in outputs],
        cu_seqlens,
        list(range(len(outputs))),
        [-ctx.shifts[i] for i in outputs],
        [ctx.dims[ctx.fields[i]] for i in outputs],
        [0] * len(outputs),
        [ctx.wraps[i] for i in outputs],
        *ctx.place,
        None,
        None,
        ctx.zigzag,
    )
    sums: list[Tensor | None] = [None] * len(ctx.real)
    for i, grad in zip(outputs, back, strict=True):
        present = sums[ctx.fields[i]]
        sums[ctx.fields[i]] = grad if present is None else present + grad
    return sums, *[None] * 12


differentiable("cp_packed_roll", _backward, _setup_context)


@overload
def cp_packed_roll(
    x: Tensor,
    cu_seqlens: Tensor,
    group: Any,
    shift: int = -1,
    dim: int = -1,
    fill: Scalar | None = 0,
    *,
    zigzag: bool = True,
) -> Tensor: ...
@overload
def cp_packed_roll(
    x: Tensor,
    cu_seqlens: Tensor,
    group: Any,
    shift: Sequence[int],
    dim: int = -1,
    fill: Scalar | None = 0,
    *,
    zigzag: bool = True,
) -> list[Tensor]: ...
@overload
def cp_packed_roll(
    x: Sequence[Tensor],
    cu_seqlens: Tensor,
    group: Any,
    shift: int = -1,
    dim: int | Sequence[int] = -1,
    fill: Scalar | Sequence[Scalar | None] | None = 0,
    *,
    zigzag: bool = True,
) -> list[Tensor]: ...
@overload
def cp_packed_roll(
    x: Sequence[Tensor],
    cu_seqlens: Tensor,
    group: Any,
    shift: Sequence[int],
    dim: int | Sequence[int] = -1,
    fill: Scalar | Sequence[Scalar | None] | None = 0,
    *,
    zigzag: bool = True,
) -> list[list[Tensor]]: ...
def cp_packed_roll(
    x: Tensor | Sequence[Tensor],
    cu_seqlens: Tensor,
    group: Any,
    shift: int | Sequence[int] = -1,
    dim: int | Sequence[int] = -1,
    fill: Scalar | Sequence[Scalar | None] | None = 0,
    *,
    zigzag: bool = True,
) -> Any:
    """:func:`packed_roll` of rows that a context-parallel group holds in shards: one exchange for all of them.

    Documents are cut in 2 * cp chunks; rank r holds chunks r and 2 * cp - 1 - r of each, here and in the result. Slots
    outside of the documents keep their values. Differentiable; the backward rolls by ``-shift``, in one exchange.

    Args:
        x: a shard, or a list of them (fields) that share the boundaries: any shapes with T / cp slots along ``dim``,
            any dtypes but complex128.
        cu_seqlens: boundaries of the documents in the whole row (global), int32 or int64, ``[N+1]``, nondecreasing,
            within [0, T], the same on every rank, on x's device. With more than one rank every document's length
            divides by 2 * cp.
        group: the context-parallel ProcessGroup, its name, or None for the default group.
        shift: slots to move by, at most 1024 in magnitude, or a list of them (depths). May exceed the length of chunks
            and of documents.
        dim: the packed dimension; a list gives every field its own.
        fill: value of slots whose source lies outside of their document, ``None`` rolls each document around; a list
            gives every field its own.
        zigzag: False for shards of one piece: rank r holds the r-th of cp parts of every document, whose length then
            has to divide by cp only.

    Returns:
        A new contiguous tensor; a list of them for several fields or several shifts; for several of both a list with
        one list per field.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device, shape or range; for boundaries on the
            CPU also wrong values (names the document). On a GPU an asynchronous assertion checks the values.
        RuntimeError: torch.distributed is not initialised.
    """
    xs = [x] if isinstance(x, Tensor) else list(x)
    shifts = list(shift) if isinstance(shift, Sequence) else [shift]
    if not xs or not shifts:
        raise ValueError("x and shift must not be empty lists")
    names = ["x"] if isinstance(x, Tensor) else [f"x[{i}]" for i in range(len(xs))]
    dims, fills = _checked_fields(names, xs, dim, fill)
    for k in shifts:
        check_int("shift", k)
        if abs(k) > LONGEST:
            raise ValueError(f"shift must be at most {LONGEST} in magnitude, got {k}")
    check_boundaries("cu_seqlens", cu_seqlens, device=xs[0].device)
    resolved = resolve_group(group)
    fields = [f for f in range(len(xs)) for _ in shifts]
    outs = cp_packed_roll_op(
        xs, cu_seqlens, fields, shifts * len(xs), dims, [fills[f] if fills[f] is not None else 0 for f in fields],
        [fills[f] is None for f in fields], resolved.name, resolved.size, resolved.rank, None, None, bool(zigzag),
    )  # fmt: skip
    if isinstance(shift, Sequence):
        by_field = [list(outs[f * len(shifts) : (f + 1) * len(shifts)]) for f in range(len(xs))]
        return by_field[0] if isinstance(x, Tensor) else by_field
    return outs[0] if isinstance(x, Tensor) else list(outs)


def _checked_fields(names: list[str], xs: list[Tensor], dim: Any, fill: Any) -> tuple[list[int], list[Scalar | None]]:
    """The packed dimension and the fill of every field, counted from the front; raises where fields do not fit."""
    dims = _per_field("dim", dim, len(xs))
    fills = _per_field("fill", fill, len(xs))
    for i, field in enumerate(xs):
        check_tensor(names[i], field)
        dims[i] = check_dim(field, dims[i])
        if fills[i] is not None:
            check_fill(fills[i], field.dtype)
        if field.dtype is torch.complex128:
            raise TypeError("x must not be complex128: split it with torch.view_as_real")
        if field.device != xs[0].device:
            raise ValueError(f"all fields must be on one device, got {xs[0].device} and {field.device}")
        if field.shape[dims[i]] != xs[0].shape[dims[0]]:
            raise ValueError(
                f"all fields must have the same number of slots along dim, got {xs[0].shape[dims[0]]} and "
                f"{field.shape[dims[i]]}"
            )
    return dims, fills


def _per_field(name: str, value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} must have one entry per field ({count}), got {len(value)}")
    return list(value)


# The other ranks wait in it, whether or not this one uses the result.
for _op in (cp_packed_roll_op, host_cp_packed_roll_op):
    torch.fx.has_side_effect(_op)
