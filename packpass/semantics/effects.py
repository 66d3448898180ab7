"""What a call does besides computing its result: random numbers, reads on the host, messages, modes, writes.

Torch is asked first: schemas say what is written, tags what is random and what depends on data. A call that nobody
knows may do anything. ::

    effects_of(node).pure        # its result depends on its inputs alone, and nothing else changes
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from packpass._compat import is_collective, qualified_name
from packpass.semantics.binding import example
from packpass.semantics.call import Call, call_of, is_as_it_was, kept
from packpass.semantics.inner_graphs import inner_graph, places_of, result_of, subgraphs
from packpass.semantics.memory import storage, writes_of
from packpass.semantics.names import AUTOGRAD_FUNCTION, base_name, is_in_place, op_name

TRUSTED = frozenset({"aten", "prims", "prim", "inductor_prims", "packpass", "packpass_capture"})
"""Namespaces whose operators do what their schemas say and nothing else."""

_WRITTEN = "_packpass_written"
_CALLS = ("call_function", "call_method", "call_module")
# Methods and functions that look at values on the host. Torch tags the overloads below some of them.
_HOST = frozenset(
    {"item", "tolist", "numpy", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "is_nonzero"}
    | {"equal", "allclose", "__bool__", "__int__", "__float__", "index_of", "__len__", "__contains__", "__iter__"}
)
AS_NUMBERS = frozenset({"item", "tolist", "sym_int", "__int__", "index_of"})
"""What gives Python the whole numbers that a tensor, or a number, holds."""
SET_GRAD = "torch._C._set_grad_enabled"
ENTER_AUTOCAST = "torch.amp.autocast_mode._enter_autocast"
EXIT_AUTOCAST = "torch.amp.autocast_mode._exit_autocast"
_MODES = ("grad_enabled", "inference_mode", "autocast", "saved_tensors_hooks", "manual_seed")
"""Words in the names of what changes the state of the process."""
CHECKS = frozenset(
    {"assert_async", "_assert_scalar", "_check", "_check_is_size", "_check_tensor_all", "_assert_tensor_metadata"}
)
"""What raises if something does not hold, and does nothing else."""
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
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _effects_of(node)
    found: Effects = kept(node, "_packpass_effects", _effects_of)
    return found


def _effects_of(node: fx.Node) -> Effects:
    name = op_name(node)
    if node.op == "call_function" and is_collective(node.target):
        return Effects(collective=True, writes=written_inputs(node))
    if name.startswith("torch.") and changes_mode(node):
        return Effects(mode=True)
    if base_name(name) in CHECKS:
        return Effects(checks=True)
    space = qualified_name(node.target)[0]
    if not name or name.startswith("higher_order::") or (space and space not in TRUSTED):
        return _anything(node)
    if isinstance(node.target, torch._ops.OpOverload) and space not in ("aten", "prims"):
        return _of_schema(node, node.target)
    return _of_torch(node, name)


def _anything(node: fx.Node) -> Effects:
    return dataclasses.replace(ANYTHING, writes=written_inputs(node))


def _of_schema(node: fx.Node, overload: Any) -> Effects:
    """An operator of somebody else's that is trusted."""
    if node.is_impure():  # registered as having a side effect
        return _anything(node)
    tags = _tags_of(overload)
    checks = not overload._schema.returns
    return Effects(random=tags.random, host=tags.host, checks=checks, writes=written_inputs(node))


def _of_torch(node: fx.Node, name: str) -> Effects:
    """One of torch's or Python's own functions."""
    value = example(node)
    call = call_of(node)
    if name == "getattr":
        return PURE if node.args[1:2] and node.args[1] in _ATTRIBUTES else _anything(node)
    if isinstance(value, _NUMBERS) and not _operands(node):
        return Effects(host=name in _HOST)
    if name in _HOST:
        return Effects(host=True)
    writes = written_inputs(node)
    if call is None:
        # An out= that is written, or a call in a form that torch does not document.
        known = not is_in_place(name) and node.kwargs.get("out") is None and _documented(name)
        return Effects(random=may_draw(base_name(name)), known=known, writes=writes)
    tags = _tags_of(call.overload) if call.overload is not None else _tags_of_name(call.op)
    return Effects(
        known=_documented(name) or call.overload is not None,
        random=_draws(call, tags),
        host=tags.host or _masked(call),
        writes=writes,
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


# === Writes ==================================================================================================


def written_inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    """The inputs whose memory a node may write: of a call that nobody knows, all of them."""
    if node.op not in _CALLS:
        return ()
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _written_inside(node)
    found: tuple[fx.Node, ...] = kept(node, _WRITTEN, _written_inputs)
    return found


def _written_inputs(node: fx.Node) -> tuple[fx.Node, ...]:
    target: Any = node.target
    name = op_name(node)
    out = node.kwargs.get("out")
    if not name:
        return _operands(node)
    if out is not None:
        return (out,) if isinstance(out, fx.Node) and "::" not in name else _operands(node)
    if "::" in name or name.startswith("torch.distributed."):
        return _declared(node) if _mutable(target) else ()
    call = call_of(node)
    if call is None:
        return _operands(node) if is_in_place(name) else ()
    written = tuple(call.operands[k].node for k in sorted(writes_of(call)))
    if not written and call.in_place and isinstance(node.args[0], fx.Node) and example(node.args[0]) is None:
        return (node.args[0],)
    return written


def _operands(node: fx.Node) -> tuple[fx.Node, ...]:
    return tuple(n for n in node.all_input_nodes if _holds_tensors(example(n)))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensors(v) for v in value)
    return isinstance(value, torch.Tensor)


def _mutable(target: Any) -> bool:
    """May an operator write what it is given? A packet, which Dynamo puts down for ``torch.ops.x.y``, may mean any of
    its overloads; functional collectives return what others write."""
    several = isinstance(target, torch._ops.OpOverloadPacket)
    overloads = [getattr(target, name) for name in target.overloads()] if several else [target]
    schemas = [getattr(overload, "_schema", None) for overload in overloads]
    return any(schema is None or schema.is_mutable for schema in schemas)


def _declared(node: fx.Node) -> tuple[fx.Node, ...]:
    """What a custom operator's schema says that it writes; of a packet of several, all operands."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return _operands(node)
    places = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    names = {schema.arguments[i].name for i in places}
    given = [node.args[i] for i in places if i < len(node.args)]
    given += [value for name, value in node.kwargs.items() if name in names]
    found: list[fx.Node] = []
    fx.node.map_arg(given, found.append)
    return tuple(n for n in found if _holds_tensors(example(n)))


def _written_inside(node: fx.Node) -> tuple[fx.Node, ...]:
    """Operands of a higher-order operator that its graph may write: all of them, unless the graph is at hand, and none
    that runs later gets hold of them."""
    owner = node.graph.owning_module
    inside = subgraphs(owner, node) if owner is not None else []
    if len(inside) != 1:
        return _operands(node)
    sub, inputs, _ = inside[0]
    if op_name(node) == AUTOGRAD_FUNCTION and _hands_on(sub, inner_graph(node, 1)):
        return _operands(node)
    written = {storage(target) for n in sub.graph.nodes for target in written_inputs(n)}
    if None in written:
        return _operands(node)
    return tuple(outer for outer, inner in inputs if storage(inner) in written and _holds_tensors(example(outer)))


def _hands_on(forward: fx.GraphModule, backward: fx.GraphModule | None) -> bool:
    """May the backward of an ``autograd.Function``, or who gets its results, write memory that it was given?"""
    results, *kept = result_of(forward)
    returned: list[fx.Node] = []
    fx.node.map_arg(results, returned.append)
    saved: list[fx.Node] = []
    fx.node.map_arg(kept, saved.append)
    given = set(map(storage, places_of(forward))) | {None}
    if any(map(_may_hold_tensors, saved)) and (backward is None or writes_given(backward)):
        return True
    return any(_may_hold_tensors(n) and storage(n) in given for n in returned)


def writes_given(graph: fx.GraphModule) -> bool:
    """May a graph write what it takes?"""
    given = {storage(n) for n in places_of(graph) if _may_hold_tensors(n)} | {None}
    return any(storage(target) in given for n in graph.graph.nodes for target in written_inputs(n))


def _may_hold_tensors(node: fx.Node) -> bool:
    return example(node) is None or _holds_tensors(example(node))


def mutated_after(
    graph: fx.Graph, node: fx.Node, start: fx.Node, stop: fx.Node | None = None, ignore: Collection[fx.Node] = ()
) -> bool:
    """May any node from ``start`` on (up to ``stop``, exclusive, and not in ``ignore``) write to the memory of
    ``node``?"""
    memory = storage(node)
    either = {None, memory}
    for n, written in _writing(start, stop):
        if n not in ignore:
            if any(target is node or memory is None or storage(target) in either for target in written):
                return True
    return False


def _writing(start: fx.Node, stop: fx.Node | None) -> Iterable[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """The calls of a part of a graph that may write, and what. It is asked for the rest of the graph again and again,
    and most of it writes nothing: what is known of that is looked up here, without a call."""
    known = vars(start.graph).setdefault(_WRITTEN, {})
    for node in _between(start, stop):
        entry = known.get(node)
        written = entry[4] if entry is not None and is_as_it_was(node, entry) else written_inputs(node)
        if written:
            yield node, written


def _between(start: fx.Node, stop: fx.Node | None) -> Iterable[fx.Node]:
    node = start
    while node is not stop and node.op != "root":
        yield node
        node = node.next


# === Tags ====================================================================================================


@dataclasses.dataclass(frozen=True)
class _Tags:
    random: bool
    host: bool
    reshapes: bool


@functools.cache
def _tags_of(overload: Any) -> _Tags:
    tags: Collection[torch.Tag] = overload.tags
    return _Tags(
        torch.Tag.nondeterministic_seeded in tags,
        torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        torch.Tag.inplace_view in tags,
    )


@functools.cache
def _tags_of_name(op: str) -> _Tags:
    packet = getattr(torch.ops.aten, op, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return _Tags(False, False, False)
    every = [_tags_of(getattr(packet, name)) for name in packet.overloads()]
    return _Tags(any(t.random for t in every), any(t.host for t in every), any(t.reshapes for t in every))


@functools.cache
def may_draw(op: str) -> bool:
    """May an operation of this name draw random numbers?"""
    return "dropout" in op or op in _RANDOM or _tags_of_name(op).random


def reshapes_in_place(name: str) -> bool:
    """Does an operation of this name change the shape or the strides of its operand?"""
    return name != "detach_" and _tags_of_name(name).reshapes


# === Modes ===================================================================================================


def changes_mode(node: fx.Node) -> bool:
    """Does the node change what later calls mean (gradients recorded, autocast, the seed)?"""
    return node.op in _CALLS and any(word in str(node.target) for word in _MODES)


def changes_grad_mode(node: fx.Node) -> bool:
    """Does the node switch the recording of gradients on or off?"""
    return node.op == "call_function" and op_name(node) == SET_GRAD


def switches_gradients(node: fx.Node) -> bool:
    """Does the node switch the recording of gradients, or inference mode?"""
    return node.op in _CALLS and any(word in str(node.target) for word in _MODES[:2])


def records_gradients(at: fx.Node) -> bool:
    """Are gradients recorded at a node? False only if the graph itself has switched that off before."""
    node = at.prev
    while node.op != "root" and not changes_grad_mode(node):
        node = node.prev
    return node.op == "root" or node.args[0] is not False


def grad_mode_changes(start: fx.Node, stop: fx.Node) -> bool:
    """Is gradient recording switched between two nodes?"""
    return any(switches_gradients(node) for node in _between(start, stop))


def open_autocasts(graph: fx.Graph, before: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions open at a node, outermost first: device type, dtype, enabled, cache."""
    opened: dict[fx.Node, tuple[Any, ...]] = {}
    for node in graph.nodes:
        if node is before:
            break
        name = op_name(node)
        if name == ENTER_AUTOCAST:
            opened[node] = node.args
        elif name == EXIT_AUTOCAST:
            opened.pop(node.args[0], None)
    return list(opened.values())
