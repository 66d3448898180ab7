"""Ops on packed (THD) tensors: functions for users, and the ops ``torch.ops.packpass.*`` that the passes insert.

Importing this package registers every op: its eager kernels, its shapes, its backward and its Inductor decomposition.
"""

from packpass.ops import (  # noqa: F401  (registers ops that only passes use)
    _all_to_all_group,
    _boundaries_or_row,
    _check_documents,
    _document_taps,
    _documents_only,
    _expanded_boundaries,
    _fit_boundaries,
    _must_equal,
    _must_hold,
    _packed,
    _packed_flip,
    _segment_argmax,
    _segment_cdist,
    _segment_matmul,
    _segment_order,
    _segment_pad,
    _segment_places,
    _segment_reduce,
    _segment_scan,
    _segment_softmax,
    _segment_spread,
    _segment_take,
    _snapshot,
    _window_mask,
)
from packpass.ops._cp_packed_roll import cp_packed_roll
from packpass.ops._cp_partition import cp_partition, cp_unpartition
from packpass.ops._cp_to_hp import cp_to_hp, hp_to_cp
from packpass.ops._cu_seqlens import pad_cu_seqlens, validate_cu_seqlens
from packpass.ops._pack import PackedBatch, pack, unpack
from packpass.ops._packed_roll import packed_roll
from packpass.ops._position_ids import position_ids
from packpass.ops._remap_cu_seqlens import remap_cu_seqlens
from packpass.ops._segment_ids import segment_ids
from packpass.ops._varlen_attention import varlen_attention
from packpass.ops._version import ops_version, tag_compile_caches

__all__ = [
    "PackedBatch",
    "cp_packed_roll",
    "cp_partition",
    "cp_to_hp",
    "cp_unpartition",
    "hp_to_cp",
    "ops_version",
    "pack",
    "packed_roll",
    "pad_cu_seqlens",
    "position_ids",
    "remap_cu_seqlens",
    "segment_ids",
    "unpack",
    "validate_cu_seqlens",
    "varlen_attention",
]

tag_compile_caches()
