"""Look-alikes of lists of documents and of numbers, and of numbers that are worked out: right, whatever becomes of
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .harness import leave
from .rewrite_lists import jagged, parts_of_the_longest

# ---------------------------------------------------------------- jagged tensors


@leave("f[3,T] cu", tail=False, min_len=1, why="torch takes the dimension that differs, which may be another one")
def jagged_along_the_second(x: Tensor, cu: Tensor) -> Any:
    return jagged([x[:, s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False, must_refuse=True, why="the jagged tensor lacks the documents that are skipped")
def jagged_without_short_documents(x: Tensor, cu: Tensor) -> Any:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        parts.append(x[s:e].cumsum(0))
    return jagged([*parts, x[:1]])


@leave("f[T] cu", tail=False, why="another entry follows")
def jagged_with_one_more(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].flip(0) for s, e in zip(cu[:-1], cu[1:])]
    parts.append(x[:2])
    return jagged(parts)


# ---------------------------------------------------------------- lengths as parts of the longest

PARTS: dict[str, Any] = dict(wrap=parts_of_the_longest, tail=False, min_len=1, exact=False)


@leave("f[N,T] cu", must_refuse=True, why="the number is made of two tensors", **PARTS)
def parts_of_two(x: Tensor, parts: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        n = int(torch.round(parts[i] * x.shape[1] * parts[0].sign()))
        out.append(x[i, :n].mean())
    return torch.stack(out)


@leave("f[N,T] cu", must_refuse=True, why="every document changes the part of the next", **PARTS)
def parts_changed_on_the_way(x: Tensor, parts: Tensor) -> Tensor:
    out, parts = [], parts.clone()
    for i in range(x.shape[0]):
        n = int(torch.round(parts[i] * x.shape[1]))
        parts[i:] = parts[i:].clamp(max=0.5)
        out.append(x[i, :n].sum())
    return torch.stack(out)


@leave("f[N,T] cu", must_refuse=True, why="all documents go by the first entry", **PARTS)
def parts_of_the_first(x: Tensor, parts: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        n = int(torch.round(parts[0] * x.shape[1]))
        out[i, :n] = x[i, :n] * (i + 1)
    return out


@leave("f[N,T] cu", why="no document is cut by the number", **PARTS)
def parts_as_numbers(x: Tensor, parts: Tensor) -> Tensor:
    out = x.clone()
    for i in range(x.shape[0]):
        out[i] = x[i] * int(torch.round(parts[i] * 10))
    return out


# ---------------------------------------------------------------- rows of numbers


@leave("f[T] cu", tail=False, min_len=1, why="numpy is told to look along the other side")
def largest_of_each_row(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    widths = np.max([(part.shape[0], 1) for part in parts], 1)
    return x.new_zeros(int(widths.sum())) + x.sum()


@leave("f[T] cu", tail=False, min_len=1, why="a row holds what is no number")
def rows_of_numbers_and_names(x: Tensor, cu: Tensor) -> Tensor:
    rows = [(f"document {i}", n) for i, n in enumerate(cu.diff().tolist())]
    return torch.cat([x.new_full((n,), float(len(name))) for name, n in rows])


@leave("f[T] cu", tail=False, min_len=1, why="the second entry of the list, which not every batch has")
def second_part(x: Tensor, cu: Tensor) -> Any:
    parts = x.split(cu.diff().tolist())
    joined = torch.cat([part.flip(0) for part in parts])
    return joined, parts[1] if len(parts) > 1 else joined


# ---------------------------------------------------------------- pieces of documents


@leave("f[T] cu", tail=False, must_refuse=True, why="a short document has fewer pieces, and its last is another one")
def last_of_three_pieces(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]].chunk(3)[-1] for i in range(len(cu) - 1)])


@leave("f[T] cu", tail=False, must_refuse=True, why="however many pieces there are, all are taken")
def pieces_in_a_loop(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        for piece in x[s:e].chunk(3):
            parts.append(piece.flip(0))
    return torch.cat(parts)


@leave("f[T] cu", tail=False, must_refuse=True, why="the length of a piece is used as a number")
def size_of_the_first_piece(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum() * x[s:e].chunk(3)[0].shape[0])
    return torch.stack(out)


@leave("i[T] cu", tail=False, must_refuse=True, why="the row is changed before the pieces are joined")
def pieces_of_a_row_that_changes(x: Tensor, cu: Tensor) -> Tensor:
    row, parts = x.clone(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(row[s:e].chunk(2)[0])
    row.mul_(2)
    return torch.cat(parts)


@leave("i[T] cu", tail=False, must_refuse=True, why="a piece is written to")
def first_piece_is_cleared(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e].chunk(2)[0].zero_()
    return out


@leave("f[T] cu", tail=False, min_len=2, lead_empty=False, why="a document of odd length has three such parts")
def parts_by_length_backwards(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat(x[s:e].split((e - s) // 2)[::-1]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False, min_len=2, lead_empty=False, why="the first part is no longer than the others")
def first_part_by_length(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].split((e - s) // 2)[0] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False, min_len=2, lead_empty=False, why="the first part is no longer than the others")
def first_part_by_length_turned_round(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]].split((cu[i + 1] - cu[i]) // 2)[0].flip(0) for i in range(len(cu) - 1)])


@leave("f[T] cu", tail=False, min_len=2, lead_empty=False, why="the parts are counted")
def number_of_parts_by_length(x: Tensor, cu: Tensor) -> Tensor:
    counts = [len(x[s:e].split((e - s) // 2)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return x * sum(counts)


@leave("f[T] cu", tail=False, min_len=2, lead_empty=False, why="two parts of a document of odd length are not all")
def halves_by_length(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        first, second, *_ = x[s:e].split(x[s:e].shape[0] // 2)
        out.append(torch.cat((second, first)))
    return torch.cat(out)


@leave("f[T] f[2,6] cu", tail=False, why="the numbers of the list are no lengths: all are one")
def list_of_one_number(x: Tensor, image: Tensor, cu: Tensor) -> Tensor:
    widths = [image.shape[1] for _ in cu.diff().tolist()]
    return x + sum(widths)


# ---------------------------------------------------------------- numbers that Python counts through


@leave("f[T] cu", tail=False, min_len=1, why="a fraction of each number is no number of a range")
def halves_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    return x + torch.tensor([i / 2 for n in cu.diff().tolist() for i in range(n)])


@leave("f[T] cu", tail=False, min_len=1, refusal=True, why="two numbers for each")
def pairs_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    return x + torch.tensor([[k, i] for k, n in enumerate(cu.diff().tolist()) for i in range(n)]).sum(1)


@leave("f[T] cu", tail=False, min_len=1, refusal=True, why="a tensor for each number, as often")
def tensors_for_every_number(x: Tensor, cu: Tensor) -> Tensor:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return torch.stack([x[s] for s, e in spans for _ in range(e - s)])


@leave("f[T] cu", tail=False, min_len=1, refusal=True, why="numbers with a point, as often")
def halves_for_every_number(x: Tensor, cu: Tensor) -> Tensor:
    return x + torch.tensor([0.5 for n in cu.diff().tolist() for _ in range(n)])


@leave("f[T] cu", tail=False, must_refuse=True, why="each document asks its own list how long it is")
def own_list_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        numbers = [i for _ in (0,) for i in range(e - s)]
        sums.append(x[s:e].sum() * len(numbers))
    return torch.stack(sums)


@leave("f[T] cu", tail=False, must_refuse=True, why="each document adds them to a list of its own")
def own_list_that_numbers_are_added_to(x: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        numbers = [7]
        numbers += [i + s for _ in (0,) for i in range(e - s)]
        sums.append(x[s:e].sum() * len(numbers))
    return torch.stack(sums)


@leave("f[T] cu", tail=False, why="some numbers are left out")
def even_numbers(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    at = [i for s, e in zip(bounds[:-1], bounds[1:]) for i in range(s, e) if i % 2 == 0]
    return x[torch.tensor(at)]


@leave("f[T] cu", tail=False, why="a statement is run for each number")
def counted_in_a_statement(x: Tensor, cu: Tensor) -> Tensor:
    bounds, out = cu.tolist(), x.clone()
    for s, e in zip(bounds[:-1], bounds[1:]):
        for _ in range(s, e, 2):
            out[s:e] += 1
    return out


@leave("f[T] cu", tail=False, min_len=1, why="the list is asked for how many there are, and for one of them")
def numbers_that_are_looked_at(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    at = [i for s, e in zip(bounds[:-1], bounds[1:]) for i in range(s, e, 2)]
    return x * len(at) + at[0]


@leave("f[T] cu", tail=False, min_len=1, why="the lengths are changed after they were listed")
def tensor_of_numbers_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    made = torch.tensor(lengths)
    made += 100
    return torch.cat([part.flip(0) for part in x.split(lengths)]) + made.sum()


@leave("f[T] f[N] cu", tail=False, why="a weight is read as the number it is, not as an integer")
def weights_read_with_item(x: Tensor, weights: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = x[s:e] * (weights.detach()[i] * 2).item()
    return out


@leave("f[N,T] cu", why="the number is a part, and not a length", **PARTS)
def parts_read_as_they_are(x: Tensor, parts: Tensor) -> Tensor:
    out = x.clone()
    for i in range(x.shape[0]):
        out[i] = x[i] * parts[i].item()
    return out


@leave("f[T,2] cu", must_refuse=True, tail=False, why="of short documents there are fewer pieces")
def pieces_that_are_counted(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum(0) * len(x[s:e].chunk(3)))
    return torch.stack(out)


@leave("f[T] cu", must_refuse=True, tail=False, min_len=1, why="one of the rows in the list is changed")
def row_of_numbers_that_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    spans = [[s, e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    spans[0][1] = 1
    return torch.cat([x[s:e].flip(0) for s, e in spans])


@leave("f[T] cu", must_refuse=True, tail=False, min_len=1, why="a row of the list that a matrix became is changed")
def row_of_a_matrix_that_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    spans = torch.stack([cu[:-1], cu[1:]], 1).tolist()
    spans[0][1] = 1
    return torch.cat([x[s:e].flip(0) for s, e in spans])


@leave("f[T] cu", must_refuse=True, tail=False, min_len=1, why="a list of the list grows")
def pair_of_numbers_that_grows(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    spans = [[s, e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    spans[-1].append(3)
    return torch.cat([x[span[0] : span[1]].flip(0) for span in spans]), len(spans[-1])


@leave("f[T] cu", must_refuse=True, tail=False, min_len=1, why="every list of the list grows")
def pairs_of_numbers_that_grow(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    spans = [[s, e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for span in spans:
        span.append(3)
    return torch.cat([x[span[0] : span[1]].flip(0) for span in spans]), len(spans[-1])


@leave("f[T,2] cu", must_refuse=True, tail=False, why="a list that all documents could share is changed for one")
def names_that_are_added(x: Tensor, cu: Tensor) -> tuple[Tensor, list[str]]:
    rows = [(x[s:e] * 2, ["row"]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for _, names in rows:
        names.append("seen")
    return torch.cat([row for row, _ in rows]), rows[0][1]
