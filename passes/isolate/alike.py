"""Is every step of a loop over tokens the step before it, call by call, but for the number of its slot?

Steps are compared from what they give back to what it is made of: two calls are alike if they are the same operation on
arguments that are alike, which are what the same step made, what the step before each of them made, the slot of each
step, or the same thing without tokens. Where the first step has something without tokens, and the others what the step
before them made, that is the state's start.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from packpass.semantics import example, family_of
from packpass.semantics.effects import effects_of
from passes.isolate.slots import Slot

Argument = Any
"""A node, or a number of the code."""


class NotProven(Exception):
    """A part of a graph is no such loop, or that it is cannot be seen."""


class Alike:
    """``pairs``: what a node of a step is in the step before it. ``starts``: what the first step has in place of an
    argument that is a state, by the node of that step and the argument's place in it."""

    def __init__(self, steps: Mapping[fx.Node, int], slots: Mapping[fx.Node, Slot]) -> None:
        self.steps, self.slots = steps, slots
        self.pairs: dict[fx.Node, fx.Node] = {}
        self.starts: dict[tuple[fx.Node, int], Argument] = {}
        self._pending: list[tuple[fx.Node, fx.Node]] = []

    def compare(self, pairs: Iterable[tuple[fx.Node, fx.Node]]) -> None:
        """Raises `NotProven` if these are not alike: a node of a step, and that of the step before."""
        self._pending += pairs
        while self._pending:
            one, other = self._pending.pop()
            known = self.pairs.get(one)
            if known is None:
                self.pairs[one] = other
                self._compare(one, other)
            elif known is not other:
                raise NotProven

    def _compare(self, one: fx.Node, other: fx.Node) -> None:
        if not _same_form(example(one), example(other)):
            raise NotProven
        x, y = self.slots.get(one), self.slots.get(other)
        if x is not None or y is not None:
            if x is None or y is None or x.number != y.number + 1 or (x.row, x.form) != (y.row, y.form):
                raise NotProven
            return
        if (one.op, one.target) != (other.op, other.target):
            raise NotProven
        mine, others = list(arguments(one)), list(arguments(other))
        if [path for path, _ in mine] != [path for path, _ in others]:
            raise NotProven
        for place, ((_, a), (_, b)) in enumerate(zip(mine, others, strict=True)):
            self._compare_arguments(one, other, place, a, b)

    def _compare_arguments(self, one: fx.Node, other: fx.Node, place: int, a: Argument, b: Argument) -> None:
        step, before = self.steps[one], self.steps[other]
        s = self.steps.get(a) if isinstance(a, fx.Node) else None
        r = self.steps.get(b) if isinstance(b, fx.Node) else None
        if s is None and r is None:
            if not made_alike(a, b, self.steps):
                raise NotProven
        elif s is not None and r is not None:
            if s - r != 1 or s not in (step, step - 1):
                raise NotProven
            self._pending.append((a, b))
        elif s == before == 0 and r is None and _may_start(one, a, b):
            self.starts[other, place] = b
        else:
            raise NotProven


def made_alike(a: Argument, b: Argument, apart: Container[fx.Node] = ()) -> bool:
    """Are two arguments the same, or made by the same calls with the same numbers, none of them ``apart``?"""
    if a is b:
        return not isinstance(a, fx.Node) or a not in apart
    if not (isinstance(a, fx.Node) and isinstance(b, fx.Node)):
        return type(a) is type(b) and bool(a == b)
    if a.op not in ("call_function", "call_method") or (a.op, a.target) != (b.op, b.target):
        return False
    if a in apart or b in apart or not (effects_of(a).repeatable and effects_of(b).repeatable):
        return False
    mine, others = list(arguments(a)), list(arguments(b))
    same = len(mine) == len(others)
    return same and all(p == q and made_alike(x, y, apart) for (p, x), (q, y) in zip(mine, others, strict=True))


def arguments(node: fx.Node) -> Iterator[tuple[tuple[Any, ...], Argument]]:
    """The arguments of a call one by one, those in lists, too, each with its place."""
    stack: list[tuple[tuple[Any, ...], Any]] = [((), node.args), (("=",), dict(node.kwargs))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, key), value[key]) for key in sorted(value)]
        elif isinstance(value, slice):
            stack.append(((*path, "slice"), (value.start, value.stop, value.step)))
        elif isinstance(value, (tuple, list)):
            stack += [((*path, k), item) for k, item in enumerate(value)]
            yield (*path, "items", len(value)), None
        else:
            yield path, value


def _same_form(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b)


def _may_start(reader: fx.Node, state: fx.Node, start: Argument) -> bool:
    """Can a value without tokens stand for a state in a call, wherever a document starts?"""
    of, plain = example(state), example(start) if isinstance(start, fx.Node) else start
    if not isinstance(of, torch.Tensor):
        return False
    if isinstance(plain, torch.Tensor) and _same_form(plain, of):
        return True
    if family_of(reader) != "pointwise":
        return False
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        return of.dtype.is_floating_point
    if not isinstance(plain, torch.Tensor) or plain.dtype != of.dtype or plain.device != of.device:
        return False
    return plain.dim() <= of.dim() and torch.broadcast_shapes(plain.shape, of.shape) == of.shape
