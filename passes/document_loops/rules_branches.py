"""Rules for conditions on numbers of the document: checks, what ``continue`` skips, and the two ways at a branch."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.semantics import example, op_name
from packpass.semantics.pointwise import COMPARISONS, MIRRORED, NEGATED
from passes.document_loops.documents import as_term
from passes.document_loops.integers import EVERY, Affine, Boundaries, Check, Condition, Reach
from passes.document_loops.machine import OPAQUE, Document, Machine, Number
from passes.document_loops.rules import documents, rule
from passes.document_loops.rules_views import first_bound
from passes.refused import Refused


def comparison(machine: Machine, arg: Any) -> tuple[Affine, str, Affine] | None:
    """``(left, op, right)`` if ``arg`` compares two integers that the machine knows, or asks whether one is not 0."""
    if not isinstance(arg, fx.Node):
        return None
    held = machine.affine(arg)
    if held is not None:
        return held, "ne", Affine()
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
        held = _condition(machine, node.args[0], True)
        if held is None or not held.holds:
            raise Refused("check", "the body checks something that has no vectorised form", node)
        found = held.left, held.op, held.right
    message = (
        node.args[1]
        if len(node.args) > 1 and isinstance(node.args[1], str)
        else "check in a loop over documents failed"
    )
    machine.checks.append(Check(*found, message, machine.reach))
    return OPAQUE


@documents("loop_skip")
@rule("loop_skip")
def _skip(machine: Machine, node: fx.Node) -> Any:
    """``if <document is shorter than k>: continue``, for k = 1 of which nothing would have happened anyway; and
    ``continue`` by another condition on numbers of the document, or on what it holds."""
    shorter = _shorter_than(machine, *node.args[:2])
    if shorter is not None:
        _by_length(machine, shorter[0], node)
        reach = machine.reach.longer(shorter[1])
    else:
        kept = _condition(machine, node.args[0], not node.args[1])
        if kept is None:
            raise Refused("skip-condition", "by what documents are skipped is not understood", node)
        reach = machine.reach.where(kept)
    machine.skips_empty = True
    if shorter is None or shorter[1] > 1:
        before = {key: (store.term, store.version) for key, store in machine.outer.items()}
        if machine.skip not in (None, before):
            raise Refused("skip-condition", "documents are skipped at two places of the body", node)
        if node.args[4:] == (True,):
            raise Refused("skip-condition", "a list is appended to before documents are skipped", node)
        machine.skip = before
    machine.reach = reach
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
    if machine.arms > 2:
        _one_of_many(machine, node)
        return OPAQUE
    known = asked = False
    several = Refused("not-generic", "several conditions on the documents' numbers decide what the loop does", node)
    for taken in (True, False):
        shorter = _shorter_than(machine, condition, outcome is taken)
        if shorter is None or shorter[1] < 1:
            continue
        asked = True
        _by_length(machine, shorter[0], node)
        if machine.reach.conditions:
            raise several
        if implied:
            known = (
                machine.others is not None and machine.others.slots <= shorter[1]
                if taken
                else machine.reach.slots >= shorter[1]
            )
        elif taken:
            machine.others = Reach(shorter[1])
        else:
            machine.reach = machine.reach.longer(shorter[1])
    if implied and not known:
        raise Refused("not-generic", "one branch does not answer another for every length", node)
    if not asked and machine.arms > 1 and (holds := _condition(machine, condition, outcome)) is not None:
        if machine.others is not None or machine.reach:
            raise several
        machine.others, machine.reach = EVERY.where(_negated(holds)), machine.reach.where(holds)
    return OPAQUE


def _one_of_many(machine: Machine, node: fx.Node) -> None:
    """The same, where several conditions make more than two ways: what holds for the documents that go this one."""
    condition, outcome, implied = node.args
    longer = _shorter_than(machine, condition, not outcome)
    if longer is not None and longer[1] >= 1:
        _by_length(machine, longer[0], node)
        reach = machine.reach.longer(longer[1])
    else:
        holds = _condition(machine, condition, outcome)
        if implied or holds is None:
            raise Refused("not-generic", "which documents go one of several ways is not known", node)
        reach = machine.reach.where(holds)
    if implied and reach != machine.reach:
        raise Refused("not-generic", "one branch does not answer another for every length", node)
    machine.reach = reach


def _is_another_number(machine: Machine, length: Boundaries) -> bool:
    """Is the length that a condition asks for none of the documents that the loop goes by?"""
    return length in machine.numbers or (machine.boundaries is not None and machine.boundaries[0] != length)


def _by_length(machine: Machine, boundaries: tuple[Boundaries, int], node: fx.Node) -> None:
    """The loop goes by these documents, as far as a condition can tell."""
    if machine.boundaries is None:
        machine.asked = boundaries[0]
    machine.use(boundaries, node)


def _condition(machine: Machine, asked: Any, when: Any) -> Condition | None:
    """What holds of a document's numbers if a condition is ``when``; None if that is not known."""
    if not isinstance(asked, fx.Node):
        return None
    name = op_name(asked)
    if name == "sym_not":
        return _condition(machine, asked.args[0], not when)
    held = machine.value(asked)
    if isinstance(held, Number) or (isinstance(held, Document) and example(asked).dim() == 0):
        term = held.term if isinstance(held, Number) else as_term(machine, asked, asked)
        condition = Condition(term, "ne", Affine())
        return condition if when else _negated(condition)
    if isinstance(held, Affine) and not held.is_shared:
        return Condition(held, "ne" if when else "eq", Affine())
    sides = [_number(machine, arg) for arg in asked.args]
    if name not in COMPARISONS or len(sides) != 2 or None in sides:
        return None
    if all(isinstance(side, Affine) and side.is_shared for side in sides):
        return None
    condition = Condition(sides[0], name, sides[1])
    return condition if when else _negated(condition)


def _number(machine: Machine, arg: Any) -> Any:
    value = machine.value(arg)
    return value.term if isinstance(value, Number) else machine.affine(arg)


def _negated(condition: Condition) -> Condition:
    if isinstance(condition.left, Affine) and isinstance(condition.right, Affine):
        return Condition(condition.left, NEGATED[condition.op], condition.right)
    return dataclasses.replace(condition, holds=not condition.holds)


def _shorter_than(machine: Machine, condition: Any, when: Any) -> tuple[tuple[Any, int], int] | None:
    """``((boundaries, k of the document), length)`` if a condition is ``when`` for exactly the documents that are
    shorter than ``length``."""
    found = comparison(machine, condition)
    if found is None:
        return None
    left, op, right = found
    if not when:
        op = NEGATED[op]
    difference = left.plus(right, -1).in_lowest_terms()
    if difference.length_of() is None:
        difference, op = difference.times(-1), MIRRORED[op]
    length = difference.length_of()
    if length is None or _is_another_number(machine, length[0]):
        return None
    of, const = length  # the condition is: document length + const <op> 0
    if op not in ("le", "lt") and (op, const) != ("eq", 0):
        return None
    return (of, first_bound(difference)), -const if op == "lt" else 1 - const
