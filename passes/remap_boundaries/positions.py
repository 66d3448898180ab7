"""Reading the index at which a row's tokens are put: which running sum of widths it is.

With ``S = cumsum(w)``, token t takes the slots ``[S[t] - w[t], S[t])`` of the expanded row. Code puts it at the first
of them, ``S - w``, or at the last one, ``S - 1`` (the same for tokens of one slot). Both are written in many ways, so
an index is read as a sum of terms: ``cumsum(extra) + arange(T)`` is ``S - 1`` with ``w = extra + 1``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch import fx

from packpass.layout.axes import Axis
from packpass.semantics import argument, call_of, contents_of, example, meaning_of, op_name, storage
from packpass.semantics.meaning import Iota, Uniform
from packpass.semantics.memory import copied


@dataclasses.dataclass(frozen=True)
class Row:
    """A vector of integers along dimension ``dim`` (counted from the last: -1, -2, ...) of a node's value; the other
    dimensions repeat it."""

    node: fx.Node
    dim: int

    @property
    def size(self) -> Any:
        return example(self.node).shape[self.dim]

    @property
    def axis(self) -> Axis:
        return Axis(self.node, self.dim + example(self.node).dim())


@dataclasses.dataclass(frozen=True)
class Positions:
    """The slots of tokens whose widths are ``widths + plus``; ``summed`` is the call that read the widths."""

    widths: Row
    plus: int
    summed: fx.Node


@dataclasses.dataclass(frozen=True)
class _Term:
    """``kind`` is "sum" (the inclusive running sum of ``row``), "self" (the row) or "slots" (0, 1, 2, ...)."""

    kind: str
    row: Row | None


Terms = tuple[Counter[_Term], int]


class Reader:
    """Reads positions of one graph; remembers which call made each running sum.

    ``written``: memory that some call of the graph writes to (see `passes.remap_boundaries.memory`).
    """

    def __init__(self, written: frozenset[Any]) -> None:
        self.written = written
        self._summed: dict[Row, fx.Node] = {}

    def positions(self, node: fx.Node, dim: int = -1) -> Positions | None:
        """``node`` as first or last slots of tokens along ``dim`` (negative), or None."""
        read = self._terms(node, dim)
        if read is None:
            return None
        terms, constant = read
        found = {term: n for term, n in terms.items() if n}
        sums = [term.row for term, n in found.items() if term.kind == "sum" and n == 1]
        if len(sums) != 1 or sums[0] is None:
            return None
        row = sums[0]
        rest = {(term.kind, term.row): n for term, n in found.items() if term != _Term("sum", row)}
        for (plus, slots), at in (((0, 0), -1), ((1, 1), 0)):
            # last slot: cumsum(w) - 1, or cumsum(extra) + slots
            if constant == at and rest == ({("slots", None): 1} if slots else {}):
                return Positions(row, plus, self._summed[row])
        # first slot: cumsum(w) - w, or cumsum(extra) - extra + slots
        if constant == 0 and rest in ({("self", row): -1}, {("self", row): -1, ("slots", None): 1}):
            return Positions(row, len(rest) - 1, self._summed[row])
        return None

    def plain(self, row: Row) -> Row:
        """The row behind views, and behind copies of what is never written."""
        while (step := same_values(row)) is not None:
            if storage(step.node) != storage(row.node) and {storage(step.node), storage(row.node)} & self.written:
                break
            row = step
        return row

    def ends(self, node: fx.Node, dim: int = -1) -> Positions | None:
        """``node`` as the inclusive running sum itself: where each token ends."""
        read = self._terms(node, dim)
        if read is None or read[1] != 0:
            return None
        found = {term: n for term, n in read[0].items() if n}
        sums = [term.row for term, n in found.items() if term.kind == "sum" and n == 1]
        if len(found) != 1 or len(sums) != 1 or sums[0] is None:
            return None
        return Positions(sums[0], 0, self._summed[sums[0]])

    def _exclusive(self, node: fx.Node, dim: int) -> tuple[fx.Node, int] | None:
        """``cat([0, ends[:-1]])``, ``pad(ends, (1, 0))[:-1]``, ``pad(ends[:-1], (1, 0))``: the running sum and its
        dimension."""
        if dim != -1:
            return None
        name = op_name(node)
        if name == "getitem" and isinstance(node.args[0], fx.Node) and _cut_last(node.args[1], example(node).dim()):
            return self._after_zero(node.args[0])
        inner = self._after_zero(node)
        if inner is not None and op_name(inner[0]) == "getitem" and _cut_last(inner[0].args[1], example(node).dim()):
            source = inner[0].args[0]
            return (source, -1) if isinstance(source, fx.Node) else None
        return None

    def _after_zero(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        """``pad(x, (1, 0))`` or ``cat([zeros(1), x], -1)``: x."""
        if storage(node) in self.written:
            return None
        if op_name(node) == "pad":
            pad, value, mode = (
                argument(node, 1, "pad"),
                argument(node, 3, "value", 0),
                argument(node, 2, "mode", "constant"),
            )
            x = argument(node, 0, "input")
            if (
                mode in ("constant", 0)
                and isinstance(pad, (tuple, list))
                and tuple(pad) == (1, 0)
                and value in (0, None)
            ):
                return (x, -1) if isinstance(x, fx.Node) else None
        if op_name(node) == "cat":
            parts, along = argument(node, 0, "tensors"), argument(node, 1, "dim", 0)
            if not isinstance(parts, (tuple, list)) or len(parts) != 2 or along not in (-1, example(node).dim() - 1):
                return None
            zero, x = parts
            if contents_of(zero) == Uniform(0) and example(zero).shape[-1] == 1 and storage(zero) not in self.written:
                return (x, -1) if isinstance(x, fx.Node) else None
        return None

    def is_slots(self, node: fx.Node) -> bool:
        """``arange(n)``"""
        return self._terms(node, -1) == (Counter({_Term("slots", None): 1}), 0)

    def _terms(self, node: Any, dim: int, depth: int = 0) -> Terms | None:
        """``node`` as a sum of terms and a constant."""
        if isinstance(node, int) and not isinstance(node, bool):
            return Counter(), node
        value = example(node)
        if depth > 24 or not isinstance(node, fx.Node) or not isinstance(value, torch.Tensor):
            return None
        if value.dtype.is_floating_point or value.dtype.is_complex or value.dim() < -dim:
            return None
        if storage(node) in self.written:
            return None
        name = op_name(node)
        if name in ("add", "sub") and not node.kwargs.get("alpha") and len(node.args) == 2:
            a, b = (self._terms(x, dim, depth + 1) for x in node.args)
            return _combined(a, b, 1 if name == "add" else -1)
        if name == "neg":
            return _combined((Counter(), 0), self._terms(node.args[0], dim, depth + 1), -1)
        if name == "cumsum":
            along, source = argument(node, 1, "dim"), node.args[0]
            if isinstance(along, int) and along % value.dim() == dim + value.dim() and isinstance(source, fx.Node):
                row = self.plain(Row(source, dim))
                if not example(row.node).dtype.is_floating_point:
                    self._summed.setdefault(row, node)
                    return Counter({_Term("sum", row): 1}), 0
            return None
        if contents_of(node) == Iota(0, 1):
            return Counter({_Term("slots", None): 1}), 0
        before = self._exclusive(node, dim)
        if before is not None:  # what stands before a token: the sum without it
            ends = self.ends(*before)
            if ends is None:
                return None
            return Counter({_Term("sum", ends.widths): 1, _Term("self", ends.widths): -1}), 0
        step = same_values(Row(node, dim))
        if step is not None:
            return self._terms(step.node, step.dim, depth + 1)
        return Counter({_Term("self", Row(node, dim)): 1}), 0


def _combined(a: Terms | None, b: Terms | None, sign: int) -> Terms | None:
    if a is None or b is None:
        return None
    terms = Counter(a[0])
    for term, n in b[0].items():
        terms[term] += sign * n
    return terms, a[1] + sign * b[1]


def same_values(row: Row) -> Row | None:
    """The row that a copy, a cast between integers or a view was made of; None for any other call."""
    node, source = row.node, row.node.args[0] if row.node.args else None
    if not isinstance(source, fx.Node) or not isinstance(example(source), torch.Tensor):
        return None
    if copied(node) is source:
        kinds = {example(n).dtype.is_floating_point for n in (source, node)}
        narrow = example(node).dtype not in (torch.int64, torch.int32) and example(node).dtype != example(source).dtype
        return Row(source, row.dim) if kinds == {False} and not narrow else None
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None or meaning.family not in ("views", "indexing") or call.several:
        return None
    (relation,) = meaning.relations
    for loop, to, axes in relation.kept():
        dim = next((a for k, a in axes if k == 0), None)
        if dim is None or to != row.axis.dim or loop in relation.roles:
            continue
        others = [n for d, n in enumerate(example(source).shape) if d != dim]
        # Other dimensions of more than one slot may hold other numbers.
        if call.op != "select" or all(n == 1 for n in others):
            return Row(source, dim - example(source).dim())
    return None


def _cut_last(index: Any, rank: int) -> bool:
    """``[..., :-1]``"""
    entries = index if isinstance(index, tuple) else (index,)
    if Ellipsis not in entries and len(entries) != rank:
        return False
    rest = [e for e in entries[:-1] if e is not Ellipsis and e != slice(None)]
    return not rest and isinstance(entries[-1], slice) and entries[-1] == slice(None, -1)
