"""Images of several sizes put below each other: padded to a width, and written into rows of a new tensor
(`passes.ragged_grids.written`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import program
from .rewrite_grids import grid_of
from .rewrite_looped_again import _crops, as_row, crops


def _with_nothing(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Some images have no slot at all."""
    return x.double(), numbers % 5


def _split(numbers: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Patches of all frames [T, 6] and their grids."""
    grid = grid_of(numbers)
    count = int(grid.prod(1).sum())
    return torch.arange(count * 6, dtype=torch.float64).reshape(count, 6).mul(0.37).sin(), grid, weight.double()


splits: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_split, graphs=3, lead_empty=False, min_len=1
)


# === Padded ==================================================================================================


@crops("f[N,3,4,4] i[N,2]", reads=1)
def images_padded_to_the_longest(x: Tensor, sizes: Tensor) -> Tensor:
    most = max(h * w for h, w in sizes.tolist())
    rows = [as_row(image[..., :h, :w]) for image, (h, w) in zip(x, sizes.tolist())]
    return torch.stack([F.pad(row, (0, 0, 0, most - row.shape[0])) for row in rows])


@crops("f[N,3,4,4] i[N,2]", reads=1)
def padded_to_the_largest_entry(x: Tensor, sizes: Tensor) -> Tensor:
    most = sizes.prod(1).max().item()
    out = [F.pad(as_row(image[..., :h, :w]), (0, 0, 0, most - h * w), value=-1.0)
           for image, (h, w) in zip(x, sizes.tolist())]  # fmt: skip
    return torch.stack(out)


@crops("f[N,3,4,4] i[N,2]")
def pad_sequence_of_parts(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    return pad_sequence([as_row(part) for part in parts], batch_first=True, padding_value=2.0)


@crops("f[N,3,4,4] i[N,2]")
def pad_sequence_time_first(x: Tensor, sizes: Tensor) -> Tensor:
    return pad_sequence([as_row(image[..., :h, :w]) for image, (h, w) in zip(x, sizes.tolist())])


@crops("f[3,16] i[N,2]", wrap=lambda table, numbers: (table.double(), numbers % 4 + 1))
def padded_tables(table: Tensor, sizes: Tensor) -> Tensor:
    return pad_sequence([table[:, : h * w].T for h, w in sizes.tolist()], batch_first=True)


@splits("i[N,3] f[6]", exact=False)
def padded_parts_of_a_split(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    rows = []
    for part, (t, h, w) in zip(x.split(grid.prod(1).tolist()), grid.tolist()):
        rows.append((part * weight).view(t, h, w, 6).transpose(1, 2).reshape(-1, 6))
    return pad_sequence(rows, batch_first=True)


@crops("f[N,5,3] i[N,2]")
def parts_between_two_numbers(x: Tensor, sizes: Tensor) -> Tensor:
    """Beyond the end of a row there is nothing."""
    return torch.cat([x[i, first : first + count] * count for i, (first, count) in enumerate(sizes.tolist())])


@crops("f[N,3,4,4] i[N,2]")
def lower_right_corners(x: Tensor, sizes: Tensor) -> Tensor:
    return torch.cat([as_row(image[:, h:, w:]) for image, (h, w) in zip(x, sizes.tolist())])


@crops("f[N,3,4,4] i[N,2]")
def one_channel_of_each(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    first = [image[0, :h, :w].flatten() for image, (h, w) in zip(x, sizes.tolist())]
    return torch.cat(first), torch.cat([image[-1, None, :h, 1].T for image, (h, _) in zip(x, sizes.tolist())])


# === Written =================================================================================================


@crops("f[N,3,4,4] i[N,2]")
def rows_and_their_mask(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    out, mask = x.new_zeros(x.shape[0], 16, 3), torch.zeros(x.shape[0], 16, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, : h * w] = as_row(x[i, :, :h, :w])
        mask[i, : h * w] = True
    return out, mask


@crops("f[N,3,4,4] i[N,2]", wrap=_with_nothing)
def rows_of_images_without_slots(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0], 16, 3)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, 16 - h * w :] = as_row(x[i, :, :h, :w])
    return out


@crops("f[N,3,4,4] i[N,2]")
def corners_of_a_padded_batch(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]")
def positions_in_columns(x: Tensor, sizes: Tensor) -> Tensor:
    """Ids of a diffusion transformer: which image, which row, which column."""
    out = torch.zeros(x.shape[0], 16, 3, dtype=torch.int64)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, : h * w, 0] = i
        out[i, : h * w, 1] = torch.arange(h)[:, None].expand(h, w).flatten()
        out[i, : h * w, 2] = torch.arange(w)[None].expand(h, w).flatten()
    return out


@crops("f[N,12,3] i[N,2]")
def captions_and_images(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Text in front of an image in one row, taken apart."""
    captions, images = x.new_zeros(x.shape[0], 5, 3), x.new_zeros(x.shape[0], 6, 3)
    for i, (text, _) in enumerate(sizes.tolist()):
        captions[i, :text] = x[i, :text]
        images[i, :6] = x[i, text : text + 6]
    return captions, images


@crops("f[N,3,4,4] i[N,2]", exact=False)
def one_number_written_for_each(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    means, sums = x.new_zeros(x.shape[0]), x.new_zeros(x.shape[0], 3)
    counts = torch.zeros(x.shape[0], dtype=torch.int64)
    for i, (h, w) in enumerate(sizes.tolist()):
        means[i] = x[i, 0, :h, :w].mean()
        sums[i] = x[i, :, :h, :w].sum((1, 2))
        counts[i] = h * w
    return means, sums, counts


@crops("f[N,3,4,4] i[N,2]")
def edges_of_images(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 2, 4, 3)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, 0, :h] = x[i, :, :h, 0].T
        out[i, 1, :w] = x[i, :, 0, :w].T
    return out


@crops("f[N,3,4,4] i[N,2]")
def over_computed_rows(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The old rows have a gradient, and another view of them is used behind the loop."""
    out = (x * 2).flatten(2).transpose(1, 2).contiguous()
    view = out.view(x.shape[0], 48)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, : h * w] = as_row(x[i, :, :h, :w]) * 3
    return out, view * 2


@crops("f[N,3,4,4] i[N,2]")
def from_the_end(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 16, 3)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, -h * w :] = as_row(x[i, :, :h, :w])
    return out


@crops("f[N,3,4,4] i[N,2]")
def one_over_the_other(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0], 16, 3)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, : h * w] = as_row(x[i, :, :h, :w])
        out[i, 1 : h + 1] = 7
        out[i, 0, 1] = float("-inf")
    return out


@crops("f[N,3,4,4] i[N,2]")
def marks_that_are_cut_off(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Rows shorter than some documents: Python cuts what is written to them."""
    mask, marks = torch.zeros(x.shape[0], 5, dtype=torch.bool), torch.zeros(x.shape[0], 5)
    for i, (h, w) in enumerate(sizes.tolist()):
        mask[i, : h * w] = True
        marks[i, h * w :] = 1.0
        marks[i, h:w] = 2.0
    return mask, marks


@crops("f[N,3,4,4] i[N,2]")
def through_views(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    out, mask = x.new_ones(x.shape), torch.ones(x.shape[0], 4, 4, dtype=torch.bool)
    for i, (h, w) in enumerate(sizes.tolist()):
        row = out[i]
        row[0, :h] = 2.0
        row[1:, :h, :w].copy_(x[i, 1:, :h, :w])
        mask[i, :h, :w].fill_(False)
    return out, mask


@crops("f[N,3,4,4] i[N,2]")
def behind_a_first_row(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_ones(x.shape[0] + 2, 3, 4, 4)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i + 1, :, :h, :w] = x[i, :, :h, :w]
    return out


@crops("f[N,3,4,4] i[N,2]")
def into_another_dtype(x: Tensor, sizes: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.bfloat16)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
    return out.double() * x


@crops("f[N,3,4,4] i[N,2]")
def broadcast_into_rows(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(x.shape)
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :1, :w]
        out[i, 1, :h] = x[i, 2, 3]
    return out


@crops("f[N,3,4,4] i[N,2]")
def causal_squares(x: Tensor, sizes: Tensor) -> Tensor:
    out = torch.full((x.shape[0], 1, 16, 16), float("-inf"))
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, : h * w, : h * w] = torch.triu(torch.full((h * w, h * w), float("-inf")), 1)
    return out


@crops("f[N,3,4,4] i[N,2] f[5,3]", exact=False, wrap=lambda x, n, weight: (*_crops(x, n), weight.double()))
def rows_of_a_layer(x: Tensor, sizes: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    out, parts = x.new_zeros(x.shape[0], 16, 5), []
    for i, (h, w) in enumerate(sizes.tolist()):
        part = as_row(x[i, :, :h, :w])
        out[i, : h * w] = torch.sigmoid(F.linear(part, weight))
        parts.append(part)
    return out, torch.cat(parts)


@crops("f[N,3,4,4] i[N,2]")
def rows_of_listed_parts(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [as_row(part) for part in [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]]
    out, mask = x.new_zeros(len(parts), 16, 3), torch.zeros(len(parts), 16, dtype=torch.bool)
    for i, part in enumerate(parts):
        out[i, : part.shape[0]] = part
        mask[i, : part.shape[0]] = True
    return out, mask


@crops("f[N,3,4,4] i[N,2]", wrap=lambda x, numbers: (x.double(), (numbers % 4 + 1).int()))
def rows_between_a_list_and_its_cat(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [image[:, :h, :w] for image, (h, w) in zip(x, sizes)]
    out = x.new_zeros(len(parts), 16, 3)
    for i, part in enumerate(parts):
        out[i, : part[0].numel()] = as_row(part)
    return out, torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]")
def a_view_of_new_memory(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    whole = x.new_ones(x.shape[0], 3, 4, 8)
    out = whole[..., :4]
    for i, (h, w) in enumerate(sizes.tolist()):
        out[i, :, :h, :w] = x[i, :, :h, :w]
    return out * 2, whole


@splits("i[N,3] f[6]", exact=False, reads=1)
def written_parts_of_a_split(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    lengths = grid.prod(1)
    out = x.new_zeros(grid.shape[0], int(lengths.max()), 6)
    for i, (part, (t, h, w)) in enumerate(zip(x.split(lengths.tolist()), grid.tolist())):
        out[i, : t * h * w] = (part * weight).view(t, h, w, 6).transpose(1, 2).reshape(-1, 6)
    return out


# === Tensors of their own ====================================================================================


@crops("f[N,3,4,4] i[N,2]")
def buffers_and_masks_of_each(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    buffers, masks = [], []
    for image, (h, w) in zip(x, sizes.tolist()):
        buffer = torch.full((3, 4, 4), -1.0, dtype=torch.float64)
        buffers.append(buffer)
        buffer[:, :h, :w] = image[:, :h, :w] * 2
        buffer[0, :h] = 7.0
        mask = torch.zeros(16, dtype=torch.bool)
        mask[: h * w] = True
        masks.append(mask)
    return torch.stack(buffers), torch.stack(masks)


@crops("f[N,3,4,4] i[N,2]")
def grids_of_their_own(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [h, w, 2] that are filled in, column by column."""
    grids = []
    for h, w in sizes.tolist():
        grid = torch.zeros(h, w, 2, dtype=torch.int64)
        grid[..., 0] = torch.arange(h)[:, None]
        grid[..., 1] = torch.arange(w)[None]
        grids.append(grid.view(-1, 2))
    return torch.cat(grids), x.sum()


@crops("f[N,3,4,4] i[N,2]")
def copies_with_empty_borders(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    whole, parts = [], []
    for image, (h, w) in zip(x, sizes.tolist()):
        copy = image.clone()
        copy[:, h:] = 0
        copy[:, :, w:] = 0
        whole.append(copy)
        part = image[:, :h, :w].clone()
        part[0, 0] = 1.5
        parts.append(as_row(part))
    return torch.stack(whole), torch.cat(parts)


@crops("f[N,3,4,4] i[N,2]")
def looked_at_between_writes(x: Tensor, sizes: Tensor) -> Tensor:
    rows = []
    for image, (h, w) in zip(x, sizes.tolist()):
        buffer = x.new_zeros(16, 3)
        before = buffer + 1
        buffer[: h * w] = as_row(image[:, :h, :w])
        between = buffer * 2
        buffer[0] = 5.0
        rows.append(before + between + buffer)
    return torch.stack(rows)


@program("i[N,3]", tail=False, rule="ragged_grids", wrap=lambda n: (grid_of(n),), graphs=3, lead_empty=False, min_len=1)
def corners_that_are_marked(grid: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        image = torch.zeros(h, w)
        image[0, 0] = 1
        out.append(image.flatten())
    return torch.cat(out)
