"""Rules for ops that move slots within a document or make per-document values: roll, flip, cat, pad, arange, checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example, op_name
from packpass.semantics.creation import LIKE, uniform
from packpass.semantics.names import name_of_target
from packpass.semantics.pointwise import COMPARISONS, MIRRORED, NEGATED
from passes.document_loops.emit_documents import _flattened
from passes.document_loops.integers import FULL, Affine, Window
from passes.document_loops.machine import OPAQUE, Check, Machine, Padded, Segment
from passes.document_loops.op_names import label
from passes.document_loops.padded import joined_to_width, padded_to_width
from passes.document_loops.parts import OtherDocuments, chunks_of, pieces
from passes.document_loops.rules import documents, outside_call, rule
from passes.document_loops.rules_views import first_bound
from passes.document_loops.terms import ANY, Apply, Assign, Flip, Outside, Roll, Term
from passes.document_loops.uneven import joined, pieces_of
from passes.refused import Refused


def _whole(machine: Machine, node: fx.Node, value: Any) -> Segment:
    if not isinstance(value, Segment) or value.window != FULL or not value.store.exact:
        raise Refused("no-rule", f"{label(node)} of a part of a document has no rule", node)
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class FlatRoll(Term):
    """All numbers of a document, in the order of its rows, rolled around its end."""

    of: Term
    shift: int
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """A roll of the flattened row, by boundaries that count numbers."""
        row = emitter.node(self.of)
        x, cu, _ = _flattened(emitter, self.of, self.dim, tuple(range(self.dim + 1, 0)))
        rolled = emitter.call(torch.ops.packpass.packed_roll.default, x, cu, self.shift, 0, None, None)
        made: fx.Node = emitter.call("view_as", rolled, row, method=True)
        return made


@rule("roll")
def _roll(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Outside):
        return outside_call(machine, node)
    segment = _whole(machine, node, value)
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims", ())
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims or ())
    if not dims:
        if segment.dim != -segment.rank or len(shifts) != 1 or not isinstance(shifts[0], int):
            raise Refused("no-rule", "roll without dims flattens a document whose slots are not its rows", node)
        if segment.rank > 1:
            return machine.fresh(
                machine.intern(FlatRoll(machine.read(segment, node), shifts[0], segment.dim)), segment.rank
            )
        dims = [0]
    if len(dims) != len(shifts) or not all(isinstance(v, int) for v in (*shifts, *dims)):
        raise Refused("no-rule", "roll by an amount that depends on data has no rule", node)
    term = machine.read(segment, node)
    others = [(s, d) for s, d in zip(shifts, dims, strict=True) if d % segment.rank != segment.rank + segment.dim]
    if others:
        args = (term, tuple(s for s, _ in others), tuple(d for _, d in others))
        term = machine.intern(Apply(torch.roll, False, args, (), segment.dim))
    total = sum(s for s, d in zip(shifts, dims, strict=True) if d % segment.rank == segment.rank + segment.dim)
    if total:
        term = machine.intern(Roll(term, total, None, segment.dim))
    elif not others:
        term = machine.intern(Apply(torch.clone, False, (term,), (), segment.dim))
    return machine.fresh(term, segment.rank)


@rule("flip")
def _flip(machine: Machine, node: fx.Node) -> Any:
    value = machine.value(node.args[0])
    if isinstance(value, Outside):
        return outside_call(machine, node)
    segment = _whole(machine, node, value)
    rest = node.args[1:] if len(node.args) > 1 else (node.kwargs["dims"],)
    dims = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest
    packed = segment.rank + segment.dim
    others = tuple(d for d in dims if d % segment.rank != packed)  # type: ignore[operator]
    term = machine.read(segment, node)
    if others:
        term = machine.intern(Apply(torch.flip, False, (term, others), (), segment.dim))
    if len(others) != len(dims):
        term = Flip(term, segment.dim)
    return machine.fresh(term, segment.rank)


# === Concatenation and padding inside a document =============================================================


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
    uneven = joined(machine, node, values)
    if uneven is not None and dim % uneven.rank == uneven.rank + uneven.term.dim:
        if {example(t).dtype for t in tensors} == {example(node).dtype}:
            return uneven
    segments = [v for v in values if isinstance(v, Segment)]
    if segments and dim % example(node).dim() == segments[0].rank + segments[0].dim:
        to_width = joined_to_width(machine, node, tensors, values)
        if to_width is not None:
            return to_width
    if not segments:
        return outside_call(machine, node)
    first = segments[0]
    at = dim % example(node).dim()
    if any(s.dim != first.dim or s.rank != first.rank for s in segments):
        raise Refused("dim-mismatch", "cat of segments along different dimensions", node)
    if at != first.rank + first.dim:
        if len(segments) != len(values):
            raise Refused("no-rule", "cat of a segment with an outside tensor has no rule", node)
        terms = tuple(machine.aligned(s, first.window, node) for s in segments)
        term = Apply(torch.cat, False, (terms, at - first.rank), (), first.dim)
        return machine.fresh(term, first.rank, first.window, exact=all(s.store.exact for s in segments))
    if len(values) == 2:
        found = _cat_shift(machine, node, values, first.dim)
        if found is not None:
            return found
    several = pieces(machine, node, values, first.dim)
    if several is not None and {example(t).dtype for t in tensors} == {example(node).dtype}:
        return several
    raise Refused(
        "no-rule",
        "cat of parts of a document along its own dimension: only a shift by k with k fill slots has a rule",
        node,
    )


def _cat_shift(machine: Machine, node: fx.Node, values: list[Any], dim: int) -> Segment | None:
    """``cat((seg[k:], fill))``, ``cat((fill, seg[:-k]))`` and their wrapping forms."""
    dtypes = [example(t).dtype for t in argument(node, 0, "tensors")]
    for at, part, other, left in ((0, values[0], values[1], True), (1, values[1], values[0], False)):
        if not isinstance(part, Segment) or not part.window.plain or not part.store.exact:
            continue
        k = part.window.front if left else part.window.back
        if k < 1 or part.window != (Window(front=k) if left else Window(back=k)):
            continue
        if example(node).dtype != dtypes[at]:
            continue  # the other part promotes this one
        shift = -k if left else k
        term = machine.read(part, node)
        block = _constant_block(machine, other, dim)
        if block is not None and block[0] == k:
            return machine.fresh(Roll(term, shift, block[1], dim), part.rank, exact=False)
        near, far = (Window(last=1), Window(first=1)) if left else (Window(first=1), Window(last=1))
        for window in (near, far):
            number = _constant_part(machine, other, window, dtypes[1 - at])
            if number is not None and k == 1 and other.rank == part.rank:
                return machine.fresh(Roll(term, shift, number, dim), part.rank)
        if not isinstance(other, Segment) or k != 1 or other.store is not part.store or other.rank != part.rank:
            continue
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
    if (
        not isinstance(value, Segment)
        or mode != "constant"
        or not all(isinstance(p, int) for p in pad)
        or not value.store.exact
    ):
        raise Refused("no-rule", "this pad has no rule", node)
    pairs = {-1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    left, right = pairs.get(value.dim, (0, 0))
    number = 0 if fill is None else fill
    if not isinstance(number, (int, float, bool)) or any(p != (0, 0) for d, p in pairs.items() if d != value.dim):
        raise Refused("no-rule", "pad of other dimensions of a segment has no rule", node)
    w = value.window
    term = machine.read(value, node)
    for k in (right, left):
        if k >= 1 and (w, left, right) in ((Window(front=k), 0, k), (FULL, -k, k)):
            return machine.fresh(Roll(term, -k, number, value.dim), value.rank, exact=False)
        if k >= 1 and (w, left, right) in ((Window(back=k), k, 0), (FULL, k, -k)):
            return machine.fresh(Roll(term, k, number, value.dim), value.rank, exact=False)
    if w == FULL and min(left, right) == 0 and max(left, right) > 0:
        return Padded(value, left, right, number)
    raise Refused("no-rule", "pad changes the length of a document", node)


@rule("chunk")
def _chunk(machine: Machine, node: fx.Node) -> Any:
    """Equal parts of a document."""
    count, dim = argument(node, 1, "chunks"), argument(node, 2, "dim", 0)
    if type(count) is not int or type(dim) is not int or count < 1:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    value = machine.value(node.args[0])
    try:
        return chunks_of(machine, node, value, count, dim)
    except Refused as refused:
        uneven = None if isinstance(refused, OtherDocuments) else pieces_of(machine, node, value, count, dim)
        if uneven is None:
            raise
        return uneven


# === Checks and skips ========================================================================================


def comparison(machine: Machine, arg: Any) -> tuple[Affine, str, Affine] | None:
    """``(left, op, right)`` if ``arg`` compares two integers that the machine knows."""
    if not isinstance(arg, fx.Node):
        return None
    name = op_name(arg)
    if name not in COMPARISONS or len(arg.args) != 2:
        return None
    left, right = machine.affine(arg.args[0]), machine.affine(arg.args[1])
    return (left, name, right) if left is not None and right is not None else None


@documents("loop_check", "_check", "assert_async")
@rule("loop_check", "_check", "assert_async")
def _check(machine: Machine, node: fx.Node) -> Any:
    """A check the user wrote: it must survive, for every document at once."""
    found = comparison(machine, node.args[0])
    if found is None:
        if node.args[0] is True:
            return OPAQUE
        raise Refused("check", "the body checks something that has no vectorised form", node)
    message = (
        node.args[1]
        if len(node.args) > 1 and isinstance(node.args[1], str)
        else "check in a loop over documents failed"
    )
    machine.checks.append(Check(*found, message, machine.least))
    return OPAQUE


@documents("loop_skip")
@rule("loop_skip")
def _skip(machine: Machine, node: fx.Node) -> Any:
    """``if <document is shorter than k>: continue``; for k = 1 nothing would have happened anyway."""
    shorter = _shorter_than(machine, *node.args[:2])
    if shorter is None:
        raise Refused("skip-condition", "documents are skipped by another condition than being too short", node)
    boundaries, length = shorter
    machine.use(boundaries, node)
    if length <= 1:
        machine.skips_empty = True
        machine.least = max(machine.least, length)
        return OPAQUE
    if machine.skip is not None:
        raise Refused("skip-condition", "documents are skipped at two places of the body", node)
    machine.skips_empty = True
    machine.least = length
    machine.skip = (length, {key: (store.term, store.version) for key, store in machine.outer.items()})
    return OPAQUE


@documents("loop_branch")
@rule("loop_branch")
def _branch(machine: Machine, node: fx.Node) -> Any:
    """Which documents take the arm that this iteration follows, where that is asked and their slots decide it."""
    condition, outcome = node.args
    if machine.arms:
        for taken in (True, False):
            shorter = _shorter_than(machine, condition, outcome is taken)
            if shorter is not None and shorter[1] == 1:
                machine.use(shorter[0], node)
                machine.empty = taken
                machine.least = max(machine.least, 0 if taken else 1)
    return OPAQUE


def _shorter_than(machine: Machine, condition: Any, when: Any) -> tuple[tuple[Any, int], int] | None:
    """``((boundaries, k of the document), length)`` if a condition is ``when`` for exactly the documents that are
    shorter than ``length``."""
    found = comparison(machine, condition)
    if found is None:
        return None
    left, op, right = found
    if not when:
        op = NEGATED[op]
    difference = left.plus(right, -1)
    if difference.length_of() is None:
        difference, op = difference.times(-1), MIRRORED[op]
    length = difference.length_of()
    if length is None:
        return None
    of, const = length  # the condition is: document length + const <op> 0
    if op not in ("le", "lt") and (op, const) != ("eq", 0):
        return None
    return (of, first_bound(difference)), -const if op == "lt" else 1 - const
