"""Numbers of the first document (the last) and those of all others as numbers of all (`packpass.capture.edges`).

``0`` and ``ends[i - 1]`` are ``[0, *ends][i]``: what the other documents read from a neighbour is read from a longer
vector, in which the document without a neighbour finds its own number. All else that both ways have worked out must be
the same for that document, as expressions of entries, sizes and constants.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch import fx

from packpass._compat import free_unbacked_symbols
from packpass.capture.dynamo import SymNodeVariable, TensorVariable, call, constant, emit, example
from packpass.capture.entries import is_constant
from packpass.markers.entries import place_of, read_from

if TYPE_CHECKING:
    from packpass.capture.region import Region

ARITHMETIC = (operator.add, operator.sub, operator.mul)


@dataclasses.dataclass
class Edge:
    """The branch whose way for all other documents is being traced: there they may read their neighbours' numbers."""

    region: Region
    ahead: int
    """-1 where the first document has a way of its own, which has no document before it; 1 for the last."""
    reads: dict[fx.Node, tuple[fx.Node, fx.Node]] = dataclasses.field(default_factory=dict)
    """What stands for an entry of a neighbour -> the vector, and its place there."""


def documents(region: Region) -> Any:
    """The number of documents as an expression."""
    length = region.length
    return (
        length.sym_num.node.expr if isinstance(length, SymNodeVariable) else sympy.Integer(length.as_python_constant())
    )


def is_number(value: Any) -> bool:
    known = value.as_python_constant() if value.is_python_constant() else None
    return type(known) is int or isinstance(value, SymNodeVariable) or is_vector(value, rank=0)


def is_vector(value: Any, rank: int = 1) -> bool:
    fake = example(value) if isinstance(value, TensorVariable) else None
    return isinstance(fake, torch.Tensor) and fake.dim() == rank and not fake.dtype.is_floating_point


class Join:
    """Numbers of the first (last) document and of all others as numbers of all."""

    def __init__(self, edge: Edge) -> None:
        self.edge, self.region, self.tx, self.ahead = edge, edge.region, edge.region.tx, edge.ahead
        self.begin, self.index = self.region.indices[0], self.region.indices[-1]
        self.at = sympy.Integer(0) if self.ahead < 0 else documents(self.region) - 1
        """The document that has no neighbour."""
        self.missing = {_missing_from(vector): vector for vector, _ in edge.reads.values()}
        """What the neighbour's entry stands for -> its vector."""

    def of(self, one: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any] | None:
        """The numbers by their place; None if it is not shown that those of the others are everybody's."""
        if set(one) != set(other):
            return None
        pairs = {place: (one[place].realize(), other[place].realize()) for place in other}
        pairs = {place: (a, b) for place, (a, b) in pairs.items() if a is not b}
        sides = {place: (self._number(a), self._number(b)) for place, (a, b) in pairs.items()}
        if not pairs or any(side is None for both in sides.values() for side in both):
            return None
        if not all(_alike(*pair) for pair in pairs.values()):
            return None
        edges = {others: pairs[place][0] for place, (_, others) in sides.items() if others in self.missing}
        edges |= self._solved(sides.values(), set(edges))
        known = {symbol: self._number(number) for symbol, number in edges.items()}
        for alone, others in sides.values():
            if others.free_symbols & (set(self.missing) - set(edges)) or alone.free_symbols & set(self.missing):
                return None
            if sympy.expand(alone - others.subs(known)) != 0:
                return None
        longer = {symbol: self._longer(self.missing[symbol], number) for symbol, number in edges.items()}
        if any(made is None for made in longer.values()):
            return None
        for node, (vector, place) in self.edge.reads.items():
            node.args = (longer[_missing_from(vector)], 0, place)
        return {place: self._for_all(*pairs[place]) if place in pairs else other[place] for place in other}

    def _solved(self, sides: Iterable[tuple[Any, Any]], known: set[Any]) -> dict[Any, Any]:
        """What an entry that is not there would have to be for both ways to give the same: ``o[i]`` is
        ``o[i] - o[i - 1]`` if that is 0. Only where it is a constant, or a size."""
        found = {}
        for alone, others in sides:
            for symbol in others.free_symbols & (set(self.missing) - known):
                rest, by = sympy.expand(alone - others.subs(symbol, 0)), others.coeff(symbol)
                number = self._known(rest / by) if by in (1, -1) else None
                if number is not None:
                    found[symbol] = number
        return found

    def _known(self, number: Any) -> Any:
        """The number as a value of the program; None if it is not there in front of the loop."""
        if number.is_Integer:
            return constant(int(number))
        proxy = self._proxy_of(number)
        return None if proxy is None else SymNodeVariable.create(self.tx, proxy, proxy.node.meta["example_value"])

    def _number(self, value: Any) -> Any:
        """A number for the document without a neighbour, as an expression; None if it is something else."""
        if value.is_python_constant():
            number = value.as_python_constant()
            return sympy.Integer(number) if type(number) is int else None
        return self._made(value.as_proxy().node) if is_number(value) else None

    def _made(self, node: Any) -> Any:
        if not isinstance(node, fx.Node):
            return sympy.Integer(node) if type(node) is int else None
        if node is self.index:
            return self.at
        if node in self.edge.reads:
            return _missing_from(self.edge.reads[node][0])
        fake = node.meta.get("example_value")
        if isinstance(fake, torch.SymInt) and (node < self.begin or not free_unbacked_symbols(fake)):
            return fake.node.expr
        if node < self.begin:
            return sympy.Symbol(node.name) if isinstance(fake, torch.Tensor) and not fake.dim() else None
        if node.op == "call_function" and node.target in ARITHMETIC and len(node.args) == 2 and not node.kwargs:
            parts = [self._made(arg) for arg in node.args]
            return None if any(part is None for part in parts) else node.target(*parts)
        if node.target is torch.sym_int or node.target == "long":
            return self._made(node.args[0])
        read = read_from(node)
        return self._made(read) if read is not None else self._entry(node)

    def _entry(self, node: fx.Node) -> Any:
        """An entry of a vector, by its place for the document without a neighbour."""
        found = place_of(node)
        if found is None or not is_constant(found[0], self.begin):
            return None
        vector, at = found
        size = vector.meta["example_value"].shape[0]
        size = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
        place = self._made(at)
        if place is None:
            return None
        return sympy.Symbol(f"{vector.name}[{sympy.expand(place + size if type(at) is int and at < 0 else place)}]")

    def _longer(self, vector: fx.Node, number: Any) -> Any:
        """The node of the vector with the number in front (behind), made in front of the loop; None if the number is
        not known there."""
        proxy = self.tx.output.current_tracer.proxy(vector)
        if number.is_python_constant() and number.as_python_constant() == 0 and self.ahead < 0:
            key: Any = (vector, 0)
            edge = None
        else:
            edge = self._in_front(number)
            key = (vector, self.ahead, getattr(edge, "node", edge))
            if edge is None:
                return None

        def make() -> Any:
            if edge is None:
                return emit(self.tx, torch.nn.functional.pad, proxy, (1, 0))
            if isinstance(number, TensorVariable):
                one = emit(self.tx, "to", number.as_proxy(), vector.meta["example_value"].dtype, method=True).as_proxy()
                one = emit(self.tx, "reshape", one, (1,), method=True).as_proxy()
            else:
                one = emit(self.tx, "new_full", proxy, (1,), edge, method=True).as_proxy()
            return emit(self.tx, torch.cat, [one, proxy] if self.ahead < 0 else [proxy, one])

        made = self.region.in_front(key, make).as_proxy().node
        self.region.edges += [vector, made, *([number.as_proxy().node] if isinstance(number, TensorVariable) else [])]
        return made

    def _in_front(self, number: Any) -> Any:
        """The constant, or the proxy of a number that is known in front of the loop; None for others."""
        if number.is_python_constant():
            return number.as_python_constant()
        if isinstance(number, TensorVariable):
            return number.as_proxy() if number.as_proxy().node < self.begin else None
        return self._proxy_of(number.sym_num.node.expr)

    def _proxy_of(self, wanted: Any) -> Any:
        tracer = self.tx.output.current_tracer
        for node in tracer.graph.nodes:
            if node is self.begin:
                return None
            value = node.meta.get("example_value")
            if isinstance(value, torch.SymInt) and value.node.expr == wanted:
                return tracer.proxy(node)
        return None

    def _for_all(self, one: Any, other: Any) -> Any:
        """The other documents' number; as one of Python where the document alone has such a one."""
        if isinstance(other, TensorVariable) is isinstance(one, TensorVariable):
            return other
        number = call(self.tx, int, other) if isinstance(other, TensorVariable) else other
        self.region.bounds.append(number.as_proxy().node)
        return number


def _alike(one: Any, other: Any) -> bool:
    """Are two numbers, if both are tensors, of one dtype on one device?"""
    fakes = [example(value) for value in (one, other) if isinstance(value, TensorVariable)]
    return len({(fake.dtype, fake.device) for fake in fakes}) <= 1


def _missing_from(vector: fx.Node) -> sympy.Symbol:
    """What stands for the entry of a vector that is not there."""
    return sympy.Symbol(f"{vector.name}[]")
