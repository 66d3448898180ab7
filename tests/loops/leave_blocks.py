"""Look-alikes of masks of squares: other rectangles, other values, squares that are read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="what is written depends on the document")
def squares_with_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e, s:e] = i * 2
    return out


@leave("f[T] cu", must_refuse=True, why="squares of sums")
def squares_with_sums(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = x[s:e].sum()
    return out


@leave("f[T] cu", must_refuse=True, why="a square is read after it was written")
def squares_that_are_read(x: Tensor, cu: Tensor) -> Tensor:
    pairs, out = x[:, None] * x[None, :], x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pairs[s:e, s:e] = 1
        out[s:e] = pairs[s:e].sum(1)
    return out


@leave("f[T] cu")
def squares_of_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        out[s:e, s:e] = 1
    return out


@leave("f[T] cu")
def tensor_with_other_columns(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(x.shape[0], 400) * x[:, None]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = 1
    return out


@leave("f[T] cu", must_refuse=True, why="two kinds of squares of one tensor, of which one lies across the other")
def squares_across_squares(x: Tensor, cu: Tensor) -> Tensor:
    out = (x[:, None, None] * x[None, :, None]).repeat(1, 1, x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s:e] = 1
        out[:, s:e, s:e] = 2
    return out


@leave("d[2,T,4] cu", exact=False)
def mask_that_shows_a_slot_more(x: Tensor, cu: Tensor) -> Tensor:
    """The mask is made of squares, and then every query sees the first slot of the row as well."""
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    mask[:, 0] = True
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@leave("d[2,T,4] cu", exact=False)
def mask_of_all_other_documents(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return F.scaled_dot_product_attention(x, x, x, attn_mask=~mask)


@leave("d[2,T,4] cu", exact=False)
def mask_that_only_prefers(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), -2.0, dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 0
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@leave("d[2,T,4] cu", exact=False)
def mask_that_hides_by_ten_thousand(x: Tensor, cu: Tensor) -> Tensor:
    """Slots of no document see those that score best."""
    mask = torch.full((x.shape[1], x.shape[1]), -10000.0, dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 0
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@leave("d[2,T,4] d[T,T] cu", exact=False)
def mask_and_a_bias(x: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 0
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask + bias)


@leave("d[2,T,4] cu", exact=False)
def mask_that_is_seen_as_well(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask), mask


@leave("d[2,T,4] cu", exact=False, mutates=True)
def boundaries_changed_before_the_attention(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    cu.zero_()
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@leave("d[2,T,4] cu", exact=False)
def upper_triangle_of_squares(x: Tensor, cu: Tensor) -> Tensor:
    """Every query sees what follows it."""
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.triu())


@leave("d[2,T,4] cu", exact=False)
def without_its_own_slot(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[1], x.shape[1])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 1
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.tril(-1) == 1)


@leave("f[T] cu", tail=False)
def squares_of_outer_products(x: Tensor, cu: Tensor) -> Tensor:
    """Squares that depend on data."""
    return torch.block_diag(*[torch.outer(part, part) for part in torch.split(x, (cu[1:] - cu[:-1]).tolist())])


@leave("f[T] cu", tail=False)
def squares_by_number(x: Tensor, cu: Tensor) -> Tensor:
    return torch.block_diag(*[torch.full((n, n), i) for i, n in enumerate((cu[1:] - cu[:-1]).tolist())])


@leave("f[T] cu", tail=False)
def rectangles(x: Tensor, cu: Tensor) -> Tensor:
    return torch.block_diag(*[torch.ones(n, n + 1) for n in (cu[1:] - cu[:-1]).tolist()])


def _lengths_of(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.diff()


@leave("f[T,3] cu64", wrap=_lengths_of, depends=False, must_refuse=True, why="other lengths", tail=False)
def block_mask_by_other_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    ends = (lengths + 1).cumsum(-1)
    starts = ends - lengths
    mask = torch.full((len(x), len(x)), float("-inf"))
    for s, e in zip(starts, ends):
        mask[s:e, s:e] = 0
    return mask


@leave("f[T,3] cu64", wrap=_lengths_of, depends=False, must_refuse=True, why="it is changed", tail=False)
def block_mask_by_starts_that_are_written(x: Tensor, lengths: Tensor) -> Tensor:
    ends = lengths.cumsum(-1)
    starts = ends - lengths
    starts[:1] = 1
    mask = torch.full((len(x), len(x)), float("-inf"))
    for s, e in zip(starts, ends):
        mask[s:e, s:e] = 0
    return mask


@leave("f[T,3] cu64", wrap=_lengths_of, depends=False, must_refuse=True, why="these are other lengths", tail=False)
def block_mask_of_lengths_without_the_first(x: Tensor, lengths: Tensor) -> Tensor:
    counts = lengths.tolist()
    ends, starts = torch.tensor(counts).cumsum(0), torch.tensor([0] + counts[1:]).cumsum(0)
    mask = torch.full((len(x), len(x)), float("-inf"))
    for s, e in zip(starts, ends):
        mask[s:e, s:e] = 0
    return mask
