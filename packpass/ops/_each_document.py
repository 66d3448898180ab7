"""``each_document`` (internal): a function of one document, applied to every document of packed rows.

    for d in range(N):
        outs[d] = function(*[x[cu[d] : cu[d + 1]] for x in rows], *others)
    return cat(outs)                                       # along the row of every result

Documents become a batch ``[N, L]``, as long as the longest, and the function runs once for all of them
(``torch.func.vmap``); what it makes of slots behind a document's end is dropped. It must therefore give every real slot
the same whatever these hold, which is what `passes.isolate` tries before it uses this.

It is plain Python, which AOTAutograd traces through: the moves are `pack` and `unpack`, each the other's backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packpass.ops._pack_plan import pack_plan_op
from packpass.ops._pack_rows import pack_op, unpack_op


def each_document(
    function: Callable[..., Any],
    given: tuple[int, ...],
    fills: tuple[float, ...],
    returned: tuple[int, ...],
    source: Tensor,
    slots: Tensor,
    cu_seqlens: Tensor,
    *values: Any,
) -> tuple[Tensor, ...]:
    """Apply ``function`` to every document.

    Args:
        function: takes one document of every row, in the row's own shape but for its length, then the other values;
            returns a tuple of rows of that document.
        given, returned: the packed dimension of every row that the function takes and returns.
        fills: what each of the first holds behind a document's end.
        source: int64 ``[T]``: the slot of ``[N, L]`` where a token goes, -1 for none.
        slots: int64 ``[N, L / m, m]``, its inverse; -1 behind a document's end. That L is a multiple of m is a fact of
            the shape: the sizes of code that divides L by m are then products, not remainders.
        cu_seqlens: boundaries of the N documents, as `unpack` takes them.
        values: the rows, then the other values.
    """
    count, slots = len(given), slots.flatten(1)
    rows, others = values[:count], values[count:]
    fronts = [x.movedim(dim, 0) for x, dim in zip(rows, given, strict=True)]
    documents = unpack_op(fronts, source, slots, cu_seqlens, cu_seqlens, list(fills))
    documents = [x.movedim(1, dim + 1) for x, dim in zip(documents, given, strict=True)]
    results = torch.func.vmap(
        function, in_dims=(0,) * count + (None,) * len(others), out_dims=0, randomness="different"
    )(*documents, *others)
    backs = [x.movedim(dim + 1, 1) for x, dim in zip(results, returned, strict=True)]
    packed = pack_op(backs, source, slots, cu_seqlens, cu_seqlens, [0] * len(backs))
    return tuple(x.movedim(0, dim) for x, dim in zip(packed, returned, strict=True))


def own_memory(x: Tensor, document: Tensor) -> Tensor:
    """A copy of ``x`` for every document, that results of ``document`` can be written to."""
    zero = document.new_zeros((), dtype=x.dtype)
    return x | zero if x.dtype is torch.bool else x + zero


def fit(cu_seqlens: Tensor, total: int) -> bool:
    """Can these be boundaries of a row of so many slots? Reads them on the host."""
    values = cu_seqlens.tolist()
    return bool(values) and values[0] >= 0 and values[-1] <= total and values == sorted(values)


def plan_of(
    cu_seqlens: Tensor,
    total: int,
    padded_to: Callable[[int, int], int] = lambda longest, total: longest,
    multiple: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(source, slots, cu_seqlens)`` of `each_document` for a row of ``total`` slots; the host reads the boundaries.

    The stretches before the first boundary and after the last one are documents, too: every slot of the row is in one.
    Empty ones keep the number of documents above 1, where compiled code is general, as the length is kept.
    ``padded_to(longest, total)``: the length L for documents of at most so many slots, for a function that is not good
    for any; ``multiple``: it is one of this.
    """
    cu = torch.nn.functional.pad(cu_seqlens.detach().long(), (1, 1))
    cu[-1] = total
    lengths = cu.diff()
    longest = padded_to(max(int(lengths.max()), 2), total)
    keep = torch.arange(longest, device=cu.device) < lengths.unsqueeze(1)
    boundaries, _, source, slots, *_ = pack_plan_op(keep, 1, total)
    return source, slots.unflatten(1, (-1, multiple)), boundaries
