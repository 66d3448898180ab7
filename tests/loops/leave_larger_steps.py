"""Locals that go on by an extreme of which one number is no document's own, and that must keep eager's results."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_larger_steps import _lengths


@leave("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False)
def counted_back_and_forth(x: Tensor, lens: Tensor) -> Tensor:
    outs, start = [x[:0, 0].long()], 0
    for n in lens.tolist():
        outs.append(torch.arange(n) + start)
        start += min(n, 3) - 2
    return torch.cat(outs)


@leave("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False)
def begun_where_the_longest_ended(x: Tensor, lens: Tensor) -> Tensor:
    outs, longest = [x[:0, 0].long()], 0
    for n in lens.tolist():
        longest = max(longest, n)
        outs.append(torch.arange(n) + longest)
    return torch.cat(outs)


@leave("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False, must_refuse=True, why="carries a value")
def counted_on_by_what_the_data_keeps(x: Tensor, lens: Tensor) -> Tensor:
    outs, start, row = [x[:0, 0].long()], 0, 0
    for n in lens.tolist():
        outs.append(torch.arange(n) + start)
        start += int((x[row : row + n, 0] > 0).sum().clamp(max=2)) + 1
        row += n
    return torch.cat(outs)


@leave("f[T,4] cu", wrap=_lengths, tail=False, lead_empty=False)
def counted_on_by_the_larger_neighbour(x: Tensor, lens: Tensor) -> Tensor:
    outs, start, padded = [x[:0, 0].long()], 0, torch.nn.functional.pad(lens, (0, 1))
    for i in range(len(padded) - 1):
        outs.append(torch.arange(padded[i].item()) + start)
        start += max(padded[i].item(), padded[i + 1].item())
    return torch.cat(outs)
