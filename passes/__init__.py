"""The passes of packpass, in the order in which they run. Import this package through `packpass._passes`."""

from __future__ import annotations

from passes import compose_rolls, pack_shifts, vectorize_segments
from passes.context import PassContext as PassContext

PACKPASS = True
"""Tells our package from any other that is called ``passes``."""

ORDER = (vectorize_segments, pack_shifts, compose_rolls)
NEEDS_CAPTURE = (vectorize_segments,)
"""Passes that only look at frames in which a loop over documents was captured."""


wants_boundaries = pack_shifts.wants_boundaries
"""Asked about a finished graph whose frame has boundaries that the code does not use."""

mentions_boundaries = pack_shifts.mentions_boundaries
"""A quick look: is there anything in a graph that the layout analysis could start from?"""
