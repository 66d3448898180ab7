"""The last word: `packpass.audit`'s question, put to the rewritten graph with the example of the call.

The same documents are probed, their tokens changed and results compared as there (`packpass.probing`); only that a
graph is run here, of which it is known along which dimension every value is packed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from packpass.probing.compare import compare, probes
from packpass.probing.documents import Documents, from_boundaries
from packpass.probing.gradients import Recorded, foreign_gradients, halves
from packpass.probing.tokens import Input, plan

log = logging.getLogger("packpass.passes.isolate")

MOST = 3
"""Documents that are changed, as in `packpass.audit`."""


def leak_of(
    gm: fx.GraphModule, inputs: Sequence[Any], rows: Mapping[fx.Node, int], kept: Mapping[fx.Node, int], cu: Tensor
) -> str:
    """How one document of the example still sees another; empty if none does.

    Args:
        gm: the graph. inputs: all of its inputs.
        rows: the packed dimension of every row. kept: of those that are compared.
        cu: boundaries from 0 to the row's end.
    """
    documents = Documents(from_boundaries(cu, int(cu[-1])), "isolate")
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    entries = [
        Input(node.name, node.name, value, rows[node])
        for node, value in zip(places, inputs, strict=True)
        if node in rows and isinstance(value, Tensor)
    ]
    changes = plan(entries, documents)
    if len(documents.numbers) < 2 or not changes.changed or not kept:
        log.debug("nothing to tell apart in the example: %d documents, %s", len(documents.numbers), changes.held)
        return ""
    runs = _Runs(gm, inputs, kept)

    def others(label: int) -> list[Any]:
        copies = _copies(inputs)
        at = {node.name: value for node, value in zip(places, copies, strict=True) if isinstance(value, Tensor)}
        changes.exchange(at, documents, label)
        return copies

    along = {node.name: dim for node, dim in kept.items()}
    verdict, base, *_ = compare(runs, others, documents, probes(documents, MOST), along=along)
    for path, value in base.items():
        if isinstance(value, Tensor) and bool(value.isnan().any()):
            return f"{path} has values that are no numbers"  # NaN is equal to NaN: nothing would be compared
    for label, hits in verdict.dirty.items():
        path, hit = next(iter(hits.items()))
        return f"{path} of document {hit.documents[0] - 1} still changes with document {label - 1}"
    if torch.is_grad_enabled():
        return _leak_of_gradients(gm, inputs, rows, kept, documents)
    return ""


def _leak_of_gradients(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    rows: Mapping[fx.Node, int],
    kept: Mapping[fx.Node, int],
    documents: Documents,
) -> str:
    try:
        recorded = _recorded(gm, inputs, rows, kept)
        found = [foreign_gradients(recorded, half, 1) for half in halves(documents)] if recorded is not None else []
    except RuntimeError as error:  # an input is written in place, or has no gradient
        log.debug("gradients were not compared: %s", error)
        return ""
    names = [name for hits in found for name in hits]
    return f"a gradient of one document reaches {names[0]} of another" if names else ""


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [x.detach().clone() if isinstance(x, Tensor) else x for x in inputs]


class _Keeping(fx.Interpreter):
    """Keeps the values of some nodes. ``seen`` is shown every value that is made."""

    def __init__(
        self, gm: fx.GraphModule, kept: Mapping[fx.Node, int], seen: Callable[[fx.Node, Any], None] | None = None
    ) -> None:
        super().__init__(gm)
        self.kept, self.seen = kept, seen
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self.seen is not None:
            self.seen(n, value)
        if n in self.kept:
            self.values[n.name] = value
        return value


class _Runs:
    """Runs of the graph with the same random numbers."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], kept: Mapping[fx.Node, int]) -> None:
        self.gm, self.inputs, self.kept = gm, inputs, kept
        self.state_after: Tensor | None = None

    def run(self, given: Sequence[Any] | None = None, /) -> dict[str, Any]:
        keeping = _Keeping(self.gm, self.kept)
        with torch.no_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(0)
            keeping.run(*_copies(self.inputs if given is None else given))
            self.state_after = torch.get_rng_state()
        return keeping.values


def _recorded(
    gm: fx.GraphModule, inputs: Sequence[Any], rows: Mapping[fx.Node, int], kept: Mapping[fx.Node, int]
) -> Recorded | None:
    """A run whose gradients can be asked for: of rows that are given, and of the first numbers made of tokens."""
    tokens: set[fx.Node] = set()
    wanted: dict[fx.Node, Tensor] = {}

    def seen(node: fx.Node, value: Any) -> None:
        if not isinstance(value, Tensor) or node not in rows:
            return
        if node.op != "placeholder" and not any(n in tokens for n in node.all_input_nodes):
            return
        if not value.is_floating_point():
            tokens.add(node)
        elif torch.is_grad_enabled() and not value.requires_grad:
            wanted[node] = value.requires_grad_()

    keeping = _Keeping(gm, kept, seen)
    with torch.enable_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        keeping.run(*_copies(inputs))
    by_name = {node.name: dim for node, dim in kept.items()}
    outputs = {name: x for name, x in keeping.values.items() if isinstance(x, Tensor) and x.requires_grad}
    if not wanted or not outputs:
        return None
    along = {id(x): (by_name[name],) for name, x in outputs.items()}
    along |= {id(x): (rows[node],) for node, x in wanted.items()}
    return Recorded([(node.name, x) for node, x in wanted.items()], list(outputs.values()), along)
