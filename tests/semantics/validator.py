"""Compares the entry of an operation with what torch does.

The relation of a result says which of its slots an element of an operand may reach. So: change one element, run again,
and see which slots changed. Axes that are kept must commute with slicing: the call on a part of the rows is that part
of the call on all rows, to the bit unless the entry says that sums are reordered. Traits are put to the proof with NaN,
infinities and wild integers in slots that nobody reads.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, Relation, call_of, meaning_of
from packpass.semantics.binding import example
from packpass.semantics.meaning import (
    KEPT,
    Addressed,
    Cut,
    Flipped,
    Joined,
    Looked,
    Meaning,
    Padded,
    Rolled,
    Scanned,
    Selected,
    Sent,
    Uninitialised,
)
from packpass.semantics.memory import aliases_of, writes_of
from tests.semantics.graphs import node_of

SIZED = ("views", "creation")
"""Families whose arguments name sizes: rows cannot be cut without changing those."""


@dataclasses.dataclass
class Check:
    """One sample of an operation, with its meaning."""

    node: fx.Node
    call: Call
    meaning: Meaning
    elements: int = 5

    def problems(self) -> Iterator[str]:
        """What is wrong with the entry."""
        torch.manual_seed(0)
        random.seed(0)
        yield from self.shapes()
        yield from self.memory()
        if self.meaning.contents != Uninitialised():
            yield from self.reach()
        if not self.meaning.traits.random and self.meaning.family not in SIZED:
            yield from self.slices()
            yield from self.garbage()

    # --- running it -------------------------------------------------------------------------------------------

    def values(self) -> list[torch.Tensor]:
        """Fresh copies of the operands."""
        return [o.value.detach().clone() for o in self.call.operands]

    def run(self, values: list[torch.Tensor]) -> list[Any]:
        """The results for other values of the operands."""
        torch.manual_seed(1)
        given = {o.node: v for o, v in zip(self.call.operands, values, strict=True)}
        args, kwargs = fx.map_arg((self.node.args, self.node.kwargs), lambda n: given.get(n, example(n)))
        target: Any = self.node.target
        out = (
            getattr(args[0], target)(*args[1:], **kwargs) if self.node.op == "call_method" else target(*args, **kwargs)
        )
        if self.call.in_place:
            return [values[0]]  # what is written is the result
        return list(out) if self.call.several else [out]

    # --- the checks -------------------------------------------------------------------------------------------

    def shapes(self) -> Iterator[str]:
        for item, relation in enumerate(self.meaning.relations):
            shape = tuple(self.call.operands[0].value.shape if self.call.in_place else self.call.results[item].shape)
            made = tuple(math.prod(relation.sizes[loop] for loop in loops) for loops in relation.result)
            if made != shape:
                yield f"result {item} has shape {shape}, its loops {made}"
            for k, axes in enumerate(relation.operands):
                for a, axis in enumerate(axes or ()):
                    size = self.call.operands[k].value.shape[a]
                    if axis.how == KEPT and math.prod(relation.sizes[loop] for loop in axis.loops) != size:
                        yield f"axis {a} of operand {k} has {size} slots, its loops {axis.loops} others"

    def memory(self) -> Iterator[str]:
        values = self.values()
        before = [v._version for v in values]
        results = self.run(values)
        written = {k for k, v in enumerate(values) if v._version != before[k]}
        if not written <= writes_of(self.call):
            yield f"writes operands {sorted(written)}, not {sorted(writes_of(self.call))}"
        for item, (result, allowed) in enumerate(zip(results, aliases_of(self.call), strict=True)):
            if not isinstance(result, torch.Tensor) or not result.numel():
                continue
            memory = result.untyped_storage().data_ptr()
            shared = {k for k, v in enumerate(values) if v.untyped_storage().data_ptr() == memory}
            if not shared <= allowed:
                yield f"result {item} shares memory with {sorted(shared)}, not only {sorted(allowed)}"

    def reach(self) -> Iterator[str]:
        """One element is changed."""
        expected = self.run(self.values())
        for k, operand in enumerate(self.call.operands):
            for _ in range(min(self.elements, operand.value.numel())):
                values = self.values()
                at = tuple(random.randrange(s) for s in values[k].shape)
                values[k][at] = other_value(values[k], at)
                try:
                    results = self.run(values)
                except (RuntimeError, IndexError, ValueError):
                    continue
                for item, relation in enumerate(self.meaning.relations):
                    if results[item].shape != expected[item].shape:
                        yield f"the shape of result {item} depends on the values of operand {k}"
                        return
                    changed = different(results[item], expected[item])
                    allowed = reached(relation, k, at, operand.value.shape)
                    if operand.argument in self.call.unread:
                        allowed = torch.zeros_like(allowed)
                    if bool((changed & ~allowed).any()):
                        where = (changed & ~allowed).nonzero()[0].tolist()
                        yield f"element {at} of operand {k} ({operand.argument}) reaches {where} of result {item}"
                        return

    def slices(self) -> Iterator[str]:
        """The call on a part of the rows."""
        expected = self.run(self.values())
        for item, loop, to, axes in self.cuttable():
            size = self.meaning.relations[item].sizes[loop]
            low, high = size // 3, size - size // 4
            values = self.values()
            for k, a in axes:
                values[k] = values[k].narrow(a, low, high - low)
            try:
                result = self.run(values)[item]
            except (RuntimeError, IndexError, ValueError) as error:
                yield f"rows {low} to {high} of {axes} fail: {error}"
                return
            want = expected[item].narrow(to, low, high - low)
            if result.shape != want.shape or not same(result, want, exact=not self.meaning.traits.reorders):
                yield f"rows {low} to {high} of {axes} are not those of result {item}"
                return

    def cuttable(self) -> Iterator[tuple[int, int, int, tuple[tuple[int, int], ...]]]:
        """Loops of at least two slots that are whole axes, slot by slot, wherever they occur."""
        for item, relation in enumerate(self.meaning.relations):
            for loop, to, axes in relation.kept():
                everywhere = sum(loop in axis.loops for operand in relation.operands for axis in operand or ())
                several = sum(loop in loops for loops in relation.result)
                if to is None or loop in relation.roles or everywhere != len(axes) or several != 1:
                    continue
                if relation.sizes[loop] > 1:
                    yield item, loop, to, axes

    def garbage(self) -> Iterator[str]:
        """Slots that nobody reads hold NaN, infinities, wild integers: nothing raises, claimed gradients are 0."""
        traits = self.meaning.traits
        for item, _, to, axes in self.cuttable():
            touched = [
                (k, a) for k, a in axes if self.call.operands[k].argument not in traits.raises | self.call.unread
            ]
            for bad in (math.nan, math.inf, -math.inf):
                values = self.values()
                for k, a in touched:
                    values[k].select(a, 0).copy_(_garbage(values[k], bad))
                claimed = [
                    (k, a)
                    for k, a in axes
                    if self.call.operands[k].argument in traits.zero_gradient and values[k].is_floating_point()
                ]
                for k, _ in claimed if not self.call.in_place else ():
                    values[k].requires_grad_()
                try:
                    result = self.run(values)[item]
                except (RuntimeError, IndexError, ValueError) as error:
                    yield f"raises on {bad} in a slot of {touched} that nobody reads: {error}"
                    return
                if claimed and result.requires_grad:
                    wrong = self.leaking(values, result, to, claimed)
                    if wrong is not None:
                        yield f"{bad} in slot 0 of {touched}: the gradient of operand {wrong} is not 0 there"
                        return

    def leaking(self, values: list[torch.Tensor], result: torch.Tensor, to: int, claimed: Any) -> int | None:
        """The first operand whose gradient at slot 0 is not 0 although slot 0 of the result has none."""
        upstream = torch.ones_like(result)
        upstream.select(to, 0).zero_()
        wanted = [values[k] for k, _ in claimed]
        try:
            gradients = torch.autograd.grad(result, wanted, upstream, allow_unused=True)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            return None  # this torch has no gradient for it
        for (k, a), gradient in zip(claimed, gradients, strict=True):
            if gradient is not None and not bool((gradient.select(a, 0) == 0).all()):
                return int(k)
        return None


def _garbage(value: torch.Tensor, bad: float) -> Any:
    """Something nobody would want in a slot."""
    if value.is_floating_point() or value.is_complex():
        return torch.tensor(bad, dtype=value.dtype)
    if value.dtype is torch.bool:
        return torch.tensor(bad > 0)
    return torch.tensor(0 if math.isnan(bad) else 100 if bad > 0 else (-100 if value.dtype.is_signed else 0))


def other_value(value: torch.Tensor, at: tuple[int, ...]) -> Any:
    """Another value that the element may have: one that another has, for indices; or something near."""
    old = value[at]
    if value.dtype is torch.bool:
        return ~old
    if not (value.is_floating_point() or value.is_complex()):
        others = value[value != old]
        return others[random.randrange(len(others))] if len(others) else old + random.choice((1, -1))
    return old * 0.5 + 0.37


def different(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Slots that are not the same to the bit."""
    if a.is_floating_point() or a.is_complex():
        return ~((a == b) | (a.isnan() & b.isnan()))
    return a != b


def same(a: torch.Tensor, b: torch.Tensor, exact: bool) -> bool:
    if not (a.is_floating_point() or a.is_complex()):
        return a.dtype == b.dtype and not bool(different(a, b).any())
    # Even an exact kernel rounds the last bit otherwise in what remains behind its vectors.
    near = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 1e-3, "atol": 1e-4}
    return a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True, **near)


# === What a relation allows ==================================================================================


def reached(relation: Relation, k: int, at: tuple[int, ...], shape: Any) -> torch.Tensor:
    """The slots of the result that element ``at`` of operand ``k`` may reach."""
    sizes = [math.prod(relation.sizes[loop] for loop in loops) for loops in relation.result]
    axes = relation.operands[k]
    if axes is None:
        return torch.ones(sizes, dtype=torch.bool)
    wanted: dict[int, int] = {}
    for i, axis, size in zip(at, axes, shape, strict=True):
        places = _places(relation, axis, i, size)
        if places is None:
            return torch.zeros(sizes, dtype=torch.bool)
        for loop, place in places.items():
            if wanted.setdefault(loop, place) != place and loop not in relation.roles:
                return torch.zeros(sizes, dtype=torch.bool)
    allowed = torch.ones(sizes, dtype=torch.bool)
    for j, loops in enumerate(relation.result):
        stride = 1
        for loop in reversed(loops):
            slots = torch.arange(sizes[j]) // stride % relation.sizes[loop]
            stride *= relation.sizes[loop]
            role = relation.roles.get(loop)
            if loop in wanted and (role is None or isinstance(role, (Scanned, Addressed))):
                fits = slots >= wanted[loop] if isinstance(role, Scanned) else slots == wanted[loop]
                allowed &= fits.view([-1 if d == j else 1 for d in range(len(sizes))])
    return allowed


def _places(relation: Relation, axis: Any, i: int, size: int) -> dict[int, int] | None:
    """Where along the loops of an axis its slot i is read; None for nowhere. Loops that are left out: anywhere."""
    how, loops = axis.how, axis.loops
    if isinstance(how, Selected):
        return {} if i == how.index % size else None
    if how == KEPT:
        found = {}
        for loop in reversed(loops):
            found[loop], i = i % relation.sizes[loop], i // relation.sizes[loop]
        return found
    if isinstance(how, (Looked, Sent)) or not loops:
        return {}
    (loop,), length = loops, relation.sizes[loops[0]]
    moved: dict[type, Callable[[Any], tuple[int, int]]] = {
        Cut: lambda h: divmod(i - h.start, h.step),
        Joined: lambda h: (h.offset + h.step * i, 0),
        Padded: lambda h: (i + h.before, 0),
        Rolled: lambda h: ((i + h.shift) % length, 0),
        Flipped: lambda h: (size - 1 - i, 0),
    }
    if type(how) not in moved:
        return {}
    place, rest = moved[type(how)](how)
    return {loop: place} if not rest and 0 <= place < length else None


# === Samples =================================================================================================


def check(function: Callable[..., Any], *args: Any, method: str | None = None, **kwargs: Any) -> list[str] | None:
    """What is wrong with the meaning of a call; None if it has none."""
    node = node_of(function, *args, method=method, **kwargs)
    call = call_of(node)
    meaning = meaning_of(call) if call is not None else None
    if call is None or meaning is None:
        return None
    return list(Check(node, call, meaning).problems())
