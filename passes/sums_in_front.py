"""The slots in front of a document, added up for each of them anew: ``lengths[:i].sum()``.

Before::

    start = lengths[:i].sum()
    part = x[start : start + lengths[i]]

After::

    cu = pad(cumsum(lengths, 0), (1, 0))               # made before the loop
    start = cu[i]

The sum of the first entries of a vector of integers is an entry of its running sum, of the same dtype, and no entry is
missing where the loop goes no further than the vector is long. Not a rewrite of its own: runs before the passes that
look at loops, changes no value, and leaves what it does not recognise.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import call_of, example, is_tensor
from packpass.semantics.effects import mutated_after
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.prune import prune


@dataclasses.dataclass(frozen=True)
class _Sum:
    """``vector[:stop].sum()`` in one iteration."""

    node: fx.Node
    vector: fx.Node
    stop: fx.Node


def with_running_sums(graph: fx.Graph) -> None:
    """Put entries of running sums, which are made in front of the loop, in the place of such sums."""
    for loop in find(graph):
        sums = [_sum(loop, begin, node) for begin, body, _ in loop.iterations for node in body]
        found = [one for one in sums if one is not None]
        start = loop.iterations[0][0]
        for vector in dict.fromkeys(one.vector for one in found):
            build = Builder(graph, start, vector)
            cu = build.call(torch.nn.functional.pad, build.call(torch.cumsum, vector, 0), (1, 0))
            for one in [one for one in found if one.vector is vector]:
                _replace(graph, one, cu)


def _replace(graph: fx.Graph, one: _Sum, cu: fx.Node) -> None:
    entry = Builder(graph, one.node, cu).call(torch.select, cu, 0, one.stop, fake=example(one.node))
    entry.meta.update({key: value for key, value in one.node.meta.items() if key not in entry.meta})
    one.node.replace_all_uses_with(entry)
    prune(graph, [one.node])


def _sum(loop: LoopFound, begin: fx.Node, node: fx.Node) -> _Sum | None:
    call = call_of(node) if is_tensor(node) else None
    source = call.of("input") if call is not None and call.op == "sum" else None
    if call is None or source is None or source.rank != 1 or source.value.is_floating_point():
        return None
    if source.value.is_complex() or call.get("keepdim") or call.get("dtype") not in (None, torch.int64):
        return None
    cut = source.node
    if cut.target is not operator.getitem or not isinstance(cut.args[1], slice) or cut not in loop.nodes:
        return None
    vector, entries = cut.args[0], cut.args[1]
    if entries.start not in (None, 0) or entries.step not in (None, 1) or not isinstance(entries.stop, fx.Node):
        return None
    if not isinstance(vector, fx.Node) or vector in loop.nodes or not _fits(vector, begin, entries.stop):
        return None
    changed = mutated_after(node.graph, vector, loop.iterations[0][0], node)
    return None if changed else _Sum(node, vector, entries.stop)


def _fits(vector: fx.Node, begin: fx.Node, stop: fx.Node) -> bool:
    """Is ``stop`` the number of the document, or the one behind it, and no document behind the vector's end?"""
    number, documents, size = (_size(n) for n in (begin, begin.args[0], vector))
    is_next = any(statically_known_true(_size(stop) == number + more) for more in (0, 1))
    return is_next and statically_known_true(documents <= size)


def _size(of: Any) -> Any:
    """An integer, or of how many entries a vector is."""
    value = example(of) if isinstance(of, fx.Node) else of
    return value.shape[0] if isinstance(value, torch.Tensor) else value
