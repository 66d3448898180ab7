"""Look-alikes of lists of documents that leave the graph, and of aranges from a number of the document."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave


@leave("f[T,3] f[2,3] cu", tail=False, why="all entries are one tensor")
def one_tensor_for_all_returned(x: Tensor, w: Tensor, cu: Tensor) -> Any:
    outs, same = [], []
    mask = w * 2
    for s, e in pairwise(cu.tolist()):
        outs.append(x[s:e].cumsum(0))
        same.append(mask)
    return torch.cat(outs), same


@leave("f[T,3] cu", tail=False, why="the entries of two lists share memory")
def views_of_other_entries_returned(x: Tensor, cu: Tensor) -> Any:
    outs, views = [], []
    for s, e in pairwise(cu.tolist()):
        part = x[s:e].cumsum(0)
        outs.append(part)
        views.append(part[None])
    return outs, views


@leave("f[T,3] cu", tail=False, why="the same entries in two lists")
def entries_of_two_lists_returned(x: Tensor, cu: Tensor) -> Any:
    outs, again = [], []
    for s, e in pairwise(cu.tolist()):
        part = x[s:e].cumsum(0)
        outs.append(part)
        again.append(part)
    return outs, again


@leave("f[T,3] cu", tail=False, why="the entries are those of an earlier list")
def entries_of_an_earlier_list_returned(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].flip(0) for s, e in pairwise(cu.tolist())]
    return parts, [part[1:] for part in parts], [part for part in parts]


@leave("f[T,3] cu", tail=False, why="without training, dropout gives what it got")
def no_dropout_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [F.dropout(x[s:e], 0.5, False) for s, e in pairwise(cu.tolist())]


@leave("f[T,3] cu", tail=False, why="what the views are of is written behind the loop")
def views_of_what_is_written_returned(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = [y[s:e] for s, e in pairwise(cu.tolist())]
    y.mul_(3)
    return out


@leave("f[T,3] cu", tail=False, mutates=True, why="what the views are of is written in the loop")
def views_of_a_written_input_returned(x: Tensor, cu: Tensor) -> Any:
    out = []
    for s, e in pairwise(cu.tolist()):
        x[s:e] *= 2
        out.append(x[s:e])
    return out


@leave("f[T,3] cu", tail=False, why="a document of its own is asked for as well")
def first_and_all_returned(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].flip(0) for s, e in pairwise(cu.tolist())]
    return parts, parts[0]


@leave("f[T,3] cu", tail=False, why="squares have two sizes of their own")
def squares_returned(x: Tensor, cu: Tensor) -> list[Tensor]:
    return [x[s:e] @ x[s:e].T for s, e in pairwise(cu.tolist())]


@leave("f[T,3] cu", tail=False, why="numbers in floating point")
def floats_returned(x: Tensor, cu: Tensor) -> list[float]:
    return [x[s:e].sum().item() for s, e in pairwise(cu.tolist())]


@leave("f[T,3] cu", tail=False, why="the program's own list grows")
def appended_to_a_given_list(x: Tensor, cu: Tensor) -> Any:
    def fill(given: list[Tensor]) -> None:
        for s, e in pairwise(cu.tolist()):
            given.append(x[s:e] * 2)
        given[0].add_(1)

    held: list[Tensor] = []
    fill(held)
    return held


@leave("f[T,3] cu", tail=False, why="an entry is written behind the graph")
def written_behind_the_graph(x: Tensor, cu: Tensor) -> Any:
    parts = [x[s:e].flip(0) for s, e in pairwise(cu.tolist())]
    row = torch.cat(parts)
    torch._dynamo.graph_break()
    parts[-1].mul_(2)
    return parts, row, x * 2


@leave("i[N] cu", tail=False, why="the numbers fall")
def falling_positions_behind_a_prefix(prefix: Tensor, cu: Tensor) -> Tensor:
    out = []
    for p, n in zip(prefix.tolist(), cu.diff().tolist()):
        out.append(torch.arange(p + n, p, -1))
    return torch.cat(out)


@leave("i[N] cu", tail=False, why="more numbers than slots")
def one_position_more_behind_a_prefix(prefix: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(p, p + n + 1) for p, n in zip(prefix.tolist(), cu.diff().tolist())])


@leave("i[N] cu", tail=False, why="half precision counts in another way")
def half_positions_behind_a_prefix(prefix: Tensor, cu: Tensor) -> Tensor:
    out = []
    for p, n in zip(prefix.tolist(), cu.diff().tolist()):
        out.append(torch.arange(p + 300, p + 300 + n, dtype=torch.bfloat16))
    return torch.cat(out)


# ---------------------------------------------------------------- rows of documents, looked up by their slots


@leave("f[N,4,90] i[T] cu", tail=False, why="the slots' dimension comes first behind a colon")
def places_behind_a_colon(table: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([table[i][:, places[s:e]].T for i, (s, e) in enumerate(pairwise(cu.tolist()))])


@leave("f[T,90] i[T,2] cu", tail=False, why="several places for each slot")
def several_entries_of_a_sum(x: Tensor, places: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].sum(0)[places[s:e]] for s, e in pairwise(cu.tolist())])


@leave("f[N,90] i[T] f[T] cu", tail=False, why="slots are written into a row of the document")
def places_of_each_row_written(table: Tensor, places: Tensor, x: Tensor, cu: Tensor) -> Tensor:
    rows = table * 2
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        rows[i, places[s:e]] = x[s:e]
    return rows


@leave("f[N,90] cu", tail=False, why="one slot of each row is written through a view")
def one_place_of_each_row_written(table: Tensor, cu: Tensor) -> Tensor:
    rows = table * 2
    for i, n in enumerate(cu.diff().tolist()):
        rows[i, n] = 9
    return rows


@leave("f[N,90,2] i[T] cu", tail=False, why="the row is written between two lookups")
def row_written_between_lookups(table: Tensor, places: Tensor, cu: Tensor) -> Any:
    rows, out = table * 2, []
    for i, (s, e) in enumerate(pairwise(cu.tolist())):
        first = rows[i, places[s:e]]
        rows[i] *= 3
        out.append(first + rows[i, places[s:e]])
    return torch.cat(out), rows


@leave("f[T,3] cu", tail=False, why="the width is less than a document")
def padded_to_less_than_the_longest(x: Tensor, cu: Tensor) -> Tensor:
    parts = x.split(cu.diff().tolist())
    width = max(part.shape[0] for part in parts)
    return torch.cat([torch.cat((torch.zeros((width + 1 - len(part), 3)), part)) for part in parts])


# ---------------------------------------------------------------- what was made in another way than it is made again


@leave("f[T,3] cu", tail=False, why="views without gradients")
def views_without_gradients_returned(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        out = [y[s:e].unsqueeze(0) for s, e in pairwise(cu.tolist())]
    return out, y * 3


@leave("f[T,3] cu", tail=False, why="parts without gradients")
def parts_without_gradients_returned(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        out = y.split(cu.diff().tolist())
    return out, y * 3


@leave("f[T,3] cu", tail=False, why="the graph ends without gradients")
def entries_with_gradients_where_the_graph_ends(x: Tensor, cu: Tensor) -> Any:
    out = [x[s:e] * 2 for s, e in pairwise(cu.tolist())]
    sums = [x[s:e].sum(0) for s, e in pairwise(cu.tolist())]
    with torch.no_grad():
        torch._dynamo.graph_break()
    return out, sums


@leave("f[T,3] cu", tail=False, why="a subscript that copies, in two lists")
def copies_in_two_lists_returned(x: Tensor, cu: Tensor) -> Any:
    a, b = [], []
    for s, e in pairwise(cu.tolist()):
        y = x[s:e][:, [0, 1]]
        a.append(y)
        b.append(y[:, :1])
    return a, b


@leave("f[T,3] cu", tail=False, why="what may be a copy, in two lists")
def copies_or_views_in_two_lists_returned(x: Tensor, cu: Tensor) -> Any:
    a, b = [], []
    for s, e in pairwise(cu.tolist()):
        y = x[s:e].T.reshape(-1)
        a.append(y)
        b.append(y[:1])
    return a, b


@leave("f[T,3] cu", tail=False, why="the parts as a tuple and as a list")
def parts_twice_returned(x: Tensor, cu: Tensor) -> Any:
    parts = x.split(cu.diff().tolist())
    return parts, list(parts)


@leave("i[T] cu", tail=False, why="a list that is made of a tuple")
def list_of_a_tuple_of_numbers(x: Tensor, cu: Tensor) -> Any:
    ends = tuple(cu.tolist())
    return x * 2, list(ends), ends


@leave("f[T,3] cu", tail=False, why="copies of a row that is written behind the loop")
def copies_of_what_is_written_behind_the_loop(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = [y[s:e].T.reshape(-1) for s, e in pairwise(cu.tolist())]
    y.mul_(3)
    return out, y


@leave("f[3,T] cu", tail=False, why="copies of a row that is written behind the loop")
def contiguous_parts_of_what_is_written_behind_the_loop(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = [y[:, s:e].contiguous() for s, e in pairwise(cu.tolist())]
    y.mul_(3)
    return out, y


# Shapes that are changed in place behind a loop: torch notes the last one.


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the row is turned behind the loop")
def row_turned_behind_the_loop(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = torch.cat([y[s:e] * 3 for s, e in pairwise(cu.tolist())])
    y.t_()
    return out, y


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the row is turned behind the loop")
def row_of_sums_turned_behind_the_loop(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = torch.stack([y[s:e].sum(0) for s, e in pairwise(cu.tolist())])
    y.t_()
    return out, y


@leave("f[T,3] cu", tail=False, why="the row gets an axis behind the loop")
def row_of_views_that_gets_an_axis(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = [y[s:e, None] for s, e in pairwise(cu.tolist())]
    y.unsqueeze_(0)
    return out, y


@leave("f[T,3] cu", tail=False, why="the row loses its gradient behind the loop")
def row_of_views_that_is_detached(x: Tensor, cu: Tensor) -> Any:
    y = x * 2
    out = [y[s:e] for s, e in pairwise(cu.tolist())]
    y.detach_()
    return out, y
