"""Lists of what images of several sizes leave, gone through again: one loop cuts the padded images, others make rows,
positions and lengths of the parts (`passes.joined_loops`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def _crops(x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Images padded to one size [N, 3, 4, 4] and the heights and widths of what they show [N, 2]."""
    return x.double(), numbers % 4 + 1


crops: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_crops, graphs=3, lead_empty=False, min_len=1
)


def cut(x: Tensor, sizes: Tensor) -> list[Tensor]:
    return [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]


def as_row(part: Tensor) -> Tensor:
    """A slot for every place of an image [3, h, w]."""
    return part.flatten(1).T


@crops("f[N,3,4,4] i[N,2]")
def cut_and_flattened(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    return torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]")
def cut_by_tensors(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., : size[0], : size[1]] for image, size in zip(x, sizes)]
    return torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]")
def rows_and_positions(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """A tower of transformers: its patches, and where each is."""
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    rows, places = torch.cat([as_row(part) for part in parts]), []
    for part in parts:
        both = torch.meshgrid(torch.arange(part.shape[-2]), torch.arange(part.shape[-1]), indexing="ij")
        places.append(torch.stack([each.flatten() for each in both], dim=-1))
    return rows, torch.cat(places)


@crops("f[N,3,4,4] i[N,2]")
def mask_of_the_parts(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    rows = torch.cat([as_row(part) for part in parts])
    mask = torch.full((rows.shape[0], rows.shape[0]), -1.0)
    start = 0
    for length in [part.shape[-2] * part.shape[-1] for part in parts]:
        mask[start : start + length, start : start + length] = 0
        start = start + length
    return rows, mask


@crops("f[N,3,4,4] i[N,2]")
def beside_numbers_of_their_own(x: Tensor, sizes: Tensor) -> Tensor:
    """What the later loop is given is worked out between both."""
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    weights = sizes[:, 0] * 2
    return torch.cat([as_row(part) * weight for part, weight in zip(parts, weights)])


@crops("f[N,3,4,4] i[N,2]")
def numbered_parts(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    ids = torch.cat([torch.full((part.shape[1] * part.shape[2],), i) for i, part in enumerate(parts)])
    return torch.cat([as_row(part) for part in parts]) * ids[:, None]


@crops("f[N,3,4,4] i[N,2]")
def one_list_from_another(x: Tensor, sizes: Tensor) -> Tensor:
    """Two lists, of which the second is made from the first, in one loop."""
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    places = [torch.arange(part.shape[1] * part.shape[2]) for part in parts]
    return torch.cat([as_row(part) + place[:, None] for part, place in zip(parts, places)])


@crops("f[N,3,4,4] i[N,2]")
def parts_by_their_number(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    return torch.cat([as_row(parts[i]) for i in range(len(parts))])


@crops("f[N,3,4,4] i[N,2]", exact=False)
def means_of_the_parts(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    return torch.stack([part.mean((1, 2)) for part in parts]), torch.cat([as_row(part) for part in parts])


@crops("f[N,3,4,4] i[N,2]")
def boundaries_of_the_parts(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    lengths = torch.tensor([part.shape[-2] * part.shape[-1] for part in parts], dtype=torch.int32)
    return torch.cat([as_row(part) for part in parts]), F.pad(lengths.cumsum(0), (1, 0))


@crops("f[N,3,4,4] i[N,2]")
def dicts_of_parts(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [{"image": image[..., :h, :w], "count": h * w} for image, (h, w) in zip(x, sizes.tolist())]
    return torch.cat([as_row(part["image"]) for part in parts]), torch.tensor([part["count"] for part in parts])


@crops("f[N,3,4,4] i[N,2]")
def table_changed_behind_the_cut(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes are changed when they have been read."""
    sizes = sizes.clone()
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    sizes.add_(1)
    return torch.cat([as_row(part) for part in parts]), torch.cat([torch.arange(h * w) for h, w in sizes.tolist()])


# === Given something made of all of them ====================================================================


@crops("f[N,3,4,4] i[N,2]", exact=False)
def by_the_largest_of_all(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    most = torch.cat([as_row(part) for part in parts]).abs().amax()
    return torch.cat([as_row(part) / most for part in parts])


@crops("f[N,3,4,4] i[N,2]", exact=False)
def less_the_mean_of_all_sums(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [as_row(part) for part in [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]]
    mean = torch.stack([part.sum(0) for part in parts]).mean(0)
    return torch.cat([part - mean for part in parts])


@crops("f[N,3,4,4] i[N,2]", reads=1)
def padded_to_the_longest_part(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    parts = [as_row(part) for part in [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]]
    most = max(part.shape[0] for part in parts)
    mask = torch.stack([F.pad(torch.ones(part.shape[0]), (0, most - part.shape[0])) for part in parts])
    return torch.stack([F.pad(part, (0, 0, 0, most - part.shape[0])) for part in parts]), mask


@crops("f[N,3,4,4] i[N,2]", reads=1)
def rows_for_the_longest_part(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [as_row(part) for part in [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]]
    out = x.new_zeros(len(parts), max(part.shape[0] for part in parts), 3)
    for i, part in enumerate(parts):
        out[i, : part.shape[0]] = part
    return out


@crops("f[N,3,4,4] i[N,2]", exact=False)
def split_by_lengths_of_parts(x: Tensor, sizes: Tensor) -> Tensor:
    parts = [image[..., :h, :w] for image, (h, w) in zip(x, sizes.tolist())]
    lengths = [part.shape[-2] * part.shape[-1] for part in parts]
    row = torch.cat([as_row(part) for part in parts]) * 2
    return torch.stack([part.sum(0) for part in row.split(lengths)])
