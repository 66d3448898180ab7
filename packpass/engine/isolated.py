"""Runs a graph whose tokens are mixed per document: what `passes.isolate` prepares, call by call.

Before each call the host reads the boundaries, in one transfer, because the longest document is a size. The graph is
compiled at the first call, once for every number of documents and tokens.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from packpass.capture.frame import FrameState
from packpass.decisions.records import Refusal, record
from packpass.engine.unpadded import Inner, Variants, dynamic_of
from packpass.layout import analyze
from packpass.layout.sources import belongs_to_module, source_name
from packpass.ops._document_plans import BATCHES, chunked_rows, fit, one_batch, several_batches, stretches
from packpass.ops._each_document import each_document
from packpass.semantics import example

if TYPE_CHECKING:
    from packpass.decisions.document_form import DocumentForm

log = logging.getLogger("packpass.isolated")

PLAN = 4
"""Inputs that a plan adds; one of rows of chunks adds one more."""


def isolated(form: DocumentForm, original: fx.GraphModule, inner: Inner) -> Callable[..., Any]:
    """A callable with the inputs that Dynamo knows of.

    ``original``: the graph as it was, which runs if the inner backend cannot compile the other one.
    """
    gm = form.graph
    size = PLAN if form.chunks is None else PLAN + 1
    places = [node for node in gm.graph.nodes if node.op == "placeholder"][:-size]
    dynamic = [dynamic_of(example(node)) for node in places]
    numbers = [i for i, node in enumerate(places) if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)]
    for node in gm.graph.nodes:  # fakes of a mode that the graph is not compiled in
        node.meta.pop("example_value", None)
    made: dict[tuple[int, ...], Plans] = {}
    """By the factor of the length of every batch, which is a number in what is compiled."""
    as_it_was = Variants(original, dynamic, numbers, inner)
    failed: list[Exception] = []

    def planned(*inputs: Any) -> tuple[Plans, list[Any]]:
        with torch.no_grad():
            boundaries, total = form.boundaries(*inputs)
            total = int(total)
            documents = stretches(checked(boundaries, total, form.declared), total)
            device, classes = boundaries.device, None
            if form.chunks is not None:
                plans = [chunked_rows(documents, total, device, *form.chunks)]
            else:
                classes = several_batches(documents, total, form.padded_to)
                shape = (form.padded_to, form.multiple)
                plans = [one_batch(part, total, device, *shape) for part in classes or [documents]]
        factors = tuple(slots.shape[2] for _, slots, *_ in plans)
        if factors not in made:
            spread = gm if classes is None else _in_batches(gm)
            made[factors] = Plans(
                spread, [*dynamic, *[None] * (size * len(plans))], numbers, inner, tokens=len(dynamic)
            )
        return made[factors], [x for plan in plans for x in plan]

    def run(*inputs: Any) -> Any:
        if failed:
            return as_it_was(*inputs)
        graph, plan = planned(*inputs)
        try:
            call = graph.ready((*inputs, *plan))
        except Exception as error:
            failed.append(error)
            _note(error)
            return as_it_was(*inputs)
        return call(*inputs, *plan)

    return run


def _in_batches(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with the plans of several batches in place of that of one."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    places = [node for node in graph.nodes if node.op == "placeholder"]
    last, plans = places[-1], [tuple(places[-PLAN:])]
    for k in range(1, BATCHES):
        made = []
        for node in plans[0]:
            with graph.inserting_after(last):
                last = graph.placeholder(f"{node.target}_{k}")
            made.append(last)
        plans.append(tuple(made))
    for node in graph.nodes:
        if node.target is each_document:
            node.args = (*node.args[:4], tuple(plans), *node.args[5:])
    return fx.GraphModule(gm, graph)


def _note(error: Exception) -> None:
    """Documents are not kept apart after all, and the user must know."""
    reason = (
        f"the inner backend does not compile the parts that run per document ({type(error).__name__}: {error}), so the "
        "model runs as it was and lets documents see each other; please report it"
    )
    warnings.warn(f"packpass: {reason}", stacklevel=3)
    record(Refusal("isolate", "emit", reason, "<unknown>"))


class Plans(Variants):
    """A graph that is compiled for every plan: all of its sizes are symbols of their own."""

    def _sizes(self, inputs: Any) -> list[tuple[frozenset[int], frozenset[int]]]:
        nothing: frozenset[int] = frozenset()
        count = self.tokens or 0
        given = [(found or nothing, nothing) for found in self.dynamic[:count]]
        # A plan's slots of the row are as many as the row's own: one symbol if that is one.
        row = (frozenset({0}), nothing) if any(self.dynamic) else (nothing, nothing)
        several = (nothing, frozenset({0}))
        if (len(inputs) - count) % PLAN:  # rows of chunks, whose form is a number
            return [*given, row, several, several, several, several]
        plan = [row, (nothing, frozenset({0, 1})), several, several]  # the multiple, dimension 2, stays a number
        return [*given, *plan * ((len(inputs) - count) // PLAN)]


def checked(cu_seqlens: Tensor, total: int, declared: bool) -> Tensor:
    """Boundaries that fit a row of so many slots."""
    if fit(cu_seqlens, total):
        return cu_seqlens
    if declared:
        values = cu_seqlens.tolist()
        shown = values if len(values) <= 12 else [*values[:6], "...", *values[-5:]]
        raise ValueError(
            f"packpass: boundaries {shown} do not fit a row of {total} slots: they must not decrease, and lie "
            f"between 0 and {total}"
        )
    return cu_seqlens.new_tensor([0, total])


def rows_of_one_length(gm: fx.GraphModule, frame: FrameState) -> set[str]:
    """Inputs by source whose packed dimension is a number in this trace, and could be a symbol in the next one.

    Whatever else has a dimension of that size goes with them: a number beside a symbol would make it one again.
    """
    if frame.code is None:
        return set()
    layouts = analyze(gm)
    places = [n for n in gm.graph.nodes if n.op == "placeholder" and isinstance(example(n), Tensor)]
    packed = [(n, found[0]) for n in places if (found := layouts.packed_dim(n)) is not None]
    sizes = [example(n).shape[dim] for n, dim in packed]
    lengths = {size for size in sizes if isinstance(size, int) and size > 1}
    if not lengths:
        return set()
    sources = {source_name(n) for n in places if lengths & {s for s in example(n).shape if isinstance(s, int)}}
    return {s for s in sources if s is not None and not belongs_to_module(s)} - frame.rows
