"""What one call of a program gives, gradients included, and whether two calls gave the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .op_samples import OpProgram


UNINITIALISED = frozenset({"empty_like", "new_empty", "new_empty_strided"})
"""Operators whose results are whatever lies in memory."""


@dataclasses.dataclass
class Outcome:
    """Results and gradients of one call."""

    results: list[Tensor]
    grads: list[Tensor | None]


def outcome(fn: Any, program: OpProgram, layout: tuple[int, ...], seed: int = 3, wide: bool = False) -> Outcome:
    """One call (``wide``: in double precision), and one backward from all its results."""
    args, leaves = program.arguments(layout, wide)
    torch.manual_seed(seed)
    results = list(fn(*args))
    loss = [_weighted(r) for r in results if r.requires_grad]
    if loss and leaves:
        torch.stack(loss).sum().backward()
    return Outcome([r.detach() for r in results], [leaf.grad for leaf in leaves])


def _weighted(result: Tensor) -> Tensor:
    real = torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
    weights = (torch.arange(real.numel(), dtype=real.dtype) % 11 - 5).reshape(real.shape) / 4
    # What an op gives NaN for has no gradient to compare.
    return torch.where(real.isfinite(), real, 0).mul(weights).sum().double()


def difference(want: Outcome, got: Outcome, values: bool = True) -> str:
    """What is not the same, or an empty text."""
    for i, (a, b) in enumerate(zip(want.results, got.results, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i}: eager {a.dtype} {tuple(a.shape)}, compiled {b.dtype} {tuple(b.shape)}"
        if values and not _close(a, b):
            return f"result {i} differs"
    for i, (g, h) in enumerate(zip(want.grads, got.grads, strict=True)):
        if (g is None) != (h is None):
            return f"gradient {i}: eager {g is not None}, compiled {h is not None}"
        if g is not None and h is not None and values and not _close(g, h):
            return f"gradient {i} differs"
    return ""


def _close(a: Tensor, b: Tensor) -> bool:
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    finite = a[a.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def only_rounding(want: Outcome, got: Outcome, exact: Outcome) -> bool:
    """Are results that differ from eager's no further from those in double precision than eager's are?"""
    mine = [*got.results, *(g for g in got.grads if g is not None)]
    eager = [*want.results, *(g for g in want.grads if g is not None)]
    right = [*exact.results, *(g for g in exact.grads if g is not None)]
    if not len(mine) == len(eager) == len(right):
        return False
    return all(_no_further(a, b, c) for a, b, c in zip(mine, eager, right, strict=True))


def _no_further(mine: Tensor, eager: Tensor, right: Tensor) -> bool:
    if not mine.is_floating_point() or mine.shape != right.shape:
        return mine.shape == eager.shape and torch.equal(mine, eager)
    away, allowed = ((t.double() - right).abs() for t in (mine, eager))
    if not bool((mine.isfinite() == eager.isfinite()).all() & (eager.isfinite() == right.isfinite()).all()):
        return False
    scale = max(1.0, float(right[right.isfinite()].abs().max())) if bool(right.isfinite().any()) else 1.0
    return bool((away.nan_to_num(0) <= 2 * allowed.nan_to_num(0).amax() + 1e-5 * scale).all())
