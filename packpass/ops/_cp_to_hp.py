"""``cp_to_hp`` and ``hp_to_cp``: from shards of the tokens to shards of the heads and back, one all-to-all each.

Reference, for x ``[T / cp, ..., heads, ...]`` (a shard) and ``whole``, the row that all ranks hold together::

    out = cat([section.chunk(cp, dim)[rank] for section in whole.split(sections, dim)], dim)     # cp_to_hp
    x = hp_to_cp(cp_to_hp(x))

However many documents and sections: the sections are cut in one copy into what each rank gets, exchanged once, and the
tokens put in order by `shard_rows`; in host memory `_cp_exchange` does all of it. Each op is the other's backward.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from packpass.ops import _cp_exchange
from packpass.ops._arguments import check_boundaries, check_int, check_tensor
from packpass.ops._cp_group import CPGroup, exchange, resolve_group
from packpass.ops._cp_layout import shard_rows_op
from packpass.ops._documents_only import documents_only_op, fresh_size, put_back_op
from packpass.ops._geometry import read
from packpass.ops._library import define, differentiable


def _widths(x: Tensor, sections: list[int], dim: int) -> list[int]:
    """Sections in elements behind the heads' dimension: what follows it belongs to the heads."""
    inner = math.prod(x.shape[dim + 1 :])
    return [section * inner for section in sections]


def _part_widths(x: Tensor, sections: list[int], dim: int, group_size: int) -> list[int]:
    return [width // group_size for width in _widths(x, sections, dim)]


def _cut(x: Tensor, sections: list[int], dim: int, group_size: int) -> list[Tensor]:
    """Views ``[group_size, rows, width / group_size]`` of every section of x: entry r is what rank r gets."""
    widths = _widths(x, sections, dim)
    flat = x.reshape(math.prod(x.shape[:dim]), sum(widths))
    views = flat.split_with_sizes(widths, 1)
    return [v.unflatten(1, (group_size, w // group_size)).transpose(0, 1) for v, w in zip(views, widths, strict=True)]


# === Eager ======================================================================================================


def _to_heads(
    x: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True
) -> Tensor:
    if group_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    rows = shard_rows_op(cu_seqlens, x.shape[0], group_size, False, zigzag)
    cuts = _cut(x, sections, dim, group_size)
    received = exchange(torch.cat(cuts, 2), group, group_size)
    return received.view(_heads_shape(x, dim, group_size)).index_select(0, rows)


def _to_tokens(
    y: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True
) -> Tensor:
    if group_size == 1:
        return y.clone(memory_format=torch.contiguous_format)
    total = y.shape[0]
    slots = shard_rows_op(cu_seqlens, total // group_size, group_size, True, zigzag)
    shape = _tokens_shape(y, dim, group_size)
    widths = _part_widths(y, sections, dim, group_size)
    send = y.contiguous().index_select(0, slots).view(group_size, math.prod(shape[:dim]), sum(widths))
    parts = exchange(send, group, group_size).split_with_sizes(widths, 2)
    return torch.cat([piece for part in parts for piece in part.unbind(0)], 1).view(shape)


# === Host memory ================================================================================================


def _to_heads_host(
    x: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True,
    documents: bool = False, total: int | None = None,
) -> Tensor:  # fmt: skip
    if group_size == 1 or not _cp_exchange.is_available():
        return _to_heads_eager(x, cu_seqlens, sections, dim, group, group_size, zigzag, documents, total)
    widths, shape = _part_widths(x, sections, dim, group_size), _heads_shape(x, dim, group_size, total)
    return _cp_exchange.to_heads(x, cu_seqlens, widths, dim, group, group_size, zigzag, documents, total, shape)


def _to_tokens_host(
    y: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True,
    documents: bool = False, total: int | None = None,
) -> Tensor:  # fmt: skip
    if group_size == 1 or not _cp_exchange.is_available():
        return _to_tokens_eager(y, cu_seqlens, sections, dim, group, group_size, zigzag, documents, total)
    widths, shape = _part_widths(y, sections, dim, group_size), _tokens_shape(y, dim, group_size, total)
    return _cp_exchange.to_tokens(y, cu_seqlens, widths, dim, group, group_size, zigzag, documents, total, shape)


FEW = 4
"""Up to this many ranks generated code has a loop for each of a section's parts; one loop divides for every element."""


# === Generated code =============================================================================================


def _to_heads_code(
    x: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True
) -> Tensor:
    if group_size == 1:
        return x.clone(memory_format=torch.contiguous_format)
    rows = shard_rows_op(cu_seqlens, x.shape[0], group_size, False, zigzag)
    received = exchange(torch.cat(_cut(x, sections, dim, group_size), 2), group, group_size)
    # Whole rows by a computed index: a copy per row, which takes part in whatever kernel reads it.
    return read(received.view(_heads_shape(x, dim, group_size)), 0, rows)


def _to_tokens_code(
    y: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True
) -> Tensor:
    if group_size == 1:
        return y.clone(memory_format=torch.contiguous_format)
    local = y.shape[0] // group_size
    slots = shard_rows_op(cu_seqlens, local, group_size, True, zigzag)
    shape = _tokens_shape(y, dim, group_size)
    widths = _part_widths(y, sections, dim, group_size)
    send = read(y.flatten(1), 0, slots).view(group_size, math.prod(shape[:dim]), sum(widths))
    received = exchange(send, group, group_size)
    parts = received.split_with_sizes(widths, 2)
    if group_size <= FEW:
        return torch.cat([piece for part in parts for piece in part.unbind(0)], 1).view(shape)
    # A loop per section, and none per rank: code does not grow with the group.
    return torch.cat([part.transpose(0, 1).flatten(1) for part in parts], 1).view(shape)


# === With and without the tails =================================================================================


def _with_parts(
    form: Callable[..., Tensor], host: Callable[..., Tensor] | None, sharded: bool
) -> Callable[..., Tensor]:
    """A form of whole rows and shards that takes and gives the documents' parts of them. ``host``: the op that does all
    of it in host memory, at fewer copies than it would save to have a part in the loops of the neighbours."""

    def run(
        x: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True,
        documents: bool = False, total: int | None = None,
    ) -> Tensor:  # fmt: skip
        if host is not None and x.device.type == "cpu" and group_size > 1:
            return host(x, cu_seqlens, sections, dim, group, group_size, zigzag, documents, total)
        shards = cu_seqlens // group_size if documents or total is not None else cu_seqlens
        given, made = (shards, cu_seqlens) if sharded else (cu_seqlens, shards)
        if total is not None:
            x = put_back_op(x, given, 0, total)
        out = form(x, cu_seqlens, sections, dim, group, group_size, zigzag)
        return documents_only_op(out, made, 0) if documents else out

    return run


_to_heads_eager = _with_parts(_to_heads, None, sharded=True)
_to_tokens_eager = _with_parts(_to_tokens, None, sharded=False)


# === Ops ========================================================================================================


def _heads_shape(x: Tensor, dim: int, group_size: int, total: int | None = None) -> list[Any]:
    slots = x.shape[0] if total is None else total
    return [slots * group_size, *x.shape[1:dim], x.shape[dim] // group_size, *x.shape[dim + 1 :]]


def _tokens_shape(y: Tensor, dim: int, group_size: int, total: int | None = None) -> list[Any]:
    slots = y.shape[0] if total is None else total
    return [slots // group_size, *y.shape[1:dim], y.shape[dim] * group_size, *y.shape[dim + 1 :]]


def _fake(shape_of: Callable[..., list[Any]]) -> Callable[..., Tensor]:
    def fake(
        x: Tensor, cu_seqlens: Tensor, sections: list[int], dim: int, group: str, group_size: int, zigzag: bool = True,
        documents: bool = False, total: int | None = None,
    ) -> Tensor:  # fmt: skip
        shape = shape_of(x, dim, group_size, total)
        return x.new_empty([fresh_size(), *shape[1:]] if documents else shape)

    return fake


_ARGUMENTS = (
    "Tensor x, Tensor cu_seqlens, int[] sections, int dim, str group, int group_size, bool zigzag=True, "
    "bool documents=False, SymInt? total=None"
)
# The eager kernels under names that have no decomposition, because Inductor refuses to call an op that also has one.
host_cp_to_hp_op = define(f"host_cp_to_hp({_ARGUMENTS}) -> Tensor", fake=_fake(_heads_shape), kernel=_to_heads_host)
host_hp_to_cp_op = define(f"host_hp_to_cp({_ARGUMENTS}) -> Tensor", fake=_fake(_tokens_shape), kernel=_to_tokens_host)
# ``documents``: the result is the documents' part alone. ``total``: slots of what x is the documents' part of, the rest
# of which is 0. Passes put `documents_only` into the op this way; that is its backward.
cp_to_hp_op = define(
    f"cp_to_hp({_ARGUMENTS}) -> Tensor",
    fake=_fake(_heads_shape),
    kernel=_to_heads_eager,
    cpu_kernel=_to_heads_host,
    decomposition=_with_parts(_to_heads_code, host_cp_to_hp_op, sharded=True),
)
hp_to_cp_op = define(
    f"hp_to_cp({_ARGUMENTS}) -> Tensor",
    fake=_fake(_tokens_shape),
    kernel=_to_tokens_eager,
    cpu_kernel=_to_tokens_host,
    decomposition=_with_parts(_to_tokens_code, host_hp_to_cp_op, sharded=False),
)


def _setup_context(scale: Callable[[Any, int], Any]) -> Callable[..., None]:
    """``scale``: slots of what comes out for slots of what goes in."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, cu_seqlens, *ctx.rest = inputs
        documents, total = ctx.rest[5:]
        slots = x.shape[0] if total is None else total
        ctx.rest[5:] = [total is not None, scale(slots, ctx.rest[3]) if documents else None]
        ctx.save_for_backward(cu_seqlens)

    return setup


def _to_heads_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return hp_to_cp_op(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 8


def _to_tokens_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return cp_to_hp_op(grad, *ctx.saved_tensors, *ctx.rest), *[None] * 8


differentiable("cp_to_hp", _to_heads_backward, _setup_context(operator.mul))
differentiable("hp_to_cp", _to_tokens_backward, _setup_context(operator.floordiv))


# === Functions for users ========================================================================================


def _checked(
    x: Tensor, cu_seqlens: Tensor, group: Any, sections: Sequence[int] | None, dim: int, sharded: bool
) -> tuple[CPGroup, list[int], int]:
    """Group, sections (of the whole, unsharded heads) and dim >= 1."""
    check_tensor("x", x)
    check_boundaries("cu_seqlens", cu_seqlens, device=x.device)
    check_int("dim", dim)
    if x.dim() < 2:
        raise ValueError(f"x must have at least 2 dimensions (tokens first, heads), got shape {tuple(x.shape)}")
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == 0:
        raise ValueError(f"dim must be a dimension of x behind the first (tokens), got {dim} for {x.dim()} dimensions")
    dim %= x.dim()
    resolved = resolve_group(group)
    heads = x.shape[dim] * (resolved.size if sharded else 1)
    if sections is None:
        sections = [heads]
    widths = list(sections)
    for i, width in enumerate(widths):
        check_int(f"sections[{i}]", width)
        if width < 0 or width % resolved.size != 0:
            raise ValueError(
                f"sections[{i}] = {width} must be a multiple of the context-parallel group's size {resolved.size}"
            )
    if sum(widths) != heads:
        raise ValueError(f"sections must sum to the {heads} heads of all ranks, got {widths} = {sum(widths)}")
    return resolved, widths, dim


def cp_to_hp(
    x: Tensor,
    cu_seqlens: Tensor,
    group: Any,
    sections: Sequence[int] | None = None,
    dim: int = -1,
    *,
    zigzag: bool = True,
) -> Tensor:
    """From some tokens with all heads to all tokens with some heads: one all-to-all over a context-parallel group.

    Each rank gives its zigzag shard (chunks r and 2 * cp - 1 - r of every document cut in 2 * cp) and gets the whole
    row in its natural order, with the r-th of cp parts of every section. Differentiable; the backward is `hp_to_cp`.

    Args:
        x: ``[T / cp, ..., H, ...]``, any dtype; dimension 0 holds the shard's tokens, ``dim`` the heads (or features).
        cu_seqlens: boundaries of the documents in the whole row (global), int32 or int64, ``[N+1]``, nondecreasing,
            within [0, T], the same on every rank, on x's device. With more than one rank every document's length
            divides by 2 * cp. Slots outside of the documents are held in cp consecutive parts, rank r's the r-th.
        group: the context-parallel ProcessGroup, its name, or None for the default group.
        sections: widths along ``dim``, each divided among the ranks on its own; they sum to H. ``None``: one section.
        dim: the dimension of the heads, not the first.
        zigzag: False for shards of one piece: rank r holds the r-th of cp parts of every document, whose length then
            has to divide by cp only.

    Returns:
        ``[T, ..., H / cp, ...]``, new and contiguous, in x's dtype.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device or shape; a section that does not
            divide by the group's size; for boundaries on the CPU also wrong values (names the document). On a GPU an
            asynchronous assertion checks the values, without a host sync.
        RuntimeError: torch.distributed is not initialised.
    """
    resolved, widths, dim = _checked(x, cu_seqlens, group, sections, dim, sharded=False)
    out: Tensor = cp_to_hp_op(x, cu_seqlens, widths, dim, resolved.name, resolved.size, bool(zigzag))
    return out


def hp_to_cp(
    x: Tensor,
    cu_seqlens: Tensor,
    group: Any,
    sections: Sequence[int] | None = None,
    dim: int = -1,
    *,
    zigzag: bool = True,
) -> Tensor:
    """The inverse of :func:`cp_to_hp`, and its backward: one all-to-all over a context-parallel group.

    Args:
        x: ``[T, ..., H / cp, ...]``: all tokens in natural order; T divides by cp.
        cu_seqlens, group, dim, zigzag: as for :func:`cp_to_hp`.
        sections: the widths of the *whole* sections, as for :func:`cp_to_hp`: they sum to H.

    Returns:
        ``[T / cp, ..., H, ...]``, new and contiguous: this rank's shard with all heads.

    Raises:
        As :func:`cp_to_hp`; also ValueError if T does not divide by cp.
    """
    resolved, widths, dim = _checked(x, cu_seqlens, group, sections, dim, sharded=True)
    if x.shape[0] % resolved.size != 0:
        raise ValueError(f"x must have a multiple of {resolved.size} tokens (the group's size), got {x.shape[0]}")
    out: Tensor = hp_to_cp_op(x, cu_seqlens, widths, dim, resolved.name, resolved.size, bool(zigzag))
    return out


# The other ranks wait in it, whether or not this one uses the result.
for _op in (cp_to_hp_op, hp_to_cp_op, host_cp_to_hp_op, host_hp_to_cp_op):
    torch.fx.has_side_effect(_op)
