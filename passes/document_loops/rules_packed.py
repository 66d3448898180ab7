"""Rules for ops that move slots within a document or make per-document values: roll, flip, cat, pad, arange, checks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, op_name
from packpass.semantics.pointwise import COMPARISONS, MIRRORED, NEGATED
from passes.document_loops.emit_documents import _flattened
from passes.document_loops.integers import FULL, Affine, Check
from passes.document_loops.machine import OPAQUE, Machine, Segment
from passes.document_loops.op_names import label
from passes.document_loops.parts import OtherDocuments, chunks_of
from passes.document_loops.rules import documents, outside_call, rule
from passes.document_loops.rules_views import first_bound
from passes.document_loops.terms import Apply, Flip, Outside, Roll, Term
from passes.document_loops.uneven import pieces_of
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
    if name == "sym_not":
        opposite = comparison(machine, arg.args[0])
        return None if opposite is None else (opposite[0], NEGATED[opposite[1]], opposite[2])
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
    if node.args[4:] == (True,):
        raise Refused("skip-condition", "a list is appended to before short documents are skipped", node)
    machine.skips_empty = True
    machine.least = length
    machine.skip = (length, {key: (store.term, store.version) for key, store in machine.outer.items()})
    return OPAQUE


@documents("loop_branch")
@rule("loop_branch")
def _branch(machine: Machine, node: fx.Node) -> Any:
    """Which documents take the arm that this iteration follows, where that is asked and their slots decide it."""
    condition, outcome, implied = node.args
    if implied and not machine.arms:
        raise Refused("not-generic", "one branch answers another only where both ask for the document's length", node)
    if not machine.arms:
        return OPAQUE
    known = False
    for taken in (True, False):
        shorter = _shorter_than(machine, condition, outcome is taken)
        if shorter is None or shorter[1] < 1:
            continue
        machine.use(shorter[0], node)
        if implied:
            known = machine.short is not None and machine.short <= shorter[1] if taken else machine.least >= shorter[1]
        elif taken:
            machine.short = shorter[1]
        else:
            machine.least = max(machine.least, shorter[1])
    if implied and not known:
        raise Refused("not-generic", "one branch does not answer another for every length", node)
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
