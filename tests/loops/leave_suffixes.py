"""Look-alikes of what documents add to all slots behind them: other ops, other numbers, slots that are looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("i[T] cu", must_refuse=True, why="the next document looks at what this one has added")
def slots_that_are_looked_at(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, total = x.clone(), torch.zeros((), dtype=torch.int64)
    for end in cu[1:].tolist():
        behind = out[end:]
        behind += 1
        total = total + behind.sum()
    return out, total


@leave("i[T] cu", must_refuse=True, why="a document looks at its own slots, which others have changed")
def own_slots_are_looked_at(x: Tensor, cu: Tensor) -> tuple[Tensor, list[Tensor]]:
    out, sums = x.clone(), []
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[end:] += 1
        sums.append(out[start:end].sum())
    return out, sums


@leave("i[T] cu", must_refuse=True, why="the first of the slots is taken away from all, as it is by then")
def counted_from_the_first_of_them(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.cat([x, x[-1:]])
    for end in cu[1:].tolist():
        out[end:] -= out[end].clone()
    return out


@leave("i[T] cu", must_refuse=True, why="products have no rule")
def multiplied(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[end:] *= 2
    return out


@leave("i[T] cu", must_refuse=True, why="the slots are taken away from a number")
def turned_around(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, end in enumerate(cu[1:].tolist()):
        out[end:] = i - out[end:]
    return out


@leave("i[T] cu", must_refuse=True, why="what is added is cut off at each step")
def halves_added_to_integers(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[end:] = out[end:] + 0.5
    return out


@leave("i[T] cu", must_refuse=True, why="the slots are those of another tensor")
def written_to_another_tensor(x: Tensor, cu: Tensor) -> Tensor:
    out, other = x.clone(), x * 2
    for end in cu[1:].tolist():
        other[end:] = out[end:] + 1
    return other


@leave("i[T] cu", must_refuse=True, why="the slots are others")
def written_one_slot_further(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.cat([x, x])
    for end in cu[1:].tolist():
        out[end + 1 :] = out[end:][1:] + 1
    return out


@leave("i[T] cu", must_refuse=True, why="set and added to, one after the other")
def set_between_sums(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[start:] += 1
        out[end:] = 0
    return out


@leave("i[T] cu", must_refuse=True, why="a view of the same memory is added to")
def added_through_a_view(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    view = out.view(-1)
    for end in cu[1:].tolist():
        out[end:] += 1
        view[end:] += 1
    return out, view


@leave("m[T] cu", must_refuse=True, why="a sum of truth values is another operation")
def truth_values(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[end:] += True
    return out


@leave("f[T] f[N] cu", must_refuse=True, why="what is added has a gradient")
def weights_with_a_gradient(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] :] += w[i]
    return out


@leave("i[T] cu", must_refuse=True, why="documents of both kinds add")
def either_way(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end - start <= 2:
            out[end:] += 3
        else:
            out[end:] += 1
    return out


@leave("f[T,3] cu", must_refuse=True, why="a row of numbers is added")
def more_than_one_number(x: Tensor, cu: Tensor) -> Tensor:
    out, numbers = x.clone(), torch.arange(3.0)
    for end in cu[1:].tolist():
        out[end:] += numbers
    return out


@leave("i[3,T] cu", must_refuse=True, why="a row of the same slots, and all rows")
def a_row_and_all_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for end in cu[1:].tolist():
        out[:, end:] -= end
        out[0, end:] += 1
    return out


@leave("i[T] cu", must_refuse=True, why="counted, then added to: only the slots of the last document that did it")
def counted_and_added_to(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start in cu[:-1].tolist():
        out[start:] = torch.arange(len(x) - start)
        out[start:] += 1
    return out


@leave("i[T] cu", must_refuse=True, why="added to, then counted")
def added_to_and_counted(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start in cu[:-1].tolist():
        out[start:] += 1
        out[start:] = torch.arange(len(x) - start)
    return out


@leave("i[T] cu", must_refuse=True, why="what is written back is older than another change")
def written_back_after_another_sum(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        more = out[end:] + 1
        out[start:] += 2
        out[end:] = more
    return out


@leave("i[T] cu", must_refuse=True, why="a view that was changed is written back after another change")
def view_written_back_later(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for start, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        behind = out[end:]
        behind += 1
        out[start:] += 2
        out[end:] = behind
    return out
