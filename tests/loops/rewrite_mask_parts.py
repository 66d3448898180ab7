"""Loops that must be rewritten: parts of a mask beside its squares (`passes.document_loops.mask_parts`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T] cu")
def columns_from_the_beginning(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, :e] = 1
    return out


@program("f[T] cu")
def squares_without_a_column(x: Tensor, cu: Tensor) -> Tensor:
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, s : e - 1] = 1
    return out


@program("i[T] cu")
def nothing_in_front_of_a_document(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.ones(x.shape[0], x.shape[0])
    for e in cu[1:].tolist():
        mask[e:, :e] = 0
    return mask


@program("i[T] cu")
def neither_in_front_nor_behind(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool)
    for e in cu[1:].tolist():
        mask[e:, :e] = False
        mask[:e, e:] = False
    return mask


@program("i[T] i[N]", graphs=3)
def corners_in_any_order(x: Tensor, begins: Tensor) -> Tensor:
    mask = torch.ones(x.shape[0], x.shape[0])
    for begin in (begins % 13 - 4).tolist():
        mask[begin:, : begin + 2] = 0
    return mask


@program("i[T] cu")
def a_gap_between_both(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.ones(2, x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[1, e:, :s] = 0
    return mask


@program("i[T] cu")
def of_one_row_of_the_masks(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.ones(1, x.shape[0], x.shape[0]).tril()
    for e in cu[1:].tolist():
        mask[0][e:, :e] = 0
    return mask < 0.5


@program("i[T] cu")
def corners_of_some_documents(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.ones(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 1:
            mask[e:, :e] = 0
    return mask


@program("i[T] cu")
def strips_of_some_documents(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 1:
            mask[s:e, :e] = 1
    return mask


@program("i[T] cu")
def more_columns_than_rows(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0] + 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = 1
    return mask


@program("i[T] cu")
def everything_behind(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(2, 1, x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[:, 0, s:e, s:] = float("-inf")
    return mask


@program("i[T] cu")
def rows_in_front(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[:s, s:e] = True
    return mask


@program("i[T] i[N] cu", graphs=3)
def as_many_columns_as_given(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    numbers = numbers % 9 - 3
    mask = torch.zeros(x.shape[0], x.shape[0], dtype=torch.bool)
    for i in range(len(cu) - 1):
        mask[cu[i] : cu[i + 1], : numbers[i]] = True
    return mask


@program("i[T] cu")
def both_sides_of_the_squares(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0], dtype=torch.bool)
    for i in range(len(cu) - 1):
        mask[cu[i] : cu[i + 1], : cu[i]] = True
        mask[cu[i] : cu[i + 1], cu[i + 1] :] = True
    return mask


@program("i[T] cu")
def two_numbers_one_over_the_other(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = 1
        mask[s:e, :s] = 2
    return mask


@program("d[T,4] cu", tail=False, exact=False)
def attention_to_what_comes_before(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.full([x.shape[0], x.shape[0]], torch.finfo(x.dtype).min, dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = 0
    q = x.unsqueeze(0)
    return F.scaled_dot_product_attention(q, q * 2, q, mask).squeeze(0)


@program("f[T,T] cu", mutates=True)
def an_input_is_set_in_strips(mask: Tensor, cu: Tensor) -> Tensor:
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, :e] = 1
    return mask * 2


@program("f[T] cu")
def squares_and_all_in_front(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 1
        mask[s:e, :s] = 2
    return mask + x


@program("f[T] cu")
def squares_and_then_all_but_a_column(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 1
        mask[s : e, s : e - 1] = 2
    return mask * x


@program("f[T] cu")
def squares_and_what_only_long_ones_see(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], x.shape[0])
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 1
        if e - s > 4:
            mask[s:e, :s] = 3
    return mask * x
