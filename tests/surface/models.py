"""Small programs for the surface tests. At module level, so that pickling and the command line find them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import packpass

EAGER: dict[str, Any] = {"packpass.inner_backend": "eager"}


def roll_documents(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        start, end = cu_seqlens[i], cu_seqlens[i + 1]
        out[..., start:end] = torch.roll(x[..., start:end], -1, -1)
    return out


def double(x: Tensor) -> Tensor:
    return x * 2


def breaks_once(x: Tensor) -> Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


class Scale(nn.Module):
    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@packpass.compile(options=EAGER)
class CompiledScale(nn.Module):
    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        """Scales."""
        return x * self.factor * (2 if torch.compiler.is_compiling() else 1)


class ScaleAndShift(CompiledScale):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (1 if not torch.compiler.is_compiling() else 100)


class Inherits(CompiledScale):
    pass


class MethodCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = 5

    @packpass.compile(options=EAGER)
    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset * (2 if torch.compiler.is_compiling() else 1)


class NotAModule:
    def forward(self, x: Tensor) -> Tensor:
        return x


def make_roll() -> tuple[Any, tuple[Tensor, ...]]:
    return roll_documents, (torch.arange(12), torch.tensor([0, 3, 7, 12]))


def make_scale() -> tuple[Any, tuple[Tensor, ...], dict[str, Any]]:
    return Scale(), (), {"x": torch.randn(4)}


def make_failing() -> tuple[Any, tuple[Tensor, ...]]:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("the model is broken")

    return fail, (torch.zeros(1),)


def make_no_tuple() -> Any:
    return Scale()


def make_bare_args() -> tuple[Any, Tensor]:
    return Scale(), torch.zeros(1)


not_callable = 3
