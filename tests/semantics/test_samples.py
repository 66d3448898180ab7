"""Samples of our own: forms of calls that models are full of and torch's samples are not."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.semantics.validator import check

torch.manual_seed(0)  # names of tests are made of these: every process must have the same
X = torch.randn(6, 5, 4)
PLACES, OTHERS = torch.tensor([0, 2, 2]), torch.tensor([1, 3, 0])
TWO = torch.tensor([[0, 1, 2], [3, 4, 0]])
MASK = torch.rand(6, 5) > 0.5
FULL = slice(None)

INDICES: list[Any] = [
    *(0, -1, slice(1, 4), slice(None, -1), slice(1, None, 2), ..., None, PLACES),
    *((FULL, 2), (..., 1), (..., slice(2, None)), (None, FULL, 0), (FULL, None, slice(1, 3)), (0, ..., None)),
    *((PLACES, FULL), (FULL, PLACES), (FULL, PLACES, slice(1, 3)), (PLACES, OTHERS), (FULL, PLACES, OTHERS)),
    *((PLACES, FULL, OTHERS), (0, PLACES), (0, FULL, PLACES), (PLACES, 0, FULL), (FULL, TWO), (TWO, PLACES)),
    *((None, PLACES), (PLACES[:, None], OTHERS), (..., PLACES, None), (slice(1, 3), PLACES, ...), (-2, PLACES, OTHERS)),
]


def _words(index: Any) -> str:
    """One short line."""
    return " ".join(str(index).split())[:60]


@pytest.mark.parametrize("index", INDICES, ids=_words)
def test_reading_by_an_index(index: Any) -> None:
    assert check(operator.getitem, X, index) == []


@pytest.mark.parametrize("index", [*INDICES, MASK, (MASK, 0)], ids=_words)
def test_writing_by_an_index(index: Any) -> None:
    assert check(operator.setitem, X.clone(), index, 1.5) in ([], None)
    if index is not MASK and not isinstance(index, tuple):
        assert check(operator.setitem, X.clone(), index, 1.5) == []


@pytest.mark.parametrize("index", INDICES, ids=_words)
def test_writing_a_tensor_by_an_index(index: Any) -> None:
    value = torch.randn(X[index].shape)
    assert check(operator.setitem, X.clone(), index, value) == []
    if value.dim() > 1:
        assert check(operator.setitem, X.clone(), index, value[0]) == []
        assert check(operator.setitem, X.clone(), index, value[:, :1]) == []


@pytest.mark.parametrize("index", [MASK, X > 0, (0, MASK[0]), [0, 2], (FULL, [1, 2])], ids=_words)
def test_leaves_alone_indices_that_take_several_axes_or_are_lists(index: Any) -> None:
    assert check(operator.getitem, X, index) is None


@pytest.mark.parametrize(
    "sizes",
    [(6, 20), (30, 4), (120,), (6, 5, 2, 2), (2, 3, 5, 4), (3, 10, 4), (4, 30), (1, 6, 5, 1, 4), (12, 10), (5, 6, 4)],
)
def test_reshapes(sizes: tuple[int, ...]) -> None:
    assert check(torch.reshape, X, sizes) == []


CALLS = [
    (torch.add, X, X[0], {}),
    (torch.where, X > 0, X, 0.0, {}),
    (torch.where, X > 0, X, X[:, :1], {}),
    (torch.cat, [X, X[:2]], {}),
    (torch.cat, [X, X[..., :1]], {"dim": -1}),
    (torch.stack, [X, X], {"dim": 1}),
    (F.pad, X, (1, 2), {}),
    (F.pad, X, (0, 0, -1, 1), {}),
    (F.pad, X, (1, 1), {"mode": "circular"}),
    (torch.roll, X, (1, -2), {"dims": (0, 2)}),
    (torch.einsum, "abc,dc->bad", X, X[0], {}),
    (torch.einsum, "...c,dc", X, X[0], {}),
    (torch.einsum, "aab->ab", torch.randn(3, 3, 2), {}),
    (torch.repeat_interleave, X, 3, {"dim": 1}),
    (torch.isin, PLACES, OTHERS, {}),
    (torch.bucketize, X, torch.arange(4.0), {}),
    (F.embedding, TWO, X[0], {}),
    (F.one_hot, TWO, 7, {}),
    (F.cross_entropy, X[0], torch.tensor([0, 1, 2, 3, -100]), {"reduction": "none"}),
    (F.cross_entropy, X, torch.randint(5, (6, 4)), {}),
    (F.mse_loss, X, torch.randn(6, 5, 4), {"reduction": "none"}),
    (F.scaled_dot_product_attention, X, X[:, :3], X[:, :3], {}),
    (F.scaled_dot_product_attention, X, X, X, {"is_causal": True}),
    (F.layer_norm, X, (5, 4), X[0], X[1], {}),
    (F.linear, X, torch.randn(7, 4), torch.randn(7), {}),
    (torch.gather, X, 2, torch.randint(4, (6, 5, 2)), {}),
    (torch.gather, X, 0, torch.randint(6, (3, 2, 4)), {}),
    (torch.masked_fill, X, MASK[..., None], 0.0, {}),
    (torch.tril, X, {}),
    (torch.cummax, X, 1, {}),
    (torch.topk, X, 2, {"dim": 1}),
    (torch.meshgrid, PLACES, OTHERS, {"indexing": "xy"}),
    (F.conv1d, X, torch.randn(8, 5, 3), {"padding": 1}),
    (F.conv1d, X[:, :4], torch.randn(4, 1, 3), {"groups": 4}),
]


@pytest.mark.parametrize("sample", CALLS, ids=lambda sample: getattr(sample[0], "__name__", "call"))
def test_calls(sample: Any) -> None:
    function, *args, kwargs = sample
    assert check(function, *args, **kwargs) == []


METHODS: list[tuple[str, Any]] = [
    ("expand", (2, 6, 5, 4)),
    ("expand_as", (torch.randn(2, 6, 5, 4),)),
    ("view_as", (torch.randn(30, 4),)),
    ("repeat", (2, 1, 3, 1)),
    ("type_as", (IDS := torch.zeros(6, 5, 4, dtype=torch.long),)),
    ("to", (IDS,)),
    ("to", (torch.float64,)),
    ("float", ()),
    ("unflatten", (2, (2, 2))),
    ("movedim", (0, 2)),
    ("index_add", (1, PLACES, torch.randn(6, 3, 4))),
    ("index_copy", (1, torch.tensor([0, 3, 1]), torch.randn(6, 3, 4))),
    ("index_fill", (1, PLACES, 1.0)),
    ("scatter", (1, torch.randint(5, (6, 3, 4)), torch.randn(6, 3, 4))),
    ("select_scatter", (torch.randn(6, 4), 1, 2)),
    ("masked_fill_", (MASK[..., None], 0.0)),
    ("add_", (torch.randn(5, 4),)),
    ("copy_", (torch.randn(4),)),
    ("index_put", ((PLACES, OTHERS), torch.randn(3, 4))),
    ("index_put", ((PLACES,), torch.randn(4), True)),
    ("zero_", ()),
]


@pytest.mark.parametrize("sample", METHODS, ids=lambda sample: sample[0])
def test_methods(sample: tuple[str, Any]) -> None:
    name, args = sample
    assert check(torch.add, X.clone(), *args, method=name) == []
