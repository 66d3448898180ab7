"""Loops that make something for every two slots, or several slots of each, and do something else besides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


def _documents(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist())


@leave("f[T,3] cu", tail=False, min_len=1, must_refuse=True, why="the next document reads what this one made")
def pairs_with_the_one_before(x: Tensor, cu: Tensor) -> Tensor:
    out, before = [], x[:1]
    for s, e in _documents(cu):
        out.append((x[s:e] @ before.T).repeat_interleave(2, 0).amax(1))
        before = x[s:e]
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, min_len=1)
def pairs_that_leave_the_loop(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for s, e in _documents(cu):
        scores = x[s:e] @ x[s:e].T
        out.append(scores.amax(1))
    return torch.cat(out), scores


@leave("f[T,3] cu", tail=False, min_len=1)
def pairs_of_what_is_changed_behind(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    x, out = x * 1, []
    for s, e in _documents(cu):
        out.append(x[s:e, None].expand(-1, e - s, -1))
    x.mul_(2)
    return torch.cat([one.sum(0) for one in out]), x


@leave("f[T,3] cu", tail=False, min_len=1)
def slots_twice_and_one_set(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        twice = x[s:e].repeat_interleave(2, 0)
        twice[0] = 0
        out.append(twice)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, min_len=1)
def pairs_in_half_precision(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([(x[s:e].bfloat16() @ x[s:e].bfloat16().T).float().amax(1).detach() for s, e in _documents(cu)])


@leave("f[T,3] cu", tail=False, min_len=1)
def ties_among_pairs(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """The first of equal ones has the gradient of max, all of them that of amax."""
    first, all_of_them = [], []
    for s, e in _documents(cu):
        near = ((x[s:e] * 2).round() + x[s:e] * 0)[:, :1]
        apart = (near - near.T).abs()
        found, at = apart.max(1)
        first.append(found + at)
        all_of_them.append(apart.amax(0))
    return torch.cat(first), torch.cat(all_of_them)


@leave("f[T,3] cu", tail=False, min_len=1)
def kept_by_nobody(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[s:e] @ x[s:e].T for s, e in _documents(cu)]


@leave("f[T,3] cu i[T]", tail=False, min_len=1, wrap=lambda x, cu, n: (x, cu, n.remainder(2)))
def places_in_the_document(x: Tensor, cu: Tensor, places: Tensor) -> Tensor:
    return torch.cat([x[s:e].repeat_interleave(2, 0)[places[s:e]] for s, e in _documents(cu)])


@leave("f[T,3] cu", tail=False, min_len=1, must_refuse=True, why="Python's product has more than 64 bits")
def a_product_of_more_than_64_bits(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(_documents(cu)):
        out.append(x[s:e].repeat_interleave(2, 0) + (i * 6364136223846793005 + 11) % 97)
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, unfit=True, why="where a document ends in front of the row, Python counts from its end")
def written_up_to_a_slot_before_the_end(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in _documents(cu):
        out[s : e - 1] = x[s : e - 1] * 2
    return out


@leave("f[T,3] cu", tail=False, unfit=True, why="where a document ends in front of the row, Python counts from its end")
def added_up_to_a_slot_before_the_end(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in _documents(cu):
        out[s : e - 1] += x[s : e - 1] * 2
    return out


@leave("f[T,3] cu", tail=False)
def a_view_of_what_is_written_in_place(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        h = x[s:e] * 2
        view = h[:, 1:]
        F.relu(h, inplace=True)
        out.append(view)
    return torch.cat(out)


@leave("i[T,3] cu", tail=False)
def the_row_itself_in_place(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    x, out = x.clone(), []
    for s, e in _documents(cu):
        out.append(F.relu(x[s:e], inplace=True))
    return torch.cat(out), x
