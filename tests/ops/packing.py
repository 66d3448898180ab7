"""Packing by loops over rows and slots, masks of every kind, for the tests of pack, unpack and what they feed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from packpass.ops import PackedBatch


@dataclass
class Expected:
    """What pack does to one field of a batch."""

    packed: Tensor
    cu: list[int]
    cu_padded: list[int]
    positions: list[int]
    padding: list[bool]


def expected(x: Tensor, keep: Tensor, multiple: int = 1, fill: complex = 0, total: int | None = None) -> Expected:
    rows, length = keep.shape
    pieces: list[Tensor | None] = []  # None: a slot without a token
    positions: list[int] = []
    cu, cu_padded = [0], [0]
    for b in range(rows):
        tokens = [s for s in range(length) if keep[b, s]]
        slots = -(-len(tokens) // multiple) * multiple
        pieces += [x[b, s] for s in tokens] + [None] * (slots - len(tokens))
        positions += [p if p < len(tokens) else p % length for p in range(slots)]
        cu.append(cu[-1] + len(tokens))
        cu_padded.append(cu_padded[-1] + slots)
    tail = 0 if total is None else total - len(pieces)
    pieces += [None] * tail
    positions += [p % length for p in range(tail)]
    filled = x.new_full(x.shape[2:], fill)
    packed = [filled if piece is None else piece for piece in pieces]
    stacked = torch.stack(packed) if packed else x.new_zeros((0, *x.shape[2:]))
    return Expected(stacked, cu, cu_padded, positions, [piece is None for piece in pieces])


def back(packed: Tensor, keep: Tensor, cu_padded: list[int], fill: complex = 0) -> Tensor:
    """unpack."""
    out = packed.new_full((*keep.shape, *packed.shape[1:]), fill)
    for b in range(keep.shape[0]):
        for n, s in enumerate(s for s in range(keep.shape[1]) if keep[b, s]):
            out[b, s] = packed[cu_padded[b] + n]
    return out


def check_fields(batch: PackedBatch, want: Expected) -> None:
    assert batch.cu_seqlens.dtype is torch.int32
    assert batch.cu_seqlens_padded.dtype is torch.int32
    assert batch.position_ids.dtype is torch.int64
    assert batch.padding_mask.dtype is torch.bool
    assert batch.cu_seqlens.tolist() == want.cu
    assert batch.cu_seqlens_padded.tolist() == want.cu_padded
    assert batch.position_ids.tolist() == want.positions
    assert batch.padding_mask.tolist() == want.padding


MASKS = {
    "right": [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]],
    "left": [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]],
    "both sides": [[0, 1, 1, 1, 0], [0, 0, 1, 0, 0], [1, 1, 0, 0, 0]],
    "holes": [[1, 0, 1, 0, 1], [0, 1, 0, 1, 0], [1, 1, 0, 1, 1]],
    "empty rows": [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0]],
    "nothing real": [[0, 0, 0], [0, 0, 0]],
    "no padding": [[1, 1, 1], [1, 1, 1]],
    "one row": [[0, 1, 1, 0, 1, 1, 1]],
    "one token": [[1]],
    "no rows": [],
}


def mask_of(name: str) -> Tensor:
    rows = MASKS[name]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), len(rows[0]) if rows else 4)


def attention(keep: Tensor, causal: bool, *, hidden_queries: bool = False, freed: bool = False) -> Tensor:
    """May query q attend to key k: ``[B, 1, S, S]``.

    Args:
        hidden_queries: queries of padding attend to nothing.
        freed: queries that attend to nothing then attend to everything, as transformers has it.
    """
    keep = keep != 0
    length = keep.shape[1]
    out = keep[:, None, None, :].expand(-1, 1, length, -1)
    if causal:
        out = out & torch.ones(length, length, dtype=torch.bool).tril()
    if hidden_queries:
        out = out & keep[:, None, :, None]
    return out | ~out.any(-1, keepdim=True) if freed else out.clone()


def additive(attended: Tensor, dtype: torch.dtype, hidden: float) -> Tensor:
    return torch.zeros(attended.shape, dtype=dtype).masked_fill_(~attended, hidden)
