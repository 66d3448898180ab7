"""megatron-core 0.16: rotary embeddings, rolls and losses of multi-token prediction on packed rows."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from tests.wild import megatron
from tests.wild.batches import boundaries, floats, ids, over
from tests.wild.case import Program, case

VERSION = "0.16"


@case("megatron-core==0.16.1")
def megatron_0_16_rope() -> Program:
    return megatron.rope(VERSION)


@case("megatron-core==0.16.1")
def megatron_0_16_rope_of_the_whole_row() -> Program:
    """Frequencies for every slot of the row: the other side of the branch on the last boundary."""
    group = megatron.megatron(VERSION)
    apply = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")._apply_rotary_pos_emb_thd

    def call(t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor) -> Any:
        return apply(t, cu_seqlens, freqs, cp_group=group)

    def batch(lengths: Sequence[int]) -> Any:
        total = sum(lengths)
        return floats(total, 4, 16, grad=True), boundaries(lengths), floats(total, 1, 1, 16, seed=1)

    return Program(call, over(batch, megatron.ALIGNED))


@case("megatron-core==0.16.1")
def megatron_0_16_roll() -> Program:
    return megatron.roll(VERSION)


@case("megatron-core==0.16.1")
def megatron_0_16_rolls_of_three_depths() -> Program:
    """As the multi-token prediction block does: ids, positions and mask, each depth from the one before."""
    megatron.megatron(VERSION)
    roll_tensor = importlib.import_module("megatron.core.transformer.multi_token_prediction").roll_tensor

    def call(tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, params: Any) -> Any:
        out: list[Any] = []
        for _ in range(3):
            tokens, _ = roll_tensor(tokens, shifts=-1, dims=-1, packed_seq_params=params)
            labels, _ = roll_tensor(labels, shifts=-1, dims=-1, packed_seq_params=params)
            mask, count = roll_tensor(mask, shifts=-1, dims=-1, packed_seq_params=params)
            out += [tokens, labels, mask, count]
        return out

    def batch(lengths: Sequence[int]) -> Any:
        row = (1, sum(lengths))
        return ids(*row), ids(*row, seed=1), floats(*row), megatron.packed_params(boundaries(lengths))

    return Program(call, over(batch))


@case("megatron-core==0.16.1")
def megatron_0_16_positions_and_masks() -> Program:
    return megatron.positions_and_masks(VERSION)
