"""What every document adds to all slots behind a number of its own, to the end of the row.

::

    for end in ends:                                         # where documents end, in any order
        position_ids[end:] -= end - previous
        previous = end

Such slots are those of other documents, too. A slot gets the sum of all numbers that begin in front of it: they are
put where they begin, for all documents at once, then summed along the row.

Does not handle: values with more than one number per document, gradients of what is added, products. (Slots that are
overwritten are documents of their own, `passes.document_loops.elsewhere`.)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.names import base_name, is_in_place
from passes.document_loops.documents import as_term, is_per_document
from passes.document_loops.integers import Affine, Reach
from passes.document_loops.machine import OPAQUE, Machine, Store
from passes.document_loops.op_names import label, name_of
from passes.document_loops.reached import with_gradient
from passes.document_loops.terms import Outside, Term
from passes.document_loops.whole import at_places, extent_of, for_slots, number_of, part_of_outer, places, write
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_SIGNS = {"add": 1, "sub": -1}
"""How what is added to slots counts."""


@dataclasses.dataclass(frozen=True, eq=False)
class Added(Term):
    """``base``, plus (``sign``) a number of every document of ``reach`` in the slots from ``begin`` on."""

    base: Term
    begin: Affine
    value: Any
    sign: int
    reach: Reach
    dim: int
    rounds: bool
    """Are these floating-point numbers, of which a sum depends on the order?"""

    def emit(self, emitter: Emitter) -> fx.Node:
        x = emitter.node(self.base)
        like = example(x)
        extent, dtype = extent_of(emitter, x, self.dim), _summed_in(like.dtype)
        at = places(emitter, self.begin, extent, self.reach, like.device)
        value = emitter.node(self.value) if isinstance(self.value, (Term, Outside)) else self.value
        if not isinstance(value, fx.Node) or not example(value).dim():
            value = emitter.call(torch.mul, emitter.call(torch.ones_like, at, dtype=dtype), value)
        value = emitter.on(value, like.device)
        if example(value).dtype != dtype:
            value = emitter.call("to", value, dtype, method=True)
        steps = emitter.call(torch.index_add, at_places(emitter, extent, dtype, like.device), 0, at, value)
        sums = for_slots(emitter, emitter.call(torch.cumsum, steps, 0), extent)
        made = emitter.call(torch.add, x, emitter.along(sums, self.dim), alpha=self.sign)
        return made if example(made).dtype == like.dtype else emitter.call("to", made, like.dtype, method=True)


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    """What numbers are added up in: integers of 64 bits, whose last ones are those of shorter integers."""
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Suffix:
    """A live view of an outer tensor, all slots from ``begin`` on; ``term``: what the tensor is once they are written
    back, of which nothing but these slots may be looked at."""

    store: Store
    begin: Affine
    term: Term


def suffix(machine: Machine, node: fx.Node) -> Any:
    """The value of a call that takes or changes such slots; NotImplemented for any other. Raises `Refused`."""
    given = [arg for arg in node.all_input_nodes if isinstance(machine.values.get(arg), Suffix)]
    name = name_of(node)
    if not given:
        return _view(machine, node) if name == "getitem" else NotImplemented
    if name == "setitem":
        return _written_back(machine, node)
    if not isinstance(example(node), torch.Tensor):
        return OPAQUE  # its size, of which Dynamo notes down what it knows
    made = _added(machine, node, name)
    if made is None:
        raise Refused("partial-coverage", f"a slice to the end of the row is changed by {label(node)}", node)
    return made


def _view(machine: Machine, node: fx.Node) -> Any:
    """``row[begin:]``, if it is there to be added to."""
    part = part_of_outer(machine, node.args[0], node.args[1], node, dims=1) if _is_added_to(node) else None
    begin = None if part is None or part.slices()[0].stop is not None else number_of(machine, part.slices()[0].start)
    if part is None or begin is None:
        return NotImplemented
    store = part.store(machine)
    return Suffix(store, begin, store.term)


def _is_added_to(node: fx.Node) -> bool:
    """Is a view changed in place by a sum, or is a sum of it written back?"""
    users = [user for user in node.users if isinstance(example(user), torch.Tensor)]
    sums = [user for user in users if user.args[:1] == (node,) and base_name(name_of(user)) in _SIGNS]
    return len(sums) == 1 and all(user in sums or name_of(user) == "setitem" for user in users)


def _added(machine: Machine, node: fx.Node, name: str) -> Suffix | None:
    """``slots + value``, ``slots -= value``: what is to be written, or is with it."""
    sign = _SIGNS.get(base_name(name))
    view = machine.value(node.args[0])
    if sign is None or not isinstance(view, Suffix) or len(node.args) != 2 or node.kwargs:
        return None
    if view.store.term is not view.term:
        raise Refused("aliasing", "slots that the loop has changed meanwhile are added to", node)
    dtype = example(node.args[0]).dtype
    value = _value(machine, node.args[1], dtype, node)
    added = Added(view.term, view.begin, value, sign, machine.reach, view.term.dim, dtype.is_floating_point)
    term = machine.intern(added)
    if is_in_place(name):
        write(machine, view.store, term)
    return Suffix(view.store, view.begin, term)


def _value(machine: Machine, arg: Any, dtype: torch.dtype, node: fx.Node) -> Any:
    """One number for each document, or for all, of a kind that leaves the slots theirs."""
    value = machine.value(arg)
    fake = example(arg) if isinstance(arg, fx.Node) else arg
    if isinstance(value, Affine) and value.is_const:
        value = value.const
    elif is_per_document(value):
        value = as_term(machine, arg, node)
    tensor = isinstance(fake, torch.Tensor)
    known = isinstance(value, (Term, Outside)) or type(value) in (int, float)
    if not known or (tensor and fake.dim()) or dtype is torch.bool or dtype.is_complex:
        raise Refused("partial-coverage", "slots to the end of the row are changed by more than one number", node)
    whole = isinstance(fake, (int, torch.SymInt)) or (tensor and not fake.dtype.is_floating_point)
    if not (whole or dtype.is_floating_point) or (tensor and fake.dtype.is_complex):
        raise Refused("partial-coverage", "slots to the end of the row are changed by numbers of another kind", node)
    if (tensor and fake.requires_grad) or (isinstance(value, Term) and with_gradient(value)):
        raise Refused("partial-coverage", "what is added to slots to the end of the row has a gradient", node)
    return value


def _written_back(machine: Machine, node: fx.Node) -> Any:
    """``row[begin:] = row[begin:] + value``."""
    base, index, value = node.args
    new = machine.value(value)
    part = part_of_outer(machine, base, index, node, dims=1)
    elsewhere = Refused("partial-coverage", "slots to the end of the row are written elsewhere", node)
    if part is None or not isinstance(new, Suffix) or part.slices()[0].stop is not None:
        raise elsewhere
    if number_of(machine, part.slices()[0].start) != new.begin or part.store(machine) is not new.store:
        raise elsewhere
    if new.store.term is not new.term:
        write(machine, new.store, new.term)
    return OPAQUE
