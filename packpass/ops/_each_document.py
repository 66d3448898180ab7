"""``each_document`` (internal): a function of one document, applied to every document of packed rows.

    for d in range(N):
        outs[d] = function(*[x[cu[d] : cu[d + 1]] for x in rows], *others)
    return cat(outs)                                       # along the row of every result

Documents become a batch ``[N, L]``, as long as the longest (or a few batches of documents of similar lengths), and the
function runs once for all of them (``torch.func.vmap``); what it makes of slots behind a document's end is dropped. It
must therefore give every real slot the same whatever these hold, which is what `passes.isolate` tries before it uses
this.

It is plain Python, which AOTAutograd traces through: the moves are `pack` and `unpack`, each the other's backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from packpass.ops._document_plans import Plan
from packpass.ops._pack_rows import pack_op, unpack_op


def each_document(
    function: Callable[..., Any],
    given: tuple[int, ...],
    fills: tuple[float, ...],
    returned: tuple[int, ...],
    plans: Sequence[Plan],
    *values: Any,
    counted: bool = False,
) -> tuple[Tensor, ...]:
    """Apply ``function`` to every document.

    Args:
        function: takes one document of every row, in the row's own shape but for its length, then the other values;
            returns a tuple of rows of that document.
        given, returned: the packed dimension of every row that the function takes and returns.
        fills: what each of the first holds behind a document's end.
        plans: of every batch of documents (`packpass.ops._document_plans`); every slot of the row is in one. That the
            length of a batch is a multiple of m is a fact of the shape of ``slots``: the sizes of code that divides it
            by m are then products, not remainders. In rows of chunks ``function`` is also told which chunks a document
            begins with, behind the other values.
        values: the rows, then the other values.
        counted: does ``function`` take the number of the document's slots, behind the other values?
    """
    count = len(given)
    fronts = [x.movedim(dim, 0) for x, dim in zip(values[:count], given, strict=True)]
    rows: list[Tensor] = []
    for plan in plans:
        part = _batch(function, given, fills, returned, plan, fronts, values[count:], counted)
        rows = [_placed(plan[0] >= 0, x, y) for x, y in zip(part, rows, strict=True)] if rows else part
    return tuple(x.movedim(0, dim) for x, dim in zip(rows, returned, strict=True))


def _placed(own: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``x`` at its own slots, else ``y``."""
    return torch.where(own.view(-1, *[1] * (x.dim() - 1)), x, y)


def _batch(
    function: Callable[..., Any],
    given: tuple[int, ...],
    fills: tuple[float, ...],
    returned: tuple[int, ...],
    plan: Plan,
    fronts: list[Tensor],
    others: Sequence[Any],
    counted: bool,
) -> list[Tensor]:
    """The results at the documents of one batch, 0 elsewhere, each with the row in front."""
    source, slots, *boundaries = plan
    starts = boundaries[2:]  # of rows of chunks: a chunk is moved as a document is, and a row of them worked on as one
    boundaries, shape = boundaries[:2], slots.shape
    slots = slots.flatten(0, 1) if starts else slots.flatten(1)
    documents = unpack_op(fronts, source, slots, *boundaries, list(fills))
    if starts:
        documents = [x.view(shape[0], shape[1] * shape[2], *x.shape[2:]) for x in documents]
    documents = [x.movedim(1, dim + 1) for x, dim in zip(documents, given, strict=True)]
    in_dims: tuple[int | None, ...] = (0,) * len(given) + (None,) * len(others) + (0,) * len(starts)
    others = (*others, *starts)
    if counted:  # a document without slots gets one, so that nothing is divided by 0
        others, in_dims = (*others, boundaries[0].diff().clamp(min=1)), (*in_dims, 0)
    results = torch.func.vmap(function, in_dims=in_dims, out_dims=0, randomness="different")(*documents, *others)
    backs = [x.movedim(dim + 1, 1) for x, dim in zip(results, returned, strict=True)]
    if starts:
        backs = [x.reshape(shape[0] * shape[1], shape[2], *x.shape[2:]) for x in backs]
    packed: list[Tensor] = pack_op(backs, source, slots, *boundaries, [0] * len(backs))
    return packed


def neutral(x: Tensor, dim: int, count: Tensor, fill: float) -> Tensor:
    """``x`` with ``fill`` behind the first ``count`` slots of a dimension."""
    inside = torch.arange(x.shape[dim], device=x.device).view([-1 if d == dim else 1 for d in range(x.dim())]) < count
    value: float | int | bool = fill
    if x.dtype is torch.bool:
        value = fill > 0
    elif math.isinf(fill) and not x.dtype.is_floating_point:
        value = torch.iinfo(x.dtype).max if fill > 0 else torch.iinfo(x.dtype).min
    return torch.where(inside, x, torch.full((), value, dtype=x.dtype, device=x.device))


def hidden(mask: Tensor | None, query: Tensor | None, keys: Tensor, count: Tensor) -> Tensor:
    """A mask of attention that shows none of the keys behind the first ``count``; queries there see what they saw, as
    one that sees nothing is no number (``query``: if they are slots of the row)."""
    shown = (torch.arange(keys.shape[-2], device=keys.device) < count).unsqueeze(0)
    if query is not None:
        shown = shown | (torch.arange(query.shape[-2], device=query.device) >= count).unsqueeze(-1)
    if mask is None:
        return shown
    if mask.dtype is torch.bool:
        return mask & shown
    return torch.where(shown, mask, torch.full((), -math.inf, dtype=mask.dtype, device=mask.device))


def own_memory(x: Tensor, document: Tensor) -> Tensor:
    """A copy of ``x`` for every document, that results of ``document`` can be written to."""
    zero = document.new_zeros((), dtype=x.dtype)
    return x | zero if x.dtype is torch.bool else x + zero
