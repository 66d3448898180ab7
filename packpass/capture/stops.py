"""Loops that are left at the first document for which a condition holds: ``if lengths[i] == 0: break``, at padding.

Where the condition is one on entries of vectors, and nothing but entries is looked at before it, it is computed for all
documents in front of the loop, and the loop goes over those in front of the first for which it holds: how many these
are is data. The first trace finds the condition; the frame is traced again, and then no document leaves the loop.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.capture.again import Latest, times_before
from packpass.capture.code_loops import is_exit
from packpass.capture.dynamo import emit, size_of
from packpass.capture.entries import divides, made_of, made_of_tensor, numbers_made
from packpass.capture.frame import Mode
from packpass.capture.state import active, current_frame, restart
from packpass.semantics import example as example_of
from packpass.semantics import op_of
from packpass.semantics.effects import effects_of
from packpass.semantics.pointwise import COMPARISONS

if TYPE_CHECKING:
    from packpass.capture.region import Region


def passes_by(tx: Any, instruction: Any, value: Any, jumps_if: bool, region: Region) -> bool:
    """Is the branch one that leaves the loop, which no document does that the loop goes over now? Then tracing goes on
    where the loop does. Traces the frame again if that is new; False if it is another branch."""
    head = tx.indexof[region.head]
    taken = is_exit(tx, tx.indexof[instruction.target], region.head) if tx.indexof[instruction.target] > head else False
    fallen = is_exit(tx, tx.instruction_pointer, region.head)
    frame = current_frame()
    if taken == fallen or region.tx is not tx or len(active.regions) != 1 or frame.mode is not Mode.SYMBOLIC:
        return False
    made = condition_made(value.as_proxy().node, region)
    if made is None or divides(made) or not _looks_at_entries(region) or region.known.changed():
        return False
    stop = (made, jumps_if if taken else not jumps_if)
    place = (*region.key, times_before(region.key, region.id))
    known = frame.stops.get(place, {})
    if instruction.offset not in known:
        if frame.data_sizes is None or len(known) == MOST or (known and region.whole is region.length):
            return False
        frame.stops[place] = {**known, instruction.offset: stop}
        frame.data_sizes = True
        raise restart("a loop is left at the first document for which a condition holds")
    if region.whole is region.length:
        return False
    if known[instruction.offset] != stop:
        if frame.data_sizes is None:
            return False
        known[instruction.offset] = stop
        raise restart("a loop over other documents is left at the first for which a condition holds")
    if not taken:
        tx.jump(instruction)
    return True


MOST = 4
"""Conditions with which a loop may be left: ``if a or b: break`` are two."""


def shortened(tx: Any, key: Any, length: Any) -> Any:
    """How many documents are in front of the first that leaves a loop, of ``length``; that if none is known to."""
    stops = _known(tx, key)
    if not stops or active.regions:
        return length
    if hint_of(size_of(length)) == 1:
        bool(size_of(length) == 1)  # torch finds out when checks go by the symbol
    either: Any = None
    for made, leaves_if in stops.values():
        holds = numbers_made(tx, made, length)
        if holds is None:
            return length
        holds = holds if leaves_if else emit(tx, torch.logical_not, holds).as_proxy()
        either = holds if either is None else emit(tx, torch.logical_or, either, holds).as_proxy()
    stopped = emit(tx, torch.cumsum, either, 0).as_proxy()
    number = emit(tx, torch.sum, emit(tx, operator.eq, stopped, 0).as_proxy())
    return number.call_method(tx, "item", [], {})


def _known(tx: Any, key: Any) -> dict[int, Any]:
    """With which conditions a loop is left that begins now. One that has begun before is taken to go by the same of the
    vector that was made last in the same way, which the trace finds out."""
    frame = current_frame()
    times = times_before(key)
    if (*key, times) not in frame.stops and (*key, times - 1) in frame.stops:
        before, latest = frame.stops[(*key, times - 1)], Latest(tx.output.current_tracer.graph)
        frame.stops[(*key, times)] = {offset: (latest.of(made), out) for offset, (made, out) in before.items()}
    return frame.stops.get((*key, times), {})


def condition_made(condition: fx.Node, region: Region, iteration: int = -1) -> Any:
    """How a comparison of entries is made in an iteration (`packpass.capture.entries`); None of another condition."""
    if op_of(condition) not in COMPARISONS or condition.kwargs or len(condition.args) != 2:
        return None
    index, begin = region.indices[iteration], region.indices[0]
    parts = []
    for side in condition.args:
        tensor = isinstance(example_of(side), torch.Tensor)
        parts.append(made_of_tensor(side, index, begin) if tensor else made_of(side, index, begin))
    return None if None in parts else (getattr(operator, op_of(condition)), *parts)


def _looks_at_entries(region: Region) -> bool:
    """Has the iteration done nothing so far but to look at entries of vectors, which it may for one more document?"""
    if region.has_listed():
        return False
    node = region.begun.next
    while node.op != "root":
        value = example_of(node)
        number = isinstance(value, (int, torch.SymInt, torch.SymBool)) and node.target != torch.ops.aten.sym_size.int
        single = isinstance(value, torch.Tensor) and not value.dim() and not value.dtype.is_floating_point
        if node.target is not torch.ops.aten._assert_scalar.default and not (
            (number or single) and effects_of(node).repeatable
        ):
            return False
        node = node.next
    return True
