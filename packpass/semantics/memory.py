"""What calls share and write: which operands a result may be a view of, and which are written.

torch's schemas say so; the lists here are of what they do not say (each line of them is tested).
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from packpass.semantics.binding import example
from packpass.semantics.call import Call, call_of
from packpass.semantics.names import base_name, op_name
from packpass.semantics.pointwise import COPIES

# Composites that may return what they were given, or views of it, though their schemas are silent.
_SILENT_VIEWS = frozenset(
    {"to", "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "broadcast_tensors", "einsum", "getattr", "data"}
    | {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"}
    | {"requires_grad_", "cartesian_prod", "unflatten", "split", "chunk", "type", "real", "tensordot", "pad"}
    | {"unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes", "conj_physical"}
    | {"combinations", "rnn", "interpolate", "repeat_interleave", "hsplit", "vsplit", "dsplit", "tensor_split"}
)
# Functions written in Python, of which torch has no schema, that always make something new.
_NEW = frozenset(
    {"max_unpool1d", "max_unpool2d", "max_unpool3d", "grid_sample", "cosine_similarity", "cdist", "softsign"}
    | {"tanhshrink"}
)
_STATISTICS = frozenset({"running_mean", "running_var"})
"""Arguments that are written in training, though the name of the operation and some schemas do not say so."""


def storage(node: Any) -> Any:
    """Identity of the storage behind a tensor node; None for anything else."""
    value = example(node)
    return _memory(value) if isinstance(value, torch.Tensor) else None


def shared_inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call is given in whose memory its result is."""
    return [n for n in node.all_input_nodes if isinstance(example(n), torch.Tensor) and storage(n) == storage(node)]


def own_storage(node: Any) -> Any:
    """The same, without what is known of values that stand for parts of others."""
    value = example(node)
    return _storage(value) if isinstance(value, torch.Tensor) else None


def _storage(value: torch.Tensor) -> Any:
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # samples of a batch inside torch.func.vmap have none of their own
        return None


def _memory(value: torch.Tensor) -> Any:
    return _root(_storage(value))


def _root(memory: Any) -> Any:
    while memory in _SHARED:
        memory = _SHARED[memory]
    return memory


_SHARED: dict[int, int] = {}
"""Storage of a fake value -> that of another with which it shares memory."""
_KEPT: dict[int, StorageWeakRef] = {}
"""What keeps these numbers from being given to other storages."""
_MANY = 10_000


def share_memory(one: Any, other: Any) -> None:
    """Two fake values are of tensors that share memory, though their storages do not say so: of one that stands for a
    part of the other, or of what has taken the place of another, of which views are left."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return
    first, second = _memory(one), _memory(other)
    if first is None or second is None or first == second:
        return
    for value in (one, other):
        own = value.untyped_storage()
        if own._cdata not in _KEPT:
            _KEPT[own._cdata] = StorageWeakRef(own)
    _SHARED[first] = second
    if len(_SHARED) > _MANY:
        _forget()


def _forget() -> None:
    """Storages that are gone are asked for no more."""
    left = {memory: _root(memory) for memory in _SHARED if not StorageWeakRef.expired(_KEPT[memory])}
    _SHARED.clear()
    _SHARED.update(left)
    for memory in _KEPT.keys() - left.keys() - set(left.values()):
        del _KEPT[memory]


_OVERWRITE = frozenset({"copy_", "fill_", "zero_"})


def overwritten(node: fx.Node) -> tuple[fx.Node, list[Any], Any] | None:
    """``(tensor, index, value)`` of ``x[index] = value``, of ``x.copy_(value)``, ``x.fill_(value)`` and ``x.zero_()``
    without an index; None for any other call."""
    if node.target is operator.setitem:
        target, index, value = node.args
        return target, list(index) if isinstance(index, tuple) else [index], value  # type: ignore[return-value]
    if node.op != "call_method" or op_name(node) not in _OVERWRITE or node.kwargs or len(node.args) > 2:
        return None
    return node.args[0], [], node.args[1] if len(node.args) > 1 else 0  # type: ignore[return-value]


def copied(node: fx.Node) -> fx.Node | None:
    """What a node holds the same values as, slot by slot: the operand of a copy, of a cast (as far as the dtype holds
    them), of a move to another device, or of a call that hands back what it got. None for any other call."""
    call = call_of(node)
    if call is None or call.op not in COPIES or not isinstance(call.results[0], torch.Tensor):
        return None
    source = call.of("input")
    return source.node if source is not None else None


def is_new(node: Any) -> bool:
    """Is the result of a call one tensor in memory of its own, whatever the call was given?"""
    call, made = (call_of(node) if isinstance(node, fx.Node) else None), example(node)
    if call is None or not isinstance(made, torch.Tensor):
        return False
    cast = call.op in COPIES and bool(call.operands) and call.operands[0].value.dtype != made.dtype
    return cast or not any(aliases_of(call))


def aliases_of(call: Call) -> tuple[frozenset[int], ...]:
    """For every result the operands that it may share memory with."""
    everything = frozenset(k for k, o in enumerate(call.operands) if o.argument not in call.unread)
    count = len(call.results)
    if call.in_place:
        return (frozenset({0}),) * count
    if call.op == "getitem":
        index = call.arguments["index"]
        several = index if isinstance(index, tuple) else (index,)
        looked = any(o.argument == "index" for o in call.operands) or any(isinstance(e, (list, bool)) for e in several)
        return (frozenset() if looked else frozenset({0}),) * count
    if base_name(call.name) in _SILENT_VIEWS or call.op in _SILENT_VIEWS:
        return (everything,) * count
    if call.op in _NEW:
        return (frozenset(),) * count
    overload = call.overload if call.overload is not None else _some_overload(call.op)
    if overload is None:
        # A function written in Python that torch has no schema of: it may hand back what it got.
        return (everything,) * count
    shared = _shared(overload)
    found = frozenset(k for k, o in enumerate(call.operands) if o.argument in shared)
    return (found,) * count


def _some_overload(op: str) -> Any:
    packet = getattr(torch.ops.aten, op, None)
    return getattr(packet, packet.overloads()[0]) if isinstance(packet, torch._ops.OpOverloadPacket) else None


def _shared(overload: Any) -> frozenset[str]:
    """Arguments whose memory a result of the overload may share, as its schema has it."""
    schema = overload._schema
    if not any(r.alias_info is not None or str(r.type).startswith("List") for r in schema.returns):
        return frozenset()
    return frozenset("input" if a.name == "self" else a.name for a in schema.arguments if a.alias_info is not None)


@functools.cache
def _written_arguments(overload: Any) -> frozenset[str]:
    """Arguments that the overload writes, as its schema has it."""
    written = (a.name for a in overload._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return frozenset("input" if name == "self" else name for name in written)


def writes_of(call: Call) -> frozenset[int]:
    """The operands whose memory a call writes."""
    if "writes" not in call.known:
        call.known["writes"] = _writes_of(call)
    found: frozenset[int] = call.known["writes"]
    return found


def _writes_of(call: Call) -> frozenset[int]:
    written = set(_written_arguments(call.overload)) if call.overload is not None else set()
    if call.in_place and call.op != "requires_grad" and call.operands:
        written.add(call.operands[0].argument)  # all of it: it may be a list
    if call.get("training", "use_input_stats", default=True):
        written |= _STATISTICS
    if call.op in ("embedding", "embedding_bag") and call.get("max_norm") is not None:
        written.add("weight")
    return frozenset(k for k, o in enumerate(call.operands) if o.argument in written)
