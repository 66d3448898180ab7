"""Entries of a list that one way of a branch fills up to a width, and the other leaves: ``if width > n: x = pad(x)``.

The other way is taken where the width is no more than the document's length, which is the width, then, if the entries
are to be stacked. The branch does not say so, the list does. `markers.AS_WIDE` takes it for that; the pass that
rewrites the loop checks it.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass.capture import one_size
from packpass.capture.dynamo import emit, example
from packpass.capture.lists import CollectedItems
from packpass.capture.origins import expression_of, needed_for
from packpass.capture.questions import question
from packpass.capture.state import current_frame
from packpass.capture.tallies import collect, end_of
from packpass.semantics.binding import example as example_of
from packpass.semantics.not_negative import is_extreme, not_negative


def all_as_wide(items: CollectedItems, joined_at: int | None = None) -> Any:
    """The entries of a list as a value of the graph, in the one width that the ways which fill up have; None if
    it is a list of others. ``joined_at``: they are put behind each other there."""
    region = items.region
    if not region.ways or items.lacking or any(len(kept) != 1 for kept in items.values):
        return None
    values = [kept[0] for kept in items.values]
    fakes = [example(value) for value in values]
    if not all(isinstance(fake, torch.Tensor) for fake in fakes) or len({fake.dim() for fake in fakes}) != 1:
        return None
    shape = fakes[0].shape
    differing = [d for d, size in enumerate(shape) if not all(one_size.same_size(f.shape[d], size) for f in fakes)]
    if len(differing) != 1 or (joined_at is not None and differing[0] == joined_at % len(shape)):
        return None
    lengths = _lengths(region.indices[-1].graph)
    for known in ({}, lengths):
        made = _in_one_width(region, values, differing[0], known)
        if made is not None:
            if known:
                frame = current_frame()
                frame.not_replayable = frame.not_replayable or "a document is taken to be as long as its boundaries say"
            return collect(region, [value.as_proxy() for value in made])
    return None


def _in_one_width(region: Any, values: list[Any], dim: int, lengths: dict[Any, Any]) -> list[Any] | None:
    """The entry of each traced iteration, in the width of those that fill up; ``lengths``: what slices are taken to
    be as long as."""
    own = [expression_of(example(value).shape[dim]) for value in values]
    sizes = [size.xreplace(lengths) for size in own]
    for size in sizes:
        shorter = [which for which, other in enumerate(sizes) if other != size]
        width = _of_all(size, region)
        if width is not None and all(_at_least(region, which, sizes[which], size, lengths) for which in shorter):
            as_they_are = [expression == size for expression in own]
            return [v if as_they_are[i] else _widened(region, i, v, dim, width) for i, v in enumerate(values)]
    return None


def _widened(region: Any, which: int, value: Any, dim: int, width: Any) -> Any:
    end = end_of(region, which)
    with end.graph.inserting_before(end):
        return emit(region.tx, markers.AS_WIDE, value.as_proxy(), dim, width)


def _of_all(size: Any, region: Any) -> Any:
    """A size that all documents have, as an argument of a call; None if documents have each their own."""
    if size.is_Integer:
        return int(size)
    begin, end = region.indices[0], end_of(region, 0)
    for node in begin.graph.nodes:
        if node is end:
            return None
        value = example_of(node)
        if isinstance(value, torch.SymInt) and expression_of(value) == size and begin not in needed_for([node]):
            return region.tx.output.current_tracer.proxy(node)
    return None


def _at_least(region: Any, which: int, size: Any, width: Any, lengths: dict[Any, Any]) -> bool:
    """Do the branches that an iteration has met say that a size is not below a width?"""
    met = [(c, outcome) for c, outcome in region.ways.asked.get(which, []) if not isinstance(c, fx.Node)]
    asked = [(question(_by_symbols(condition.xreplace(lengths))), outcome) for condition, outcome in met]

    def known(number: Any) -> bool:
        wanted = question(_by_symbols(number < 0))
        if wanted is None:
            return False
        answers = [(q, outcome) for q, outcome in asked if q is not None]
        return any(q.answered(outcome, wanted) is False and q.is_sure(outcome, wanted) for q, outcome in answers)

    return not_negative(size - width, known)


def _by_symbols(condition: Any) -> Any:
    """The condition with a symbol in the place of each quotient, or extreme, so that it is one on sums of numbers."""
    parts = [p for p in sympy.preorder_traversal(condition) if isinstance(p, sympy.Function) or is_extreme(p)]
    return condition.xreplace({part: sympy.Symbol(str(part), integer=True) for part in parts})


def _lengths(graph: fx.Graph) -> dict[Any, Any]:
    """The sizes of slices by two numbers, and how far these are apart: how long a slice is of a row that does not end
    before it."""
    found = {}
    for cut in (cut for node in graph.nodes for cut in one_size.cuts_of(node)):
        start, numbers = 0 if cut.start is None else cut.start, (int, torch.SymInt)
        made = isinstance(cut.size, torch.SymInt) and cut.size.node.expr.is_Symbol
        if made and isinstance(cut.stop, numbers) and isinstance(start, numbers):
            found[cut.size.node.expr] = expression_of(cut.stop - start)
    return found
