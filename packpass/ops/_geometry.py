"""Where documents lie in a packed row: pieces shared by the kernels and decompositions of several ops.

Words used everywhere: ``total`` (T) is the number of slots along the packed dimension, ``N = len(cu_seqlens) - 1`` the
number of documents, document ``d`` owns slots ``[cu[d], cu[d+1])``; slots outside ``[cu[0], cu[N])`` are the tail.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from packpass._compat import hint_of, size_oblivious

# Up to this many slots per boundary, slots near boundaries are listed with repetitions rather than counted.
SHORT = 8
# Slots that one comparison of generated C++ decides about. Larger blocks compare less and leave more slots to patch; 32
# to 128 measure the same.
BLOCK = 64


def previous(cu_seqlens: Tensor) -> Tensor:
    """``[cu[0], cu[0], cu[1], ..., cu[N-1]]``: where the document that ends at each boundary starts, with an empty
    document in front. N + 1 entries on purpose: N of them would make dynamic shapes guard on N != 1."""
    before = (torch.arange(cu_seqlens.shape[0], device=cu_seqlens.device) - 1).clamp(min=0)
    return cu_seqlens.index_select(0, before)


def indices_in(first: Tensor, stop: Tensor) -> Tensor:
    """All indices of the half-open intervals ``[first[i], stop[i])``, int64, one interval after the other.

    Reads the intervals' lengths, so the arguments must be host memory; negative intervals count as empty.
    """
    lengths = (stop - first).clamp(min=0)
    offsets = lengths.cumsum(0)
    count = int(offsets[-1]) if offsets.numel() else 0
    shift = torch.repeat_interleave(first - (offsets - lengths), lengths, output_size=count)
    return torch.arange(count) + shift


def take(x: Tensor, dim: int, slots: Tensor) -> Tensor:
    """``x.index_select(dim, slots)`` in host memory; along the innermost dimension ``gather`` is 4-10 times faster."""
    if dim == x.dim() - 1:
        return x.gather(dim, slots.expand([*x.shape[:-1], -1]))
    return x.index_select(dim, slots)


def along(vector: Tensor, rank: int, dim: int) -> Tensor:
    """View a ``[T]`` vector so that it broadcasts along ``dim`` (>= 0) of a tensor with ``rank`` dimensions."""
    return vector.view([1] * dim + [-1] + [1] * (rank - dim - 1))


def near_boundaries(cu_seqlens: Tensor, total: int, shift: int) -> Tensor:
    """Slots of documents within a short ``shift`` of a boundary, at a few cheap operations and without reading any.

    For ``shift < 0`` the last ``-shift`` slots of every document, else the first ``shift``; int64, with repetitions,
    counted from the front or (negative) from the back, as torch's index functions take them. Slots of the tail may be
    in the list, but none that lies in a document farther from its boundary: what reaches beyond a short document is
    near the boundary of its neighbour, and what reaches beyond one end of the row is near the other end.

    Args:
        shift: not 0, at most ``total`` in magnitude; meant for magnitudes up to ``SHORT``.
    """
    if shift < 0:
        slots = cu_seqlens[1:].long() - 1
        return slots if shift == -1 else (slots.unsqueeze(1) - torch.arange(-shift)).flatten()
    slots = cu_seqlens[:-1].long() - total
    return slots if shift == 1 else (slots.unsqueeze(1) + torch.arange(shift)).flatten()


# === Pieces of generated C++ ====================================================================================
# Inductor's C++ is fast at contiguous copies and slow at nearly everything else (measured against a copy of int64): a
# binary search per slot (20-40x), a gather (2.5x), a comparison with the slot's own number (1.5x: the vector of numbers
# is built one lane at a time), any load or store of bool (300x).


def long_enough_for_blocks(total: int, least: int = 0) -> bool:
    """Whether a row of ``total`` slots is at least two blocks and ``least`` slots long.

    With dynamic shapes the length seen while compiling decides, without a guard: both forms are right for every
    length, also where the number of blocks is 0 or 1 at run time (`unguarded_blocks`), and a guard would cost a graph
    of its own on either side.
    """
    least = max(least, 2 * BLOCK + 2)
    if isinstance(total, int):
        return total >= least
    seen = hint_of(total)
    return seen is not None and seen >= least and guard_or_false(total >= 2)


def unguarded_blocks() -> Any:
    """Context in which a dynamic number of blocks is not compared with 0 and 1."""
    return size_oblivious()


def ends_of(cu: Tensor) -> tuple[Tensor, Tensor]:
    """The first boundary and the last, ``[1]`` each.

    The last one is selected from the end: a slice from ``cu.shape[0] - 1`` on is symbolic in a graph whose N has become
    1 while it was traced, and Inductor then takes its size for that of the row, and reads behind the boundaries.
    """
    return cu.select(0, 0).unsqueeze(0), cu.select(0, -1).unsqueeze(0)


def is_between(slots: Tensor, first: Tensor, stop: Tensor) -> Tensor:
    """``first <= slots < stop`` by one comparison: the sign of either difference (masks are slow to combine)."""
    return ((slots - first) | (stop - 1 - slots)) >= 0


def touched_blocks(count: int, begin: int, first: Tensor, stop: Tensor) -> Tensor:
    """Which of ``count`` blocks from slot ``begin`` on share a slot with [first, stop): bool ``[count]``."""
    heads = torch.arange(count, device=first.device) * BLOCK + begin
    # Numbers, not tensors of one entry: those would be compared with a count of 1.
    return (heads + BLOCK > first.squeeze(0)) & (heads < stop.squeeze(0))


def around_ends(first: Tensor, stop: Tensor) -> Tensor:
    """Slots around both ends of [first, stop), among them all outside of it in blocks that ``touched_blocks`` takes for
    inside; int64 ``[2 * BLOCK]``. Some may lie outside of the row."""
    window = torch.arange(2 * BLOCK, device=first.device)
    return window + torch.where(window < BLOCK, first - BLOCK, stop - BLOCK)


# Slots that a row of whole blocks leaves over, of which a shift of at most `SHORT` needs as many more; whole vectors.
REST = BLOCK + 2 * SHORT


def read(x: Tensor, dim: int, slots: Tensor) -> Tensor:
    """``x[..., slots, ...]``; the dimensions of ``slots`` take the place of ``dim``. Slots must be within the row.

    Unchecked, because a failed check would be thrown out of an OpenMP region, which aborts the process.
    """
    indices: list[Tensor | None] = [None] * dim
    return torch.ops.aten._unsafe_index.Tensor(x, [*indices, slots])


def write(x: Tensor, dim: int, slots: Tensor, value: Tensor) -> Tensor:
    """A copy of x with ``x[..., slots, ...] = value``; slots must be within the row, as for ``read``.

    Inductor writes in place, because nothing else reads x.
    """
    indices: list[Tensor | None] = [None] * dim
    return torch.ops.aten._unsafe_index_put.default(x, [*indices, slots], value)
