"""Programs of `a2a_hard_programs` that compute before they exchange: on the document, or where it starts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from tests.dist.a2a_moves import gathered, size_of, unzigzag
from tests.dist.naive import AllToAll


def converted_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([gathered(x[s // cp : e // cp].double(), group) for s, e in pairwise(cu.tolist())])


def activated_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Boundaries on the device; what is sent is computed from the document."""
    cp, out = size_of(group), []
    for i in range(len(cu) - 1):
        part = F.relu(x[cu[i] // cp : cu[i + 1] // cp]) * 0.5
        out.append(gathered(part, group) + 1)
    return torch.cat(out)


def projected_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Queries, keys and values of a document are projected where they are sent."""
    cp, out = size_of(group), []
    width = x.shape[1]
    weight = (torch.arange(2 * width * width) % 5 - 2).to(x.dtype).view(2 * width, width)  # sums are exact
    for s, e in pairwise(cu.tolist()):
        query, key = F.linear(x[s // cp : e // cp].detach().sign(), weight).chunk(2, -1)
        out.append(torch.cat([gathered(query, group), gathered(key * 2, group)], -1))
    return torch.cat(out) * x.sum()


def normalised_heads(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        heads = x[s // cp : e // cp].unflatten(-1, (-1, 6))
        heads = heads / heads.abs().amax(-1, keepdim=True)
        out.append(gathered(heads.flatten(1), group))
    return torch.cat(out)


def scaled_more_and_more(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is sent depends on what came before."""
    cp, out, scale = size_of(group), [], x.new_ones(())
    for s, e in pairwise(cu.tolist()):
        out.append(gathered(x[s // cp : e // cp] * scale, group))
        scale.mul_(2)
    return torch.cat(out)


def dropped_out_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([gathered(F.dropout(x[s // cp : e // cp], 0.5), group) for s, e in pairwise(cu.tolist())])


def written_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The next document is changed after this one is sent."""
    cp, row, out = size_of(group), x.clone(), []
    for s, e in pairwise(cu.tolist()):
        out.append(gathered(torch.tanh(row[s // cp : e // cp]), group))
        row[e // cp :] *= 2
    return torch.cat(out)


def autocast_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Another dtype inside the loop: a mode that starts and ends in it."""
    cp, out, weight = size_of(group), [], torch.eye(x.shape[1])
    for s, e in pairwise(cu.tolist()):
        with torch.autocast("cpu", torch.bfloat16):
            part = F.linear(x[s // cp : e // cp], weight)
        out.append(gathered(part, group))
    return torch.cat(out)


def without_gradient_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        with torch.no_grad():
            part = x[s // cp : e // cp] * 2
        out.append(gathered(part + x[s // cp : e // cp], group))
    return torch.cat(out)


def counted_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Each document has a number of its own."""
    cp, out = size_of(group), []
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        out.append(gathered(x[s // cp : e // cp] * i, group))
    return torch.cat(out)


def zigzag_with_einops(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Einops checks that what it takes apart divides."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = rearrange(x[start // cp : stop // cp], "(two l) (r f) -> r two l f", two=2, r=cp)
        got = AllToAll.apply(send.contiguous(), group)
        out.append(rearrange(torch.cat([got[:, 0], got[:, 1].flip(0)]), "c l f -> (c l) f"))
    return torch.cat(out)


def with_einops(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for i in range(len(cu) - 1):
        send = rearrange(x[cu[i] // cp : cu[i + 1] // cp], "l (r c) -> r l c", r=cp)
        received = AllToAll.apply(send.contiguous(), group)
        out.append(unzigzag(rearrange(received, "r l c -> (r l) c"), cp))
    return torch.cat(out)


def counted_on(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Where a document starts is counted on by the lengths of its shards."""
    cp, start, out = size_of(group), 0, []
    for length in cu.diff().tolist():
        count = length // cp
        out.append(gathered(x[start : start + count], group))
        start += count
    return torch.cat(out)


def split_by_a_list(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    parts = x.split([length // size_of(group) for length in torch.diff(cu).tolist()])
    return torch.cat([gathered(part, group) for part in parts])


def projected_parts_of_a_split(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    weight = (torch.arange(2 * x.shape[1] ** 2) % 5 - 2).to(x.dtype).view(-1, x.shape[1])  # sums are exact
    for part in x.split((cu.diff() // cp).tolist()):
        query, key = F.linear(part.detach().sign(), weight).chunk(2, -1)
        out.append(gathered(query, group) + gathered(key * 2, group))
    return torch.cat(out) * x.sum()


def relu_of_parts_of_a_split(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([gathered(F.relu(part), group) * 2 for part in x.split((cu.diff() // size_of(group)).tolist())])


def parts_of_a_split_scaled_more_and_more(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out, scale = [], x.new_ones(())
    for part in x.split((cu.diff() // size_of(group)).tolist()):
        out.append(gathered(part * scale, group))
        scale.mul_(2)
    return torch.cat(out)
