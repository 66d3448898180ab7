"""The parts that a tensor is split into by numbers of documents: plain code, as `packpass.capture.plain` is."""

from __future__ import annotations

from typing import Any

import torch

from packpass import markers
from packpass.capture.plain import Documents, of_tolist, refuse_use


def ends_of_part(lengths: Any, x: Any, dim: Any, i: Any) -> Any:
    """Where a part begins and ends that ``x`` is split into by lengths."""
    raise RuntimeError("packpass: a part of a split reached execution; please report this")


def part_by_length(ends: Any, lengths: Any, i: Any) -> Any:
    """Of any part, also one that is counted from the last."""
    stop = ends[i].item()
    return stop - lengths[i].item(), stop


def part_by_boundaries(boundaries: Any, i: Any) -> Any:
    """Of one that is counted from the first."""
    return boundaries[i].item(), boundaries[i + 1].item()


def of_split(x: Any, lengths: Any, dim: Any) -> Any:
    """``torch.split(x, lengths, dim)``, where ``lengths`` is the ``tolist()`` of a tensor."""
    origin = lengths.origin
    parts = Documents(lengths.length, lambda i: markers.SPLIT_GET(x, origin, i, dim), tuple)
    before = (slice(None),) * (dim % x.dim())

    def pick(i: Any) -> Any:
        return x[(*before, slice(*ends_of_part(origin, x, dim, i)))]

    parts.pick, parts.parts = pick, (x, origin, dim)
    return parts


def of_row(x: Any, lengths: Any, kind: Any) -> Any:
    """A list of tensors of which ``x`` is made, and that are as long as that."""
    parts = of_split(x, lengths, 0)
    parts.kind = kind
    return parts


class Given(Documents):
    """A list of tensors that a program is given, of which a row has a slot for each. Where the program uses a part of
    the list, eager gives the others no gradient, and the row would."""

    def __getitem__(self, key: Any) -> Any:
        return refuse_use("a slice") if isinstance(key, slice) else super().__getitem__(key)


def of_given(x: Any, kind: Any) -> Any:
    """A list of tensors of one shape, the slots of ``x``."""
    made = Given(x.size(0), lambda i: x[i], kind)
    made.pick = made.get
    return made


def of_shapes(x: Any, sizes: Any, shape: Any, kind: Any) -> Any:
    """A list of tensors whose numbers are all in ``x``; ``sizes``: of each, ``shape``: what all of them share."""
    own = sizes.clone()
    parts = of_split(x, of_tolist(own.prod(1)), 0)

    def get(i: Any) -> Any:
        return parts.get(i).view([own[i][c].item() if size is None else size for c, size in enumerate(shape)])

    return Documents(parts.length, get, kind)


def of_tensor_split(x: Any, places: Any, dim: Any) -> Any:
    """``torch.tensor_split(x, places, dim)``, where ``places`` is the ``tolist()`` of a tensor: the first document
    begins with the tensor, and the last ends with it. Each is what a slice is, for places that fall and negative ones,
    too."""
    inner = places.origin.long()
    ends = of_tolist(torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), x.shape[dim]))))
    before = (slice(None),) * (dim % x.dim())
    return Documents(places.length + 1, lambda i: x[(*before, slice(ends.get(i), ends.get(i + 1)))], tuple)
