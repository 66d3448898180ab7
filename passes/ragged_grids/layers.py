"""Terms that lie in memory as one row of all documents' slots: layers on every slot's features, and what is read beside
itself.

Where a function puts together dimensions that all documents share, and leaves the slots apart, it does the same to the
row of all documents' slots: a norm, a linear layer, a softmax over features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, example, meaning, meaning_of
from packpass.semantics.effects import effects_of
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import DOCUMENT, Coordinate, coordinates, flat, product, unflat
from passes.ragged_grids.terms import (
    Applied,
    Form,
    Index,
    Input,
    Layer,
    Moved,
    Read,
    Term,
    Value,
    computed,
    frozen,
    reads,
    walk,
)


def layer(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """The term of a function of every slot's features; None if it is none."""
    means, fake = meaning_of(call), example(node)
    if means is None or call.several or call.unread or means.traits.random or not effects_of(node).repeatable:
        return None
    relation = means.relations[0]
    if not relation.roles or not isinstance(fake, torch.Tensor) or fake.is_complex():
        return None
    if any(isinstance(role, meaning.Mixed) and role.op == "reshape" for role in relation.roles.values()):
        return None  # slots elsewhere
    found = _operand(machine, node, call, relation)
    if found is None:
        return None
    operand, rank = found
    of = machine.term(operand, node)
    row = in_row(machine, of, rank)
    known = {o.node: machine.term(o.node, node) for o in call.operands if o.node is not operand}
    read: dict[fx.Node, Any] = {operand: machine.read(row, coordinates(row.dims))}
    read |= {other: machine.read(term, coordinates(term.dims)) for other, term in known.items()}
    if any(arg not in read for arg in node.all_input_nodes):
        return None  # a number of the document
    given = (node.args, tuple(sorted(node.kwargs.items())))
    args, kwargs = (frozen(fx.map_arg(part, lambda arg: read[arg])) for part in given)
    dims = machine.dims(fake, node)
    form = (dims, fake.dtype, fake.device, fake.requires_grad)
    known_form = ((row.dims[0], *dims[rank:]), *form[1:])
    made = machine.intern(Layer(*known_form, row, node.target, node.op == "call_method", args, kwargs, rank))
    return _out_of_row(machine, made, form, rank)


def _operand(machine: Machine, node: fx.Node, call: Call, relation: meaning.Relation) -> tuple[fx.Node, int] | None:
    """The operand that has slots of documents, and the number of its dimensions in front of the features: these stay
    as they are, each by itself."""
    own = machine.names.own
    of = [k for k, o in enumerate(call.operands) if not _is_from_outside(machine, machine.term(o.node, node))]
    if len(of) != 1 or relation.operands[of[0]] is None:
        return None
    (k,) = of
    axes = relation.operands[k] or ()
    others = [axis for i, other in enumerate(relation.operands) if i != k for axis in other or ()]
    apart = {loop for axis in others for loop in axis.loops} | relation.roles.keys()
    rank = 0
    for axis, loops in zip(axes, relation.result, strict=False):
        if axis.how != meaning.KEPT or axis.loops != loops or len(loops) > 1 or set(loops) & apart:
            break
        rank += 1
    kept = {loop for axis in axes[:rank] for loop in axis.loops}
    behind = {loop for axis in axes[rank:] for loop in axis.loops}
    behind |= {loop for loops in relation.result[rank:] for loop in loops}
    shared = {loop: machine.expression(size, node) for loop, size in relation.sizes.items() if loop not in kept}
    if not rank or kept & behind or any(size.free_symbols & own for size in shared.values()):
        return None
    dims = machine.term(call.operands[k].node, node).dims
    return None if any(size.free_symbols & own for size in dims[rank:]) else (call.operands[k].node, rank)


def _is_from_outside(machine: Machine, term: Term) -> bool:
    """Is a tensor the same for all documents?"""
    if any(not isinstance(part, (Input, Moved, Applied)) or _takes_numbers(part) for part in walk(term)):
        return False
    read = [at for part in walk(term) for found in reads(part) for at in found.at]
    numbers = [e for e in (*read, *term.dims) if not isinstance(e, Index)]
    return not any(e.free_symbols & machine.names.own or DOCUMENT in e.free_symbols for e in numbers)


def _takes_numbers(value: Any) -> bool:
    """Is a number of the document among the arguments?"""
    if isinstance(value, Applied):
        return _takes_numbers((value.args, value.kwargs))
    return isinstance(value, Value) or (isinstance(value, tuple) and any(map(_takes_numbers, value)))


def in_row(machine: Machine, of: Term, rank: int) -> Term:
    """A term with its first dimensions as one."""
    length, rest = product(of.dims[:rank]), of.dims[rank:]
    places, behind = unflat(Coordinate(0, length), of.dims[:rank]), coordinates((length, *rest))[1:]
    form = ((length, *rest), of.dtype, of.device, of.grad)
    return machine.moved(form, machine.read(of, (*places, *behind)))


def _out_of_row(machine: Machine, row: Term, form: Form, rank: int) -> Term:
    """The same slots in several dimensions again."""
    at = coordinates(form[0])
    return machine.moved(form, machine.read(row, (flat(at[:rank], form[0][:rank]), *at[rank:])))


def in_memory(machine: Machine, read: Read) -> Read:
    """The same slots of a term that may be read elsewhere, where there are others or none: nothing is computed of what
    does not belong there, which may raise, and has a gradient."""
    of = read.of
    if not computed(read):
        return read
    rank = max((d + 1 for d, size in enumerate(of.dims) if size.free_symbols & machine.names.own), default=0)
    if not rank:
        return read
    row = in_row(machine, of, rank)
    form = (row.dims, row.dtype, row.device, row.grad)
    same = machine.intern(Layer(*form, row, None, False, (machine.read(row, coordinates(row.dims)),), (), 1))
    again = _out_of_row(machine, same, (of.dims, of.dtype, of.device, of.grad), rank)
    return machine.read(again, read.at)
