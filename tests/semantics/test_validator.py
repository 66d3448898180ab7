"""The validator finds wrong entries: each of these is a lie about what torch does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from packpass.semantics import Meaning, call_of, meaning_of
from packpass.semantics.meaning import KEPT, ONE, Axis, Cut, Relation, Rolled, Traits
from tests.semantics.graphs import node_of
from tests.semantics.validator import Check

X, Y, IDS = torch.randn(6, 8), torch.randn(6, 8), torch.randint(6, (6,))


def told(
    lie: Callable[[Relation], Relation] | None, traits: Traits | None, call: Any, *args: Any, **kw: Any
) -> list[str]:
    node = node_of(call, *args, **kw)
    found = call_of(node)
    meaning = meaning_of(found) if found is not None else None
    assert found is not None
    assert meaning is not None
    relations = meaning.relations if lie is None else tuple(lie(r) for r in meaning.relations)
    told = Meaning(meaning.family, relations, traits or meaning.traits, meaning.contents)
    return list(Check(node, found, told, elements=20).problems())


def no_roles(relation: Relation) -> Relation:
    return dataclasses.replace(relation, roles={})


def all_kept(relation: Relation) -> Relation:
    operands = tuple(
        axes and tuple(Axis(axis.loops, KEPT) if axis.loops else ONE for axis in axes) for axes in relation.operands
    )
    return dataclasses.replace(relation, operands=operands)


def other_cut(relation: Relation) -> Relation:
    (axes,) = relation.operands
    assert axes is not None
    return dataclasses.replace(relation, operands=(tuple(_shifted(axis) for axis in axes),))


def _shifted(axis: Axis) -> Axis:
    if isinstance(axis.how, Cut):
        return Axis(axis.loops, Cut(axis.how.start + 1))
    return Axis(axis.loops, Rolled(-axis.how.shift)) if isinstance(axis.how, Rolled) else axis


LIES: dict[str, tuple[Any, Any, Any]] = {
    "a softmax is slot by slot": (no_roles, None, (F.softmax, X, -1)),
    "a scan is slot by slot": (no_roles, None, (torch.cumsum, X, 0)),
    "norms are slot by slot": (no_roles, None, (F.layer_norm, X, (8,))),
    "rolled slots stay": (all_kept, None, (torch.roll, X, 1, 0)),
    "rolled the other way": (other_cut, None, (torch.roll, X, 2, 0)),
    "cut one slot later": (other_cut, None, (torch.narrow, X, 0, 1, 3)),
    "triangles commute with slices": (no_roles, None, (torch.tril, X)),
    "products have no gradient of their own": (None, Traits(zero_gradient=frozenset({"input"})), (torch.mul, X, Y)),
    "logarithms have no gradient of their own": (None, Traits(zero_gradient=frozenset({"input"})), (torch.log, X)),
    "lookups take any index": (None, Traits(), (F.embedding, IDS, X)),
    "division takes any divisor": (None, Traits(), (torch.remainder, IDS, IDS + 1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_finds(lie: str) -> None:
    change, traits, (call, *args) = LIES[lie]
    assert told(change, traits, call, *args)


@pytest.mark.parametrize("lie", LIES)
def test_leaves_the_truth_alone(lie: str) -> None:
    _, _, (call, *args) = LIES[lie]
    assert not told(None, None, call, *args)
