"""Which nodes of a Dynamo graph write to memory (see `packpass.layout.mutation`)."""

from __future__ import annotations

from packpass.layout.mutation import mutated_after as mutated_after
from packpass.layout.mutation import written_inputs as written_inputs
