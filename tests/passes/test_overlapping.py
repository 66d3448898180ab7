"""Documents that write to memory which several slots share; torch allows it where a document has one slot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import packpass
from passes.overlapping import is_apart

Program = Callable[[Tensor, Tensor], Tensor]


def _expanded(x: Tensor) -> Tensor:
    return torch.zeros(1, 4).expand(x.shape[0], 4)


def _strided(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0] + 3).as_strided((x.shape[0], 4), (1, 1))


def pairs(x: Tensor, out: Tensor, s: int, e: int) -> None:
    out[s:e] = (x[s:e, None, 0] - x[None, s:e, 0]).exp() @ x[s:e]


def numbers(x: Tensor, out: Tensor, s: int, e: int) -> None:
    out[s:e] = x[s:e] * 2


def added(x: Tensor, out: Tensor, s: int, e: int) -> None:
    out[s:e] += x[s:e]


def copied(x: Tensor, out: Tensor, s: int, e: int) -> None:
    out[s:e].copy_(x[s:e])


@pytest.mark.parametrize("body", [pairs, numbers, added, copied], ids=lambda f: f.__name__)
@pytest.mark.parametrize("make", [_expanded, _strided], ids=lambda f: f.__name__)
def test_left_alone(body: Callable[..., None], make: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = make(x)
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            body(x, out, s, e)
        return out + 0

    report = packpass.explain(program)(torch.randn(3, 4), torch.arange(4))
    assert not report.rewrites and {refusal.code for refusal in report.refusals} == {"aliasing"}
    assert "x.clone()" in report.refusals[0].reason
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for count in (3, 5):
        x, cu = torch.randn(count, 4), torch.arange(count + 1)
        torch.testing.assert_close(compiled(x, cu), program(x, cu))


def test_rows_of_an_expanded_tensor() -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = torch.zeros(1, 4).expand(cu.shape[0] - 1, 4)
        for i in range(cu.shape[0] - 1):
            out[i] = x[cu[i] : cu[i + 1]].sum(0)
        return out + 0

    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for bounds in ((0, 2, 7), (0, 1, 4, 6)):
        x, cu = torch.randn(bounds[-1], 4), torch.tensor(bounds)
        torch.testing.assert_close(compiled(x, cu), program(x, cu))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(2, x.shape[0], 4).transpose(0, 1)[:, 1],
        lambda x: torch.zeros(4, x.shape[0]).t(),
        lambda x: torch.zeros(2 * x.shape[0], 4)[::2],
        lambda x: torch.empty_like(x.expand(x.shape)).zero_(),
        lambda x: x.new_zeros(1, 4).expand(x.shape[0], 4).clone(),
    ],
)
def test_views_with_places_of_their_own_are_written(make: Callable[[Tensor], Tensor]) -> None:
    def program(x: Tensor, cu: Tensor) -> Tensor:
        out = make(x)
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e] - x[s:e].mean(0)
        return out + 0

    x, cu = torch.randn(9, 4), torch.tensor([0, 2, 7, 9])
    report = packpass.explain(program)(x, cu)
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"] and not report.refusals
    torch.testing.assert_close(report.result, program(x, cu))


def test_strides() -> None:
    assert is_apart([(4, 3), (1, 4)]) and is_apart([(1, 4), (4, 3)]) and is_apart([(0, 1), (7, 2)]) and is_apart([])
    assert is_apart([(12, 5), (4, 2), (1, 4)]) and is_apart([(2, 3)]) and is_apart([(5, 2), (1, 4)])
    assert not is_apart([(0, 3), (1, 4)]) and not is_apart([(1, 3), (1, 4)]) and not is_apart([(3, 5), (1, 4)])
