"""From sizes to nodes: vectors with one entry per document, made of the columns of their numbers."""

from __future__ import annotations

import functools
import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example, is_tensor
from packpass.semantics.build import Builder, NotBuilt
from passes.ragged_grids.machine import Check
from passes.ragged_grids.sizes import (
    DOCUMENT,
    Column,
    Names,
    Power,
    Quotient,
    Ratio,
    Remainder,
    Scaled,
    Truncated,
    factored,
    is_float,
)
from passes.refused import Refused

_ops = torch.ops.packpass
OPERATORS = {sympy.Add: operator.add, sympy.Mul: operator.mul, sympy.Max: torch.maximum, sympy.Min: torch.minimum}
FLOATS: dict[Any, Any] = {Ratio: operator.truediv, Scaled: operator.mul, Power: torch.pow}
DIVISIONS = {Quotient: operator.floordiv, Remainder: operator.mod}

_LOGIC = {sympy.And: torch.logical_and, sympy.Or: torch.logical_or}
_COMPARED = {
    **{sympy.Eq: operator.eq, sympy.Ne: operator.ne, sympy.Ge: operator.ge, sympy.Gt: operator.gt},
    **{sympy.Le: operator.le, sympy.Lt: operator.lt},
}


class Documents:
    """Vectors with one entry per document, at a graph's insertion point."""

    def __init__(self, graph: fx.Graph, names: Names, documents: Any, like: fx.Node, rule: str) -> None:
        """``documents``: their number, a node or an int; ``like``: a tensor of numbers of documents."""
        self.graph, self.names, self.documents = graph, names, documents
        self._builder = Builder(graph, like=like, rule=rule, names=True)
        self.device = example(like).device
        self._vectors: dict[Any, Any] = {}
        self._not_zero: dict[fx.Node, fx.Node] = {}
        self.slots: dict[Any, Any] = {}
        """Length of documents, and which of them -> the slots of documents that are that long
        (`passes.ragged_grids.places.Slots`)."""
        self.layers: dict[Any, fx.Node] = {}
        """`Layer` and which documents -> the row that it makes of these."""

    def call(self, target: Any, *args: Any, method: bool = False, **kwargs: Any) -> fx.Node:
        """One node with its fake value; a failing fake run refuses the rewrite."""
        try:
            return self._builder.call(target, *args, method=method, **kwargs)
        except NotBuilt as error:
            raise Refused("emit", f"the whole-row form of {error}", error.node) from error

    @property
    def made(self) -> list[fx.Node]:
        """What was emitted so far, in order."""
        return self._builder.made

    def abandon(self) -> None:
        """Erase everything emitted so far."""
        self._builder.undo()

    def vector(self, found: Any) -> Any:
        """int64 ``[N]``, float64 for a float, or a number (a node or Python's) if all documents share it."""
        if found not in self._vectors:
            shorter = factored(found)
            self._vectors[found] = self._vector(found) if shorter == found else self.vector(shorter)
        return self._vectors[found]

    def full(self, found: Any) -> fx.Node:
        """``[N]`` in any case."""
        vector = self.vector(found)
        if isinstance(vector, fx.Node) and isinstance(example(vector), torch.Tensor):
            return vector
        return self.call(torch.full, (self.documents,), vector, dtype=torch.int64, device=self.device)

    def _vector(self, found: Any) -> Any:
        if found.is_Integer:
            return int(found)
        if found.is_Float:
            return float(found)
        if found.func in FLOATS:
            op = FLOATS[found.func]
            return self.call(op, *(self._float(part) for part in found.args))
        if found.func is Truncated:
            return self.call("to", self._float(found.args[0]), torch.int64, method=True)
        if found == DOCUMENT:
            return self.call(torch.arange, self.documents, device=self.device)
        if found.is_Symbol:
            column = self.names.columns.get(found)
            return self._outer(found) if column is None else self._column(column)
        if found.is_Pow and found.exp.is_Integer and found.exp > 0:
            return functools.reduce(
                functools.partial(self.call, operator.mul), [self.vector(found.base)] * int(found.exp)
            )
        if found.func in DIVISIONS:
            number, by = (self.vector(part) for part in found.args)
            return self.call(DIVISIONS[found.func], number, self.not_zero(by))
        if found.func not in OPERATORS:
            raise Refused("no-rule", f"a size that is {found.func.__name__} of others")
        parts = [self.vector(part) for part in found.args]
        if found.func in (sympy.Max, sympy.Min):
            parts = [self.full(part) for part in found.args]
        elif is_float(found):  # Python computes with 64 bits
            parts = [float(part) if part.is_number else self._float(part) for part in found.args]
        return self.folded(OPERATORS[found.func], parts)

    def _float(self, found: Any) -> Any:
        """float64 ``[N]``: Python divides integers without rounding them before."""
        if found.is_number:
            return self.call(torch.full, (self.documents,), float(found), dtype=torch.float64, device=self.device)
        return self.call("to", self.full(found), torch.float64, method=True)

    def folded(self, op: Any, parts: list[Any]) -> Any:
        """All parts put together by ``op``, numbers first."""
        numbers = [part for part in parts if not isinstance(part, fx.Node)]
        rest = [part for part in parts if isinstance(part, fx.Node)]
        if numbers:
            number = functools.reduce(op, numbers)
            rest = rest if number == (1 if op is operator.mul else 0) and rest else [*rest, number]
        return functools.reduce(lambda a, b: self.call(op, a, b), rest)

    def ends(self, lengths: fx.Node) -> fx.Node:
        """0, and where each of some things in a row ends, by its length."""
        sums = self.call(torch.cumsum, lengths, 0)
        return self.call(torch.cat, (self.call("new_zeros", sums, (1,), method=True), sums))

    def ends_of(self, length: Any) -> fx.Node:
        """The same for documents that are that long."""
        vector = self.vector(length)
        return self.ends(vector) if is_tensor(vector) else self.multiples(vector, self.documents)

    def multiples(self, number: Any, count: Any) -> fx.Node:
        """``number * [0, ..., count]``. (As a running sum of equal numbers Inductor takes it for something else, and
        fails where the number is a symbol.)"""
        more = self.call(operator.add, count, 1) if isinstance(count, fx.Node) else count + 1
        return self.call(operator.mul, self.call(torch.arange, more, device=self.device), number)

    def note(self, name: Any, vector: fx.Node) -> None:
        """What a name stands for that is no number of a row."""
        self._vectors[name] = vector

    def begin(self, length: Any) -> Any:
        """Where every document begins, if they are that long, and lie one behind the other: a new name."""
        name = sympy.Symbol(f"begin_{length}", integer=True)
        if name not in self._vectors:
            self._vectors[name] = self.call(operator.getitem, self.ends_of(length), slice(0, -1))
        return name

    def not_zero(self, number: Any) -> Any:
        """A number to divide by, 1 where it is 0: nobody looks at what comes of it, or a check has failed."""
        if not is_tensor(number):
            return number
        if number not in self._not_zero:
            self._not_zero[number] = self.call(torch.where, self.call(operator.eq, number, 0), 1, number)
        return self._not_zero[number]

    def truth(self, holds: Any) -> fx.Node:
        """Of which documents something holds, bool ``[N]``."""
        if holds.func in _LOGIC:
            parts = [self.truth(part) for part in holds.args]
            return functools.reduce(lambda a, b: self.call(_LOGIC[holds.func], a, b), parts)
        if holds.func is sympy.Not:
            return self.call(torch.logical_not, self.truth(holds.args[0]))
        if holds.func not in _COMPARED:
            raise Refused("no-rule", f"a branch on {holds.func.__name__} of sizes")
        return self.call(_COMPARED[holds.func], *(self.full(part) for part in holds.args))

    def _column(self, of: Column) -> fx.Node:
        node, column = of.node, of.column
        if of.ahead:
            node = self.call(operator.getitem, node, slice(of.ahead, None))
        rows = example(node).shape[0]
        same = statically_known_true(rows == self._count())
        single = isinstance(rows, int) and rows == 1  # for all documents
        if not same and not single:
            node = self.call(operator.getitem, node, slice(0, self.documents))
        out = node if column is None else self.call(torch.select, node, 1, column)
        if not same and single:
            out = self.call("expand", out, (self.documents,), method=True)
        made = example(out)
        if made.dtype != torch.int64 or made.device != self.device:
            out = self.call("to", out, self.device, torch.int64, method=True)
        return out

    def _count(self) -> Any:
        return example(self.documents) if isinstance(self.documents, fx.Node) else self.documents

    def _outer(self, symbol: Any) -> Any:
        """The node of a size from outside the loop."""
        if symbol in self.names.given:
            return self.names.given[symbol]
        for node in self.graph.nodes:
            value = example(node)
            if node.op == "placeholder" and isinstance(value, torch.SymInt) and value.node.expr == symbol:
                return node
        for node in self.graph.nodes:
            value = example(node)
            if node.op == "placeholder" and isinstance(value, torch.Tensor):
                for d, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                        return self.call(torch.ops.aten.sym_size.int, node, d)
        raise Refused("no-rule", f"a size that is not one of an argument ({symbol})")

    def check(self, check: Check) -> None:
        """A condition that every document must fulfil."""
        left, right = self.vector(check.left), self.vector(check.right)
        op = {"==": operator.eq, ">=": operator.ge, "!=": operator.ne}[check.op]
        holds = self.call(op, left, right)
        if isinstance(example(holds), torch.Tensor):
            numbers = [v for v in (left, right) if isinstance(v, fx.Node) and isinstance(example(v), torch.Tensor)]
            self.call(_ops.check_documents.default, holds, numbers, check.message)
        else:
            self.call(torch._check, holds)
