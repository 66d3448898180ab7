"""When each pass runs: one declaration per pass, in the order in which they run. Everybody else reads this list.

To add a pass, write it in ``passes/`` and declare it here; that is all. Options are checked against these names before
torch is imported, so a declaration names its code, which is imported when it is first asked for.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Tier = Literal["exact", "numerics", "fix"]
"""What a pass does to results: nothing; nothing but the order of sums, where they count; or what they should have been.
"""

Stage = Literal["loops", "graph", "inductor"]
"""Which graphs a pass sees: those of frames in which a loop over documents was captured; every graph of Dynamo's; or
Inductor's own graphs, after autograd."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass, or one part of a pass that runs at several places. ``"module:function"`` names code.

    ``entry``: ``run(gm, context) -> list[Rewrite | Refusal]``, with the context of `passes.context`; of the last stage
    a function that is told in `packpass.engine.after_autograd`.
    """

    name: str
    """What reports and ``packpass.disable`` call it."""
    entry: str
    tier: Tier = "exact"
    stage: Stage = "graph"
    option: str = ""
    """The user's option without which the pass does not run."""
    whole: bool = False
    """Does it look at a graph and its subgraphs together? Else it runs on each of them."""
    prepare: str = ""
    """``prepare(graph)``, done to a graph once, before the first pass that asks for it."""
    after: tuple[str, ...] = ()
    """Passes that must have run before, because this one reads what they write."""
    exchanges: bool = False
    """Does it put something else in place of what ranks exchange? Then no rank may do so alone."""
    operations: str = ""
    """``operations() -> frozenset[str]``: what it has rules for, for the table of ``python -m packpass ops``."""

    @property
    def module(self) -> str:
        """Where it is written; the first line of that module says what it does."""
        return self.entry.partition(":")[0]


_LENGTHS = "passes.lengths:prepare_lengths"

PASSES: tuple[Pass, ...] = (
    # Before the others: what is made from numbers of documents is in front of their loops then.
    Pass("vectorize_counters", "passes.vectorize_counters:run", stage="loops", prepare=_LENGTHS),
    Pass(
        "fuse_boundary_exchange",
        "passes.fuse_boundary_exchange:run",
        stage="loops",
        prepare=_LENGTHS,
        exchanges=True,
        operations="passes.fuse_boundary_exchange:operations",
    ),
    # Before loops are vectorised: what a loop sends is cut out of one exchange, and the loop is like any other then.
    Pass(
        "fuse_all_to_all",
        "passes.fuse_all_to_all.loops:run",
        stage="loops",
        whole=True,
        prepare=_LENGTHS,
        exchanges=True,
    ),
    # Before those that cut rows by boundaries: rows of sizes make the rows.
    Pass("ragged_grids", "passes.ragged_grids:run", stage="loops"),
    Pass(
        "vectorize_segments",
        "passes.vectorize_segments:run",
        stage="loops",
        prepare=_LENGTHS,
        after=("fuse_boundary_exchange", "fuse_all_to_all"),
        operations="passes.vectorize_segments:operations",
    ),
    # Where documents have no form as a whole row.
    Pass("ragged_grids", "passes.ragged_grids:run_documents", stage="loops", after=("vectorize_segments",)),
    # All-to-alls that stand side by side, those that were made of loops included.
    Pass(
        "fuse_all_to_all",
        "passes.fuse_all_to_all:run",
        whole=True,
        exchanges=True,
        after=("fuse_all_to_all", "vectorize_segments"),
    ),
    Pass("remap_boundaries", "passes.remap_boundaries:run", tier="fix", whole=True, after=("vectorize_segments",)),
    Pass(
        "pack_shifts",
        "passes.pack_shifts:run",
        tier="fix",
        whole=True,
        after=("vectorize_segments", "remap_boundaries"),
        operations="passes.pack_shifts:operations",
    ),
    Pass("compose_rolls", "passes.compose_rolls:run", after=("vectorize_segments", "pack_shifts")),
    Pass(
        "isolate",
        "passes.isolate:run",
        tier="fix",
        option="isolate",
        whole=True,
        after=("pack_shifts", "compose_rolls"),
        operations="passes.isolate:operations",
    ),
    Pass(
        "eliminate_padding",
        "passes.eliminate_padding:run",
        tier="numerics",
        option="eliminate_padding",
        whole=True,
        after=("compose_rolls",),
        operations="passes.eliminate_padding:operations",
    ),
    Pass(
        "bucket_all_to_all",
        "passes.bucket_all_to_all:bucket",
        stage="inductor",
        option="bucket_bytes",
        exchanges=True,
    ),
)


def names() -> tuple[str, ...]:
    """Every name that ``packpass.disable`` takes."""
    return tuple(dict.fromkeys(p.name for p in PASSES))


def names_of_tiers(*tiers: Tier) -> frozenset[str]:
    return frozenset(p.name for p in PASSES if p.tier in tiers)
