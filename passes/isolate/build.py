"""A region as a graph of its own, for one document: rows in, rows out, every size taken from the first row."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.ops._each_document import own_memory
from packpass.semantics import blank, example, storage
from packpass.semantics.batched import form_of
from passes.isolate.reading import SIZED, Reading, Row
from passes.isolate.regions import Region
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Body:
    """``function(*entries, *others)`` returns the exits of one document; ``others`` are nodes of the whole
    graph, ``constants`` those of the region that hold no tokens."""

    region: Region
    function: fx.GraphModule
    others: tuple[fx.Node, ...]
    constants: frozenset[fx.Node]
    given: tuple[int, ...]
    returned: tuple[int, ...]

    def fills(self, fill: float) -> tuple[float, ...]:
        """What the rows hold behind a document's end: ``fill`` in those of floating-point numbers."""
        dtypes = [example(n).dtype for n in self.region.entries]
        return tuple(fill if dtype.is_floating_point else 0.0 for dtype in dtypes)


def body_of(gm: fx.GraphModule, reading: Reading, region: Region) -> Body:
    """The graph of a region; what sizes the row has outside, a document has inside."""
    dims = {n: _dim(reading, n) for n in (*region.entries, *region.exits)}
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {n: graph.placeholder(f"row_{i}") for i, n in enumerate(region.entries)}
    sizes = [n for n in region.others if reading.symbols and reading.kinds[n] is SIZED]
    others = tuple(n for n in region.others if n not in sizes)
    for i, n in enumerate(others):
        values[n] = graph.placeholder(f"other_{i}")
    if sizes:
        first = region.entries[0]
        length = graph.call_method("size", (values[first], dims[first]))
        for n in sizes:
            if not reading.of_length(example(n)):
                raise Refused("mixes-documents", "the row's length is computed from other sizes, one of them unknown")
            values[n] = length
    for n in region.nodes:
        values[n] = _copied(graph, n, values)
        if blank(n) and storage(n) in reading.memory:
            values[n] = graph.call_function(own_memory, (values[n], values[region.entries[0]]))
    graph.output(tuple(values[n] for n in region.exits))
    graph.lint()
    function = fx.GraphModule(gm, graph)
    constants = frozenset(n for n in region.nodes if reading.kinds[n] is SIZED)
    given, returned = (tuple(dims[n] for n in rows) for rows in (region.entries, region.exits))
    return Body(region, function, others, constants, given, returned)


def _dim(reading: Reading, node: fx.Node) -> int:
    kind = reading.kinds[node]
    assert isinstance(kind, Row)
    return kind.dim


def _copied(graph: fx.Graph, node: fx.Node, values: dict[fx.Node, fx.Node]) -> fx.Node:
    """The same call, in the form that a batch of documents takes without asking for sizes."""
    form = form_of(node)
    if form is None:
        new = graph.node_copy(node, lambda n: values[n])
    else:
        function, keywords = form
        given: Any = fx.map_arg(keywords, lambda n: values[n])
        new = graph.call_function(function, (), given)
        new = graph.call_method("to", (new, example(node).dtype))  # as autocast has it
    new.meta = {k: v for k, v in node.meta.items() if k == "stack_trace"}
    return new
