"""Every program that must keep eager's results, rewritten or not (at least 80)."""

from __future__ import annotations

from . import (
    leave_attention,
    leave_beside,
    leave_blocks,
    leave_branches,
    leave_by_hand,
    leave_carried,
    leave_chosen,
    leave_convolution,
    leave_counts,
    leave_defaults,
    leave_edges,
    leave_elsewhere,
    leave_ends,
    leave_filled,
    leave_filtered,
    leave_grids,
    leave_grown,
    leave_images,
    leave_index,
    leave_iteration,
    leave_kept,
    leave_lengths,
    leave_lists,
    leave_memory,
    leave_modes,
    leave_neighbours,
    leave_numbered,
    leave_numbers,
    leave_offsets,
    leave_places,
    leave_pooled,
    leave_pooling,
    leave_python,
    leave_rows,
    leave_sequences,
    leave_slices,
    leave_state,
    leave_totals,
    leave_ways,
    leave_whiles,
    leave_windows,
)
from .harness import LEAVE, Program

PROGRAMS: dict[str, Program] = dict(LEAVE)
__all__ = [
    "PROGRAMS", "leave_attention", "leave_beside", "leave_blocks", "leave_branches", "leave_by_hand", "leave_carried",
    "leave_chosen", "leave_convolution", "leave_counts", "leave_defaults", "leave_edges", "leave_elsewhere",
    "leave_ends", "leave_filled", "leave_filtered", "leave_grids", "leave_grown", "leave_images", "leave_index",
    "leave_iteration", "leave_kept", "leave_lengths", "leave_lists", "leave_memory", "leave_modes", "leave_neighbours",
    "leave_numbered", "leave_numbers", "leave_offsets", "leave_places", "leave_pooled", "leave_pooling", "leave_python",
    "leave_rows", "leave_sequences", "leave_slices", "leave_state", "leave_totals", "leave_ways", "leave_whiles",
    "leave_windows",
]  # fmt: skip
