"""Loops that must be rewritten: what is made of lists of documents and of numbers, and numbers that are worked out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .harness import program


def jagged(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    made = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return made.values(), made.offsets()


# ---------------------------------------------------------------- jagged tensors of documents
# Eager notes how long the shortest and the longest document are in them: two numbers that are read.


@program("f[T,3] cu", tail=False, demand=True, reads=2)
def jagged_of_rolled(x: Tensor, cu: Tensor) -> Any:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].roll(1, 0))
    return jagged(parts)


@program("f[T] cu", tail=False, demand=True, reads=2)
def jagged_of_a_comprehension(x: Tensor, cu: Tensor) -> Any:
    return jagged([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)])


@program("f[T,2] cu64", tail=False, demand=True, reads=2)
def jagged_between_two_loops(x: Tensor, cu: Tensor) -> Any:
    """What is made of a list may be looked at again, and its offsets are boundaries."""
    row, offsets = jagged([x[s:e] - x[s:e].mean(0) for s, e in zip(cu[:-1], cu[1:])])
    return torch.cat([row[s:e].flip(0) for s, e in zip(offsets[:-1], offsets[1:])]), offsets


@program("f[T,2] cu", tail=False, demand=True, min_len=1, reads=2)
def jagged_padded_again(x: Tensor, cu: Tensor) -> Tensor:
    """As wide as the longest document."""
    parts = [x[s:e].flip(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged).to_padded_tensor(-1.0)


# ---------------------------------------------------------------- lengths as parts of the longest


def parts_of_the_longest(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.diff() / x.shape[1]


LENGTHS = dict(wrap=parts_of_the_longest, tail=False, demand=True, exact=False, min_len=1, reads=0)


@program("f[N,T,3] cu", **LENGTHS, depends=False)
def mean_of_rounded_parts(x: Tensor, parts: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        n = int(torch.round(parts[i] * x.shape[1]))
        out.append(x[i, 0:n].mean(0))
    return torch.stack(out)


@program("f[N,T] cu", **LENGTHS, depends=False)
def parts_read_with_item(x: Tensor, parts: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(x)):
        n = (parts[i] * x.size(1)).add(0.5).floor().long().item()
        out[i, :n] = x[i, :n].flip(0)
    return out


@program("f[N,T,2] cu", **LENGTHS, depends=False)
def parts_cut_and_joined(x: Tensor, parts: Tensor) -> Tensor:
    """The same numbers in a comprehension, where what is cut is joined."""
    return torch.cat([x[i, : int(torch.round(parts[i] * x.shape[1]))] * 2 for i in range(x.size(0))])


@program("f[N,T] cu", **LENGTHS, depends=False)
def parts_as_a_bound(x: Tensor, parts: Tensor) -> Tensor:
    """A tensor stands for the number in a slice."""
    out = []
    for i in range(x.shape[0]):
        n = (parts[i] * x.shape[1]).round().long()
        out.append(x[i, :n].sum())
    return torch.stack(out)


# ---------------------------------------------------------------- rows of numbers, and numpy over them


@program("f[T,2] cu", tail=False, demand=True, min_len=1, reads=2)
def padded_to_the_largest_shape(x: Tensor, cu: Tensor) -> Tensor:
    parts = list(x.split(cu.diff().tolist()))
    shape = np.max([part.shape for part in parts], 0).tolist()
    out = torch.full((len(parts), *shape), -1.0, dtype=parts[0].dtype)
    for i, part in enumerate(parts):
        out[i][slice(0, part.shape[0]), slice(0, part.shape[1])] = part
    return out


@program("f[T] cu", tail=False, demand=True, min_len=1)
def padded_to_the_longest_by_numpy(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    out = x.new_zeros(len(lengths), int(np.max(lengths)))
    for i, (part, n) in enumerate(zip(x.split(lengths), lengths)):
        out[i, :n] = part
    return out


@program("f[T] cu64", tail=False, demand=True)
def array_of_boundaries_is_changed(x: Tensor, cu: Tensor) -> Any:
    """An array that is made of a list has its own memory."""
    bounds = cu.tolist()
    ends = np.asarray(bounds)
    ends += 1
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]), torch.from_numpy(ends), cu + 0


@program("f[T] cu", tail=False, demand=True)
def spans_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    """Pairs of numbers, looped over again."""
    spans = [(s, e) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    out = x.clone()
    for s, e in spans:
        out[s:e] = x[s:e].flip(0)
    return out


# ---------------------------------------------------------------- single parts


@program("f[T] cu", tail=False, demand=True)
def dtype_of_the_first_part(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    out = torch.zeros(x.shape[0], dtype=parts[0].dtype)
    for i, part in enumerate(parts):
        out[cu[i] : cu[i + 1]] = part.cumsum(0)
    return out


@program("f[T,2] cu", tail=False, demand=True, reads=3)
def first_and_last_part(x: Tensor, cu: Tensor) -> Any:
    parts = x.split(cu.diff().tolist())
    return parts[0] * 2, parts[-1].sum(), torch.cat([part.flip(0) for part in parts])


# ---------------------------------------------------------------- pieces of documents of any length


@program("f[2,T] cu", tail=False, demand=True, min_len=2)
def halves_the_other_way_round(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        halves = x[:, s:e].chunk(2, dim=1)
        parts.extend([halves[1], halves[0]])
    return torch.cat(parts, dim=1)


@program("f[T,2] cu", tail=False, demand=True)
def first_of_three_pieces(x: Tensor, cu: Tensor) -> Tensor:
    """There is always a first piece, of documents without slots as well."""
    return torch.cat([torch.chunk(x[cu[i] : cu[i + 1]] * 2, 3)[0] for i in range(len(cu) - 1)])


@program("i[T] cu64", tail=False, demand=True, min_len=2)
def second_half_of_each(ids: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        piece = ids[cu[i] : cu[i + 1]].flip(0).chunk(chunks=2)[1]
        parts.append(piece)
    return torch.cat(parts)


@program("f[T] cu", tail=False, demand=True)
def the_same_piece_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        pieces = x[s:e].chunk(4)
        parts.append(torch.cat([pieces[0], pieces[0]]))
    return torch.cat(parts)


# ---------------------------------------------------------------- numbers made with sizes that all documents share


@program("f[T] f[2,6] cu", tail=False, demand=True, min_len=1, reads=1)
def lengths_with_room_for_more(x: Tensor, image: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    widths = [n + image.shape[1] // 2 for n in lengths]
    out = x.new_zeros(len(lengths), max(widths))
    for i, (n, part) in enumerate(zip(lengths, x.split(lengths))):
        out[i, :n] = part
    return out


@program("f[3*T] f[3,2] cu", tail=False, demand=True)
def lengths_times_a_size(x: Tensor, images: Tensor, cu: Tensor) -> Tensor:
    widths = [len(images) * n for n in cu.diff().tolist()]
    return torch.cat([part.cumsum(0) for part in x.split(widths)])


# ---------------------------------------------------------------- numbers that Python counts through


@program("cu", tail=False, demand=True, depends=False, reads=1)
def boundaries_of_pieces(cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    starts = [i for s, e in zip(bounds[:-1], bounds[1:]) for i in range(s, e, 4)]
    return torch.tensor(starts + [bounds[-1]], dtype=torch.int32)


@program("f[T] cu64", tail=False, demand=True)
def every_third_token(x: Tensor, cu: Tensor) -> Tensor:
    at = torch.tensor([i for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) for i in range(s, e, 3)])
    return x[at] * 2


@program("f[T] cu", tail=False, demand=True, depends=False)
def tokens_by_their_numbers(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    at = [0] + [i for s, e in zip(bounds[:-1], bounds[1:]) for i in range(s, e)]
    return x[torch.tensor(at)]


# ---------------------------------------------------------------- memory: what is made of lists is everybody's own


@program("f[T] cu", tail=False, min_len=1, depends=False)
def stacks_of_one_value(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    largest, most = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        largest.append(x[s:e].amax(0))
        most.append(x[s:e].amax(0))
    return torch.stack(largest), torch.stack(most)


@program("f[T] cu", tail=False, depends=False)
def one_list_stacked_twice(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums = [x[s:e].sum() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    doubled = torch.stack(sums)
    doubled *= 2
    return doubled, torch.stack(sums)


@program("f[T,2] cu", tail=False, depends=False)
def a_part_of_a_stack_is_changed(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sums.append(x[s:e].sum(0))
    pooled = torch.stack(sums)
    pooled[:, 0].mul_(2)
    return pooled, torch.stack(sums, 1)


@program("cu", tail=False, depends=False)
def positions_joined_twice(cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [torch.arange(n) for n in cu.diff().tolist()]
    counted = torch.cat(parts)
    counted += 1
    return counted, torch.cat(parts)


@program("f[T,2] cu", tail=False, depends=False)
def joined_and_stacked(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Seen once each, and nothing is written."""
    ends = [x[s:e].sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    rows = torch.stack(ends)
    return rows * 2, torch.stack(ends, 1).sum(), rows.cumsum(0)


# ---------------------------------------------------------------- torch.tensor of tensors of one number


@program("b[T] cu", min_len=1)
def tensor_of_counts(kept: Tensor, cu: Tensor) -> Tensor:
    counts = []
    for s, e in zip(cu[:-1], cu[1:]):
        counts.append(kept[s:e].sum())
    return torch.tensor(counts) * 2


@program("f[T] cu", min_len=1, tail=False, exact=False)
def tensor_of_means_and_their_stack(x: Tensor, cu: Tensor) -> Any:
    means = [x[s:e].mean() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.tensor(means), torch.tensor(means, dtype=torch.float64), torch.stack(means)


@program("b[T] cu")
def tensor_of_answers(kept: Tensor, cu: Tensor) -> Tensor:
    return torch.tensor([kept[s:e].any() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]).logical_not()


@program("f[T,3] cu", tail=False)
def masks_of_parts_as_wide_as_their_pad(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x[s:e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    return padded, torch.stack([torch.arange(padded.shape[1]) < len(part) for part in parts])
