"""Shifted rows of hidden states have a gradient where the code as written has one, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import packpass

CU = torch.tensor([0, 3, 5, 9])
Roll = Callable[[Tensor], Tensor]


def reference(h: Tensor) -> Tensor:
    keep = torch.ones(9, dtype=torch.bool)
    keep[CU[1:] - 1] = False
    return torch.where(keep, torch.roll(h, -1, -1), 0.0)


def naive(h: Tensor) -> Tensor:
    out = torch.roll(h, -1, -1)
    out[..., -1] = 0.0
    return out


def beside_its_source(h: Tensor, roll: Roll) -> Tensor:
    return roll(h.detach()) + roll(h)


def detached(h: Tensor, roll: Roll) -> Tensor:
    return roll(h.detach()) * h


def without_recording(h: Tensor, roll: Roll) -> Tensor:
    with torch.no_grad():
        shifted = roll(h)
    return shifted * h


def of_one_without(h: Tensor, roll: Roll) -> Tensor:
    with torch.no_grad():
        shifted = roll(h)
    return roll(shifted) * h


def second_without(h: Tensor, roll: Roll) -> Tensor:
    first = roll(h)
    with torch.no_grad():
        second = roll(first)
    return first * h + second


def looked_at_first_without(h: Tensor, roll: Roll) -> Tensor:
    shifted = roll(h)
    with torch.no_grad():
        scale = shifted.abs().sum()
    return shifted * scale


def chain_looked_at_first_without(h: Tensor, roll: Roll) -> Tensor:
    first = roll(h)
    second = roll(first)
    with torch.no_grad():
        scale = second.abs().sum()
    return first * scale + second


def detached_between(h: Tensor, roll: Roll) -> Tensor:
    first = roll(h)
    return roll(first.detach()) * h + first


PROGRAMS = [
    beside_its_source, detached, without_recording, of_one_without, second_without, looked_at_first_without,
    chain_looked_at_first_without, detached_between,
]  # fmt: skip


@pytest.mark.parametrize("spelling", ["naive", "op"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradient(program: Callable[[Tensor, Roll], Tensor], spelling: str) -> None:
    torch._dynamo.reset()

    def model(h: Tensor, cu: Tensor) -> Tensor:
        if spelling == "op":
            return program(h, lambda row: packpass.ops.packed_roll(row, cu, -1))
        return program(packpass.packed(h, cu), naive)

    h = torch.randn(9, requires_grad=True)
    weights = torch.randn(9)
    report = packpass.explain(model, fullgraph=True, options={"packpass.inner_backend": "eager"})(h, CU)
    want = program(h, reference)
    assert torch.equal(report.result, want)
    (grad,) = torch.autograd.grad(report.result, h, weights)
    (expected,) = torch.autograd.grad(want, h, weights)
    assert torch.allclose(grad, expected)
    assert spelling == "op" or any(r.rule == "pack_shifts" for r in report.rewrites)
