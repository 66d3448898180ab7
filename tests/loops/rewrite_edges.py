"""Loops that must be rewritten: a document's first or last slots as slices from its boundaries alone, behind a
``continue`` for documents without slots; ranges that count down."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def last_slot_behind_continue(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e:
            continue
        parts.append(x[e - 1 : e] * 2)
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def first_slot_behind_continue(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e <= s:
            continue
        parts.append(x[s : s + 1].exp())
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def differences_behind_the_first(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 1:
            continue
        parts.append(torch.cat([x[s : s + 1], x[s + 1 : e] - x[s : e - 1]]))
    return torch.cat(parts)


@program("i[T] cu", tail=False)
def rolled_by_its_ends(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e:
            continue
        out[s:e] = torch.cat([ids[e - 1 : e], ids[s : e - 1]])
    return out


@program("f[T,3] cu", tail=False)
def read_backwards(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[torch.arange(e - 1, s - 1, -1)] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("i[T] cu", tail=False)
def tokens_that_are_left(ids: Tensor, cu: Tensor) -> Tensor:
    left = torch.zeros_like(ids)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        left[s:e] = torch.arange(e - s, 0, -1)
    return left * (ids > 0)


@program("f[T,3] cu", tail=False)
def selected_backwards(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places = torch.arange(e - 1, s - 1, -1)
        parts.append(x.index_select(0, places) * (places - s)[:, None])
    return torch.cat(parts)


@program("f[T,2] f[N,2] cu", graphs=3)
def row_of_the_length_of_two_others(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    """Torch checks slices against a sum of two sizes, which it computes in one iteration and uses in the next."""
    row = torch.cat([x, y])
    out = torch.zeros_like(row)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = row[s:e].roll(1, 0)
    return out


# ---------------------------------------------------------------- numbers of a part of a document


@program("f[T,3] cu", min_len=1, tail=False)
def places_of_all_but_the_first(x: Tensor, cu: Tensor) -> Tensor:
    places = [torch.arange(cu[i] + 1, cu[i + 1], dtype=torch.long) for i in range(cu.shape[0] - 1)]
    return x[torch.cat(places)] * 2


@program("f[T,3] cu", min_len=1, tail=False)
def places_of_all_but_the_last(x: Tensor, cu: Tensor) -> Tensor:
    places = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        places.append(torch.arange(s, e - 1))
    return x.index_select(0, torch.cat(places))


@program("f[T,3] cu", min_len=1, tail=False)
def weights_of_all_but_the_first(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s + 1 : e] * torch.arange(1, e - s, dtype=x.dtype)[:, None])
        parts.append(x[s : e - 1] * torch.arange(e - s - 1, dtype=x.dtype)[:, None])
    return torch.cat(parts)


@program("f[T,3] cu", min_len=1, tail=False)
def weights_of_the_slots_behind(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s : e - 1] * torch.arange(1, e - s)[:, None] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat(parts)


@program("f[T,3] cu", min_len=1, tail=False)
def steps_within_documents(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        behind = torch.arange(s + 1, e)
        parts.append(x[behind] - x[behind - 1])
    return torch.cat(parts)


@program("f[T,3] cu", min_len=2, tail=False)
def last_two_behind_a_test_for_one(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 1:
            continue
        parts.append(x[e - 2 : e])
    return torch.cat(parts)


@program("cu")
def length_of_the_first_from_its_end(cu: Tensor) -> Tensor:
    offset = cu[1:] - cu[0]
    ids = []
    for i in range(len(offset)):
        n = offset[i] if i == 0 else offset[i] - offset[i - 1]
        ids.append(torch.full((n,), i, dtype=torch.long))
    return torch.cat([*ids, torch.zeros(0, dtype=torch.long)])


@program("cu")
def positions_by_differences_of_ends(cu: Tensor) -> Tensor:
    ends = (cu[1:] - cu[0]).tolist()
    positions = [torch.zeros(0, dtype=torch.long)]
    for i in range(len(ends)):
        n = ends[i] - ends[i - 1] if i > 0 else ends[i]
        positions.append(torch.arange(n))
    return torch.cat(positions)


@program("f[T,3] cu", tail=False)
def length_of_the_last_from_the_row(x: Tensor, cu: Tensor) -> Tensor:
    starts, found = cu[:-1].clone(), []
    for i in range(len(starts)):
        n = starts[i + 1] - starts[i] if i + 1 < len(starts) else x.shape[0] - starts[i]
        found.append(torch.arange(n))
    return torch.cat(found)


@program("f[T,3] cu", tail=False, exact=False, min_len=1)
def last_document_to_the_end_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    starts, found = cu[:-1].tolist(), []
    for i in range(len(starts)):
        if i == len(starts) - 1:
            n = len(x) - starts[i]
        else:
            n = starts[i + 1] - starts[i]
        found.append(x[starts[i] : starts[i] + n].sum(0) / n)
    return torch.stack(found)
