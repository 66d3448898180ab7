"""Loops over the chunks of a row whose state goes from chunk to chunk: documents lie behind each other, each from a
chunk's start on.

::

    q, k, v = (F.pad(x, ...).reshape(1, H, -1, 64, D) for x in (q, k, v))
    state = zeros
    for i in range(chunks):                             state = where(starts[i], zeros, state)
        out[:, :, i] = q[:, :, i] @ state + ...  ->     out[:, :, i] = q[:, :, i] @ state + ...
        state = state * decay[:, :, i] + ...            state = state * decay[:, :, i] + ...

Torch unrolls such a loop for one number of chunks, and a batch of documents would have that many for each of them. So
documents are put into as few rows of that many chunks as hold them, and the state begins anew at their first chunks.

What is proven, with the number of chunks in place of the number of tokens: everything but the loop treats every chunk
by itself (`passes.isolate.reading`), and the loop is one whose state may begin anew (`passes.isolate.carried`). That
the rest of a document's last chunk changes nothing in it is what `passes.isolate.trial` has tried; it also tries the
rows of several documents against the batch of documents.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, fx

from packpass._compat import fake_mode_of, hint_of
from packpass.layout import Layouts, Packing
from packpass.ops._each_document import own_memory
from packpass.semantics import blank, example, storage
from packpass.semantics.call import invoke
from packpass.semantics.effects import written_inputs
from passes.isolate import carried
from passes.isolate.alike import made_alike
from passes.isolate.build import Body, copied
from passes.isolate.carried import carried_of
from passes.isolate.kinds import MIXED, PLAIN, Merged, Restart, Row
from passes.isolate.lengths import Lengths
from passes.isolate.reading import Reading
from passes.isolate.regions import Region
from passes.isolate.steps import Steps
from passes.refused import Refused

LEAST = 3
"""Chunks of a loop whose steps are compared where it is not proven that its state may begin anew."""


@dataclasses.dataclass(frozen=True)
class Chunked:
    """``function(*entries, *others, starts)`` returns the exits of a row of ``count`` chunks of ``slots`` slots each;
    ``starts``, bool ``[count]``: with which of them does a document begin?"""

    function: fx.GraphModule
    count: int
    slots: int


def chunked_of(gm: fx.GraphModule, layouts: Layouts, packing: Packing, body: Body, lengths: Lengths) -> Chunked | None:
    """The loop over chunks that a part is; None if it is anything else, or code for any number of chunks."""
    if lengths.chunks is None or body.plain is not None:
        return None
    try:
        reading, results = _reading(gm, layouts, packing, body, *lengths.chunks)
        function = _restarting(reading, body, results, *lengths.chunks)
    except (_Unknown, Refused, Restart):
        return None
    return None if function is None else Chunked(function, *lengths.chunks)


def check_steps(gm: fx.GraphModule, layouts: Layouts, packing: Packing, body: Body, chunks: tuple[int, int]) -> None:
    """Raises `Refused` where a loop over the chunks of a row does not do the same for each of them, which may be
    because of how many there are."""
    try:
        reading, _ = _reading(gm, layouts, packing, body, *chunks)
        steps = Steps(reading, Region(_members(reading), (), (), (), ()))
    except (_Unknown, Restart):
        steps = None
    if steps is None or len(set(steps.slots.values())) < chunks[0] or chunks[0] < LEAST:
        raise Refused(
            "length-branch",
            f"the code was written down for {chunks[0]} chunks of {chunks[1]} slots, and nothing shows that it is the "
            "same for a document of fewer; give a row of three chunks or more, or a loop that does the same for all",
            body.region.mixing[0] if body.region.mixing else None,
        )
    steps.check()


def _reading(
    gm: fx.GraphModule, layouts: Layouts, packing: Packing, body: Body, count: int, slots: int
) -> tuple[Reading, tuple[fx.Node, ...]]:
    """A part for rows of so many chunks, read with chunks in place of tokens, and what it returns."""
    graph, rows, results = _of_one_length(gm, body, count * slots)
    handed: dict[fx.Node, Any] = dict.fromkeys((n for n in graph.nodes if n.op == "placeholder"), PLAIN)
    handed |= {n: Merged(row.dim, slots, body.region.nodes[0]) for n, row in rows.items()}
    return Reading(fx.GraphModule(gm, graph), layouts, packing, count, handed=handed).run(), results


def _members(reading: Reading) -> tuple[fx.Node, ...]:
    """What is mixed, and what mixes it."""
    tokens = {*reading.mixing, *reading.exits}
    return tuple(n for n in reading.graph.nodes if reading.kinds.get(n) is MIXED or n in tokens)


class _Unknown(Exception):
    """A part cannot be written down for one length."""


def _of_one_length(
    gm: fx.GraphModule, body: Body, length: int
) -> tuple[fx.Graph, dict[fx.Node, Row], tuple[fx.Node, ...]]:
    """``(graph, rows, results)``: a part for rows of so many slots, whose sizes are all numbers."""
    region = body.region
    mode = fake_mode_of(example(region.entries[0]))
    if mode is None:
        raise _Unknown
    graph, known, rows = fx.Graph(), dict[fx.Node, Any](), dict[fx.Node, Row]()
    values: dict[fx.Node, Any] = {}

    def given(n: fx.Node, value: Any) -> None:
        known[n] = new = graph.placeholder(n.name)
        values[new] = new.meta["example_value"] = value

    with mode, torch.no_grad():
        for n, dim in zip(region.entries, body.given, strict=True):
            value = example(n)
            shape = [length if d == dim else _number(size) for d, size in enumerate(value.shape)]
            given(n, torch.empty(shape, dtype=value.dtype, device=value.device))
            rows[known[n]] = Row(dim)
        for n, first in zip(body.others, alike(gm, body), strict=True):
            given(n, example(n))
            known[n] = known[body.others[first]]
        known |= {n: length for n in region.others if n not in known}
        for n in region.nodes:
            arguments = fx.map_arg((n.args, dict(n.kwargs)), lambda x: known[x])
            try:
                result = invoke(n, *fx.map_arg(arguments, lambda x: values[x]))
            except Exception as error:
                raise _Unknown from error
            if _holds_tensors(result) or written_inputs(n):
                args, kwargs = arguments
                known[n] = new = graph.create_node(n.op, n.target, tuple(args), kwargs, n.name)
                values[new] = new.meta["example_value"] = result
                new.meta["stack_trace"] = n.meta.get("stack_trace", "")
            else:
                known[n] = result
    results = tuple(known[n] for n in region.exits)
    if not all(isinstance(n, fx.Node) for n in results):
        raise _Unknown
    graph.output(results)
    return graph, rows, results


def alike(gm: fx.GraphModule, body: Body) -> list[int]:
    """For each value without tokens the first that is the same: what every chunk computes of weights for itself."""
    memories = {storage(target) for n in gm.graph.nodes for target in written_inputs(n)} - {None}
    written = {n for n in gm.graph.nodes if memories and storage(n) in memories}
    others = body.others
    return [
        next((i for i, other in enumerate(others[:k]) if made_alike(n, other, written)), k)
        for k, n in enumerate(others)
    ]


def _number(size: Any) -> int:
    number = size if isinstance(size, int) else hint_of(size)
    if number is None:
        raise _Unknown
    return number


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(_holds_tensors(x) for x in value))


def _restarting(
    reading: Reading, body: Body, results: tuple[fx.Node, ...], count: int, slots: int
) -> fx.GraphModule | None:
    """The function whose loop begins anew where a document does; None if it is no such loop."""
    graph, members = reading.graph, _members(reading)
    if not members or reading.aligned:
        return None
    for n, dim in zip(results, body.returned, strict=True):
        of_chunks = Merged(dim, slots, n)
        if reading.kinds[n] is MIXED:
            reading.kinds[n] = of_chunks
        elif reading.kinds[n] != of_chunks:
            return None
    inside = set(members)
    exits = tuple(n for n in members if any(user not in inside for user in n.users))
    loop = carried_of(reading, Region(members, (), (), exits, ()), least=2)
    if loop is None or not loop.resets:
        return None
    memory = reading.memory
    places = [n for n in graph.nodes if n.op == "placeholder"]
    with graph.inserting_after(places[-1]):
        starts = graph.placeholder("starts")
    moved: dict[fx.Node, fx.Node] = {}
    carried.rewrite(graph, loop, starts, moved)
    final, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for n in graph.nodes:
        if n.op == "output":
            final.output(tuple(values[moved.get(x, x)] for x in results))
            continue
        values[n] = final.placeholder(n.name) if n.op == "placeholder" else copied(final, n, values)
        if blank(n) and storage(n) in memory:
            values[n] = final.call_function(own_memory, (values[n], values[places[0]]))
    final.eliminate_dead_code()
    final.lint()
    return fx.GraphModule(reading.gm, final)
