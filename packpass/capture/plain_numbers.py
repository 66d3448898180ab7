"""What Python makes of lists of numbers that tensors hold: plain code for Dynamo, as `packpass.capture.plain` is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from packpass.capture.plain import Once, of_tolist


def total(documents: Any) -> Any:
    """``sum(numbers)``."""
    return documents.origin.sum().item()


def largest(documents: Any) -> Any:
    """``max(numbers)``."""
    return documents.origin.max().item()


def smallest(documents: Any) -> Any:
    """``min(numbers)``."""
    return documents.origin.min().item()


def largest_float(numbers: Any) -> Any:
    """``max(numbers)`` of a list of floating point numbers: NaN is larger than nothing, and nothing is larger than a
    NaN that comes first."""
    first = numbers[:1]
    return torch.where(first.isnan(), first, torch.where(numbers.isnan(), -math.inf, numbers)).max().item()


def smallest_float(numbers: Any) -> Any:
    """``min(numbers)`` of such a list."""
    first = numbers[:1]
    return torch.where(first.isnan(), first, torch.where(numbers.isnan(), math.inf, numbers)).min().item()


def of_accumulate(numbers: Any, initial: Any) -> Any:
    """``itertools.accumulate(numbers, initial=initial)``, of the ``tolist()`` of a tensor; ``initial``: 0 or None."""
    sums = numbers.origin.long().cumsum(0)
    sums = sums if initial is None else torch.nn.functional.pad(sums, (1, 0))
    return Once(sums.size(0), lambda i: sums[i].item(), itertools.accumulate, False, sums)


def of_cut(numbers: Any) -> Any:
    """The entries of such a list without its first or last ones, as a tensor."""
    entries, first, last = numbers.cut
    entries = entries[first:] if first else entries
    return entries[:-last] if last else entries


def in_front(numbers: Any, more: Any) -> Any:
    """``[0] + numbers``, of the ``tolist()`` of a tensor, or of such a list without its first or last entry."""
    entries, first, last = numbers.cut or (numbers.origin, 0, 0)
    entries = entries.long()[first:] if first else entries.long()
    if more == [0]:
        joined = of_tolist(torch.nn.functional.pad(entries, (1, 0)))
    else:
        joined = of_tolist(torch.cat((*[entries.new_full((1,), n) for n in more], entries)))
    return joined[:-1] if last else joined


def behind(numbers: Any, more: Any) -> Any:
    """``numbers + [total]`` of such a list; a number that a tensor of one entry holds is given as that."""
    entries, first, last = numbers.cut or (numbers.origin, 0, 0)
    entries = entries.long()[:-1] if last else entries.long()
    ends = [n.long() if isinstance(n, torch.Tensor) else entries.new_full((1,), n) for n in more]
    joined = of_tolist(torch.cat((entries, *ends)))
    return joined[1:] if first else joined


def up_to(boundaries: Any, documents: Any) -> Any:
    """The boundaries of the first documents."""
    return boundaries.narrow(0, 0, documents + 1)
