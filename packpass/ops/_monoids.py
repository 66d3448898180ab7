"""Ways to put slots together one after the other, for `segment_reduce` and `segment_scan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from packpass.ops._segment_geometry import highest, lowest

Number = float | int | bool


@dataclasses.dataclass(frozen=True)
class Monoid:
    """An associative operation and what changes nothing when it is put in beside."""

    scan: str
    """What `segment_scan` calls it."""
    reduction: str | None
    """What `segment_reduce` calls it, if it knows it."""
    combine: Callable[[Tensor, Tensor], Tensor]
    identity: Callable[[torch.dtype], Number]
    functor: str
    """The type in ``_segment_kernels.h``."""


def _always(value: Number) -> Callable[[torch.dtype], Number]:
    return lambda dtype: value


_ALL = (
    Monoid("sum", "sum", torch.add, _always(0), "Sum"),
    Monoid("prod", "prod", torch.mul, _always(1), "Prod"),
    Monoid("max", "amax", torch.maximum, lowest, "Max"),
    Monoid("min", "amin", torch.minimum, highest, "Min"),
    Monoid("logsumexp", None, torch.logaddexp, _always(float("-inf")), "LogSumExp"),
)
SCANS = {monoid.scan: monoid for monoid in _ALL}
REDUCTIONS = {monoid.reduction: monoid for monoid in _ALL if monoid.reduction is not None}
OF_EVERYTHING = {"max": "amax", "min": "amin"}
"""Extremes over all dimensions, ``x.max()``, and those over some of them: they differ in the gradients of NaN alone."""


def reduction(name: str) -> Monoid:
    """What a reduction combines by; raises KeyError."""
    return REDUCTIONS[OF_EVERYTHING.get(name, name)]
