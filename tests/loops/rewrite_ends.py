"""Slots at the boundaries that are set as slices of one slot, and what is read of a row of which slots are set."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("i[1,T] cu", lead_empty=False)
def labels_with_the_last_slot_as_a_slice(ids: Tensor, cu: Tensor) -> Tensor:
    labels = ids.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        labels[:, s : e - 1] = ids[:, s + 1 : e]
        labels[:, e - 1 : e] = -100
    return labels


@program("f[T,2] cu")
def first_and_last_slots_as_slices(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[s : s + 1] = 7
        y[e - 1 : e] = 7
    return y


@program("f[T,2] cu")
def first_slots_as_slices(x: Tensor, cu: Tensor) -> Tensor:
    y = x.clone()
    for i in range(len(cu) - 1):
        y[cu[i] : cu[i] + 1] = 0
    return y


@program("i[T] cu", tail=False)
def rolled_in_place_with_the_last_slot_as_a_slice(ids: Tensor, cu: Tensor) -> Tensor:
    labels = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        labels[s:e] = labels[s:e].roll(-1)
        labels[e - 1 : e] = -100
    return labels


@program("f[T,2] cu", unfit=True)
def read_before_the_last_slot_is_set(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    y, out = x.clone(), torch.zeros_like(x)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = y[cu[i] : cu[i + 1]] * 2
        y[cu[i + 1] - 1] = 0
    return out, y


@program("f[T,2] cu", unfit=True)
def read_before_the_first_slot_is_set(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.cat([x, x[:1]])
    out = torch.zeros_like(y)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = y[cu[i] : cu[i + 1]] * 2
        y[cu[i]] = 0
    return out, y


@program("f[T,2] cu", unfit=True)
def rolled_in_place_with_the_first_slot_set(x: Tensor, cu: Tensor) -> Tensor:
    y = torch.cat([x, x[:1]])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[s:e] = y[s:e].roll(1, 0)
        y[s : s + 1] = 3
    return y
