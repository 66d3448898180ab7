"""Look-alikes of entries that add up what documents give: somebody looks at them on the way, or they change
otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="every document reads the entry")
def added_entry_that_is_read(x: Tensor, cu: Tensor) -> Any:
    sums, out = torch.zeros(2), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += x[s:e].detach().sum()
        out.append(x[s:e].detach() * sums[0])
    return torch.cat(out), sums


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="every document reads the entry through a view")
def added_entry_with_another_name(x: Tensor, cu: Tensor) -> Any:
    sums, out = torch.zeros(2), []
    flat = sums.view(-1)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += x[s:e].detach().sum()
        out.append(x[s:e].detach() * flat.sum())
    return torch.cat(out), sums


@leave("f[T] cu", must_refuse=True, why="what is added depends on another entry that changes")
def entry_of_another(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.ones(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += sums[1] * x[s:e].detach().sum()
        sums[1] += 1
    return sums


@leave("f[T] cu", must_refuse=True, why="the entry is doubled")
def doubling_entry(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.ones(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += sums[0]
        sums[1] += x[s:e].detach().sum()
    return sums


@leave("f[T] cu", must_refuse=True, why="the entry decays")
def decaying_entry(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.ones(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] *= 0.5
        sums[0] += x[s:e].detach().sum()
    return sums


@leave("f[T] i[N] cu", must_refuse=True, min_len=1, tail=False, why="the places change on the way")
def places_that_change(x: Tensor, domain: Tensor, cu: Tensor) -> Any:
    places, sums = domain % 3, torch.zeros(4)
    for i in range(cu.shape[0] - 1):
        own = places[i]
        places[i] += 1
        sums[own] += x[cu[i] : cu[i + 1]].detach().sum()
    return sums, places


@leave("f[T] i[N] cu", must_refuse=True, min_len=1, tail=False, why="one of the sums is read on the way")
def one_of_the_sums_is_read(x: Tensor, domain: Tensor, cu: Tensor) -> Any:
    domain, sums, out = domain % 3, torch.zeros(3), []
    for i in range(cu.shape[0] - 1):
        sums[domain[i]] += x[cu[i] : cu[i + 1]].detach().sum()
        out.append(sums[0].clone())
    return torch.stack(out), sums


@leave("cu", must_refuse=True, min_len=1, tail=False, why="where a document adds depends on what others added")
def places_that_are_sums(cu: Tensor) -> Tensor:
    counts = torch.zeros(101, dtype=torch.int64)
    for i in range(cu.shape[0] - 1):
        counts[counts[0]] += cu[i + 1] - cu[i] - cu[i + 1] + cu[i] + 1
    return counts


@leave("f[T] i[N] cu", must_refuse=True, tail=False, why="a number goes to all entries of a row")
def one_number_for_a_row(x: Tensor, domain: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(3, 4)
    for k, s, e in zip((domain % 3).tolist(), cu[:-1].tolist(), cu[1:].tolist()):
        sums[k] += x[s:e].detach().sum()
    return sums


@leave("f[T] cu", must_refuse=True, why="an integer entry cuts every sum off")
def sums_that_are_cut_off(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(2, dtype=torch.int64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] = sums[0] + x[s:e].detach().sum()
    return sums


@leave("f[T] cu", must_refuse=True, why="what was added is changed afterwards, and added again")
def share_that_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        share = x[s:e].detach().sum()
        sums[0] += share
        share.mul_(2)
        sums[1] += share
    return sums


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="the sum is kept on the way")
def sums_that_are_kept(x: Tensor, cu: Tensor) -> Any:
    sums, out = torch.zeros(2), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += x[s:e].detach().sum()
        out.append(sums[0].clone())
    return torch.stack(out), sums


@leave("m[T] cu", must_refuse=True, min_len=1, tail=False, why="boundaries that later documents read change")
def boundaries_that_move(mask: Tensor, cu: Tensor) -> Any:
    bounds, out = cu.clone(), []
    for i in range(bounds.shape[0] - 1):
        start, end = bounds[i], bounds[i + 1]
        out.append(mask[start:end].sum())
        bounds[i + 2 :] -= (end > start).to(bounds.dtype)
    return torch.stack(out), bounds


@leave("f[T] cu", must_refuse=True, why="entries in front of the document's own change, which those ask for")
def earlier_entries(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(60)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[: i + 1] *= 0.5
        out[i:] += x[s:e].detach().sum()
    return out


@leave("f[T] cu", must_refuse=True, why="the largest sum so far")
def largest_entry_so_far(x: Tensor, cu: Tensor) -> Tensor:
    sums = torch.zeros(2)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums[0] += torch.relu(x[s:e].detach().sum() - sums[0])
    return sums


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="scores are counted on from the document before")
def running_scores(x: Tensor, cu: Tensor) -> Any:
    carried, out = torch.zeros(1), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e].detach()
        scores = (part[:, None] * part[None]).cumsum(0) + carried
        carried[0] += scores.sum()
        out.append(scores.sum(1))
    return torch.cat(out)


@leave("f[T] cu", must_refuse=True, min_len=1, tail=False, why="the list is looked at while numbers are still appended")
def unfinished_numbers_are_added_up(x: Tensor, cu: Tensor) -> Any:
    bounds, out = [3], []
    for n in cu.diff().tolist():
        bounds.append(n * 2)
        out.append(x[:1] * sum(bounds))
    return torch.cat(out), torch.tensor(bounds)
