"""The passes of packpass. When each of them runs is declared in `packpass._passes`, which `packpass.engine` reads."""

from __future__ import annotations

import packpass.ops  # noqa: F401  (registers the operators that the passes put into graphs)
from passes.context import PassContext as PassContext
from passes.mentions import mentions_boundaries as mentions_boundaries
from passes.pack_shifts import wants_boundaries as wants_boundaries

PACKPASS = True
"""Tells our package from any other that is called ``passes``."""
