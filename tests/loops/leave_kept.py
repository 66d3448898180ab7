"""Loops that must keep eager's results: slots that a mask keeps, in ways that no row of kept slots stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,2] m[T] cu", tail=False, must_refuse=True, why="the row is written by the loop")
def kept_of_a_row_that_changes(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, x = [], x.detach().clone()
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[s:e][mask[s:e]].sum(0))
        x[s:e] = 1
        x[:1] += 1
    return torch.stack(sums), x


@leave("i[T] m[T] cu", tail=False, must_refuse=True, why="the mask is written by the loop")
def kept_by_a_mask_that_changes(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, mask = [], mask.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        sums.append(x[s:e][mask[s:e]].sum(0))
        mask[-2:] = False
    return torch.stack(sums), mask


@leave("f[T,2] m[T] cu", tail=False)
def kept_of_the_document_before(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    n = x.shape[0] // 2
    return torch.stack([x[:n][mask[:n]].sum(0) * (e - s) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("i[T,2] m[T] cu", tail=False, why="half of a number is set in a row of integers")
def filled_with_a_fraction(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e][mask[s:e]] = 2.5
    return out


@leave("f[T,3] m[T] cu", tail=False, why="a mask of one feature selects from rows of three")
def selected_by_a_wider_mask(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.masked_select(x[s:e], mask[s:e, None]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


# === Slots of several kinds ==================================================================================


@leave("f[T] m[T] i[T] cu", tail=False, must_refuse=True, why="slots of two masks are in one list, by turns")
def one_list_of_two_masks(x: Tensor, mask: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e][mask[s:e]])
        parts.append(x[s:e][labels[s:e] > 30])
    return torch.cat(parts)


@leave("f[T] m[T] cu", tail=False, must_refuse=True, why="the document is read after some of its slots are written")
def written_and_looked_at(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = torch.zeros_like(x), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e][mask[s:e]] = x[s:e][mask[s:e]] * 2
        sums.append(out[s:e].sum())
    return torch.stack(sums), out


@leave("f[T] m[T] m[T] cu", tail=False, must_refuse=True, why="slots of two masks are written, which may be the same")
def written_by_two_masks(x: Tensor, one: Tensor, other: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e][one[s:e]] = x[s:e][one[s:e]] * 2
        out[s:e][other[s:e]] = x[s:e][other[s:e]] * 3
    return out


@leave("f[T] m[T] cu", tail=False, min_len=1, why="the last place is asked for behind a branch on how many there are")
def last_place_if_there_is_one(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places = torch.where(mask[s:e])[0]
        out.append(x[s:e][places[-1] if places.numel() > 0 else 0])
    return torch.stack(out)


@leave("f[T] m[T] cu", tail=False, must_refuse=True, why="places in the document are written in the row")
def places_written_in_the_row(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[mask[s:e].nonzero(as_tuple=True)[0] + s] = 0.0
    return out


@leave("f[T] m[T] cu", tail=False, must_refuse=True, why="kept slots meet the mean of all")
def kept_around_the_mean_of_all(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.stack(
        [(x[s:e][mask[s:e]] - x[s:e].sum()).pow(2).sum() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    )


@leave("f[T] m[T] cu", tail=False, must_refuse=True, why="the row is written between two looks at it")
def kept_before_all_are_written(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x.detach().clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = out[s:e][mask[s:e]].sum()
        out[s:e] = out[s:e] * 2 + 1
        sums.append(kept + out[s:e].sum())
    return torch.stack(sums), out


@leave("f[T] m[T] cu", tail=False, must_refuse=True, why="kept slots are weighted by the document before")
def kept_and_carried(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out, last = [], x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append((x[s:e][mask[s:e]] * last).sum())
        last = x[s:e].sum()
    return torch.stack(out)


@leave("f[T] m[T] cu", tail=False, why="the largest of no slots is looked for in documents that are not skipped alone")
def kept_of_documents_that_are_not_skipped(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = [x.sum()]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        out.append(x[s:e][mask[s:e] | ~mask[s:e]].amax() - x[s:e].sum())
    return torch.stack(out)


@leave("f[T] m[T] cu", tail=False)
def kept_behind_a_branch(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        most = x[s:e][mask[s:e] | ~mask[s:e]].amax() if e > s else x.new_zeros(())
        out.append(most - x[s:e].sum())
    return torch.stack(out)


@leave("f[T] m[T] cu", tail=False, why="random numbers are drawn for the kept slots")
def kept_and_drawn(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.stack(
        [x[s:e][mask[s:e]].sum() * torch.rand(()) + x[s:e].sum() for s, e in zip(bounds[:-1], bounds[1:])]
    )


@leave("f[T] m[T] cu", tail=False, why="the rest of the body has no rule, and runs as it is")
def kept_beside_a_histogram(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.append(torch.histc(x[s:e].detach(), 4, -2, 2).sum() + x[s:e][mask[s:e]].sum())
    return torch.stack(sums)


@leave("f[T,3] f[T,3] m[T] cu", must_refuse=True, why="the mask is another one the second time")
def kept_by_a_mask_and_by_its_opposite(x: Tensor, y: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        keep = mask[s:e].clone()
        first = x.detach()[s:e][keep]
        keep.logical_not_()
        total = total + first.sum() * y.detach()[s:e][keep].sum() + first.shape[0]
    return total
