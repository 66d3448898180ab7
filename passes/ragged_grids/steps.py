"""Every node of a traced iteration in turn: operations on tensors, numbers that are read, Dynamo's own assertions."""

from __future__ import annotations

import functools
import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass._compat import least_of
from packpass.semantics import Call, call_of, effects, example, is_tensor
from packpass.semantics.integers import SMALL
from packpass.semantics.pointwise import DIVIDING
from passes.ragged_grids.apart import taken_apart
from passes.ragged_grids.asked import asked_of, follows
from passes.ragged_grids.changed import change
from passes.ragged_grids.looked import expression
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.rounding import rounded
from passes.ragged_grids.rules import apply
from passes.ragged_grids.sizes import DOCUMENT, LAST, Quotient, Remainder, Unknown, placed
from passes.ragged_grids.terms import (
    Applied,
    Input,
    Number,
    Piece,
    Read,
    Term,
    Value,
)
from passes.ragged_grids.written import write
from passes.ragged_grids.written_parts import change_part, write_part
from passes.refused import Refused


def step(machine: Machine, node: fx.Node) -> None:
    """Interpret one node of the body; raises `Refused`."""
    if node.op == "get_attr" or _is_size(node) or node.target is markers.LOOP_END:
        return
    if node.target in markers.LOOP_BRANCH:
        machine.branches.append(_condition(machine, node))
        return
    if node.target is markers.LOOP_CHECK:
        _checked(machine, node)
        return
    if node.target in markers.LOOP_SKIP:
        raise Refused("skip-condition", "a loop skips documents by something else than their numbers", node)
    if node.target is markers.LIST_LAST:
        machine.size.bind(example(node), LAST)
        return
    if node.target in (torch.ops.aten._assert_scalar.default, torch._check):  # a marker says it, too, if it is a user's
        machine.assumed.append(node)
        return
    if node.target is markers.SPLIT_GET:
        _piece(machine, node)
        return
    if node.target is markers.LIST_GET:
        _entry(machine, node)
        return
    if node.target is markers.LOOP_BEGIN:  # of a loop over what this one has put into a list
        machine.size.bind(example(node), DOCUMENT)
        return
    if node.op not in ("call_function", "call_method"):
        raise Refused("no-rule", f"{node.name} ({node.op}) has no rule", node)
    call = call_of(node)
    if _is_number(node):
        _number(machine, node, call)
        return
    if write(machine, node) or write_part(machine, node) or _asserted(machine, node):
        return
    found = effects.effects_of(node)
    silent = found.known and not (found.random or found.collective or effects.changes_mode(node))
    if call is not None and silent and effects.written_inputs(node):
        if change(machine, node, call, apply) or change_part(machine, node, call, apply):
            return
    if effects.written_inputs(node) or not found.known:
        raise Refused("outer-tensor-write", f"{label(node)} changes a tensor in place, or may", node)
    if found.random or found.collective or effects.changes_mode(node):
        raise Refused("no-rule", f"{label(node)} draws random numbers, sends messages or changes a mode", node)
    try:
        apply(machine, node, call)
    except Refused as refused:
        if refused.code not in ("no-rule", "length-mismatch") or not taken_apart(machine, node, step):
            raise


def _entry(machine: Machine, node: fx.Node) -> None:
    """What the document has put into a list of a loop before this one (`passes.joined_loops`), whose sizes Dynamo has
    named once more."""
    listed = node.args[0]
    assert isinstance(listed, fx.Node)
    is_list = listed.target is markers.LIST_COLLECT
    sources = [markers.collected_in(listed, which) for which in (0, 1)] if is_list else [listed]
    source = next((source for source in sources if source in machine.values), None)
    if source is None:
        raise Refused("list-use", "looping over a list that an earlier loop over documents filled has no rule", node)
    term = machine.values[source]
    assert isinstance(term, Term)
    if not all(machine.size.bind(size, dim) for size, dim in zip(example(node).shape, term.dims, strict=True)):
        raise Refused("length-mismatch", "two sizes of a document are taken to be the same", node)
    machine.keep(node, term)


def _is_number(node: fx.Node) -> bool:
    return isinstance(example(node), (int, torch.SymInt, torch.SymBool, torch.SymFloat, torch.Size))


def _is_integer(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(example(arg), torch.SymInt)


def _is_size(node: fx.Node) -> bool:
    return isinstance(example(node), torch.Size)


def _number(machine: Machine, node: fx.Node, call: Call | None) -> None:
    """A number that is read from a tensor gets its meaning; all others are expressions of those."""
    if call is not None and len(call.operands) == 1 and effects.effects_of(node).host:
        operand = call.operands[0]
        term = machine.term(operand.node, node)
        meaning = _number_in(machine, term)
        if meaning is None:
            raise Refused("host-read", "a tensor value that is not a size of the document is read on the host", node)
        if not machine.size.bind(example(node), meaning):
            raise Refused("length-mismatch", "two sizes of a document are taken to be the same", node)
        return
    if not isinstance(example(node), torch.SymFloat):
        rounded(machine, node)
    if call is not None and call.op in DIVIDING and len(node.args) == 2 and _is_integer(node.args[1]):
        by = machine.expression(node.args[1], node)
        machine.check(by, "!=", sympy.Integer(0), node, "a size is divided by 0")


def _number_in(machine: Machine, term: Term) -> Any:
    """The expression of the one integer that a tensor holds; None if it is no number of the document."""
    if isinstance(term, Number):
        return term.value
    return entry(machine, term, ()) if not term.dims else None


def entry(machine: Machine, term: Term, at: tuple[Any, ...]) -> Any:
    """The expression of an integer of a tensor, at places that are numbers of the document; None if it is not known."""
    if term.dtype not in (torch.int32, torch.int64):
        return None
    return expression(term, at, functools.partial(_of_tensors, machine))


def _of_tensors(machine: Machine, term: Term, at: tuple[Any, ...]) -> Any:
    if isinstance(term, Applied):
        return _computed(machine, term, at)
    if not isinstance(term, Input) or len(at) not in (1, 2):
        return None
    ahead = 0 if at[0] == 0 and term.dims[0] == 1 else at[0] - DOCUMENT  # of one row, torch does not ask which
    if not sympy.sympify(ahead).is_Integer or ahead < 0:
        return None
    call = call_of(term.node)
    if call is not None and not _changed(call):
        inner = Machine(machine.intern, machine.names, set())
        inner.size = machine.size
        try:
            apply(inner, term.node, call)
            made = inner.values[term.node]
            found = entry(machine, made, at) if isinstance(made, Term) else None
        except Refused:
            found = None
        if found is not None:
            return found
    if not all(a.is_Integer for a in at[1:]):
        return None
    return machine.names.column(term.node, int(at[1]) if len(at) == 2 else None, int(ahead))


def _changed(call: Call) -> bool:
    """Is what a call has made, or what it was made from, changed afterwards?"""
    nodes = [call.node, *(operand.node for operand in call.operands)]
    return any(effects.mutated_after(call.node.graph, node, call.node) for node in nodes)


_PYTHON = {operator.mul: sympy.Mul, operator.add: sympy.Add, operator.floordiv: Quotient, operator.mod: Remainder}


def _computed(machine: Machine, term: Applied, at: tuple[Any, ...]) -> Any:
    """Arithmetic of integers, and copies."""
    parts = []
    for arg in term.args:
        if isinstance(arg, Read):
            parts.append(entry(machine, arg.of, tuple(placed(where, term.dims, at) for where in arg.at)))
        elif isinstance(arg, Value) or type(arg) is int:
            parts.append(sympy.sympify(getattr(arg, "value", arg)))
    if not parts or any(part is None for part in parts) or term.kwargs:
        return None
    found = None
    if term.copies:
        found = parts[0]
    elif term.target is operator.sub and len(parts) == 2:
        found = parts[0] - parts[1]
    elif term.target in _PYTHON and len(parts) == len(term.args) == 2:
        found = _PYTHON[term.target](*parts)
    return None if found is None or (term.dtype is torch.int32 and _may_wrap_around(found)) else found


def _may_wrap_around(number: Any) -> bool:
    """Is a number of a tensor with 32 bits perhaps another one than that of Python? Sizes and their products fit."""
    parts = sympy.Add.make_args(sympy.expand(number))
    return any(abs(part.as_coeff_Mul()[0]) > (SMALL if part.free_symbols else 1 << 30) for part in parts)


def finish(machine: Machine) -> None:
    """End of the body: only now is it known which sizes are the same."""
    for node in machine.assumed:
        _assume(machine, node)


def _assume(machine: Machine, node: fx.Node) -> None:
    """Dynamo's own assertion on the sizes of the iteration."""
    condition = node.args[0]
    value = example(condition)
    if not isinstance(value, torch.SymBool) or (isinstance(condition, fx.Node) and _is_of_memory(condition)):
        return
    try:
        holds = machine.size(value)
    except Unknown:
        raise Refused("no-rule", "a size that depends on values of tensors is checked", node) from None
    holds = _as_checked(machine, holds)
    for part in holds.args if isinstance(holds, sympy.And) else (holds,):
        if not _whole_part(machine, node, part, value):
            _assumed(machine, node, part)


def _whole_part(machine: Machine, node: fx.Node, holds: Any, condition: torch.SymBool) -> bool:
    """``table[:t]`` beside ``t`` slots: the table must have as many, if it has not one slot, which would be for all."""
    if not isinstance(holds, sympy.Eq):
        return False
    for size, least in (holds.args, holds.args[::-1]):
        if isinstance(least, sympy.Min) and size in least.args:
            others = [other for other in least.args if other != size]
            if all(_shared(machine, other) and least_of(condition, other) >= 2 for other in others):
                for other in others:
                    machine.check(other - size, ">=", sympy.Integer(0), node, "a table has fewer slots than are read")
                return True
    return False


def _as_checked(machine: Machine, holds: Any) -> Any:
    """A condition where the smaller of two numbers, or the larger, is the one that has been checked to be that, and two
    are the same that have been checked to be."""

    def known(op: str, gap: Any) -> bool:
        return any(c.op == op and sympy.expand(c.left - c.right - gap) == 0 for c in machine.checks)

    def one_of(found: Any) -> Any:
        sign = 1 if isinstance(found, sympy.Min) else -1
        for one in found.args:
            others = found.func(*(other for other in found.args if other != one))
            if known(">=", sign * (others - one)) or known("==", found - one):
                return one
        return found

    def same(found: Any) -> Any:
        gap = found.lhs - found.rhs
        return sympy.true if known("==", gap) or known("==", -gap) else found

    holds = holds.replace(lambda e: isinstance(e, sympy.Eq), same)
    return holds.replace(lambda e: isinstance(e, (sympy.Min, sympy.Max)), one_of)


def _shared(machine: Machine, number: Any) -> bool:
    """Do all documents share a number?"""
    return not number.free_symbols & machine.names.own


def _assumed(machine: Machine, node: fx.Node, holds: Any) -> None:
    asked = asked_of(holds)
    if holds == sympy.true or asked in machine.asserted:
        return
    if any(follows(asked, (check.left - check.right, check.op)) for check in machine.checks):
        return
    if not {*machine.names.columns, *machine.names.kept} & holds.free_symbols:
        return  # it is there in front of the loop, too
    if isinstance(holds, sympy.Eq) and machine.follows(*holds.args):
        return
    if _is_count(machine, holds):
        return
    size, least = _at_least(holds)
    if least is None or least > (1 if machine.on_host else 0):
        raise Refused("length-mismatch", f"sizes of a document are taken to fulfil {holds}", node)
    machine.check(size - least, ">=", sympy.Integer(0), node, "a size is negative" if least <= 0 else "a size is 0")


def _is_of_memory(condition: fx.Node) -> bool:
    """Is nothing asked but where a tensor begins in its memory?"""
    offsets = torch.ops.aten.sym_storage_offset.default
    numbers = condition.all_input_nodes
    return bool(numbers) and all(number.target is offsets for number in numbers)


def _condition(machine: Machine, node: fx.Node) -> Any:
    """What a branch asks for, and the way that this iteration goes; None for what is not known of sizes alone."""
    value = example(node.args[0])
    try:
        return (machine.size(value), bool(node.args[1])) if isinstance(value, torch.SymBool) else None
    except Unknown:
        return None


def _checked(machine: Machine, node: fx.Node) -> None:
    """An assertion of the user's on sizes."""
    value = example(node.args[0])
    try:
        holds = machine.size(value) if isinstance(value, torch.SymBool) else None
    except Unknown:
        holds = None
    if holds == sympy.true:
        return
    asked = asked_of(holds)
    if asked is None:
        raise Refused("check", "a check in a loop over rows of sizes that is none of sizes alone has no rule", node)
    machine.check(asked[0], asked[1], sympy.Integer(0), node, str(node.args[1]))
    machine.asserted.add(asked)


def _at_least(holds: Any) -> tuple[Any, Any]:
    """``(size, number)`` if it is asked whether a size is at least that number; None for the number otherwise."""
    if not isinstance(holds, (sympy.Ge, sympy.Gt, sympy.Le, sympy.Lt)):
        return None, None
    if isinstance(holds, sympy.Ge) and holds.rhs.is_Integer and holds.rhs <= 0:
        return holds.lhs, holds.rhs
    asked = asked_of(holds)
    assert asked is not None
    number, size = asked[0].as_coeff_Add()
    return (size, -number) if number.is_Integer else (None, None)


def _is_count(machine: Machine, holds: Any) -> bool:
    """Is it asked of the number of selected slots whether it is one: not negative, and not larger than all?"""
    if isinstance(holds, sympy.Ge) and holds.lhs in machine.names.kept:
        return bool(holds.rhs.is_Integer and holds.rhs <= 0)
    mask = machine.names.kept.get(holds.lhs) if isinstance(holds, sympy.Le) else None
    return mask is not None and machine.same(holds.rhs, mask.dims[0])


def _asserted(machine: Machine, node: fx.Node) -> bool:
    """``_assert_async(n >= 0)`` of a number of the document that a tensor holds: capture says so of lengths. False for
    any other call."""
    holds = node.args[0] if node.target is torch._assert_async and len(node.args) == 2 else None
    if not isinstance(holds, fx.Node) or holds.target is not operator.ge:
        return False
    number, least = holds.args
    if not isinstance(number, fx.Node) or not is_tensor(number) or type(least) is not int:
        return False
    known = _number_in(machine, machine.term(number, node))
    if known is None:
        return False
    machine.check(known, ">=", sympy.Integer(least), node, str(node.args[1]))
    return True


def _piece(machine: Machine, node: fx.Node) -> None:
    """``x.split(lengths)[i]``"""
    x, lengths, index, dim = node.args
    fake, source = example(node), example(x)
    if machine.expression(index, node) != DOCUMENT or not isinstance(lengths, fx.Node) or not isinstance(x, fx.Node):
        raise Refused("not-a-segment", "a part of a split other than the document's own", node)
    length = entry(machine, machine.term(lengths, node), (DOCUMENT,))
    if length is None or x in machine.inside or lengths in machine.inside:
        raise Refused("no-rule", "a split of what a document has made", node)
    at = int(str(dim)) % source.dim()
    if not machine.size.bind(fake.shape[at], length):
        raise Refused("length-mismatch", "the lengths of a split are taken to be other sizes of the document", node)
    rest = tuple(machine.expression(s, node) for s in source.shape)
    dims = (*rest[:at], length, *rest[at + 1 :])
    machine.keep(node, Piece(dims, fake.dtype, fake.device, fake.requires_grad, x, at, length))
