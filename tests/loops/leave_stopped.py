"""Look-alikes of loops that are left at padding: what is left behind counts, or what a document does before it leaves,
or another way on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_stopped import lengths, padded

SHORT = {"tail": False, "min_len": 1, "lead_empty": False}


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="the document that leaves the loop is looked at behind it",
)  # fmt: skip
def the_one_that_leaves(x: Tensor, cu: Tensor) -> Any:
    out, e = x * 2, cu[-1].item()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 0:
            break
        out[s:e] = x[s:e].cumsum(0)
    return out, e


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="the document that leaves the loop is counted",
)  # fmt: skip
def counted_before_it_leaves(x: Tensor, cu: Tensor) -> Any:
    out, documents = x * 2, 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        documents += 1
        if e < 0:
            break
        out[s:e] = x[s:e].cumsum(0)
    return out, documents


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="what follows where no document leaves the loop is something else",
)  # fmt: skip
def unless_one_leaves(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 0:
            break
        out[s:e] = x[s:e].cumsum(0)
    else:
        out = out + 1
    return out


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="what is returned from the loop is something else",
)  # fmt: skip
def returned_from_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 0:
            return out * 2
        out[s:e] = x[s:e].cumsum(0)
    return out


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="a document that another branch skips does not leave the loop",
)  # fmt: skip
def skipped_before_it_leaves(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == 0:
            continue
        if e < 0:
            break
        out[s:e] = x[s:e].cumsum(0)
    return out


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="the document that leaves the loop is written before",
)  # fmt: skip
def written_before_it_leaves(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:] = x[s:].cumsum(0)
        if e < 0:
            break
    return out


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="the document that leaves the loop is counted in a tensor before",
)  # fmt: skip
def counted_in_place_before_it_leaves(x: Tensor, cu: Tensor) -> Any:
    out, seen = x * 2, torch.zeros(cu.shape, dtype=torch.int64)
    for i in range(len(cu) - 1):
        seen[i].add_(1)
        if cu[i + 1] < 0:
            break
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].cumsum(0)
    return out, seen


@leave(
    "f[T,3] cu64", wrap=padded, must_refuse=True, **SHORT,
    why="the boundaries that decide change in the body",
)  # fmt: skip
def boundaries_that_decide_change(x: Tensor, cu: Tensor) -> Any:
    out, own = x * 2, cu.clone()
    for i in range(len(cu) - 1):
        if own[i + 1] < 0:
            break
        own[i + 1] = own[i + 1] - 1
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].cumsum(0)
    return out, own


@leave(
    "f[T,3] cu64", wrap=lengths, must_refuse=True, **SHORT,
    why="what the documents hold decides",
)  # fmt: skip
def left_by_what_a_document_holds(x: Tensor, lens: Tensor) -> Tensor:
    out, start = x * 2, 0
    for n in lens.tolist():
        part = x[start : start + n]
        if part.sum() > 1:
            break
        out[start : start + n] = part.cumsum(0)
        start += n
    return out
