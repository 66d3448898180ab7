"""A model that knows no boundaries on a packed row, and the same document by document."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclasses.dataclass
class Program:
    """A model and one batch; ``row``: the packed dimension of what it is given and, ``out``, of what it returns."""

    name: str
    model: nn.Module
    given: Tensor
    bounds: tuple[int, ...]
    row: int
    out: int

    def step(self, call: Callable[..., Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Forward and backward on the packed row."""
        return self._gradients(call(self.given, torch.tensor(self.bounds, device=self.given.device)))

    def alone(self) -> tuple[Tensor, list[Tensor]]:
        """The same document by document, in eager."""
        outs = []
        for a, b in pairwise(self.bounds):
            x = self.given.narrow(self.row, a, b - a)
            outs.append(self.model(x, torch.tensor([0, b - a], device=x.device)))
        return self._gradients(torch.cat(outs, self.out))

    def _gradients(self, out: Tensor) -> tuple[Tensor, list[Tensor]]:
        # Not a smooth ramp: what a normalisation lets through of one is mostly rounding.
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.device)
        wanted = [*self.model.parameters(), *([self.given] if self.given.requires_grad else [])]
        found = torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)
        return out.detach(), [g for g in found if g is not None]


def bounds_of(total: int, documents: int) -> tuple[int, ...]:
    """Lengths of 1 to 2 times the shortest."""
    weights = [1 + (3 * d % documents) / documents for d in range(documents)]
    ends = [round(total * sum(weights[: d + 1]) / sum(weights)) for d in range(documents)]
    return (0, *ends)


def error_of(want: tuple[Tensor, Sequence[Tensor]], got: tuple[Tensor, Sequence[Tensor]]) -> float:
    """The largest difference of outputs and gradients, each as a share of its largest value (or of 1)."""
    pairs = [(want[0], got[0]), *zip(want[1], got[1], strict=True)]
    return max(float((b - a).abs().max()) / max(1.0, float(a.abs().max())) for a, b in pairs)
