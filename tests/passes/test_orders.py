"""Sorts, medians, quantiles and the largest slots within documents: rewritten and equal to eager, or left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from .collected import Body, equal_to_eager, raises_as_eager, refusal_of


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


BODIES: dict[str, tuple[Body, str, int]] = {
    "indexed_by_order": (lambda x: x[x[:, 0].detach().argsort()], "cat", 0),
    # What is collected per document, how it is put together, slots of the shortest document.
    "values": (lambda x: x.sort(0).values, "cat", 0),
    "values_and_positions": (lambda x: x.sort(0)[1] + x.sort(0)[0], "cat", 0),
    "descending": (lambda x: torch.sort(x, 0, True)[0] * x, "cat", 0),
    "stable_positions": (lambda x: torch.sort(x, dim=0, stable=True).indices, "cat", 0),
    "negative_dim": (lambda x: torch.sort(x, -2, descending=True)[1], "cat", 0),
    "ranks": (lambda x: x[:, 0].argsort().argsort(), "cat", 0),
    "stable_argsort": (lambda x: torch.argsort(x, dim=0, stable=True), "cat", 0),
    "msort": (lambda x: torch.msort(x * 2), "cat", 0),
    "of_integers": (lambda x: (x * 3).nan_to_num(0, 0, 0).long().sort(0).indices, "cat", 0),
    "of_flags": (lambda x: (x > 0).sort(0).values, "cat", 0),
    "of_half_precision": (lambda x: x.bfloat16().sort(0).values, "cat", 0),
    "largest": (lambda x: x.topk(2, 0).values, "stack", 2),
    "largest_positions": (lambda x: x.topk(2, dim=0).indices, "stack", 2),
    "smallest": (lambda x: torch.topk(x[:, 1], 3, largest=False)[0], "stack", 3),
    "kth": (lambda x: x.kthvalue(2, 0).values, "stack", 2),
    "kth_kept": (lambda x: x - torch.kthvalue(x, 1, dim=0, keepdim=True)[0], "cat", 1),
    "kth_position": (lambda x: x.kthvalue(2, 0)[1], "stack", 2),
    "median": (lambda x: x.median(0).values, "stack", 1),
    "median_position": (lambda x: torch.median(x, dim=0, keepdim=True).indices, "cat", 1),
    "centred_by_the_median": (lambda x: x - x.median(0, keepdim=True)[0], "cat", 1),
    "nanmedian": (lambda x: x.nanmedian(0)[0], "stack", 1),
    "median_of_everything": (lambda x: x.median(), "stack", 0),
    "nanmedian_of_everything": (lambda x: torch.nanmedian(x[:, 0]), "stack", 0),
    "quantile": (lambda x: x.quantile(0.3, 0), "stack", 1),
    "quantile_of_everything": (lambda x: torch.quantile(x, 0.9), "stack", 1),
    "quantile_kept": (lambda x: x / (1 + x.quantile(0.5, 0, keepdim=True).abs()), "cat", 1),
    "nanquantile": (lambda x: torch.nanquantile(x, 0.7, dim=0), "stack", 1),
    **{
        f"quantile_{how}": (lambda x, how=how: x.quantile(0.6, dim=0, interpolation=how), "stack", 1)  # type: ignore[misc]
        for how in ("lower", "higher", "nearest", "midpoint")
    },
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("nan", [False, True], ids=["numbers", "nan"])
def test_rewritten_and_equal(name: str, nan: bool) -> None:
    body, join, least = BODIES[name]
    equal_to_eager(body, join, least, nan=nan)


@pytest.mark.parametrize("name", ["values", "largest", "median_of_everything", "quantile"])
@pytest.mark.parametrize("inner", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_through_aot_autograd(name: str, inner: str) -> None:
    body, join, least = BODIES[name]
    equal_to_eager(body, join, least, inner=inner)


@pytest.mark.parametrize("name", ["largest", "kth", "median", "quantile"])
def test_too_few_slots_raise(name: str) -> None:
    body, join, _ = BODIES[name]
    raises_as_eager(body, join)


LEFT_ALONE: dict[str, tuple[Callable[..., Any], str]] = {
    "sorted_part": (lambda x: x[1:].sort(0).values, "cat"),
    "sorted_by_a_number": (lambda x: x.sort(0, descending=len(x) > 3).values, "cat"),
    "not_sorted_largest": (lambda x: x.topk(2, 0, sorted=False).values, "stack"),
    "as_many_as_there_are": (lambda x: x.topk(len(x), 0).values, "cat"),
    "kth_by_length": (lambda x: x.kthvalue(len(x) // 2, 0).values, "stack"),
    "median_of_integers": (lambda x: x.detach().long().median(), "stack"),
    "median_of_a_part": (lambda x: x[1:].median(0).values, "stack"),
    "several_quantiles": (lambda x: x.quantile(torch.tensor([0.1, 0.5]), 0), "stack"),
    "quantile_by_length": (lambda x: x.quantile(1 / len(x), 0), "stack"),
    "quantile_of_a_part": (lambda x: x[:-1].quantile(0.5, 0), "stack"),
    "mode": (lambda x: x.detach().round().mode(0).values, "stack"),
    "unique": (lambda x: x.detach().round().unique().sum(), "stack"),
    "gathered_by_order": (lambda x: x.gather(0, x.detach().argsort(0)), "cat"),
    "searched": (lambda x: torch.searchsorted(x[:, 0].detach().sort().values, x[:, 1].detach().contiguous()), "cat"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    body, join = LEFT_ALONE[name]
    assert refusal_of(body, join)
