"""``blocks_of``, ``row_of`` and ``per_block`` (internal): a row ``[..., n * BLOCK]`` as ``[..., n, BLOCK]``, and back.

Reshape and expand for generated code, without a guard on n: Inductor's own compare n with 1 and ``BLOCK`` with
``n * BLOCK``, and with a dynamic n these are guards, which shorter rows fail. The index is the same for every n, 0 and
1 included.
"""

from __future__ import annotations

from typing import Any

from packpass._compat import register_inductor_view
from packpass.ops._geometry import BLOCK
from packpass.ops._library import define

Sizes = list[Any]


def _row(sizes: Sizes) -> Sizes:
    return [*sizes[:-2], sizes[-2] * BLOCK]


def _row_view(sizes: Sizes) -> tuple[Sizes, Any]:
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    return _row(sizes), lambda at: [*at[:-1], FloorDiv(at[-1], BLOCK), ModularIndexing(at[-1], 1, BLOCK)]


def _blocks_view(sizes: Sizes, first: Any, count: Any) -> tuple[Sizes, Any]:
    return [*sizes[:-1], count, BLOCK], lambda at: [*at[:-2], first + at[-2] * BLOCK + at[-1]]


# Slots [first, first + count * BLOCK), which must lie within the row.
blocks_of = define(
    "blocks_of(Tensor row, SymInt first, SymInt count) -> Tensor",
    fake=lambda row, first, count: row.new_empty([*row.shape[:-1], count, BLOCK]),
    kernel=lambda row, first, count: (
        row.narrow(-1, first, count * BLOCK).reshape([*row.shape[:-1], count, BLOCK]).clone()
    ),
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
register_inductor_view(blocks_of, lambda sizes, first, count: _blocks_view(list(sizes), first, count))
register_inductor_view(row_of, lambda sizes: _row_view(list(sizes)))
register_inductor_view(per_block, lambda sizes, blocks: (list(blocks), lambda at: [at[-2]]))
