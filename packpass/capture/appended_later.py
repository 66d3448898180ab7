"""What the program puts behind the entries of a list that a loop over documents has filled: ``ends.append(total)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from packpass.capture import entry_rows, plain_numbers
from packpass.capture.dynamo import ListVariable, SymNodeVariable, ValueMutationNew, call, emit
from packpass.capture.tallies import number
from packpass.markers.entries import read_from
from packpass.semantics.effects import mutated_after

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems


def is_put_behind(items: CollectedItems, value: Any) -> bool:
    """Is it a tensor behind tensors, or a number behind numbers, which the list goes on with now?"""
    if items.may_be_among(value):
        items.after.append(value)
        return True
    known = items.numbers is not None and items.columns is None and (items.before, items.after) == ([], [])
    if not known or not (isinstance(value, SymNodeVariable) or number(value) is not None):
        return False
    tx = items.region.tx
    if entry_rows.as_tensor(items.region, None, items.numbers) is None:
        return False
    node: Any = value.as_proxy().node if isinstance(value, SymNodeVariable) else None
    read = read_from(node)
    if isinstance(read, fx.Node) and not mutated_after(read.graph, read, node):
        # The end of the last document, say: a boundary, which nobody need read on the host.
        value = emit(tx, "reshape", tx.output.current_tracer.proxy(read), (1,), method=True)
    more = ListVariable([value], mutation_type=ValueMutationNew())
    items.numbers = call(tx, plain_numbers.behind, items.numbers, more)
    return True
