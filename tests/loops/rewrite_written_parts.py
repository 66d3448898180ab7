"""Documents that are worked out slot by slot, for every two slots, and written into their own slots of a new tensor;
and slots that are looked at by places that are counted or turned around."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


def _lengths(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.long().diff()


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def decays_written_into_a_row(x: Tensor, cu: Tensor) -> Tensor:
    rate, out = x[:, 0].clone(), torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (rate[s:e, None] - rate[None, s:e]).tanh() @ x[s:e]
    return out


@program("f[T,2] cu", wrap=_lengths, graphs=3, exact=False, tail=False, lead_empty=False, rule="ragged_grids")
def decays_written_by_lengths(x: Tensor, lens: Tensor) -> Tensor:
    at, rate, out = 0, x[:, 0], torch.full_like(x, -1.0)
    for n in lens.tolist():
        out[at : at + n] = (rate[at : at + n, None] - rate[None, at : at + n]).tanh().triu() @ x[at : at + n]
        at += n
    return out


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def products_copied_into_a_view(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 3, 2)
    row = out.transpose(0, 1)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row[:, s:e].copy_(((x[s:e, None, 1] * x[None, s:e, 0]).sin() @ x[s:e]) * 2)
    return out


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def two_rows_of_pairs(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, counts = torch.zeros(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.long)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        apart = (x[s:e, None, 0] - x[None, s:e, 1]).abs()
        sums[s:e] = (-apart).exp().sum(1)
        counts[s:e] = (apart > 0.5).sum(1)
    return sums, counts


@program("f[T,2] cu", wrap=_lengths, graphs=3, tail=False, lead_empty=False)
def turned_by_counted_places(x: Tensor, lens: Tensor) -> Tensor:
    outs, at = [x[:0]], 0
    for n in lens:
        outs.append(x[at : at + n][torch.arange(n - 1, -1, -1)])
        at = at + n
    return torch.cat(outs)


@program("f[T,2] cu", min_len=1)
def next_by_counted_places(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        after = torch.arange(e - s).roll(-1)
        outs.append(x[s:e] - x[s:e].index_select(0, after) + x[s:e][torch.arange(e - s).flip(0).roll(1)])
    return torch.cat(outs)
