"""What a call does besides computing its result: random numbers, reads on the host, messages, modes, writes.

Torch is asked first: schemas say what is written, tags what is random and what depends on data. A call that nobody
knows may do anything. ::

    effects_of(node).pure        # its result depends on its inputs alone, and nothing else changes
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from packpass._compat import is_collective, qualified_name
from packpass.semantics.binding import value_of
from packpass.semantics.call import Call, call_of
from packpass.semantics.memory import writes_of
from packpass.semantics.names import base_name, is_in_place, op_name

TRUSTED = frozenset({"aten", "prims", "prim", "inductor_prims", "packpass", "packpass_capture"})
"""Namespaces whose operators do what their schemas say and nothing else."""

# Methods and functions that look at values on the host. Torch tags the overloads below some of them.
_HOST = frozenset(
    {"item", "tolist", "numpy", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "is_nonzero"}
    | {"equal", "allclose", "__bool__", "__int__", "__float__", "__index__", "__len__", "__contains__", "__iter__"}
)
_MODES = frozenset(
    {"torch._C._set_grad_enabled", "torch.amp.autocast_mode._enter_autocast", "torch.amp.autocast_mode._exit_autocast"}
)
_CHECKS = frozenset(
    {"assert_async", "_assert_scalar", "_check", "_check_is_size", "_check_tensor_all", "_assert_tensor_metadata"}
)
# Functions of Python around random numbers, which have no tag of their own.
_RANDOM = frozenset({"gumbel_softmax", "rrelu", "seed", "manual_seed", "initial_seed", "bernoulli", "normal"})
_ATTRIBUTES = frozenset(
    {"shape", "ndim", "dtype", "device", "T", "mT", "H", "mH", "requires_grad", "is_cuda", "layout"}
)
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a node does besides its result."""

    known: bool = True
    """False: anything."""
    random: bool = False
    host: bool = False
    """Does it read values of tensors on the host, or have a shape that depends on them?"""
    collective: bool = False
    mode: bool = False
    """Does it change what later calls mean (gradients recorded, autocast)?"""
    checks: bool = False
    """Is it there to raise?"""
    writes: tuple[fx.Node, ...] = ()
    """Inputs whose memory it may write."""

    @property
    def pure(self) -> bool:
        """Nothing: it may be computed elsewhere, again, or not at all."""
        return self.known and not (
            self.random or self.host or self.collective or self.mode or self.checks or self.writes
        )

    @property
    def repeatable(self) -> bool:
        """May it be computed elsewhere, again, or not at all, as long as its inputs are the same? (A read on the host
        may: it gives the same number.)"""
        return dataclasses.replace(self, host=False).pure


PURE = Effects()
ANYTHING = Effects(known=False)


def effects_of(node: fx.Node) -> Effects:
    """What a node does besides computing its result. Graphs inside higher-order operators are not looked into."""
    if node.op in ("placeholder", "get_attr", "output"):
        return PURE
    if node.op == "call_module":
        return _anything(node)
    name = op_name(node)
    if node.op == "call_function" and is_collective(node.target):
        return Effects(collective=True, writes=_operands(node) if _writes_arguments(node.target) else ())
    if name in _MODES:
        return Effects(mode=True)
    if base_name(name) in _CHECKS:
        return Effects(checks=True)
    space = qualified_name(node.target)[0]
    if not name or name.startswith("higher_order::") or (space and space not in TRUSTED):
        return _anything(node)
    if isinstance(node.target, torch._ops.OpOverload) and space not in ("aten", "prims"):
        return _of_schema(node, node.target)
    return _of_torch(node, name)


def _anything(node: fx.Node) -> Effects:
    return dataclasses.replace(ANYTHING, writes=_operands(node))


def _operands(node: fx.Node) -> tuple[fx.Node, ...]:
    return tuple(n for n in node.all_input_nodes if _holds_tensors(value_of(n)))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(v) for v in value)
    return isinstance(value, torch.Tensor)


def _writes_arguments(target: Any) -> bool:
    """Functional collectives return what others write."""
    schema = getattr(target, "_schema", None)
    return schema is None or bool(schema.is_mutable)


def _of_schema(node: fx.Node, overload: Any) -> Effects:
    """An operator of somebody else's that is trusted."""
    if node.is_impure():  # registered as having a side effect
        return _anything(node)
    tags = _tags_of(overload)
    writes = _operands(node) if overload._schema.is_mutable else ()
    return Effects(random=tags.random, host=tags.host, checks=not overload._schema.returns, writes=writes)


def _of_torch(node: fx.Node, name: str) -> Effects:
    """One of torch's or Python's own functions."""
    value = value_of(node)
    call = call_of(node)
    inputs = _operands(node)
    if name == "getattr":
        return PURE if node.args[1:2] and node.args[1] in _ATTRIBUTES else _anything(node)
    if not inputs and isinstance(value, _NUMBERS):
        return Effects(host=name in _HOST)
    if name in _HOST:
        return Effects(host=True)
    if call is None:
        # An out= that is written, or a call in a form that torch does not document.
        return Effects(
            random=may_draw(base_name(name)),
            known=not is_in_place(name) and node.kwargs.get("out") is None and _documented(name),
            writes=inputs if is_in_place(name) or node.kwargs.get("out") is not None or name == "delitem" else (),
        )
    tags = _tags_of(call.overload) if call.overload is not None else _tags_of_name(call.op)
    return Effects(
        known=_documented(name) or call.overload is not None,
        random=_draws(call, tags),
        host=tags.host or _masked(call),
        writes=tuple(call.operands[k].node for k in sorted(writes_of(call))),
    )


def _documented(name: str) -> bool:
    """Is this a public function of torch's, which would say if it did more than it returns?"""
    return not name.startswith(("torch.", "_")) or name.startswith("__")


def _draws(call: Call, tags: _Tags) -> bool:
    """Dropout draws where it is told to; whatever is tagged draws always."""
    rate = call.get("dropout_p", "p", "dropout")
    if "training" in call.arguments or "train" in call.arguments:
        told = call.get("training", "train")
        return bool(told) and ("dropout" in call.op or call.op in _RANDOM) and rate != 0
    if "dropout_p" in call.arguments:
        return bool(call.get("dropout_p"))
    return tags.random or call.op in _RANDOM


def _masked(call: Call) -> bool:
    """An index that is a mask: data decides about the shape."""
    if call.op != "getitem":
        return False
    return any(o.argument == "index" and o.value.dtype in (torch.bool, torch.uint8) for o in call.operands)


# === Tags ====================================================================================================


@dataclasses.dataclass(frozen=True)
class _Tags:
    random: bool
    host: bool


@functools.cache
def _tags_of(overload: Any) -> _Tags:
    tags: Collection[torch.Tag] = overload.tags
    return _Tags(
        torch.Tag.nondeterministic_seeded in tags,
        torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
    )


@functools.cache
def _tags_of_name(op: str) -> _Tags:
    packet = getattr(torch.ops.aten, op, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return _Tags(False, False)
    every = [_tags_of(getattr(packet, name)) for name in packet.overloads()]
    return _Tags(any(t.random for t in every), any(t.host for t in every))


@functools.cache
def may_draw(op: str) -> bool:
    """May an operation of this name draw random numbers?"""
    return "dropout" in op or op in _RANDOM or _tags_of_name(op).random


# === Modes ===================================================================================================


def changes_grad_mode(node: fx.Node) -> bool:
    """Does the node switch the recording of gradients on or off?"""
    return node.op == "call_function" and op_name(node) == "torch._C._set_grad_enabled"


def grad_mode_changes(start: fx.Node, stop: fx.Node) -> bool:
    """Is gradient recording switched between two nodes?"""
    node = start
    while node is not stop and node.op != "root":
        if "grad_enabled" in str(node.target) or "inference_mode" in str(node.target):
            return True
        node = node.next
    return False


def open_autocasts(graph: fx.Graph, before: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions open at a node, outermost first: device type, dtype, enabled, cache."""
    opened: dict[fx.Node, tuple[Any, ...]] = {}
    for node in graph.nodes:
        if node is before:
            break
        name = op_name(node)
        if name == "torch.amp.autocast_mode._enter_autocast":
            opened[node] = node.args
        elif name == "torch.amp.autocast_mode._exit_autocast":
            opened.pop(node.args[0], None)
    return list(opened.values())
