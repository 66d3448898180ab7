"""Tensors of several lengths in one, as plain code for Dynamo, as `packpass.capture.plain` is."""

from __future__ import annotations

from typing import Any

import torch

from packpass.capture.plain import of_tolist
from packpass.capture.plain_parts import of_split


def jagged(row: Any, offsets: Any) -> Any:
    """``torch.nested.as_nested_tensor``, which also notes the smallest and the largest length: how wide the padded
    tensor is that is made of it says nothing else."""
    lengths = offsets.diff()
    smallest, largest = lengths.min().item(), lengths.max().item()
    return torch.nested.nested_tensor_from_jagged(row, offsets, min_seqlen=smallest, max_seqlen=largest)


def of_jagged(x: Any) -> Any:
    """The tensors of a jagged one: its row, split by their lengths."""
    return of_split(x.values(), of_tolist(x.offsets().diff()), 0)
