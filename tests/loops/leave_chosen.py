"""Loops that must keep eager's results: slots by numbers of a document, in ways that no row stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] i[T] cu", tail=False, min_len=1, must_refuse=True, why="the row is written before its slots are read")
def place_in_a_row_that_is_written(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, found = x.detach().clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = out[s:e] * 2
        found.append(out[s + ids[s:e].argmax()].clone())
    return torch.stack(found), out


@leave("f[T] i[T] cu", tail=False, min_len=1, must_refuse=True, why="the slot is written after it was read")
def slot_that_is_written_behind(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, found = x.detach().clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = out[s:e]
        one = part[ids[s:e].argmax()]
        part += 1
        found.append(one)
    return torch.stack(found), out


@leave("f[T] i[T] cu", tail=False, min_len=1, must_refuse=True, why="a slot in the middle is written")
def written_at_a_number(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e][ids[s:e].argmax()] = 1.0
    return out


@leave("f[T] i[T] cu", tail=False, min_len=1, must_refuse=True, why="a part is as long as values say")
def cut_at_a_number(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.stack([x[s:e][: ids[s:e].argmax()].sum() for s, e in spans])


@leave("f[T] f[T] cu", tail=False, min_len=1, exact=False)
def share_as_a_number(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum() * y[s].item() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] f[N] cu", min_len=3, must_refuse=True, why="the last slot but one is set to a value of the document")
def score_at_the_last_but_one(x: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    x = x.clone()
    for i in range(len(cu) - 1):
        x[cu[i] : cu[i + 1]][-2] = score[i]
    return x


@leave("f[T] f[N] cu", tail=False, min_len=1, must_refuse=True, why="the first slot of the next document")
def score_at_the_next_token(x: Tensor, score: Tensor, cu: Tensor) -> Tensor:
    x = torch.cat((x, x[:1]))
    for i in range(len(cu) - 1):
        x[cu[i + 1]] = score[i]
    return x


@leave("f[T,2] cu", tail=False, min_len=2, must_refuse=True, why="two slots are no one that stands for all")
def two_slots_beside_two(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([(x[s:e][-2:] - x[s:e][-1:]).sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
