"""Loops that must be rewritten: over lists of numbers of Python, where the program is given no tensor at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")


def _alone(cu: Tensor) -> tuple[list[int]]:
    return (cu.diff().tolist(),)


class Batch:
    """What a collate function gives."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths


@program("cu", wrap=_alone, shapes=SOME)
def ids_by_a_list_alone(lengths: list[int]) -> Tensor:
    return torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])


@program("cu", wrap=_alone, shapes=SOME, depends=True)
def positions_and_starts_by_a_list_alone(lengths: list[int]) -> tuple[Tensor, Tensor]:
    cu, positions = [0], []
    for n in lengths:
        cu.append(cu[-1] + n)
        positions.append(torch.arange(n))
    return torch.cat(positions), torch.tensor(cu, dtype=torch.int32)


@program("cu", wrap=_alone, shapes=SOME, reads=1)
def mask_of_blocks_by_a_list_alone(lengths: list[int]) -> Tensor:
    mask, start = torch.zeros(sum(lengths), sum(lengths), dtype=torch.bool), 0
    for n in lengths:
        mask[start : start + n, start : start + n] = True
        start += n
    return mask


@program("cu", wrap=_alone, shapes=SOME, reads=1)
def mask_of_rows_by_a_list_alone(lengths: list[int]) -> Tensor:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    for i, n in enumerate(lengths):
        mask[i, :n] = True
    return mask


@program("cu", wrap=lambda cu: (Batch(cu.diff().tolist()),), shapes=SOME)
def positions_by_a_list_in_a_batch(batch: Any) -> Tensor:
    return torch.cat([torch.arange(n) for n in batch.lengths])


@program("cu", wrap=lambda cu: (tuple(cu.diff().tolist()), 2), shapes=SOME)
def every_second_position_by_a_tuple_alone(lengths: tuple[int, ...], step: int) -> Tensor:
    return torch.cat([torch.arange(n) * step for n in lengths])
