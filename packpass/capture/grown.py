"""Locals that every document makes longer: rows that are joined as the loop goes, and lists that are made anew.

::

    row, parts = None, []
    for s, e in spans:
        row = f(x[s:e]) if row is None else torch.cat((row, f(x[s:e])))
        parts = parts + [g(x[s:e])]

As with totals (`packpass.capture.totals`), the first trace finds them, and when the frame is traced again the local is
a stand-in that each traced iteration may do nothing with but make it longer. What it gets is collected as a list would
collect it; after the loop the local is its first value and that list, joined once.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.capture.dynamo import (
    ListVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    emit,
    wrap_fx_proxy,
)
from packpass.capture.lists import CollectedItems, items_of
from packpass.capture.merges import cat_of
from packpass.capture.nothing import is_none
from packpass.capture.shares import tensor_node
from packpass.capture.state import active
from packpass.capture.totals import is_fresh, is_kept, was_written
from packpass.semantics import call_of, storage
from packpass.semantics.effects import mutated_after

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass(frozen=True)
class Grown:
    """``local = torch.cat((local, what the document gives), dim)``; ``dim`` None: ``local = local + [entries]``."""

    dim: int | None


def _joined(value: Any, before: Any) -> tuple[int, list[fx.Node]] | None:
    """``(dim, what is joined to it)`` if the tensor ``value`` is ``before`` made longer."""
    node, known = tensor_node(value), tensor_node(before)
    call = call_of(node) if node is not None and known is not None else None
    if call is None or call.several or not isinstance(call.results[0], torch.Tensor):
        return None
    rank = call.results[0].dim()
    if call.op == "cat":
        dim = call.get("dim", default=0)
    elif call.op in ("hstack", "vstack"):  # of vectors, hstack goes along their only dimension
        dim = min(rank - 1, 1) if call.op == "hstack" else 0
    else:
        return None
    if any(operand.rank != rank for operand in call.operands):
        return None
    first, *others = [operand.node for operand in call.operands]
    if first is not known or known in others or not others or type(dim) is not int:
        return None
    return dim % call.results[0].dim(), others


def _is_list(value: Any) -> bool:
    known = type(value) in (ListVariable, TupleVariable) and type(value.items) is list
    return known and all(isinstance(entry.realize(), TensorVariable) for entry in value.items)


def learn_grown(before: Any, after: list[Any]) -> Grown | None:
    """How a local grew in all traced iterations, if in one of these ways."""
    values = [before, *after]
    if all(_is_list(value) for value in values):
        steps = itertools.pairwise(values)
        return Grown(None) if all(_starts_with(later.items, earlier.items) for earlier, later in steps) else None
    found = set()
    for value in after:
        if is_none(before) and tensor_node(value) is not None and value is after[0]:
            before = value
            continue
        step = _joined(value, before)
        if step is None:
            return None
        found.add(step[0])
        before = value
    return Grown(found.pop()) if len(found) == 1 else None


def _starts_with(items: list[Any], others: list[Any]) -> bool:
    return len(items) > len(others) and all(
        tensor_node(a) is tensor_node(b) for a, b in zip(items, others, strict=False)
    )


class Lengthening:
    """A row that is joined, while the loop is traced again."""

    def __init__(self, region: Region, dim: int, before: Any) -> None:
        self.region, self.dim, self.before = region, dim, before
        self.items = CollectedItems(region)
        self.ready = is_none(before) or tensor_node(before) is not None
        self.reads = None if is_none(before) or not self.ready else storage(tensor_node(before))
        """The memory of the row before the loop."""
        self.example: Any = None

    def begin(self, index: Any) -> None:
        """What the first document finds; for the next, a stand-in for the row of the documents before it, of a length
        that nobody knows."""
        if self.region.iteration == 0:
            self.start = self.before
            return
        like, create = self.example, self.region.tx.output.create_proxy
        sizes: list[Any] = list(like.shape)
        sizes[self.dim] = index.as_proxy()
        keywords = {"dtype": like.dtype, "device": like.device}
        self.start = wrap_fx_proxy(self.region.tx, create("call_function", torch.empty, (tuple(sizes),), keywords))

    def has_grown(self, values: list[Any]) -> bool:
        """Has this document's part been joined, and nothing else been done with the row?"""
        (value,) = values
        node = tensor_node(value)
        if node is None or is_kept(self.region, node) or was_written(self.region, self.before):
            return False
        if self.region.iteration == 0:
            self.example = node.meta["example_value"]
        parts = self._begun(node) if is_none(self.start) else self._parts(value, node)
        if parts is None:
            return False
        tx = self.region.tx
        self.items.append(emit(tx, torch.cat, [tx.output.current_tracer.proxy(part) for part in parts], self.dim))
        self.items.end_iteration(self.region.iteration)
        return True

    def _begun(self, node: fx.Node) -> list[fx.Node] | None:
        """The row is what the first document gives, and where there is no other, that very tensor."""
        return [node] if is_fresh(self.region, node) else None

    def _parts(self, value: Any, node: fx.Node) -> list[fx.Node] | None:
        stand_in: Any = tensor_node(self.start)
        step = _joined(value, self.start)
        if step is None or step[0] != self.dim or node.users or is_kept(self.region, stand_in):
            return None
        if any(mutated_after(node.graph, part, node) for part in step[1]):
            return None  # what was joined is what it was then
        node.graph.erase_node(node)
        if self.region.iteration:
            if stand_in.users:
                return None
            stand_in.graph.erase_node(stand_in)
        return step[1]

    def after(self) -> Any:
        """The row after the loop."""
        self.items.close()
        if not is_none(self.before):
            self.items.before.append(self.before)
        return cat_of(self.region.tx, self.items, self.dim)


class Relisting:
    """A list, or a tuple, that is made anew, while the loop is traced again."""

    def __init__(self, region: Region, before: Any) -> None:
        self.region = region
        self.ready = _is_list(before)
        self.list = ListVariable([], mutation_type=ValueMutationNew())
        self.list.items = self.items = Relisted(region)
        if self.ready:
            self.items.before = list(before.items)
        region.lists.append(self.items)

    def begin(self, index: Any) -> None:
        self.start = self.list

    def has_grown(self, values: list[Any]) -> bool:
        return values == [self.list]

    def after(self) -> Any:
        return self.list


class Relisted(CollectedItems):
    """Stands in for the entries of such a list, to which nothing may be done in the loop but ``+``."""

    def grow(self, more: Any) -> None:
        if not active_in(self.region) or type(more) not in (ListVariable, TupleVariable) or items_of(more) is not None:
            raise self.refusal()
        for value in more.items:
            super().append(value)

    def append(self, value: Any) -> None:
        if not self.region.closed:
            raise self.refusal()
        super().append(value)


def active_in(region: Region) -> bool:
    return bool(active.regions) and active.regions[-1] is region


def regrown(items: Any, more: Any) -> Any:
    """``parts + [a]`` of such a list in its loop: the list; None if it is none."""
    own = items_of(items)
    if not isinstance(own, Relisted) or own.region.closed:
        return None
    own.grow(more)
    return items


def growing(region: Region, grown: Grown, before: Any) -> Lengthening | Relisting:
    """What makes the value of such a local, which was ``before`` the loop."""
    return Relisting(region, before) if grown.dim is None else Lengthening(region, grown.dim, before)
