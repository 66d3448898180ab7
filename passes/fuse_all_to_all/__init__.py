"""One all-to-all instead of many.

Two entries in the order of passes. `loops`, before loops over documents are vectorised: sequences x sections of
all-to-all in a captured loop become one ``cp_to_hp`` / ``hp_to_cp`` of the whole row. This module's `run`, after that:
independent all-to-alls that stand side by side become one ``all_to_all_group``, and what is cut out of an exchanged row
is cut by the exchange (`tails`).
"""

from __future__ import annotations

from torch import fx

from packpass.decisions.records import Refusal, Rewrite
from passes.context import PassContext
from passes.fuse_all_to_all import loops as loops
from passes.fuse_all_to_all import straight, tails

NAME = "fuse_all_to_all"


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Fuse independent all-to-alls of one graph and its higher-order operators."""
    results = straight.run(gm, context)
    for m in [m for m in gm.modules() if isinstance(m, fx.GraphModule)]:
        if tails.run(m.graph):
            m.graph.lint()
            m.recompile()
    return results
