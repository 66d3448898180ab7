"""What every document adds to all slots behind a number of its own, to the end of the row, and counts in them.

::

    for end in ends:                                         # where documents end, in any order
        position_ids[end:] -= end - previous                 # `Added`
        previous = end
    for end in ends:
        position_ids[end:] = torch.arange(total - end)       # `Counted`

Such slots are those of other documents, too. A slot gets the sum of all numbers that begin in front of it: they are
put where they begin, for all documents at once, then summed along the row. It is counted from where the last one of
the documents begins that do so in front of it: a running maximum of their numbers.

Does not handle: values with more than one number per document, gradients of what is added, products. (Slots that are
overwritten by one number are documents of their own, `passes.document_loops.elsewhere`.)
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import call_of, example
from packpass.semantics.names import base_name, is_in_place
from passes.document_loops.documents import as_term, is_per_document
from passes.document_loops.elsewhere import is_size
from passes.document_loops.emit_documents import extent_of, vector_of
from passes.document_loops.integers import Affine, Reach
from passes.document_loops.machine import OPAQUE, Machine, Store
from passes.document_loops.op_names import label, name_of
from passes.document_loops.reached import with_gradient
from passes.document_loops.rules_reductions import exact_type
from passes.document_loops.terms import Outside, Term
from passes.document_loops.whole import (
    Whole,
    at_places,
    for_slots,
    largest_so_far,
    number_of,
    part_of_outer,
    places,
    write,
)
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


@dataclasses.dataclass(frozen=True, eq=False)
class Counted(Term):
    """``base``, with 0, 1, 2, ... in the slots from ``begin`` on, one document of ``reach`` after the other."""

    base: Term
    begin: Affine
    reach: Reach
    dim: int = -1

    def emit(self, emitter: Emitter) -> fx.Node:
        x = emitter.node(self.base)
        like = example(x)
        extent = extent_of(emitter, x, self.dim)
        self._check(emitter, extent)
        at = places(emitter, self.begin, extent, self.reach, like.device)
        numbers = emitter.on(emitter.call(torch.add, emitter.entries(), 1), like.device)
        last = largest_so_far(emitter, at, numbers, extent)
        document = emitter.call(torch.clamp, emitter.call(torch.sub, last, 1), min=0)
        begins = emitter.call(torch.index_select, at, 0, document)
        made = emitter.call(torch.sub, emitter.call(torch.arange, extent, device=like.device), begins)
        made = made if like.dtype is torch.int64 else emitter.call("to", made, like.dtype, method=True)
        return emitter.call(torch.where, emitter.call(operator.gt, last, 0), made, x)

    def _check(self, emitter: Emitter, extent: Any) -> None:
        """Eager makes as many numbers as there are slots only where a document begins in the row."""
        begin = vector_of(emitter, self.begin, torch.int64)
        fits = emitter.call(
            torch.logical_and, emitter.call(operator.ge, begin, 0), emitter.call(operator.le, begin, extent)
        )
        message = "packpass: as many numbers are written to the end of a row as there are behind a place that it lacks"
        emitter.call(torch._assert_async, emitter.for_every_document(fits, self.reach), message)


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    """What numbers are added up in: integers of 64 bits, whose last ones are those of shorter integers."""
    return exact_type(dtype) if dtype.is_floating_point else torch.int64


@dataclasses.dataclass(frozen=True, eq=False)
class Suffix:
    """A live view of an outer tensor, all slots from ``begin`` on; ``term``: what the tensor is once they are written
    back, of which nothing but these slots may be looked at."""

    store: Store
    begin: Affine
    term: Term


@dataclasses.dataclass(frozen=True, eq=False)
class Ramp:
    """0, 1, 2, ..., so many, made to be written to the end of a row."""

    size: Affine


def suffix(machine: Machine, node: fx.Node) -> Any:
    """The value of a call that takes or changes such slots; NotImplemented for any other. Raises `Refused`."""
    given = [arg for arg in node.all_input_nodes if isinstance(machine.values.get(arg), (Suffix, Ramp))]
    name = name_of(node)
    if not given:
        look = {"getitem": _view, "arange": _ramp}.get(name)
        return NotImplemented if look is None else look(machine, node)
    if name == "setitem":
        counted = isinstance(machine.value(node.args[2]), Ramp)
        return _counted(machine, node) if counted else _written_back(machine, node)
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


def _ramp(machine: Machine, node: fx.Node) -> Any:
    """``torch.arange(total - begin)``, if all that is done with it is to write it to the end of a row."""
    (user,) = node.users if len(node.users) == 1 else (None,)
    call = call_of(node)
    if user is None or call is None or name_of(user) != "setitem" or user.args[2] is not node:
        return NotImplemented
    part = part_of_outer(machine, user.args[0], user.args[1], user, dims=1)
    size = machine.affine(call.get("end"))
    counts = call.get("start", default=0) == 0 and call.get("step", default=1) == 1
    if part is None or part.slices()[0].stop is not None or size is None or size.is_shared or not counts:
        return NotImplemented
    laid_out_there = part.cuts[0] == len(part.entries) - 1
    return Ramp(size) if laid_out_there and not example(node).is_floating_point() else NotImplemented


def _counted(machine: Machine, node: fx.Node) -> Any:
    """``row[begin:] = torch.arange(total - begin)``."""
    base, index, value = node.args
    part, ramp = part_of_outer(machine, base, index, node, dims=1), machine.value(value)
    begin = None if part is None else number_of(machine, part.slices()[0].start)
    other = Refused("partial-coverage", "slots to the end of the row are set to more or fewer numbers", node)
    if part is None or begin is None:
        raise other
    if not is_size(ramp.size.plus(begin), example(part.outer).shape[part.cuts[0]]):
        raise other
    store = part.store(machine)
    if not isinstance(store.term, Whole):
        raise Refused("aliasing", "slots to the end of the row are counted that the loop has changed before", node)
    write(machine, store, machine.intern(Counted(store.term, begin, machine.reach)))
    return OPAQUE


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
    if view.store.term is not view.term or not isinstance(view.term, (Whole, Added)):
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
    if new.store.term is new.term:
        return OPAQUE  # changed in place
    if not isinstance(new.term, Added) or new.term.base is not new.store.term:
        raise Refused("aliasing", "slots are written back that the loop has changed meanwhile", node)
    # The documents that write are those that get here, whichever have added before.
    write(machine, new.store, machine.intern(dataclasses.replace(new.term, reach=machine.reach)))
    return OPAQUE
