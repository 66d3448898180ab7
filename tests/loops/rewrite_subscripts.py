"""Loops that must be rewritten: over lists of documents whose entries are taken by their numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, program


def _lengths(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff() % 9 + 1


@program("f[N,9,3] cu", wrap=_lengths, depends=False, tail=False, reads=1)
def entries_by_number(x: Tensor, lengths: Tensor) -> Tensor:
    parts = [x[i, :n] for i, n in enumerate(lengths.tolist())]
    out = x.new_zeros(len(parts), max(len(part) for part in parts), 3)
    for i in range(len(parts)):
        out[i, : parts[i].shape[0]] = parts[i]
    return out


@program("f[N,9,3] cu", wrap=_lengths, depends=False, tail=False, reads=1)
def padded_like_the_first(x: Tensor, lengths: Tensor) -> Tensor:
    parts = [x[i, :n] for i, n in enumerate(lengths.tolist())]
    longest = max(part.size(0) for part in parts)
    out = parts[0].new(len(parts), longest, *parts[0].size()[1:]).fill_(-1.0)
    for i in range(len(parts)):
        out[i, : parts[i].size(0)] = parts[i]
    return out


@program("f[N,9,3] cu", wrap=_lengths, depends=False, tail=False, reads=1)
def padded_with_the_first_s_dtype(x: Tensor, lengths: Tensor) -> Tensor:
    parts = [x[i, :n].double() for i, n in enumerate(lengths.tolist())]
    longest = max(part.size(0) for part in parts)
    out = torch.zeros(len(parts), longest, parts[0].size(1), dtype=parts[0].dtype, device=parts[0].device)
    for i in range(len(parts)):
        out[i, : parts[i].size(0)] = parts[i]
    return out


@program("f[T,3] f[T,3] cu", tail=False)
def entries_of_two_lists(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    first = [x[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    second = [y[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    out = []
    for i in range(len(first)):
        out.append(first[i] * second[i].sum(0))
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def without_their_sums(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x[cu[i] : cu[i + 1]].sum(0) for i in range(len(cu) - 1)]
    return torch.cat([x[cu[i] : cu[i + 1]] - sums[i] for i in range(len(cu) - 1)])


@program("f[T,3] cu", tail=False)
def entries_beside_their_list(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    turned = [part.flip(0) for part in parts]
    return torch.cat([part + turned[i] for i, part in enumerate(parts)])


@program("f[T,3] cu", tail=False, depends=False)
def entries_changed_in_place(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    x, out = x.clone(), []
    parts = [x[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    for i in range(len(parts)):
        parts[i].mul_(2)
        out.append(parts[i] + 1)
    return torch.cat(out), x


@program("f[T,3] cu", tail=False)
def a_few_zeros_like_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x[cu[i] : cu[i + 1]].flip(0) for i in range(len(cu) - 1)]
    return torch.cat(parts), parts[0].new_zeros(2, parts[0].shape[1])


@program("cu", tail=False)
def two_lists_of_numbers_alone(cu: Tensor) -> tuple[Tensor, Tensor]:
    """What both make has one size, which torch knows by two names."""
    places, numbers = [], []
    for i, n in enumerate(cu.diff().tolist()):
        places.append(torch.arange(n))
        numbers.append(torch.full((n,), i))
    return torch.cat(places), torch.cat(numbers)
