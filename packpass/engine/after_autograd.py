"""Runs passes after autograd, in Inductor's own graphs, and records what they did there.

The entry of such a pass is ``run(graph, settings) -> list[Rewrite | Refusal]``. Its module has, beside it,
``could_matter(gm, inputs)``, a cheap look at the graph before autograd, ``uuid(settings)``, which stands for the
pass in the keys of caches, and ``is_collective(node)``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from packpass._compat import custom_graph_pass, custom_graph_passes
from packpass._options import Options
from packpass._passes import Pass
from packpass.decisions.records import Rewrite, active
from packpass.engine import passes, regrouped
from packpass.engine.counting import count
from packpass.reports.report import traced_transaction

HOOK = "post_grad_custom_pre_pass"
_REGROUPED = functools.partial(str, "packpass regrouped 1")
"""What stands for `packpass.engine.regrouped` in the keys of caches."""


def inductor_options(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Options, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Inductor's options for one Dynamo graph: the user's own, and our passes where they could find something.

    A user's own pass at the same place runs first. While a report is collected, compiled graphs are not taken from a
    cache: what was joined in them is not known.
    """
    given = dict(options)
    found = [p for p in passes.running(settings, "inductor") if passes.module_of(p).could_matter(gm, inputs)]
    reported = bool(active())
    known = count(gm)[1] if found and reported else None
    for p in found:
        run = functools.partial(_run_and_record, p=p, settings=settings, known=known)
        given = _with(given, run, functools.partial(passes.module_of(p).uuid, settings))
    if regrouped.could_matter(gm):
        given = _with(given, regrouped.by_way_of_one, _REGROUPED)
    if found and reported:
        given.update(fx_graph_cache=False, fx_graph_remote_cache=False)
    return given


def _with(options: Mapping[str, Any], run: Callable[[fx.Graph], None], uuid: Callable[[], str]) -> dict[str, Any]:
    """The options with one more pass."""
    key = next((key for key in options if key.replace("-", "_") == HOOK), HOOK)
    return {**options, key: custom_graph_passes(options.get(key), custom_graph_pass(run, uuid))}


def _run_and_record(graph: fx.Graph, p: Pass, settings: Options, known: int | None) -> None:
    """``known``: the collectives of the Dynamo graph, which a report counts."""
    before = sum(passes.module_of(p).is_collective(node) for node in graph.nodes)
    results = passes.function(p.entry)(graph, settings)
    # The partitioner may have moved some of the backward's into the forward graph; no report has counted these.
    moved = 0 if known is None else max(0, before - known)
    with traced_transaction() as tx:
        for item in results:
            if isinstance(item, Rewrite):
                less = min(moved, item.claims.collectives_saved)
                claims = dataclasses.replace(item.claims, collectives_saved=item.claims.collectives_saved - less)
                item, moved = dataclasses.replace(item, claims=claims), moved - less
            tx.record(item)
