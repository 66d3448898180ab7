"""Lists of point-to-point messages that a loop over documents fills: all are sent, or waited for, behind it.

::

    for s, e in documents:
        got = torch.empty_like(x[s:e][:1])
        ops += [P2POp(isend, x[s:e][:1], previous), P2POp(irecv, got, following)]
        received.append(got)
    for work in batch_isend_irecv(ops):
        work.wait()

A document's messages are sent and waited for where its iteration ends, as if it was alone. That is the same as long as
nothing that comes in between looks at what is received, or changes what is sent: other documents do not, as the passes
prove of memory that is a document's own, and for the code behind the loop it is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from packpass import markers
from packpass.capture import nothing, p2p, plain, plain_messages
from packpass.capture.dynamo import (
    ConstDictVariable,
    ListVariable,
    TupleVariable,
    UserDefinedObjectVariable,
    attribute,
    call,
)
from packpass.capture.state import active, location_of, refuse
from packpass.capture.tallies import end_of
from packpass.semantics import is_tensor, storage
from packpass.semantics.effects import written_inputs

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems

_READING = {markers.LIST_LAST, *markers.LIST_USES} - {markers.LIST_GET}
"""What looks at the entries of a list, which shares memory with them, as what is taken out of it does."""
_PASSING = (markers.MARKERS | markers.MESSAGES) - _READING


def call_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``batch_isend_irecv`` of such a list, or what `p2p` makes of the call; None if that is nothing."""
    if torch.distributed.is_available() and function is torch.distributed.batch_isend_irecv:
        (ops,) = [value.realize() for value in (*args, *kwargs.values())]
        if isinstance(ops, ListVariable) and getattr(ops.items, "region", None) is not None:
            return _send(tx, cast("CollectedItems", ops.items))
    return p2p.call_function(tx, function, args, kwargs)


def is_message(value: Any) -> bool:
    """Is this a ``P2POp`` of a loop over documents?"""
    return isinstance(value, UserDefinedObjectVariable) and value.python_type() is plain_messages.Message


def are_messages(items: Any) -> bool:
    """Are all entries that a loop over documents has put into a list ``P2POp``s?"""
    values = [value for values in getattr(items, "values", ()) for value in values]
    return bool(values) and all(is_message(value) for value in values)


def complete(tx: Any, value: Any, waits: list[int]) -> Any:
    """What a list gets for a request of this iteration, which is waited for where the iteration ends: one that is
    complete. Numbers of such requests, also those in a row of several values, go to ``waits``; other values are what
    they are."""
    region = active.regions[-1]
    for request in _requests_in(value):
        made_in, iteration, number = active.trace.requests[request]
        if made_in is not region or region.iteration != iteration:
            raise p2p.refuse_request(tx, "a list of another iteration or loop")
        waits.append(number)
    return completed(tx, value)


def completed(tx: Any, part: Any) -> Any:
    """The same of a part of a row, which may be several requests; they cannot be changed then."""
    if part in active.trace.requests:
        return call(tx, plain_messages.done)
    if nothing.is_wait(part):
        return attribute(tx, call(tx, plain_messages.done), "wait")
    entries = _entries(part)
    if entries and type(part) is not ConstDictVariable and all(one in active.trace.requests for one in entries):
        return TupleVariable([call(tx, plain_messages.done) for _ in entries])
    return part


def _requests_in(value: Any) -> list[Any]:
    """The requests that a value is, or consists of."""
    if value in active.trace.requests:
        return [value]
    if nothing.is_wait(value):
        return _requests_in(nothing.object_of(value))
    return [request for entry in _entries(value) for request in _requests_in(entry)]


def _entries(value: Any) -> list[Any]:
    """Those of a list, a tuple or a dict that the program has written."""
    if type(value) is ConstDictVariable:
        return [entry.realize() for entry in value.items.values()]
    known = type(value) in (ListVariable, TupleVariable) and type(value.items) is list
    return [entry.realize() for entry in value.items] if known else []


def wait_for(tx: Any, waits: list[int]) -> None:
    """The iteration ends."""
    for number in waits:
        tx.output.create_proxy("call_function", markers.WAIT, (number,), {})
    waits.clear()


def _send(tx: Any, items: CollectedItems) -> Any:
    """``batch_isend_irecv`` of such a list, behind its loop: the list of its requests, which are complete."""
    parts = [items, *items.also]
    for part in parts:
        region = part.region
        elsewhere = active.regions or tx.output.graph is not end_of(region, 0).graph  # a loop, a checkpoint
        if part.sent or elsewhere or not region.closed or region.skips or part.lacking:
            reason = "messages of a list that are not sent once, behind the loop that has filled it, for all documents"
            raise refuse("message-wait", reason, region.location, region.key)
        part.sent = True
        for iteration, values in enumerate(part.values):
            end = end_of(region, iteration)
            with end.graph.inserting_before(end):
                wait_for(tx, [p2p.post(tx, value) for value in values])
    for part in parts:
        _check_between(tx, part)
    return call(tx, plain.of_same, items.entries(), call(tx, plain_messages.done))


def _check_between(tx: Any, items: CollectedItems) -> None:
    """Nothing behind the loop has looked at what is received, or changed what is sent."""
    region = items.region
    end = end_of(region, len(items.values) - 1)
    found = [node for node in end.graph.nodes if node.target in markers.MESSAGES and is_tensor(node.args[0])]
    sent, received = ({storage(n.args[0]) for n in found if n.target is kind} for kind in (markers.SEND, markers.RECV))
    for node in end.graph.nodes:
        if not end < node or node.target in _PASSING:
            continue
        used = {storage(n) for n in node.all_input_nodes if is_tensor(n)}
        written = {storage(target) for target in written_inputs(node)}
        is_view = is_tensor(node) and storage(node) in received and not written
        if (used & received and not is_view) or (used & sent and written & {*sent, None}):
            reason = "what is received is looked at, or what is sent is changed, before the messages of a list are sent"
            raise refuse("message-wait", f"{reason} (at {location_of(tx)})", region.location, region.key)
