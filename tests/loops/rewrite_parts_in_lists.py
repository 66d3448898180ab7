"""Parts of documents that one loop puts into a list and another uses beside the documents: both loops as one
(`passes.joined_loops`), for the rows that such lists are together are cut at other places than the documents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def spans(cu: Tensor) -> list[tuple[int, int]]:
    bounds = cu.tolist()
    return list(zip(bounds[:-1], bounds[1:]))


@program("f[T,3] cu", tail=False)
def first_slots_go_behind(x: Tensor, cu: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(cu)]
    return torch.cat([torch.cat([x[s:e][1:], first]) for (s, e), first in zip(spans(cu), firsts)])


@program("f[T,3] cu", tail=False)
def last_slots_go_in_front(x: Tensor, cu: Tensor) -> Tensor:
    lasts, outs = [], []
    for s, e in spans(cu):
        lasts.append(x[s:e][-1:] * 2)
    for i, (s, e) in enumerate(spans(cu)):
        outs.append(torch.cat([lasts[i], x[s:e][:-1]]))
    return torch.cat(outs)


@program("f[T,3] cu", tail=False)
def two_lists_of_shorter_ones(x: Tensor, cu: Tensor) -> Tensor:
    behind = [x[s:e][1:] for s, e in spans(cu)]
    before = [x[s:e][:-1] for s, e in spans(cu)]
    return torch.cat([a - b for a, b in zip(behind, before)])


@program("f[T,3] cu", tail=False)
def steps_behind_the_first(x: Tensor, cu: Tensor) -> Tensor:
    steps = [x[s:e][1:] - x[s:e][:-1] for s, e in spans(cu)]
    return torch.cat([torch.cat([x[s:e][:1], step]) for (s, e), step in zip(spans(cu), steps)])


@program("f[T,3] cu", tail=False)
def lists_of_three_loops(x: Tensor, cu: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(cu)]
    others = [x[s:e][1:] + first for (s, e), first in zip(spans(cu), firsts)]
    return torch.cat([torch.cat(both) for both in zip(firsts, others)])


@program("f[T,3] cu", tail=False)
def padded_ones_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    padded = [F.pad(x[s:e], (0, 0, 2, 0)) for s, e in spans(cu)]
    return torch.cat([p[2:] + p[1:-1] * p[:-2] - x[s:e] for p, (s, e) in zip(padded, spans(cu))])


@program("f[T,3] cu", tail=False)
def written_by_the_second_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, firsts = torch.zeros_like(x), [x[s:e][:1] for s, e in spans(cu)]
    for (s, e), first in zip(spans(cu), firsts):
        out[s:e] = torch.cat([x[s:e][1:], first])
    return out
