"""Loops that must be rewritten: what is computed on a document that has become longer or shorter."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


class Blocks(nn.Module):
    """A class token in front of every document, two layers of attention, and the token apart at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(-1, 1, 4)[None])
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))
        self.inner = nn.ModuleList(nn.Linear(4, 12) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        rows, tokens = [], []
        for s, e in pairwise(cu.tolist()):
            t = torch.cat([self.token, x[s:e]])
            for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
                q, k, v = inner(norm(t)).view(t.shape[0], 3, 2, 2).permute(1, 2, 0, 3)[:, None].unbind(0)
                found = F.scaled_dot_product_attention(q, k, v)[0]
                t = t + outer(found.transpose(0, 1).reshape(t.shape[0], 4))
            tokens.append(t[0])
            rows.append(t[1:])
        return torch.cat(rows), torch.stack(tokens)


program("f[T,4] cu", tail=False, exact=False)(Blocks)


@program("f[T,3] f[1,3] cu", tail=False)
def computed_behind_a_token(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(F.relu(torch.cat((start, x[s:e]))) * 2)
    return torch.cat(out)


@program("f[T,3] f[1,3] cu64", tail=False)
def list_of_longer_ones(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    longer = [torch.cat((start, x[cu[i] : cu[i + 1]])) for i in range(len(cu) - 1)]
    return torch.cat([F.relu(part) - part for part in longer])


@program("f[T,3] f[1,3] cu", tail=False)
def positions_of_longer_ones(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.cat((start, x[s:e]))
        out.append(part * torch.arange(part.shape[0])[:, None])
    return torch.cat(out)


@program("f[T,3] f[1,3] cu", tail=False, exact=False)
def their_values_and_lengths(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        part = torch.cat((start, x[s:e]))
        out.append((part + x[s:e].sum(0)) / (e - s + 1) + i)
    return torch.cat(out)


@program("f[T,3] f[1,3] cu", tail=False, exact=False)
def lists_beside_longer_ones(x: Tensor, start: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out, sums, rows = [], [], []
    for s, e in pairwise(cu.tolist()):
        out.append(F.relu(torch.cat((start, x[s:e]))))
        sums.append(x[s:e].sum())
        rows.append(x[s:e] * 2)
    return torch.cat(out), torch.stack(sums), torch.cat(rows)


@program("f[T,3] f[1,3] cu", tail=False, exact=False)
def means_of_longer_ones(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([torch.cat((start, x[s:e])).mean(0) for s, e in pairwise(cu.tolist())])


@program("f[T,3] f[1,3] cu", tail=False, exact=False)
def longer_and_longer(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = F.relu(torch.cat((start, x[s:e])))
        out.append(torch.cumsum(torch.cat((part, start * 3)), 0))
    return torch.cat(out)


@program("f[T,3] f[1,3] cu", tail=False)
def longer_ones_rolled(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = torch.roll(torch.cat((start, x[s:e])), -1, 0)
        part[-1] = 0
        out.append(part)
    return torch.cat(out)


@program("f[T,3] f[1,3] cu", tail=False, graphs=3, reads=1)
def longer_ones_in_padded_rows(x: Tensor, start: Tensor, cu: Tensor) -> Tensor:
    width = int((cu[1:] - cu[:-1]).max()) + 1
    out = x.new_zeros(len(cu) - 1, width, 3)
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        part = F.relu(torch.cat((start, x[s:e])))
        out[i, : part.shape[0]] = part
    return out


@program("f[T,3] cu", tail=False, min_len=2, exact=False)
def softmax_of_a_half(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.softmax(x[s:e].chunk(2)[0], 0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


# ---------------------------------------------------------------- pooled


@program("f[T,4] f[4,3] cu", tail=False, min_len=2, exact=False, graphs=3)
def pooled_then_projected(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = []
    for part in x.split((cu[1:] - cu[:-1]).tolist()):
        part = F.avg_pool1d(part.transpose(0, 1), 2, stride=2).transpose_(0, 1)
        out.append(F.layer_norm(part, (4,)) @ weight)
    return torch.cat(out)


@program("f[T,4] cu", tail=False, min_len=3)
def pooled_windows_that_overlap(x: Tensor, cu: Tensor) -> Tensor:
    pool = nn.AvgPool1d(4, 2, count_include_pad=False)
    return torch.cat([pool(x[cu[i] : cu[i + 1]].repeat(2, 1).t()[None])[0].t() for i in range(len(cu) - 1)])


@program("f[3,T] cu64", tail=False, min_len=3, exact=False)
def pooled_rows(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([F.avg_pool1d(x[:, s:e], 3, 2) for s, e in pairwise(cu.tolist())], 1)


# ---------------------------------------------------------------- every so many slots


@program("f[T,3] cu", tail=False)
def half_of_the_slots(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e][::2] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,3] i[T] cu64", tail=False)
def every_third_slot_computed(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows, numbers = [], []
    for i in range(len(cu) - 1):
        rows.append(x[cu[i] : cu[i + 1]][1::3] * 2)
        numbers.append(ids[cu[i] : cu[i + 1] : 3])
    return torch.cat(rows), torch.cat(numbers)


@program("f[3,T] cu", tail=False, exact=False)
def sums_of_every_other_slot(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[:, s:e][:, 1::2].sum(1) for s, e in pairwise(cu.tolist())])


# ---------------------------------------------------------------- refused once


@program("f[T,2] cu", tail=False)
def positions_of_the_longer(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1], cu[1:]):
        d = torch.cat((x.new_zeros(1, 2), x[s:e]))
        out.append(d * torch.arange(len(d))[:, None])
    return torch.cat(out)


@program("f[T] cu", tail=False)
def sums_of_the_longer(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([torch.cat((x.new_ones(2), x[s:e])).sum() for s, e in zip(cu[:-1], cu[1:])])


@program("f[T] cu", tail=False)
def longer_and_again(x: Tensor, cu: Tensor) -> Tensor:
    parts = [torch.cat((x[s:e], x.new_zeros(1))) for s, e in zip(cu[:-1], cu[1:])]
    return torch.cat([part.flip(0) for part in parts])


@program("f[T] cu", tail=False)
def first_piece_turned_round(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]].chunk(3)[0].flip(0) for i in range(len(cu) - 1)])


@program("f[T,2] cu", tail=False, min_len=1)
def one_slot_is_joined(x: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    parts = [torch.cat((x[s:e], x[s:e][-1:])) * 2 for s, e in spans]
    return torch.cat(parts)


@program("i[T] cu", tail=False)
def filled_up_and_doubled(ids: Tensor, cu: Tensor) -> Tensor:
    outs = [F.pad(ids[s:e], (0, -(e - s) % 4)) * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat(outs)


@program("f[T,3] cu")
def slices_with_a_step(x: Tensor, cu: Tensor) -> Tensor:
    spans = [slice(s, e, 2) for s, e in pairwise(cu.tolist())]
    return torch.cat([x[:0], *[x[span] * 2 for span in spans]])
