"""Look-alikes of as many slots of each row: cut off by the row's end, of other sizes, of other rows, read before they
are set."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _started(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff() % 9


def _below_zero(x: Tensor, cu: Tensor) -> Args:
    """Numbers that count from the row's end, all of them."""
    return x, cu.diff() % 7 - 12


def _filled(x: Tensor, y: Tensor, cu: Tensor) -> Args:
    return x, y, cu.diff() % 9


@leave("f[N,9] cu", wrap=_started, depends=False, tail=False, why="rows end within some")
def segments_that_rows_cut_off(x: Tensor, starts: Tensor) -> Tensor:
    return torch.cat([x[i, n : n + 4] for i, n in enumerate(starts.tolist())])


@leave("f[N,9] cu", wrap=_started, depends=False, tail=False, why="sums of what rows leave of segments")
def sums_of_segments_that_rows_cut_off(x: Tensor, starts: Tensor) -> Tensor:
    return torch.stack([x[i, n : n + 4].sum() for i, n in enumerate(starts.tolist())])


@leave("f[N,13] cu", wrap=_below_zero, depends=False, tail=False, why="numbers below zero count from the row's end")
def segments_counted_from_the_end(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        out[i] = x[i, n : n + 4]
    return out


@leave("f[N,12] cu", wrap=_started, depends=False, tail=False, why="all segments are of one row")
def segments_of_the_first_row(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        out[i] = x[0, n : n + 4]
    return out


@leave("f[N,12] f[N,4] cu", wrap=_filled, depends=False, tail=False, why="documents write one row, in their order")
def segments_into_one_row(x: Tensor, y: Tensor, starts: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(starts.tolist()):
        out[0, n : n + 4] = y[i]
    return out


@leave("f[N,12] cu", wrap=_started, depends=False, tail=False, why="the next row sees what was written")
def segments_into_the_next_row(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.cat((x, x[:1])) * 2
    for i, n in enumerate(starts.tolist()):
        out[i + 1, :4] = out[i, n : n + 4]
    return out


@leave("f[N,13] cu", wrap=_started, depends=False, tail=False, why="a segment is read after its row was written")
def segments_seen_through_a_view(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    y, out = x * 1, torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        part = y[i, n : n + 4]
        y[i, n + 1] = 7.0
        out[i] = part
    return y, out


@leave("f[N,13] cu", wrap=_started, depends=False, tail=False, why="two segments overlap, the second wins")
def segments_that_overlap(x: Tensor, starts: Tensor) -> Tensor:
    y = x * 1
    for i, n in enumerate(starts.tolist()):
        y[i, n : n + 4] = x[i, :4]
        y[i, n + 2 : n + 5] = x[i, :3] * 2
        y[i, n + 1 : n + 3] += y[i, n + 2 : n + 4].clone()
    return y


@leave("f[N,13] cu", wrap=_started, depends=False, tail=False, why="a segment is copied within its row")
def segments_within_their_row(x: Tensor, starts: Tensor) -> Tensor:
    y = x * 1
    for i, n in enumerate(starts.tolist()):
        y[i, :4] = y[i, n : n + 4].clone()
    return y


@leave("f[N,20] cu", wrap=_started, depends=False, tail=False, why="every second slot")
def segments_of_every_second_slot(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        out[i] = x[i, n : n + 8 : 2]
    return out


@leave("f[N,12] f[N] cu", wrap=_filled, depends=False, tail=False, why="one value for the whole segment")
def one_value_for_a_segment(x: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(starts.tolist()):
        out[i, n : n + 4] = values[i]
    return out


@leave("f[N,12] f[N,1] cu", wrap=_filled, depends=False, tail=False, why="one value for the whole segment, in a vector")
def a_vector_of_one_for_a_segment(x: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(starts.tolist()):
        out[i, n : n + 4] = values[i]
    return out


@leave("f[N,12,3] f[N,3] cu", wrap=_filled, depends=False, tail=False, why="one vector for all slots of the segment")
def one_vector_for_a_segment(x: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(starts.tolist()):
        out[i, n : n + 4] = values[i]
    return out


@leave("f[N,12] cu", wrap=_started, depends=False, tail=False, why="the numbers are changed in the loop")
def segments_by_numbers_that_change(x: Tensor, starts: Tensor) -> Tensor:
    out, starts = torch.zeros(x.size(0), 4), starts.clone()
    for i in range(x.size(0)):
        n = starts[i]
        out[i] = x[i, n : n + 4]
        starts += 1
        starts %= 9
    return out


@leave("f[N,12] cu", wrap=_started, depends=False, tail=False, why="the row is set in between")
def rows_set_between_segments(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    y, out = x * 1, torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        part = y[i, n : n + 4]
        y[i] = y[i] + 1
        out[i] = part
    return y, out


@leave("f[N,13] f[N] cu", wrap=_filled, depends=False, tail=False, why="nothing says how long the views are")
def views_of_segments_filled(x: Tensor, values: Tensor, starts: Tensor) -> Tensor:
    y = x * 1
    for i, n in enumerate(starts.tolist()):
        part = y[i, n : n + 4]
        part *= torch.arange(4, device=x.device)
        y[i, n + 1 : n + 5] += values[i]
        part += values[i]
    return y
