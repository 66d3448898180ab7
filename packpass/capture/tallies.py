"""Numbers that documents add up to, where a branch decides what a document adds.

::

    count = 0
    for s, e in spans:
        if e - s == 0:
            continue
        total = total + f(x[s:e])
        count += 1

What a document adds to a number is collected as a tensor, like everything else that documents leave, so that the passes
put together what the two ways of the branch leave; the number after the loop is read from the sum.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import free_unbacked_symbols, hint_of
from packpass.capture import nothing
from packpass.capture.dynamo import (
    ConstantVariable,
    ListVariable,
    SliceVariable,
    SymNodeVariable,
    TupleVariable,
    VariableTracker,
    call,
    constant,
    emit,
    wrap_fx_proxy,
)
from packpass.capture.entries import list_of
from packpass.semantics.effects import mutated_after

if TYPE_CHECKING:
    from packpass.capture.region import Region


class Every(VariableTracker):
    """All numbers of a range, where the program has one of them."""

    def __init__(self, vector: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vector = vector

    def python_type(self) -> type:
        return int


def filled(region: Region, iteration: int, sizes: Any, number: Any, **keywords: Any) -> Any:
    """A tensor of one number, a constant or a node of the body, made at the end of a traced iteration."""
    graph, create = region.indices[iteration].graph, region.tx.output.create_proxy
    number = region.tx.output.current_tracer.proxy(number) if isinstance(number, fx.Node) else number
    ends = [user for user in region.indices[iteration].users if user.target is markers.LOOP_END]
    with graph.inserting_before(ends[0]) if ends else contextlib.nullcontext():
        return wrap_fx_proxy(region.tx, create("call_function", torch.full, (sizes, number), keywords))


def tally(region: Region, shares: list[Any]) -> Any:
    """int64 ``[documents]``: what each document adds, given what is added in each traced iteration."""
    made = [filled(region, i, (), share, dtype=torch.int64) for i, share in enumerate(shares)]
    return stacked(region, [value.as_proxy() for value in made])


def vector(region: Region, values: list[Any]) -> Any:
    """All documents' numbers, or conditions, given those of the traced iterations: made as they are, of vectors, or
    numbers collected as tensors are. None for other values."""
    made = list_of(region, values)
    if made is None and all(isinstance(v, SymNodeVariable) and isinstance(v.sym_num, torch.SymInt) for v in values):
        made = tally(region, [value.as_proxy().node for value in values])
    return made


def collect(region: Region, proxies: list[Any]) -> Any:
    """A list with one entry per document, given what each traced iteration leaves.

    Sizes that no document's data decides, and that are one now (``zeros(3)`` beside a sum of rows), are settled by a
    guard, as adding two such tensors would.
    """
    shapes = [proxy.node.meta["example_value"].shape for proxy in proxies]
    for sizes in zip(*shapes, strict=True) if len({len(shape) for shape in shapes}) == 1 else ():
        hints = {None if free_unbacked_symbols(size) else hint_of(size) for size in sizes}
        if len(hints) == 1 and None not in hints:
            all(bool(size == sizes[0]) for size in sizes[1:])
    return emit(region.tx, markers.LIST_COLLECT, *markers.collected(proxies, region.id))


def end_of(region: Region, iteration: int) -> Any:
    """The node that ends a traced iteration."""
    return next(user for user in region.indices[iteration].users if user.target is markers.LOOP_END)


def are_written(region: Region, values: list[list[Any]]) -> bool:
    """Is a tensor that a traced iteration leaves changed in it afterwards?"""
    for iteration, left in enumerate(values):
        end = end_of(region, iteration)
        if any(mutated_after(end.graph, value.as_proxy().node, end) for value in left):
            return True
    return False


def stacked(region: Region, proxies: list[Any], some: bool = False) -> Any:
    """``torch.stack`` of what documents leave, given what the traced iterations leave; ``some``: it is used only where
    some document has gone another way than to leave nothing."""
    return emit(region.tx, markers.LIST_STACK, collect(region, proxies).as_proxy(), 0, region.length.as_proxy(), some)


def read(tx: Any, vector: Any) -> Any:
    """The sum of such a vector, as a number of the program."""
    return vector.call_method(tx, "sum", [constant(0)], {}).call_method(tx, "item", [], {})


def nodes_of(values: Any) -> Iterator[fx.Node]:
    """The nodes of numbers among what goes into a list, tuples and lists included."""
    for value in values:
        value = value.realize() if isinstance(value, VariableTracker) else value
        if isinstance(value, fx.Node):
            yield value
        elif isinstance(value, SymNodeVariable):
            yield value.as_proxy().node
        elif isinstance(entries := getattr(value, "items", None), list):
            yield from nodes_of(entries)


class Tally:
    """``local += number``, by another number where a branch goes another way; while the loop is traced again."""

    ready = True

    def __init__(self, region: Region, first: Any) -> None:
        self.region, self.first = region, first
        self.shares: list[Any] = []

    def begin(self, index: Any) -> None:
        """A stand-in, which each traced iteration may do nothing with but add to it."""
        args = (index.as_proxy(), self.region.id, self.region.iteration, -1)
        self.start = emit(self.region.tx, markers.LIST_LAST, *args)

    def has_grown(self, values: list[Any]) -> bool:
        """Has a number been added, and nothing else been done with the stand-in?"""
        (value,) = values
        stand_in = self.start.as_proxy().node
        if not isinstance(value, SymNodeVariable):
            return False
        node = value.as_proxy().node
        share = 0 if node is stand_in else share_of(node, stand_in)
        if share is None or share is stand_in or list(stand_in.users) != [node] * (node is not stand_in) or node.users:
            return False
        if any(node is listed for items in self.region.lists for values in items.values for listed in nodes_of(values)):
            return False  # each document keeps what it has counted up to
        self.shares.append(share)
        for done in dict.fromkeys((node, stand_in)):
            done.graph.erase_node(done)
        return True

    def after(self) -> Any:
        """The number after the loop."""
        tx = self.region.tx
        added = read(tx, tally(self.region, self.shares))
        return plus(tx, added, self.first)


def plus(tx: Any, number: Any, first: Any) -> Any:
    """What a number has been counted up to that began with ``first``, an int or what another loop has left."""
    if isinstance(first, int):
        return call(tx, operator.add, number, constant(first)) if first else number
    return call(tx, operator.add, number, first)


def share_of(node: fx.Node, before: Any) -> Any:
    """What is added to the number ``before``, an int or a node; None if it is something else."""
    if node.target not in (operator.add, operator.iadd, operator.sub, operator.isub) or len(node.args) != 2:
        return None
    first, second = node.args
    if node.target in (operator.sub, operator.isub):
        return -second if first is before and type(second) is int else None
    if second is before:
        first, second = second, first
    number = second.meta.get("example_value") if isinstance(second, fx.Node) else second
    return second if first is before and (type(number) is int or isinstance(number, torch.SymInt)) else None


def learn_tally(before: Any, after: list[Any]) -> int | None:
    """The first value of a local that may be one; the next trace shows whether it is."""
    known = all(number(value) is not None or is_integer(value) for value in after)
    return number(before) if known else None


def is_integer(value: Any) -> bool:
    """Is it an integer that depends on data, or a size?"""
    return isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymInt)


def number(value: Any) -> int | None:
    """The integer that a value of the traced program is known to be."""
    known = value.as_python_constant() if isinstance(value, ConstantVariable) else None
    return known if type(known) is int else None


def row_of(value: Any) -> list[Any] | None:
    """The entries of a tuple, a list, a slice or a shape of numbers; a slice may lack some."""
    if isinstance(value, SliceVariable):
        entries = [entry.realize() for entry in value.items]
        return entries if all(_is_number(e) or nothing.is_none(e) for e in entries) else None
    if not isinstance(value, (ListVariable, TupleVariable)) or type(value.items) is not list or not value.items:
        return None
    entries = [entry.realize() for entry in value.items]
    return entries if all(_is_number(e) for e in entries) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) or number(value) is not None


def columns_made(region: Region, rows: list[Any]) -> list[Any] | None:
    """The columns of such rows, one of each traced iteration: a tensor with a number for every document, or what all
    documents share; None if a column is neither."""
    if any(row is None or len(row) != len(rows[0]) for row in rows):
        return None
    columns = []
    for column in zip(*rows, strict=True):
        if all(nothing.is_none(value) for value in column):
            columns.append(constant(None))
            continue
        known = {number(value) for value in column}
        made = vector(region, list(column)) if known == {None} else None
        if made is None and (None in known or len(known) > 1):
            return None
        columns.append(constant(known.pop()) if made is None else made)
    return columns
