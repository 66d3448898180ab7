"""Loops that must keep eager's results where one slot, or a few, of a document stand beside all of them, and where what
is taken from an end reaches beyond the document; what is rewritten is in `rewrite_edges`."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", min_len=1)
def backwards_beyond_the_document(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[torch.arange(e - 1, s - 2, -1).clamp(min=0)] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([x[:0], *parts])


@leave("f[T,2] cu i[N]", must_refuse=True, why="empty documents set slots of documents that are skipped")
def last_slots_of_some(x: Tensor, cu: Tensor, kind: Tensor) -> Tensor:
    y = x.clone()
    for i in range(len(cu) - 1):
        if kind[i] % 3 == 1:
            continue
        y[cu[i + 1] - 1] = 7
    return y


@leave("f[T,2] cu", must_refuse=True, mutates=True, why="empty documents set slots of an input that others read")
def input_read_before_the_first_slot_is_set(x: Tensor, cu: Tensor) -> Tensor:
    out, y = torch.zeros_like(x), x[: x.shape[0] + 1]
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = y[cu[i] : cu[i + 1]] * 2
        y[cu[i + 1] - 1] = 0
    return out


@leave("f[T,2] cu", must_refuse=True, why="whether there is a last slot to set depends on the document")
def last_slot_as_a_slice_of_its_own(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[e - 1 : e] = x[s:e].sum(0)
    return y


@leave("f[T,2] cu", must_refuse=True, why="an empty document sets the slot of another to what that did not")
def first_and_last_slots_as_other_slices(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[s : s + 1] = 7
        y[e - 1 : e] = 8
    return y


@leave("f[T,2] cu")
def last_slot_as_a_slice_added_to(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[e - 1 : e] += 1
    return y
