"""Loops that must be rewritten: lists of documents that leave the graph, and aranges from a number of the document."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


class Named(NamedTuple):
    part: Tensor
    slots: int


@dataclasses.dataclass
class Outputs:
    hidden: list[Tensor]


@program("f[T,3] cu", tail=False, exact=False)
def parts_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for i in range(len(cu) - 1):
        out.append(torch.softmax(x[cu[i] : cu[i + 1]], 0))
    return out


@program("f[T,3] cu", tail=False, exact=False)
def sums_returned_beside_their_total(x: Tensor, cu: Tensor) -> dict[str, Any]:
    losses, total = [], torch.zeros(())
    for s, e in pairwise(cu.tolist()):
        loss = x[s:e].square().sum()
        total = total + loss
        losses.append(loss.detach())
    return {"total": total, "losses": losses, "lengths": cu.diff().tolist()}


@program("f[3,T] cu", tail=False)
def columns_returned(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    return tuple(x[:, s:e] * 2 for s, e in pairwise(cu.tolist()))


@program("f[2,T] cu")
def list_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[:, s:e].roll(-1, -1) for s, e in zip(cu[:-1], cu[1:])]


@program("f[T,3] cu", tail=False)
def two_entries_of_each_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for s, e in pairwise(cu.tolist()):
        out.append(x[s:e].flip(0))
        out.append(x[s:e].sum(0))
    return out


@program("f[T,3] cu", tail=False)
def dicts_returned(x: Tensor, cu: Tensor) -> list[dict[str, Any]]:
    return [{"x": x[s:e] + 1, "sum": x[s:e].sum(0), "n": e - s, "kind": "d"} for s, e in pairwise(cu.tolist())]


@program("f[T,3] cu", tail=False)
def named_tuples_returned(x: Tensor, cu: Tensor) -> list[Named]:
    return [Named(x[s:e] - 1, e - s) for s, e in pairwise(cu.tolist())]


@program("f[T,3] cu", tail=False)
def without_the_empty_ones_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for s, e in pairwise(cu.tolist()):
        if e == s:
            continue
        out.append(x[s:e] * 3)
    return out


@program("f[T,3] cu", tail=False)
def means_of_long_ones_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for s, e in pairwise(cu.tolist()):
        if e - s > 2:
            out.append(x[s:e].mean(0))
    return out


@program("f[T,3] f[1,3] cu", tail=False)
def longer_ones_returned(x: Tensor, start: Tensor, cu: Tensor) -> list[Tensor]:
    return [torch.cat((start, x[s:e])) for s, e in pairwise(cu.tolist())]


@program("f[T,3] f[1,3] cu", tail=False)
def computed_on_longer_ones_returned(x: Tensor, start: Tensor, cu: Tensor) -> list[Tensor]:
    return [torch.cat((start, x[s:e])).relu() * 2 for s, e in pairwise(cu.tolist())]


@program("f[T,3] cu", tail=False)
def every_other_slot_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[s:e][::2] * 2 for s, e in pairwise(cu.tolist())]


@program("f[T,3] f[2,3] cu", tail=False)
def returned_among_others(x: Tensor, other: Tensor, cu: Tensor) -> list[Tensor]:
    out = [other]
    for s, e in pairwise(cu.tolist()):
        out.append(x[s:e].flip(0))
    out.append(other)
    return out


@program("f[T,3] cu", tail=False)
def twice_returned_and_joined(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].cumsum(0) for s, e in pairwise(cu.tolist())]
    return parts, {"again": parts}, torch.cat(parts)


@program("f[T,3] cu", tail=False)
def written_while_its_own(x: Tensor, cu: Tensor) -> list[Tensor]:
    out = []
    for s, e in pairwise(cu.tolist()):
        part = x[s:e] * 2
        part[:, 0] = 1
        out.append(part)
    return out


@program("f[T,3] cu", tail=False)
def looped_over_again_and_returned(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].flip(0) for s, e in pairwise(cu.tolist())]
    return [part * 2 for part in parts], parts


@program("f[T,3] cu", tail=False)
def views_of_an_input_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[s:e] for s, e in pairwise(cu.tolist())]


@program("f[T,3] cu", tail=False)
def views_of_views_returned(x: Tensor, cu: Tensor) -> Any:
    y = x.sin()
    return [y[s:e].unsqueeze(0).transpose(1, 2) for s, e in pairwise(cu.tolist())], y


@program("f[T,4] cu", tail=False)
def halves_returned(x: Tensor, cu: Tensor) -> Any:
    return [x[s:e].chunk(2, -1) for s, e in pairwise(cu.tolist())]


@program("f[3,T] cu", tail=False)
def contiguous_or_not_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    """One document that is the whole row is no copy."""
    return [x[:, s:e].contiguous() for s, e in pairwise(cu.tolist())]


@program("f[T,3] cu", tail=False)
def parts_of_a_split_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [part[1:] for part in x.split(cu.diff().tolist())]


@program("f[T,3] cu", tail=False, exact=False)
class Towers(nn.Module):
    """What leaves in an object, and on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor, cu: Tensor) -> list[Tensor]:
        outputs = Outputs([self.inner(x[s:e]).softmax(0) for s, e in pairwise(cu.tolist())])
        self.kept = [x[s:e].flip(0) for s, e in pairwise(cu.tolist())]
        return [*outputs.hidden] if not self.kept else outputs.hidden


@program("i[T] cu", tail=False)
def positions_returned(x: Tensor, cu: Tensor) -> Any:
    spans = list(pairwise(cu.tolist()))
    return [torch.arange(e - s) for s, e in spans], [F.one_hot(x[s:e] % 3, 3) for s, e in spans]


# ---------------------------------------------------------------- aranges from a number of the document


@program("i[N] cu", tail=False)
def positions_behind_a_prefix(prefix: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(p, p + n) for p, n in zip(prefix, cu.diff())])


@program("i[N] cu", tail=False)
def positions_behind_listed_prefixes(prefix: Tensor, cu: Tensor) -> Tensor:
    out: list[int] = []
    for p, n in zip(prefix.tolist(), cu.diff().tolist()):
        out.extend(range(p, p + n))
    return torch.tensor(out)


@program("i[N] f[T,3] cu", tail=False, graphs=3)
def scaled_by_positions_behind_a_prefix(prefix: Tensor, x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        first = prefix[i].item()
        out[s:e] = x[s:e] * torch.arange(first + 1, first + 1 + e - s, dtype=torch.float32)[:, None]
    return out


@program("i[N] cu", tail=False, graphs=3)
def positions_from_the_next_begin(prefix: Tensor, cu: Tensor) -> Tensor:
    """Not the document's own begin, though an entry of its boundaries."""
    out = []
    for s, e in pairwise(cu.tolist()):
        out.append(torch.arange(e, e + e - s) - prefix[0])
    return torch.cat(out)


# ---------------------------------------------------------------- rows of documents, looked up by their slots


@program("f[N,90,2] i[T] cu", tail=False, graphs=3, exact=False)
def places_of_each_row(table: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([table[i, places[s:e]] * 2 for i, (s, e) in enumerate(pairwise(cu.tolist()))])


@program("f[N,90,2] i[T] cu", tail=False, graphs=3, exact=False)
def places_of_each_row_behind_a_colon(table: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(places.shape[0], 2)
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        out[s:e] = table[i, places[s:e], :]
    return out


@program("i[N,40] f[90,2] cu", tail=False, graphs=3, exact=False)
def blocks_of_a_cache(blocks: Tensor, cache: Tensor, cu: Tensor) -> Tensor:
    """As attention on paged caches looks them up."""
    out = []
    for i in range(len(cu) - 1):
        slots = torch.arange(cu[i + 1] - cu[i])
        out.append(cache[blocks[i, slots // 2]])
    return torch.cat(out)


@program("f[T,90] i[T] cu", tail=False, exact=False)
def entries_of_a_sum(x: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].sum(0)[places[s:e]] for s, e in pairwise(cu.tolist())])


# ---------------------------------------------------------------- padded in front to the longest


@program("f[T,3] cu", tail=False, reads=1)
def padded_in_front_by_zeros(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    width = max(part.shape[0] for part in parts)
    return torch.stack([torch.cat((torch.zeros((width - len(part), 3)), part)) for part in parts])


@program("i[T] cu", tail=False, reads=1)
def padded_behind_by_a_number(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    width, out = max(lengths), []
    for part in x.split(lengths):
        out.append(torch.cat((part, part.new_full((width - part.shape[0],), -100))))
    return torch.stack(out)
