"""Which slot of a packed row lies where when documents become batches: the plans of `each_document`.

A batch is as long as its longest document. One long document among many short ones would make that many times the row,
so documents go into a few batches by their lengths where that pays; every batch has a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import torch
from torch import Tensor

Plan = tuple[Tensor, ...]
"""``source [T]``, ``slots [N, L / m, m]``, ``cu_seqlens [N + 1]``, ``cu_seqlens_padded [N + 1]``, as `pack` takes them;
``-1`` where there is no token. Of rows of chunks (`chunked_rows`): ``slots [R, C, m]``, the others with a chunk in
place of a document, and ``starts [R, C]``."""

BATCHES = 3
"""Into how many batches documents of very different lengths go: a compiled graph has a part for each."""
ROOMY = 3.0
"""Slots of one batch, as a multiple of the row's, from which several are better."""
_CUTS = 24
"""Lengths that are tried as the longest of a batch."""

PaddedTo = Callable[[int, int], int]


def fit(cu_seqlens: Tensor, total: int) -> bool:
    """Can these be boundaries of a row of so many slots? Reads them on the host."""
    values = cu_seqlens.tolist()
    return bool(values) and values[0] >= 0 and values[-1] <= total and values == sorted(values)


def stretches(cu_seqlens: Tensor, total: int) -> list[tuple[int, int]]:
    """``(start, length)`` of everything in a row, read on the host: what lies before the first boundary and after the
    last one is a document, too, and empty ones are none."""
    return [(a, b - a) for a, b in pairwise((0, *cu_seqlens.tolist(), total)) if b > a]


def one_batch(
    documents: Sequence[tuple[int, int]], total: int, device: torch.device, padded_to: PaddedTo, multiple: int = 1
) -> Plan:
    """The plan of these documents ``(start, length)`` as one batch; their order is that of the row.

    Two of them at least: with a batch of one compiled code would be good for one document only.
    ``padded_to(longest, total)``: the length of the batch, wherever possible a multiple of ``multiple``.
    """
    longest = padded_to(max([n for _, n in documents], default=1), total)
    spans = list(documents)
    if not spans or spans[0][0]:
        spans.insert(0, (0, 0))
    if len(spans) < 2:
        spans.append((total, 0))
    source, slots, cu_seqlens, physical = _moves(torch.tensor(spans, dtype=torch.int64).to(device), total, longest)
    factor = 1 if longest % multiple else multiple
    return source, slots.unflatten(1, (-1, factor)), cu_seqlens, physical


def chunked_rows(
    documents: Sequence[tuple[int, int]], total: int, device: torch.device, count: int, slots: int
) -> Plan:
    """The plan of these documents in rows of ``count`` chunks of ``slots`` slots: one behind the other, each from a
    chunk's start on, and none in two rows. ``starts``: does a document begin with a chunk? Two rows at least, as above.
    """
    chunks: list[tuple[int, int]] = []
    begins: list[bool] = []
    for start, length in documents:
        needed = -(-length // slots)
        room = -len(chunks) % count
        if needed > (room or count):
            chunks += [(start, 0)] * room
            begins += [True] * room
        chunks += [(start + k * slots, min(slots, length - k * slots)) for k in range(needed)]
        begins += [k == 0 for k in range(needed)]
    rest = max(-(-len(chunks) // count), 2) * count - len(chunks)
    chunks += [(total, 0)] * rest
    begins += [True] * rest
    every = torch.tensor(chunks, dtype=torch.int64).to(device)
    source, places, cu_seqlens, physical = _moves(every, total, slots)
    starts = torch.tensor(begins, dtype=torch.bool).to(device).view(-1, count)
    return source, places.view(-1, count, slots), cu_seqlens, physical, starts


def _moves(spans: Tensor, total: int, longest: int) -> Plan:
    """``(source, slots [N, longest], cu_seqlens, cu_seqlens_padded)`` of stretches ``(start, length)``, in order."""
    device = spans.device
    starts, lengths = spans.unbind(1)
    offset = torch.arange(longest, device=device)
    slots = torch.where(offset < lengths.unsqueeze(1), starts.unsqueeze(1) + offset, -1)
    place = torch.arange(total, device=device)
    # Of empty stretches at one start and the one behind them, the last is it.
    document = torch.searchsorted(starts.contiguous(), place, right=True) - 1
    inside = place - starts[document.clamp(min=0)]
    within = (document >= 0) & (inside < lengths[document.clamp(min=0)])
    source = torch.where(within, document * longest + inside, -1)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    physical = torch.nn.functional.pad(starts, (0, 1), value=total).int()
    return source, slots, cu_seqlens, physical


def several_batches(
    documents: Sequence[tuple[int, int]], total: int, padded_to: PaddedTo
) -> list[list[tuple[int, int]]] | None:
    """The documents in `BATCHES` classes by length, each in the order of the row; None where one batch does."""

    def slots(count: int, longest: int) -> int:
        return count * padded_to(longest, total) if count else 0

    lengths = sorted(n for _, n in documents)
    if not lengths or slots(len(lengths), lengths[-1]) <= ROOMY * total:
        return None
    steps = max(len(lengths) // _CUTS, 1)
    ends = [k for k in range(steps, len(lengths), steps) if lengths[k] != lengths[k - 1]]

    def cost(cuts: tuple[int, ...]) -> int:
        return sum(slots(b - a, lengths[b - 1]) for a, b in pairwise((0, *cuts, len(lengths))))

    best = min(combinations(ends, BATCHES - 1), key=cost, default=None)
    if best is None or cost(best) > 0.7 * slots(len(lengths), lengths[-1]):
        return None
    edges = [0, *(lengths[k - 1] for k in best), lengths[-1]]
    return [[d for d in documents if low < d[1] <= high] for low, high in pairwise(edges)]
