"""Every program that must be rewritten (at least 80), gathered from the files that hold them."""

from __future__ import annotations

from . import (
    rewrite_attention,
    rewrite_beside,
    rewrite_blocks,
    rewrite_bodies,
    rewrite_branches,
    rewrite_by_hand,
    rewrite_carried,
    rewrite_checks,
    rewrite_chosen,
    rewrite_convolution,
    rewrite_counts,
    rewrite_defaults,
    rewrite_edges,
    rewrite_elsewhere,
    rewrite_filled,
    rewrite_filtered,
    rewrite_forms,
    rewrite_grids,
    rewrite_grown,
    rewrite_images,
    rewrite_inner,
    rewrite_kept,
    rewrite_lengths,
    rewrite_lists,
    rewrite_modes,
    rewrite_neighbours,
    rewrite_numbered,
    rewrite_numbers,
    rewrite_offsets,
    rewrite_ordered,
    rewrite_outputs,
    rewrite_places,
    rewrite_pooled,
    rewrite_pooling,
    rewrite_rows,
    rewrite_sequences,
    rewrite_slices,
    rewrite_totals,
    rewrite_ways,
    rewrite_whiles,
    rewrite_wide,
)
from .harness import REWRITE, Program

PROGRAMS: dict[str, Program] = dict(REWRITE)
__all__ = [
    "PROGRAMS", "rewrite_attention", "rewrite_beside", "rewrite_blocks", "rewrite_bodies", "rewrite_branches",
    "rewrite_by_hand", "rewrite_carried", "rewrite_checks", "rewrite_chosen", "rewrite_convolution", "rewrite_counts",
    "rewrite_defaults", "rewrite_edges", "rewrite_elsewhere", "rewrite_filled", "rewrite_filtered", "rewrite_forms",
    "rewrite_grids", "rewrite_grown", "rewrite_images", "rewrite_inner", "rewrite_kept", "rewrite_lengths",
    "rewrite_lists", "rewrite_modes", "rewrite_neighbours", "rewrite_numbered", "rewrite_numbers", "rewrite_offsets",
    "rewrite_ordered", "rewrite_outputs", "rewrite_places", "rewrite_pooled", "rewrite_pooling", "rewrite_rows",
    "rewrite_sequences", "rewrite_slices", "rewrite_totals", "rewrite_ways", "rewrite_whiles", "rewrite_wide",
]  # fmt: skip
