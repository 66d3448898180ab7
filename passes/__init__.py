"""The passes of packpass, in the order in which they run. Import this package through `packpass._passes`."""

from __future__ import annotations

from passes import compose_rolls, vectorize_segments
from passes.context import PassContext as PassContext

PACKPASS = True
"""Tells our package from any other that is called ``passes``."""

ORDER = (vectorize_segments, compose_rolls)
