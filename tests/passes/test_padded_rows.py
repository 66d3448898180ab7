"""Padded batches and packed rows in one loop: rows, masks, parts of documents; values and gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report
from tests.passes.padded_rows import LOOK_ALIKES, PROGRAMS, boundaries, chunked, from_mask_to_mask, mask, rows

BATCHES = ((4, 8), (16, 4, 8, 12), (8,) * 5, (12, 4, 4, 8, 20, 4))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for item in value for t in flat(item)]


def step(fn: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor | None]:
    """Results and gradients."""
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    for leaf in leaves:
        leaf.grad = None
    given = [a.clone() if isinstance(a, Tensor) and not a.requires_grad else a for a in args]
    out = flat(fn(*given))
    differentiable = [t for t in out if t.requires_grad]
    if differentiable:
        torch.stack([(t * torch.arange(t.numel()).view(t.shape)).sum() for t in differentiable]).sum().backward()  # type: ignore[no-untyped-call]
    return [t.detach() for t in out] + [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def run(fn: Callable[..., Any], make: Any, inner: str = "eager") -> Report:
    """Every batch as eager has it; what packpass says about it."""
    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": inner})
    with collecting(Report()) as said:
        for lengths in BATCHES:
            args = make(lengths)
            for got, want in zip(step(compiled, args), step(fn, args), strict=True):
                if got is None or want is None:
                    assert got is None and (want is None or not want.any())
                    continue
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
    return said


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_rewritten(fn: Callable[..., Any]) -> None:
    torch._dynamo.utils.counters.clear()
    said = run(fn, PROGRAMS[fn])
    assert said.rewrites and not said.refusals
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("fn", LOOK_ALIKES, ids=lambda fn: fn.__name__)
def test_look_alikes_stay_right(fn: Callable[..., Any]) -> None:
    run(fn, LOOK_ALIKES[fn])


def test_documents_that_must_divide() -> None:
    """The program says so itself."""
    compiled = torch.compile(chunked, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, cu = torch.randn(1, 12, 3), boundaries((4, 8))
    torch.testing.assert_close(compiled(x, cu), chunked(x, cu))
    with pytest.raises((AssertionError, RuntimeError)):
        compiled(x, boundaries((5, 7)))


def test_masks_that_do_not_fit() -> None:
    compiled = torch.compile(from_mask_to_mask, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x = rows((3, 5))
    with pytest.raises(RuntimeError):
        from_mask_to_mask(x, mask((3, 5)), mask((3, 4), 5))
    with pytest.raises(RuntimeError, match="different numbers of slots"):
        compiled(x, mask((3, 5)), mask((3, 4), 5))


def test_one_slot_for_many() -> None:
    """A row with one true place is written to all that another mask picks, as tensors of one entry are."""
    compiled = torch.compile(from_mask_to_mask, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, to, of = rows((3, 5)), mask((3, 5)), mask((1, 5), 5, left=True)
    torch.testing.assert_close(compiled(x, to, of), from_mask_to_mask(x, to, of))


def test_rows_without_any_true_place() -> None:
    compiled = torch.compile(from_mask_to_mask, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, both = rows((3, 5, 2)), mask((0, 5, 0), 5)
    torch.testing.assert_close(compiled(x, both, both), from_mask_to_mask(x, both, both))


@pytest.mark.parametrize("name", ["zipped", "packed_by_masks", "shard"])
def test_through_inductor(name: str) -> None:
    fn = next(fn for fn in PROGRAMS if fn.__name__ == name)
    assert run(fn, PROGRAMS[fn], "inductor").rewrites
