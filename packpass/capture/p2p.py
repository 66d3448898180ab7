"""Point-to-point messages inside a loop over documents: ``isend``, ``irecv``, ``batch_isend_irecv`` and their waits.

Stock Dynamo breaks the graph at them. (With its experimental option it captures them, and Inductor's code for them
deadlocks.) Inside a captured loop they become marker ops, for `passes.fuse_boundary_exchange` to replace by one
exchange; no marker ever executes or reaches the inner backend. A frame in which one is left is traced again as stock
torch would, messages between graphs included.

    p2p_send(x, peer, tag, group, work)     # peer: global rank; work: number of the request
    p2p_recv(x, peer, tag, group, work)     # fills x, which nobody may look at before
    p2p_wait(work)
    p2p_group(group)                        # before them: names of the groups that this frame has looked at

Functions named after what they wrap are ``replacement(original, *args)`` for the hook table in `packpass.capture`.
"""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

import torch
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables import ConstantVariable, ListVariable, TensorVariable
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker
from torch._dynamo.variables.functions import CollectiveFunctionRewriteVariable
from torch.fx.node import has_side_effect

from packpass.capture.region import Region
from packpass.capture.state import Mode, active, refuse
from packpass.capture.watch import location_of

_lib = torch.library.Library("packpass_capture", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)
_lib.define("p2p_send(Tensor x, int peer, int tag, str group, int work) -> ()", tags=_TAGS)
_lib.define("p2p_recv(Tensor(a!) x, int peer, int tag, str group, int work) -> ()", tags=_TAGS)
_lib.define("p2p_wait(int work) -> ()", tags=_TAGS)
_lib.define("p2p_group(str group) -> ()", tags=_TAGS)
_ns = torch.ops.packpass_capture
SEND, RECV, WAIT, GROUP = _ns.p2p_send.default, _ns.p2p_recv.default, _ns.p2p_wait.default, _ns.p2p_group.default
MARKERS = frozenset({SEND, RECV, WAIT, GROUP})


def _never(*args: object) -> None:
    raise RuntimeError("packpass: a point-to-point marker reached execution; please report this")


for _op in MARKERS:
    has_side_effect(_op)
    _lib.impl(_op.name().partition("::")[2], _never, "CompositeExplicitAutograd")
    torch.library.register_fake(_op.name(), lambda *args: None, lib=_lib)


class WorkVariable(VariableTracker):
    """The request that ``isend`` and ``irecv`` return: good for one ``wait()`` in its own iteration."""

    def __init__(self, number: int, region: Region, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number, self.region, self.iteration = number, region, region.iteration

    def _refuse(self, what: str) -> NoReturn:
        raise refuse("message-wait", f"{what} of a point-to-point request", self.region.location)

    def python_type(self) -> type:
        return torch.distributed.Work

    def as_python_constant(self) -> Any:
        raise NotImplementedError

    def is_python_constant(self) -> bool:
        return False

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> VariableTracker:
        if name != "wait" or args or kwargs:
            self._refuse(f"Work.{name}, or a wait with a time-out,")
        if not active.regions or active.regions[-1] is not self.region or self.region.iteration != self.iteration:
            self._refuse("a wait outside of the iteration")
        tx.output.create_proxy("call_function", WAIT, (self.number,), {})
        return ConstantVariable.create(True)

    def var_getattr(self, tx: Any, name: str) -> VariableTracker:
        from torch._dynamo.variables.misc import GetAttrVariable

        return GetAttrVariable(self, name)

    def reconstruct(self, codegen: Any) -> None:
        self._refuse("a graph break, or a return, that keeps hold")

    def as_proxy(self) -> Any:
        self._refuse("use in an operator")


class P2POpVariable(VariableTracker):
    """A ``dist.P2POp``: goes into the list of ``batch_isend_irecv``, nowhere else."""

    def __init__(self, arguments: dict[str, VariableTracker], location: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments, self.location = arguments, location

    def python_type(self) -> type:
        return torch.distributed.P2POp

    def is_python_constant(self) -> bool:
        return False

    def reconstruct(self, codegen: Any) -> None:
        raise refuse("message-wait", "a P2POp outlives the iteration that made it", self.location)


def _capturing() -> bool:
    frame = active.frame
    return frame is not None and frame.mode is Mode.SYMBOLIC and bool(active.regions)


def call_collective(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``CollectiveFunctionRewriteVariable.call_function``: the functions that send and receive."""
    dist = torch.distributed
    if not _capturing() or self.fn not in (dist.isend, dist.irecv, dist.batch_isend_irecv):
        return original(self, tx, args, kwargs)
    arguments = _bound(self.fn, args, kwargs)
    if self.fn is not dist.batch_isend_irecv:
        peer = "dst" if self.fn is dist.isend else "src"
        return _message(tx, self.fn, arguments, peer, f"group_{peer}")
    ops = arguments["p2p_op_list"]
    given = [item.realize() for item in ops.items] if isinstance(ops, ListVariable) else []
    items = [item for item in given if isinstance(item, P2POpVariable)]
    if not items or len(items) < len(given):
        raise refuse("body-not-traceable", "batch_isend_irecv of something else than new P2POps", location_of(tx))
    works: list[VariableTracker] = []
    for item in items:
        function = getattr(item.arguments["op"], "fn", None)
        if function not in (dist.isend, dist.irecv):
            raise refuse("body-not-traceable", "a P2POp of something else than isend and irecv", location_of(tx))
        works.append(_message(tx, function, item.arguments, "peer", "group_peer"))
    return ListVariable(works, mutation_type=ValueMutationNew())


def call_class(original: Any, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """``UserDefinedClassVariable.call_function``: ``dist.P2POp(...)``."""
    if self.value is not torch.distributed.P2POp or not _capturing():
        return original(self, tx, args, kwargs)
    return P2POpVariable(_bound(torch.distributed.P2POp, args, kwargs), location_of(tx))


def _bound(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return {
        name: value.realize() for name, value in inspect.signature(function).bind(*args, **kwargs).arguments.items()
    }


def _message(tx: Any, function: Any, given: dict[str, Any], peer: str, peer_in_group: str) -> WorkVariable:
    """One marker, and the request for it."""
    dist = torch.distributed
    region, frame = active.regions[-1], active.frame
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
    marker = SEND if function is dist.isend else RECV
    tx.output.create_proxy("call_function", marker, (tensor.as_proxy(), rank, tag or 0, group.group_name, number), {})
    return WorkVariable(number, region, mutation_type=ValueMutationNew())


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
    return list(names)


def problem() -> str | None:
    """Why this torch does not fit: stock Dynamo must take the functions for collectives that it rewrites."""
    dist = torch.distributed
    if not dist.is_available():
        return "this build of torch has no torch.distributed"
    functions = (dist.isend, dist.irecv, dist.batch_isend_irecv)
    strange = [f.__name__ for f in functions if not CollectiveFunctionRewriteVariable.can_rewrite(f)]
    return f"Dynamo does not rewrite {', '.join(strange)}" if strange else None
