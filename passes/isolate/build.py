"""A region as a graph of its own, for one document: rows in, rows out, every size taken from the first row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import fx

from packpass.ops import _each_document
from packpass.ops._each_document import own_memory
from packpass.semantics import blank, example, storage
from packpass.semantics.batched import counted_form_of, form_of
from passes.isolate.kinds import SIZED, Row
from passes.isolate.neutral import Neutral, neutral_of
from passes.isolate.reading import Reading
from passes.isolate.regions import Region
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Body:
    """``function(*entries, *others)`` returns the exits of one document; ``others`` are nodes of the whole
    graph, ``constants`` those of the region that hold no tokens. ``plain``: the function of a document that is not
    padded, where ``function`` is told how many slots are real, as its last argument."""

    region: Region
    function: fx.GraphModule
    others: tuple[fx.Node, ...]
    constants: frozenset[fx.Node]
    given: tuple[int, ...]
    returned: tuple[int, ...]
    plain: fx.GraphModule | None = None

    def fills(self, fill: float) -> tuple[float, ...]:
        """What the rows hold behind a document's end: ``fill`` in those of floating-point numbers."""
        dtypes = [example(n).dtype for n in self.region.entries]
        return tuple(fill if dtype.is_floating_point else 0.0 for dtype in dtypes)


def body_of(gm: fx.GraphModule, reading: Reading, region: Region) -> Body:
    """The graph of a region; what sizes the row has outside, a document has inside."""
    function, others = _function(gm, reading, region, None)
    constants = frozenset(n for n in region.nodes if reading.kinds[n] is SIZED)
    given, returned = (tuple(_dim(reading, n) for n in rows) for rows in (region.entries, region.exits))
    return Body(region, function, others, constants, given, returned)


def counted_body_of(gm: fx.GraphModule, reading: Reading, body: Body, other: float) -> Body | None:
    """The same with neutral slots behind the end of a document (`passes.isolate.neutral`); None if nothing reads them
    in a way that this could help."""
    neutral = {n: found for n in body.region.nodes if (found := neutral_of(reading, n, other))}
    if not neutral:
        return None
    function, _ = _function(gm, reading, body.region, neutral)
    return dataclasses.replace(body, function=function, plain=body.function)


def _function(
    gm: fx.GraphModule, reading: Reading, region: Region, neutral: Mapping[fx.Node, Neutral] | None
) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
    """The graph, and the nodes without tokens that it is given."""
    first = region.entries[0]
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {n: graph.placeholder(f"row_{i}") for i, n in enumerate(region.entries)}
    sizes = [n for n in region.others if reading.symbols and reading.kinds[n] is SIZED]
    others = tuple(n for n in region.others if n not in sizes)
    for i, n in enumerate(others):
        values[n] = graph.placeholder(f"other_{i}")
    count = graph.placeholder("count") if neutral is not None else None
    length = graph.call_method("size", (values[first], _dim(reading, first))) if sizes else None
    for n in sizes:
        if not reading.of_length(example(n)):
            raise Refused("mixes-documents", "the row's length is computed from other sizes, one of them unknown")
        assert length is not None
        values[n] = length
    for n in region.nodes:
        if count is not None and neutral is not None and n in neutral:
            values[n] = _counted(graph, n, values, neutral[n], count)
        else:
            values[n] = copied(graph, n, values)
        if blank(n) and storage(n) in reading.memory:
            values[n] = graph.call_function(own_memory, (values[n], values[first]))
    graph.output(tuple(values[n] for n in region.exits))
    graph.lint()
    return fx.GraphModule(gm, graph), others


def _dim(reading: Reading, node: fx.Node) -> int:
    kind = reading.kinds[node]
    assert isinstance(kind, Row)
    return kind.dim


def _counted(
    graph: fx.Graph, node: fx.Node, values: Mapping[fx.Node, fx.Node], neutral: Neutral, count: fx.Node
) -> fx.Node:
    """The same call on operands whose slots behind the first ``count`` change nothing."""
    values = dict(values)
    for (operand, dim), fill in neutral.fills.items():
        values[operand] = graph.call_function(_each_document.neutral, (values[operand], dim, count, fill))
    form = counted_form_of(node) if neutral.counts else None
    if form is None:
        return copied(graph, node, values, (count, neutral.row_queries) if neutral.hides else None)
    function, keywords = form
    (_, dim), *_ = neutral.fills
    given = {**fx.map_arg(keywords, lambda n: values[n]), "row": dim, "count": count}
    new = graph.call_function(function, (), given)
    new.meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    return new


def copied(
    graph: fx.Graph, node: fx.Node, values: Mapping[fx.Node, fx.Node], hide: tuple[fx.Node, bool] | None = None
) -> fx.Node:
    """The same call, in the form that a batch of documents takes without asking for sizes. ``hide``: how many keys an
    attention may see, and whether its queries are of the row."""
    form = form_of(node)
    if form is None:
        new = graph.node_copy(node, lambda n: values[n])
    else:
        function, keywords = form
        given: dict[str, Any] = dict(fx.map_arg(keywords, lambda n: values[n]))
        if hide is not None:
            count, row_queries = hide
            seen = (given.get("attn_mask"), given["query"] if row_queries else None, given["key"], count)
            given["attn_mask"] = graph.call_function(_each_document.hidden, seen)
        new = graph.call_function(function, (), given)
        new = graph.call_method("to", (new, example(node).dtype))  # as autocast has it
    new.meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    return new
