"""Look-alikes of lengths that a program is given as numbers of Python."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_python_lengths import lengths as _lengths

listed: Any = functools.partial(leave, "f[T,3] cu", wrap=_lengths, tail=False)


@listed(must_refuse=True, why="the list is changed by the loop")
def lengths_taken_from_the_list(x: Tensor, lengths: list[int]) -> Tensor:
    lengths, out, start = list(lengths), [x[:0]], 0
    while lengths:
        n = lengths.pop(0)
        out.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(out)


@listed(must_refuse=True, why="the list is changed in place, which the caller sees", mutates=True)
def lengths_that_grow(x: Tensor, lengths: list[int]) -> Tensor:
    out = torch.cat([x[:0], *[part.flip(0) for part in x.split(lengths)]])
    lengths.append(7)
    lengths[0] = 1
    return out


@listed(min_len=1, must_refuse=True, why="the order of documents depends on how long they are")
def documents_in_order_of_length(x: Tensor, lengths: list[int]) -> Tensor:
    parts = x.split(lengths)
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    return torch.cat([x[:0], *[parts[i] for i in order]])


@listed(must_refuse=True, why="the entry of a document that not every batch has")
def length_of_the_second(x: Tensor, lengths: list[int]) -> Tensor:
    out = torch.cat([x[:0], *[part.flip(0) for part in x.split(lengths)]])
    return out * (lengths[1] if len(lengths) > 2 else 1)


@listed()
def as_many_parts_as_names(x: Tensor, lengths: list[int]) -> Tensor:
    first, second = x.split([x.shape[0] - 2, 2])
    return torch.cat([second, first])


@leave("f[T,6] cu", wrap=lambda x, cu: (x, [2, 4]))
def widths_of_features(x: Tensor, widths: list[int]) -> Tensor:
    return sum(part.sum() * i for i, part in enumerate(x.split(widths, dim=-1)))


@leave("f[6,T] cu", wrap=lambda x, cu: (x, [2, 4]))
def sections_of_rows(x: Tensor, sections: list[int]) -> Tensor:
    first, second = x.split(sections)
    return first.sum(0) * second.sum(0)


class WithSettings(torch.nn.Module):
    """A list of its own that adds up to the row, as a setting may do."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = [9, 15]

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.full((w,), float(w)).sum() for w in self.widths]).sum() * x


leave("f[T,3] cu", wrap=lambda x, cu: (x,))(WithSettings)


@listed()
def lengths_are_handed_back(x: Tensor, lengths: list[int]) -> Any:
    return torch.cat([x[:0], *[part * 2 for part in x.split(lengths)]]), lengths


@listed(min_len=1)
def are_all_as_long(x: Tensor, lengths: list[int]) -> Tensor:
    if len(set(lengths)) == 1:
        return x.view(len(lengths), -1, 3).sum(1)
    return torch.stack([part.sum(0) for part in x.split(lengths)])

