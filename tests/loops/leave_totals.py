"""Look-alikes of totals, counters and lists: what is carried, or counted, differs by document in another way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .harness import SHAPES, leave


@leave("f[T] cu", must_refuse=True, why="every document reads the total of those before")
def total_that_is_read(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, total = x.clone(), x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] + total
        total = total + x[s:e].sum()
    return out, total


@leave("f[T] cu", must_refuse=True, why="the history holds every total on the way")
def totals_in_a_list(x: Tensor, cu: Tensor) -> Any:
    total, history = x.new_zeros(()), [x.new_zeros(())]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + x[s:e].sum()
        history.append(total)
    return torch.stack(history)


@leave("f[T] cu", must_refuse=True, why="what is added is the total itself as well")
def doubling_total(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_ones(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + (total * 0 + x[s:e].sum())
    return total


@leave("f[T] cu", must_refuse=True, why="a total that decays")
def moving_average(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = 0.5 * total + x[s:e].sum()
    return total


@leave("f[T] cu", must_refuse=True, why="added and taken away in turns")
def alternating_total(x: Tensor, cu: Tensor) -> Tensor:
    total, sign = x.new_zeros(()), 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + sign * x[s:e].sum()
        sign = -sign
    return total


@leave("f[T] cu", must_refuse=True, why="the tensor that is added to in place is read in the loop under another name")
def total_read_by_another_name(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, total = x.clone(), x.new_zeros(())
    same = total.view(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] + same
        total += x[s:e].sum()
    return out, total


@leave("m[T] cu")
def any_document(mask: Tensor, cu: Tensor) -> Tensor:
    """The sum of truth values is one, not a number."""
    found = torch.zeros((), dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found = found + mask[s:e].all()
    return found


@leave("i[T] cu")
def total_in_a_narrow_type(ids: Tensor, cu: Tensor) -> Tensor:
    """128 is -128 in eight bits."""
    total = torch.zeros((), dtype=torch.int8)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += ids[s:e].sum() * 50
    return total


@leave("f[T] cu", shapes=tuple(shape for shape in SHAPES if shape.kind not in ("ones", "no_documents")))
def total_of_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    """Where no document is long, the total has a gradient of zeros, and in eager none."""
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 3:
            continue
        total = total + x[s:e].sum()
    return total


@leave("f[2,T] cu", must_refuse=True, why="the counter turns back")
def counter_that_wraps(x: Tensor, cu: Tensor) -> Tensor:
    out, count = x.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e] * count
        count = (count + 1) % 3
    return out


@leave("f[2,T] cu")
def counter_of_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, count = x.clone(), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].flip(-1)
        if e - s > 2:
            count += 1
    return out * count


@leave("f[T] cu", tail=False)
def one_more_for_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e])
        if e - s > 3:
            parts.append(x[s:e] * 2)
    return torch.cat(parts)


def all_but_one(x: Tensor, cu: Tensor) -> Iterator[Tensor]:
    for i in range(len(cu) - 1):
        yield x[cu[i] : cu[i + 1]]


@leave("f[T] cu", min_len=1)
def generator_left_early(x: Tensor, cu: Tensor) -> Tensor:
    out = x.sum()
    for part in all_but_one(x, cu):
        out = out + part.sum()
        if part.shape[0] > 4:
            break
    return out


@leave("f[T] cu", min_len=1, tail=False, must_refuse=True, why="the first document is taken before the loop")
def generator_begun_before(x: Tensor, cu: Tensor) -> Tensor:
    found = all_but_one(x, cu)
    first = next(found)
    out = first.sum().reshape(1)
    for part in found:
        out = torch.cat((out, part * 2))
    return out


@leave("f[T] cu", must_refuse=True, why="the consumer carries the document before")
def generator_with_memory(x: Tensor, cu: Tensor) -> Tensor:
    before, parts = x.new_zeros(()), []
    for part in all_but_one(x, cu):
        parts.append(part + before)
        before = part.sum() * 0.5 + before * 0.5
    return torch.cat(parts) if parts else x


@leave("f[T] cu", tail=False)
def boundaries_changed_in_between(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [int(b) for b in cu]
    cu = cu.clamp(max=3)
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]) + cu.sum()


@leave("f[T] cu", must_refuse=True, why="a handler that goes on for one kind of errors")
def handler_that_sometimes_goes_on(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        try:
            out[s:e] = x[s:e].flip(0)
        except RuntimeError as error:
            if "fit" not in str(error):
                raise
    return out


@leave("f[T] cu", must_refuse=True, why="a return in finally swallows what was raised")
def return_in_finally(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    try:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0)
    finally:
        return out  # noqa: B012


def doubled(x: Tensor, cu: Tensor) -> Iterator[Tensor]:
    """The generator itself adds up."""
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        total = total * 0.5 + x[cu[i] : cu[i + 1]].sum()
        yield total


@leave("f[T] cu", tail=False, must_refuse=True, why="the generator carries a moving average")
def generator_that_carries(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack(list(doubled(x, cu)))


@leave("f[T] cu", must_refuse=True, why="the total decides what is added to it")
def total_in_a_condition(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for part in all_but_one(x, cu):
        total = total + torch.where(total > 3, part.sum() * 2, part.sum())
    return total


@leave("f[T,3] f[T,3] cu", must_refuse=True, why="the sum is scaled between two shares")
def scaled_between_two_shares(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = (total + p[s:e].sum(0)) * 0.5 + q[s:e].sum(0)
    return total


@leave("f[T,3] f[T,3] cu", tail=False, must_refuse=True, why="the sum is looked at between two shares")
def looked_at_between_two_shares(p: Tensor, q: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total, seen = torch.zeros(3), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + p[s:e].sum(0)
        seen.append(total.sum())
        total = total + q[s:e].sum(0)
    return total, torch.stack(seen)


@leave("f[T,3] cu", must_refuse=True, why="the second share is the sum itself")
def doubled_on_the_way(p: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + p[s:e].sum(0) / 64 + total
    return total


@leave("f[T,3] cu", must_refuse=True, why="the second share is made of the sum with the first")
def share_of_the_sum_itself(p: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += p[s:e].sum(0)
        total += total * 0.125
    return total


@leave("i[T,3] i[T,3] cu", min_len=1, must_refuse=True, why="a sum and a maximum take turns")
def larger_and_more(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3, dtype=torch.long)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = torch.maximum(total + p[s:e].sum(0), q[s:e].sum(0))
    return total


@leave("f[T,3] f[T,3] cu", min_len=1, exact=False)
def share_changed_after_it_was_added(p: Tensor, q: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total, out = torch.zeros(3), torch.zeros_like(p)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        share = p[s:e].sum(0)
        total = total + share + q[s:e].sum(0)
        share.mul_(2)
        out[s:e] = share
    return total, out


@leave("f[T,3] f[3] cu", must_refuse=True, why="what the total begins with has a gradient, which no_grad takes away")
def begins_with_a_gradient(p: Tensor, first: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total = first * 2
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            total = total + p[s:e].sum(0)
    return total, (p.sum(0) * first).sum()


@leave("f[T,3] f[T,3] cu", must_refuse=True, why="the second share takes the gradient of the first away")
def recorded_and_then_not(p: Tensor, q: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + p[s:e].sum(0)
        with torch.no_grad():
            total = total + q[s:e].sum(0)
    return total, (p * q).sum()


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the first share alone has a gradient, that of one document")
def none_that_loses_its_gradient(p: Tensor, cu: Tensor) -> tuple[Tensor | None, Tensor]:
    total = None
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        share = p[s:e].sum(0)
        with torch.no_grad():
            total = share if total is None else total + share
    return total, p.sum()


@leave("f[T] cu", why="an integer becomes a float with the first document")
def floats_added_to_an_integer(x: Tensor, cu: Tensor) -> tuple[float, Tensor]:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum().item()
    return total, x * 2


@leave("f[T] cu", why="an integer becomes a float with the first document that is long enough")
def halves_added_to_an_integer(x: Tensor, cu: Tensor) -> tuple[float, Tensor]:
    total = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 2:
            total += len(x[s:e][x[s:e] > 0]) / 2
    return total, x * 2


@leave("f[T] cu", min_len=1, why="means of documents are floats; their number is an integer")
def means_by_their_number(x: Tensor, cu: Tensor) -> tuple[float, Tensor]:
    total, count = 0, 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum().item() / 8
        count += 1
    return total / max(count, 1), x * 2
