"""Documents that lie elsewhere in another tensor: what does not fit is as in eager, and what is left alone says why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import packpass
from tests.stock import codes

EAGER = {"packpass.inner_backend": "eager"}
CU = torch.tensor([0, 3, 4, 12])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def unpadded(rows: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([rows[i, :n] for i, n in enumerate(cu.diff().tolist())])


def padded(x: Tensor, cu: Tensor, width: int) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, width)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        out[i, : e - s] = x[s:e]
    return out


def test_rows_that_are_too_short_to_read() -> None:
    run = torch.compile(unpadded, backend=packpass.backend, options=EAGER)
    rows = torch.randn(3, 8)
    torch.testing.assert_close(run(rows, CU), unpadded(rows, CU))
    short = torch.tensor([0, 3, 4, 13])
    torch.testing.assert_close(run(rows, short), unpadded(rows, short))


def test_rows_that_are_too_short_to_write() -> None:
    run = torch.compile(padded, backend=packpass.backend, options=EAGER)
    x = torch.randn(12)
    torch.testing.assert_close(run(x, CU, 8), padded(x, CU, 8))
    with pytest.raises(RuntimeError):
        padded(x, CU, 7)
    with pytest.raises(RuntimeError):
        run(x, CU, 7)


def test_too_few_rows() -> None:
    def f(x: Tensor, out: Tensor, cu: Tensor) -> Tensor:
        for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
            out[i, : e - s] = x[s:e]
        return out

    run = torch.compile(f, backend=packpass.backend, options=EAGER)
    x = torch.randn(12)
    torch.testing.assert_close(run(x, torch.zeros(3, 9), CU), f(x, torch.zeros(3, 9), CU))
    with pytest.raises((RuntimeError, IndexError)):
        f(x, torch.zeros(2, 9), CU)
    with pytest.raises((RuntimeError, IndexError)):
        run(x, torch.zeros(2, 9), CU)


def test_poisoned_padding() -> None:
    """NaN in the padding of a batch reaches neither values nor gradients of the documents."""
    rows = torch.randn(3, 9)
    rows[0, 3:] = float("nan")
    grads = []
    for fn in (unpadded, torch.compile(unpadded, backend=packpass.backend, options=EAGER)):
        leaf = rows.clone().requires_grad_()
        out = fn(leaf, CU)
        assert torch.isfinite(out).all()
        out.square().sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.slow
def test_backward_through_inductor() -> None:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        return padded(x * 2, cu, 9) + 1

    grads = []
    for fn in (f, torch.compile(f, backend=packpass.backend)):
        x = torch.arange(12.0, requires_grad=True)
        fn(x, CU).square().sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_an_empty_document_at_the_end_of_a_row() -> None:
    """Python takes ``[-0:]`` for the whole row."""

    def f(rows: Tensor, cu: Tensor) -> Tensor:
        return torch.cat([rows[i, -n:] for i, n in enumerate(cu.diff().tolist())])

    run = torch.compile(f, backend=packpass.backend, options=EAGER)
    rows = torch.randn(3, 9)
    torch.testing.assert_close(run(rows, CU), f(rows, CU))
    empty = torch.tensor([0, 3, 3, 12])
    torch.testing.assert_close(run(rows, empty), f(rows, empty))


def test_overlapping_documents_are_refused() -> None:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        out = x.new_zeros(20)
        for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
            out[i : i + e - s] += x[s:e]
        return out

    report = packpass.explain(f, options=EAGER)(torch.randn(12), CU)
    assert not report.rewrites
    assert {r.code for r in report.refusals} <= codes("aliasing")
    assert report.refusals


def test_numpy_entries_of_32_bits_are_refused_by_name() -> None:
    """What is made of them has their dtype."""

    def f(x: Tensor, cu: Tensor) -> Tensor:
        bounds = cu.int().numpy()
        return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:], strict=True)])

    x = torch.randn(12)
    report = packpass.explain(f, options=EAGER)(x, CU)
    torch.testing.assert_close(report.result, f(x, CU))
    assert [(r.code, "numpy" in r.reason) for r in report.refusals] == [("sequence-use", True)]
