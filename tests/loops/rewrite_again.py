"""Loops over documents that run several times: in a loop over layers or depths, or in a function that is called for
each. Every time begins with what the program has then, and may go by other boundaries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .harness import program


def lengths(x: Tensor, cu: Tensor, *others: Any) -> Any:
    return (x, cu.diff(), *others)


def two_sets(x: Tensor, cu: Tensor) -> Any:
    """The same documents, and these in the opposite order."""
    return x, cu, torch.cat([cu[:1], cu.diff().flip(0)]).cumsum(0)


@program("f[T,3] cu64", wrap=lengths, tail=False, graphs=3)
def depths_with_offsets(x: Tensor, n: Tensor) -> Tensor:
    for _ in range(3):
        parts, start = [], 0
        for length in n.tolist():
            parts.append(x[start : start + length].roll(-1, 0))
            start += length
        x = torch.cat(parts)
    return x


def shifted(x: Tensor, n: Tensor, start: int) -> Tensor:
    out = torch.zeros_like(x)
    for length in n.tolist():
        out[start : start + length] = x[start : start + length].flip(0)
        start += length
    return out


@program("f[T,3] cu64", wrap=lambda x, cu: (x, cu.diff()[:-1]), min_len=1, tail=False, lead_empty=False, demand=False)
def starts_of_its_own(x: Tensor, n: Tensor) -> Tensor:
    """Equal code, and another first slot each time."""
    return shifted(x, n, 0) + 2 * shifted(x, n, 1)


@program("f[T,3] cu64", wrap=lengths, tail=False, graphs=3)
def counted_on_over_depths(x: Tensor, n: Tensor) -> Any:
    outs, count = [], 0
    for _ in range(2):
        parts = []
        for part in x.split(n.tolist()):
            parts.append(part * count)
            count += 1
        outs.append(torch.cat(parts))
    return torch.stack(outs), count


@program("f[T,3] cu64", wrap=lambda x, cu: (torch.cat([x, x]), cu.diff()), tail=False, graphs=3, reads=1)
def offsets_that_go_on(x: Tensor, n: Tensor) -> Tensor:
    parts, start = [], 0
    for _ in range(2):
        for length in n.tolist():
            parts.append(x[start : start + length].cumsum(0))
            start += length
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=two_sets, exact=False, tail=False)
def two_sets_of_boundaries_in_turn(x: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    out = x
    for layer in range(4):
        bounds = other if layer % 2 else cu
        new, start = torch.zeros_like(out), 0
        for length in bounds.diff().tolist():
            new[start : start + length] = out[start : start + length].softmax(0)
            start += length
        out = new
    return out


@program("f[T,3] cu64", wrap=two_sets)
def ends_of_two_sets_in_turn(x: Tensor, cu: Tensor, other: Tensor) -> Any:
    outs = []
    for bounds in (cu - cu[0], other - other[0], cu - cu[0]):
        out, start = torch.zeros_like(x), 0
        for end in bounds[1:].tolist():
            out[start:end] = x[start:end].cumsum(0)
            start = end
        outs.append(out)
    return outs


@program("f[T,3] cu64", wrap=lengths, tail=False, graphs=3, depends=False)
def totals_of_all_depths(x: Tensor, n: Tensor) -> Any:
    total: Any = x.new_zeros(3)
    for depth in range(3):
        for part in x.split(n.tolist()):
            total = total + part.sum(0) * depth
    return total


class Layers(nn.Module):
    """What every layer finds is listed, in one list for all of them."""

    def forward(self, x: Tensor, n: Tensor) -> Any:
        means = []
        for layer in range(3):
            parts = []
            for part in x.split(n.tolist()):
                means.append(part.sum(0))
                parts.append(part * (layer + 1))
            x = torch.cat(parts)
        return x, torch.stack(means), len(means)


program("f[T,3] cu64", wrap=lengths, tail=False, graphs=3)(Layers)


# === Lists that several loops fill =============================================================================


@program("f[T,3] f[T,3] cu64")
def two_loops_fill_a_list(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    parts = [x[:1]]
    for i in range(len(cu) - 1):
        parts.append(x[cu[i] : cu[i + 1]].flip(0))
    parts.append(y[:2])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(y[s:e].cumsum(0))
    return torch.cat(parts), len(parts)


@program("f[T,3] f[T,3] cu64")
def two_loops_fill_a_list_of_sums(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    sums = []
    for i in range(len(cu) - 1):
        sums.append(x[cu[i] : cu[i + 1]].sum(0))
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.append(y[s:e].sum(0))
    if not sums:
        return x.sum()
    return torch.stack(sums, 1), sum(sums)


@program("f[T,3] f[T,3] cu64", tail=False)
def two_lists_added(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    n = cu.diff().tolist()
    one, other = [part * 2 for part in x.split(n)], [part.flip(0) for part in y.split(n)]
    return torch.cat(one + other), torch.cat(other + one + other)


@program("f[T,3] f[T,3] cu64", tail=False)
def two_loops_fill_a_list_that_is_returned(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    parts = [x[0] * 2]
    for part in x.split(cu.diff().tolist()):
        parts.append(part * 3)
    parts.append(y[0] * 2)
    for part in y.split(cu.diff().tolist()):
        parts.append(part.cumsum(0))
    return parts


@program("f[T,3] f[T,3] cu64", lead_empty=False, exact=False)
def two_loops_of_which_one_leaves_out(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 3:
            parts.append(x[s:e])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(y[s:e])
    return torch.cat(parts)
