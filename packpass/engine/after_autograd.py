"""Runs `passes.bucket_all_to_all` after autograd, in Inductor's own graphs, and records what it did there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from packpass._compat import custom_graph_pass, custom_graph_passes
from packpass._options import Options
from packpass.decisions.records import Rewrite, active
from packpass.engine import passes
from packpass.engine.counting import count
from packpass.reports.report import traced_transaction

HOOK = "post_grad_custom_pre_pass"


def inductor_options(
    gm: fx.GraphModule, inputs: Sequence[Any], settings: Options, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Inductor's options for one Dynamo graph: the user's own, and this pass where it could find something.

    A user's own pass at the same place runs first. While a report is collected, compiled graphs are not taken from a
    cache: what was joined in them is not known.
    """
    given = dict(options)
    bucketing = passes.load().bucket_all_to_all
    if bucketing.NAME in settings.disable or not settings.bucket_bytes or not bucketing.could_matter(gm, inputs):
        return given
    key = next((key for key in given if key.replace("-", "_") == HOOK), HOOK)
    reported = bool(active())
    known = count(gm)[1] if reported else None
    run = functools.partial(_run_and_record, settings=settings, known=known)
    given[key] = custom_graph_passes(
        given.get(key), custom_graph_pass(run, functools.partial(bucketing.uuid, settings))
    )
    if reported:
        given.update(fx_graph_cache=False, fx_graph_remote_cache=False)
    return given


def _run_and_record(graph: fx.Graph, settings: Options, known: int | None) -> None:
    """``known``: the collectives of the Dynamo graph, which a report counts."""
    bucketing = passes.load().bucket_all_to_all
    before = sum(bucketing.is_collective(node) for node in graph.nodes)
    results = bucketing.bucket(graph, settings)
    # The partitioner may have moved some of the backward's into the forward graph; no report has counted these.
    moved = 0 if known is None else max(0, before - known)
    with traced_transaction() as tx:
        for item in results:
            if isinstance(item, Rewrite):
                less = min(moved, item.details["collectives_saved"])
                details = {**item.details, "collectives_saved": item.details["collectives_saved"] - less}
                item, moved = dataclasses.replace(item, details=details), moved - less
            tx.record(item)
