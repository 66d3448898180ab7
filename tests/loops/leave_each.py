"""Products and distances of values of documents that one call for all of them does not give."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", min_len=1, tail=False, must_refuse=True, why="the other value is that of the document before")
def cosine_to_the_document_before(x: Tensor, cu: Tensor) -> Tensor:
    found, before = [], torch.ones(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].sum(0)
        found.append(F.cosine_similarity(own, before, dim=0))
        before = own
    return torch.stack(found)


@leave("f[T,3] cu", exact=False, min_len=1, tail=False)
def cosine_of_slots_to_their_mean(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(F.cosine_similarity(x[s:e], x[s:e].mean(0, keepdim=True), dim=-1))
    return torch.cat(parts)


@leave("i[T] cu", tail=False)
def outer_products_of_integers(ids: Tensor, cu: Tensor) -> Tensor:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pair = torch.stack([ids[s:e].sum(), ids[s:e].sum() * 2])
        found.append(torch.outer(pair, pair))
    return torch.stack(found)


@leave("f[T,3] f[3,3] cu", tail=False, must_refuse=True, why="the product is written to what all documents share")
def product_added_to_what_all_share(x: Tensor, weights: Tensor, cu: Tensor) -> Tensor:
    found, shared = [], weights * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].t() @ x[s:e]
        shared.addmm_(own, own)
        found.append(shared.sum())
    return torch.stack(found)


@leave("f[T,3] cu", exact=False, min_len=1, tail=False)
def distances_that_are_not_numbers(x: Tensor, cu: Tensor) -> Tensor:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].mean(0)
        found.append(F.pairwise_distance(own, own.detach().log(), eps=0.0))
    return torch.stack(found)
