"""What the cases of all versions of megatron-core share: a group of one rank, and the programs of each version."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tests.wild.batches import boundaries, floats, ids, over
from tests.wild.case import Program
from tests.wild.sources import use

ALIGNED = ((24, 32), (16, 36, 24, 24), (64,) * 6, (200, 32, 64, 64, 64, 72, 16, 60))
"""Lengths that context parallelism can divide."""

_loaded: list[str] = []


def megatron(version: str) -> Any:
    """Import one version (a process holds one) and start a group of one rank; the group."""
    if not _loaded:
        use(f"megatron-core=={version}")
        _loaded.append(version)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        importlib.import_module("megatron.core.parallel_state").initialize_model_parallel(1, 1)
    if _loaded != [version]:
        raise RuntimeError(f"megatron-core {_loaded[0]} is loaded already")
    return dist.group.WORLD


def rope(version: str, **settings: Any) -> Program:
    """Rotary embedding of packed rows without Transformer Engine: values [T, heads, size], frequencies per position."""
    group = megatron(version)
    module = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    apply = module._apply_rotary_pos_emb_thd

    def call(t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor) -> Any:
        return apply(t, cu_seqlens, freqs, cp_group=group, **settings)

    def batch(lengths: Sequence[int]) -> Any:
        return floats(sum(lengths), 4, 16, grad=True), boundaries(lengths), floats(256, 1, 1, 16)

    return Program(call, over(batch, ALIGNED))


def packed_params(cu_seqlens: torch.Tensor) -> Any:
    """megatron-core's own record of a packed row."""
    module = importlib.import_module("megatron.core.packed_seq_params")
    return module.PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        cu_seqlens_q_padded=cu_seqlens,
        cu_seqlens_kv_padded=cu_seqlens,
    )


def roll(version: str) -> Program:
    """The roll of multi-token prediction, of ids [1, T]."""
    megatron(version)
    roll_tensor = importlib.import_module("megatron.core.transformer.multi_token_prediction").roll_tensor

    def call(tensor: torch.Tensor, params: Any) -> Any:
        return roll_tensor(tensor, shifts=-1, dims=-1, packed_seq_params=params)

    return Program(call, over(lambda n: (ids(1, sum(n)), packed_params(boundaries(n)))))


def positions_and_masks(version: str) -> Program:
    """What the data set makes of tokens with the mark of an end between documents: every loop step changes all slots
    to the end of the row, and the part of the mask behind and in front of it."""
    megatron(version)
    module = importlib.import_module("megatron.core.datasets.gpt_dataset")
    make = module._get_ltor_masks_and_position_ids

    def call(tokens: torch.Tensor) -> Any:
        return make(tokens, 0, True, True, True, True)

    def batch(lengths: Sequence[int]) -> Any:
        ends = boundaries(lengths)[1:].long() - 1
        return (ids(sum(lengths)).clamp(min=1).index_fill(0, ends, 0),)

    return Program(call, over(batch, ALIGNED))
