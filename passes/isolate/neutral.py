"""What lies behind a document's end, made to change nothing where it would be counted, summed or chosen.

A padded document may not be read by a mean over the row, a softmax over all keys or a product that sums over slots.
What an operation does along an axis says which value changes nothing there (`packpass.semantics.meaning`: 0 for a sum
and a product, -inf for the largest value): every operand that is read along an axis of the row's length gets it behind
the document's end first. A mean divides by the number of slots that there are. Where the meaning names no such value
(softmax, sorting), the pass tries a few.

That an axis of the row's length has the document's slots in front is a guess; `passes.isolate.trial` puts it to the
test, like everything else that is done to a region.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.semantics import call_of, meaning_of
from packpass.semantics.meaning import Contracted, Mixed, Reduced, Role, Scanned
from passes.isolate.kinds import MIXED, Row
from passes.isolate.reading import Reading


@dataclasses.dataclass(frozen=True)
class Neutral:
    """What has to be done to one call.

    ``fills``: by operand and dimension, what its slots behind the end must hold. ``counts``: does the call divide
    by the number of slots of that dimension? ``hides``: is it an attention, whose keys behind the end no query may
    see? ``row_queries``: are its queries slots of the row, too?
    """

    fills: dict[tuple[fx.Node, int], float]
    counts: bool = False
    hides: bool = False
    row_queries: bool = False

    def __bool__(self) -> bool:
        return bool(self.fills or self.hides)


NOTHING = Neutral({})


def neutral_of(reading: Reading, node: fx.Node, other: float) -> Neutral:
    """What keeps a call from seeing what lies behind the end; ``other``: where the meaning does not say."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None or call.in_place:
        return NOTHING
    fills: dict[tuple[fx.Node, int], float] = {}
    counts = hides = False
    for relation in meaning.relations:
        for operand, axes in zip(call.operands, relation.operands, strict=True):
            if not (isinstance(reading.kinds[operand.node], Row) or reading.kinds[operand.node] is MIXED):
                continue
            for dim, axis in enumerate(axes or ()):
                roles = [relation.roles[loop] for loop in axis.loops if loop in relation.roles]
                if len(axis.loops) != 1 or not roles or not reading.of_length(operand.value.shape[dim]):
                    continue
                if isinstance(roles[0], Mixed) and roles[0].together and "attn_mask" in call.arguments:
                    hides = call.get("is_causal") is not True
                elif (fill := _fill(roles[0], other)) is not None:
                    fills[operand.node, dim] = fill
                    counts = counts or (isinstance(roles[0], Reduced) and roles[0].counts)
    query = call.of("query")
    row_queries = hides and query is not None and reading.of_length(query.value.shape[-2])
    return Neutral(fills, counts, hides, row_queries)


def _fill(role: Role, other: float) -> float | None:
    """The value that changes nothing; None where nothing behind the end is read."""
    if isinstance(role, Scanned):
        return None
    if isinstance(role, Contracted):
        return 0.0
    if isinstance(role, Reduced):
        known: Any = role.identity
        return 0.0 if role.counts else other if known is None else float(known)
    return other
