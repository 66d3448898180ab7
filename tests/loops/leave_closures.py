"""What a document leaves for the next one in a variable that a closure shares, and what the program sees of it."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", tail=False, must_refuse=True, why="every document takes the last one's largest values")
def what_the_last_document_left(x: Tensor, cu: Tensor) -> Tensor:
    out, start, before = [], 0, x[:1] * 0
    for n in torch.diff(cu).tolist():
        out.append(torch.cat([x[start : start + n] * k + before for k in (1, 2)], -1))
        before = x[start : start + n].sum(0)
        start += n
    return torch.cat(out)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the total is looked at by every document")
def total_seen_on_the_way(x: Tensor, cu: Tensor) -> Tensor:
    total, seen = x.new_zeros(3), []

    def add(document: Tensor) -> None:
        nonlocal total
        total = total * 0.5 + document.sum(0)
        seen.append(total.exp())

    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        add(x[s:e])
    return torch.stack(seen)


@leave("f[T,3] cu", must_refuse=True, why="the scale is halved by every document, read before it is stored")
def halved_by_a_nested_function(x: Tensor, cu: Tensor) -> Tensor:
    scale, out = x[0, 0] * 0 + 1, torch.zeros_like(x)

    def fill(s: int, e: int) -> None:
        nonlocal scale
        out[s:e] = x[s:e] * scale
        scale = scale * 0.5 + x[s:e].sum()

    for i in range(len(cu) - 1):
        fill(cu[i], cu[i + 1])
    return out


@leave("f[T,3] cu", must_refuse=True, why="the last document's rows are read after the loop")
def shared_with_what_runs_after_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    last, out = x[:1] * 0, torch.zeros_like(x)
    show = lambda: last.sum(0)  # noqa: E731
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2 + 0 * last.sum()
        last = x[cu[i] : cu[i + 1]]
    return out + show()


@leave("f[T,3] cu", tail=False)
def counted_on_by_something_else(x: Tensor, cu: Tensor) -> Tensor:
    """Documents overlap: the next one begins a slot before the end of the last."""
    out, start = [], 0
    for n in torch.diff(cu).tolist():
        out.append(sum(x[start : start + n].sum(0) * k for k in (1, 2)))
        start += max(n - 1, 0)
    return torch.stack(out)
