"""One loop for many bodies: what a body makes of a document is collected and put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

Body = Callable[[Tensor], Tensor]
LENGTHS = ((3, 20, 9, 1), (7,), tuple(1 + (5 * d) % 23 for d in range(12)), (4, 0, 0, 18, 3), (0, 6))
"""Documents of a row, with ones of more than 16 slots, which torch sorts in another way, and empty ones."""


def program(body: Body, join: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The loop around a body; ``join``: "cat" or "stack"."""

    def collected(x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out.append(body(x[s:e]))
        return torch.cat(out) if join == "cat" else torch.stack(out)

    return collected


def arguments(lengths: tuple[int, ...], nan: bool = False) -> tuple[Tensor, Tensor]:
    """A row with ties that begins before and goes on behind its documents, with NaN and infinities there."""
    bounds = [1]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    total = bounds[-1] + 2
    rng = torch.Generator().manual_seed(total)
    x = torch.randint(-9, 10, (total, 4), generator=rng) / 4
    if nan:
        x[torch.rand(total, 4, generator=rng) < 0.1] = float("nan")
    x[0], x[-2], x[-1] = float("nan"), float("inf"), float("nan")
    return x.requires_grad_(), torch.tensor(bounds)


def outcome(fn: Callable[..., Tensor], lengths: tuple[int, ...], nan: bool) -> tuple[Tensor, Tensor | None]:
    x, cu = arguments(lengths, nan)
    result = fn(x, cu)
    if result.requires_grad:
        weight = torch.linspace(-1, 1, result.numel()).view(result.shape)
        (result.float() * weight).nan_to_num(0, 0, 0).sum().backward()
    return result.detach(), x.grad


def compiled(fn: Callable[..., Any], inner: str = "eager") -> Callable[..., Any]:
    return torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": inner}, fullgraph=True)


def equal_to_eager(
    body: Body, join: str, least: int = 0, *, nan: bool = False, inner: str = "eager", rule: str = "vectorize_segments"
) -> None:
    """The loop is rewritten, and results and gradients are eager's for every row."""
    fn = program(body, join)
    rows = [tuple(max(n, least) for n in lengths) for lengths in LENGTHS]
    fast, report = compiled(fn, inner), Report()
    for lengths in rows[:3] if inner == "inductor" else rows:
        with collecting(report):
            got = outcome(fast, lengths, nan)
        assert {r.rule for r in report.rewrites} == {rule}, report.refusals
        assert not report.refusals
        want = outcome(fn, lengths, nan)
        for a, b in zip(want, got, strict=True):
            if a is None or b is None:
                assert a is b or not (a if b is None else b).any()  # type: ignore[union-attr]
            else:
                torch.testing.assert_close(b, a, rtol=2e-6, atol=2e-6, equal_nan=True)


def raises_as_eager(body: Body, join: str) -> None:
    """A document without slots makes eager raise, and the rewritten loop too."""
    fn = program(body, join)
    fast = compiled(fn)
    fast(*arguments(tuple(max(n, 5) for n in LENGTHS[0])))
    for call in (fn, fast):
        with pytest.raises((RuntimeError, IndexError)):
            call(*arguments((6, 0, 5)))


def refusal_of(body: Body, join: str) -> str:
    """Why nothing was rewritten; what runs instead gives eager's results."""
    fn = program(body, join)
    lengths = (6, 20, 9, 7)
    report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(*arguments(lengths))
    assert not report.rewrites, report.rewrites
    want = outcome(fn, lengths, False)[0]
    torch.testing.assert_close(report.result.detach(), want, equal_nan=True)
    return report.refusals[0].reason
