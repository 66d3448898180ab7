"""``window_slots``, ``window_sources``, ``end_slots`` and ``end_sources`` (internal): where a short roll patches a row.

Generated C++ shifts a whole row at once and then patches a few slots (`_packed_roll_inductor`). Which slots these are
depends on the boundaries, the length of the row and the shift only, not on what is rolled. So they are tables that a
graph computes once, whatever number of rolls reads them: inlined into every roll, as Inductor does with arithmetic,
they were most of what is lowered, generated and given to the C++ compiler when many fields of one row are shifted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packpass._compat import floor_div, register_inductor_table
from packpass.ops._geometry import BLOCK, REST, SHORT
from packpass.ops._library import Op, define

# One number of a table, in the words of `maths`: torch for eager kernels, Inductor's ops for generated code.
Entry = Callable[..., Any]


def _clamp(maths: Any, number: Callable[[Any], Any], slot: Any, total: Any) -> Any:
    """Changes nothing for boundaries in order; keeps wrong ones from reading and writing outside of the row."""
    return maths.maximum(maths.minimum(slot, number(total - 1)), number(0))


def _inside(maths: Any, number: Callable[[Any], Any], slot: Any, first: Any, stop: Any) -> Any:
    """``first <= slot < stop`` by one comparison: the sign of either difference."""
    behind = maths.sub(maths.sub(stop, number(1)), slot)
    return maths.ge(maths.bitwise_or(maths.sub(slot, first), behind), number(0))


def _window_slot(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    """Slots around both ends of the documents, and the end of the row that whole blocks leave over."""
    first, stop, _ = bounds
    (place,) = at
    end = maths.where(maths.lt(place, number(BLOCK)), first(), stop())
    rest = number(total - REST - 2 * BLOCK if shift < 0 else -2 * BLOCK)
    begin = maths.where(maths.lt(place, number(2 * BLOCK)), maths.sub(end, number(BLOCK)), rest)
    return _clamp(maths, number, maths.add(place, begin), total)


def _window_move(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    first, stop, _ = bounds
    slot = _window_slot(maths, number, at, bounds, total, shift)
    moved = _clamp(maths, number, maths.sub(slot, number(shift)), total)
    return maths.where(_inside(maths, number, slot, first(), stop()), maths.sub(slot, moved), number(0))


def _spare(maths: Any, number: Any, bounds: Any, shift: int) -> Any:
    """A slot at the end of the row that is filled anyway, unless all documents are empty."""
    first, stop, _ = bounds
    return maths.sub(stop(), number(1)) if shift < 0 else first()


def _end_slot(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    """Slots within the shift of a boundary. One that lies beyond its own document is near the boundary of the one it
    lies in, so it is filled anyway; one that lies in none is replaced by the spare one."""
    first, stop, each = bounds
    step, _ = at
    slot = maths.sub(maths.sub(each(), number(1)), step) if shift < 0 else maths.add(each(), step)
    inside = _inside(maths, number, slot, first(), stop())
    return _clamp(maths, number, maths.where(inside, slot, _spare(maths, number, bounds, shift)), total)


def _filled(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    first, stop, _ = bounds
    return maths.where(maths.lt(first(), stop()), number(1), number(0))


def _spare_slot(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    return _clamp(maths, number, _spare(maths, number, bounds, shift), total)


def _touched(maths: Any, number: Any, at: Any, bounds: Any, total: Any, shift: int) -> Any:
    first, stop, _ = bounds
    (block,) = at
    head = maths.add(maths.mul(block, number(BLOCK)), number(body_at(total, shift)))
    # One vector of heads: numbers that differ from slot to slot are what generated code is slow at.
    behind = maths.sub(head, maths.sub(first(), number(BLOCK - 1)))
    apart = maths.bitwise_or(behind, maths.sub(maths.sub(stop(), number(1)), head))
    return maths.where(maths.lt(apart, number(0)), number(0), number(1))


def alike(shift: int) -> int:
    """The longest shift to the same side that is generated alike: rolls of one row by these are one loop."""
    longest = 3 if abs(shift) <= 3 else SHORT
    return -longest if shift < 0 else longest


def blocks_in(total: Any, longest: int) -> Any:
    """Whole blocks of a row, with a rest of at least two slots more than the shift: it is never empty nor one long."""
    return floor_div(total - abs(longest) - 2, BLOCK)


def body_at(total: Any, longest: int) -> Any:
    """Where these blocks begin: at the end of the row that has sources."""
    return 0 if longest < 0 else total - blocks_in(total, longest) * BLOCK


def _table(
    name: str, sizes: Callable[[Any, Any, int], list[Any]], entry: Entry, dtype: torch.dtype = torch.int64
) -> Op:
    def fake(cu_seqlens: Tensor, total: int, shift: int) -> Tensor:
        return cu_seqlens.new_empty(sizes(cu_seqlens.shape[0], total, shift), dtype=dtype)

    def kernel(cu_seqlens: Tensor, total: int, shift: int) -> Tensor:
        size = sizes(cu_seqlens.shape[0], total, shift)
        cu, device = cu_seqlens.long(), cu_seqlens.device
        at = torch.meshgrid(*(torch.arange(extent, device=device) for extent in size), indexing="ij")
        bounds = (lambda: cu[0], lambda: cu[-1], lambda: cu.expand(size))
        found: Tensor = entry(torch, lambda value: torch.tensor(value, device=device), at, bounds, total, shift)
        return found.expand(size).to(dtype, copy=True)

    op = define(f"{name}(Tensor cu_seqlens, SymInt total, int shift) -> Tensor", fake=fake, kernel=kernel)
    register_inductor_table(op, sizes, entry, dtype)
    return op


# A loop that reads int16 is not vectorised by Inductor. For one that reads and writes at computed slots this costs no
# time, and its code is a line per tensor where vectors are taken apart into lanes, which a C++ compiler unrolls.
NARROW = torch.int16

# int64 [2 * BLOCK + REST]: slots to patch; int16: how far in front of it each has its value.
window_slots = _table("window_slots", lambda boundaries, total, shift: [2 * BLOCK + REST], _window_slot)
window_moves = _table("window_moves", lambda boundaries, total, shift: [2 * BLOCK + REST], _window_move, NARROW)
# int64 [|shift|, N + 1]: slots that get the fill, if `end_filled` (int16 [1]) is not 0, or else the value of
# `end_spare` (int64 [1]), because all documents are empty.
end_slots = _table("end_slots", lambda boundaries, total, shift: [abs(shift), boundaries], _end_slot)
end_filled = _table("end_filled", lambda boundaries, total, shift: [1], _filled, NARROW)
end_spare = _table("end_spare", lambda boundaries, total, shift: [1], _spare_slot)
# int64 [blocks]: 1 for those that share a slot with a document.
touched_blocks = _table("touched_blocks", lambda boundaries, total, shift: [blocks_in(total, shift)], _touched)
