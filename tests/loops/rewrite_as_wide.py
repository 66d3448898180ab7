"""Loops that must be rewritten: documents that a branch fills up to a width, or cuts to it, and leaves if they fit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")
WHOLE = tuple(shape for shape in SOME if not shape.kind.startswith(("tail", "gap")))


@program("f[T,4] cu", shapes=WHOLE, reads=1)
def zeros_where_some_lack(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    width, rows = max(lengths), []
    for part in torch.split(x, lengths):
        lack = width - part.size(0)
        if lack > 0:
            part = torch.cat([part, part.new_zeros(lack, part.size(1))], 0)
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, reads=1)
def padded_if_shorter(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if part.shape[0] < width:
            part = F.pad(part, (0, 0, 0, width - part.shape[0]), value=-1.0)
        rows.append(part)
    padded = torch.stack(rows)
    return padded.sum(2), torch.arange(padded.shape[1])


@program("f[T,4] cu", shapes=SOME, reads=1)
def filled_in_front_if_unequal(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) != width:
            part = torch.cat([torch.full((width - len(part), 4), 7.0), part])
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] i[T] cu", shapes=SOME, reads=1)
def a_row_and_its_mask_filled_up(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    bounds = cu.tolist()
    width = max(e - s for s, e in zip(bounds[:-1], bounds[1:]))
    rows, labels, masks = [], [], []
    for s, e in zip(bounds[:-1], bounds[1:]):
        part, label, mask = x[s:e], ids[s:e], torch.ones(e - s, dtype=torch.bool)
        if e - s < width:
            part = torch.cat([part, x.new_zeros(width - (e - s), x.shape[1])])
            label = torch.cat([label, label.new_full((width - (e - s),), -100)])
            mask = torch.cat([mask, torch.zeros(width - (e - s), dtype=torch.bool)])
        rows.append(part)
        labels.append(label)
        masks.append(mask)
    return torch.stack(rows), torch.stack(labels), torch.stack(masks)


@program("i[T] cu", shapes=WHOLE, reads=1)
def unsqueezed_and_joined(ids: Tensor, cu: Tensor) -> Tensor:
    parts = ids.split(cu.diff().tolist())
    width, rows = max(part.shape[0] for part in parts), []
    for part in parts:
        if part.shape[0] < width:
            part = torch.cat((part, torch.full((width - part.shape[0],), -100, dtype=part.dtype)), dim=0)
        rows.append(part.unsqueeze(0))
    return torch.cat(rows, dim=0)


@program("f[3,T] cu", shapes=WHOLE, reads=1)
def an_expression_in_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist(), dim=1)
    width = max(part.size(1) for part in parts)
    return torch.stack([F.pad(p, (0, width - p.size(1))) if p.size(1) < width else p for p in parts])


@program("f[T,4] cu", shapes=SOME, reads=1)
def the_longest_as_it_is(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) == width:
            rows.append(part)
        else:
            rows.append(F.pad(part, (0, 0, 0, width - len(part)), value=2.0))
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, reads=1)
def scaled_where_it_is_padded(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = int((cu[1:] - cu[:-1]).max()), []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if len(part) < width:
            part = F.pad(part * 2, (0, 0, 0, width - len(part)))
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, reads=1)
def up_to_a_multiple_of_the_longest(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = (int((cu[1:] - cu[:-1]).max()) + 7) // 8 * 8, []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        lack = width - part.size(0)
        if lack > 0:
            part = torch.cat([part, torch.zeros(lack, 4)])
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=WHOLE, wrap=lambda x, cu: (x, cu.diff()), graphs=3, reads=1)
def by_lengths_and_a_running_start(x: Tensor, lengths: Tensor) -> Tensor:
    width, rows, start = max(lengths.tolist()), [], 0
    for n in lengths.tolist():
        part = x[start : start + n]
        start += n
        if n >= width:
            pass
        else:
            part = torch.cat([part, x.new_full((width - n, 4), -2.0)])
        rows.append(part)
    return torch.stack(rows)


def _to_four(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, int]:
    return x, cu, 4


@program("f[T,4] cu", shapes=SOME, wrap=_to_four, rule="ragged_grids")
def cut_or_padded(x: Tensor, cu: Tensor, width: int) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        if e - s > width:
            part = part[:width]
        elif e - s < width:
            part = F.pad(part, (0, 0, 0, width - (e - s)))
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, wrap=_to_four, rule="ragged_grids")
def cut_then_filled_up(x: Tensor, cu: Tensor, width: int) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e][:width]
        if part.shape[0] < width:
            part = torch.cat([part, torch.zeros(width - part.shape[0], 4)])
        rows.append(part)
    return torch.stack(rows)


@program("i[T] cu", shapes=WHOLE, rule="ragged_grids")
def ids_of_four_each(ids: Tensor, cu: Tensor) -> Tensor:
    width, rows = 4, []
    for part in ids.split(cu.diff().tolist()):
        if len(part) >= width:
            part = part[:width]
        else:
            part = F.pad(part, (0, width - len(part)), value=-100)
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, reads=1)
def up_to_what_a_loop_has_found(x: Tensor, cu: Tensor) -> Tensor:
    width, rows = 0, []
    for i in range(len(cu) - 1):
        width = max(width, int(cu[i + 1] - cu[i]))
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        lack = width - part.size(0)
        if lack > 0:
            part = torch.cat([part, torch.zeros(lack, 4)])
        rows.append(part)
    return torch.stack(rows)


@program("f[T,4] cu", shapes=SOME, reads=2)
def padded_to_what_a_loop_has_found(x: Tensor, cu: Tensor) -> list[Tensor]:
    layers = []
    for layer in range(2):
        width, rows = 0, []
        for i in range(len(cu) - 1):
            width = max(width, int(cu[i + 1] - cu[i]))
        for i in range(len(cu) - 1):
            part = x[cu[i] : cu[i + 1]]
            rows.append(F.pad(part, (0, 0, 0, width - part.size(0))) * (layer + 1))
        layers.append(torch.stack(rows))
    return layers
