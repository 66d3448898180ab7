"""Shifts of several fields and depths, of batches in containers, with boundaries under every well-known name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.shifts.harness import LONG, rewrites


@rewrites()
def from_a_dict(batch_dict):
    y = torch.roll(batch_dict["input_ids"], -1, 1)
    y[:, -1] = -100
    return y


@rewrites()
def from_packed_seq_params(input_ids, packed_seq_params):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y, packed_seq_params.cu_seqlens_q.numel() * 0


@rewrites()
def parameters_nobody_reads(input_ids, packed_seq_params):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y


@rewrites()
def flash_arguments(input_ids, cu_seq_lens_q, cu_seq_lens_k, max_seqlen):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y


@rewrites()
def query_and_key_boundaries(input_ids, cu_seqlens_q, cu_seqlens_kv):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y


def _shift(x: Tensor, k: int, fill: Any) -> Tensor:
    y = torch.roll(x, -k, -1)
    y[..., -k:] = fill
    return y


@rewrites(count=3)
def by_a_helper(input_ids, labels, loss_mask, cu_seqlens):
    return _shift(input_ids, 1, 0), _shift(labels, 2, -100), _shift(loss_mask, 1, 0.0)


@rewrites(count=12, tails=False)
def depths_of_fields(input_ids, labels, position_ids, loss_mask, cu_seqlens):
    out = []
    for _ in range(3):
        input_ids, labels, position_ids = (
            _shift(x, 1, f) for x, f in ((input_ids, 0), (labels, -100), (position_ids, 0))
        )
        loss_mask = _shift(loss_mask, 1, 0)
        out.append((input_ids, labels, position_ids, loss_mask, loss_mask.sum()))
    return out


@rewrites(count=4, rows=LONG, tails=False)
def depths_from_the_source(labels, cu_seqlens):
    return [F.pad(labels[:, d + 1 :], (0, d + 1), value=-100) for d in range(4)]
