"""Lists of the same documents are of one length when they are put together, which the program may ask, and may take for
granted in a loop behind them."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")


def _shifted(x: Tensor, fill: float) -> Tensor:
    return torch.cat([x[:, 1:], torch.full_like(x[:, :1], fill)], 1)


@program("f[1,T] f[1,T] cu", shapes=SOME)
def depths_of_two_fields(tokens: Tensor, labels: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for _ in range(2):
        some, others = [], []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            some.append(_shifted(tokens[:, s:e] + labels[:, s:e], 0.0))
            others.append(_shifted(labels[:, s:e], -100.0))
        tokens, labels = torch.cat(some, 1), torch.cat(others, 1)
        out += [tokens, labels]
    return out


@program("f[T,3] f[T,3] cu", shapes=SOME)
def lists_whose_shapes_are_compared(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    some, others = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        some.append(x[s:e] * 2)
        others.append(y[s:e].cumsum(0))
    a, b = torch.cat(some), torch.cat(others)
    if a.shape != b.shape:
        raise ValueError("rows of other lengths")
    return a * b


@program("f[T] f[T] cu", shapes=SOME, depends=False)
def lists_of_slots_that_one_mask_keeps(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    some, others = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = y[s:e] > 0
        some.append(x[s:e][mask])
        others.append(y[s:e][mask] * 2)
    return torch.cat(some) + torch.cat(others)


@program("f[T,3] f[T,3] cu", shapes=SOME)
def one_list_beside_another_loops(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    some, others = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        some.append(x[s:e].flip(0))
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        others.append(y[s:e] - 1)
    return torch.cat(some) + torch.cat(others)
