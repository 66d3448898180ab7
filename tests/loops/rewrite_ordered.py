"""Loops that must be rewritten: documents in another order, some of them, and some more than once."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


def in_an_order(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    return x, numbers.argsort(stable=True), cu


def any_documents(x: Tensor, numbers: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """Counted from both ends."""
    documents = len(cu) - 1
    return x, numbers % max(2 * documents, 1) - documents, cu


@program("f[T,3] i[N] cu64", wrap=in_an_order, tail=False, graphs=3)
def parts_by_number(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    parts = x.split((cu[1:] - cu[:-1]).tolist())
    return torch.cat([parts[i] for i in order.tolist()])


@program("f[T,3] i[N] cu64", wrap=any_documents, tail=False, graphs=3)
def parts_from_both_ends(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    parts = x.split((cu[1:] - cu[:-1]).tolist())
    return torch.stack([parts[i].sum(0) for i in order])


@program("f[T,3] i[N] cu", wrap=in_an_order, graphs=3)
def written_in_an_order(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in order.tolist():
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].cumsum(0)
    return out


@program("f[T,3] i[N] cu", wrap=in_an_order, tail=False, graphs=3)
def numbers_of_a_list(x: Tensor, order: Tensor, cu: Tensor) -> Tensor:
    ends = cu.tolist()
    return torch.stack([x[ends[i] : ends[i + 1]].sum(0) for i in order.tolist()])


@program("f[T,3] i[N+3] f[N,3] cu", wrap=lambda x, n, q, cu: (x, n % max(len(q), 1), q, cu), tail=False, graphs=3)
def several_times(x: Tensor, which: Tensor, queries: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([(x[cu[i] : cu[i + 1]] * queries[i]).sum(0) for i in which.tolist()])


@program("f[T,3] cu", tail=False)
def from_the_last(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in reversed(range(len(cu) - 1)):
        out.append(x[cu[i] : cu[i + 1]] * 2)
    return torch.cat(out)


@program("f[T,3] cu", tail=False)
def counted_down(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 2, -1, -1):
        out.append(x[cu[i] : cu[i + 1]].sum(0))
    return torch.stack(out)


@program("f[T,3] cu64", tail=False, graphs=3, depends=False)
def a_split_backwards(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.flip(0) for part in x.split((cu[1:] - cu[:-1]).tolist())[::-1]])


@program("f[T,3] cu64", tail=False, graphs=3)
def a_split_reversed(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in reversed(x.split((cu[1:] - cu[:-1]).tolist()))])
