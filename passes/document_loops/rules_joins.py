"""Rules for what joins slots within a document, or adds some: cat and pad."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.creation import LIKE, uniform
from packpass.semantics.names import name_of_target
from passes.document_loops import uneven
from passes.document_loops.documents import cast
from passes.document_loops.emit_shifts import stored
from passes.document_loops.integers import FULL, Affine, Window
from passes.document_loops.machine import Machine, Padded, Segment
from passes.document_loops.moved import ends_of, own_length
from passes.document_loops.padded import Filler, found_as_wide, joined_to_width, padded_to_width
from passes.document_loops.parts import Pieces, pieces
from passes.document_loops.rules import documents, outside_call, rule
from passes.document_loops.terms import ANY, Apply, Assign, Fill, Outside, Roll
from passes.refused import Refused


def _held(number: Any, dtype: torch.dtype) -> Any:
    """What a tensor of this dtype holds where it is filled with a number; None if that is no number."""
    if not isinstance(number, (bool, int, float)):
        return None
    try:
        return torch.full((), number, dtype=dtype).item()
    except RuntimeError:  # the dtype has no such number
        return None


def _constant_part(machine: Machine, value: Any, window: Window, dtype: torch.dtype) -> Any:
    """The number that ``zeros_like(seg[:1])`` and the like hold, on this window; None for anything else."""
    if not isinstance(value, Segment) or value.window != window:
        return None
    term = value.store.term
    if not isinstance(term, Apply):
        return None
    name = name_of_target(term.target)
    return _held(uniform(name, term.args, dict(term.kwargs)), dtype) if name in LIKE else None


def _constant_block(machine: Machine, value: Any, dim: int) -> tuple[int, Any] | None:
    """``(size along dim, value)`` of an outside tensor that is one known number everywhere."""
    if not isinstance(value, Outside):
        return None
    fake = machine.fake(value)
    if value.node is not None:
        target, args, kwargs = value.node.target, value.node.args, dict(value.node.kwargs)
        if value.node.op not in ("call_function", "call_method") or len(value.node.users) > 1:
            return None  # somebody else may have written to it
    else:
        assert value.call is not None
        target, _, args, items = value.call
        kwargs = dict(items)
    name = name_of_target(target)
    if fake.dim() < -dim or not isinstance(fake.shape[dim], int):
        return None
    number = _held(uniform(name, args, kwargs), fake.dtype)
    return None if number is None else (fake.shape[dim], number)


@rule("cat")
def _cat(machine: Machine, node: fx.Node) -> Any:
    tensors, dim = argument(node, 0, "tensors"), argument(node, 1, "dim", node.kwargs.get("axis", 0))
    values = [machine.value(t) for t in tensors]
    segments = [v for v in values if isinstance(v, Segment)]
    slots = next((found for found in map(uneven.slots_of, values) if found is not None), None)
    at = dim % example(node).dim()
    if slots is None:
        return outside_call(machine, node)
    if at == sum(slots):
        return _end_to_end(machine, node, values, slots)
    first = slots_alike(segments, node) if len(segments) == len(values) else None
    if first is None:
        raise Refused("no-rule", "cat of a segment with an outside tensor has no rule", node)
    terms = tuple(machine.aligned(s, first.window, node) for s in segments)
    term = Apply(torch.cat, False, (terms, at - first.rank), (), first.dim)
    return machine.fresh(term, first.rank, first.window, least=max(s.store.least for s in segments))


def slots_alike(segments: list[Segment], node: fx.Node) -> Segment:
    """The first of some segments, all of which have their slots along the same dimension."""
    first = segments[0]
    if any((s.dim, s.rank) != (first.dim, first.rank) for s in segments):
        raise Refused("dim-mismatch", "cat of segments along different dimensions", node)
    return first


def _end_to_end(machine: Machine, node: fx.Node, values: list[Any], slots: tuple[int, int]) -> Any:
    """Joined along the slots: to a document of the same length, or of another."""
    tensors = argument(node, 0, "tensors")
    segments = [v for v in values if isinstance(v, Segment)]
    if segments:
        slots_alike(segments, node)
        to_width = joined_to_width(machine, node, tensors, values)
        if to_width is not None:
            return to_width
    whole = _put_together(machine, node, values)
    if whole is not None:
        return whole
    if segments and len(values) == 2:
        found = _cat_shift(machine, node, values, slots[1]) or _completed(machine, node, values)
        if found is not None:
            if not found.store.exact:
                found.store.made_of = uneven.sequence(machine, node, values, *slots)
            return found
    several = pieces(machine, node, values, slots[1])
    if several is not None and {example(t).dtype for t in tensors} == {example(node).dtype}:
        return several
    longer = uneven.sequence(machine, node, values, *slots)
    if longer is None:
        raise Refused(
            "no-rule", "cat along a document's own dimension with something whose length nobody can tell", node
        )
    return longer


def _put_together(machine: Machine, node: fx.Node, values: list[Any]) -> Segment | None:
    """A whole document of neighbouring parts that numbers of it cut: ``cat((x[:n] * 0, x[n:]))``."""
    if machine.boundaries is None or not all(isinstance(v, Segment) and v.store.exact for v in values):
        return None
    if all(v.window.between is None for v in values):
        return None
    ends = [ends_of(machine.boundaries, v.window) for v in values]
    stops = [Affine(), *(stop for _, stop in ends)]
    if [start for start, _ in ends] != stops[:-1] or stops[-1] != own_length(machine.boundaries):
        return None
    want, have = example(node).dtype, [example(t).dtype for t in argument(node, 0, "tensors")]
    terms = [cast(machine, machine.read(v, node), own, want) for v, own in zip(values, have, strict=True)]
    made = terms[0]
    for value, term in zip(values[1:], terms[1:], strict=True):
        made = machine.intern(Assign(made, value.window, term, value.dim))
    return machine.fresh(made, values[0].rank)


def _completed(machine: Machine, node: fx.Node, values: list[Any]) -> Segment | None:
    """A whole document of two kinds of slots: ``cat((x[:1], x[1:] - x[:-1]))``, ``cat((bos, x[:-1]))``."""
    want, have = example(node).dtype, [example(t).dtype for t in argument(node, 0, "tensors")]
    for front in (True, False):
        few, rest = values if front else values[::-1]
        of_few, of_rest = have if front else have[::-1]
        if not isinstance(rest, Segment) or not rest.window.plain or not rest.store.exact:
            continue
        k = rest.window.front + rest.window.back
        if k < 1:
            continue
        target, opened = (Window(front=k), Window(first=k)) if front else (Window(back=k), Window(last=k))
        moved = cast(machine, machine.aligned(rest, target, node), of_rest, want)
        block = _constant_block(machine, few, rest.dim)
        if block is not None and block[0] == k:
            return machine.fresh(Fill(moved, target, block[1], rest.dim), rest.rank, least=k)
        if isinstance(few, Outside) and k == 1 and of_few == want and _is_one(machine, few, rest):
            return machine.fresh(Assign(moved, opened, few, rest.dim), rest.rank, least=k)
        if isinstance(few, Segment) and few.window == opened and few.store.exact:
            base = cast(machine, machine.read(few, node), of_few, want)
            return machine.fresh(Assign(base, target, moved, rest.dim), rest.rank)
    return None


def _is_one(machine: Machine, value: Outside, like: Segment) -> bool:
    """Is this tensor from outside one slot of such a segment?"""
    fake = machine.fake(value)
    return fake.dim() == like.rank and isinstance(fake.shape[like.dim], int) and fake.shape[like.dim] == 1


def _cat_shift(machine: Machine, node: fx.Node, values: list[Any], dim: int) -> Segment | None:
    """``cat((seg[k:], fill))``, ``cat((fill, seg[:-k]))`` and their wrapping forms."""
    dtypes = [example(t).dtype for t in argument(node, 0, "tensors")]
    for at, part, other, left in ((0, values[0], values[1], True), (1, values[1], values[0], False)):
        if not isinstance(part, Segment) or not part.window.plain or not part.store.exact:
            continue
        k = part.window.front if left else part.window.back
        if k < 1 or part.window != (Window(front=k) if left else Window(back=k)):
            continue
        shift = -k if left else k
        term = cast(machine, machine.read(part, node), dtypes[at], example(node).dtype)  # the other part may promote it
        block = _constant_block(machine, other, dim)
        if block is not None and block[0] == k:
            return machine.fresh(Roll(term, shift, block[1], dim), part.rank, least=k)
        near, far = (Window(last=1), Window(first=1)) if left else (Window(first=1), Window(last=1))
        for window in (near, far):
            number = _constant_part(machine, other, window, dtypes[1 - at])
            if number is not None and k == 1 and other.rank == part.rank:
                return machine.fresh(Roll(term, shift, number, dim), part.rank)
        if not isinstance(other, Segment) or k != 1 or other.store is not part.store or other.rank != part.rank:
            continue  # one tensor has one dtype
        if other.window == near:
            moved = machine.intern(Roll(term, shift, ANY, dim))  # the last (first) slot is repeated
            return machine.fresh(Assign(term, Window(back=1) if left else Window(front=1), moved, dim), part.rank)
        if other.window == far:
            return machine.fresh(Roll(term, shift, None, dim), part.rank)
    return None


@rule("pad")
def _pad(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Outside):
        return outside_call(machine, node)
    pad, mode, fill = argument(node, 1, "pad"), argument(node, 2, "mode", "constant"), argument(node, 3, "value", None)
    to_width = padded_to_width(machine, node, value, pad, mode, fill)
    if to_width is not None:
        return to_width
    slots = uneven.slots_of(value)
    if slots is not None and mode == "constant" and not all(isinstance(p, int) for p in pad):
        longer = _pad_by_number(machine, node, value, pad, 0 if fill is None else fill, slots)
        if longer is not None:
            return longer
    if slots is None or mode != "constant" or not all(isinstance(p, int) for p in pad):
        raise Refused("no-rule", "this pad has no rule", node)
    pairs = {-1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    left, right = pairs.get(slots[1], (0, 0))
    number = 0 if fill is None else fill
    if not isinstance(number, (int, float, bool)) or any(p != (0, 0) for d, p in pairs.items() if d != slots[1]):
        raise Refused("no-rule", "pad of other dimensions of a segment has no rule", node)
    if not isinstance(value, Segment) or not value.store.exact:
        longer = uneven.sequence(machine, node, [Padded(value, left, right, number)], *slots)
        if longer is None or min(left, right) < 0:
            raise Refused("no-rule", "pad cuts a document that has become longer or shorter", node)
        return longer
    return _pad_document(machine, node, Padded(value, left, right, number))


@documents("as_wide")
@rule("as_wide")
def _as_wide(machine: Machine, node: fx.Node) -> Any:
    return found_as_wide(machine, node)


def _pad_by_number(
    machine: Machine, node: fx.Node, value: Any, pad: Any, number: Any, slots: tuple[int, int]
) -> Pieces | None:
    """Filled up by numbers that documents have each of its own, ``-n % 8``."""
    pairs = {-1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    counts = [machine.affine(amount) for amount in pairs.pop(slots[1], (0, 0))]
    plain = isinstance(number, (int, float, bool)) and all(amount == (0, 0) for amount in pairs.values())
    if not plain or any(count is None for count in counts):
        return None
    fill = stored(number, example(node).dtype)
    ends = [[Filler(count, fill, slots[1])] if count != Affine() else [] for count in counts if count is not None]
    return uneven.sequence(machine, node, [*ends[0], value, *ends[1]], *slots)


def _pad_document(machine: Machine, node: fx.Node, padded: Padded) -> Any:
    """A document, or a part of one, with slots of a number on its sides."""
    value, left, right = padded.segment, padded.left, padded.right
    if value.window == FULL and min(left, right) >= 0 and max(left, right) > 0:
        # A copy, of which the parts that are taken are views.
        return dataclasses.replace(padded, segment=machine.fresh(machine.read(value, node), value.rank))
    made_of = uneven.sequence(machine, node, [padded], value.rank, value.dim) if min(left, right) >= 0 else None
    found = _pad_shift(machine, node, padded)
    if found is not None:
        found.store.made_of = made_of
        return found
    if made_of is None:
        raise Refused("no-rule", "pad changes the length of a document", node)
    return made_of


def _pad_shift(machine: Machine, node: fx.Node, padded: Padded) -> Segment | None:
    """What is cut off on one side and put on again on the other, or the same."""
    value, left, right, number = padded.segment, padded.left, padded.right, padded.fill
    w, term = value.window, machine.read(value, node)
    for k in (right, left):
        if k >= 1 and (w, left, right) in ((Window(front=k), 0, k), (FULL, -k, k)):
            return machine.fresh(Roll(term, -k, number, value.dim), value.rank, least=k)
        if k >= 1 and (w, left, right) in ((Window(back=k), k, 0), (FULL, k, -k)):
            return machine.fresh(Roll(term, k, number, value.dim), value.rank, least=k)
    if w.plain and min(left, right) >= 0 and left + right == w.front + w.back > 0:
        kept = Window(left, right)
        term = Fill(machine.aligned(value, kept, node), kept, number, value.dim)
        return machine.fresh(term, value.rank, least=left + right)
    return None
