"""Loops that must be rewritten: what a document makes has a slot for every two of its slots, or several for each
(`passes.ragged_grids.run_documents`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


def _wide(*given: Tensor) -> tuple[Tensor, ...]:
    """In float64: sums are in another order."""
    return tuple(x.double() if x.is_floating_point() else x for x in given)


pairs: Any = functools.partial(program, tail=False, rule="ragged_grids", wrap=_wide, exact=False, min_len=1)


def _documents(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist())


@program("f[T,3] cu", tail=False, rule="ragged_grids")
def slots_side_by_side(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].repeat_interleave(2, dim=0) for s, e in _documents(cu)])


@program("f[T,3] cu", tail=False, rule="ragged_grids", depends=False)
def edges_between_all(x: Tensor, cu: Tensor) -> Tensor:
    sources, targets = [], []
    for i in range(cu.numel() - 1):
        start, end = int(cu[i]), int(cu[i + 1])
        nodes = torch.arange(start, end)
        sources.append(nodes.repeat_interleave(end - start))
        targets.append(nodes.repeat(end - start))
    return torch.stack([torch.cat(sources), torch.cat(targets)])


@pairs("f[T,3] cu")
def farthest_of_each(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    far, which = [], []
    for s, e in _documents(cu):
        apart = (x[s:e, None] - x[None, s:e]).pow(2).sum(-1)
        found, at = apart.max(1)
        far.append(found)
        which.append(at)
    return torch.cat(far), torch.cat(which)


@pairs("f[T,3] cu")
def best_of_all_tokens(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([(x[s:e] @ x[s:e].T).max(dim=1).values.sum() for s, e in _documents(cu)])


@pairs("f[T,4] cu")
def itself_among_others(x: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in _documents(cu):
        z = F.normalize(x[s:e], dim=-1)
        losses.append(F.cross_entropy(z @ z.T / 0.1, torch.arange(e - s)))
    return torch.stack(losses).mean()


@pairs("f[T,4] cu")
def the_one_before_among_others(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    each, sums = [], []
    for s, e in _documents(cu):
        powers = (x[s:e] @ x[s:e].T).log_softmax(-1)
        before = torch.arange(e - s) - 1
        each.append(F.nll_loss(powers, before, ignore_index=-1, reduction="none"))
        sums.append(F.nll_loss(powers, before, ignore_index=-1, reduction="sum"))
    return torch.cat(each), torch.stack(sums)


@pairs("f[T,4] cu")
def away_from_the_identity(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([(x[s:e] @ x[s:e].T - torch.eye(e - s)).pow(2).mean() for s, e in _documents(cu)])


@pairs("f[T,4] cu")
def pulled_apart_above_the_diagonal(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        reward = x[s:e, 0]
        out.append(F.softplus(reward[None] - reward[:, None]).triu(1).sum())
    return torch.stack(out)


@pairs("f[T,4] cu")
def attention_with_a_bias_of_data(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        h = x[s:e]
        scores = h @ h.T - (h[:, None, 0] - h[None, :, 1]).abs()
        hidden = torch.ones(e - s, e - s).triu(1).bool()
        out.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ h)
    return torch.cat(out)


@pairs("f[T,4] cu")
def heads_with_a_bias_of_data(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        h = x[s:e].view(e - s, 2, 2).transpose(0, 1)
        weights = F.softmax(h @ h.transpose(1, 2) + h.sum(-1)[:, None, :], dim=-1)
        out.append((weights @ h).transpose(0, 1).reshape(e - s, 4))
    return torch.cat(out)


@pairs("f[T,4] f[T,4] cu")
def two_documents_against_each_other(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        apart = torch.cdist(x[s:e], y[s:e])
        out.append(apart.min(1).values.mean() + apart.min(0).values.mean())
    return torch.stack(out)


@pairs("f[T,4] cu")
def the_nearest_slot(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        h = x[s:e]
        out.append(h[((h[:, None] - h[None]) ** 2).sum(-1).argmax(1)])
    return torch.cat(out)


@pairs("f[T,4] cu")
def columns_and_rows_in_turn(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        scores = torch.einsum("id,jd->ij", x[s:e], x[s:e])
        for _ in range(2):
            scores = scores - scores.logsumexp(1, keepdim=True)
            scores = scores - scores.logsumexp(0, keepdim=True)
        out.append(scores.exp().diagonal().sum())
    return torch.stack(out)


@pairs("f[T,4] cu")
def without_a_gradient_of_the_weights(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in _documents(cu):
        h = x[s:e]
        weights = (h @ h.T).detach().softmax(-1)
        out.append((weights[:, :, None] * h[None]).sum(1) + h.detach().repeat_interleave(e - s, 0).sum(0))
    return torch.cat(out)


@program("f[T,4] f[5,4] cu", tail=False, wrap=_wide, exact=False, min_len=1)
def queries_that_all_share(x: Tensor, queries: Tensor, cu: Tensor) -> Tensor:
    """Scores of queries and slots, normalised over the queries and then over the slots."""
    out = []
    for s, e in _documents(cu):
        scores = (queries @ x[s:e].T).softmax(0)
        out.append((scores / scores.sum(1, keepdim=True)) @ x[s:e])
    return torch.stack(out)


@program("f[T,3] cu", tail=False, rule="ragged_grids", exact=False, wrap=_wide)
def documents_without_slots_have_no_pairs(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, means = [], []
    for s, e in _documents(cu):
        scores = x[s:e] @ x[s:e].T
        sums.append(scores.sum())
        means.append(scores.mean())
    return torch.stack(sums), torch.stack(means)


@pairs("f[T,2] cu")
class PooledNeighbours(nn.Module):
    """What pedestrians make of each other, by the social GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3), nn.ReLU(True)).double()

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in _documents(cu):
            count = e - s
            own = x[s:e]
            first = own.repeat(count, 1)
            second = own.unsqueeze(1).repeat(1, count, 1).view(count * count, -1)
            made = self.layers(torch.cat([second - first, first], 1))
            out.append(made.view(count, count, -1).max(1)[0])
        return torch.cat(out)


@program("f[T,4] cu", tail=False, exact=False, wrap=_wide, min_len=1)
class ReLUsInPlace(nn.Module):
    """Layers that write what the one before has made."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 4), nn.SiLU(inplace=True), nn.Linear(4, 8), nn.LeakyReLU(0.1, inplace=True)
        ).double()

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        return torch.stack([self.layers(x[s:e]).amax(0) for s, e in _documents(cu)])


@pairs("f[T,3] cu")
def pairs_beyond_the_document(x: Tensor, cu: Tensor) -> Tensor:
    """A document's slots and one of the next, which the last one has not."""
    return torch.cat([(x[s : e + 1, None] - x[None, s : e + 1]).abs().sum((1, 2)) for s, e in _documents(cu)])
