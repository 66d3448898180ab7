"""Is a number that a loop is at one of the entries of a sequence, in every batch?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from packpass._compat import values_of
from packpass.capture.dynamo import expression
from packpass.capture.part_ends import counts_up
from packpass.capture.region import Region
from packpass.capture.state import active
from packpass.capture.watch import settle

if TYPE_CHECKING:
    from packpass.capture.dynamo import VariableTracker as Value


def in_range(key: Any, length: Value) -> bool:
    """Is ``0 <= key < length`` in every iteration of the open loop, where its index is below the loop's length?"""
    if not active.regions:
        return False
    region = active.regions[-1]
    ahead = key - expression(region.index)
    settle(length, region.whole)
    spare = expression(length) - expression(region.whole) - ahead
    if not getattr(spare, "is_number", True):
        spare = _where_there_are_documents(region, spare)
    return all(getattr(n, "is_number", True) and bool(n >= 0) for n in (ahead, spare))


def is_below(key: Any, length: Value) -> bool:
    """Is ``0 <= key < length`` of a number that grows with the number of the document, such as ``2 * i + 1``?"""
    region, number = active.regions[-1], sympy.sympify(key)
    index = expression(region.index)
    if not counts_up(number, index):
        return False
    spare = sympy.expand(expression(length) - 1 - number.subs(index, expression(region.whole) - 1))
    # Half the documents, rounded down, are at most half of them.
    for part in [p for p in spare.atoms(sympy.Function) if type(p).__name__ == "FloorDiv"]:
        below = part.args[1].is_Integer and part.args[1] > 0 and spare.is_polynomial(part)
        if below and sympy.Poly(spare, part).LC().is_negative:
            spare = sympy.expand(spare.subs(part, part.args[0] / part.args[1]))
    return spare.is_nonnegative is True


def _where_there_are_documents(region: Region, number: Any) -> Any:
    """What a number is wherever the loop runs, if it is one number, and how often that is is a size that is data."""
    env, length = region.tx.output.shape_env, sympy.sympify(expression(region.whole))
    found, never = values_of(env, number), length.subs(dict.fromkeys(length.free_symbols, 0)) == 0
    return found[1] if found is not None and never and length.free_symbols == number.free_symbols else number
