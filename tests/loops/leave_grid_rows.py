"""Look-alikes of rows that images of several sizes are written to: rows that are read, other rows, memory of others."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_looped_again import _crops, as_row


def _constants(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    x, sizes = _crops(x, numbers)
    return x.detach(), sizes


def _memory_of_others(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, sizes = _constants(x, numbers)
    return x, sizes, x + 1


crops: Any = functools.partial(leave, tail=False, wrap=_crops, lead_empty=False, min_len=1)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the row is read behind the write")
def row_read_again(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    out, rows = x.new_ones(x.shape), []
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
        rows.append(as_row(out[i])[: h * w])
    return out, torch.cat(rows)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the row of another document is read")
def row_of_the_last_document(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0] + 1, 3, 4, 4)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i + 1, :, :h, :w] = x[i, :, :h, :w] + out[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="two rows are written by a document")
def two_rows_of_one_tensor(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0] + 1, 3, 4, 4)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
        out[i + 1, :, :1] = 5.0
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the same memory under two names")
def two_names_of_one_memory(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    other = out[:, :1]
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
        other[i, :, :h] = 2.0
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a view of it is read")
def another_view_is_read(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    other = out[:, 0]
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, 1, :h, :w] = other[i, :h, :w] + x[i, 0, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="one row after the other, in another order")
def rows_in_reverse_order(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[x.shape[0] - 1 - i, :, :h, :w] = x[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a row that is the same for all")
def always_the_first_row(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[0, :, :h, :w] = x[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="added to what is there")
def added_to_the_row(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] += x[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="every second slot of a row")
def every_second_slot(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0], 16, 3)
    for i, (h, _) in enumerate(sizes.tolist()):
        out[i, : 2 * h : 2] = x[i, :, :h, 0].T
    return out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="memory of the caller", wrap=_memory_of_others, mutates=True)
def memory_of_the_caller(x: Tensor, sizes: Tensor, out: Tensor) -> Tensor:
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
    return out.sum((1, 2, 3))


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="two ways, of which one uses what has a gradient")
def one_way_writes_the_image(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        if h > 2:
            out[i, :, :h, :w] = x[i, :, :h, :w]
        else:
            out[i, :, :h] = 0
    return out


@crops("f[N,3,4,4] i[N,2]", why="more is written than the row is long, by a broadcast")
def broadcast_beyond_the_row(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 18, 3)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, : h * w + 8] = x[i, :, 0, 0]
    return out


@crops("f[N,3,4,4] i[N,2]", why="of one slot, it is written to all of them")
def one_slot_for_many(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 4, 3)
    for i, (h, _) in enumerate((sizes % 2 + 1).tolist()):
        out[i, : 3 - h] = x[i, :, : 3 - h, 0].T
        out[i, :2] = x[i, :, :h, 1].T if h != 2 else x[i, :, :2, 1].T
    return out


@crops("f[N,3,4,4] i[N,2]", why="no slot before the end is all of the row")
def nothing_from_the_end(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 4)
    for i, (h, _) in enumerate((sizes - 1).tolist()):
        out[i, -h:] = 3.0
    return out


@crops("f[N,9,3] i[N,2]", why="numbers that are counted from the end", wrap=lambda x, n: (x.double(), n % 5 - 2))
def parts_that_count_from_the_end(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([x[i, first:stop] for i, (first, stop) in enumerate(sizes.tolist())])


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a diagonal is written")
def diagonals_of_squares(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 4, 4)
    for i, (h, _) in enumerate(sizes.tolist()):
        out[i].diagonal()[:h] = x[i, 0, :h, 0]
    return out


@crops("f[N,3,4,4] i[N,2]", why="the rows are read between both loops")
def rows_read_before_the_cat(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [image[:, :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    out = x.new_zeros(len(parts), 16, 3)
    for i, part in enumerate(parts):
        out[i, : part[0].numel()] = as_row(part)
    return torch.cat([as_row(part) * row[0] for part, row in zip(parts, out)]), out


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a view of it was taken before")
def view_of_a_buffer_before_the_write(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for image, (h, w) in zip(x, sizes.tolist()):
        buffer = x.new_zeros(16, 3)
        view = buffer[:4]
        buffer[: h * w] = as_row(image[:, :h, :w])
        rows.append(view)
    return torch.cat(rows)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="it is added to in place")
def added_to_a_buffer(x: Tensor, sizes: Tensor) -> Tensor:
    grids = []
    for h, w in sizes.tolist():
        grid = torch.zeros(h, w, 2, dtype=torch.int64)
        grid[..., 0] = torch.arange(h)[:, None]
        grid[..., 1] += torch.arange(w)[None]
        grids.append(grid.view(-1, 2))
    return torch.cat(grids)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="one tensor for all documents")
def one_buffer_for_all(x: Tensor, sizes: Tensor) -> Tensor:
    buffer, rows = x.new_zeros(16, 3), []
    for image, (h, w) in zip(x, sizes.tolist()):
        buffer[: h * w] = as_row(image[:, :h, :w])
        rows.append(buffer * 2)
    return torch.stack(rows) if rows else buffer[None]


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the diagonal of a tensor of its own")
def diagonals_of_buffers(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for image, (h, _) in zip(x, sizes.tolist()):
        square = x.new_zeros(4, 4)
        square.diagonal()[:h] = image[0, :h, 0]
        rows.append(square)
    return torch.stack(rows) if rows else x[:, 0]


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a later loop changes what is in the list", wrap=_constants)
def entries_changed_by_a_later_loop(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [as_row(image[:, :h, :w]) * 2 for image, (h, w) in zip(x, sizes.tolist())]
    for part in parts:
        part[0] = 5.0
    return torch.cat(parts)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="a later loop changes the images through the list", wrap=_constants)
def images_changed_through_a_list(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    parts = [image[:, :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    for part in parts:
        part[0] = 5.0
    return torch.cat([as_row(part) for part in parts]), x


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="another form of it was taken before")
def another_form_taken_before(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for h, w in sizes.tolist():
        buffer = x.new_zeros(h * w, 3)
        grid = buffer.view(h, w, 3)
        buffer[:w] = 2.0
        rows.append(grid.flatten(0, 1))
    return torch.cat(rows)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="another form of it is written")
def another_form_written(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for h, w in sizes.tolist():
        buffer = x.new_zeros(h * w, 3)
        buffer.view(h, w, 3)[:, :1] = 2.0
        rows.append(buffer)
    return torch.cat(rows)


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="halves of it are written")
def halves_of_a_buffer(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for h, _ in sizes.tolist():
        buffer = x.new_zeros(2 * h, 3)
        buffer.chunk(2)[0][0] = 1.0
        rows.append(buffer)
    return torch.cat(rows)
