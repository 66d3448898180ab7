"""segment_sort, segment_pick and segment_median against a loop over documents."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from packpass.ops import _segment_order

OPS = torch.ops.packpass
CU = torch.tensor([2, 9, 9, 10, 40, 58])
"""Documents of 7, 0, 1, 30 and 18 slots of 60: torch's sorts are not stable from 17 slots on."""
FORMS: dict[str, dict[str, Callable[..., Any]]] = {
    "cpu": {n: getattr(OPS, f"segment_{n}").default for n in ("sort", "pick", "median")},
    "generic": {
        "sort": _segment_order._sort_kernel,
        "pick": _segment_order._pick_kernel,
        "median": _segment_order._median_kernel,
    },
}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


def row(dtype: torch.dtype, shape: tuple[int, ...], ties: bool) -> Tensor:
    """Numbers with ties, or all different; NaN in the tail and in two slots of the longest document."""
    rng = torch.Generator().manual_seed(3)
    total = 1
    for size in shape:
        total *= size
    flat = torch.randint(-3, 4, (total,), generator=rng) if ties else torch.randperm(total, generator=rng) - total // 2
    x = flat.view(shape).to(dtype)
    if dtype.is_floating_point:
        x.movedim(-1 if len(shape) > 1 and shape[-1] == 60 else 0, 0)[[0, 1, 12, 30, 59]] = float("nan")
    return x


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((60,), 0), ((60, 3), 0), ((2, 60), -1)])
def test_sort_is_torchs_own(shape: tuple[int, ...], dim: int, dtype: torch.dtype, stable: bool) -> None:
    """Ties included, whichever way torch breaks them; the tail stays."""
    x = row(dtype, shape, ties=True)
    for descending in (False, True):
        want, places = x.clone(), torch.zeros(x.shape, dtype=torch.int64)
        for s, e in pairwise(CU.tolist()):
            found = x.narrow(dim, s, e - s).sort(dim=dim, descending=descending, stable=stable)
            want.narrow(dim, s, e - s).copy_(found.values)
            places.narrow(dim, s, e - s).copy_(found.indices)
        values, positions = FORMS["cpu"]["sort"](x, CU, descending, stable, dim)
        torch.testing.assert_close(values, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(positions, places)
        if stable:
            other, at = FORMS["generic"]["sort"](x, CU.int(), descending, True, dim)
            torch.testing.assert_close(other, want, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(at, places)


PICKED: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: x.topk(3, 0).indices,
    "smallest": lambda x: x.topk(3, 0, largest=False).indices,
    "kth": lambda x: x.kthvalue(3, 0).indices[None],
    "median": lambda x: x.median(0).indices[None],
    "nanmedian": lambda x: x.nanmedian(0).indices[None],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", PICKED)
@pytest.mark.parametrize("shape", [(60,), (60, 3)])
def test_picks_are_torchs_own(shape: tuple[int, ...], op: str, form: str) -> None:
    x = row(torch.float32, shape, ties=form == "cpu")
    if form == "generic":
        x[30] = 0.5  # of two NaN torch picks either
    k = 1 if "median" in op else 3
    got = FORMS[form]["pick"](x, CU, op, k, 0)
    assert got.shape[0] == len(CU)
    for d, (s, e) in enumerate(pairwise(CU.tolist())):
        want = PICKED[op](x[s:e]) if e - s >= k else torch.zeros_like(got[d])
        assert torch.equal(got[d], want), (op, d)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ignore_nan", [False, True])
def test_median_of_everything(form: str, ignore_nan: bool) -> None:
    x = row(torch.float32, (60,), ties=True)
    median = torch.nanmedian if ignore_nan else torch.median
    got = FORMS[form]["median"](x, CU, ignore_nan)
    want = torch.stack([median(x[s:e]) for s, e in pairwise(CU.tolist())])
    torch.testing.assert_close(got[:-1], want, rtol=0, atol=0, equal_nan=True)


def gradient(fn: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    x = row(torch.float32, shape, ties=True).requires_grad_()
    out = fn(x)
    weight = torch.arange(1.0, 1 + out.numel()).view(out.shape)
    torch.where(out.isnan(), 0, out).mul(weight).sum().backward()
    assert x.grad is not None
    return x.grad


def test_gradients_go_where_torch_sends_them() -> None:
    def looped(x: Tensor) -> Tensor:
        parts = [x[s:e].sort(0).values for s, e in pairwise(CU.tolist())]
        return torch.cat([x[:2], *parts, x[58:]])

    got = gradient(lambda x: OPS.segment_sort(x, CU, False, False, 0)[0], (60, 3))
    assert torch.equal(got, gradient(looped, (60, 3)))
    for nan in (False, True):
        median = torch.nanmedian if nan else torch.median
        want = gradient(lambda x: torch.stack([median(x[s:e]) for s, e in pairwise(CU.tolist())]), (60,))  # noqa: B023
        torch.testing.assert_close(gradient(lambda x: OPS.segment_median(x, CU, nan)[:-1], (60,)), want)  # noqa: B023


def test_no_slots_and_no_documents() -> None:
    for cu in (torch.tensor([0]), torch.tensor([0, 0])):
        for form in FORMS.values():
            values, positions = form["sort"](torch.zeros(0, 2), cu, False, False, 0)
            assert values.shape == positions.shape == (0, 2)
            assert form["pick"](torch.zeros(0, 2), cu, "largest", 3, 0).shape == (len(cu), 3, 2)
            assert form["median"](torch.zeros(0), cu, False).isnan().all()


def test_unknown_pick_is_an_error() -> None:
    with pytest.raises(ValueError, match="op must be one of"):
        OPS.segment_pick(torch.zeros(3), torch.tensor([0, 3]), "second", 1, 0)


X = torch.randn(12, 2, requires_grad=True)
OPCHECKS = {
    "segment_sort": (X, torch.tensor([0, 3, 3, 11]), True, False, 0),
    "segment_pick": (X, torch.tensor([0, 3, 3, 11]), "largest", 2, 0),
    "segment_topk": (torch.randn(12), torch.tensor([0, 3, 3, 11]), torch.tensor([2, 0, 5, 0]), True, True),
    "segment_median": (torch.randn(12, requires_grad=True), torch.tensor([0, 3, 3, 11]), False),
}


@pytest.mark.parametrize("name", OPCHECKS)
def test_opcheck(name: str) -> None:
    utilities: tuple[str, ...] = ("test_schema", "test_autograd_registration", "test_faketensor")
    if name != "segment_median":  # a document without slots has NaN, which the comparison takes for a difference
        utilities = (*utilities, "test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(OPS, name).default, OPCHECKS[name], test_utils=utilities)


def test_as_many_as_a_document_asks_for() -> None:
    x, cu, counts = torch.randn(40).mul(3).round(), torch.tensor([2, 2, 27, 38]), torch.tensor([1, 20, -3, 7])
    for largest in (True, False):
        got = OPS.segment_topk(x, cu, counts, largest, True)
        assert torch.equal(got[2:22], torch.topk(x[2:27], 20, largest=largest).indices)
        assert not got[:2].any()
        assert not got[22:].any()
    everything = OPS.segment_topk(x, cu, torch.tensor([0, 99, 99, 0]), True, False)
    assert torch.equal(everything[27:38], torch.topk(x[27:38], 11, sorted=False).indices)
