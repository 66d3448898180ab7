"""Boundaries that a model is given but does not look at: made an input of the graph where a naive shift needs them.

Dynamo drops arguments that nothing uses, and code written for rows of one document has no use for ``cu_seqlens``. When
a graph is finished, the passes are asked whether they would use boundaries; only then are they added, so a frame
without such a shift is compiled as under stock torch. Rows whose sizes are symbols of their own are then taken to be
equally long by a guard, because one vector of boundaries can cut only rows of one length.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import fx

from packpass import markers
from packpass._options import Options
from packpass.capture import tensor_lists
from packpass.capture.dynamo import LocalSource, VariableTracker, attribute, constant, dynamic_sources
from packpass.capture.frame import FrameState, Mode
from packpass.capture.state import active, frame_state, react, tracing_error
from packpass.decisions.records import RefusedError, record
from packpass.layout.arguments import Argument, boundary_arguments
from packpass.layout.sources import BOUNDARY_NAMES, LayoutError, last_name, source_name
from packpass.semantics.dialect import normalise

log = logging.getLogger("packpass.capture.inputs")


class Client(Protocol):
    """What capture asks the backend and the passes, which it does not import."""

    def options_of(self, compiler_fn: Any) -> Options | None:
        """The options, if a frame is compiled by packpass; None for any other backend."""

    def backend_for(self, compiler_fn: Any) -> Any:
        """What a frame is compiled with in place of ``compiler_fn``."""

    def wants_boundaries(self, view: Any, stand_in: fx.Node | None) -> Any:
        """Whether a pass would use boundaries in this graph, and under which conditions."""

    def frame_starts(self, tx: Any, frame: FrameState) -> None:
        """A frame of ours is about to be traced."""

    def frame_ended(self, tx: Any, frame: FrameState, error: Exception | None) -> None:
        """It was traced to its end or to a graph break, or failed with an error that stays stock torch's."""

    def trace_ended(self) -> None:
        """Whatever came of it, be it that the frame is traced again."""


@dataclasses.dataclass(frozen=True)
class GraphView:
    """A graph that Dynamo is still building, as the layout analysis reads one: with its subgraphs as attributes."""

    graph: fx.Graph
    modules: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.modules[name]
        except KeyError:
            raise AttributeError(name) from None


def compile_graph(client: Client, original: Any, self: Any, tx: Any, rv: Any, *args: Any) -> Any:
    """``OutputGraph.compile_and_call_fx_graph``: the graph is complete; add the boundaries if a pass would use them."""
    options = client.options_of(self.compiler_fn)
    if active.frame is not None:
        tensor_lists.check_memory(self, rv)
    if options is not None and _by_name(options):
        try:
            found = list(boundary_arguments(self.root_tx.f_locals))
            if found:
                normalise([self.graph, *(m.graph for m in self.nn_modules.values() if isinstance(m, fx.GraphModule))])
            if found and _would_use(client, self, rv, found, options):
                _add(self.root_tx, found, options)
                if len(found) > 1:  # sizes of boundaries and of their padded twins may be told apart only now
                    with _with_output(self.graph, rv):
                        _settled(client, GraphView(self.graph, self.nn_modules), None)
        except LayoutError as error:
            raise tracing_error(error) from None
        except RefusedError:
            raise
        except Exception as error:  # a frame must not fail because its boundaries are not understood
            log.warning("boundaries are not used: %s: %s", type(error).__name__, error)
    return original(self, tx, rv, *args)


def _by_name(options: Options) -> bool:
    """May a pass use boundaries that are known by their name?"""
    return options.runs("isolate") or (options.fix_shifts == "auto" and options.runs("pack_shifts"))


def _inputs(graph: fx.Graph) -> dict[str, fx.Node]:
    """The inputs of a graph by the last name of their source."""
    places = itertools.takewhile(lambda node: node.op == "placeholder", graph.nodes)
    return {last_name(source_name(node) or ""): node for node in places}


def _would_use(client: Client, output_graph: Any, rv: Any, found: list[Argument], options: Options) -> bool:
    """Ask the passes, with the boundaries as if they were inputs; what they would leave alone is recorded now, unless
    they will see the boundaries anyway."""
    inputs = _inputs(output_graph.graph)
    missing = [a for a in found if a.name not in inputs and a.name in BOUNDARY_NAMES]
    stand_in = None
    if missing:
        stand_in = fx.Graph().placeholder(missing[0].name)
        stand_in.meta["example_value"] = missing[0].value
    view = GraphView(output_graph.graph, output_graph.nn_modules)
    with _with_output(output_graph.graph, rv):
        wish = _settled(client, view, stand_in)
    if not wish.wanted and not any(node.users for name, node in inputs.items() if name in BOUNDARY_NAMES):
        for refusal in wish.refusals:
            react(refusal, options)
            record(refusal)
    return bool(wish.wanted) or bool(missing and options.runs("isolate"))


def _settled(client: Client, view: GraphView, stand_in: fx.Node | None) -> Any:
    """What the passes wish for once sizes that are equal in this call are equal in all of them."""
    wish = client.wants_boundaries(view, stand_in)
    for _ in range(2):  # sizes of boundaries, then those of rows
        if not wish.if_equal:
            break
        for a, b in wish.if_equal:
            bool(a == b)  # true now, and a guard for later calls
        wish = client.wants_boundaries(view, stand_in)
    return wish


@contextlib.contextmanager
def _with_output(graph: fx.Graph, rv: Any) -> Iterator[None]:
    """The graph with the output that it is about to get."""
    node = graph.create_node("output", "output", (tuple(x.as_proxy().node for x in rv),), {})
    try:
        yield
    finally:
        graph.erase_node(node)


def _add(tx: Any, found: list[Argument], options: Options) -> None:
    """Wrap the arguments as Dynamo would have, had the code used them; a marker keeps them."""
    frame = frame_state(options)
    for argument in found:
        variable = active.trace.arguments.get(argument.local)
        if variable is None:  # a torch that makes no variable of an argument that the code does not read
            here = LocalSource(argument.local, is_input=True)
            variable = VariableTracker.build(tx, tx.f_locals[argument.local], here)
        source = f"L['{argument.local}']"
        dynamic = frame.mode is not Mode.STOCK and not argument.steps
        if dynamic:
            frame.dynamic_sources.add(source)  # the number of documents is data, not shape
        with dynamic_sources({source} if dynamic else set()):
            variable = variable.realize()
        for step in argument.steps:
            if step.attribute:
                variable = attribute(tx, variable, step.name)
            else:
                variable = variable.call_method(tx, "__getitem__", [constant(step.name)], {}).realize()
        tx.output.create_proxy("call_function", markers.BOUNDARIES, (variable.as_proxy(),), {})
