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


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def pairs_added_to_own_slots(x: Tensor, cu: Tensor) -> Tensor:
    rate, out = x[:, 0], torch.ones_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] += (rate[s:e, None] - rate[None, s:e]).tanh() @ x[s:e]
    return out


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def own_slots_scaled_in_place(x: Tensor, cu: Tensor) -> Tensor:
    rate, out = x[:, 0], x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e].mul_((rate[s:e, None] - rate[None, s:e]).tanh().mean(1, keepdim=True))
    return out


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def pairs_of_what_own_slots_held(x: Tensor, cu: Tensor) -> Tensor:
    out = x.detach().clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        d = out[s:e]
        rate = d[:, 0]
        out[s:e] = (rate[:, None] - rate[None]).tanh() @ d
    return out + x


@program("f[T,2] cu", exact=False, rule="ragged_grids")
def a_column_of_own_slots_read_and_all_changed(x: Tensor, cu: Tensor) -> Tensor:
    x = x.detach()
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rate = out[s:e, 0]
        out[s:e] -= (rate[:, None] - rate[None]).tanh() @ x[s:e]
    return out


@program("f[T] cu", exact=False, rule="ragged_grids")
def counts_of_pairs_added(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], dtype=torch.long)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] += (x[s:e, None] > x[None, s:e]).sum(1)
    return out


@program("f[T] cu", tail=False, min_len=1, rule="ragged_grids")
def written_back_by_a_pad(x: Tensor, cu: Tensor) -> Tensor:
    """The first two slots, or the one that there is, behind the others: as many as before."""
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = torch.cat((x[s:e][2:], x[s:e][: min(2, e - s)]))
    return out
