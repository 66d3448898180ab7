"""Loops over slots of padded rows, and over one thing, that must keep eager's results, and its errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .harness import Shape, leave

FITTING = (Shape(3, 24, "plain"), Shape(7, 61, "plain"), Shape(1, 9, "plain"), Shape(50, 173, "plain"))


@leave("f[N,T,2] cu", tail=False)
def slots_of_the_first_row(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([h[0, n - 1] for n in cu.diff().tolist()])


@leave("f[N+1,T,2] cu", tail=False)
def slots_of_the_next_row(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([h[i + 1, n - 1] for i, n in enumerate(cu.diff().tolist())])


@leave("f[N,T,2] cu", tail=False, mutates=True)
def read_after_it_was_written(h: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = []
    for i, n in enumerate(cu.diff().tolist()):
        h[i, :n] = h[i, :n] * 2
        parts.append(h[i, n - 1].clone())
    return torch.stack(parts), h


@leave("f[N,T,2] cu", tail=False, mutates=True)
def slot_changed_in_place(h: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = []
    for i, n in enumerate(cu.diff().tolist()):
        last = h[i, n - 1]
        last += 1
        parts.append(last * 2)
    return torch.stack(parts), h


@leave("f[N,T,2] cu", mutates=True)
def slot_written(h: Tensor, cu: Tensor) -> Tensor:
    for i, n in enumerate(cu.diff().tolist()):
        h[i, n - 1] = 7
    return h


class OneLayer(nn.Module):
    """``range(1)`` beside a batch that may have one document."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        for i in range(1):
            x = self.layers[i](x).round(decimals=1)
        parts, start = [], 0
        for n in cu.diff().tolist():
            parts.append(x[start : start + n].flip(0))
            start += n
        return torch.cat(parts)


leave("f[T,2] cu", tail=False, exact=False)(OneLayer)


@leave("f[T,2] cu")
def one_state_for_all(x: Tensor, cu: Tensor) -> Tensor:
    state, start = x.new_zeros(2), 0
    for n in cu.diff():
        state = torch.tanh(state + x[start : start + n].sum(0))
        start = start + n
    return state


@leave("f[T,2] cu", shapes=FITTING)
def left_by_return(x: Tensor, cu: Tensor) -> Tensor:
    start = 0
    for n in cu.diff().tolist():
        if x[start : start + n].sum() > 0:
            return x[start : start + n] * 2
        start += n
    return x


@leave("f[T,2] i[1]")
def a_number_of_steps(x: Tensor, steps: Tensor) -> Tensor:
    for i in range(1):
        x = x[: steps[i].item()] * 0.5
    return x


@leave("f[T,2] i[1]")
def an_offset(x: Tensor, offsets: Tensor) -> Tensor:
    out = x.clone()
    for offset in offsets:
        out[offset:] += 1
    return out
