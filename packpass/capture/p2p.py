"""Point-to-point messages inside a loop over documents: ``isend``, ``irecv``, ``batch_isend_irecv`` and their waits.

Stock Dynamo breaks the graph at them. (With its experimental option it captures them, and Inductor's code for them
deadlocks.) Inside a captured loop they become marker ops, for `passes.fuse_boundary_exchange` to replace by one
exchange; no marker ever executes or reaches the inner backend. A frame in which one is left is traced again as stock
torch would, messages between graphs included.


The request itself is plain Python (`packpass.capture.plain_messages.Request`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from packpass.capture import plain_messages
from packpass.capture.dynamo import (
    GuardBuilder,
    ListVariable,
    TensorVariable,
    UserDefinedObjectVariable,
    ValueMutationNew,
    VariableTracker,
    call,
    callee,
    constant,
    install_guard,
)
from packpass.capture.frame import Mode
from packpass.capture.state import active, location_of, refuse
from packpass.markers import GROUP, RECV, SEND, WAIT


def call_function(tx: Any, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The functions that send and receive, and ``dist.P2POp(...)``, inside a loop over documents; None elsewhere."""
    frame, dist = active.frame, torch.distributed
    if frame is None or frame.mode is not Mode.SYMBOLIC or not active.regions or function not in _functions():
        return None
    arguments = _bound(function, args, kwargs)
    if function is dist.P2POp:
        message = call(tx, plain_messages.message, constant(len(active.trace.messages)))
        active.trace.messages[message] = arguments
        return message
    if function is not dist.batch_isend_irecv:
        return _request(tx, _posted(tx, function, arguments, "dst" if function is dist.isend else "src"))
    ops = arguments["p2p_op_list"]
    given = [item.realize() for item in ops.items] if isinstance(ops, ListVariable) else []
    items = [item for item in given if item in active.trace.messages]
    if not items or len(items) < len(given):
        raise refuse("body-not-traceable", "batch_isend_irecv of something else than new P2POps", location_of(tx))
    return ListVariable([_request(tx, post(tx, item)) for item in items], mutation_type=ValueMutationNew())


def post(tx: Any, message: Any) -> int:
    """The marker of a ``P2POp``, and its number."""
    arguments, dist = active.trace.messages[message], torch.distributed
    function = callee(arguments["op"])
    if function not in (dist.isend, dist.irecv):
        raise refuse("body-not-traceable", "a P2POp of something else than isend and irecv", location_of(tx))
    return _posted(tx, function, arguments, "peer")


def _request(tx: Any, number: int) -> VariableTracker:
    region = active.regions[-1]
    request: VariableTracker = call(tx, plain_messages.request, constant(number))
    active.trace.requests[request] = (region, region.iteration, number)
    return request


def _functions() -> tuple[Any, ...]:
    dist = torch.distributed
    return (dist.isend, dist.irecv, dist.batch_isend_irecv, dist.P2POp) if dist.is_available() else ()


def _wait(tx: Any, request: UserDefinedObjectVariable) -> VariableTracker:
    """`plain_messages.wait`."""
    region, iteration, number = active.trace.requests[request]
    if not active.regions or active.regions[-1] is not region or region.iteration != iteration:
        raise refuse_request(tx, "a wait outside of the iteration")
    tx.output.create_proxy("call_function", WAIT, (number,), {})
    made: VariableTracker = constant(True)
    return made


def refuse_request(tx: Any, what: str) -> Exception:
    return refuse("message-wait", f"{what} of a point-to-point request", location_of(tx))


def _refuse_request(tx: Any, what: Any) -> VariableTracker:
    raise refuse_request(tx, str(what.as_python_constant()))


QUESTIONS: dict[Any, Callable[..., Any]] = {plain_messages.wait: _wait, plain_messages.refuse_request: _refuse_request}
"""Function of `plain_messages` -> ``answer(tx, *arguments)``."""


def _bound(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {
        name: value.realize() for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items()
    }


def _posted(tx: Any, function: Any, given: dict[str, Any], peer: str) -> int:
    """One marker, and the number of the request for it."""
    dist, frame, peer_in_group = torch.distributed, active.frame, f"group_{peer}"
    assert frame is not None
    group = _group_of(given.get("group"), tx)
    rank, inside = (_integer(given.get(name), tx) for name in (peer, peer_in_group))
    tag = _integer(given.get("tag"), tx)
    tensor = given["tensor"]
    if (rank is None) == (inside is None) or not isinstance(tensor, TensorVariable):
        raise refuse("body-not-traceable", f"{function.__name__} without exactly one peer", location_of(tx))
    try:
        rank = rank if inside is None else dist.get_global_rank(group, inside)
    except ValueError as error:
        raise refuse("body-not-traceable", str(error), location_of(tx)) from None
    frame.not_replayable = "the loop sends messages to other ranks"
    if not any(node.target is SEND or node.target is RECV for node in tx.output.graph.nodes):
        for name in _groups_seen(tx):
            tx.output.create_proxy("call_function", GROUP, (name,), {})
    number = frame.messages = frame.messages + 1
    frame.message_groups.setdefault(group.group_name, (location_of(tx), set()))[1].add(rank or 0)
    marker = SEND if function is dist.isend else RECV
    tx.output.create_proxy("call_function", marker, (tensor.as_proxy(), rank, tag or 0, group.group_name, number), {})
    return number


def _integer(value: Any, tx: Any) -> int | None:
    if value is None or (value.is_python_constant() and value.as_python_constant() is None):
        return None
    if not value.is_python_constant() or type(value.as_python_constant()) is not int:
        raise refuse("body-not-traceable", "a peer or a tag that is not a constant", location_of(tx))
    number: int = value.as_python_constant()
    return number


def _group_of(value: Any, tx: Any) -> Any:
    """The process group of an argument; the graph is only good for this one."""
    if value is None or (value.is_python_constant() and value.as_python_constant() is None):
        return torch.distributed.group.WORLD
    group = _process_group(value.as_python_constant() if value.is_python_constant() else getattr(value, "value", None))
    if group is None:
        raise refuse("body-not-traceable", "messages of something that is not a process group", location_of(tx))
    if value.source is not None:
        install_guard(value.source.make_guard(GuardBuilder.ID_MATCH))
    return group


def _process_group(value: Any) -> Any:
    """The process group behind a value that Dynamo has wrapped or not; None for anything else."""
    value = getattr(value, "real_obj", value)
    return value if isinstance(value, torch.distributed.ProcessGroup) else None


def _groups_seen(tx: Any) -> list[str]:
    """Names of the groups that this frame has for inputs: messages may be sent in another one (the default one, say)
    than the one whose ranks hold the shards. The graph is only good for these."""
    names: dict[str, None] = {}
    for node in tx.output.root_tracer.graph.nodes:
        group = _process_group(node.meta.get("example_value")) if node.op == "placeholder" else None
        if group is not None:
            names[group.group_name] = None
            install_guard(node.meta["grapharg"].source.make_guard(GuardBuilder.ID_MATCH))
    # Before torch 2.12, groups are no inputs of the graph.
    for variable in getattr(tx.output, "variable_tracker_cache", {}).values() if not names else ():
        group = _process_group(getattr(variable, "value", None))
        if group is not None and variable.source is not None:
            names[group.group_name] = None
            install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
    return list(names)


def problem() -> str | None:
    """Why this torch does not fit, or None."""
    return None if torch.distributed.is_available() else "this build of torch has no torch.distributed"
