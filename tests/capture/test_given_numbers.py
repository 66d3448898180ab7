"""How many documents there are, told beside boundaries with padding: what a number may be, and what it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass import backend

CU = [0, 3, 7, 8, 12, 12]
PADDING = [-5, 77]


def rolled(x: Tensor, cu: Tensor, n: Any) -> Tensor:
    out = x * 2
    for i in range(n):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].roll(1, 0)
    return out


def from_lists(x: Tensor, cu: Tensor, n: Any) -> Tensor:
    ends, parts = cu.tolist(), [x[:1]]
    for s, e in zip(ends[:n], ends[1 : n + 1]):
        parts.append(x[s:e].cumsum(0))
    return torch.cat(parts)


def stacked(x: Tensor, cu: Tensor, n: Any) -> Tensor:
    documents = int(n)
    return torch.stack([x[0], *(x[cu[i] : cu[i + 1]].sum(0) for i in range(documents))])


def up_to_padding(x: Tensor, cu: Tensor, n: Any) -> Tensor:
    total, documents = x.new_zeros(3), 0
    for i in range(len(cu) - 1):
        if cu[i + 1] < 0:
            break
        total = total + x[cu[i] : cu[i + 1]].sum(0)
        documents += 1
    return x * total + documents


KINDS: dict[str, Callable[[int], Any]] = {"tensor": torch.tensor, "one entry": lambda n: torch.tensor([n]), "int": int}


def batch(documents: int, kind: str, told: int | None = None) -> tuple[Tensor, Tensor, Any]:
    cu = [*CU[: documents + 1], *PADDING[: 1 + documents % 2]]
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(documents))
    return x.requires_grad_(), torch.tensor(cu), KINDS[kind](documents if told is None else told)


def same(fn: Callable[..., Tensor], compiled: Callable[..., Tensor], *args: Any) -> None:
    expected = fn(*args)
    (wanted,) = torch.autograd.grad(expected.sum(), args[0])
    found = compiled(*args)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), args[0])[0], wanted)


def rewritten(fn: Callable[..., Tensor], kind: str, inner: str) -> None:
    """In a few graphs without a break, for any number of documents."""
    options = {"packpass.inner_backend": inner}
    torch._dynamo.reset()
    report = packpass.explain(fn, options=options)(*batch(3, kind))
    assert [rewrite.rule for rewrite in report.rewrites] == ["vectorize_segments"] and not report.refusals
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(fn, backend=backend, fullgraph=True, options=options)
    for documents in (3, 5, 2, 4):
        same(fn, compiled, *batch(documents, kind))
    assert counters["stats"]["unique_graphs"] <= 3


@pytest.mark.parametrize(
    ("fn", "kind", "inner"),
    [
        (rolled, "tensor", "eager"), (rolled, "tensor", "inductor"),
        (from_lists, "one entry", "eager"), (from_lists, "tensor", "inductor"),
        (stacked, "tensor", "eager"), (stacked, "one entry", "inductor"),
        (up_to_padding, "tensor", "eager"), (up_to_padding, "tensor", "inductor"),
    ],
)  # fmt: skip
def test_tensors(fn: Callable[..., Tensor], kind: str, inner: str) -> None:
    rewritten(fn, kind, inner)


@pytest.mark.parametrize("fn", [rolled, from_lists, stacked])
def test_numbers_of_python(fn: Callable[..., Tensor]) -> None:
    rewritten(fn, "int", "eager")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["tensor", "int"])
@pytest.mark.parametrize("fn", [rolled, stacked])
def test_none_and_too_many(fn: Callable[..., Tensor], kind: str) -> None:
    compiled = torch.compile(fn, backend=backend, options={"packpass.inner_backend": "eager"})
    for told in (3, 0, 1, -2, 2):
        same(fn, compiled, *batch(3, kind, told))
    for told in (9, 99):
        with pytest.raises((IndexError, RuntimeError)):
            fn(*batch(3, kind, told))
        with pytest.raises((IndexError, RuntimeError)):
            compiled(*batch(3, kind, told))


def test_numbers_of_other_things() -> None:
    """Python's range() takes a tensor of one integer."""

    def scaled(x: Tensor, n: Tensor) -> Tensor:
        for _ in range(n):
            x = x * 1.5
        return x

    def layered(x: Tensor, cu: Tensor, n: Any) -> Tensor:
        for k in range(n):
            out = torch.zeros_like(x)
            for i in range(len(cu) - 1):
                out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0) * (k + 1)
            x = out
        return x

    for n in (3, 2, 4):
        x = torch.randn(12, 3)
        found = torch.compile(scaled, backend=backend)(x, torch.tensor(n))
        torch.testing.assert_close(found, scaled(x, torch.tensor(n)))
    compiled = torch.compile(layered, backend=backend, options={"packpass.inner_backend": "eager"})
    for n in (3, 2, 4):
        x, cu = torch.randn(12, 3), torch.tensor(CU)
        torch.testing.assert_close(compiled(x, cu, n), layered(x, cu, n))


def test_a_loop_that_is_refused_is_named() -> None:
    def carried(x: Tensor, cu: Tensor, n: Tensor) -> Tensor:
        state, parts = x.new_zeros(3), []
        for i in range(int(n)):
            part = x[cu[i] : cu[i + 1]]
            parts.append(part + state)
            state = state * 0.5 + part.sum(0)
        return torch.cat(parts)

    report = packpass.explain(carried)(*batch(3, "tensor"))
    assert "carried-state" in {refusal.code for refusal in report.refusals}
