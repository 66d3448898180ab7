"""Ops on packed (THD) tensors: functions for users, and the ops ``torch.ops.packpass.*`` that the passes insert.

Importing this package registers every op: its eager kernels, its shapes, its backward and its Inductor decomposition.
"""

from packpass.ops import _documents_only, _packed_flip, _snapshot, _window_mask  # noqa: F401  (registers ops that only passes use)
from packpass.ops._cu_seqlens import pad_cu_seqlens, validate_cu_seqlens
from packpass.ops._packed_roll import packed_roll
from packpass.ops._position_ids import position_ids
from packpass.ops._segment_ids import segment_ids
from packpass.ops._version import ops_version, tag_compile_caches

__all__ = [
    "ops_version",
    "packed_roll",
    "pad_cu_seqlens",
    "position_ids",
    "segment_ids",
    "validate_cu_seqlens",
]

tag_compile_caches()
