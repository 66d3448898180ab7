"""The vectors that loops over documents go by, in the form that passes look for: outside of the loop, and as long as
the loop says.

``cu[:n]`` in the body of a loop is the same for every document, and of ``for i in range(n): cu[i], cu[i + 1]`` only
the first n + 1 entries are boundaries, however much padding is behind them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, hint_of, statically_known_true
from packpass.semantics import example, op_name, storage
from packpass.semantics.build import Builder, NotBuilt
from passes.loops import LoopFound, find
from passes.nodes import needed_for

RULE = "vectorize_segments"
_ENTRIES = (operator.getitem, torch.select)
_DTYPES = (torch.int32, torch.int64)


def settle(graph: fx.Graph) -> None:
    """Move slices of vectors out of loops, and leave the loops no more entries than they reach."""
    for loop in find(graph):
        _hoist(loop)
    for loop in find(graph):
        _cut(graph, loop)


# === The same for every document =============================================================================


def _hoist(loop: LoopFound) -> None:
    first, inside, written = loop.iterations[0][0], loop.nodes, loop.written
    for slices in zip(*(_slices(loop, body) for _, body, _ in loop.iterations), strict=False):
        one, *others = slices
        if any(_bounds(other) != _bounds(one) for other in others) or storage(one.args[0]) in written:
            continue
        for node in sorted(needed_for([one], inside)):
            first.prepend(node)
        for other in others:
            other.replace_all_uses_with(one)
            other.graph.erase_node(other)


def _slices(loop: LoopFound, body: tuple[fx.Node, ...]) -> list[fx.Node]:
    """Slices of vectors of integers whose bounds do not depend on the document, and whose length is no new number."""
    found = [node for node in body if node.target is operator.getitem and isinstance(node.args[1], slice)]
    outer = [node for node in found if node.args[0] not in loop.nodes and _is_vector(node)]
    known = [node for node in outer if not free_unbacked_symbols(example(node).shape[0])]
    return [node for node in known if all(map(_is_sum, needed_for([node], loop.nodes) - {node}))]


def _is_sum(node: fx.Node) -> bool:
    """Is it arithmetic on numbers? A number of the document is none: it begins the iteration, or is read there."""
    return node.target in (operator.add, operator.sub, torch.sym_sum) and isinstance(example(node), torch.SymInt)


def _bounds(node: fx.Node) -> tuple[Any, ...]:
    """The vector of a slice, and where it begins and ends, as torch writes the numbers down."""
    key: Any = node.args[1]
    ends = (example(end) if isinstance(end, fx.Node) else end for end in (key.start, key.stop, key.step))
    return (node.args[0], *(end.node.expr if isinstance(end, torch.SymInt) else end for end in ends))


def _is_vector(node: Any) -> bool:
    value = example(node)
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype in _DTYPES


# === As long as the loop says ================================================================================


def _cut(graph: fx.Graph, loop: LoopFound) -> None:
    """Where torch knows how many documents and how many entries there are, guards say that there are enough; where
    that is data, it is checked at run time, as the reading of entries would be."""
    if not isinstance(loop.length, fx.Node) or loop.written & {storage(vector) for vector in _vectors(loop)}:
        return
    count = example(loop.length)
    for vector, reads in _vectors(loop).items():
        size, places = example(vector).shape[0], {place for _, place in reads}
        known, least = hint_of(count + max(places)), hint_of(size)
        if not places <= {0, 1} or least is None or (known is not None and known >= least):
            continue
        if statically_known_true(size - count == 1):  # boundaries, of which only starts are read
            continue
        needed = count + max(places)
        if known is None and least <= 2:
            bool(size == least)  # as torch finds out as soon as a size is 1, when a check goes by the symbol already
        if known is not None and not (needed >= 0 and needed <= size):  # which guards settle
            continue
        build = Builder(graph, loop.iterations[0][0], vector, RULE)
        try:
            length = build.call(operator.add, loop.length, 1) if max(places) else loop.length
            kept = build.call(torch.narrow, vector, 0, 0, length)
        except NotBuilt:  # the loop is left as it is
            build.undo()
            continue
        for node, _ in reads:
            node.replace_input_with(vector, kept)


def _vectors(loop: LoopFound) -> dict[fx.Node, list[tuple[fx.Node, int]]]:
    """Vectors from outside, and what reads an entry of them: how far it is behind that of the document's number."""
    found: dict[fx.Node, list[tuple[fx.Node, int]]] = {}
    for begin, body, _ in loop.iterations:
        for node in body:
            at = node.args[-1] if node.target in _ENTRIES and not node.kwargs and len(node.args) > 1 else None
            vector = node.args[0] if isinstance(at, fx.Node) and isinstance(example(at), torch.SymInt) else None
            if not isinstance(vector, fx.Node) or vector in loop.nodes or not _is_vector(vector):
                continue
            ahead = example(at).node.expr - example(begin).node.expr
            found.setdefault(vector, []).append((node, int(ahead) if ahead.is_Integer else -1))
    return found


# === Rows of matrices ========================================================================================


def split_rows(graph: fx.Graph, loop: LoopFound) -> bool:
    """Let a loop over rows of a matrix of integers, ``for start, length in spans.tolist()``, read its numbers from the
    columns, which are vectors; False, and nothing is changed, if it does anything else with the rows."""
    reads: list[tuple[fx.Node, fx.Node, fx.Node]] = []
    for begin, body, _ in loop.iterations:
        for row in body:
            if op_name(row) != "select" or row.args[1:] != (0, begin) or row.args[0] in loop.nodes:
                continue
            entries = [user for user in row.users if user.target is operator.getitem and type(user.args[1]) is int]
            value = example(row)
            if not isinstance(value, torch.Tensor) or value.dim() != 1 or value.dtype not in _DTYPES:
                continue
            if len(entries) < len(row.users):
                return False
            reads += [(entry, row, begin) for entry in entries]
    columns: dict[tuple[Any, Any], fx.Node] = {}
    build = Builder(graph, before=loop.iterations[0][0], like=reads[0][1].args[0]) if reads else None
    for entry, row, begin in reads:
        assert build is not None
        key = row.args[0], entry.args[1]
        if key not in columns:
            columns[key] = build.call(torch.select, key[0], 1, key[1])
        inside = Builder(graph, before=entry, like=columns[key])
        entry.replace_all_uses_with(inside.call(torch.select, columns[key], 0, begin))
        graph.erase_node(entry)
    for row in dict.fromkeys(row for _, row, _ in reads):
        graph.erase_node(row)
    return bool(reads)
