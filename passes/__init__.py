"""The passes of packpass, in the order in which they run. Import this package through `packpass.engine.passes`."""

from __future__ import annotations

from passes import bucket_all_to_all as bucket_all_to_all  # after autograd, not in ORDER
from passes import (
    compose_rolls,
    eliminate_padding,
    fuse_all_to_all,
    fuse_boundary_exchange,
    pack_shifts,
    remap_boundaries,
    vectorize_segments,
)
from passes.context import PassContext as PassContext
from passes.lengths import prepare_lengths as prepare_lengths

PACKPASS = True
"""Tells our package from any other that is called ``passes``."""

ORDER = (
    fuse_boundary_exchange,
    fuse_all_to_all.loops,
    vectorize_segments,
    fuse_all_to_all,
    remap_boundaries,
    pack_shifts,
    compose_rolls,
    eliminate_padding,
)
NEEDS_CAPTURE = (fuse_boundary_exchange, fuse_all_to_all.loops, vectorize_segments)
"""Passes that only look at frames in which a loop over documents was captured."""
OPT_IN = (eliminate_padding,)
"""Passes that run only if the option of their name is on."""


wants_boundaries = pack_shifts.wants_boundaries
"""Asked about a finished graph whose frame has boundaries that the code does not use."""

mentions_boundaries = pack_shifts.mentions_boundaries
"""A quick look: is there anything in a graph that the layout analysis could start from?"""


def rules_of() -> dict[str, frozenset[str]]:
    """The operations that each pass which interprets a graph has a rule for, by the pass."""
    from packpass.semantics.overview import operations
    from passes.eliminate_padding.machine import RULES as TOKENS
    from passes.fuse_boundary_exchange.machine import RULES as MESSAGES
    from passes.pack_shifts.registry import STRUCTURAL
    from passes.vectorize_segments.rules import DOCUMENTS, RULES, TOKENWISE

    # Two passes have a general rule, which takes every operation that has a meaning.
    known = frozenset(op.name for op in operations())
    return {
        "vectorize_segments": known | frozenset(RULES) | frozenset(TOKENWISE) | frozenset(DOCUMENTS) - {"*"},
        "pack_shifts": frozenset(STRUCTURAL),
        "fuse_boundary_exchange": frozenset(filter(lambda name: isinstance(name, str), MESSAGES)),
        "eliminate_padding": known | frozenset(TOKENS) - {"*"},
    }
