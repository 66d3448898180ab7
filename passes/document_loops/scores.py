"""What may be done to the scores of attention that is written out: scaled, masked, with a number of the query and one
of the key added. Nothing is computed; `pairs.Scores` remembers what was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.ops._pack_mask import HIDDEN
from packpass.semantics import example
from packpass.semantics.creation import uniform
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import name_of
from passes.document_loops.pairs import Band, Pairs, Scores, Sum
from passes.document_loops.terms import Apply, Outside


def negative(term: Any) -> Any:
    return Apply(torch.neg, False, (term,), (), term.dim)


def number_of(machine: Machine, arg: Any) -> float | bool | int | None:
    """A number, or the one that a tensor without dimensions holds."""
    value = machine.value(arg)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Outside) and machine.fake(value).dim() == 0:
        if value.call is not None:
            target, _, args, kwargs = value.call
            return _number_made(getattr(target, "__name__", str(target)), args, dict(kwargs))
        if value.node is not None and len(value.node.users) <= 2 and value.node.op == "call_function":
            return _number_made(name_of(value.node), value.node.args, value.node.kwargs)
    return None


def _number_made(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | bool | int | None:
    """The number that a call makes a tensor of."""
    found = args[0] if name in ("tensor", "scalar_tensor") and args else uniform(name, args, kwargs)
    return found if isinstance(found, (bool, int, float)) else None


def on_scores(machine: Machine, node: fx.Node, name: str, found: list[Any], dims: tuple[int, int]) -> Scores | None:
    scores = next(f for f in found if isinstance(f, Scores))
    if sum(isinstance(f, Scores) for f in found) != 1 or scores.weights or node.kwargs:
        return None
    if example(node).dim() != len(scores.letters):
        return None
    first = found[0] is scores
    if name in ("mul", "div") and len(found) == 2:
        number = number_of(machine, node.args[1 if first else 0])
        if isinstance(number, bool) or not number or not number > 0 or not (first or name == "mul") or scores.rows:
            return None
        factor = float(number) if name == "mul" else 1.0 / float(number)
        band = None if scores.band is None else Band(scores.band.values * factor)
        return dataclasses.replace(scores, scale=scores.scale * factor, band=band)
    if name in ("add", "sub") and len(found) == 2:
        other = found[1] if first else found[0]
        if name == "sub" and not first:
            return None
        if isinstance(other, Band) and other.values.dtype is not torch.bool:
            return _added(scores, Band(other.values.double() * (1 if name == "add" else -1)))
        return _biased(machine, node, scores, other, name, dims)
    if name == "masked_fill" and len(found) == 3 and first:
        return _hidden(machine, scores, found[1], node.args[2], True)
    if name == "where" and len(found) == 3 and found[1] is scores:
        return _hidden(machine, scores, found[0], node.args[2], False)
    if name == "where" and len(found) == 3 and found[2] is scores:
        return _hidden(machine, scores, found[0], node.args[1], True)
    return None


def _added(scores: Scores, band: Band) -> Scores:
    """Scores with a mask added: both masks at once."""
    if scores.band is None:
        return dataclasses.replace(scores, band=Band(band.values.double()))
    reach = max(scores.band.reach, band.reach)
    return dataclasses.replace(scores, band=Band(scores.band.widened(reach) + band.widened(reach).double()))


def _hidden(machine: Machine, scores: Scores, mask: Any, value: Any, hide: bool) -> Scores | None:
    """Scores where a mask is ``hide`` become a number that no softmax sees."""
    other = machine.value(value) if isinstance(value, fx.Node) else value
    if isinstance(other, Pairs):
        band = other.what
        uniform_ = isinstance(band, Band) and bool((band.values == band.values[0]).all())
        number: Any = band.values[0].item() if uniform_ and isinstance(band, Band) else None
    else:
        number = number_of(machine, value)
    if not isinstance(mask, Band) or mask.values.dtype is not torch.bool or number is None or not number <= HIDDEN:
        return None
    return _added(
        scores,
        Band(torch.zeros(mask.values.shape, dtype=torch.float64).masked_fill(mask.values == hide, float(number))),
    )


def _biased(
    machine: Machine, node: fx.Node, scores: Scores, other: Any, name: str, dims: tuple[int, int]
) -> Scores | None:
    """A number of each slot of one side is added; a softmax over the other side's slots does not see it."""
    if not isinstance(other, Sum) or scores.rows:
        return None
    if (other.first[0].dim, other.second[0].dim) != dims:
        return None
    if name == "sub":
        other = Sum(*((machine.intern(negative(term)), rank) for term, rank in (other.first, other.second)))
    return dataclasses.replace(scores, rows=other)
