"""Lists of numbers and conditions of which the program wants more than can be said of all documents at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", tail=False, why="one condition on all documents decides what follows")
def row_doubled_where_all_are_even(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if all(length % 2 == 0 for length in lengths):
        x = x * 2
    return torch.cat([part.flip(0) for part in x.split(lengths)])


@leave("f[T,3] cu", tail=False, why="a list of conditions is gone through")
def conditions_beside_parts(x: Tensor, cu: Tensor) -> Tensor:
    lengths, out = cu.diff().tolist(), []
    long = [length > 4 for length in lengths]
    for part, is_long in zip(x.split(lengths), long):
        out.append(part * 2 if is_long else part)
    return torch.cat(out)


@leave("f[T,3] cu", why="halves are no integers")
def halves_of_lengths(x: Tensor, cu: Tensor) -> Any:
    halves = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        halves.append(len(x[s:e]) / 2)
    return x * 2, halves


@leave("f[T,3] cu", tail=False, why="the generator goes on where the first has found what it looks for")
def generator_in_two_steps(x: Tensor, cu: Tensor) -> Tensor:
    found = (length > 4 for length in cu.diff().tolist())
    first = any(found)
    return x * (2 if first else 1) * (3 + sum(found))


@leave("f[T,3] cu", why="of tuples none is false, whatever their numbers are")
def all_of_tuples(x: Tensor, cu: Tensor) -> Tensor:
    return x * (2 if all((s, e) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())) else 3)


@leave("f[T,3] cu", why="which document has the largest sum decides about the gradient")
def largest_of_tensors(x: Tensor, cu: Tensor) -> Tensor:
    return x * max([x[:0].sum(), *(x[s:e].sum() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()))])


@leave("f[T,3] cu", tail=False, why="the condition decides what follows")
def row_doubled_where_any_is_odd(x: Tensor, cu: Tensor) -> Tensor:
    if any(length % 2 for length in cu[1:] - cu[:-1]):
        x = x * 2
    return torch.cat([x[cu[i] : cu[i + 1]].flip(0) for i in range(len(cu) - 1)])


@leave("f[T,3] cu", why="the list is asked how long it is")
def length_of_positions(x: Tensor, cu: Tensor) -> Tensor:
    positions: list[int] = []
    count = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
        count = len(positions)
    return x * count


@leave("f[T,3] cu", why="each document has a list of its own")
def length_of_own_positions(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own: list[int] = []
        own.extend(range(e - s))
        own += list(range(e - s))
        out[s:e] = x[s:e] * len(own)
    return out


@leave("f[T,3] cu", why="tokens are gone through one by one")
def tokens_counted_one_by_one(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        for i in range(e - s):
            parts.append(x[s + i : s + i + 1] * i)
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, why="positions are returned as a list")
def positions_as_a_list(x: Tensor, cu: Tensor) -> Any:
    positions: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
        positions.append(0)
    return positions, x * 2


@leave("f[T,3] cu", refusal=True, why="whether there are any positions is asked")
def branch_on_whether_there_are_positions(x: Tensor, cu: Tensor) -> Tensor:
    positions: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
    return x * 2 if positions else x


@leave("f[T,3] cu", refusal=True, why="the last position of all is read")
def last_of_all_positions(x: Tensor, cu: Tensor) -> Tensor:
    positions = [-1]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
    return x * positions[-1]


@leave("f[T,3] cu", refusal=True, why="of an empty document there are no numbers, and not one fewer")
def positions_but_the_last(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    positions: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s - 1))
    return torch.tensor(positions, dtype=torch.int64), x * 2


@leave("f[T,3] cu", refusal=True, why="of an empty document there are no numbers, and not one fewer")
def listed_positions_but_the_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    positions = [i for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) for i in range(s + 1, e)]
    return torch.tensor(positions, dtype=torch.int64), x * 2


@leave("f[T] cu", tail=False, refusal=True)
def a_number_less_than_the_document_has_slots(x: Tensor, cu: Tensor) -> Tensor:
    """An empty document has one entry, too."""
    mask: list[int] = []
    for n in cu.diff().tolist():
        mask += [1] * (n - 1) + [0]
    return torch.tensor(mask)


@leave("f[T] cu", tail=False, refusal=True)
def two_numbers_for_each_slot(x: Tensor, cu: Tensor) -> Tensor:
    own: list[int] = []
    for i, n in enumerate(cu.diff().tolist()):
        own += [i, -1] * n
    return torch.tensor(own)


@leave("f[T] cu", tail=False, refusal=True)
def repeated_and_looked_at(x: Tensor, cu: Tensor) -> Tensor:
    own: list[int] = []
    for i, n in enumerate(cu.diff().tolist()):
        mine = [i] * n
        own.extend(mine)
        own.append(len(mine))
    return torch.tensor(own)


@leave("f[T] cu", tail=False, refusal=True)
def a_weight_for_each_slot(x: Tensor, cu: Tensor) -> Tensor:
    weights: list[float] = []
    for n in cu.diff().tolist():
        weights += [1 / max(n, 1)] * n
    return x * torch.tensor(weights)
