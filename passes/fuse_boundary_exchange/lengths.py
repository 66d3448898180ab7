"""How many slots documents must have, where a rewrite relies on it: what is checked when the program runs."""

from __future__ import annotations

import torch
from torch import fx

from packpass.semantics import example
from passes.building import Builder
from passes.fuse_boundary_exchange.values import Needs

EMPTY = (
    "packpass: slots at the ends of every document are cut out of the row by their numbers, which for a document "
    "without slots are those of other documents: leave out documents that have none on a rank, or cut the slots out of "
    "the document (`x[s:e][:1]`)"
)


def too_short(width: int, least: int) -> str:
    """The error for a document that has fewer slots on a rank than go to a neighbour."""
    return (
        f"packpass: {width} slots of every document go to a neighbouring rank, so that it must have {least} of them on "
        "each rank, or none: leave out, or pad, documents that have fewer"
    )


def check_needs(build: Builder, bounds: fx.Node, needs: Needs, row: fx.Node, dim: int) -> None:
    """Documents without slots must be none, or the last ones of the row."""
    if needs is Needs.NONE:
        return
    held = build.call(torch.gt, build.call("diff", bounds, method=True), 0)
    if needs is Needs.FOLLOWED:
        starts = build.call("narrow", bounds, 0, 0, build.call("size", held, 0, method=True), method=True)
        total = build.call("size", row, dim % example(row).dim(), method=True)
        held = build.call(torch.logical_or, held, build.call(torch.ge, starts, total))
    build.call(torch._assert_async, build.call(torch.all, held), EMPTY)


def check_lengths(build: Builder, bounds: fx.Node, width: int) -> None:
    """Every document with slots must have those that it sends, on each rank."""
    lengths = build.call("diff", bounds, method=True)
    enough = build.call(torch.logical_or, build.call(torch.eq, lengths, 0), build.call(torch.ge, lengths, width))
    build.call(torch._assert_async, build.call(torch.all, enough), too_short(width, width))
