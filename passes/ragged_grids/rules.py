"""From what an operation means to where each slot of its result comes from."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass.semantics import Call, call_of, example, meaning, meaning_of
from packpass.semantics.limits import NO_LIMITS, limits_of
from packpass.semantics.pointwise import COPIES, PROMOTING
from passes.ragged_grids import layers, rules_slots
from passes.ragged_grids.asked import as_wide, never_negative
from passes.ragged_grids.looked import known_limits
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.sizes import (
    Coordinate,
    Remainder,
    coordinates,
    flat,
    product,
    regrouped,
    unflat,
)
from passes.ragged_grids.terms import Applied, Chosen, Count, Filled, Form, Index, Padded, Read, Term, Value, frozen
from passes.refused import Refused

_EXACT = (torch.float32, torch.float64)
"""Floating dtypes in which torch computes with a number as with a tensor of that dtype."""


def apply(machine: Machine, node: fx.Node, call: Call | None) -> None:
    """Note the terms of what a node returns; raises `Refused`."""
    if node.target is operator.getitem and isinstance(machine.values.get(node.args[0]), tuple):  # type: ignore[arg-type]
        machine.values[node] = machine.values[node.args[0]][node.args[1]]  # type: ignore[index]
        return
    if node.target is markers.RESHAPE:
        _reshape(machine, node)
        return
    if node.target is markers.PAD:
        _padded_to(machine, node)
        return
    if node.target is markers.AS_WIDE:
        as_wide(machine, node)
        return
    call, means = _understood(node, call)
    if rules_slots.apply(machine, node, call):
        return
    if call is None or means is None:
        raise Refused("no-rule", f"{label(node)} has no rule for rows of sizes", node)
    found = [_result(machine, call, means, item) for item in range(len(call.results))]
    machine.values[node] = tuple(found) if call.several else found[0]


def _understood(node: fx.Node, call: Call | None) -> tuple[Call | None, meaning.Meaning | None]:
    """A call and what it means; a marker that stands for a function of torch's means what that does."""
    marker: Any = node.target
    if not isinstance(marker, torch._ops.OpOverload) or marker not in markers.SHADOWS:
        return call, meaning_of(call)
    node.target = markers.SHADOWS[marker]
    try:
        call = call_of(node)
        return call, meaning_of(call)
    finally:
        node.target = marker


def _result(machine: Machine, call: Call, means: meaning.Meaning, item: int) -> Term:
    fake, relation, node = call.results[item], means.relations[item], call.node
    if not isinstance(fake, torch.Tensor):
        raise Refused("no-rule", f"{label(node)} has no rule for rows of sizes", node)
    form = (machine.dims(fake, node), fake.dtype, fake.device, fake.requires_grad)
    if means.contents is not None:
        return machine.intern(_made(machine, means.contents, form, node))
    shown = {loop for loops in relation.result for loop in loops}
    crossed = means.family == "joins" and call.several  # the other tensors only lend their sizes
    roles = [role for loop, role in relation.roles.items() if loop in shown or not crossed]
    if any(not isinstance(role, meaning.Mixed) or role.op != "reshape" for role in roles):
        raise Refused("no-rule", f"{label(node)} puts slots of a document together", node)
    make = _FAMILIES.get(means.family)
    if make is None or (roles and means.family != "views"):
        raise Refused("no-rule", f"{label(node)} has no rule for rows of sizes", node)
    return machine.intern(make(machine, call, relation, form, bool(roles)))


def _made(machine: Machine, contents: Any, form: Form, node: fx.Node) -> Term:
    """What does not look at any tensor."""
    if isinstance(contents, meaning.Iota):
        step = example(contents.step)
        if type(step) is int and not isinstance(example(contents.start), float):
            return Count(*form, machine.expression(contents.start, node), step)
    if isinstance(contents, meaning.Uniform):
        value = example(contents.value)
        if isinstance(value, torch.SymInt):
            return Filled(*form, machine.expression(contents.value, node))
        if isinstance(value, (bool, int, float)):
            return Filled(*form, value)
    raise Refused("no-rule", f"what {label(node)} makes has no rule for rows of sizes", node)


# === Reshapes ================================================================================================


def _reshape(machine: Machine, node: fx.Node) -> None:
    """`markers.RESHAPE`, which does not count slots."""
    source, sizes = node.args
    assert isinstance(source, fx.Node) and isinstance(sizes, (tuple, list))
    term, fake = machine.term(source, node), example(node)
    have = product(term.dims)
    dims: list[Any] = [None if type(s) is int and s == -1 else machine.expression(s, node) for s in sizes]
    if None in dims:
        at = dims.index(None)
        rest = product(d for d in dims if d is not None)
        machine.check(rest, "!=", sympy.Integer(0), node, "-1 in a reshape of nothing could be any size")
        dims[at] = machine.quotient(_uncut(machine, have, rest), rest)
        if not machine.size.bind(fake.shape[at], dims[at]):
            raise Refused("length-mismatch", "two sizes of a document are taken to be the same", node)
    machine.regroups(have, product(dims), node)
    form = (tuple(dims), fake.dtype, fake.device, fake.requires_grad)
    machine.keep(node, machine.moved(form, machine.read(term, regrouped(term.dims, dims, machine.same))))


def _padded_to(machine: Machine, node: fx.Node) -> None:
    """`markers.PAD`: one dimension gets the width that it is taken to have."""
    source, amounts, _, fill, width = node.args
    assert isinstance(source, fx.Node) and isinstance(amounts, (tuple, list))
    term, fake = machine.term(source, node), example(node)
    (entry,) = (i for i, amount in enumerate(amounts) if not (type(amount) is int and amount == 0))
    dim, amount = len(term.dims) - 1 - entry // 2, machine.expression(amounts[entry], node)
    wide = machine.expression(width, node)
    machine.check(sympy.expand(term.dims[dim] + amount), "==", wide, node, "a document is padded to another width")
    form = ((*term.dims[:dim], wide, *term.dims[dim + 1 :]), fake.dtype, fake.device, fake.requires_grad)
    at = list(coordinates(form[0]))
    at[dim] = at[dim] if entry % 2 else at[dim] - amount
    read = layers.in_memory(machine, machine.read(term, tuple(at)))
    machine.keep(node, Padded(*form, read, ((at[dim], term.dims[dim]),), fill or 0))


def _uncut(machine: Machine, size: Any, by: Any) -> Any:
    """A size that is to be divided, where slices that their rows may cut off have what the document says, if that makes
    a quotient which all documents share: it is checked that they do."""
    own = machine.names.own

    def least(part: Any) -> Any:
        named = [arg for arg in part.args if arg.free_symbols & own]
        return named[0] if len(named) == 1 else part

    guess = size.replace(lambda part: isinstance(part, (sympy.Min, sympy.Max)), least)
    return guess if not sympy.cancel(guess / by).free_symbols & own else size


# === Places ==================================================================================================


def _loops(machine: Machine, call: Call, relation: meaning.Relation, dims: tuple[Any, ...]) -> dict[int, Any]:
    """Where along every loop a slot of the result is."""
    where: dict[int, Any] = {}
    for at, loops in zip(coordinates(dims), relation.result, strict=True):
        if loops:
            sizes = [machine.expression(relation.sizes[loop], call.node) for loop in loops]
            where |= dict(zip(loops, unflat(at, sizes), strict=True))
    return where


def _read(machine: Machine, call: Call, relation: meaning.Relation, k: int, where: Mapping[int, Any]) -> Read:
    """An operand at the places where the result's slots find theirs."""
    node, axes = call.node, relation.operands[k]
    term = machine.term(call.operands[k].node, node)
    if axes is None or len(axes) != len(term.dims):
        raise Refused("no-rule", f"an operand of {label(node)} lines up with nothing", node)
    looked = [d for d, axis in enumerate(axes) if isinstance(axis.how, meaning.Looked)]
    at = []
    for d, axis in enumerate(axes):
        if isinstance(axis.how, meaning.Looked):
            by = axis.how.by[looked.index(d) if len(axis.how.by) == len(looked) else 0]
            wraps = meaning_of(call).family == "indexing"  # type: ignore[union-attr]
            at.append(machine.intern(Index(_read(machine, call, relation, by, where), wraps)))
            continue
        sizes = [machine.expression(relation.sizes[loop], node) for loop in axis.loops]
        if any(loop not in where for loop in axis.loops):
            raise Refused("no-rule", f"{label(node)} puts slots of a document together", node)
        along = flat([where[loop] for loop in axis.loops], sizes)
        at.append(_along(machine, axis.how, along, term.dims[d], node))
    return machine.read(term, at)


def _along(machine: Machine, how: meaning.How, along: Any, size: Any, node: fx.Node) -> Any:
    """Where along an axis of that size the slot is that is read for slot ``along`` of a loop."""
    if isinstance(how, (meaning.Kept, meaning.Padded, meaning.Joined)):
        return along
    if isinstance(how, meaning.Cut):
        start = machine.expression(how.start, node)
        if machine.only_segments and start.free_symbols & machine.names.own:
            raise Refused("not-a-segment", "a slice does not lie between two neighbouring boundaries", node)
        if not start.is_Integer and along.has(Coordinate):
            (where,) = along.atoms(Coordinate)
            machine.check(
                size - start - how.step * (where.args[1] - 1) - 1,
                ">=",
                sympy.Integer(0),
                node,
                "a slice ends behind its tensor",
            )
            machine.check(start, ">=", sympy.Integer(0), node, "a slice begins before its tensor")
        return start + how.step * along
    if isinstance(how, meaning.Selected):
        return _selected(machine, machine.expression(how.index, node), size, node)
    if isinstance(how, meaning.Rolled):
        return Remainder(along - machine.expression(how.shift, node), size)
    if isinstance(how, meaning.Flipped):
        return size - 1 - along
    raise Refused("length-mismatch", f"{label(node)} takes sizes of a document to be the same, or 1", node)


def _selected(machine: Machine, at: Any, size: Any, node: fx.Node) -> Any:
    """The slot of a number, which counts from the end if it is below 0: ``rows[i - 1]`` of the first document."""
    if at.is_Integer:
        if size.free_symbols & machine.names.own:
            least = at if at >= 0 else -at - 1
            machine.check(size - least - 1, ">=", sympy.Integer(0), node, "a slot lies outside of its tensor")
        return at + size if at.is_negative else at
    if never_negative(machine, at):
        return at
    for left in (size - at - 1, size + at):
        machine.check(left, ">=", sympy.Integer(0), node, "a slot named by its number lies outside of its tensor")
    return Remainder(at, size)


# === Families ================================================================================================


def _moved(machine: Machine, call: Call, relation: meaning.Relation, form: Form, mixed: bool) -> Term:
    """Views, and parts of axes."""
    read = [k for k, operand in enumerate(call.operands) if operand.argument not in call.unread]
    source = machine.term(call.operands[read[0]].node, call.node)
    if source.dtype != form[1]:
        raise Refused("no-rule", f"{label(call.node)} has no rule for rows of sizes", call.node)
    if mixed:
        if not relation.in_order() or len(read) != 1:
            raise Refused("no-rule", f"{label(call.node)} has no rule for rows of sizes", call.node)
        return machine.moved(form, machine.read(source, regrouped(source.dims, form[0], machine.same)))
    return machine.moved(form, _read(machine, call, relation, read[0], _loops(machine, call, relation, form[0])))


def _looked_up(machine: Machine, call: Call, relation: meaning.Relation, form: Form, mixed: bool) -> Term:
    """Tables."""
    tables = [k for k, axes in enumerate(relation.operands) for a in axes or () if isinstance(a.how, meaning.Looked)]
    if len(tables) != 1:
        raise Refused("no-rule", f"{label(call.node)} has no rule for rows of sizes", call.node)
    return machine.moved(form, _read(machine, call, relation, tables[0], _loops(machine, call, relation, form[0])))


def _joined(machine: Machine, call: Call, relation: meaning.Relation, form: Form, mixed: bool) -> Term:
    """Tensors side by side, padding, grids of coordinates."""
    where = _loops(machine, call, relation, form[0])
    axes = [axis for operand in relation.operands for axis in operand or ()]
    if call.several:  # every result is one of the tensors, seen along an axis of its own
        k = next(i for i, r in enumerate(meaning_of(call).relations) if r is relation)  # type: ignore[union-attr]
        return machine.moved(form, _read(machine, call, relation, k, where))
    if any(isinstance(axis.how, meaning.Padded) for axis in axes) or len(call.operands) == 1:
        return _padded(machine, call, relation, form, where)
    parts = [_read(machine, call, relation, k, where) for k in range(len(call.operands))]
    parts = [machine.read(machine.cast(part.of, form[1]), part.at) for part in parts]
    stacked = len(form[0]) != len(parts[0].of.dims)
    used = {loop for axis in axes for loop in axis.loops}
    joined = [
        d
        for d, loops in enumerate(relation.result)
        if (
            not set(loops) & used
            if stacked
            else any(isinstance(o[d].how, meaning.Joined) for o in relation.operands if o)
        )
    ]
    if len(joined) != 1:
        raise Refused("no-rule", f"{label(call.node)} has no rule for rows of sizes", call.node)
    (dim,) = joined
    ends, end, moved = [], sympy.Integer(0), []
    for part in parts:
        at = part.at if stacked else (*part.at[:dim], part.at[dim] - end, *part.at[dim + 1 :])
        end = end + (1 if stacked else part.of.dims[dim])
        ends.append(end)
        moved.append(layers.in_memory(machine, machine.read(part.of, at)))
    return Chosen(*form, tuple(moved), tuple(ends), dim, stacked)


def _padded(machine: Machine, call: Call, relation: meaning.Relation, form: Form, where: Mapping[int, Any]) -> Term:
    (axes,) = relation.operands
    read = _read(machine, call, relation, 0, where)
    at, within, fills = list(read.at), [], {0}
    for d, axis in enumerate(axes or ()):
        if isinstance(axis.how, meaning.Padded):
            at[d] = at[d] - machine.expression(axis.how.before, call.node)
            within.append((at[d], read.of.dims[d]))
            fills = {axis.how.fill}
    if not within:
        return machine.moved(form, read)
    return Padded(*form, layers.in_memory(machine, machine.read(read.of, at)), tuple(within), fills.pop())


def _applied(machine: Machine, call: Call, relation: meaning.Relation, form: Form, mixed: bool) -> Term:
    """Slot by slot."""
    node, where = call.node, _loops(machine, call, relation, form[0])
    reads = {o.node: k for k, o in enumerate(call.operands) if o.argument not in call.unread}
    limits = limits_of(call, known_limits(machine.term(call.operands[0].node, node))) if reads else NO_LIMITS
    if call.op in COPIES:
        (k,) = reads.values()
        to = _read(machine, call, relation, k, where)
        if call.op == "detach":
            return Applied(*form, "detach", True, (to,), (), True)
        return Applied(*form, "to", True, (to, form[2], form[1]), (), True, limits=limits)

    def argument(arg: fx.Node) -> Any:
        if arg in reads:
            return _read(machine, call, relation, reads[arg], where)
        number = example(arg)
        if isinstance(number, torch.SymInt):
            return machine.intern(Value(machine.expression(arg, node)))
        if isinstance(number, torch.SymFloat):
            return machine.intern(Value(machine.real(number, node), torch.float64))
        raise Refused("no-rule", f"an argument of {label(node)} has no rule for rows of sizes", node)

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), argument)
    dtype = _computed_in(call, reads, args, node)
    if dtype is not None:
        args, kwargs = (_cast(machine, part, dtype) for part in (args, kwargs))
    given = tuple(sorted((name, frozen(value)) for name, value in kwargs.items()))
    op, method = "" if given else call.op, node.op == "call_method"
    return Applied(*form, node.target, method, frozen(args), given, False, _raises(call), op, limits)


def _computed_in(call: Call, reads: Mapping[fx.Node, int], args: Any, node: fx.Node) -> torch.dtype | None:
    """The dtype that numbers, and tensors without dimensions, are promoted to, where a whole row of them would not be
    promoted in the same way."""
    numbers = [arg for arg in node.all_input_nodes if isinstance(example(arg), (torch.SymInt, torch.SymFloat))]
    given = [example(arg) for arg in reads if example(arg).dtype != torch.bool]
    single = [value for value in given if not value.dim()]
    if not numbers and (not single or len({value.dtype for value in given}) == 1):
        return None
    taking = [*given, *(1 if isinstance(example(arg), torch.SymInt) else 1.0 for arg in numbers)]
    if call.op not in PROMOTING or len(taking) != 2:
        raise Refused("no-rule", f"{label(node)} of a document's number has no rule for rows of sizes", node)
    dtype = torch.result_type(*taking)
    if dtype.is_floating_point and dtype not in _EXACT:
        raise Refused("no-rule", f"{label(node)} of a document's number has no rule in {dtype}", node)
    return dtype


def _cast(machine: Machine, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Read) and value.of.dtype != torch.bool:
        return machine.read(machine.cast(value.of, dtype), value.at)
    if isinstance(value, Value):
        return machine.intern(Value(value.value, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(machine, v, dtype) for v in value)
    return {k: _cast(machine, v, dtype) for k, v in value.items()} if isinstance(value, dict) else value


def _raises(call: Call) -> bool:
    means = meaning_of(call)
    return means is None or bool(means.traits.raises)


_FAMILIES = {"views": _moved, "indexing": _moved, "lookups": _looked_up, "joins": _joined, "pointwise": _applied}
