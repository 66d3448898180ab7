"""Rewritten loops that write one input while they read another: a call in which the two share memory runs as it was.

Dynamo guards against one tensor being given twice, not against views of one tensor. The rewritten graph reads every
document before it writes the first, so such a call is handed to the graph as it was captured, run document by document.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass.engine.replay import NotReplayable
from packpass.engine.replay_ways import reference

log = logging.getLogger("packpass.backend")


def unless_overlapping(
    groups: Sequence[Sequence[int]], compiled: Callable[..., Any], original: fx.GraphModule, doubt: str
) -> Callable[..., Any]:
    """``compiled``, but ``original`` for calls in which two inputs of one group (positions) share memory.

    ``doubt`` is that of `replay`.
    """
    fallback: list[Callable[..., Any]] = []

    def run(*inputs: Any) -> Any:
        if not any(overlap([inputs[i] for i in group]) for group in groups):
            return compiled(*inputs)
        if not fallback:
            log.info("arguments share memory; this call runs document by document")
            try:
                fallback.append(reference(original, doubt))
            except NotReplayable as reason:
                raise RuntimeError(
                    "packpass: arguments that share memory were given to a loop that writes one of them, and the loop "
                    f"cannot be run as it was ({reason}). Give it a copy, or compile with "
                    'options={"packpass.disable": ["vectorize_segments"]}'
                ) from reason
        return fallback[0](*inputs)

    return run


def overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """May any two of these tensors share memory? Compares the ranges from their first to their last element."""
    ranges = sorted(map(_range, tensors))
    return any(following[0] < before[1] for before, following in itertools.pairwise(ranges))


def _range(x: torch.Tensor) -> tuple[int, int]:
    if x.numel() == 0:
        return x.data_ptr(), x.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
