"""Shifts and boundaries inside and around checkpoints: what is right already must stay as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import packpass
from tests.trainers.models import LENGTHS, batches

EAGER = {"packpass.inner_backend": "eager"}


def flipped(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A loop that says how rows are cut."""
    documents = [x[:, cu_seqlens[i] : cu_seqlens[i + 1]].flip(1) for i in range(len(cu_seqlens) - 1)]
    return x + torch.cat(documents, dim=1)


def ends(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """True at the last slot of each document."""
    slots = torch.arange(x.shape[1], device=x.device)
    return (slots[:, None] == cu_seqlens[1:] - 1).any(1)


def bounded(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A shift that treats the ends of documents itself."""
    shifted = torch.roll(x, -1, dims=1)
    shifted[:, -1] = 0
    return torch.where(ends(x, cu_seqlens), torch.full_like(x, 7), shifted)


def naive(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    shifted = torch.roll(x, -1, dims=1)
    return torch.cat([shifted[:, :-1], torch.zeros_like(x[:, :1])], 1) * 2


def inside(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The shift that treats ends itself is checkpointed, the loop is not."""
    return flipped(x, cu_seqlens) + checkpoint(bounded, x, cu_seqlens, use_reentrant=False)


def mask_from_inside(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The mask comes out of a checkpoint."""
    mask = checkpoint(ends, x, cu_seqlens, use_reentrant=False)
    shifted = torch.roll(x, -1, dims=1)
    shifted[:, -1] = 0
    return flipped(x, cu_seqlens) + torch.where(mask, torch.full_like(x, 7), shifted)


def both_inside(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The loop in one checkpoint, the shift that treats ends itself in another."""
    y = checkpoint(flipped, x, cu_seqlens, use_reentrant=False)
    return checkpoint(bounded, y, cu_seqlens, use_reentrant=False)


def naive_inside(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The loop in one checkpoint, a naive shift in another."""
    y = checkpoint(flipped, x, cu_seqlens, use_reentrant=False)
    return checkpoint(naive, y, cu_seqlens, use_reentrant=False)


def row() -> tuple[Tensor, Tensor]:
    batch = next(batches(LENGTHS))
    return torch.randn(batch["input_ids"].shape, requires_grad=True), batch["cu_seqlens"]


@pytest.mark.parametrize("function", [inside, mask_from_inside, both_inside])
def test_code_that_treats_boundaries_itself_is_left_alone(function: Callable[..., Any]) -> None:
    x, cu_seqlens = row()
    report = packpass.explain(function, options=EAGER)(x, cu_seqlens)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]
    assert "already-bounded" in [refusal.code for refusal in report.refusals]
    assert torch.equal(report.result, function(x, cu_seqlens))


def test_a_naive_shift_in_a_checkpoint_of_its_own() -> None:
    x, cu_seqlens = row()
    report = packpass.explain(naive_inside, options=EAGER)(x, cu_seqlens)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments", "pack_shifts"]
    for start, end in itertools.pairwise(cu_seqlens.tolist()):
        alone = naive_inside(x[:, start:end], torch.tensor([0, end - start]))
        assert torch.equal(report.result[:, start:end], alone)
