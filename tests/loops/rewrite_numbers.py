"""Loops that must be rewritten: lists of lengths of what documents were cut into, and what Python finds out about them
(`packpass.capture.tallies`, `packpass.capture.joins`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def lengths_of_parts(x: Tensor, cu: Tensor) -> Any:
    parts = [x[cu[i] : cu[i + 1]] for i in range(len(cu) - 1)]
    lengths = [len(part) for part in parts]
    row = torch.cat([part * 2 for part in parts])
    return torch.cat([part.flip(0) for part in row.split(lengths)]), torch.tensor(lengths)


@program("f[T,3] cu")
def lengths_appended_beside_parts(x: Tensor, cu: Tensor) -> Any:
    parts, lengths = [x[:0]], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        parts.append(part.flip(0))
        lengths.append(part.shape[0])
    return torch.cat(parts), torch.tensor(lengths, dtype=torch.int64).cumsum(0)


@program("f[T,3] cu")
def lengths_times_parts(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    lengths, out = [part.size(0) for part in parts], [x[:0]]
    for part, length in zip(parts, lengths):
        out.append(part * length)
    return torch.cat(out)


@program("f[T,3] cu", tail=False, reads=1)
def padded_to_the_largest_of_a_generator(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    longest = max(len(part) for part in parts)
    return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])


@program("f[T,3] cu", tail=False, reads=1)
def padded_to_the_largest_of_a_map(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    longest = max(map(len, parts))
    return torch.stack([F.pad(part, (0, 0, 0, longest - len(part))) for part in parts])


@program("f[T,3] cu", tail=False, reads=1)
def all_of_a_generator(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    assert all(s <= e for s, e in zip(bounds[:-1], bounds[1:])), "boundaries must not decrease"
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T,3] cu", tail=False, reads=1)
def any_of_a_generator(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if any(length > 10_000 for length in lengths):
        raise ValueError(f"a document of {max(lengths)} tokens")
    return torch.cat([part.cumsum(0) for part in x.split(lengths)])


@program("i[T] cu")
def positions_by_extend(ids: Tensor, cu: Tensor) -> Tensor:
    positions: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
    return torch.tensor(positions, dtype=torch.int64)


@program("i[T] cu")
def positions_by_lists(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    positions: list[int] = []
    places: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(list(range(e - s)))
        places += list(range(s, e))
    return torch.tensor(positions, dtype=torch.int64), ids[torch.tensor(places, dtype=torch.int64)]


@program("i[T] cu")
def count_of_positions(ids: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    positions: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        positions.extend(range(e - s))
    return torch.tensor(positions, dtype=torch.int64) + len(positions), len(positions)


@program("i[T] cu", tail=False, depends=False)
def count_of_listed_positions(ids: Tensor, cu: Tensor) -> Tensor:
    positions = [i for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) for i in range(s, e)]
    assert len(positions) <= len(ids)
    return ids[: len(positions)] * 2


@program("i[T] cu", tail=False)
def ids_for_every_number(ids: Tensor, cu: Tensor) -> Tensor:
    every = [i for i, n in enumerate(cu.diff().tolist()) for _ in range(n)]
    return ids + torch.tensor(every, dtype=torch.int64)


@program("i[T] cu", depends=False)
def one_number_for_all(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    ones = [1 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) for _ in range(s, e)]
    return torch.tensor(ones, dtype=torch.int32), ids + 1


@program("f[T] cu", tail=False, rule="ragged_grids")
def doubled_numbers(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    at = [2 * i for s, e in zip(bounds[:-1], bounds[1:]) for i in range(s, e, 2)]
    return x.sum() + torch.tensor(at)


@program("i[T] cu", tail=False)
def numbers_worked_out(ids: Tensor, cu: Tensor) -> Tensor:
    """Of a document's number, its length and the number of a slot."""
    lengths = enumerate(cu.diff().tolist())
    found = [(n - 1 - j) // 2 * 10 + (j - 3) % 4 - i for i, n in lengths for j in range(n)]
    return ids * torch.tensor(found, dtype=torch.int64)


@program("f[T,2] cu", tail=False)
def slots_by_listed_numbers(x: Tensor, cu: Tensor) -> Tensor:
    """Every slot takes the first one of its document."""
    first = [s for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) for _ in range(e - s)]
    return x - x[torch.tensor(first, dtype=torch.int64)]


# === A number of the document for each of its slots ==========================================================


@program("i[T] cu", tail=False)
def document_ids_by_extend(ids: Tensor, cu: Tensor) -> Tensor:
    own: list[int] = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        own.extend([i] * (e - s))
    return ids * 100 + torch.tensor(own, dtype=torch.int64)


@program("i[T] cu")
def document_ids_beside_positions(ids: Tensor, cu: Tensor) -> dict[str, Tensor]:
    own, positions = [], []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        own += [i + 1] * (e - s)
        positions += range(e - s)
    return {"own": torch.tensor(own, dtype=torch.int64), "positions": torch.tensor(positions, dtype=torch.int64)}


@program("f[T] cu", tail=False)
def lengths_for_each_slot(x: Tensor, cu: Tensor) -> Tensor:
    lengths: list[int] = []
    for n in cu.diff().tolist():
        lengths.extend(n * [n])
    return x * torch.tensor(lengths, dtype=x.dtype)


@program("i[T] cu", depends=False)
def how_many_ones(ids: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    ones: list[int] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ones += [1] * (e - s)
    return torch.tensor(ones, dtype=torch.int64)[None], len(ones)
