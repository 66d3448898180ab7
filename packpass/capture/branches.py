"""Branches on data in a loop over documents.

Two forms have a meaning without knowing the data: ``if cond: continue`` (and its mirror, a body that is one ``if``)
skips the rest of the body for some documents, and ``assert cond`` or ``if cond: raise`` checks every document. Both are
written into the graph as markers. Any other branch is followed both ways: taken as true in the first traced iteration,
and as false in a later one. A loop whose iterations must leave the same, which the passes check anyway, is then one in
which it does not matter; where they leave other things, the passes put these together if the documents' numbers decide
(`passes.document_loops.arms`, `passes.ragged_grids.ways`). A loop that skips documents and carries a total past them is
traced again with the skip followed both ways, too: then the documents that are skipped are those that add nothing.

Several conditions in one body are as many ways through it as they allow, each of which is traced
(`packpass.capture.ways`); beyond a few, the loop is refused.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import torch

from packpass import markers
from packpass._compat import free_unbacked_symbols
from packpass.capture import sized, stops
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, example
from packpass.capture.loop_checks import must_hold
from packpass.capture.nothing import ensure
from packpass.capture.region import JUMPS, Region, catches_exceptions
from packpass.capture.state import current_frame, location_of, refuse
from packpass.capture.watch import ROWS
from packpass.capture.ways import MOST, TooMany
from packpass.semantics import op_of
from packpass.semantics.pointwise import COMPARISONS

FILLERS = ("NOP", "RESUME", "CACHE")


def is_on_data(value: Any) -> bool:
    """Does a branch on this value depend on the documents?"""
    if isinstance(value, TensorVariable):
        return True
    return isinstance(value, SymNodeVariable) and bool(free_unbacked_symbols(value.sym_num))


def by_numbers(tx: Any, value: Any) -> Any:
    """``t > 1``, where ``t`` is an entry of a row of sizes and still a tensor, as the comparison of the number that it
    holds; any other value as it is."""
    node = value.as_proxy().node if isinstance(value, TensorVariable) else None
    if node is None or op_of(node) not in COMPARISONS or node.kwargs or not _is_of_row(node):
        return value
    sides = sized.numbers_in(tx, node)
    return value if sides is None else call(tx, getattr(operator, op_of(node)), *sides)


def as_condition(tx: Any, value: Any) -> Any:
    """``if n:`` asks whether a number is not 0; any other value as it is."""
    whole = isinstance(value, SymNodeVariable) and not isinstance(value.sym_num, torch.SymBool)
    return call(tx, operator.ne, value, constant(0)) if whole else value


def is_assert(tx: Any, jumps_if: bool) -> bool:
    """Is the branch that of an ``assert``?"""
    return jumps_if and tx.instructions[tx.instruction_pointer].opname == "LOAD_ASSERTION_ERROR"


def is_plain_assert(tx: Any, jumps_if: bool) -> bool:
    """Is it that of an ``assert`` without a message that is worked out? Dynamo itself puts those into the graph."""
    if not is_assert(tx, jumps_if):
        return False
    message = itertools.takewhile(_is_no_raise, tx.instructions[tx.instruction_pointer + 1 :])
    return all(i.opname in ("LOAD_CONST", "PUSH_NULL", "PRECALL", "CALL", "CALL_FUNCTION", *FILLERS) for i in message)


def _is_no_raise(instruction: Any) -> bool:
    return instruction.opname != "RAISE_VARARGS"


def goes_on_if(tx: Any, instruction: Any, jumps_if: bool) -> bool | None:
    """The outcome with which the program goes on, where it only raises with the other; None for any other branch."""
    taken, fallen = _only_raises(tx, tx.indexof[instruction.target]), _only_raises(tx, tx.instruction_pointer)
    if taken == fallen:
        return None
    return not jumps_if if taken else jumps_if


def _only_raises(tx: Any, start: int) -> bool:
    """Do all ways from an instruction end in ``raise``, without a loop?"""
    seen, queue = set[int](), [start]
    while queue:
        at = queue.pop()
        if at in seen:
            continue
        instruction = tx.instructions[at] if at < len(tx.instructions) else None
        if instruction is None or len(seen) > _LONGEST or instruction.opname.startswith(("RETURN", "YIELD", "SEND")):
            return False
        seen.add(at)
        if instruction.opname in ("RAISE_VARARGS", "RERAISE"):
            continue
        target = None if instruction.target is None else tx.indexof[instruction.target]
        if target is not None and target <= at:
            return False
        queue += [] if target is None else [target]
        queue += [] if instruction.opname in JUMPS else [at + 1]
    return True


_LONGEST = 300
"""Instructions of a way that only raises: a message is made there."""


def check(tx: Any, instruction: Any, value: Any, jumps_if: bool) -> bool:
    """``if lengths.max() > limit: raise ValueError(...)`` in front of a loop: an assertion in the graph, as Dynamo
    makes of ``assert``, instead of its end. False if the branch is another one."""
    wanted = goes_on_if(tx, instruction, jumps_if)
    if wanted is None or catches_exceptions(tx):
        return False
    number = isinstance(value, SymNodeVariable)
    if not number and any(type(size) is not int or size != 1 for size in example(value).shape):
        return False
    tensor = call(tx, torch.scalar_tensor, value) if number else value
    held = call(tx, operator.ne if wanted else operator.eq, tensor, constant(0))
    ensure(tx, held, f"the program raises at {location_of(tx)}: its condition holds for these values")
    if wanted == jumps_if:
        tx.jump(instruction)
    return True


# === Branches that are written down ==========================================================================


def _leads_to_loop(tx: Any, at: Any, head: Any) -> bool:
    """Does control, from instruction ``at``, go straight back to the FOR_ITER at ``head``?"""
    for _ in range(len(tx.instructions)):
        while tx.instructions[at].opname in FILLERS:
            at += 1
        if at == head:
            return True
        instruction = tx.instructions[at]
        if instruction.opname not in JUMPS or instruction.target is None:
            return False
        at = tx.indexof[instruction.target]
    return False


def _goes_on_if(tx: Any, instruction: Any, value: Any, jumps_if: bool) -> bool | None:
    """`goes_on_if`, where the condition is one on numbers, or on what one tensor element holds and nobody is to catch
    what is raised."""
    if isinstance(value, SymNodeVariable):
        is_bool = isinstance(value.sym_num, torch.SymBool)
        return goes_on_if(tx, instruction, jumps_if) if is_bool else None
    if not isinstance(value, TensorVariable) or is_plain_assert(tx, jumps_if) or catches_exceptions(tx):
        return None
    single = all(type(size) is int and size == 1 for size in example(value).shape)
    return goes_on_if(tx, instruction, jumps_if) if single else None


def write_down(tx: Any, instruction: Any, value: Any, jumps_if: bool, region: Region) -> bool:
    """Emit the marker for this branch and go on where control continues; False if the branch has no such meaning."""
    is_bool = isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymBool)
    wanted = _goes_on_if(tx, instruction, value, jumps_if)
    if wanted is not None:
        message = f"assertion in the loop at {region.location} failed"
        if is_bool:
            value = value if wanted else call(tx, torch.sym_not, value)
            must_hold(tx, region, value.as_proxy(), message)
        else:
            ensure(tx, call(tx, operator.ne if wanted else operator.eq, value, constant(0)), message)
        if wanted == jumps_if:
            tx.jump(instruction)
        return True
    if region.tx is not tx or not (is_bool or isinstance(value, TensorVariable)) or is_assert(tx, jumps_if):
        return False
    if stops.passes_by(tx, instruction, value, jumps_if, region):
        return True
    node = value.as_proxy().node
    of_row = _is_of_row(node) and (is_bool or _of_entries(node, region.indices[-1]))
    if of_row or region.key in current_frame().both_ways:
        return False
    head = tx.indexof[region.head]
    taken = _leads_to_loop(tx, tx.indexof[instruction.target], head)
    fallen = _leads_to_loop(tx, tx.instruction_pointer, head)
    if taken == fallen or (region.iteration, tx.instruction_pointer) in region.skipped_at:
        return False  # come here again, as a while on data does, it could go on for ever
    region.skipped_at.add((region.iteration, tx.instruction_pointer))
    region.note_skip()
    skip_when = jumps_if if taken else not jumps_if
    op = markers.LOOP_SKIP[0 if is_bool else 1]
    listed = (True,) if region.has_listed() else ()
    tx.output.create_proxy("call_function", op, (value.as_proxy(), skip_when, region.id, region.iteration, *listed), {})
    if fallen:
        tx.jump(instruction)
    return True


# === Branches that are followed both ways ====================================================================


def follow(tx: Any, value: Any, jumps_if: bool, region: Region) -> Any:
    """Put the outcome that this iteration follows in place of a condition on the stack, and give what the condition is
    as the value of ``a and b`` and ``a or b``: a number stays one. (They leave it below the copy that is looked at, or
    look at itself.) None if it is not followed."""
    number, tensor = isinstance(value, SymNodeVariable), isinstance(value, TensorVariable)
    if not (number or tensor) or is_assert(tx, jumps_if):
        return None
    asked = as_condition(tx, value)
    whole = asked is not value
    node = asked.as_proxy().node
    outcome, implied = _outcome(region, asked.sym_num.node.expr if number else node, location_of(tx), _is_of_row(node))
    region.ways.of_contents |= _asks_contents(node, region.indices[-1])
    op = markers.LOOP_BRANCH[0 if number else 1]
    tx.output.create_proxy("call_function", op, (asked.as_proxy(), outcome, implied), {})
    left = value
    if number and not (whole and outcome):
        left = constant(0 if whole else outcome)
    tx.stack[-1] = constant(outcome)
    if len(tx.stack) > 1 and tx.stack[-2].realize() is value:
        tx.stack[-2] = left
    return left


def _asks_contents(condition: Any, begin: Any) -> bool:
    """Is a condition made, behind ``begin``, of what the document holds: of more than entries of vectors?"""
    seen = [condition]
    for node in seen:
        if isinstance(node.meta.get("example_value"), torch.Tensor):
            if not _of_entries(node, begin):
                return True
            continue
        seen += [n for n in node.all_input_nodes if n >= begin and n not in seen]
    return False


def _of_entries(node: Any, begin: Any) -> bool:
    """Is a tensor of one number worked out in the body from entries of vectors of integers: ``cu[i + 1] - cu[i]``?"""
    fake = node.meta.get("example_value")
    if not isinstance(fake, torch.Tensor) or fake.dim() or fake.dtype.is_floating_point or node < begin:
        return False
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("example_value"), torch.Tensor)]
    if node.target in ROWS:
        vector = tensors[0].meta["example_value"]
        return len(tensors) == 1 and vector.dim() == 1 and tensors[0] < begin
    return bool(tensors) and all(_of_entries(tensor, begin) for tensor in tensors)


def _is_of_row(node: Any) -> bool:
    """Is a number among those that it is made of which is an entry of a row of a matrix of integers: sizes, of which
    the differences may be negative?"""
    seen = [node]
    for made in seen:
        fake, inputs = made.meta.get("example_value"), list(made.all_input_nodes)
        if not isinstance(fake, torch.Tensor) and made.target != "item":  # the size of a tensor of integers is none
            inputs = [n for n in inputs if not isinstance(n.meta.get("example_value"), torch.Tensor)]
        if isinstance(fake, torch.Tensor) and fake.dim() > 1:
            if fake.dim() == 2 and not fake.dtype.is_floating_point:
                return True
            continue
        seen += [n for n in inputs if n not in seen]
    return False


def _outcome(region: Region, condition: Any, location: str, sizes: bool) -> tuple[bool, bool]:
    """The outcome of a branch on data in this iteration, and whether that is so because both numbers are lengths, which
    ``sizes`` need not be."""
    frame = current_frame()
    try:
        outcome, implied = region.ways.outcome(region.iteration, condition, lengths=not sizes)
    except TooMany:
        reason = f"branches on the documents' numbers make more than {MOST} ways through the body (at {location})"
        raise refuse("length-branch", reason, region.location, region.key) from None
    frame.branches.setdefault(region.id, location)
    if implied:
        frame.not_replayable = frame.not_replayable or "one branch is taken to answer another"
    return outcome, implied
