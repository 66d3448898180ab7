"""Loops that must be left alone: the best slots of parts of documents, and numbers that are no share of a length."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="no numbers are behind everything, and so is what fills up", tail=False)
def numbers_of_a_part_in_order(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append((x[s:e][1:] / x[s:e][1:].round()).sort().values)
    return torch.cat(outs)


@leave("i[T] cu", must_refuse=True, why="of equal numbers of a part torch may take another one first", tail=False)
def places_of_a_part_in_order(ids: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(ids[s:e][1:].argsort())
    return torch.cat(outs)


@leave("f[T,3] f[T] cu", must_refuse=True, why="positions of another document's part", min_len=2, tail=False)
def best_of_what_is_left_of_a_document(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        best = scores[s:e][1:].topk(int((e - s) * 0.5)).indices
        outs.append(x[s:e][best])
    return torch.cat(outs)


@leave("f[T,3] f[T] cu", unfit=True, tail=False)
def more_of_the_best_than_there_are(x: Tensor, scores: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        k = int((e - s) * 1.5)
        outs.append(x[s:e][scores[s:e].topk(min(k, e - s)).indices])
    return torch.cat(outs)


@leave("f[T,3] cu", must_refuse=True, why="two floats in turn, which are no one float", tail=False)
def rounded_behind_two_operations(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e].repeat(int((e - s) * 0.7 * 10), 1))
    return torch.cat(outs)


@leave("f[T,3] cu", must_refuse=True, why="a sum of two floats", tail=False)
def rounded_behind_a_sum(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:1].sum(0)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s : int(s * 0.5 + e * 0.5)].sum(0))
    return torch.stack(outs)


@leave("f[T,3] cu", must_refuse=True, why="one float of two numbers, which are taken apart", tail=False)
def repeated_by_a_share_of_a_length(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e].repeat(int((e - s) * 0.7), 1))
    return torch.cat(outs)
