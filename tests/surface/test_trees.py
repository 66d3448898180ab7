"""Copying and comparing arguments and results."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch

from packpass.measuring.trees import clone_tree, difference, leaves, tensors


@dataclasses.dataclass(frozen=True)
class Frozen:
    cu_seqlens: torch.Tensor
    name: str = "thd"


class Named(NamedTuple):
    ids: torch.Tensor
    width: int


def test_leaves_are_found_in_every_container_with_their_paths() -> None:
    one = torch.zeros(1)
    tree = {"a": [one, (1, Named(one, 3))], "b": Frozen(one)}
    assert [path for path, _ in leaves(tree)] == [
        "a[0]",
        "a[1][0]",
        "a[1][1].ids",
        "a[1][1].width",
        "b.cu_seqlens",
        "b.name",
    ]
    assert len(list(tensors(tree))) == 3


def test_clone_is_deep_and_keeps_types_strides_gradients_and_aliasing() -> None:
    base = torch.arange(12.0)
    tree: dict[str, Any] = {
        "row": base.view(3, 4).t(),
        "view": base[2:5],
        "again": base,
        "leaf": torch.ones(2, requires_grad=True),
        "packed": Frozen(torch.tensor([0, 3])),
        "named": Named(torch.ones(2), 4),
        "ordered": collections.OrderedDict(x=torch.ones(1)),
        "other": object(),
    }
    copy = clone_tree(tree)
    assert difference(tree, copy).equal
    assert copy["row"].stride() == tree["row"].stride()
    assert copy["leaf"].requires_grad
    assert copy["leaf"].is_leaf
    assert type(copy["packed"]) is Frozen
    assert type(copy["named"]) is Named
    assert type(copy["ordered"]) is collections.OrderedDict
    assert copy["other"] is tree["other"]
    copy["view"].fill_(-1)
    assert (copy["again"][2:5] == -1).all()  # still views of one storage
    assert base[2] == 2.0  # and no longer of ours
    copy["packed"].cu_seqlens[0] = 9
    assert tree["packed"].cu_seqlens[0] == 0


def test_the_same_tensor_stays_the_same_tensor() -> None:
    x = torch.ones(3)
    copy = clone_tree([x, x])
    assert copy[0] is copy[1]


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(2, 3).expand(4, 2, 3), lambda: torch.empty(0, 3), lambda: torch.tensor(2)]
)
def test_clone_of_odd_tensors(make: Any) -> None:
    x = make()
    assert torch.equal(clone_tree(x), x)
    assert clone_tree(x).stride() == x.stride()


def test_a_gradient_that_is_no_leaf_becomes_one() -> None:
    x = torch.ones(2, requires_grad=True) * 2
    copy = clone_tree(x)
    assert copy.is_leaf
    assert copy.requires_grad


def test_equal_trees() -> None:
    found = difference([torch.tensor([1.0, math.nan]), 3], [torch.tensor([1.0, math.nan]), 3])
    assert (found.equal, found.close, found.largest, found.where) == (True, True, 0.0, "")


def test_close_floats_are_close_but_not_equal() -> None:
    found = difference({"result": torch.tensor([1.0])}, {"result": torch.tensor([1.0 + 1e-6])})
    assert not found.equal
    assert found.close
    assert found.largest == pytest.approx(1e-6, rel=0.2)
    assert found.where == "result"


@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        (torch.tensor([1.0]), torch.tensor([1.1]), "result differs by up to 0.1"),
        (torch.tensor([1]), torch.tensor([2]), "result differs"),
        (torch.tensor([True]), torch.tensor([False]), "result differs"),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), r"torch.float64 \(1,\) on cpu instead of torch.float32"),
        (torch.zeros(2), torch.zeros(3), r"\(3,\) on cpu instead of"),
        (torch.tensor([math.nan]), torch.tensor([1.0]), "NaN in other places"),
        (torch.tensor([math.inf]), torch.tensor([1.0]), "differs by up to inf"),
        ([torch.zeros(1)], [torch.zeros(1), torch.zeros(1)], "the structure is"),
        (3, 4, "result is 4 instead of 3"),
        (None, torch.zeros(1), "instead of None"),
        ({"state": "a"}, {"state": "b"}, "state is 'b' instead of 'a'"),
    ],
)
def test_differences_are_found_and_named(expected: Any, actual: Any, words: str) -> None:
    import re

    found = difference(expected, actual)
    assert not found.equal
    assert not found.close
    assert found.largest > 0
    assert re.search(words, found.why), found.why


def test_equal_infinities_do_not_hide_a_difference() -> None:
    found = difference(torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 3.0]))
    assert found.largest == 2.0


def test_tolerance_follows_the_scale_of_the_tensor() -> None:
    # one part in 1e8 of the largest entry, on an entry that cancelled to nearly nothing
    expected, actual = torch.tensor([1e4, 1e-3]), torch.tensor([1e4, 1e-3 + 1e-4])
    assert difference(expected, actual).close
    assert not difference(expected[1:], actual[1:]).close
