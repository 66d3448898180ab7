"""Look-alikes of sizes and boundaries that are data: what is read is no boundary, or decides what is done."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="the lengths are numbers in a matrix, of which nobody knows what they are")
def lengths_in_a_matrix(x: Tensor, cu: Tensor) -> Tensor:
    sizes = torch.stack([cu[1:], cu[:-1]], 1).flip(1)
    out = x.clone()
    for s, e in sizes.tolist():
        out[s:e] = x[s:e] * 2
    return out


@leave("f[T] cu", tail=False, min_len=1)
def number_of_starts_decides(x: Tensor, cu: Tensor) -> Tensor:
    """The branch is Python's, between two graphs."""
    starts = torch.zeros(x.shape[0], dtype=torch.int64).index_fill_(0, cu[:-1].long(), 1).nonzero().flatten()
    out = x * (2 if starts.shape[0] % 2 else 3)
    bounds = torch.cat([starts, torch.tensor([x.shape[0]])])
    for i in range(len(bounds) - 1):
        out[bounds[i] : bounds[i + 1]] += out[bounds[i] : bounds[i + 1]].sum()
    return out


@leave("f[T] cu", min_len=1)
def picked_in_front_of_layers(x: Tensor, cu: Tensor) -> Tensor:
    """A result of unknown size, and a loop that is not one over documents."""
    y = x[x > 0].repeat_interleave(2)
    for k in range(3):
        y = y * 2 + k
    return y.sum() + x


@leave("i[T] cu", tail=False, depends=False)
def counted_from_its_number_on(ids: Tensor, cu: Tensor) -> Tensor:
    """Of no numbers at all where the document's own is larger."""
    out: list[int] = []
    for i, count in enumerate((cu[1:] - cu[:-1]).tolist()):
        out.extend(range(i, count))
    return torch.tensor([0, *out])


@leave("i[T] cu", tail=False, depends=False)
def what_it_lacks_of_four(ids: Tensor, cu: Tensor) -> Tensor:
    out = [0]
    for count in (cu[1:] - cu[:-1]).tolist():
        out += [1] * (4 - count)
    return torch.tensor(out)


@leave("i[T] cu", tail=False, min_len=1, depends=False)
def windows_of_as_many_slots_as_tokens_say(ids: Tensor, cu: Tensor) -> Tensor:
    """Each window goes on from what the one before it has left."""
    sizes = torch.full((ids.clamp(min=0, max=1).sum() + 1,), 2, dtype=torch.long)
    carried, out = torch.zeros((), dtype=torch.int64), []
    for n in sizes.tolist():
        carried = carried * n + 1
        out.append(carried)
    return torch.stack(out)
