"""Locals that add up what the documents give, and locals that count documents.

::

    total, row = 0.0, 0
    for s, e in spans:
        total = total + f(x[s:e])
        out[row] = g(x[s:e])
        row += 1

Both are carried from one document to the next, and yet no document needs what another left. The first trace finds them
(`learn_total`, `learn_count`) and the frame is traced again. Then a counter is made from the index; a total is a
stand-in that each traced iteration may do nothing with but add to it. What is added is collected as a list would
collect it, and after the loop the local is its first value plus the sum of that list. (Sums of floating point numbers
are taken in another order than eager takes them.)
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.capture.dynamo import (
    ConstantVariable,
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    VariableTracker,
    call,
    constant,
    emit,
    example,
    wrap_fx_proxy,
)
from packpass.capture.either import Either
from packpass.capture.nothing import is_none
from packpass.capture.shares import EXTREMES, IN_PLACE, IN_PLACE_OF, Step, added, is_same, number_in, tensor_node
from packpass.capture.tallies import filled, plus, read, stacked, tally
from packpass.semantics import storage
from packpass.semantics.effects import mutated_after, records_gradients

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass(frozen=True)
class Total:
    """``local = local + what the document gives``; ``sizes``, ``dtype`` and ``device`` of the local after that."""

    add: Any
    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True)
class Count:
    """``local += step``, from ``first`` on, both numbers of the program; ``first`` may be what another loop has counted
    up to."""

    first: Any
    step: int


def _unchanged(value: Any, before: Any) -> bool:
    """Is it what it was?"""
    node, number = tensor_node(value), number_in(value)
    if is_none(value):
        return is_none(before)
    if node is not None or number is None:
        return node is not None and node is tensor_node(before)
    return isinstance(before, ConstantVariable) and is_same(number, number_in(before))


def _described(node: fx.Node) -> tuple[tuple[int, ...], torch.dtype, torch.device] | None:
    fake: Any = node.meta.get("example_value")
    constant_sizes = all(type(size) is int for size in fake.shape)
    return (tuple(fake.shape), fake.dtype, fake.device) if constant_sizes else None


def learn_total(before: Any, after: list[Any]) -> Total | None:
    """How a local grew in all traced iterations that changed it, if it is a total. ``after``: its value at the end of
    each."""
    found, of_one_form, begins_with_none = [], True, is_none(before)
    for value in after:
        if _unchanged(value, before):
            continue
        if is_none(before) and tensor_node(value) is not None:  # the first document's share is the total
            before = value
            continue
        steps = added(value, before)
        node = tensor_node(value)
        described = _described(node) if node is not None and steps is not None else None
        shares = [_described(step.share) for step in steps or () if isinstance(step.share, fx.Node)]
        if steps is None or described is None or None in shares:
            return None
        # What is added to a number cannot be added in place.
        first = steps[0].add
        add = first if isinstance(before, TensorVariable) else IN_PLACE_OF.get(first)
        found.append((Total(first, *described), Total(add, *described)))
        of_one_form &= shares == [described] * len(steps)
        before = value
    total = found[-1][0] if found else None
    if total is None or any(total not in (first, other) for first, other in found):
        return None
    if begins_with_none and total.add not in (operator.add, operator.iadd, *EXTREMES):
        return None
    if total.add in EXTREMES and not of_one_form:
        return None
    # Sums of truth values say whether there is one, which is not how many there are.
    return None if total.dtype is torch.bool else total


def learn_count(before: Any, after: list[Any]) -> Count | None:
    """How a number grew in all traced iterations, if by the same number of the program."""
    numbers = [number_in(value) for value in (before, *after)]
    if not all(type(number) is int for number in numbers):
        return None
    steps = {later - earlier for earlier, later in itertools.pairwise(numbers)}
    return Count(numbers[0], steps.pop()) if len(steps) == 1 else None


class Counting:
    """A counter while the loop is traced again."""

    ready = True

    def __init__(self, region: Region, count: Count) -> None:
        self.region, self.count = region, count

    def begin(self, index: Any) -> None:
        self.start = self._after(index)

    def has_grown(self, values: list[Any]) -> bool:
        return all(is_sum(value, self.start, self.count.step) for value in values)

    def after(self) -> Any:
        return self._after(self.region.length)

    def _after(self, documents: Any) -> Any:
        """The counter when ``documents`` have been counted."""
        tx, step = self.region.tx, self.count.step
        counted = documents if step == 1 else call(tx, operator.mul, documents, constant(step))
        return plus(tx, counted, self.count.first)


def is_sum(value: Any, start: Any, step: int) -> bool:
    """Is a number what it began with, plus a step?"""
    if not isinstance(value, SymNodeVariable) or not isinstance(start, SymNodeVariable):
        return False
    difference = value.sym_num.node.expr - start.sym_num.node.expr
    return bool(difference == step)


def is_fresh(region: Region, node: fx.Node) -> bool:
    """Was the memory of a tensor made in the iteration that has just been traced?"""
    begin, memory = region.indices[-1], storage(node)
    return memory is not None and all(storage(other) != memory for other in node.graph.nodes if other < begin)


def is_kept(region: Region, *nodes: fx.Node) -> bool:
    """Is one of these in a list?"""
    kept = [tensor_node(entry) for items in region.lists for entries in items.values for entry in entries]
    return bool(set(nodes) & set(kept))


def was_written(region: Region, before: Any) -> bool:
    """Has the loop written to what a local held before it? What it has become is made of that after the loop."""
    node = tensor_node(before)
    return node is not None and mutated_after(node.graph, node, region.indices[0])


class Adding:
    """A total while the loop is traced again."""

    def __init__(self, region: Region, total: Total, before: Any) -> None:
        self.region, self.total, self.before = region, total, before
        self.added: list[Any] = []
        """What each traced iteration adds, a node or a number."""
        self.grown: list[int] = []
        """For each traced iteration: 1 if it makes a tensor of a number."""
        fake = example(before) if isinstance(before, TensorVariable) else None
        fits = fake is None or total.add not in IN_PLACE or (tuple(fake.shape) == total.sizes)
        known = fake is not None or type(number_in(before)) in (int, float)
        self.ready = fits and (known or is_none(before))
        memory = storage(tensor_node(before)) if fake is not None else None
        self.writes: Any = memory if total.add in IN_PLACE else None
        """The memory that is added to in place."""
        self.reads: Any = None if total.add in IN_PLACE else memory
        """The memory of the first value of a total that is made anew."""

    def begin(self, index: Any) -> None:
        """The stand-in for the total of the documents before; the first finds None, where the program begins so."""
        if is_none(self.before) and self.region.iteration == 0:
            self.start = self.before
            return
        total, create = self.total, self.region.tx.output.create_proxy
        keywords = {"dtype": total.dtype, "device": total.device}
        self.start = wrap_fx_proxy(self.region.tx, create("call_function", torch.empty, (total.sizes,), keywords))

    def has_grown(self, values: list[Any]) -> bool:
        """Has this document's share been added, and nothing else been done with the total?"""
        (value,) = values
        if _unchanged(value, self.start):
            # What a total that begins with None becomes is known if the first document gives it, and the second more.
            return not is_none(self.before) and self._adds_nothing()
        if is_none(self.start):
            return self._begins_with(tensor_node(value))
        steps, stand_in, node = added(value, self.start), tensor_node(self.start), tensor_node(value)
        if steps is None or stand_in is None or node is None or not self._adds_by(steps[0].add):
            return False
        chain = [stand_in, *(step.node for step in steps)]
        if any(list(one.users) != [other] for one, other in itertools.pairwise(chain)) or node.users:
            return False
        if stand_in in [step.share for step in steps] or is_kept(self.region, *chain):
            return False
        if _described(node) != (self.total.sizes, self.total.dtype, self.total.device) or self._memory_is_used():
            return False
        if any(isinstance(s.share, fx.Node) and mutated_after(s.node.graph, s.share, s.node) for s in steps):
            return False  # what was added is what it was then
        if self.total.add not in IN_PLACE and was_written(self.region, self.before):
            return False
        detached = self._are_detached(steps)
        if detached is None:
            return False
        self._add(self._together(steps, detached))
        for done in reversed(chain):
            done.graph.erase_node(done)
        return True

    def _are_detached(self, steps: list[Step]) -> bool | None:
        """Is all of it added under ``no_grad``, where the loop is not? None if some of it, or to what has a gradient,
        which would lose it there."""
        nodes = (tensor_node(self.before), *(step.share for step in steps))
        some = [node for node in nodes if isinstance(node, fx.Node) and node.meta["example_value"].requires_grad]
        modes, outside = {records_gradients(step.node) for step in steps}, records_gradients(self.region.indices[0])
        if not some or modes == {outside}:
            return False
        known = not is_none(self.before) and tensor_node(self.before) not in some
        return True if modes == {False} and known else None

    def _together(self, steps: list[Step], detached: bool) -> Any:
        """All that a document adds, a node or a number; what is subtracted first is subtracted."""
        tx, less = self.region.tx, (operator.sub, operator.isub)
        if detached:
            steps = [dataclasses.replace(step, share=self._detached(step.share)) for step in steps]
        made, turned = steps[0].share, steps[0].add in less
        for step in steps[1:]:
            add = step.add
            if add not in EXTREMES:
                add = operator.add if (add in less) == turned else operator.sub
            if not isinstance(made, fx.Node) and not isinstance(step.share, fx.Node):
                made = add(made, step.share)
                continue
            sides = [tx.output.current_tracer.proxy(s) if isinstance(s, fx.Node) else s for s in (made, step.share)]
            made = tensor_node(emit(tx, add, *sides))
        return made

    def _detached(self, share: Any) -> Any:
        if not isinstance(share, fx.Node):
            return share
        tx = self.region.tx
        return tensor_node(emit(tx, "detach", tx.output.current_tracer.proxy(share), method=True))

    def _begins_with(self, node: fx.Node | None) -> bool:
        """Is the total what the first document gives? Where there is no other, it is that very tensor: nobody else may
        see its memory."""
        if node is None or _described(node) != (self.total.sizes, self.total.dtype, self.total.device):
            return False
        if is_kept(self.region, node) or not is_fresh(self.region, node):
            return False
        self._add(node)
        return True

    def _adds_by(self, add: Any) -> bool:
        """Is this how the total is added to? To a number, nothing is added in place."""
        number = not isinstance(self.before, TensorVariable)
        known = IN_PLACE_OF.get(self.total.add)
        return add is self.total.add or (number and known is not None and IN_PLACE_OF.get(add) is known)

    def _adds_nothing(self) -> bool:
        stand_in: Any = tensor_node(self.start)
        if self.total.add in EXTREMES or stand_in.users or is_kept(self.region, stand_in) or self._memory_is_used():
            return False
        self._add(0)
        stand_in.graph.erase_node(stand_in)
        return True

    def _add(self, share: Any) -> None:
        self.grown.append(int(isinstance(share, fx.Node)))
        self.added.append(share)

    def _memory_is_used(self) -> bool:
        """Does the body look at the tensor that is added to in place, which has its final value only after the loop?"""
        node: Any = self.region.index.as_proxy().node
        while self.writes is not None and node.op != "root":
            if any(storage(used) == self.writes for used in node.all_input_nodes):
                return True
            node = node.next
        return False

    def after(self) -> Any:
        tx, region = self.region.tx, self.region
        stays = self._may_stay()
        vector = stacked(region, [self._proxy(i, share) for i, share in enumerate(self.added)], stays)
        if self.total.add in EXTREMES:
            first = [] if is_none(self.before) else [self.before.call_method(tx, "unsqueeze", [constant(0)], {})]
            every = call(tx, torch.cat, ListVariable([*first, vector])) if first else vector
            return every.call_method(tx, EXTREMES[self.total.add], [constant(0)], {})
        dtype = {"dtype": constant(self.total.dtype)}
        share = vector.call_method(tx, "sum", [constant(0)], dtype)
        made = share if is_none(self.before) else call(tx, self.total.add, self.before, share)
        if not stays:
            return made
        before = self.before if self.writes is None else made.call_method(tx, "detach", [], {})
        return Either(read(tx, tally(region, self.grown)), made, before)

    def _may_stay(self) -> bool:
        """May no document add anything, so that the local is what it was, which the program can tell: a number, a
        tensor of another form, or one that has no gradient as yet?"""
        if all(self.grown) or self.total.add in EXTREMES:
            return False
        if not self._is_of_its_form():
            return True
        shares = [share.meta["example_value"] for share in self.added if isinstance(share, fx.Node)]
        gains = any(share.requires_grad for share in shares) and not example(self.before).requires_grad
        return gains and self.region.ways.of_contents and (self.writes is None or not self._has_other_names())

    def _has_other_names(self) -> bool:
        """Does anything else in the program hold the tensor that is added to in place, or a view of it? That has its
        gradient, too, or none."""
        tx: Any = self.region.tx
        found = []

        def look(value: Any) -> None:
            if isinstance(value, TensorVariable) and storage(value.as_proxy().node) == self.writes:
                found.append(value)

        VariableTracker.visit(look, tx.output.side_effects.store_attr_mutations)
        while tx is not None:
            VariableTracker.visit(look, [*dict.values(tx.symbolic_locals), *tx.stack])
            tx = tx.parent
        return bool(found)

    def _proxy(self, iteration: int, share: Any) -> Any:
        """A share as a tensor; a number in the form of the other way's, which holds it exactly if it is 0."""
        if isinstance(share, fx.Node):
            return self.region.tx.output.current_tracer.proxy(share)
        example = next((other.meta["example_value"] for other in self.added if isinstance(other, fx.Node)), None)
        dtype = self.total.dtype if example is None or share else example.dtype
        sizes = self.total.sizes if example is None else tuple(example.shape)
        device = self.total.device if example is None else example.device
        return filled(self.region, iteration, sizes, share, dtype=dtype, device=device).as_proxy()

    def _is_of_its_form(self) -> bool:
        """Was the local already what it is after a document has been added?"""
        node = tensor_node(self.before)
        return node is not None and _described(node) == (self.total.sizes, self.total.dtype, self.total.device)
