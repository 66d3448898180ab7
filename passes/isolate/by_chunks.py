"""What is done about code that goes by how long the row is, as a loop over its chunks does."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from torch import fx

from packpass.layout import Layouts, Packing
from passes.isolate.build import Body
from passes.isolate.chunked import alike, check_steps, chunked_of
from passes.isolate.lengths import Lengths
from passes.isolate.trial import differs_in_chunks
from passes.refused import Refused

log = logging.getLogger("packpass.passes.isolate")


def in_chunks(
    gm: fx.GraphModule,
    layouts: Layouts,
    packing: Packing,
    bodies: list[tuple[Body, float]],
    values: dict[fx.Node, Any],
    lengths: Lengths,
) -> tuple[list[tuple[Body, float]], tuple[int, int] | None]:
    """The parts in the form for rows of chunks, if all of them have it, and how many chunks of how many slots."""
    found = [(body, fill, chunked_of(gm, layouts, packing, body, lengths)) for body, fill in bodies]
    forms = {(chunked.count, chunked.slots) for *_, chunked in found if chunked is not None}
    if len(forms) != 1 or any(chunked is None for *_, chunked in found):
        return bodies, None
    done = []
    for body, fill, chunked in found:
        assert chunked is not None
        reason = differs_in_chunks(body, chunked, alike(gm, body), values, fill)
        if reason:
            log.debug("not in rows of chunks: %s", reason)
            return bodies, None
        done.append((dataclasses.replace(body, function=chunked.function), fill))
    return done, forms.pop()


def check_decisions(
    gm: fx.GraphModule, layouts: Layouts, packing: Packing, bodies: list[Body], lengths: Lengths
) -> None:
    """Raises `Refused` where the code may be another one for a document, which is shorter than the row."""
    if lengths.chunks is None or not bodies:
        lines = "; ".join(dict.fromkeys(decision.text for decision in lengths.decisions))
        raise Refused(
            "length-branch",
            f"the code goes by how long the row is, and a document is shorter: {lines}. Packpass sees the way of the "
            "whole row only; decide by something that is the same for every document, or per document",
        )
    for body in bodies:
        check_steps(gm, layouts, packing, body, lengths.chunks)
