"""A rule is registered for a kind of operation: every operation of the kind, and what looks like one and is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from tests.passes.test_documents_limits import CU, EAGER, refused, rewritten, spans

Part = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def stacked(part: Part) -> Callable[[Tensor, Tensor], Tensor]:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        return torch.stack([part(x[s:e]) for s, e in spans(cu)])

    return f


def written(part: Part) -> Callable[[Tensor, Tensor], Tensor]:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in spans(cu):
            out[s:e] = part(x[s:e])
        return out

    return f


OF_DOCUMENTS: dict[str, Part] = {
    "median": lambda d: d.sum(0).median(-1).values,
    "largest_of_all": lambda d: d.sum(0).view(2, 2).max(),
    "place_among_all": lambda d: d.sum(0).view(2, 2).argmin(),
    "place_among_all_kept": lambda d: d.sum(0).argmax(keepdim=True),
    "median_of_all": lambda d: d.sum(0).view(2, 2).median(),
    "quantile": lambda d: d.sum(0).quantile(0.25, dim=-1, keepdim=True),
    "nansum": lambda d: d.sum(0).nansum(),
    "count_nonzero": lambda d: torch.count_nonzero(d.sum(0)),
    "cumprod": lambda d: d.sum(0).cumprod(-1),
    "cummax": lambda d: d.sum(0).view(2, 2).cummax(0).values,
    "native_layer_norm": lambda d: torch.native_layer_norm(d.sum(0), (4,), None, None, 1e-5)[0],
    "broadcast_to": lambda d: torch.broadcast_to(d.sum(0), (3, 4)),
    "reshape_as": lambda d: d.sum(0).reshape_as(torch.zeros(2, 2)),
}


@pytest.mark.parametrize("name", OF_DOCUMENTS)
def test_of_a_value_that_each_document_has_one_of(name: str) -> None:
    rewritten(stacked(OF_DOCUMENTS[name]), torch.randn(12, 4), CU)


IN_SLOTS: dict[str, Part] = {
    "lerp": lambda d: torch.lerp(d, d * 2, d.mean(0)),
    "addcmul": lambda d: torch.addcmul(d, d.mean(0), d.sum(0)),
    "split_with_sizes": lambda d: torch.cat(d.split_with_sizes([1, 3], 1)[::-1], 1),
    "full": lambda d: torch.cat([d[1:], d.new_full((1, 4), 0.5)]),
    "ones_like": lambda d: torch.cat([d[1:], torch.ones_like(d[:1])]),
    "binary_cross_entropy": lambda d: F.binary_cross_entropy(d.sigmoid(), d.sigmoid(), reduction="none"),
    "hinge_embedding_loss": lambda d: F.hinge_embedding_loss(d, torch.where(d > 0, 1.0, -1.0), reduction="none"),
}


@pytest.mark.parametrize("name", IN_SLOTS)
def test_of_the_slots(name: str) -> None:
    rewritten(written(IN_SLOTS[name]), torch.randn(12, 4), CU)


@pytest.mark.parametrize("row", [torch.arange(12), torch.arange(12) > 5, torch.randn(12).to(torch.float16)])
def test_fills_are_held_as_the_dtype_holds_them(row: Tensor) -> None:
    rewritten(written(lambda d: torch.cat([d[1:], torch.ones_like(d[:1])])), row, CU)


def test_a_sum_of_complex_numbers() -> None:
    rewritten(stacked(lambda d: d.sum(0)), torch.randn(12, 4, dtype=torch.complex64), CU)


LEFT_ALONE: dict[str, Part] = {
    "other_bytes": lambda d: d.sum(0).view(torch.int32),
    "number_for_alpha": lambda d: torch.add(d.sum(0), d.sum(0), alpha=len(d)),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_leaves_alone(name: str) -> None:
    x = torch.randint(-9, 9, (12, 4)).float()
    assert refused(stacked(LEFT_ALONE[name]), x, CU) == "no-rule"


def test_leaves_a_product_of_complex_numbers_alone() -> None:
    x = torch.randn(12, 4, dtype=torch.complex64)
    assert refused(stacked(lambda d: d.prod(0)), x, CU) == "no-rule"


REASONS: dict[str, tuple[Part, str]] = {
    "random": (lambda d: F.dropout1d(d), "it draws random numbers"),
    "mixed": (lambda d: torch.fft.fft(d, dim=0).real, "it mixes the slots of a document"),
}


@pytest.mark.parametrize("name", REASONS)
def test_says_why(name: str) -> None:
    part, reason = REASONS[name]
    options: dict[str, Any] = {**EAGER, "packpass.symbolic_loops": True}
    report = packpass.explain(written(part), options=options)(torch.randn(12, 4), CU)
    assert not report.rewrites and report.refusals[0].code == "no-rule"
    assert reason in report.refusals[0].reason
