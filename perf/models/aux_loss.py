"""Losses beside the main one: how they get their gradient, and how they are logged."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor


class AuxLoss(torch.autograd.Function):
    """``AuxLoss.apply(hidden, loss, scale)`` is ``hidden``; its backward adds the gradient of ``scale * loss``.

    So an auxiliary loss is trained although only the main loss is returned and differentiated.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(loss, scale)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        loss, scale = ctx.saved_tensors
        return grad, torch.ones_like(loss) * scale, None


class AutoScaledAuxLoss(torch.autograd.Function):
    """The same in the form that training frameworks have: the scale is set once per step, from outside, on the class,
    and read when the backward runs."""

    scale: ClassVar[Tensor] = torch.tensor(1.0)

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss) * AutoScaledAuxLoss.scale

    @staticmethod
    def set_scale(scale: Tensor) -> None:
        AutoScaledAuxLoss.scale = scale


class DepthLosses:
    """Sums of the losses of every depth and of the tokens they count, over steps, micro-batches and processes."""

    def __init__(self, depths: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(depths, device=device)
        self.tokens = torch.zeros(depths, device=device)

    def save(self, depth: int, loss: Tensor, tokens: Tensor) -> None:
        """Add the summed loss (0-d) of ``tokens`` (0-d) tokens; called inside the forward."""
        self.sums[depth] += loss.detach()
        self.tokens[depth] += tokens.detach()

    def reduce(self, group: dist.ProcessGroup | None = None) -> list[float]:
        """Loss per token of every depth, over all processes of ``group`` (default: the world, if there is one)."""
        both = torch.stack((self.sums, self.tokens))
        if dist.is_initialized():
            dist.all_reduce(both, group=group)
        means: list[float] = (both[0] / both[1].clamp(min=1)).tolist()
        return means

    def clear(self) -> None:
        self.sums.zero_()
        self.tokens.zero_()
