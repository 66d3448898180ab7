"""``moved_blocks``, ``row_of``, ``per_block`` (internal): a row ``[..., n * BLOCK]`` as ``[..., n, BLOCK]``, and back.

Reshape and expand for generated code, without a guard on n: Inductor's own compare n with 1 and ``BLOCK`` with
``n * BLOCK``, and with a dynamic n these are guards, which shorter rows fail. The index is the same for every n, 0 and
1 included.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass._compat import register_inductor_pointwise, register_inductor_view
from packpass.ops._geometry import BLOCK
from packpass.ops._library import define

Sizes = list[Any]


def _row(sizes: Sizes) -> Sizes:
    return [*sizes[:-2], sizes[-2] * BLOCK]


def _row_view(sizes: Sizes) -> tuple[Sizes, Any]:
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    return _row(sizes), lambda at: [*at[:-1], FloorDiv(at[-1], BLOCK), ModularIndexing(at[-1], 1, BLOCK)]


def _moved_blocks(row: Tensor, touched: Tensor, first: int, count: int, shift: int) -> Tensor:
    moved, kept = (row.narrow(-1, begin, count * BLOCK) for begin in (first - shift, first))
    blocks = [*row.shape[:-1], count, BLOCK]
    return torch.where(touched.unsqueeze(-1) != 0, moved.reshape(blocks), kept.reshape(blocks))


def _moved_slot(maths: Any, at: Sizes, row: Any, touched: Any, first: Any, count: Any, shift: int) -> Any:
    *outer, block, place = at
    slot = first + block * BLOCK + place
    moves = maths.ne(touched([block]), maths.constant(0, torch.int64))
    return maths.where(moves, row([*outer, slot - shift]), row([*outer, slot]))


# The blocks from slot ``first`` on, those that ``touched`` (int64 [count]) does not say 0 of from ``shift`` slots
# before; all of them must lie within the row. One op, because every call costs milliseconds to trace.
moved_blocks = define(
    "moved_blocks(Tensor row, Tensor touched, SymInt first, SymInt count, int shift) -> Tensor",
    fake=lambda row, touched, first, count, shift: row.new_empty([*row.shape[:-1], count, BLOCK]),
    kernel=_moved_blocks,
)
row_of = define(
    "row_of(Tensor blocks) -> Tensor",
    fake=lambda blocks: blocks.new_empty(_row(list(blocks.shape))),
    kernel=lambda blocks: blocks.reshape(_row(list(blocks.shape))).clone(),
)
# One value for each block: [n] -> [..., n, BLOCK].
per_block = define(
    "per_block(Tensor values, Tensor blocks) -> Tensor",
    fake=lambda values, blocks: values.new_empty(blocks.shape),
    kernel=lambda values, blocks: values.unsqueeze(-1).expand(blocks.shape).clone(),
)
register_inductor_pointwise(
    moved_blocks, lambda row, touched, first, count, shift: [*row[:-1], count, BLOCK], _moved_slot
)
register_inductor_view(row_of, lambda sizes: _row_view(list(sizes)))
register_inductor_view(per_block, lambda sizes, blocks: (list(blocks), lambda at: [at[-2]]))
