"""Loops over documents and transforms of ``torch.func``: inside of one they are left alone, outside they are rewritten.

A graph that opens a transform and fails before it is closed must not leave it open: what runs next would be inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass import _compat
from packpass.decisions.records import collecting
from packpass.reports.report import Report

from .compiling import fresh

CU = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
Function = Callable[[Tensor, Tensor, Tensor], Any]


def energy(x: Tensor, w: Tensor, cu: Tensor) -> Any:
    spans = zip(cu[:-1].tolist(), cu[1:].tolist())
    return sum((x[s:e] * w[s:e]).pow(2).mean() for s, e in spans)


def gradient(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    return torch.func.grad(lambda row: energy(row, w, cu))(x)


def gradient_of_writes(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    def loss(row: Tensor) -> Tensor:
        out = torch.zeros_like(row)
        for s, e in zip(cu[:-1], cu[1:]):
            out[s:e] = row[s:e].cumsum(0) * w[s:e]
        return out.pow(2).sum()

    return torch.func.grad(loss)(x)


def second_derivatives(x: Tensor, w: Tensor, cu: Tensor) -> Any:
    return torch.func.hessian(lambda row: energy(row, w, cu))(x)


def along_a_tangent(x: Tensor, w: Tensor, cu: Tensor) -> Any:
    return torch.func.jvp(lambda row: energy(row, w, cu), (x,), (w,))[1]


def samples(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    def one(row: Tensor) -> Tensor:
        return torch.cat([row[s:e].roll(1, 0) for s, e in zip(cu[:-1], cu[1:])])

    return torch.vmap(one)(torch.stack((x, w)))


def made_before(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    weights = torch.zeros_like(w)
    for s, e in zip(cu[:-1], cu[1:]):
        weights[s:e] = w[s:e].cumsum(0)
    return torch.func.grad(lambda row: (row * weights).pow(2).sum())(x)


def used_behind(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    slope = torch.func.grad(lambda row: (row * w).pow(2).sum())(x)
    return torch.cat([slope[s:e].flip(0) for s, e in zip(cu[:-1], cu[1:])])


def rows() -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(9, generator=rng), torch.randn(9, generator=rng), CU.clone()


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [gradient, gradient_of_writes, second_derivatives, along_a_tangent, samples])
def test_inside_of_a_transform_loops_are_left_alone(function: Function, inner: str) -> None:
    options = {"packpass.inner_backend": inner}
    fresh()
    compiled, report = torch.compile(function, backend=packpass.backend, options=options), Report()
    for _ in range(2):  # the first call must not differ from those that find the frame compiled
        with collecting(report):
            got = compiled(*rows())
        torch.testing.assert_close(got, function(*rows()))
    assert not report.rewrites
    assert "body-not-traceable" in [refusal.code for refusal in report.refusals]


@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [made_before, used_behind])
def test_outside_of_it_they_are_rewritten(function: Function, inner: str) -> None:
    options = {"packpass.inner_backend": inner}
    fresh()
    compiled = torch.compile(function, backend=packpass.backend, options=options, fullgraph=True)
    report = Report()
    for _ in range(2):
        with collecting(report):
            got = compiled(*rows())
        torch.testing.assert_close(got, function(*rows()))
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"]
    assert not report.refusals


def test_what_an_error_leaves_open_is_closed() -> None:
    open_level = torch._C._functorch._grad_increment_nesting
    with pytest.raises(ValueError, match="in between"), _compat.transforms_closed():
        open_level()
        assert _compat.transforms_open() == 1
        raise ValueError("in between")
    assert _compat.transforms_open() == 0
    with _compat.transforms_closed():
        pass
    assert _compat.transforms_open() == 0
