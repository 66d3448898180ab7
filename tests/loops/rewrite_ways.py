"""Loops that must be rewritten: several branches on the numbers of a document in one body (`packpass.capture.ways`,
`passes.ragged_grids.ways`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program
from .rewrite_grids import grid_of
from .rewrite_images import _images, parts


def _tables(numbers: Tensor, table: Tensor, *fixed: Tensor) -> tuple[Tensor, ...]:
    """Sizes of images, a learned table, and others that are not learned. In float64: sums are in another order."""
    return (grid_of(numbers), table.double(), *(other.detach().double() for other in fixed))


def _frozen(numbers: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Patches that have a gradient, and weights that have none."""
    x, grid, *others = _images(numbers, *weights)
    return (x.requires_grad_(), grid, *(weight.detach() for weight in others))


tables: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_tables, graphs=3, lead_empty=False, min_len=1, exact=False
)


@tables("i[N,3] f[4,6,5] f[3,5]")
def table_or_resized_and_frames(grid: Tensor, table: Tensor, time: Tensor) -> Tensor:
    """The positions of the vision tower of Kimi-K2.5."""
    out = []
    for t, h, w in grid.tolist():
        assert t <= time.shape[0], "more frames than there are positions"
        if (h, w) == table.shape[:2]:
            each = table.flatten(0, 1)
        else:
            image = table.permute(2, 0, 1).unsqueeze(0)
            image = F.interpolate(image, size=(h, w), mode="bilinear").squeeze(0)
            each = image.permute(1, 2, 0).flatten(0, 1)
        if t == 1:
            out.append(each)
        else:
            out.append((each.unsqueeze(0).repeat(t, 1, 1) + time[:t].unsqueeze(1)).flatten(0, 1))
    return torch.cat(out)


@tables("i[N,3] f[4,6,5]")
def table_for_its_own_size(grid: Tensor, table: Tensor) -> Tensor:
    """A conjunction: the second question is asked of some images only."""
    out = []
    for t, h, w in grid.tolist():
        if h == 4 and w == 6:
            each = table
        else:
            image = table.permute(2, 0, 1).unsqueeze(0)
            each = F.interpolate(image, size=(h, w), mode="bilinear").squeeze(0).permute(1, 2, 0)
        out.append(each.flatten(0, 1).repeat(t, 1))
    return torch.cat(out)


@tables("i[N,3] f[64,4]")
def one_two_or_more_frames(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        if t == 1:
            out.append(table[:h])
        elif t == 2:
            out.append(table[:h].repeat(w, 1) * 3)
        else:
            out.append(table[:w] - 1)
    return torch.cat(out)


@tables("i[N,3] f[64,4]")
def taller_square_or_wider(grid: Tensor, table: Tensor) -> Tensor:
    """What is compared may be negative, so that one answer does not give the other."""
    out = []
    for _, h, w in grid.tolist():
        if h > w:
            out.append(table[:h])
        elif h == w:
            out.append(table[:w] * 2)
        else:
            out.append(table[: w - h] + 1)
    return torch.cat(out)


@tables("i[N,3] f[64,4]")
def the_same_question_of_sizes_twice(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        each = table[:h] if h > 4 else table[:h] * 2
        columns = torch.arange(w)[:, None]
        if h > 4:
            each = each + 1
        out.append((each[:, None] + columns).flatten(0, 1))
    return torch.cat(out)


@tables("i[N,3] f[64,4]")
def three_questions_of_sizes(grid: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Eight ways through the body; the other list goes by one of the questions alone."""
    out, counts = [], []
    for t, h, w in grid.tolist():
        each = table[:h] if h > 4 else table[:h] * 2
        if w > 4:
            each = each + 1
            counts.append(torch.arange(w))
        else:
            counts.append(torch.arange(h) - w)
        if t > 1:
            each = each.repeat(t, 1)
        out.append(each)
    return torch.cat(out), torch.cat(counts)


@tables("i[N,3] f[3,4]")
def rows_of_one_size_by_two_questions(grid: Tensor, table: Tensor) -> Tensor:
    """What images leave is stacked."""
    out = []
    for t, h, w in grid.tolist():
        each = table[0] if t == 1 else table[1] * t
        if h >= 2 * w:
            each = each - table[2]
        else:
            each = each + table[2]
        out.append(each)
    return torch.stack(out)


@tables("i[N,3] f[6]", wrap=_frozen)
def centred_videos(x: Tensor, grid: Tensor, scale: Tensor) -> Tensor:
    """A mean over the frames, and a weight that is not learned, in one way only."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = part.view(t, h * w, 6)
        if t > 1:
            part = (part - part.mean(0)) * scale
        out.append(part.reshape(-1, 6))
    return torch.cat(out)


@tables("i[N,3] f[6,6] f[6]", wrap=_frozen)
def layers_for_tall_images(x: Tensor, grid: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.layer_norm(part, (6,), scale)
        if h > 4:
            part = F.linear(part, weight).softmax(-1)
        elif t > 1:
            part = part.view(t, h * w, 6).sum(0) / t
        out.append(part)
    return torch.cat(out)


@tables("i[N,3]", wrap=_images)
def root_of_what_is_left(x: Tensor, grid: Tensor) -> Tensor:
    """Documents that do not go a way have no part in what is no number there."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        if h > w:
            part = (part - part.amin(0)).sqrt()
        elif h < w:
            part = 1 / (part.amax(0) + 2)[None]
        out.append(part)
    return torch.cat(out)


@tables("i[N,3]", wrap=_images)
def images_left_out(x: Tensor, grid: Tensor) -> Tensor:
    """A skip is one way more, of documents that leave nothing."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        if t == 1 and h < 4:
            continue
        out.append(part.view(t, h * w, 6).transpose(0, 1).reshape(-1, 6))
    return torch.cat(out)


@tables("i[N,3] f[64,2]", wrap=lambda numbers, x: (grid_of(numbers), x.detach().double()))
def lists_that_lack_others(grid: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    every, some = [], []
    for t, h, w in grid.tolist():
        every.append(table[:h] + t)
        if t == 1:
            continue
        if w > h:
            some.append(table[:w] * 2)
        else:
            some.append(table[: h - w].repeat(t, 1))
    return torch.cat(every), torch.cat([table[:1], *some])


@tables("i[N,3] f[64,4]")
def one_part_of_a_table_twice(grid: Tensor, table: Tensor) -> Tensor:
    """The second part has the size of the first one."""
    out = []
    for t, h, w in grid.tolist():
        each = table[:h] + table[:h].flip(0)
        out.append(each if w > 2 and t > 1 else each - table[:h])
    return torch.cat(out)


@tables("i[N,3]", wrap=_images)
def mean_of_large_images(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (_, h, w) in parts(x, grid):
        if (h, w) == (2, 2):
            out.append(part)
        else:
            out.append(part - part.mean(0))
    return torch.cat(out)


@tables("i[N,3]", wrap=_images)
def two_questions_of_images(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        if h > w:
            part = part * 2
        if t > 2:
            part = part + 1
        out.append(part)
    return torch.cat(out)


# ---------------------------------------------------------------- documents that are cut out of a row

documents: Any = functools.partial(program, tail=False, rule="ragged_grids", exact=False, graphs=3)


def _in_float64(x: Tensor, *others: Any) -> tuple[Any, ...]:
    return (x.double(), *(other.detach().double() if other.is_floating_point() else other for other in others))


@documents("f[2,T] cu", wrap=_in_float64)
def three_lengths_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 6:
            out.append(x[:, s:e] * 2)
        elif e - s > 2:
            out.append(x[:, s:e].exp())
        else:
            out.append(x[:, s:e])
    return torch.cat(out, 1)


@documents("f[T,3] cu", wrap=_in_float64, rule="vectorize_segments")
def centred_if_long(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if part.shape[0] > 3:
            part = part - part.mean(0)
        out.append(part)
    return torch.cat(out)


@documents("f[T,3] cu", wrap=_in_float64)
def means_or_sums(x: Tensor, cu: Tensor) -> Tensor:
    """The mean of a document without tokens is none of a number; it goes the other way."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        if n > 3 and s > 0:
            out.append(x[s:e].mean(0))
        else:
            out.append(x[s:e].sum(0) * n)
    return torch.stack(out)


@documents("f[T,3] f[3,3] cu", wrap=_in_float64)
def layer_if_long(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        if e - s > 3:
            part = F.linear(part, weight).softmax(-1)
        if s == 0:
            part = part + 1
        out.append(part)
    return torch.cat(out)


@documents("i[T] cu", exact=True)
def filled_up_if_two_are_missing(ids: Tensor, cu: Tensor) -> Tensor:
    labels = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        label = ids[s:e]
        pad = -(e - s) % 4
        if pad > 1:
            label = torch.cat([torch.zeros(pad, dtype=torch.long), label])
        labels.append(label)
    return torch.cat(labels)


@documents("i[T] cu", exact=True)
def filled_up_behind_another_branch(ids: Tensor, cu: Tensor) -> Tensor:
    labels = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        label = ids[s:e]
        if (e - s) % 3 > 0:
            label = torch.cat([torch.zeros(-(e - s) % 4, dtype=torch.long), label])
        labels.append(label)
    return torch.cat(labels)


@documents("i[T] cu", exact=True)
def turned_round_if_nothing_is_missing(ids: Tensor, cu: Tensor) -> Tensor:
    labels = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        label, pad = ids[s:e], -(e - s) % 4
        label = torch.cat([label, torch.zeros(pad, dtype=torch.long)]) if pad > 0 else label.flip(0)
        labels.append(label)
    return torch.cat(labels)


@documents("f[T] cu", wrap=_in_float64)
def share_with_a_gradient_of_its_own(x: Tensor, cu: Tensor) -> Tensor:
    """Of documents without tokens, the mean of the row."""
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + (x.mean() if e == s else x[s:e].sum())
    return total


@tables("i[N,3] f[64,4]", rule="vectorize_segments", depends=False)
def left_out_by_two_questions(grid: Tensor, table: Tensor) -> Tensor:
    out = [table[:0]]
    for t, h, w in grid.tolist():
        if h > 2 and w > 2:
            out.append(table[:h] * t)
    return torch.cat(out)
