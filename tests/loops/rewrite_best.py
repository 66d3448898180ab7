"""Loops that must be rewritten: the best slots of every document, as many as a share of its length says."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] f[T] cu", min_len=1, tail=False)
def best_half_in_order(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        k = max(1, int((e - s) * 0.5))
        best = scores[s:e].topk(k).indices.sort().values
        outs.append(x[s:e][best])
    return torch.cat(outs)


@program("f[T,3] f[T] cu", tail=False)
def best_share_as_a_permutation(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    kept = []
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        _, best = torch.topk(scores[s:e], math.ceil(0.3 * (e - s)))
        kept.append(best + s)
    kept = torch.cat(kept)
    return x[kept] * scores[kept].tanh()[:, None]


@program("f[T,3] f[T] cu", tail=False)
def best_of_equal_slots_with_their_values(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        values, best = scores[s:e].round().topk(math.ceil((e - s) * 0.7), sorted=False)
        outs.append(x[s:e][best] * values[:, None])
    return torch.cat(outs)


@program("f[T,3] f[T] cu", min_len=1, tail=False)
def best_by_a_sort_that_is_cut(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = torch.argsort(scores[s:e], descending=True)
        k = max(1, (e - s) // 2)
        outs.append(x[s:e].index_select(0, order[:k].sort()[0]))
        outs.append(x[s:e][order[k:].sort(descending=True).values])
    return torch.cat(outs)


@program("f[T,3] f[T] cu", min_len=1, tail=False)
def best_slots_weighted_and_summed(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        values, best = scores[s:e].topk(max(round((e - s) * 0.3), 1), largest=False)
        outs.append((x[s:e][best] * values.relu()[:, None]).sum(0))
    return torch.stack(outs)


@program("i[T] cu", tail=False)
def whole_numbers_of_a_part_in_order(ids: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(ids[s:e][1:-1].sort().values)
        outs.append(torch.sort(ids[s:e][-3:], stable=True, descending=True)[0])
    return torch.cat(outs)


@program("f[T,3] cu", tail=False)
def cut_at_shares_of_the_length(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    seen, held = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = int((e - s) * 0.8)
        seen.append(x[s:e][:n])
        held.append(x[s:e][n:] * 2)
    return torch.cat(seen), torch.cat(held)


@program("f[T,3] cu", tail=False)
def rounded_in_every_way(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        outs.append(x[s:e][: math.ceil(n * 0.1)])
        outs.append(x[s:e][: round(n * 0.5)])
        outs.append(x[s:e][: round(n / 2)])
        outs.append(x[s:e][math.floor(n / 3) : int(n * 2 / 3)])
        outs.append(x[s:e][: max(2, int(n * 1.5))])
    return torch.cat(outs)


@program("f[T,3] cu", tail=False)
def one_slot_at_least_of_documents_without_any(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e][: max(1, int((e - s) * 0.25))] + 1)
    return torch.cat(outs)


@program("f[T,3] cu", tail=False, rule="ragged_grids")
def up_to_a_share_of_the_end(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:1].sum(0)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e].sum(0) + x[s : int(e * 0.9)].sum(0))
    return torch.stack(outs)
